"""The routes of custom.metrics.k8s.io. Always JSON, whatever the caller accepts; every failure is a `Status`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from quire_operator import telemetry
from quire_operator.metrics_api import documents
from quire_operator.metrics_api.front_proxy import FrontProxy
from quire_operator.metrics_api.selector import parse_selector, selects
from quire_operator.probe.samples import Samples

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(samples: Samples, front_proxy: Callable[[], FrontProxy]) -> web.Application:
    """`front_proxy` is asked at every request, so that new allowed names hold at once."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await _guarded(request, handler, front_proxy())
        telemetry.METRICS_REQUESTS.labels(code=str(response.status)).inc()
        return response

    app = web.Application(middlewares=[guard])
    group = f"/apis/{documents.GROUP}"
    app.router.add_get("/apis", _fixed(documents.group_list()))
    app.router.add_get(group, _fixed(documents.api_group()))
    for version in documents.VERSIONS:
        app.router.add_get(f"{group}/{version}", _fixed(documents.resource_list(version)))
        app.router.add_get(
            f"{group}/{version}/namespaces/{{namespace}}/pods/{{pod}}/{{metric}}", _pod_metrics(samples, version)
        )
    return app


async def _guarded(request: web.Request, handler: Handler, front_proxy: FrontProxy) -> web.StreamResponse:
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    if front_proxy.user_of(certificate, request.headers) is None:
        return _failure(401, "Unauthorized", "only the API server's aggregator is answered here")
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed:
        return _failure(405, "MethodNotAllowed", f"{request.method} is not supported")
    except web.HTTPNotFound:
        return _failure(404, "NotFound", f"there is nothing at {request.path}")


def _fixed(document: documents.Document) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    return answer


def _pod_metrics(samples: Samples, version: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        namespace, pod, metric = (request.match_info[name] for name in ("namespace", "pod", "metric"))
        if metric not in documents.METRICS:
            known = ", ".join(documents.METRICS)
            return _failure(404, "NotFound", f"there is no metric {metric} of pods; there are {known}")
        if request.query.get("metricLabelSelector"):
            return _failure(
                400, "BadRequest", "metricLabelSelector is not supported: the metrics of a pod have no labels"
            )
        try:
            wanted = parse_selector(request.query.get("labelSelector", ""))
        except ValueError as error:
            return _failure(400, "BadRequest", str(error))
        values = [
            (name, sample.value, sample.wall)
            for name, labels, sample in samples.select(namespace, metric, at=time.monotonic())
            if pod in ("*", name) and selects(wanted, labels)
        ]
        if not values and pod != "*":
            return _failure(404, "NotFound", f"pod {namespace}/{pod} has no recent value of {metric}")
        return web.json_response(documents.metric_value_list(version, namespace, metric, values))

    return answer


def _failure(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(documents.failure(code, reason, message), status=code)
