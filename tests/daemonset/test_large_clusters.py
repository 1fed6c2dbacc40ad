"""The example for large clusters drops series at the scrape, and none that an alert or a dashboard needs."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.manifests import DAEMONSET, ROOT, built, named

MONITORING = DAEMONSET / "monitoring"
SELECTOR = re.compile(r"(nodeagent_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"([^"]*)"')


@cache
def relabelings() -> list[dict[str, Any]]:
    monitor = named(built("examples/large-clusters"), "PodMonitor", "nodeagent")
    return monitor["spec"]["podMetricsEndpoints"][0]["metricRelabelings"]


def is_dropped(name: str, labels: dict[str, str]) -> bool:
    """Prometheus: the values of the source labels joined by `;`, and a regex that matches all of it
    (model/relabel/relabel.go)."""
    values = {"__name__": name, **labels}
    return any(
        rule["action"] == "drop"
        and re.fullmatch(rule["regex"], ";".join(values.get(label, "") for label in rule["sourceLabels"]))
        for rule in relabelings()
    )


def series() -> list[tuple[str, dict[str, str]]]:
    page = (ROOT / "tests/golden/metrics-dgx-h100.txt").read_text()
    return [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def queries() -> list[str]:
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    boards = [json.loads(path.read_text()) for path in sorted((MONITORING / "dashboards").glob("*.json"))]
    panels = [
        target["expr"] for board in boards for panel in board["panels"] for target in panel.get("targets", ())
    ]
    return rules + panels


def selects(name: str, matchers: str, labels: dict[str, str]) -> bool:
    """Whether the literal matchers accept the labels; one with a dashboard variable accepts anything."""
    for label, operator, value in MATCHER.findall(matchers):
        if "$" in value or label in ("instance", "cluster", "job"):
            continue
        equal = (
            bool(re.fullmatch(value, labels.get(label, "")))
            if "~" in operator
            else labels.get(label) == value
        )
        if equal is operator.startswith("!"):
            return False
    return True


def test_no_dropped_series_is_one_that_an_alert_or_a_panel_reads() -> None:
    read = {match.groups() for query in queries() for match in SELECTOR.finditer(query)}
    dropped = [(name, labels) for name, labels in series() if is_dropped(name, labels)]
    assert dropped
    for name, labels in dropped:
        for wanted, matchers in read:
            assert wanted != name or not selects(name, matchers or "", labels), (name, labels, matchers)


def test_the_agents_export_the_limits_of_optics_that_alerts_and_panels_read_and_no_others() -> None:
    limits = {
        (labels["sensor"], labels["level"]): name
        for name, labels in series()
        if name == "nodeagent_transceiver_threshold"
    }
    read = {
        match[2] for query in queries() for match in SELECTOR.finditer(query) if match[1] in limits.values()
    }
    assert {("temperature_celsius", "high_warning"), ("receive_power_watts", "low_alarm")} == {*limits}
    for sensor, level in limits:
        assert any(f'sensor="{sensor}",level="{level}"' in matchers for matchers in read)
    assert all('level="' in matchers for matchers in read)


def test_the_figures_of_the_page_follow_from_the_series_of_a_node() -> None:
    page = (DAEMONSET / "examples/large-clusters/README.md").read_text()
    match = re.search(r"([\d,]+) stay", page)
    assert match is not None
    kept, sizes = int(match[1].replace(",", "")), (1_000, 7_500, 100_000)
    shards = [math.ceil(kept * nodes / 2.5e6) for nodes in sizes]
    for name, values in (
        ("series", [f"{kept * nodes / 1e6:.1f} M" for nodes in sizes]),
        ("samples a second at 60 s", [f"{kept * nodes // 60:,}" for nodes in sizes]),
        ("shards of 2.5 M series at most", [str(number) for number in shards]),
    ):
        assert f"| {name} | {' | '.join(values)} |" in page
    server = next(yaml.safe_load_all((DAEMONSET / "examples/large-clusters/prometheus.yaml").read_text()))
    assert server["spec"]["shards"] == shards[1]
