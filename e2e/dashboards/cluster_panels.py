"""What the dashboard of router and operator shows. Data only, like `panels`."""

from __future__ import annotations

from dashboards.panels import HALF, THIRD, WHOLE, Panel, Query, Row

OF_MODEL = 'model=~"$model"'
OF_NAMESPACE = 'namespace=~"$namespace"'


def _rate(name: str, *by: str, selected: str = "") -> str:
    return f"sum by ({', '.join(by)}) (rate(quire_{name}{{{selected}}}[$__rate_interval]))"


def _quantiles(name: str, selected: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le) (rate(quire_{name}_bucket{{{selected}}}[$__rate_interval])))",
            f"p{share * 100:g}",
        )
        for share in (0.5, 0.95, 0.99)
    )


NOW = Row(
    "Now",
    (
        Panel(
            "Requests",
            "Requests that the routers answer, with whatever status.",
            "reqps",
            (Query(f"sum(rate(quire_router_requests_total{{{OF_MODEL}}}[$__rate_interval]))", ""),),
            kind="stat",
            width=4,
        ),
        Panel(
            "In flight",
            "Requests that routers forward now.",
            "short",
            (Query(f"sum(quire_router_requests_in_flight{{{OF_MODEL}}})", ""),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Answered with 5xx",
            "Of all answers: no endpoint, a broken one, or a fault.",
            "percentunit",
            (
                Query(
                    f'(sum(rate(quire_router_requests_total{{{OF_MODEL},code=~"5.."}}[$__rate_interval])) or vector(0))'
                    f" / sum(rate(quire_router_requests_total{{{OF_MODEL}}}[$__rate_interval]))",
                    "",
                ),
            ),
            kind="stat",
            width=4,
            most=1,
            steps=(0.01, 0.05),
        ),
        Panel(
            "Replicas missing",
            "Replicas that should be and are not ready.",
            "short",
            (
                Query(
                    f'clamp_min(sum(quire_operator_replicas{{{OF_NAMESPACE},state="desired"}})'
                    f' - sum(quire_operator_replicas{{{OF_NAMESPACE},state="ready"}}), 0)',
                    "",
                ),
            ),
            kind="stat",
            width=4,
            steps=(1, 4),
        ),
        Panel(
            "Operators that lead",
            "1; with 0 nothing is reconciled.",
            "short",
            (Query("sum(quire_operator_leader)", ""),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Certificate",
            "Until the certificate of the metrics API ends; it is renewed 30 days before.",
            "s",
            (Query("min(quire_operator_certificate_expiry_timestamp_seconds > 0) - time()", ""),),
            kind="stat",
            width=4,
        ),
    ),
)

ROUTER = Row(
    "Router",
    (
        Panel(
            "Answers",
            "By status. 499: the client left first.",
            "reqps",
            (Query(_rate("router_requests_total", "code", selected=OF_MODEL), "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Models",
            "Requests by model; without a name: of no model that is known.",
            "reqps",
            (Query(_rate("router_requests_total", "model", selected=OF_MODEL), "{{model}}"),),
            stacked=True,
        ),
        Panel(
            "In flight",
            "Requests that are forwarded, by model.",
            "short",
            (Query(f"sum by (model) (quire_router_requests_in_flight{{{OF_MODEL}}})", "{{model}}"),),
            stacked=True,
        ),
        Panel(
            "Until the headers",
            "From sending a request to an endpoint to the headers of its answer; of a stream they come with its first token.",
            "s",
            _quantiles("router_upstream_latency_seconds", OF_MODEL),
        ),
        Panel(
            "Whole requests",
            "First byte of a request to the last of its answer.",
            "s",
            _quantiles("router_request_duration_seconds", OF_MODEL),
        ),
        Panel(
            "Sent again",
            "Requests sent to another endpoint before their first byte: no connection, closed, or 503.",
            "reqps",
            (Query(_rate("router_retries_total", "reason", selected=OF_MODEL), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Broken answers",
            "Answers whose endpoint broke off after the first byte.",
            "reqps",
            (Query(_rate("router_broken_streams_total", "model", selected=OF_MODEL), "{{model}}"),),
        ),
        Panel(
            "Endpoints",
            "By state; only ready ones are chosen.",
            "short",
            (
                Query(
                    f"max by (namespace, deployment, state) (quire_router_endpoints{{{OF_NAMESPACE}}})",
                    "{{namespace}}/{{deployment}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Came",
            "Requests as they come, by LLMDeployment. One that may go to zero does so when none came for long enough.",
            "reqps",
            (
                Query(
                    _rate("router_requests_came_total", "namespace", "deployment", selected=OF_NAMESPACE),
                    "{{namespace}}/{{deployment}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Wait at zero",
            "Requests that wait for the first pod of an LLMDeployment at zero.",
            "short",
            (
                Query(
                    f"sum by (namespace, deployment) (quire_router_requests_held{{{OF_NAMESPACE}}})",
                    "{{namespace}}/{{deployment}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Refused at zero",
            "Requests for one at zero that got 503: too many waited already (full), or no pod came in time (late).",
            "reqps",
            (Query(_rate("router_requests_not_held_total", "reason", selected=OF_NAMESPACE), "{{reason}}"),),
        ),
        Panel(
            "Watches",
            "Since the last sign of life of each watch; the oldest of all routers.",
            "s",
            (Query("max by (resource) (quire_router_watch_age_seconds)", "{{resource}}"),),
        ),
        Panel(
            "Events",
            "What the watches told.",
            "ops",
            (Query(_rate("router_watch_events_total", "resource"), "{{resource}}"),),
            width=HALF,
        ),
        Panel(
            "Lists and faults of watches",
            "A list at the start and after a fault; a fault is a list or a watch that failed.",
            "ops",
            (
                Query(_rate("router_watch_lists_total", "resource"), "lists: {{resource}}"),
                Query(_rate("router_watch_errors_total", "resource"), "faults: {{resource}}"),
            ),
            width=HALF,
        ),
    ),
)

OPERATOR = Row(
    "Operator",
    (
        Panel(
            "Replicas",
            "Of each LLMDeployment: desired, current, ready.",
            "short",
            (
                Query(
                    f"max by (namespace, name, state) (quire_operator_replicas{{{OF_NAMESPACE}}})",
                    "{{namespace}}/{{name}} {{state}}",
                ),
            ),
            width=WHOLE,
        ),
        Panel(
            "Looks", "One look at one object, reads and writes included.", "s", _quantiles("operator_reconcile_seconds")
        ),
        Panel(
            "Looks that failed",
            "By why; they are tried again.",
            "ops",
            (Query(_rate("operator_reconcile_errors_total", "reason"), "{{reason}}"),),
        ),
        Panel("Queue", "Objects that wait for a look.", "short", (Query("sum(quire_operator_queue_depth)", ""),)),
        Panel(
            "Writes",
            "Requests that change something in the cluster. None while nothing changes.",
            "ops",
            (Query(_rate("operator_writes_total", "kind"), "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Events",
            "What the watches told.",
            "ops",
            (Query(_rate("operator_watch_events_total", "kind"), "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Last event",
            "Since a watch told something. Long is well in a cluster at rest.",
            "s",
            (Query("time() - max(quire_operator_last_watch_event_timestamp_seconds > 0)", ""),),
        ),
        Panel(
            "Scrapes",
            "Of engines, for the autoscaler, by what came of them.",
            "ops",
            (Query(_rate("operator_scrapes_total", "result"), "{{result}}"),),
            stacked=True,
            width=THIRD,
        ),
        Panel(
            "Oldest sample",
            "Age of the oldest of the newest samples of ready engines; the autoscaler decides by no older ones.",
            "s",
            (Query("max(quire_operator_scrape_age_seconds)", ""),),
            steps=(10, 60),
        ),
        Panel(
            "Metrics API",
            "What the autoscaler asked, by status.",
            "reqps",
            (Query(_rate("operator_metrics_api_requests_total", "code"), "{{code}}"),),
            stacked=True,
        ),
    ),
)

ROWS = (NOW, ROUTER, OPERATOR)
