"""A Kubernetes cluster for development and tests: an existing one, kind, or real components run here without a container engine.

Layers, top to bottom; a module imports only from its own line or below:

    __main__                                  command line
    handle, status                            what tests and people use
    providers: existing, kind, local          who makes the cluster
    machine, daemons, network, store, gpu     the world's edge of the local provider
    plan: commands, configs, certs, archive   pure: what to run and what to write
    api, processes, cgroups, tools, prerequisites, pause
    layout, state, wait, progress, errors     leaves

Everything of one cluster is below `layout.Layout.base`; there is one cluster per machine, whatever clone started it.
"""
