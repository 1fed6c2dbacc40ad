"""The fabric map as one HTML file."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from nodeagent.commands.plan.preview import Preview
from nodeagent.fabric.fabric_view import ViewReport, fabric_view
from nodeagent.health.rule_words import rule_words
from nodeagent.web.ui_files import self_contained

WHOLE_REPORTS_MAX = 1000
"""Of a larger fabric the file has the whole reports of the nodes in trouble alone, at some 3 KB each."""
_GOOD = frozenset({"healthy", "unused"})


def make_page(preview: Preview) -> str:
    """The page with the plan, and the whole reports of its nodes."""
    view = fabric_view(preview.plan, 0.0, time.time(), details=_details(preview))
    return self_contained("fabric", msgspec.json.encode(view))


def _details(preview: Preview) -> dict[str, ViewReport]:
    reports = preview.reports or {}
    odd = {node for anomaly in preview.outcome.anomalies for node in (anomaly.node, *anomaly.nodes)}
    odd.update(unplaced.node for unplaced in preview.outcome.unplaced)
    details = {}
    for name in preview.plan.levels.reports:
        links = reports[name].links
        if len(reports) <= WHOLE_REPORTS_MAX or name in odd or _has_trouble([link.state for link in links]):
            details[name] = ViewReport(
                links,
                rule_words({reason for link in links for reason in link.reasons}),
                reports[name].holders,
            )
    return details


def _has_trouble(states: Collection[str | None]) -> bool:
    return not _GOOD.issuperset(states)
