"""The alerts that the chart installs, by promtool: each fires when it should, says what it should, and keeps still otherwise."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import helm_kit
from helm_kit import ROOT, Object
from prometheus_kit import metric_names, program
from quire.metrics import EngineMetrics
from quire_operator import telemetry
from quire_router.metrics import Metrics as RouterMetrics

# Helm is built, and Prometheus installed, where they are not here yet.
pytestmark = pytest.mark.timeout(3600)

ENGINE = 'instance="a:8000",model_name="m",namespace="ns"'
OF_ENGINE = {"instance": "a:8000", "model_name": "m", "namespace": "ns"}
OF_MODEL = {"model_name": "m", "namespace": "ns"}
REPLICAS = "quire_operator_replicas"
ANSWERS, BROKEN = "quire_router_requests_total", "quire_router_broken_streams_total"
WATCH = 'quire_router_watch_age_seconds{instance="r:9090",namespace="ns",resource="pods"}'
OF_WATCH = {"instance": "r:9090", "namespace": "ns", "resource": "pods"}
LEADER, FAILED = "quire_operator_leader", 'quire_operator_reconcile_errors_total{reason="ApplyError"}'
AGE, CERTIFICATE = "quire_operator_scrape_age_seconds", "quire_operator_certificate_expiry_timestamp_seconds"
ASKED = "quire_operator_metrics_api_requests_total"
DAY_S = 86400


@dataclass(frozen=True)
class Case:
    """Series by name and labels, in promtool's notation, a value a minute; what is firing at a minute. says: the summary, or None where
    nothing fires."""

    alert: str
    series: dict[str, str]
    minute: int
    says: str | None = None
    labels: dict[str, str] | None = None


def slow(metric: str, le: str, *, bad: int, all_: int, minutes: int = 400) -> dict[str, str]:
    """Counters that go up every minute: of all of them, and of those within the bound."""
    good = all_ - bad
    name = f"quire_{metric}"
    return {
        f'{name}_bucket{{{ENGINE},le="{le}"}}': f"0+{good}x{minutes}",
        f"{name}_count{{{ENGINE}}}": f"0+{all_}x{minutes}",
    }


def answers(*, good: int, bad: int) -> dict[str, str]:
    """Of the router, a minute."""
    return {
        f'{ANSWERS}{{model="m",code="200"}}': f"0+{good}x30",
        f'{ANSWERS}{{model="m",code="503"}}': f"0+{bad}x30",
        f'{ANSWERS}{{model="other",code="200"}}': "0+99x30",
    }


def asked(*, good: int, bad: int) -> dict[str, str]:
    """Of the metrics API, a minute."""
    return {f'{ASKED}{{code="200"}}': f"0+{good}x30", f'{ASKED}{{code="500"}}': f"0+{bad}x30"}


TTFT, ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
FULL, QUEUE, DROPPED = "quire_gpu_cache_usage", "quire_scheduler_queue_size", "quire_dropped_requests_total"
BEAT, FAULTS = "quire_last_step_timestamp_seconds", "quire_kv_cache_faults_total"

CASES = [
    Case("QuireKVCacheFull", {f"{FULL}{{{ENGINE}}}": "0.95x10"}, 5, "The KV cache of m on a:8000 is full (95%)", OF_ENGINE),
    Case("QuireKVCacheFull", {f"{FULL}{{{ENGINE}}}": "0.95x10"}, 4),
    Case("QuireKVCacheFull", {f"{FULL}{{{ENGINE}}}": "0.94x10"}, 10),
    Case("QuireKVCacheFull", {f"{FULL}{{{ENGINE}}}": "1x3 0.5 1x5"}, 7),
    Case("QuireQueueGrows", {f"{QUEUE}{{{ENGINE}}}": "1+2x30"}, 20, "The queue of m on a:8000 grows", OF_ENGINE),
    Case("QuireQueueGrows", {f"{QUEUE}{{{ENGINE}}}": "40x30"}, 30),  # long, but it does not grow
    Case("QuireQueueGrows", {f"{QUEUE}{{{ENGINE}}}": "0x8 30x1 0x8 60x1 0x8"}, 24),  # bursts that are worked off
    Case("QuireQueueGrows", {f"{QUEUE}{{{ENGINE}}}": "60-2x30"}, 20),
    Case(
        "QuireRequestsDropped",
        {f'{DROPPED}{{{ENGINE},reason="queue_full"}}': "0x3 1+1x10"},
        7,
        "m refuses requests (queue_full)",
        {**OF_MODEL, "reason": "queue_full"},
    ),
    Case("QuireRequestsDropped", {f'{DROPPED}{{{ENGINE},reason="queue_full"}}': "7x10"}, 9),
    Case("QuireRequestsDropped", {f'{DROPPED}{{{ENGINE},reason="rate_limit"}}': "0+5x10"}, 9),
    Case("QuireRequestsDropped", {f'{DROPPED}{{{ENGINE},reason="draining"}}': "0+5x10"}, 9),
    Case(
        "QuireEngineStalled",
        {f"{BEAT}{{{ENGINE}}}": "0+60x5 300x10"},
        8,
        "The engine of m on a:8000 gives no sign of life",
        OF_ENGINE,
    ),
    Case("QuireEngineStalled", {f"{BEAT}{{{ENGINE}}}": "0+60x20"}, 15),
    Case(
        "QuireKVCacheFault",
        {f"{FAULTS}{{{ENGINE}}}": "0x5 1x20"},
        7,
        "The engine of m on a:8000 healed a fault of its KV cache",
        OF_ENGINE,
    ),
    Case("QuireKVCacheFault", {f"{FAULTS}{{{ENGINE}}}": "0x20"}, 15),
    Case(
        "QuireTTFTBurnsFast",
        slow(TTFT, "2.5", bad=8, all_=10),
        70,
        "80% of requests wait longer for their first token than 2.5 s (m, 1h)",
        OF_MODEL,
    ),
    Case("QuireTTFTBurnsFast", slow(TTFT, "2.5", bad=7, all_=10), 70),
    Case("QuireTTFTBurnsFast", slow(TTFT, "2.5", bad=8, all_=10, minutes=70), 79),  # it is over
    Case("QuireTTFTBurnsFast", slow(TTFT, "2.5", bad=1, all_=1, minutes=15), 15),  # too few to say
    Case(
        "QuireTTFTBurnsSlow",
        slow(TTFT, "2.5", bad=4, all_=10),
        380,
        "40% of requests wait longer for their first token than 2.5 s (m, 6h)",
        OF_MODEL,
    ),
    Case("QuireTTFTBurnsSlow", slow(TTFT, "2.5", bad=2, all_=10), 380),
    Case(
        "QuireITLBurnsFast",
        slow(ITL, "0.2", bad=90, all_=100),
        70,
        "90% of tokens come later after the one before than 0.2 s (m, 1h)",
        OF_MODEL,
    ),
    Case("QuireITLBurnsFast", slow(ITL, "0.2", bad=1, all_=100), 70),
    Case(
        "QuireITLBurnsSlow",
        slow(ITL, "0.2", bad=50, all_=100),
        380,
        "50% of tokens come later after the one before than 0.2 s (m, 6h)",
        OF_MODEL,
    ),
    Case("QuireITLBurnsSlow", slow(ITL, "0.2", bad=5, all_=100), 380),
    Case(
        "QuireNoReadyReplica",
        {f'{REPLICAS}{{namespace="ns",name="d",state="{state}"}}': values for state, values in
         (("desired", "2x10"), ("ready", "1x2 0x10"))},
        9,
        "The LLMDeployment d has no ready replica",
        {"namespace": "ns", "name": "d", "state": "desired"},
    ),
    Case("QuireNoReadyReplica", {f'{REPLICAS}{{namespace="ns",name="d",state="desired"}}': "0x10"}, 9),
    Case(
        "QuireNoReadyReplica",
        {f'{REPLICAS}{{namespace="{where}",name="d",state="{state}"}}': "1x10" for where, state in
         (("ns", "desired"), ("ns", "ready"))},
        9,
    ),
    Case(
        "QuireRequestsFail",
        answers(good=9, bad=1),
        15,
        "10% of the requests for m are answered with 5xx",
        {"model": "m"},
    ),
    Case("QuireRequestsFail", answers(good=19, bad=1), 15),
    Case("QuireRequestsFail", {f'{ANSWERS}{{model="m",code="503"}}': "0+3x30"}, 25),  # too few to say
    Case("QuireRequestsFail", {f'{ANSWERS}{{model="m",code="429"}}': "0+30x30"}, 25),
    Case("QuireAnswersBreak", {f'{BROKEN}{{model="m"}}': "0x3 1 2 4x10"}, 9, "Answers of m break off", {"model": "m"}),
    Case("QuireAnswersBreak", {f'{BROKEN}{{model="m"}}': "7x3 8x10"}, 9),
    Case(
        "QuireRouterSeesNothingNew",
        {WATCH: "0+60x30"},
        25,
        "The router r:9090 has heard nothing of pods for 25m 0s",
        OF_WATCH,
    ),
    Case("QuireRouterSeesNothingNew", {WATCH: "300x30"}, 25),
    Case("QuireNoOperatorLeads", {f'{LEADER}{{instance="o"}}': "1x3 0x10"}, 9, "No operator leads", {}),
    Case("QuireNoOperatorLeads", {}, 9, "No operator leads", {}),  # or none is scraped
    Case("QuireNoOperatorLeads", {f'{LEADER}{{instance="{one}"}}': f"{leads}x10" for one, leads in (("o", 0), ("p", 1))}, 9),
    Case(
        "QuireOperatorFails",
        {FAILED: "0+1x40"},
        30,
        "The operator fails again and again (ApplyError)",
        {"reason": "ApplyError"},
    ),
    Case("QuireOperatorFails", {FAILED: "3x10 5x40"}, 23),
    Case("QuireSamplesOld", {AGE: "2x5 60+60x10"}, 13, "The operator has had no figures of a ready engine for 8m 0s", {}),
    Case("QuireSamplesOld", {AGE: "2x20"}, 13),
    Case("QuireMetricsAPIFails", asked(good=3, bad=1), 25, "25% of what the autoscaler asks the operator is answered with 5xx", {}),
    Case("QuireMetricsAPIFails", asked(good=20, bad=1), 25),
    Case("QuireMetricsAPIFails", {f'{ASKED}{{code="404"}}': "0+4x30"}, 25),
    Case("QuireCertificateEnds", {CERTIFICATE: f"{13 * DAY_S}x90"}, 80, "The certificate of the metrics API ends in 12d 22h 40m 0s", {}),
    Case("QuireCertificateEnds", {CERTIFICATE: f"{29 * DAY_S}x90"}, 80),
    Case("QuireCertificateEnds", {CERTIFICATE: "0x90"}, 80),  # it serves none
]  # fmt: skip


@pytest.fixture(scope="module")
def groups() -> list[Object]:
    [rule] = [
        item for item in helm_kit.render({"metrics": {"rules": {"enabled": True}}}) if item["kind"] == "PrometheusRule"
    ]
    found: list[Object] = rule["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def rules(groups: list[Object]) -> dict[str, Object]:
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_each_alert_fires_when_it_should_and_only_then(
    groups: list[Object], rules: dict[str, Object], tmp_path: Path
) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    check = [program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    assert subprocess.run(check, check=False, capture_output=True).returncode == 0
    tests = [told(case, rules[case.alert]) for case in CASES]
    for number, test in enumerate(tests):  # apart: one file stops at its first failure
        one = tmp_path / f"{number}.yml"
        one.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}))
    files = [str(tmp_path / f"{number}.yml") for number in range(len(tests))]
    done = subprocess.run([program("promtool"), "test", "rules", *files], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def told(case: Case, rule: Object) -> Object:
    expected: list[Object] = []
    if case.says is not None:
        labels = {**rule["labels"], **(case.labels or {})}
        annotations = {**rule["annotations"], "summary": case.says}
        expected = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": expected}],
    }


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not(rules: dict[str, Object]) -> None:
    for fires in (True, False):
        assert {case.alert for case in CASES if (case.says is not None) is fires} == rules.keys()


def test_each_alert_says_what_to_do_and_is_on_the_page(rules: dict[str, Object]) -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    for name, rule in rules.items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{name}`" in page, f"docs/observability.md does not tell of {name}"


def test_each_metric_of_an_alert_exists(rules: dict[str, Object]) -> None:
    page = EngineMetrics("m").registry, telemetry.REGISTRY, RouterMetrics(lambda: ()).registry
    families = {(family.name, family.type) for registry in page for family in registry.collect()}
    known = {name + suffix for name, kind in families for suffix in SUFFIXES[kind]}
    used = {name for rule in rules.values() for name in metric_names(rule["expr"])}
    assert len(used) > 8
    assert used <= known


def test_the_bounds_of_objectives_are_bounds_of_the_histograms() -> None:
    schema = helm_kit.CHART / "values.schema.json"
    rules = yaml.safe_load(schema.read_text())["properties"]["metrics"]["properties"]["rules"]["properties"]
    text = _page_with_one_observation()
    for value, metric in (("ttftSeconds", TTFT), ("itlSeconds", ITL)):
        bounds = {float(le) for le in re.findall(rf'quire_{metric}_bucket{{le="([\d.]+)"', text)}
        assert bounds and set(map(float, rules[value]["enum"])) <= bounds


def _page_with_one_observation() -> str:
    metrics = EngineMetrics("m")
    for histogram in (metrics.ttft, metrics.itl):
        metrics.observe(histogram, 1.0)
    return metrics.exposition("")[0].decode()


SUFFIXES: dict[str, tuple[str, ...]] = {
    "gauge": ("",),
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def test_other_objectives_reach_the_rules() -> None:
    values: dict[str, Any] = {
        "metrics": {"rules": {"enabled": True, "objective": 0.99, "ttftSeconds": 1, "itlSeconds": 0.1}}
    }
    [rule] = [item for item in helm_kit.render(values) if item["kind"] == "PrometheusRule"]
    texts = {one["alert"]: one["expr"] for group in rule["spec"]["groups"] for one in group["rules"]}
    assert 'le=~"1|1[.]0"' in texts["QuireTTFTBurnsFast"] and "> 0.144\n" in texts["QuireTTFTBurnsFast"]
    assert 'le=~"0.1|' in texts["QuireITLBurnsSlow"] and "> 0.06\n" in texts["QuireITLBurnsSlow"]
