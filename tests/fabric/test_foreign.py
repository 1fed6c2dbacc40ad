"""Which nodes the HyperNodes of other owners hold by a pattern."""

from __future__ import annotations

import pytest

from nodeagent.fabric.foreign import ForeignHyperNodes
from nodeagent.fabric.hypernode import HyperNode


def holders(pattern: str, node: str) -> list[str]:
    theirs = HyperNode(name="theirs", tier=1, source="other", patterns=(pattern,))
    return ForeignHyperNodes({"theirs": theirs}).holders(node, {})


def test_a_pattern_holds_the_nodes_that_it_matches() -> None:
    assert holders("^gpu-[0-9]+$", "gpu-17") == ["theirs"]
    assert holders("^gpu-[0-9]+$", "cpu-17") == []


@pytest.mark.parametrize("pattern", ["^(a+)+$", r"(a)\1", "x" * 257, "("])
def test_a_pattern_that_may_take_very_long_or_is_none_counts_as_a_match(pattern: str) -> None:
    assert holders(pattern, "b") == ["theirs"]
