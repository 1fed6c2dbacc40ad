"""The state of a link, by its facts and its samples: the newer has priority."""

from __future__ import annotations

from nodeagent.facts.model import Function, Link
from nodeagent.health.nic import NicState
from nodeagent.health.rules import NIC_RULES
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


def nic_with_facts(now: float) -> NicState:
    nic = NicState(FUNCTION, NIC_RULES)
    nic.take_facts(FUNCTION, LINK, (), now)
    return nic


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
        nic.step()
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
    assert nic.admin_up
    assert nic.carrier
