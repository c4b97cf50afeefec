"""Models: where their files are, what they look like, and how they compute.

`source` finds the files, `registry` and one file per architecture (`llama`) turn their metadata into a frozen
`description`, `weights` fills the parameters, `decoder` computes. Nothing here knows requests, steps or schedules, and
importing this package loads no torch: only `weights`, `rope`, `loader` and `decoder` do.
"""
