"""`quire bench`: what a machine makes of the engine, on fixed workloads.

`cli` is light; every benchmark imports what it needs when it runs. Pure: `workloads`, `stats`, `report`'s tables. `machine` and
`processes` read /proc, `client` and `servers` speak HTTP. docs/performance.md says how to read the figures.
"""
