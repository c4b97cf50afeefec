"""A Kubernetes cluster for development and tests: an existing one, kind, or real components run here without a container engine.

Layers, top to bottom; a module imports only from its own line or below:

    __main__                                  command line
    handle                                    what tests and people use
    providers: existing, kind, local          who makes the cluster
    local_status, leaks, store                the local provider's parts
    machine, network, gpu                     the world's edge of the local provider
    plan, configs, certs, archive, status     pure: what to run, write and show
    client, api, cgroups, programs, tools, choice, prerequisites, pause, state
    processes, caches, wait, run, layout, progress, interrupt, errors

Everything of one cluster is below `layout.Layout.base`; there is one cluster per machine, whatever clone started it.
"""
