"""Grafana's JSON of rows of panels, by Grafana's own builders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode, TimeZoneBrowser
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.panels import Panel, Query, Row

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True)
class Variable:
    """What a reader may choose, of the values that a query gives."""

    name: str
    label: str
    query: str


def dashboard_json(
    title: str, uid: str, rows: Sequence[Row], *, description: str, variables: Sequence[Variable]
) -> str:
    """A whole dashboard, as its file holds it."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["quire", "llm"])
        .description(description)
        .refresh("30s")
        .time("now-1h", "now")
        .timezone(TimeZoneBrowser)
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        made = made.with_variable(_variable(variable))
    ids = itertools.count(1)
    for row in rows:
        made = made.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(next(ids)))
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(made.build())
    return text + "\n"


def _variable(variable: Variable) -> Any:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel) -> Any:
    made = _BUILDERS[panel.kind](panel)
    made = made.title(panel.title).description(panel.meaning).unit(panel.unit).datasource(SOURCE).min(0)
    made = made.span(panel.width).height(4 if panel.kind == "stat" else 8)
    if panel.most is not None:
        made = made.max(panel.most)
    if panel.steps is not None:
        warn, bad = panel.steps
        steps = [
            Threshold(value=None, color="green"),
            Threshold(value=warn, color="orange"),
            Threshold(value=bad, color="red"),
        ]
        made = made.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    for index, query in enumerate(panel.queries):
        made = made.with_target(_target(panel, query, chr(ord("A") + index)))
    return made


def _target(panel: Panel, query: Query, name: str) -> Any:
    made = prometheus.Dataquery().expr(query.text).legend_format(query.legend).ref_id(name)
    if panel.kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    return made.range()


def _timeseries(panel: Panel) -> Any:
    made = timeseries.Panel().line_width(1.5).fill_opacity(30 if panel.stacked else 8)
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return made


def _stat(panel: Panel) -> Any:
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _table(panel: Panel) -> Any:
    return table.Panel()


_BUILDERS = {"timeseries": _timeseries, "stat": _stat, "table": _table}
