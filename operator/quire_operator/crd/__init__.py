"""Generates the CRD and the field reference from the API types; `python -m quire_operator.crd` writes both.

Nothing here runs in the operator. Output is a pure function of `quire_operator.api`, so CI can tell a stale file.
"""
