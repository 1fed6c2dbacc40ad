"""The PFs with news are evaluated first. The results are those of an evaluation of all PFs at once."""

from __future__ import annotations

import sys
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import Function
from nodeagent.health.health_settings import GuardSettings, HealthSettings
from nodeagent.health.nic import NicState
from nodeagent.measurements.sample import Sample, Source
from tests.support.judged_machine import Bench

_SAMPLES = {
    Source.LINK: ("carrier", "admin_up", "carrier_down", "crc_errors"),
    Source.FEC: ("fec_corrected_bits", "fec_uncorrectable_blocks"),
    Source.DRIVER: ("symbol_errors", "phy_rx_bits", "lane_errors/0", "lane_errors/1", "prio_rx_pause_seconds/3"),
    Source.RDMA: ("rdma_port_active", "roce_v2_gids", "rdma_ack_timeouts"),
    Source.PCIE: ("pcie_width", "pcie_expected_width", "aer_correctable", "aer_nonfatal"),
    Source.MODULE: ("rx_power_watts/0", "rx_power_watts/1", "rx_power_watts_low_alarm"),
    Source.KERNEL: ("kernel_events/firmware_fatal",),
}  # fmt: skip
_NUMBERS = st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 20.0, 1e9])


@st.composite
def sampled(draw: st.DrawFn) -> tuple[Source, dict[str, float]]:
    source = draw(st.sampled_from(sorted(_SAMPLES)))
    names = draw(st.lists(st.sampled_from(_SAMPLES[source]), min_size=1, unique=True))
    return source, {name: draw(_NUMBERS) for name in names}


HALF_LIFE_S = 600.0


def measured(bench: Bench) -> list[dict[str, float]]:
    """Return the values of the rules. The penalty decays by time alone, so it is computed for the same moment."""
    return [
        pf.values | {"flapping": round(pf.losses.penalty.now(bench.engine.now, HALF_LIFE_S), 6)}
        for pf in bench.engine.devices.values()
    ]


class _GatheringBench(Bench):
    """Evaluates samples when time or facts cause an evaluation, as the health service does with most samples."""

    def __init__(self) -> None:
        super().__init__(count=4, settings=HealthSettings(guard=GuardSettings(share=1)))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while (due := self.engine.due()) is not None and due <= self.now:
            self.judged = self.engine.judge(due)

    def gather(self, number: int, source: Source, values: dict[str, float]) -> None:
        self.engine.take_samples([Sample(self.now, self.pfs[number - 1].pci_address, source, values)])


class _FactsFirstBench(_GatheringBench):
    """Evaluates facts without the samples first."""

    first: tuple[Function, ...] = ()

    def wait(self, seconds: float) -> Bench:
        self.first = self.engine.judge(self.now, only_news=True)
        return super().wait(seconds)


_GATHERED = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 5.0, 5.0, 15.0, 70.0, 400.0]),
        st.integers(1, 4),
        st.one_of(sampled(), sampled(), st.booleans(), st.sampled_from([100_000, 400_000])),
    ),
    max_size=40,
)


@given(_GATHERED)
def test_facts_that_are_evaluated_before_the_samples_change_no_result(
    steps: list[tuple[float, int, tuple[Source, dict[str, float]] | bool | int]],
) -> None:
    facts_first, all_at_once = _FactsFirstBench(), _GatheringBench()
    facts_first.look()
    all_at_once.look()
    for seconds, number, step in steps:
        had = facts_first.links[facts_first.pfs[number - 1].pci_address].carrier
        for bench in (facts_first, all_at_once):
            bench.pass_time(seconds)
            if isinstance(step, tuple):
                bench.gather(number, *step)
            elif isinstance(step, bool):
                bench.up(number) if step else bench.down(number)
            else:
                bench.set(number, speed_mbps=step)
        if isinstance(step, tuple):
            continue
        assert facts_first.judged == all_at_once.judged
        assert measured(facts_first) == measured(all_at_once)
        assert [pf.holds for pf in facts_first.engine.devices.values()] == [
            pf.holds for pf in all_at_once.engine.devices.values()
        ]
        if isinstance(step, bool) and step is not had:
            first = {function.pci_address: function.health for function in facts_first.first}
            assert first[facts_first.pfs[number - 1].pci_address] == all_at_once.health(number)


def test_a_lost_carrier_looks_at_each_other_link_three_times() -> None:
    """For its carrier, for the speed of most links, and for its health. It was twenty times."""
    bench = Bench(13).look()
    looks = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code is NicState._up.fget.__code__

    bench.down(1)
    sys.setprofile(count)
    try:
        bench.engine.judge(bench.now, only_news=True)
    finally:
        sys.setprofile(None)
    assert 0 < looks <= 3 * 13
