"""The catalog: names that Prometheus expects, words for a person, and the documentation made from it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from nodeagent.health import adapter_rules, gpu_rules, link_rules
from nodeagent.health.nic_rules import DEFAULTS
from nodeagent.measurements.family import Family, row, unfilled_labels
from nodeagent.measurements.gpu_rows import GPU_ROWS
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS, NIC_ROWS, TEXTS, by_name, by_sample_name, measurement
from nodeagent.metrics import docs
from nodeagent.metrics.catalog import CATALOG, SAMPLED
from nodeagent.metrics.computed_family import FACT_FAMILIES, LIVE_FAMILIES
from nodeagent.metrics.controller_metrics import CONTROLLER_FAMILIES

DOCS = Path(__file__).parents[2] / "docs"
RESERVED = {"instance", "job", "le", "quantile"}
BLOCKS = {
    ("metrics.md", "metrics"): docs.agent_families,
    ("metrics.md", "controller"): docs.controller_families,
    ("samples.md", "readers"): docs.readers,
    ("samples.md", "samples"): docs.sample_names,
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
    assert written == text, f"NODEAGENT_GOLDEN=write rewrites docs/{page}"


CONTROLLER = [family for family, _read in CONTROLLER_FAMILIES]


@pytest.mark.parametrize("family", [*CATALOG.values(), *CONTROLLER], ids=lambda family: family.name)
def test_a_family_is_named_and_explained(family: Family) -> None:
    assert re.fullmatch(r"nodeagent(_[a-z0-9]+)+", family.name)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in family.labels)
    assert not RESERVED & set(family.labels) or family.type == "histogram"
    assert len(set(family.labels)) == len(family.labels)
    assert re.fullmatch(r"[^\n\\]{5,140}\.", family.help)
    assert family.use.endswith(".")
    assert family.source
    assert family in CONTROLLER or docs.topic_of(family)


def test_a_family_has_one_origin() -> None:
    computed = [family.name for family, _read in (*FACT_FAMILIES, *LIVE_FAMILIES)]
    assert len(set(computed)) == len(computed)
    assert {family.name for family in SAMPLED}.isdisjoint(computed)
    assert len(CATALOG) == len(SAMPLED) + len(computed)
    assert all(family.measurements for family in SAMPLED)


@pytest.mark.parametrize("family", CATALOG.values(), ids=list(CATALOG))
def test_only_counters_end_in_total(family: Family) -> None:
    assert (family.type == "counter") == family.name.endswith("_total")
    assert all(number.counter == (family.type == "counter") for number in family.measurements)


def test_a_row_fills_its_labels_and_no_name_appears_twice() -> None:
    def made(noun: str, labels: str, *measured: tuple[str, ...], per: str | None = None) -> Family:
        return row(noun, labels, Source.LINK, *measured, help="x", use="x", per=per)

    assert unfilled_labels(made("link_optical_lanes", "device", ("light", "x"), per="lane")) == ("light",)
    assert unfilled_labels(made("link_optical_lanes", "device,lane", ("light", "x"))) == ("light",)
    assert unfilled_labels(made("link_optical_lanes", "rail", ("light", "x"))) == ("light",)
    assert not unfilled_labels(made("link_optical_lanes", "device,lane", ("light", "x"), per="lane"))
    assert not [name for family in SAMPLED for name in unfilled_labels(family)]
    lanes, again = made("lanes", "device", ("lanes", "x")), made("lanes", "device", ("more", "x"))
    with pytest.raises(ValueError, match="nodeagent_lanes is declared twice"):
        by_name((lanes, again))
    with pytest.raises(ValueError, match="lanes feeds two families"):
        by_sample_name((lanes, made("other_lanes", "device", ("lanes", "x"))))


def test_a_name_with_a_key_is_known_only_where_the_table_has_one() -> None:
    assert measurement("lane_errors/3") is MEASUREMENTS["lane_errors"]
    assert measurement("lane_errors") is None
    assert measurement("carrier/3") is None
    assert measurement("carrier") is MEASUREMENTS["carrier"]
    assert measurement("nonsense") is None
    assert not MEASUREMENTS.keys() & TEXTS.keys()
    assert {text.family for text in TEXTS.values()} <= CATALOG.keys()


def test_the_rules_of_a_row_exist_and_each_rule_names_its_counters_there() -> None:
    rows = NIC_ROWS + GPU_ROWS
    nic_rules = {rule.key: rule for rule in DEFAULTS}
    assert {rule for family in NIC_ROWS for rule in family.rules} <= nic_rules.keys()
    assert {rule for family in GPU_ROWS for rule in family.rules} == {
        fault.value for fault in gpu_rules.MeasuredFault
    }
    readers = {number.name: family.rules for family in rows for number in family.measurements}
    for key, rule in nic_rules.items():
        for counter in rule.counters:
            assert key in readers[counter], f"the row of {counter} does not name the rule {key}"
    read_by_rules = {
        literal.value
        for module in (link_rules, adapter_rules, gpu_rules)
        for literal in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(literal, ast.Constant) and literal.value in MEASUREMENTS
    }
    assert len(read_by_rules) > 20
    unnamed = {name for name in read_by_rules if not readers[name]}
    assert unnamed <= {"lanes"}, (
        "rules read these samples, and their rows name no rule; lanes is a unit there"
    )
