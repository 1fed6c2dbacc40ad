"""Which nodes differ from their peers: planted differences are named once, and rollouts and repairs never."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.fabric.node_values import (
    NODE_MODEL,
    READ_MAX,
    SUMMARY_MAX,
    VALUE_NAMES,
    VALUES_MAX,
    NodeValues,
    by_name,
    digest_of,
    exceptions,
    last_change,
    node_values,
    one_value,
    reported_values,
    summary,
    values_text,
)
from nodeagent.fabric.nodelinks import ComparedValues, ValueChange
from nodeagent.fabric.odd_nodes import ROLLOUT_S, OddValue, odd_values
from nodeagent.fabric.reports import InternPool

HOUR, DAY = 3600.0, 86_400.0
START = 1_790_000_000.0
USUAL = {
    NODE_MODEL: "0d9f2c11",
    "GPU driver": "580.95.05",
    "GPU VBIOS": "96.00.CF.00.01",
    "NIC firmware": "28.43.2026 (MT_0000000838)",
    "link speed": "400G",
    "FEC": "RS",
    "MTU": "9000",
    "kernel": "6.8.0-79-generic",
    "agent": "2026.11.1",
}
DEVICES = [f"nic{rail}" for rail in range(8)]


class Hall:
    """Nodes whose agents write reports: each change goes through the form of a report, with its dates."""

    def __init__(self, nodes: int, usual: Mapping[str, str] = USUAL, at: float = START - 100 * DAY) -> None:
        self.pool, self.planned = InternPool(), set[str]()
        self.reports: dict[str, ComparedValues] = {}
        self._read: dict[int, tuple[ComparedValues, NodeValues]] = {}
        for number in range(nodes):
            self.report(f"gpu-{number:04}", usual, at)

    def report(self, node: str, values: Mapping[str, str], at: float, *, anew: bool = False) -> None:
        """``anew``: the node is installed again, so it has no earlier report."""
        self.reports[node] = reported_values(values, None if anew else self.reports.get(node), at)

    def change(self, node: str, at: float, *, anew: bool = False, **other: str | None) -> None:
        """``_`` in a name stands for a space; ``None``: the value is not known any more."""
        values = by_name(self.reports[node].values)
        for name, value in other.items():
            if value is None:
                values.pop(name.replace("_", " "), None)
            else:
                values[name.replace("_", " ")] = value
        self.report(node, values, at, anew=anew)

    def values(self) -> dict[str, NodeValues]:
        for report in self.reports.values():
            if id(report) not in self._read:
                self._read[id(report)] = report, node_values(report, self.pool)
        return {node: self._read[id(report)][1] for node, report in self.reports.items()}

    def odd(self, at: float, expected: Mapping[str, str] | None = None) -> list[OddValue]:
        return [*odd_values(self.values(), at, self.planned.__contains__, expected)]


def sentences(hall: Hall, at: float, expected: Mapping[str, str] | None = None) -> list[str]:
    return [one.sentence for one in hall.odd(at, expected)]


# --- planted differences ------------------------------------------------------------------------------------


def test_one_node_of_2048_is_named_once_with_a_peer() -> None:
    hall = Hall(2048)
    hall.change("gpu-0017", START, NIC_firmware="28.39.1002 (MT_0000000838)")
    (odd,) = hall.odd(START + DAY + 1)
    assert odd.sentence == (
        "1 node of 2048 has NIC firmware 28.39.1002 (MT_0000000838), the others 28.43.2026 (MT_0000000838)"
    )
    assert (odd.nodes, odd.peer) == (("gpu-0017",), "gpu-0000")


def test_one_rail_of_all_nodes_is_named_once() -> None:
    firmware = dict.fromkeys(DEVICES, "28.43.2026") | {"nic3": "28.39.1002"}
    hall = Hall(2048, USUAL | {"NIC firmware": summary(firmware)})
    assert sentences(hall, START) == [
        "nic3 of 2048 nodes has NIC firmware 28.39.1002, the others of the same node 28.43.2026"
    ]


def test_one_link_of_one_node_is_named_once() -> None:
    hall = Hall(2048)
    firmware = dict.fromkeys(DEVICES, "28.43.2026 (MT_0000000838)") | {"nic3": "28.39.1002"}
    hall.change("gpu-0017", START, NIC_firmware=summary(firmware))
    assert sentences(hall, START + DAY + 1) == [
        "1 node of 2048 has NIC firmware 28.43.2026 (MT_0000000838); nic3: 28.39.1002, "
        "the others 28.43.2026 (MT_0000000838)"
    ]


def test_one_unit_is_named_once() -> None:
    hall = Hall(2048)
    for number in range(64, 96):
        hall.change(f"gpu-{number:04}", START, MTU="1500")
    assert sentences(hall, START + HOUR) == []
    assert sentences(hall, START + DAY + 1) == ["32 nodes of 2048 have MTU 1500, the others 9000"]


def test_two_generations_are_silent_while_one_grows_and_named_once_a_day_after_it_stopped() -> None:
    hall = Hall(2048)
    at = START
    for number in range(1500):
        at = START + number * 120.0
        hall.change(f"gpu-{number:04}", at, GPU_driver="590.12")
        if number % 50 == 0:
            assert hall.odd(at + 60) == []
    assert hall.odd(at + DAY - 1) == []
    assert sentences(hall, at + DAY + 1) == ["548 nodes of 2048 have GPU driver 580.95.05, the others 590.12"]


def test_a_rollout_by_installing_nodes_anew_is_silent_too() -> None:
    hall = Hall(100)
    for number in range(98):
        at = START + number * HOUR / 2
        hall.change(f"gpu-{number:04}", at, anew=True, GPU_driver="590.12")
        assert hall.odd(at + 60) == []
    assert sentences(hall, START + 98 * HOUR / 2 + 2 * DAY) == [
        "2 nodes of 100 have GPU driver 580.95.05, the others 590.12"
    ]


def test_missing_values_of_old_kernels_are_no_difference() -> None:
    hall = Hall(2048)
    for number in range(0, 2048, 3):
        hall.change(f"gpu-{number:04}", START, FEC=None, PFC=None)
    hall.change("gpu-0001", START, FEC="BASER")
    assert sentences(hall, START + DAY + 1) == ["1 node of 1365 has FEC BASER, the others RS"]


def test_fewer_than_four_nodes_have_nothing_usual() -> None:
    hall = Hall(3)
    hall.change("gpu-0000", START, MTU="1500")
    assert hall.odd(START + 9 * DAY) == []


def test_without_a_majority_nobody_is_odd() -> None:
    hall = Hall(8)
    for number in range(4):
        hall.change(f"gpu-{number:04}", START, MTU="1500")
    assert hall.odd(START + 9 * DAY) == []


def test_models_are_apart() -> None:
    hall = Hall(8)
    for number in range(3):
        hall.report(f"cpu-{number}", {NODE_MODEL: "other", "MTU": "1500"}, START - 9 * DAY)
    assert hall.odd(START) == []


def test_planned_work_is_silent() -> None:
    hall = Hall(16)
    hall.change("gpu-0003", START, MTU="1500")
    hall.planned.add("gpu-0003")
    assert hall.odd(START + 9 * DAY) == []
    hall.planned.clear()
    assert len(hall.odd(START + 9 * DAY)) == 1


def test_an_expected_value_is_no_vote() -> None:
    hall = Hall(2)
    hall.change("gpu-0001", START, GPU_driver="570.1")
    assert sentences(hall, START, {"GPU driver": "580.*"}) == [
        "1 node of 2 has GPU driver 570.1, and the settings expect 580.*"
    ]
    many = Hall(64)
    assert sentences(many, START, {"GPU driver": "590.*"}) == [
        "64 nodes have GPU driver 580.95.05, and the settings expect 590.*"
    ]
    assert many.odd(START, {"GPU driver": "*"}) == []


def test_an_expectation_of_any_value_ends_the_comparison() -> None:
    hall = Hall(64)
    hall.change("gpu-0001", START, MTU="1500")
    assert hall.odd(START + 9 * DAY, {"MTU": "*"}) == []


@pytest.mark.parametrize(("nodes", "lies"), [(64, 200), (2048, 40)])
def test_a_lying_node_is_odd_itself_and_makes_no_other_one_so(nodes: int, lies: int) -> None:
    rng = random.Random(7)
    hall = Hall(nodes)
    hall.change("gpu-0011", START - 9 * DAY, MTU="1500")
    true = [one.nodes for one in hall.odd(START)]
    for step in range(lies):
        names = rng.sample(VALUE_NAMES, 5)
        stamps = ("2026-11-29T00:00:00Z", "9999-12-31T23:59:59Z", "no time", "1900-01-01T00:00:00Z")
        hall.reports["gpu-0000"] = ComparedValues(
            values=values_text(
                {NODE_MODEL: USUAL[NODE_MODEL], **{name: rng.choice(("x", "1500", "9000")) for name in names}}
            ),
            changes=tuple(ValueChange(values=(name,), since=rng.choice(stamps)) for name in names),
            since=rng.choice(stamps),
        )
        others = [one for one in hall.odd(START + step * HOUR) if one.nodes != ("gpu-0000",)]
        found = [tuple(node for node in one.nodes if node != "gpu-0000") for one in others]
        assert found == true


@pytest.mark.parametrize("nodes", [64, 2048])
@pytest.mark.parametrize("since", ["2026-11-29T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_one_liar_who_always_just_changed_does_not_silence_others(since: str, nodes: int) -> None:
    hall = Hall(nodes)
    hall.change("gpu-0011", START, MTU="1500")
    at = START + 3 * DAY
    change = ValueChange(values=("MTU",), since=since)
    hall.reports["gpu-0000"] = ComparedValues(values=hall.reports["gpu-0000"].values, changes=(change,))
    assert sentences(hall, at) == [f"1 node of {nodes} has MTU 1500, the others 9000"]


def test_a_restart_of_the_controller_or_an_agent_names_nobody() -> None:
    """The dates stand in the reports: the judgement has no memory of its own."""
    hall = Hall(32)
    for number in range(12):
        hall.change(f"gpu-{number:04}", START + number * HOUR, kernel="6.14.0")
    anew = Hall(0)
    anew.reports = hall.reports
    assert anew.odd(START + 13 * HOUR) == []


# --- halls that are in order --------------------------------------------------------------------------------


def _roll_out(hall: Hall, rng: random.Random, at: float, name: str, value: str) -> float:
    """Change all nodes in batches, at most 20 h apart, in one of the ways of the field. Return its end."""
    nodes = [*hall.reports]
    rng.shuffle(nodes)
    size = max(1, int(len(nodes) * rng.choice((0.02, 0.1, 0.5, 1))))
    if rng.random() < 0.5:  # a canary first
        batches = [nodes[:1], *(nodes[i : i + size] for i in range(1, len(nodes), size))]
    else:
        batches = [nodes[i : i + size] for i in range(0, len(nodes), size)]
    gap, anew = rng.uniform(0.1, 20) * HOUR, rng.random() < 0.2 and size * 10 >= len(nodes)
    for batch in batches:
        for node in batch:
            hall.change(node, at, anew=anew, **{name: value})
        assert hall.odd(at + 1) == [], f"{name} at {len(batch)} of {len(nodes)}"
        at += gap
        assert hall.odd(at - 1) == [], f"{name} before the next batch of {len(nodes)}"
    return at


def _repair(hall: Hall, rng: random.Random, at: float) -> float:
    """A node gets another board, which somebody updates within a day, or under planned work."""
    node, name = rng.choice([*hall.reports]), rng.choice(("NIC firmware", "GPU VBIOS", "MTU"))
    before = by_name(hall.reports[node].values)[name]
    planned = rng.random() < 0.3
    if planned:
        hall.planned.add(node)
    hall.change(node, at, anew=rng.random() < 0.3, **{name: "older"})
    at += rng.uniform(0.1, 72 if planned else 23) * HOUR
    assert hall.odd(at) == []
    hall.change(node, at, **{name: before})
    hall.planned.discard(node)
    assert hall.odd(at + 1) == []
    return at


@pytest.mark.parametrize("block", range(20))
def test_rollouts_and_repairs_of_500_halls_are_never_odd(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        rng = random.Random(seed)
        hall = Hall(2048 if seed % 25 == 7 else rng.choice((3, 4, 5, 8, 16, 31, 64, 128)))
        at = START
        for number in range(rng.randint(2, 6)):
            if rng.random() < 0.5:
                name = rng.choice([name for name in USUAL if name != NODE_MODEL])
                at = _roll_out(hall, rng, at, name, f"new-{number}")
            else:
                at = _repair(hall, rng, at)
            if rng.random() < 0.3:  # a link is down, or a kernel does not say it
                hall.change(rng.choice([*hall.reports]), at, FEC=None)
            if rng.random() < 0.3:
                hall.report(f"new-{number}", by_name(next(iter(hall.reports.values())).values), at)
            at += rng.uniform(0, 60) * HOUR
            assert hall.odd(at) == [], f"seed {seed}"


# --- the form -----------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(DEVICES), st.text(min_size=1, max_size=120), min_size=1))
def test_any_values_make_one_short_line_that_equal_values_share(values: dict[str, str]) -> None:
    text = summary(values)
    assert text == summary(dict(values))
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= SUMMARY_MAX
    assert not {*text} & {*'|"\\'}


@given(st.dictionaries(st.sampled_from(DEVICES), st.sampled_from("abc"), min_size=4))
def test_the_exceptions_of_a_summary_are_those_of_the_devices(values: dict[str, str]) -> None:
    usual, others = exceptions(summary(values))
    read = {device: value for devices, value in others.items() for device in devices.split(",")}
    assert {device: read.get(device, usual) for device in values} == values


@given(st.text(max_size=900), st.lists(st.tuples(st.lists(st.text()), st.text()), max_size=60))
def test_what_a_stranger_writes_is_bounded(values: str, changes: list[tuple[list[str], str]]) -> None:
    report = ComparedValues(
        values=values,
        changes=tuple(ValueChange(values=tuple(names), since=since) for names, since in changes),
    )
    read = node_values(report, InternPool())
    assert by_name(read.values).keys() <= {NODE_MODEL, *VALUE_NAMES}
    assert len(read.values) <= READ_MAX
    assert read.values.isascii()
    assert len(read.changed) in (0, len(VALUE_NAMES))


def test_a_value_that_was_not_known_has_a_date_and_no_past() -> None:
    first = reported_values({"MTU": "9000"}, None, START)
    second = reported_values({"MTU": "9000", "FEC": "RS"}, first, START + DAY)
    assert [(change.values, change.added) for change in second.changes] == [((), ("FEC",))]
    assert second.since == first.since
    assert last_change(node_values(second), "FEC") == -(START + DAY)
    third = reported_values({"MTU": "1500", "FEC": "BASER"}, second, START + DAY + 60)
    assert [(change.values, change.added) for change in third.changes] == [(("FEC", "MTU"), ())]


# --- digests ------------------------------------------------------------------------------------------------

LONG = "hugepages=1024 iommu=pt pci=realloc=off nvidia.NVreg_Foo=1 x=1"
CROWDED = {
    name: f"a value that needs much of the room {place}" for place, name in enumerate(VALUE_NAMES[8:14])
}
"""Values for whose sake others become digests."""


def test_a_digest_is_no_other_value_than_its_text() -> None:
    hall = Hall(16, USUAL | {"boot parameters": LONG})
    for number in range(6):
        hall.report(f"gpu-{number:04}", USUAL | CROWDED | {"boot parameters": LONG}, START)
    digests = [by_name(report.values)["boot parameters"] for report in hall.reports.values()]
    assert digests == [digest_of(LONG)] * 6 + [LONG] * 10
    assert [one for one in hall.odd(START + 9 * DAY) if one.name == "boot parameters"] == []
    changes = [change for report in hall.reports.values() for change in report.changes]
    assert not any("boot parameters" in change.values + change.added for change in changes)
    hall.change("gpu-0001", START, boot_parameters="quiet " * 10)
    (odd,) = (one for one in hall.odd(START + 9 * DAY) if one.name == "boot parameters")
    assert (odd.nodes, odd.usual) == (("gpu-0001",), LONG), "a node that has the text explains the digests"


def test_a_value_with_exceptions_stays_a_text_as_long_as_another_can_be_short() -> None:
    firmware = dict.fromkeys(DEVICES, "28.43.2026 (MT_0000000838)") | {"nic3": "28.39.1002"}
    read = by_name(values_text(USUAL | CROWDED | {"NIC firmware": summary(firmware)}))
    assert read["NIC firmware"] == "28.43.2026 (MT_0000000838); nic3: 28.39.1002"


def test_all_values_fit_as_digests() -> None:
    """A later version with more names must find room for them."""
    whole = values_text({NODE_MODEL: "m" * 32, **dict.fromkeys(VALUE_NAMES, "x; " * 20)})
    assert len(whole) <= VALUES_MAX


def test_agents_that_begin_to_report_a_value_spread_nothing() -> None:
    """After an update of the agents all nodes have a value more: that is no rollout of it."""
    hall = Hall(16, {name: value for name, value in USUAL.items() if name != "FEC"})
    hall.change("gpu-0003", START - 3 * DAY, FEC="BASER")
    for number in [0, 1, 2, *range(4, 16)]:
        hall.change(f"gpu-{number:04}", START + 2 * DAY, FEC="RS")
    assert sentences(hall, START + 2 * DAY + 1) == ["1 node of 16 has FEC BASER, the others RS"]


EARLIER = [name for name in VALUE_NAMES if name not in ("GPU ECC mode", "pause", "rings", "channels")]
"""The values of an earlier version of the agent."""


def test_a_fleet_of_which_half_has_an_earlier_agent_is_judged_by_each_value_that_nodes_have() -> None:
    whole = {NODE_MODEL: "0d9f2c11", **{name: f"usual {name}" for name in VALUE_NAMES}}
    before = {name: whole[name] for name in (NODE_MODEL, *EARLIER)}
    hall = Hall(2048, before)
    for number in range(1024):
        at = START + number
        hall.report(f"gpu-{number:04}", whole | {"agent": "later", "agent settings": "new default"}, at)
        if number % 100 == 0:
            assert hall.odd(at + 1) == []
    hall.change("gpu-0007", START + 2 * DAY, rings="rx 512 tx 512")
    hall.change("gpu-2000", START + 2 * DAY, MTU="1500")
    names = {(one.name, one.nodes, one.peers) for one in hall.odd(START + 3 * DAY + 1)}
    assert names == {("rings", ("gpu-0007",), 1024), ("MTU", ("gpu-2000",), 2048)}


def test_a_controller_leaves_out_the_values_of_a_later_agent() -> None:
    """They follow the others. With those that it knows it judges as before."""
    stamp = "2026-11-29T00:00:00Z"
    report = ComparedValues(
        values=values_text({NODE_MODEL: "X", "MTU": "9000", "rings": "512"}) + "|3|gen7",
        changes=(ValueChange(values=("clocks of the future", "MTU"), since=stamp),),
        since=stamp,
    )
    read = node_values(report, InternPool())
    assert by_name(read.values) == {NODE_MODEL: "X", "MTU": "9000", "rings": "512"}
    assert [name for name in VALUE_NAMES if last_change(read, name)] == ["MTU"]


def test_a_controller_reads_an_earlier_agent_that_has_fewer_values() -> None:
    whole = values_text({NODE_MODEL: "X", "MTU": "9000", "agent": "1"}).rpartition("|")[0]
    assert by_name(whole) == {NODE_MODEL: "X", "MTU": "9000", "agent": "1"}
    assert one_value(whole, "agent settings") == ""


@pytest.mark.parametrize("own", ["agent settings", "NIC firmware"])
def test_ten_thousand_nodes_with_a_value_of_their_own_name_nobody_and_hide_nobody(own: str) -> None:
    hall = Hall(0)
    for number in range(10_000):
        values = USUAL | {own: f"{number:08x}"} | ({"MTU": "1500"} if number == 77 else {})
        hall.report(f"gpu-{number:04}", values, START - 9 * DAY)
    assert [(one.name, one.nodes) for one in hall.odd(START)] == [("MTU", ("gpu-0077",))]


HOSTILE = (
    "\0", "\x1b[2J", "\u202e" * 90, "\U0001f600" * 30, "=;: ; nic0: x", "; ; ; ", "nic0: ; : ", ": ", "#00000000",
    "*", "[", "nic0,nic1: 1", "x" * 10_000, " ", "=", "nic0: a; nic0: b",
)  # fmt: skip
"""Texts that a broken or hostile agent may write."""


@pytest.mark.parametrize("model", ["X", *HOSTILE])
def test_hostile_texts_are_shown_as_one_plain_line_and_break_no_judgement(model: str) -> None:
    rng = random.Random(model)
    hall = Hall(16)
    hall.change("gpu-0011", START - 9 * DAY, MTU="1500")
    for number in range(200):
        texts = "|".join([model, *(rng.choice(HOSTILE) for _ in VALUE_NAMES)])
        since = rng.choice(("", "9999-12-31T23:59:59Z", "x" * 1000, "-1"))
        hall.reports[f"evil-{number}"] = ComparedValues(values=texts, since=since)
    for expected in (None, {"MTU": "[", "FEC": "*", "kernel": ""}):
        found = hall.odd(START, expected)
        assert all(one.sentence.isprintable() and one.sentence.isascii() for one in found)
    assert ("gpu-0011",) in [one.nodes for one in hall.odd(START) if one.name == "MTU"]


def test_an_equal_report_is_the_one_before_and_old_changes_leave_with_the_next_one() -> None:
    report = reported_values({"MTU": "1500"}, reported_values({"MTU": "9000"}, None, START), START + DAY)
    assert [change.values for change in report.changes] == [("MTU",)]
    assert reported_values({"MTU": "1500"}, report, START + 90 * DAY) is report
    later = reported_values({"MTU": "1500", "FEC": "RS"}, report, START + 90 * DAY)
    assert [change.added for change in later.changes] == [("FEC",)]


def test_the_day_after_is_a_day() -> None:
    assert ROLLOUT_S == DAY
