"""`kubectl llmd`: what a person asks of LLMDeployments, from a desk.

    cli ─▶ commands ─▶ {reach, follow, chat, forward} ─▶ {picture, orders, history, screen} ─▶ failures

`picture`, `orders`, `history` and `screen` decide and draw from objects: no I/O. `reach`, `follow`, `chat` and `forward` talk
to the cluster with the rights of the person. Nothing here runs in the operator; it needs the extra `cli`.
"""
