"""The same work for Quire and for other engines, in turn, on this machine: `make bench-peers`.

    home ← recipes (llama_cpp, vllm_cpu) and models ← lanes ← compare ← __main__;  pure: table, plot

Each engine is a server process that the same client talks to, in an environment of its own outside the repository. An engine that
cannot be installed or does not run here is reported with the reason and left out. docs/performance.md says how to read it.
"""
