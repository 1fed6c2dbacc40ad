"""Lines of the kernel log in the health of GPUs: decoded XIDs of NVLinks, and SXids of NVSwitches."""

from __future__ import annotations

import pytest

from nodeagent.facts.model import HEALTHY, State
from nodeagent.health.gpu_settings import GpuHealthSettings
from nodeagent.host.gpu_driver import DriverMessage
from tests.support.judged_gpus import GpuBench, gpu


def link_down(
    subcode: int = 36, *, fatal: bool = True, address: str = "0000:00:00", link: int = 8
) -> DriverMessage:
    return DriverMessage(address, 149, fatal, link, unit="NETIR_LINK_EVT", subcode=subcode)


WORDS = (
    "XID 149: NETIR_LINK_EVT of NVLink 8 reported an error (fatal, sub-code 36): "
    "look at the device at its other end."
)


@pytest.mark.parametrize("order", ["event first", "line first"])
def test_a_fatal_line_makes_the_xid_fatal_and_names_link_and_cause(order):
    bench = GpuBench(gpu(0), gpu(1))
    if order == "event first":
        assert bench.xid(1, 149).health().allocatable
        bench.message(2, link_down())
    else:
        assert bench.message(1, link_down()).health() == HEALTHY, "a line alone is not a fault"
        bench.xid(2, 149)
    health = bench.health()
    assert (health.state, health.allocatable) == (State.UNHEALTHY, False)
    assert [(reason.key, reason.detail) for reason in health.reasons] == [("xid_149", WORDS)]
    assert bench.health("GPU-1") == HEALTHY
    bench.restart()
    assert bench.health() == health
    assert bench.read_at(700, gpu(0), gpu(1)).health() == HEALTHY


@pytest.mark.parametrize(
    ("message", "withdraws", "words"),
    [
        (link_down(38), False, "software or a person took it down"),
        (link_down(40), False, "look at the host"),
        (link_down(42), True, "check the signal and the cables of the link"),
        (link_down(0), True, "NVLink 8 reported an error (fatal)."),
        (link_down(36, fatal=False), False, "(not fatal, sub-code 36)"),
        (DriverMessage("0000:00:00", 149, True, unit="NETIR_MFDE_EVENT"), True, "NETIR_MFDE_EVENT reported"),
        (DriverMessage("0000:00:00", 149, False, 3, unit="NETIR_BER_EVENT"), False, "NVLink 3"),
    ],
)
def test_the_catalog_decides_whether_the_gpu_needs_a_reset(message, withdraws, words):
    bench = GpuBench(gpu()).xid(1, 149).message(2, message)
    assert bench.health().allocatable is not withdraws
    assert words in bench.health().reasons[0].detail


def test_a_line_of_another_gpu_or_of_long_ago_decodes_nothing():
    bench = GpuBench(gpu(0), gpu(1)).xid(1, 149).message(2, link_down(address="0000:01:00"))
    plain = bench.health()
    assert plain.allocatable
    assert bench.message(60, link_down()).health() == plain, "it belongs to no event that NVML has reported"
    assert GpuBench(gpu()).message(1, link_down()).xid(60, 149).health() == plain


def test_further_lines_change_the_text_only_if_they_are_graver():
    bench = GpuBench(gpu()).xid(1, 149).message(2, link_down(38, link=1))
    first = bench.health()
    assert bench.message(3, link_down(38, link=2), link_down(38, link=3)).health() == first
    graver = bench.message(4, link_down(link=4)).health()
    assert "NVLink 4" in graver.reasons[0].detail
    assert bench.message(5, link_down(link=5), link_down(38, link=6)).health() == graver


SXID = DriverMessage("0000:05:00.0", 20034, True, 48, switch=True)


def test_a_fatal_sxid_degrades_the_gpus_with_nvlinks_until_none_came_for_the_time_to_clear():
    bench = GpuBench().tick().message(15, SXID)
    assert bench.reasons() == [], "it counts with the next reading"
    bench.now = 16
    health = bench.tick().health()
    assert (health.state, health.allocatable, bench.reasons()) == (State.DEGRADED, True, ["nvswitch_error"])
    assert health.reasons[0].detail == (
        "The NVSwitch 0000:05:00.0 reported the fatal SXid 20034 on its link 48 (kernel log)."
    )
    bench.for_s(600)
    assert bench.reasons() == ["nvswitch_error"], "it was new for a minute"
    assert bench.for_s(90).reasons() == []


def test_an_sxid_that_is_not_fatal_and_a_gpu_without_nvlinks_have_no_fault():
    mild = DriverMessage("0000:05:00.0", 12028, False, 32, switch=True)
    assert GpuBench().tick().message(15, mild).for_s(60).reasons() == []
    without = {f"gpu_nvlink_up__{link}": None for link in range(18)}
    bench = GpuBench().tick(**without).message(15, SXID)
    assert bench.for_s(60, **without).reasons() == []


def test_a_person_may_let_an_sxid_withdraw_the_gpus():
    bench = GpuBench.with_limits(GpuHealthSettings(unhealthy=("nvswitch_error",))).tick().message(15, SXID)
    assert not bench.for_s(15).health().allocatable
