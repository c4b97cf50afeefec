"""The routes of an application, also those of routers that were included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute, Route


def routes_of(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """All of them, flat."""
    for route in routes:
        if isinstance(route, Route):
            yield route
        else:
            yield from routes_of(route.original_router.routes)  # type: ignore[attr-defined]
