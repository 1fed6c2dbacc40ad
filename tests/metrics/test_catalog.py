"""The catalog: names that Prometheus expects, words for a person, and the documentation made from it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from hack.docs import metric_notes, metrics
from hack.docs.metrics import CATALOG
from hack.docs.sample_texts import TEXTS
from nodeagent.agent_features import AGENT
from nodeagent.controller_features import families_of_controller
from nodeagent.health.rules import NIC_RULE_KEYS, NIC_RULES
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS
from nodeagent.measurements.family import Family
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS, SAMPLED
from nodeagent.metrics.agent_metrics import AGENT_FAMILIES
from nodeagent.metrics.fact_metrics import FACT_FAMILIES
from tests.support import golden
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
@pytest.mark.golden("docs/reference/metrics.md", "docs/reference/samples.md")
def test_the_tables_of_the_documentation_are_made_from_the_catalog(page: str, block: str) -> None:
    begin, end = f"<!-- {block}: begin -->\n", f"<!-- {block}: end -->\n"
    golden.same_between(DOCS / page, begin, end, BLOCKS[page, block]())


CONTROLLER = families_of_controller()


@one_item("family", [*CATALOG.values(), *CONTROLLER], ids=lambda family: family.name)
def test_a_family_is_named_and_explained(family: Family) -> None:
    assert re.fullmatch(r"nodeagent(_[a-z0-9]+)+", family.name)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in family.labels)
    assert not RESERVED & set(family.labels) or family.type == "histogram"
    assert len(set(family.labels)) == len(family.labels)
    assert re.fullmatch(r"[^\n\\]{5,140}\.", family.help)
    assert metrics.note_of(family, controller=family in CONTROLLER).use.endswith(".")
    assert family in CONTROLLER or metrics.topic_of(family)


def test_a_family_has_one_origin() -> None:
    computed = (FACT_FAMILIES, AGENT_FAMILIES, *(row.families for row in AGENT))
    families = [*SAMPLED, *(one.family for each in computed for one in each)]
    for each in (families, CONTROLLER):
        assert [name for name, count in Counter(family.name for family in each).items() if count > 1] == []
    assert list(CATALOG.values()) == families
    assert all(family.measurements for family in SAMPLED)


def test_a_note_has_a_family() -> None:
    for notes, families in ((metric_notes.AGENT, CATALOG.values()), (metric_notes.CONTROLLER, CONTROLLER)):
        names = {family.name.removeprefix("nodeagent_") for family in families}
        assert notes.keys() - names == set(), "no family has these notes of hack/docs/metric_notes.py"
    assert {text.family for text in TEXTS.values() if text.family} <= CATALOG.keys()
    assert not MEASUREMENTS.keys() & TEXTS.keys()


OF_FACTS = {"device_missing", "driver_unbound", "not_answering", "miscabled", "nvswitch_error"}
"""The rules that read no sample."""


def test_the_notes_name_each_rule_at_what_it_reads() -> None:
    families = {
        one.name: family.name.removeprefix("nodeagent_") for family in SAMPLED for one in family.measurements
    }
    notes = {name: {*note.rules.split()} for name, note in metric_notes.AGENT.items()}
    unknown = set().union(*notes.values()) - {*NIC_RULE_KEYS, *MEASURED_KEYS}
    assert not unknown, f"hack/docs/metric_notes.py names no rules: {unknown}"
    missing = {*NIC_RULE_KEYS, *MEASURED_KEYS} - OF_FACTS - set().union(*notes.values())
    missing |= {
        f"{rule.key} at {families[name]}"
        for rule in NIC_RULES
        for name in rule.counters
        if rule.key not in notes[families[name]]
    }
    assert not missing, (
        f"name it in the note of the family that it reads, in hack/docs/metric_notes.py: {missing}"
    )


def test_a_family_without_a_note_is_reported_with_the_table_to_extend() -> None:
    family = replace(next(iter(CATALOG.values())), name="nodeagent_link_weather")
    with pytest.raises(ValueError, match=r"add 'link_weather' to AGENT in hack/docs/metric_notes.py"):
        metrics.note_of(family)


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
