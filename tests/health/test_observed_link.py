"""The state of a link is kept between two samples. It is the same as read from the facts and levels at that moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.model import Function, Link, Reason
from nodeagent.health.nic_rules import DEFAULTS
from nodeagent.health.nic_state import NicState
from nodeagent.health.nic_view import NicContext
from nodeagent.health.structural import Fault
from nodeagent.measurements.sample import Sample, Source

PF = "0000:18:00.0"
FUNCTION = Function(
    PF, "15b3", "1021", "mlx5_core", "rail0", "ethernet", None, None, None, None, ("pci0000:15", PF)
)
LINK = Link("rail0", PF, None, True, True, "up", 400000, 1500, False)
VALUES = (
    {"admin_up": 1.0, "carrier": 1.0, "mtu_bytes": 1500.0},
    {"admin_up": 1.0, "carrier": 0.0, "mtu_bytes": 1500.0},
    {"admin_up": 1.0, "carrier": float("nan"), "mtu_bytes": 9000.0},
    {"admin_up": 0.0},
    {"speed_mbps": 100.0},
    {"rdma_port_active": 1.0},
    {},
)
sources = st.sampled_from((Source.LINK, Source.LINK, Source.MODES, Source.RDMA, Source.PCIE))
samples = st.tuples(sources, st.sampled_from(VALUES))
faults = st.sampled_from((Fault.ADMIN_DOWN, Fault.CARRIER_DOWN, Fault.LINK_UNSEEN, Fault.DRIVER_UNBOUND))
facts = st.tuples(st.sampled_from(("ethernet", "ethernet", "infiniband")), st.sets(faults, max_size=1))
seconds = st.sampled_from((0.5, 1.5, 2.5, 10.0, 40.0, 400.0))


def nic_with_facts(now: float) -> NicState:
    nic = NicState(FUNCTION, DEFAULTS)
    nic.take_facts(FUNCTION, LINK, (), now)
    return nic


def assert_kept_as_read(nic: NicState) -> None:
    assert nic._observer.link == nic._observer.read()


@given(st.lists(st.tuples(seconds, samples | facts | st.none()), max_size=30))
def test_the_kept_state_of_a_link_is_that_of_its_facts_and_levels(events) -> None:
    now = 1000.0
    nic = nic_with_facts(now)
    for passed, event in events:
        now += passed
        match event:
            case None:
                nic.refresh(now)
            case (Source() as source, dict() as values):
                nic.take_sample(Sample(now, PF, source, values))
            case (link_type, keys):
                reasons = tuple(Reason(key.value, "") for key in keys)
                nic.take_facts(replace(FUNCTION, link_type=link_type), LINK, reasons, now)
        assert_kept_as_read(nic)


def test_a_carrier_that_stays_off_overrules_older_facts() -> None:
    nic = nic_with_facts(1000.0)
    nic.take_sample(Sample(1001.0, PF, Source.LINK, VALUES[1]))
    assert nic.carrier
    nic.take_sample(Sample(1006.0, PF, Source.LINK, VALUES[1]))
    assert nic.carrier is False


def test_the_same_facts_again_are_news_only_if_they_overrule_older_samples() -> None:
    nic = nic_with_facts(1000.0)
    nic.take_sample(Sample(1001.0, PF, Source.LINK, VALUES[1]))
    nic.take_sample(Sample(1006.0, PF, Source.LINK, VALUES[1]))
    for now, carrier_before, news in ((1007.0, False, True), (1008.0, True, False)):
        nic.refresh(now)
        nic.step(NicContext(), all_rules=True)
        assert nic.carrier is carrier_before
        nic.take_facts(FUNCTION, LINK, (), now)
        assert nic.carrier
        assert nic.has_news is news


def test_a_level_of_a_stale_source_is_known_again_by_another_source() -> None:
    nic = nic_with_facts(1000.0)
    for at, source in ((1000, Source.RDMA), (1100, Source.RDMA), (1101, Source.LINK), (1102, Source.LINK)):
        nic.take_sample(Sample(at, PF, source, VALUES[0]))
    nic.refresh(1150.0)
    assert nic.history.stale() == (Source.LINK,)
    nic.take_sample(Sample(1151.0, PF, Source.RDMA, VALUES[0]))
    assert_kept_as_read(nic)
