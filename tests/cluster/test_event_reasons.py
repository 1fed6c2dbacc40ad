"""Each reason of an Event is explained on a page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nodeagent.cluster import agent_events, event_writer, evictions, node_report
from nodeagent.topology import hypernodes

ROOT = Path(__file__).parents[2]
WRITERS = (agent_events, event_writer, evictions, node_report, hypernodes)
"""The modules that make notices."""
REASON = re.compile(r"(?:[A-Z][a-z]+){2,}|Recovered")
NO_REASONS = {"HyperNode"}


def reasons() -> dict[str, str]:
    """The reasons in the code by the module that has them. Those of rules are made of the keys of the rules."""
    return {
        node.value: module.__name__
        for module in WRITERS
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and REASON.fullmatch(node.value)
        and node.value not in NO_REASONS
    }  # fmt: skip


def test_the_modules_that_make_notices_are_known() -> None:
    makers = {
        path
        for room in ("cluster", "topology")
        for path in (ROOT / "nodeagent" / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Notice"
    }
    assert makers == {Path(module.__file__) for module in WRITERS}, "enter the module in WRITERS"


@pytest.mark.parametrize("reason", sorted(reasons()))
def test_a_page_explains_the_reason(reason: str) -> None:
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    assert f"`{reason}`" in pages, f"explain the Event `{reason}` of {reasons()[reason]} in docs/cluster.md"
