"""Build the container images of this tree with whatever builds images on this machine, once per content.

Layers, top to bottom; a module imports only from its own line or below:

    __main__                      command line
    build                         what has to be built, in which order, and what it is called
    prune, engines, base          the world's edge: disk, docker, podman, buildah, debootstrap
    identity, host, wheels        decide: content hash, the host's package settings, folders of wheels
    context, contents, layout     leaves: what a Dockerfile copies, what an archive holds, where things lie

Progress, deadlines, caches, errors and apt come from `cluster`, which shares the command line's habits.
"""
