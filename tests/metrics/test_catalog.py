"""The catalog: names as the field wants them, words for a person, and the page that is made from it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from nodeagent.metrics.catalog import CATALOG, Family
from nodeagent.metrics.family import described, row
from nodeagent.metrics.reference import markdown, topic_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
RESERVED = {"instance", "job", "le", "quantile"}


def test_the_page_of_the_metrics_is_the_catalog() -> None:
    if os.environ.get("NODEAGENT_GOLDEN") == "write":
        PAGE.write_text(markdown())
    assert markdown() == PAGE.read_text(), "NODEAGENT_GOLDEN=write rewrites docs/metrics.md"


@pytest.mark.parametrize("family", CATALOG.values(), ids=list(CATALOG))
def test_a_family_is_named_and_explained(family: Family) -> None:
    assert re.fullmatch(r"nodeagent(_[a-z0-9]+)+", family.name)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in family.labels)
    assert not RESERVED & set(family.labels) or family.type == "histogram"
    assert len(set(family.labels)) == len(family.labels)
    assert re.fullmatch(r"[^\n\\]{5,140}\.", family.help)
    assert family.use.endswith(".")
    assert family.source
    assert (bool(family.feeds), family.described is not None, family.live is not None).count(True) == 1
    assert topic_of(family)


def test_a_family_is_declared_once_and_in_the_right_words() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        row("link_carrier", "device", "carrier", help="x", use="x")
    with pytest.raises(ValueError, match="mixes counters and levels"):
        row("link_muddle", "device", "carrier", "rx_bytes", help="x", use="x")
    with pytest.raises(ValueError, match="does not give its 1 labels"):
        row("link_lanes_of_light", "device", "rx_power_watts", help="x", use="x")
    with pytest.raises(ValueError, match="end in _total"):
        row("link_bytes", "device", "rx_bytes", help="x", use="x")
    with pytest.raises(ValueError, match="declared twice"):
        described("link_info", "device", help="x", source="x", use="x")(lambda _scene: ())
