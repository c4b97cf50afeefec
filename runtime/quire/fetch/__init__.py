"""Brings a model's files from where they are published to a folder, whole or not at all: `quire fetch`.

Init containers and Jobs of the operator run it, so it is made for bad networks and small disks: it resumes, checks
digests, asks for room first, waits between tries, and says what it does. Light on purpose: no torch, nothing of the
engine. What is downloaded is the least that serves (see `wanted`).

Nothing is imported here: the engine reads `wanted` alone, and needs no HTTP client for it.
"""
