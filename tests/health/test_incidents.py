"""Incidents of real fleets, as samples and facts: administration, link training, garbage, pauses, PCIe, removal.

Each test states what the hardware or the driver does, and the health that an experienced operator would give.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, State
from nodeagent.health.health_settings import HealthSettings, RuleSettings
from nodeagent.measurements.sample import Source
from tests.support.judged_machine import Bench, with_rules

S = Source
ONES = float(2**64 - 1)


def up() -> Bench:
    return Bench(2).look().sample(S.LINK, at=1001, carrier=1, carrier_down=10, mtu_bytes=9000, admin_up=1)


def losses(bench: Bench, *, number: int = 1) -> float:
    return bench.engine.devices[bench.pfs[number - 1].pci_address].losses.penalty.points


# --- administration -----------------------------------------------------------------------------------------


def test_a_changed_mtu_is_no_flap() -> None:
    """igb and mlx5 drop the carrier for each change."""
    bench = up()
    for i in range(1, 6):
        bench.sample(S.LINK, at=1001 + 10 * i, carrier=1, carrier_down=10 + i, mtu_bytes=9000 - i, admin_up=1)
    assert losses(bench) == 0
    assert bench.health() == HEALTHY


def test_a_loss_before_the_notice_of_the_change_is_no_flap() -> None:
    bench = up()
    bench.sample(S.LINK, at=1010, carrier=1, carrier_down=13, mtu_bytes=9000)
    assert bench.reasons() == ["flapping"]
    bench.take(S.ADMINISTRATION, {"administration/rings": 0}, at=1011)
    bench.take(S.ADMINISTRATION, {"administration/rings": 1}, at=1012)
    assert losses(bench) == 0
    assert bench.health() == HEALTHY


@pytest.mark.parametrize("change", ["rings", "channels", "pause", "link"])
def test_a_loss_after_the_notice_of_a_change_is_no_flap(change: str) -> None:
    bench = up().take(S.ADMINISTRATION, {f"administration/{change}": 4})
    bench.take(S.ADMINISTRATION, {f"administration/{change}": 5}, at=1010)
    bench.sample(S.LINK, at=1011, carrier=1, carrier_down=14)
    assert bench.health() == HEALTHY


def test_a_link_that_is_set_down_and_up_does_not_flap() -> None:
    bench = up()
    for i in range(6):
        bench.set(at=1010 + 20 * i, admin_up=False, carrier=None, operstate="down")
        bench.sample(S.LINK, at=1011 + 20 * i, admin_up=0, carrier_down=11 + i)
        bench.set(at=1020 + 20 * i, admin_up=True, carrier=True, operstate="up")
        bench.sample(S.LINK, at=1021 + 20 * i, admin_up=1, carrier=1, carrier_down=11 + i)
    assert losses(bench) == 0


def test_changed_vfs_are_no_flap() -> None:
    """``vfs apply`` with another number of VFs: two losses on igb, four with the way back."""
    bench = up()
    for i, vfs in enumerate((6, 4)):
        bench.sample(S.LINK, at=1010 + 2 * i, carrier=1, carrier_down=12 + 2 * i)
        bench.functions[0] = replace(bench.functions[0], num_vfs=vfs)
        bench.look(at=1011 + 2 * i)
    assert losses(bench) == 0
    assert bench.health() == HEALTHY


def test_the_settle_time_ends_and_it_is_configurable() -> None:
    bench = Bench(1, HealthSettings(settle_seconds=5)).look()
    bench.sample(S.LINK, at=1001, carrier=1, carrier_down=10, mtu_bytes=9000)
    bench.sample(S.LINK, at=1010, carrier=1, carrier_down=11, mtu_bytes=1500)
    assert losses(bench) == 0
    bench.sample(S.LINK, at=1016, carrier=1, carrier_down=12, mtu_bytes=1500)
    assert losses(bench) == 1000


def test_where_the_phy_counts_its_steps_are_the_flaps() -> None:
    """mlx5: ``carrier_down`` steps with every change of rings, ``link_down_events_phy`` with a real loss only."""
    bench = up().sample(S.DRIVER, at=1002, link_down_events=7)
    for i in range(1, 9):
        bench.sample(S.LINK, at=1010 + i, carrier=1, carrier_down=10 + i)
    assert bench.health() == HEALTHY
    bench.sample(S.DRIVER, at=1020, link_down_events=10)
    assert bench.reasons() == ["flapping"]


def test_the_counter_of_the_phy_continues_over_a_restart() -> None:
    bench = up().sample(S.STATE, at=1002, ext_down=7)
    after = Bench(2)
    after.engine.restore(bench.engine.records())
    after.look(at=1020).sample(S.LINK, at=1021, carrier=1, carrier_down=40)
    after.sample(S.STATE, at=1022, ext_down=10)
    assert after.reasons() == ["flapping"]
    assert losses(after) == 3000


# --- link training ------------------------------------------------------------------------------------------


def reboot_of_the_leaf(bench: Bench, at: float) -> Bench:
    """Four minutes without carrier; symbol errors until 30 s after it is back."""
    bench.sample(S.DRIVER, at=at - 5, symbol_errors=0, phy_rx_bits=at * 4e11)
    bench.down(at=at)
    bench.sample(S.LINK, at=at + 1, carrier=0, carrier_down=11)
    for i in range(1, 19):
        bench.sample(S.DRIVER, at=at + 15 * i, symbol_errors=2e6 * i, phy_rx_bits=(at + 15 * i) * 4e11)
        if i == 16:
            bench.up(at=at + 241).sample(S.LINK, at=at + 242, carrier=1, carrier_down=11)
    return bench


def test_errors_of_link_training_are_no_fault() -> None:
    bench = reboot_of_the_leaf(up(), 1100)
    for i in range(19, 60):
        at = 1100 + 15 * i
        bench.sample(S.DRIVER, at=at, symbol_errors=36e6, phy_rx_bits=at * 4e11)
        bench.sample(S.LINK, at=at + 1, carrier=1, carrier_down=11)
        assert "post_fec_errors" not in bench.reasons()
    assert bench.health() == HEALTHY


def test_errors_after_the_settle_time_are_a_fault() -> None:
    bench = reboot_of_the_leaf(up(), 1100)
    for i in range(19, 60):
        at = 1100 + 15 * i
        bench.sample(S.DRIVER, at=at, symbol_errors=36e6 + 40 * i, phy_rx_bits=at * 4e11)
    assert "post_fec_errors" in bench.reasons()


def test_a_short_loss_that_only_the_counter_shows_begins_the_windows_again() -> None:
    bench = up().sample(S.FEC, at=1005, fec_uncorrectable_blocks=0)
    bench.sample(S.FEC, at=1020, fec_uncorrectable_blocks=500)
    assert "fec_uncorrectable" in bench.reasons()
    other = up().sample(S.FEC, at=1005, fec_uncorrectable_blocks=0)
    other.sample(S.LINK, at=1019, carrier=1, carrier_down=11)
    other.sample(S.FEC, at=1020, fec_uncorrectable_blocks=500)
    assert other.health() == HEALTHY


# --- garbage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ones", [ONES, float(2**32 - 1)])
def test_registers_of_ones_raise_no_alarm(ones: float) -> None:
    """PCI reads return ones after the device has left the bus, and for a moment before."""
    bench = up().sample(S.DRIVER, at=1005, symbol_errors=3, pause_storm_errors=0, link_down_events=2)
    bench.sample(S.DRIVER, at=1020, symbol_errors=ones, pause_storm_errors=ones, link_down_events=ones)
    bench.sample(S.DRIVER, at=1035, symbol_errors=4, pause_storm_errors=0, link_down_events=2)
    assert bench.health() == HEALTHY
    assert bench.engine.devices[bench.pfs[0].pci_address].figures(1035).implausible == 3


def test_a_reset_of_the_counters_raises_no_alarm() -> None:
    bench = up().sample(S.DRIVER, at=1005, symbol_errors=1e6, pause_storm_errors=90)
    bench.sample(S.DRIVER, at=1020, symbol_errors=2000, pause_storm_errors=4)
    bench.sample(S.DRIVER, at=1035, symbol_errors=2000, pause_storm_errors=4)
    assert bench.health() == HEALTHY


# --- pauses -------------------------------------------------------------------------------------------------


def test_the_source_of_a_pause_storm_is_withdrawn_and_its_victims_are_not() -> None:
    bench = up()
    for i in range(1, 21):
        at = 1000 + 15 * i
        bench.take(S.DRIVER, {"prio_tx_pause_seconds/3": 14.9 * i, "prio_rx_pause_seconds/3": 0}, at=at)
        bench.take(
            S.DRIVER,
            {"prio_tx_pause_seconds/3": 0.1 * i, "prio_rx_pause_seconds/3": 14.9 * i},
            number=2,
            at=at,
        )
    assert "pause_source" in bench.reasons(1)
    assert bench.allocatable() == [False, True]


# --- losses over a day --------------------------------------------------------------------------------------


def test_one_loss_every_twelve_minutes_withdraws_the_link_until_it_has_been_stable_for_an_hour() -> None:
    bench = up()
    at, withdrawn = 1001.0, []
    for i in range(1, 41):  # eight hours
        at += 720
        bench.down(at=at)
        bench.sample(S.LINK, at=at + 0.5, carrier=0, carrier_down=10 + i)
        bench.up(at=at + 2).sample(S.LINK, at=at + 2.5, carrier=1, carrier_down=10 + i)
        bench.wait(300)
        withdrawn.append(not bench.health().allocatable)
    assert withdrawn == [False] * 4 + [True] * 36
    for minute in range(1, 61):
        bench.sample(S.LINK, at=at + 60 * minute, carrier=1, carrier_down=50)
    assert bench.wait(10).health() == HEALTHY


# --- PCIe ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "withdrawn"), [(0.001, False), (0.4, True)])
def test_a_slow_pcie_link_is_a_fault_under_load_only(load: float, withdrawn: bool) -> None:
    bench = up()
    for i in range(1, 61):
        at = 1001 + 15 * i
        bench.sample(S.DRIVER, at=at, phy_rx_bytes=load * 400e9 / 8 * 15 * i, phy_tx_bytes=0)
        bench.sample(S.PCIE, at=at, pcie_gts=16, pcie_expected_gts=32)
    assert ("pcie_speed" in bench.reasons()) is withdrawn
    assert bench.allocatable() == [not withdrawn, True]


# --- removal ------------------------------------------------------------------------------------------------


def test_a_removed_pf_has_no_other_fault() -> None:
    bench = up()
    bench.functions[0] = replace(bench.functions[0], driver=None)
    assert bench.look(at=1010).reasons() == ["driver_unbound"]
    bench.functions = bench.functions[3:]
    assert bench.look(at=1011).reasons() == ["device_missing"]
    assert bench.health().state is State.DOWN


def test_a_rule_that_was_changed_to_allocatable_stays_so() -> None:
    bench = Bench(1, with_rules(RuleSettings(rule="flapping_daily", allocatable=True))).look()
    for i in range(7):
        bench.sample(S.LINK, at=1001 + 3000 * i, carrier=1, carrier_down=i)
    assert bench.reasons() == ["flapping_daily"]
    assert bench.health().allocatable is True
