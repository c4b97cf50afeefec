"""The whole of Quire on a cluster: built, loaded, installed, asked. Used by `make demo`, `make e2e` and the tests in e2e/tests.

`prepare` builds images and tools and brings the cluster up, `release` installs the chart, `ask` talks to the router,
`demo` is the newcomer's first run. Everything is idempotent: what is there and current is kept.
"""
