"""Requests in flight: `frontend` admits them and hands them to the engine (`engine` is that seam), `jobs` and `inbox` take what comes back,
`filtering` lets texts pass. Nothing here knows HTTP."""
