"""`make lint-chart`: what others' tools say of the chart, of the pods the operator makes, and of the Dockerfiles.

Findings that are right as they are stand in `accepted.yaml`, each with its reason; any other one fails, and so does a reason that
nothing needs any more.
"""
