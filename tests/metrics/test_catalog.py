"""The catalog: names that Prometheus expects, words for a person, and the documentation made from it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hack.docs import metrics
from nodeagent.measurements.family import Family
from nodeagent.measurements.sample import Source
from nodeagent.metrics.catalog import CATALOG, SAMPLED
from nodeagent.metrics.computed_family import FACT_FAMILIES, LIVE_FAMILIES
from nodeagent.metrics.controller_metrics import CONTROLLER_FAMILIES
from tests.support.findings import one_item

DOCS = Path(__file__).parents[2] / "docs" / "reference"
RESERVED = {"instance", "job", "le", "quantile"}
BLOCKS = {
    ("metrics.md", "metrics"): metrics.agent_families,
    ("metrics.md", "controller"): metrics.controller_families,
    ("samples.md", "readers"): metrics.readers,
    ("samples.md", "samples"): metrics.sample_names,
}


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_the_tables_of_the_documentation_are_made_from_the_catalog(page: str, block: str) -> None:
    path, text = DOCS / page, BLOCKS[page, block]()
    head, begin, rest = path.read_text().partition(f"<!-- {block}: begin -->\n")
    written, end, tail = rest.partition(f"<!-- {block}: end -->\n")
    assert begin
    assert end
    if os.environ.get("NODEAGENT_GOLDEN") == "write":
        path.write_text(head + begin + text + end + tail)
        return
    assert written == text, f"NODEAGENT_GOLDEN=write rewrites docs/reference/{page}"


CONTROLLER = CONTROLLER_FAMILIES.families()


@one_item("family", [*CATALOG.values(), *CONTROLLER], ids=lambda family: family.name)
def test_a_family_is_named_and_explained(family: Family) -> None:
    assert re.fullmatch(r"nodeagent(_[a-z0-9]+)+", family.name)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in family.labels)
    assert not RESERVED & set(family.labels) or family.type == "histogram"
    assert len(set(family.labels)) == len(family.labels)
    assert re.fullmatch(r"[^\n\\]{5,140}\.", family.help)
    assert family.use.endswith(".")
    assert family.source
    assert family in CONTROLLER or metrics.topic_of(family)


def test_a_family_has_one_origin() -> None:
    computed = [family.name for family in (*FACT_FAMILIES.families(), *LIVE_FAMILIES.families())]
    assert len(set(computed)) == len(computed)
    assert {family.name for family in SAMPLED}.isdisjoint(computed)
    assert len(CATALOG) == len(SAMPLED) + len(computed)
    assert all(family.measurements for family in SAMPLED)


@one_item("family", CATALOG.values(), ids=lambda family: family.name)
def test_only_counters_end_in_total(family: Family) -> None:
    assert (family.type == "counter") == family.name.endswith("_total")
    assert all(number.counter == (family.type == "counter") for number in family.measurements)


def test_a_family_without_a_topic_is_reported_with_the_table_to_extend() -> None:
    family = next(iter(CATALOG.values()))
    with pytest.raises(ValueError, match=r"add 'weather' to a topic of TOPICS in hack/docs/metrics.py"):
        metrics.topic_of(replace(family, name="nodeagent_weather_celsius"))


def test_a_source_without_a_description_is_reported_with_the_table_to_extend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(metrics.READERS, Source.VF)
    with pytest.raises(ValueError, match=r"VF.*: add it to READERS in hack/docs/metrics.py"):
        metrics.readers()
