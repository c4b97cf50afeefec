"""The doors: the command line (`cli` and one module per command) and the Python API (`llm`).

`cli` imports nothing heavy; every command imports what it needs when it runs.
"""
