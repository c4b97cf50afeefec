"""The dashboards that the chart brings. `python -m dashboards` writes them to charts/quire/files/dashboards, with `--check` it compares.

`panels` says what is shown and is plain data; `grafana` makes Grafana's JSON of it. The tests run every query against a Prometheus that
scrapes a loaded engine.
"""
