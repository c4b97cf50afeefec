"""The command line: `cli`, and one module per command.

`cli` imports nothing heavy; every command imports what it needs when it runs.
"""
