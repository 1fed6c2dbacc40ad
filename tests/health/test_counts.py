"""Each event counts at most once: whatever is read in between, after a reset, and over a restart of the agent.

The account of these tests is the number of events. A count may be lower: what happened between a reset and the next
reading is unknown.
"""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.health.carrier_losses import PHY_COUNTERS
from nodeagent.health.history import History
from nodeagent.health.nic import NicState
from nodeagent.health.record import NicRecord
from nodeagent.health.rules import NIC_RULES, windows
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS
from tests.support.examples import examples
from tests.support.judged_machine import Bench

ONES = float(2**64 - 1)
GARBAGE = (0.0, ONES, float(2**32 - 1), math.nan, -1.0)
"""Zeros while the firmware does not answer, registers of ones, no number."""
RULED = windows(NIC_RULES)
"""Every counter that a rule of a NIC reads."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(1, 4)),
        st.tuples(st.just("wrong"), st.sampled_from(GARBAGE)),
        st.tuples(st.just("reset"), st.integers(0, 3)),
        st.tuples(st.just("leave out"), st.just(0)),
        st.tuples(st.just("be silent"), st.sampled_from([40, 400, 4000])),
    ),
    max_size=12,
)


@pytest.mark.parametrize("head", sorted(RULED))
@given(first=st.sampled_from([0.0, 3.0, 99.0, 250.0]), steps=STEPS)
@settings(max_examples=examples(40))
def test_a_counter_of_a_rule_counts_no_event_twice(
    head: str, first: float, steps: list[tuple[str, float]]
) -> None:
    known = MEASUREMENTS[head]
    name = head if known.per is None else f"{head}/3"
    history, at, raw = History(RULED), 1000.0, first
    events = counted = 0.0

    def read(value: float | None) -> None:
        nonlocal counted
        values = {} if value is None else {name: value}
        counted += history.take(Sample(at, "x", Source(known.source), values)).get(name, 0.0)

    read(raw)
    for happens, value in steps:
        at += 15
        if happens == "be silent":
            at += value
        elif happens == "count":
            raw, events = raw + value, events + value
            read(raw)
        elif happens == "reset":
            raw, events = value, events + value
            read(raw)
        else:
            read(value if happens == "wrong" else None)
        assert counted <= events
    at += 15
    read(raw)
    assert counted <= events


LINK_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lose"), st.integers(1, 3)),
        st.tuples(st.just("read the link"), st.sampled_from([None, 0.0])),
        st.tuples(st.just("read the driver"), st.sampled_from([None, *GARBAGE])),
        st.tuples(st.just("read the other"), st.sampled_from([None, *GARBAGE])),
        st.tuples(st.just("restart"), st.sampled_from([1, 20, 300])),
        st.tuples(st.just("reload the driver"), st.integers(0, 2)),
        st.tuples(st.just("be silent"), st.sampled_from([40, 400, 4000])),
    ),
    max_size=14,
)


PHY_SOURCES = {name: Source(MEASUREMENTS[name].source) for name in PHY_COUNTERS}


class CountedLink:
    """A PF whose losses the kernel and the PHY count, the PHY by one counter or by two. Each is read or not."""

    def __init__(self, *phys: str) -> None:
        self.phys = phys
        self.bench = Bench(1).look()
        self.raw = {"carrier_down": 3.0, **dict.fromkeys(phys, 5.0)}
        self.lost = 0
        self.read_all()

    def read_all(self) -> None:
        self.read_link()
        for phy in self.phys:
            self.read_phy(phy)

    @property
    def nic(self) -> NicState:
        return self.bench.engine.devices[self.bench.pfs[0].pci_address]

    def read_link(self, wrong: float | None = None) -> None:
        value = self.raw["carrier_down"] if wrong is None else wrong
        self.bench.take(Source.LINK, {"carrier_down": value, "carrier": 1.0}, at=self.bench.now + 5)

    def read_phy(self, phy: str, wrong: float | None = None) -> None:
        value = self.raw[phy] if wrong is None else wrong
        self.bench.take(PHY_SOURCES[phy], {phy: value}, at=self.bench.now + 5)

    def restart(self, seconds: float) -> None:
        """The next agent has the records as they are in the file."""
        records = msgspec.json.encode(self.bench.engine.records())
        old, self.bench = self.bench, Bench(1)
        self.bench.now = old.now + seconds
        self.bench.engine.restore(msgspec.json.decode(records, type=dict[str, NicRecord]))
        self.bench.look()

    def step(self, happens: str, value: float | None) -> None:
        if happens == "lose":
            self.lost += int(value or 0)
            self.raw = {name: count + (value or 0) for name, count in self.raw.items()}
        elif happens == "read the link":
            self.read_link(value)
        elif happens == "read the driver":
            self.read_phy(self.phys[0], value)
        elif happens == "read the other":
            self.read_phy(self.phys[-1], value)
        elif happens == "restart":
            self.restart(value or 0)
        elif happens == "reload the driver":
            self.raw = dict.fromkeys(self.raw, value or 0.0)
            self.lost += int(value or 0)
        else:
            self.bench.wait(value or 0)


@pytest.mark.parametrize("phys", [*((phy,) for phy in PHY_SOURCES), ("ext_down", "link_down_events")])
@given(steps=LINK_STEPS)
@example(steps=[("be silent", 400), ("restart", 1), ("read the driver", 0.0)])
@example(
    steps=[
        *(("read the driver", None), ("reload the driver", 1), ("lose", 3), ("be silent", 40)),
        *(("read the link", None), ("restart", 1), ("read the driver", 0.0)),
    ]
)
@settings(max_examples=examples(400))
@example(
    steps=[
        *(("lose", 1), ("read the link", None), ("read the driver", None), ("restart", 1), ("be silent", 40)),
        ("read the link", 0.0),
    ]
)
def test_a_lost_link_counts_once_by_several_counters(
    phys: tuple[str, ...], steps: list[tuple[str, float | None]]
) -> None:
    link = CountedLink(*phys)
    for step in steps:
        link.step(*step)
        assert link.nic.losses.within_day(link.bench.now) <= link.lost
    link.read_all()
    assert link.nic.losses.within_day(link.bench.now) <= link.lost
