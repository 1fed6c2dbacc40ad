"""Panels and dashboards, and the JSON that Grafana imports. ``hack/dashboards.py`` has the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
STATES = {
    0: ("healthy", "green"),
    1: ("unused", "gray"),
    2: ("unknown", "blue"),
    3: ("degraded", "orange"),
    4: ("miscabled", "purple"),
    5: ("down", "red"),
}


@dataclass(frozen=True)
class Panel:
    """``queries`` are (expression, legend). ``lines`` are horizontal lines: a value and its color."""

    title: str
    hint: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    logarithmic: bool = False
    lines: dict[float, str] = field(default_factory=dict)
    columns: str = ""
    """For a matrix: the label whose values are the columns."""
    states: bool = False
    empty: str = ""
    """Shown without series, where that is good news, instead of Grafana's `No data`."""


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: dict[str, tuple[Panel, ...]]
    one_node: bool
    """Whether one node is chosen, as ``$instance``."""
    some_nodes: bool = False
    """Whether ``$instance`` may be several nodes, or all."""


def model(board: Dashboard) -> dict[str, Any]:
    """The JSON that Grafana imports (schema of Grafana 10)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in board.rows.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "id": len(panels) + 1,
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            }
        )
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["nodeagent"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": list(_variables(board))},
        "links": [
            {
                "type": "dashboards",
                "tags": ["nodeagent"],
                "title": "nodeagent",
                "asDropdown": False,
                "includeVars": False,
                "keepTime": True,
            }
        ],
        "panels": panels,
    }


def _variables(board: Dashboard) -> Iterable[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    yield {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(nodeagent_build_info, cluster)", "refId": "cluster"},
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",  # matches series without the label too: a single Prometheus sets none
        "current": {"text": "All", "value": "$__all"},
    }
    if board.one_node or board.some_nodes:
        several = {"multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}
        yield {
            "name": "instance",
            "label": "Node",
            "type": "query",
            "datasource": SOURCE,
            "query": {
                "query": 'label_values(nodeagent_build_info{cluster=~"$cluster"}, instance)',
                "refId": "instance",
            },
            "refresh": 2,
            "sort": 1,
            **(several if board.some_nodes else {}),
        }


def in_cluster(expression: str) -> str:
    """The expression on series of the chosen cluster alone. An external label of Prometheus names the cluster."""
    texts: list[str] = re.split(r'("[^"]*")', expression)

    def selected(match: re.Match[str]) -> str:
        return f'{match[1]}{{cluster=~"$cluster"{"," if match[2] else "}"}'

    metric = r"(?<![\w:])((?:\w+:)?nodeagent_[\w:]+|up)(?![\w:])(\{)?"
    return "".join(text if text.startswith('"') else re.sub(metric, selected, text) for text in texts)


def _panel(panel: Panel) -> dict[str, Any]:
    table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + n),
            "datasource": SOURCE,
            "expr": in_cluster(expression),
            "legendFormat": legend or "__auto",
            **({"format": "table", "instant": True} if table else {}),
        }
        for n, (expression, legend) in enumerate(panel.queries)
    ]
    panel_model: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.hint,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }
    if table:
        panel_model["transformations"] = _transformations(panel)
    return panel_model


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "transparent" if panel.lines else "green", "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.lines.items()]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.empty:
        defaults["noValue"] = panel.empty
    if panel.states:
        options = {str(n): {"text": text, "color": color, "index": n} for n, (text, color) in STATES.items()}
        defaults["mappings"] = [{"type": "value", "options": options}]
        defaults["color"] = {"mode": "thresholds"}
    if panel.kind == "timeseries":
        scale = {"type": "log", "log": 10} if panel.logarithmic else {"type": "linear"}
        defaults["custom"] = {
            "lineWidth": 1,
            "showPoints": "never",
            "scaleDistribution": scale,
            "thresholdsStyle": {"mode": "line" if panel.lines else "off"},
        }
    if panel.kind == "table" and panel.states:
        defaults["custom"] = {"align": "center", "cellOptions": {"type": "color-background"}}
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "stat":
        calculations = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        text = "value_and_name" if panel.states or panel.width < 12 else "name"
        return {
            "reduceOptions": calculations,
            "textMode": text,
            "colorMode": "background",
            "graphMode": "none",
        }
    return {"showHeader": True, "cellHeight": "sm"}


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    if panel.columns:
        matrix = {"columnField": panel.columns, "rowField": "instance", "valueField": "Value"}
        return [{"id": "groupingToMatrix", "options": matrix}]
    hidden = dict.fromkeys(("Time", "Value", "__name__", "instance", "job", "namespace_", "endpoint"), True)
    if "pod_devices" in panel.queries[0][0]:
        hidden.pop("Value")
    return [{"id": "organize", "options": {"excludeByName": hidden}}]
