"""The table of measurements: labels, unique names, keys, and the rules that read each row."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from hack.docs.metrics import note_of
from nodeagent.health.rules import NIC_RULES, adapters, gpu_rules, infiniband_rules, links
from nodeagent.measurements.family import Family, row
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import GPU_ROWS, MEASUREMENTS, NIC_ROWS, SAMPLED, measurement

SCOPE_LABELS = {
    "device": ("device",),
    "rdma_device": ("rdma_device", "port"),
    "pci_address": ("pci_address",),
    "pf": ("pf", "vf", "pci_address"),
    "gpu": ("gpu",),
}
"""The labels that together identify the subject of a series, by the first label of a family that samples feed."""


def scope_of(family: Family) -> tuple[str, ...]:
    return SCOPE_LABELS.get(family.labels[0], family.labels[:1])


def unfilled_labels(family: Family) -> tuple[str, ...]:
    """The sample names whose series would not have a value for each label of the family."""
    return tuple(
        measurement.name
        for measurement in family.measurements
        if family.labels[0] not in SCOPE_LABELS
        # A VF's key is one of the labels that identify it.
        or len(scope_of(family))
        + (measurement.per is not None and scope_of(family)[0] != "pf")
        + len(measurement.labels)
        != len(family.labels)
    )


def test_a_row_fills_its_labels_and_no_name_appears_twice() -> None:
    def made(noun: str, labels: str, *measured: tuple[str, ...], per: str | None = None) -> Family:
        return row(noun, labels, Source.LINK, "x", *measured, per=per)

    assert unfilled_labels(made("link_optical_lanes", "device", ("light", "x"), per="lane")) == ("light",)
    assert unfilled_labels(made("link_optical_lanes", "device,lane", ("light", "x"))) == ("light",)
    assert unfilled_labels(made("link_optical_lanes", "rail", ("light", "x"))) == ("light",)
    assert not unfilled_labels(made("link_optical_lanes", "device,lane", ("light", "x"), per="lane"))
    unfilled = [name for family in SAMPLED for name in unfilled_labels(family)]
    assert unfilled == [], "per and the label values of these rows do not fill the labels of their family"
    names = Counter(number.name for family in SAMPLED for number in family.measurements)
    assert [name for name, count in names.items() if count > 1] == [], "these names feed two families"


def test_a_name_with_a_key_is_known_only_where_the_table_has_one() -> None:
    assert measurement("lane_errors/3") is MEASUREMENTS["lane_errors"]
    assert measurement("lane_errors") is None
    assert measurement("carrier/3") is None
    assert measurement("carrier") is MEASUREMENTS["carrier"]
    assert measurement("nonsense") is None


def test_the_rules_of_a_row_exist_and_each_rule_names_its_counters_there() -> None:
    def rules_of(family: Family) -> list[str]:
        return note_of(family).rules.split()

    rows = NIC_ROWS + GPU_ROWS
    nic_rules = {rule.key: rule for rule in NIC_RULES}
    assert {rule for family in NIC_ROWS for rule in rules_of(family)} <= nic_rules.keys()
    measured = {*gpu_rules.MEASURED_KEYS} - {"nvswitch_error"}  # it is read in the kernel log
    assert {rule for family in GPU_ROWS for rule in rules_of(family)} == measured, (
        "a note in hack/docs/metric_notes.py names each rule of a GPU"
    )
    readers = {number.name: rules_of(family) for family in rows for number in family.measurements}
    for key, rule in nic_rules.items():
        for counter in rule.counters:
            assert key in readers[counter], (
                f"the note of {counter} in hack/docs/metric_notes.py does not name {key}"
            )
    read_by_rules = {
        literal.value
        for module in (links, adapters, infiniband_rules, gpu_rules)
        for literal in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(literal, ast.Constant) and literal.value in MEASUREMENTS
    }
    assert len(read_by_rules) > 20
    unnamed = {name for name in read_by_rules if not readers[name]}
    assert unnamed <= {"lanes"}, (
        "rules read these samples, and hack/docs/metric_notes.py names no rule; lanes is a unit there"
    )
