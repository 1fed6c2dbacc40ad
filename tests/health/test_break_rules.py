"""Attacks on the rules of NICs: garbage, resets, gaps, restarts and counters that come and go."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY
from nodeagent.measurements.sample import Source
from tests.support.judged_machine import Bench

S = Source


def up(vfs: int = 2) -> Bench:
    bench = Bench(2)
    bench.functions[0] = replace(bench.functions[0], num_vfs=vfs)
    return bench.look().sample(S.LINK, at=1001, carrier=1, carrier_down=10, mtu_bytes=9000, admin_up=1)


def restarted(bench: Bench, at: float, *, vfs: int = 2) -> Bench:
    """A new agent with the records of the old one."""
    after = Bench(2)
    after.functions[0] = replace(after.functions[0], num_vfs=vfs)
    after.engine.restore(bench.engine.records())
    return after.look(at=at)


def penalty(bench: Bench) -> float:
    return bench.engine.devices[bench.pfs[0].pci_address].losses.penalty.points


# --- garbage and resets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [1, 3])
def test_a_counter_that_reads_zero_for_a_moment_adds_nothing(zeros: int) -> None:
    """A driver whose firmware does not answer may report zeros."""
    bench = up().sample(S.DRIVER, at=1002, symbol_errors=5e6, link_down_events=7, pause_storm_errors=2)
    at = 1070.0
    bench.sample(S.DRIVER, at=at, symbol_errors=5e6, link_down_events=7, pause_storm_errors=2)
    for _ in range(zeros):
        bench.sample(S.DRIVER, at=at + 15, symbol_errors=0, link_down_events=0, pause_storm_errors=0)
        bench.sample(S.LINK, at=at + 15.5, carrier=1, carrier_down=0, mtu_bytes=9000, admin_up=1)
        at += 15
    bench.sample(S.DRIVER, at=at + 15, symbol_errors=5e6, link_down_events=7, pause_storm_errors=2)
    bench.sample(S.LINK, at=at + 15.5, carrier=1, carrier_down=10, mtu_bytes=9000, admin_up=1)
    assert bench.health() == HEALTHY
    assert penalty(bench) == 0


def test_a_counter_that_reads_zero_after_a_reset_adds_nothing() -> None:
    bench = up()
    for at, storms in ((1002, 100), (1017, 2), (1032, 0), (1047, 2)):
        bench.sample(S.DRIVER, at=at, pause_storm_errors=storms)
        assert bench.health() == HEALTHY
    assert bench.sample(S.DRIVER, at=1062, pause_storm_errors=3).reasons() == ["pause_storm"]


def test_losses_after_a_reset_of_the_counter_count() -> None:
    bench = up().sample(S.LINK, at=1010, carrier=1, carrier_down=0)
    bench.sample(S.LINK, at=1020, carrier=1, carrier_down=1).sample(
        S.LINK, at=1030, carrier=1, carrier_down=4
    )
    assert bench.reasons() == ["flapping"]


def test_more_losses_than_a_link_can_have_are_garbage() -> None:
    bench = up().sample(S.LINK, at=1006, carrier=1, carrier_down=16_777_215)
    bench.sample(S.LINK, at=1011, carrier=1, carrier_down=10)
    assert bench.health() == HEALTHY
    assert penalty(bench) == 0


def test_pcie_lanes_of_a_device_that_left_the_bus_clear_no_fault() -> None:
    """The link status register reads as ones: 63 lanes."""
    bench = up()
    for i in range(1, 5):
        bench.sample(S.PCIE, at=1000 + 10 * i, pcie_width=8, pcie_expected_width=16)
    assert bench.reasons() == ["pcie_width"]
    for i in range(5, 20):
        bench.sample(S.PCIE, at=1000 + 10 * i, pcie_width=63, pcie_expected_width=16)
    assert bench.reasons() == ["pcie_width"]


@pytest.mark.parametrize(
    ("source", "name", "every_s"),
    [(S.PCIE, "pcie_width", 30), (S.MODES, "speed_mbps", 15), (S.RDMA, "roce_v2_gids", 60)],
)
def test_one_reading_withdraws_nothing_however_rarely_the_reader_reads(
    source: S, name: str, every_s: int
) -> None:
    """A link that trains may show fewer lanes or a lower speed for a moment."""
    sound = {"pcie_width": 16.0, "pcie_expected_width": 16.0, "rdma_port_active": 1.0, "roce_v2_gids": 2.0}
    sound |= {"speed_mbps": 400_000.0}
    low = {"pcie_width": 1.0, "speed_mbps": 10.0, "roce_v2_gids": 0.0}
    bench = up()
    for i in range(1, 6):
        bench.take(source, {**sound, name: low[name]} if i == 3 else sound, at=1010 + every_s * i)
        bench.wait(every_s - 1)
        assert bench.health().allocatable
    for i in range(6, 10):
        bench.take(source, {**sound, name: low[name]}, at=1010 + every_s * i)
    assert not bench.health().allocatable


# --- counters of the PHY that come and go -------------------------------------------------------------------


def test_the_kernel_counts_after_the_counter_of_the_phy_became_stale() -> None:
    bench = up()
    for i in range(1, 6):
        bench.sample(S.DRIVER, at=1000 + 15 * i, link_down_events=7)
        bench.sample(S.LINK, at=1001 + 15 * i, carrier=1, carrier_down=10)
    for i in range(1, 60):
        bench.sample(S.LINK, at=1080 + 5 * i, carrier=1, carrier_down=10 + i // 6)
    assert "flapping" in bench.reasons()


def test_a_counter_of_the_phy_that_returns_counts_no_loss_twice() -> None:
    bench = up()
    for i in range(1, 6):
        bench.sample(S.DRIVER, at=1000 + 15 * i, link_down_events=7)
        bench.sample(S.LINK, at=1001 + 15 * i, carrier=1, carrier_down=10)
    for i in range(1, 31):
        bench.sample(S.LINK, at=1080 + 5 * i, carrier=1, carrier_down=10 if i < 30 else 12)
    assert penalty(bench) == 2000
    bench.sample(S.DRIVER, at=1240, link_down_events=9)
    assert "flapping" not in bench.reasons()
    bench.sample(S.DRIVER, at=1255, link_down_events=12)
    assert "flapping" in bench.reasons()


def test_the_kernel_counts_if_no_counter_of_the_phy_returns_after_a_restart() -> None:
    before = up().sample(S.STATE, at=1002, ext_down=7)
    bench = restarted(before, 1100)
    for i in range(1, 60):
        bench.sample(S.LINK, at=1100 + 5 * i, carrier=1, carrier_down=10 + i // 10)
    assert "flapping" in bench.reasons()


def test_a_counter_of_the_phy_that_appears_counts_from_its_first_value() -> None:
    bench = up().sample(S.LINK, at=1010, carrier=1, carrier_down=11)
    bench.sample(S.DRIVER, at=1011, link_down_events=40)
    bench.sample(S.LINK, at=1015, carrier=1, carrier_down=12)
    assert penalty(bench) == 1000
    bench.sample(S.DRIVER, at=1026, link_down_events=41)
    assert 1900 < penalty(bench) <= 2000


# --- restarts -----------------------------------------------------------------------------------------------


def test_vfs_that_were_changed_while_no_agent_ran_are_no_flap() -> None:
    """The init container of a new agent runs ``vfs apply``."""
    bench = restarted(up(vfs=4), 1100, vfs=6)
    bench.sample(S.LINK, at=1101, carrier=1, carrier_down=14, mtu_bytes=9000, admin_up=1)
    assert penalty(bench) == 0
    assert bench.health() == HEALTHY


def test_an_mtu_that_was_changed_while_no_agent_ran_is_no_flap() -> None:
    bench = restarted(up(), 1100)
    bench.sample(S.LINK, at=1101, carrier=1, carrier_down=13, mtu_bytes=1500, admin_up=1)
    assert bench.health() == HEALTHY


def test_losses_while_no_agent_ran_count_if_nothing_was_changed() -> None:
    bench = restarted(up(), 1100)
    bench.sample(S.LINK, at=1101, carrier=1, carrier_down=13, mtu_bytes=9000, admin_up=1)
    assert bench.reasons() == ["flapping"]


def test_the_settle_time_of_a_change_continues_over_a_restart() -> None:
    before = up().take(S.ADMINISTRATION, {"administration/rings": 0}, at=1002)
    before.take(S.ADMINISTRATION, {"administration/rings": 1}, at=1010)
    bench = restarted(before, 1015)
    bench.sample(S.LINK, at=1016, carrier=1, carrier_down=14)
    assert bench.health() == HEALTHY
    bench.sample(S.LINK, at=1066, carrier=1, carrier_down=14)
    bench.sample(S.LINK, at=1071, carrier=1, carrier_down=17)
    assert bench.reasons() == ["flapping"]


@pytest.mark.parametrize("again", [False, True])
def test_errors_of_link_training_at_the_start_of_the_agent_are_no_fault(again: bool) -> None:
    """A node boots: the agent starts while its links still train."""
    bench = Bench(2, settled=False).look()
    bench = restarted_untrained(bench) if again else bench
    for i in range(80):
        at = 1001 + 15 * i
        bench.sample(S.DRIVER, at=at, symbol_errors=2e6 * min(i, 3), phy_rx_bits=at * 4e11)
        bench.sample(S.FEC, at=at, fec_uncorrectable_blocks=500 * min(i, 3))
        assert bench.health() == HEALTHY


def restarted_untrained(bench: Bench) -> Bench:
    after = Bench(2, settled=False)
    after.engine.restore(bench.engine.records())
    return after.look()


# --- gaps ---------------------------------------------------------------------------------------------------


def test_a_change_explains_losses_that_are_reported_minutes_later() -> None:
    """The reader of the links hangs while an administrator changes the rings."""
    bench = up().take(S.ADMINISTRATION, {"administration/rings": 0}, at=1002)
    bench.take(S.ADMINISTRATION, {"administration/rings": 3}, at=1020)
    bench.sample(S.LINK, at=1320, carrier=1, carrier_down=13)
    assert bench.health() == HEALTHY


def test_losses_spread_over_hours_without_samples_are_no_short_succession() -> None:
    bench = up().sample(S.LINK, at=1006, carrier=1, carrier_down=10)
    bench.sample(S.LINK, at=1006 + 4 * 3600, carrier=1, carrier_down=13)
    assert "flapping" not in bench.reasons()
    bench.sample(S.LINK, at=1011 + 4 * 3600, carrier=1, carrier_down=15)
    assert "flapping_daily" in bench.reasons(), "the losses of a gap are losses of the day"


def test_a_source_that_hung_for_long_is_stale_as_early_as_before() -> None:
    """Otherwise old values would count as known for hours after the reader hangs again."""
    bench = up()
    for i in range(1, 6):
        bench.sample(S.LINK, at=1001 + 3 * i, carrier=1, carrier_down=10 + i)
    assert "flapping_daily" in bench.reasons()
    bench.wait(2000).sample(S.LINK, at=bench.now, carrier=1, carrier_down=15)
    assert "flapping_daily" in bench.wait(4000).reasons(), "no reader has counted losses for an hour"


def test_a_carrier_that_is_lost_within_the_settle_time_and_stays_lost_withdraws_at_once() -> None:
    bench = up().take(S.ADMINISTRATION, {"administration/rings": 0}, at=1002)
    bench.take(S.ADMINISTRATION, {"administration/rings": 1}, at=1010)
    bench.down(at=1011)
    assert bench.allocatable() == [False, True]
    assert bench.reasons() == ["carrier_down"]


def test_a_daily_limit_that_only_explained_losses_reach_is_no_fault() -> None:
    """The losses are counted before the notice of the change arrives."""
    bench = up().take(S.ADMINISTRATION, {"administration/rings": 0}, at=1002)
    for i in range(1, 4):
        bench.sample(S.LINK, at=1001 + 900 * i, carrier=1, carrier_down=10 + i)
    bench.sample(S.LINK, at=3706, carrier=1, carrier_down=15)
    assert "flapping_daily" in bench.reasons()
    bench.take(S.ADMINISTRATION, {"administration/rings": 1}, at=3707)
    assert bench.health() == HEALTHY


def test_two_changes_at_once_have_one_settle_time() -> None:
    bench = up().take(S.ADMINISTRATION, {"administration/rings": 0, "administration/mtu": 0}, at=1002)
    bench.take(S.ADMINISTRATION, {"administration/rings": 1, "administration/mtu": 1}, at=1010)
    bench.functions[0] = replace(bench.functions[0], num_vfs=6)
    bench.look(at=1011)
    bench.sample(S.LINK, at=1012, carrier=1, carrier_down=15, mtu_bytes=1500)
    assert penalty(bench) == 0
    bench.sample(S.LINK, at=1070, carrier=1, carrier_down=15, mtu_bytes=1500)
    bench.sample(S.LINK, at=1075, carrier=1, carrier_down=18, mtu_bytes=1500)
    assert bench.reasons() == ["flapping"]
