"""The rule engine of NICs: holds, damping, gate, majority, guard, and unknown values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, Identifier, Neighbor, State
from nodeagent.health.cabling import Port
from nodeagent.health.health_settings import ExpectedLinks, GuardSettings, HealthSettings, RuleSettings
from nodeagent.health.nic import NicJudge
from nodeagent.health.rules import NIC_RULES
from nodeagent.health.structural import find_faults
from nodeagent.measurements.sample import Source
from tests.support.findings import one_item
from tests.support.judged_machine import Bench, link, pf, vf, with_rules

LINK, FEC, DRIVER, RDMA, PCIE, MODULE = (
    Source.LINK,
    Source.FEC,
    Source.DRIVER,
    Source.RDMA,
    Source.PCIE,
    Source.MODULE,
)


def two_up() -> Bench:
    return Bench(2).look()


# --- the carrier -------------------------------------------------------------------------------------------


def test_a_lost_carrier_withdraws_the_pf_and_its_vfs_at_once() -> None:
    bench = two_up().down()
    assert bench.health().state is State.DOWN
    assert bench.reasons() == ["carrier_down"]
    assert [health.allocatable for health in bench.vfs()] == [False, False]
    assert bench.vfs()[0] == bench.health(), "a VF is as its PF"
    assert bench.health(2) == HEALTHY


def test_a_pf_returns_after_the_hold_and_due_is_its_end() -> None:
    bench = two_up().down(at=1010).up(at=1020)
    assert bench.reasons() == ["carrier_down"]
    assert bench.engine.due() == 1080
    assert bench.wait(59.9).health().allocatable is False
    assert bench.wait(0.1).health() == HEALTHY


def test_a_second_loss_within_the_hold_restarts_it() -> None:
    bench = two_up().down(at=1010).up(at=1020).down(at=1070).up(at=1071)
    assert bench.wait(59).allocatable() == [False, True]
    assert bench.wait(1).allocatable() == [True, True]


def test_a_loss_that_only_the_counter_shows_restarts_the_hold() -> None:
    bench = two_up().sample(LINK, at=1001, carrier=1, carrier_down=3).down(at=1010).up(at=1020)
    bench.sample(LINK, at=1050, carrier=1, carrier_down=5)
    assert bench.wait(59).health().allocatable is False
    assert bench.wait(1).health() == HEALTHY


def test_the_reason_is_constant_as_long_as_the_fault_is_active() -> None:
    bench = two_up().down(at=1010)
    before = bench.health()
    assert bench.wait(30).health() == before
    assert bench.up().health() == before, "a hold is no other fault"


def test_the_hold_can_be_zero() -> None:
    bench = Bench(2, with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=0))).look().down()
    assert bench.health().allocatable is False
    assert bench.up().health() == HEALTHY


def test_a_clock_that_steps_back_stands_still() -> None:
    bench = two_up().down(at=1010).up(at=1020)
    bench.judged = bench.engine.judge(3.0)
    assert bench.engine.now == 1020
    assert bench.wait(59.9).health().allocatable is False
    assert bench.wait(0.1).health() == HEALTHY


swings = st.lists(st.tuples(st.floats(0.1, 40), st.booleans()), min_size=1, max_size=40)


@given(swings, st.floats(0, 120))
def test_devices_toggle_at_most_once_per_hold(steps: list[tuple[float, bool]], hold: float) -> None:
    bench = Bench(3, with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=hold))).look()
    given_back: list[float] = []
    down_at: float | None = None
    before = True
    for pause, up in steps:
        bench.wait(pause)
        bench.up() if up else bench.down()
        now = bench.health().allocatable
        assert up or not now, "a carrier that is down is never offered"
        if before and not now:
            down_at = bench.now
        if now and not before:
            given_back.append(bench.now)
            assert down_at is not None
            assert bench.now - down_at >= hold
        before = now
    assert all(b - a >= hold for a, b in pairwise(given_back))


@given(st.lists(st.floats(0, 40), min_size=2, max_size=60))
def test_an_oscillating_value_toggles_once_per_hold(rates: list[float]) -> None:
    """``crc_errors``: 10 in, 0 out, held for 600 s."""
    bench = Bench(1).look()
    total, changes, before = 0.0, [], False
    for i, rate in enumerate(rates):
        total += rate * 30
        bench.sample(LINK, at=1030 + 30 * i, carrier=1, crc_errors=total)
        stands = "crc_errors" in bench.reasons()
        if stands != before:
            changes.append(bench.now)
        before = stands
    assert all(b - a >= 600 for a, b in zip(changes[0::2], changes[1::2], strict=False))


# --- unknown values ----------------------------------------------------------------------------------------


def test_a_pf_without_a_visible_link_is_unknown_and_keeps_its_devices() -> None:
    bench = two_up()
    address = bench.pfs[0].pci_address
    kept = bench.links.pop(address)
    assert bench.look().health().state is State.UNKNOWN
    assert bench.health().allocatable is True
    bench.links[address] = kept
    bench.down()
    bench.links.pop(address)
    assert bench.look().health().allocatable is False, "nor does it give back"
    assert bench.wait(600).health().allocatable is False
    assert "link_unseen" in bench.reasons()


def _moves(bench: Bench) -> Bench:
    """Its netdev goes into a pod: it is set down first."""
    bench.sample(LINK, at=bench.now + 1, admin_up=0, carrier=0, carrier_down=4)
    nic = bench.pfs[0]
    bench.links.pop(nic.pci_address)
    bench.functions[0] = replace(nic, netdev=None)
    return bench.look(bench.now + 1)


def _returns(bench: Bench, *, admin_up: bool) -> Bench:
    nic = bench.pfs[0]
    bench.functions[0] = nic
    bench.links[nic.pci_address] = replace(
        link(nic),
        admin_up=admin_up,
        carrier=True if admin_up else None,
        operstate="up" if admin_up else "down",
    )
    bench.sample(LINK, at=bench.now + 1, admin_up=admin_up, carrier_down=9)
    return bench.look(bench.now + 1)


def test_a_nic_in_a_pod_is_unknown_and_healthy_for_the_kubelet() -> None:
    bench = _moves(two_up().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3))
    assert (bench.health().state, bench.reasons()) == (State.UNKNOWN, ["link_unseen"])
    assert bench.health().allocatable is True
    assert bench.wait(7200).health().allocatable is True


def _without_vfs(bench: Bench) -> Bench:
    bench.functions = [replace(nic, num_vfs=0) for nic in bench.pfs]
    bench.sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3)
    return bench.look(1001)


def _set_down(bench: Bench) -> Bench:
    bench.sample(LINK, at=bench.now + 1, admin_up=0, carrier=0, carrier_down=4)
    return bench.set(admin_up=False, carrier=None, operstate="down")


def test_a_nic_without_vfs_that_is_set_down_to_be_moved_is_healthy_meanwhile() -> None:
    bench = _without_vfs(two_up())
    for _ in range(3):
        assert (_set_down(bench).health().state, bench.health().allocatable) == (State.HEALTHY, True)
        assert bench.wait(4.9).health().allocatable is True
        bench.links.pop(bench.pfs[0].pci_address)
        bench.functions[0] = replace(bench.pfs[0], netdev=None, num_vfs=0)
        assert (bench.look().health().state, bench.reasons()) == (State.UNKNOWN, ["link_unseen"])
        assert bench.wait(3600).health().allocatable is True, "it had left when its time was over"
        bench.functions[0] = replace(bench.pfs[0], num_vfs=0)
        bench.links[bench.pfs[0].pci_address] = link(bench.pfs[0])
        bench.sample(LINK, at=bench.now + 1, admin_up=1, carrier=1)
        assert bench.look().health().allocatable is True


def test_a_nic_without_vfs_that_stays_set_down_is_withdrawn_after_a_time_to_leave() -> None:
    bench = _set_down(_without_vfs(two_up()))
    assert bench.engine.due() == bench.now + 5
    assert bench.wait(4.9).health().allocatable is True
    assert bench.wait(0.1).reasons() == ["admin_down"]
    assert bench.health().allocatable is False
    assert bench.set(admin_up=True, carrier=True, operstate="up").health().allocatable is True
    assert _set_down(bench).health().allocatable is True, "each time"


def test_a_nic_that_was_set_down_before_the_agent_started_is_not_given_away_for_a_moment() -> None:
    bench = Bench(2, HealthSettings(expected=(ExpectedLinks(links=("eth1",)),)))
    bench.functions = [replace(nic, num_vfs=0) for nic in bench.pfs]
    bench.links[bench.pfs[0].pci_address] = replace(
        link(bench.pfs[0]), admin_up=False, carrier=None, operstate="down"
    )
    assert (bench.look().reasons(), bench.health().allocatable) == (["admin_down"], False)


def test_a_nic_with_vfs_that_is_set_down_is_withdrawn_at_once() -> None:
    assert _set_down(two_up().sample(LINK, at=1001, admin_up=1, carrier=1)).reasons() == ["admin_down"]


def test_a_nic_that_a_pod_gives_back_set_down_can_be_given_again_and_its_way_is_no_flap() -> None:
    bench = two_up().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3)
    for _ in range(6):
        _returns(_moves(bench), admin_up=False)
        assert bench.health().state is State.UNKNOWN
        assert bench.health().allocatable is True
    bench.set(admin_up=True, carrier=True, operstate="up", at=bench.now + 1)
    assert bench.sample(LINK, at=bench.now + 1, admin_up=1, carrier=1).health() == HEALTHY
    bench.set(admin_up=False, carrier=None, operstate="down", at=bench.now + 60)
    assert (bench.reasons()[0], bench.health().allocatable) == ("admin_down", False), "a person did this"


def test_a_nic_that_comes_back_and_is_set_up_has_time_to_train_its_link() -> None:
    bench = two_up().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3)
    for _ in range(2):
        _returns(_moves(bench), admin_up=False)
        bench.set(admin_up=True, carrier=False, operstate="down", at=bench.now + 1)
        assert bench.wait(15).health().allocatable is True
        assert bench.set(admin_up=True, carrier=True, operstate="up", at=bench.now + 1).health() == HEALTHY
    bench.set(carrier=False, operstate="down", at=bench.now + 60)
    assert (bench.reasons()[0], bench.health().allocatable) == ("carrier_down", False), (
        "a cable is lost at once"
    )


def test_a_nic_that_comes_back_without_its_cable_is_withdrawn() -> None:
    bench = two_up().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3)
    _returns(_moves(bench), admin_up=False)
    bench.set(admin_up=True, carrier=False, operstate="down", at=bench.now + 1)
    assert (bench.wait(25).reasons()[0], bench.health().allocatable) == ("carrier_down", False)


def test_a_restart_of_the_agent_does_not_take_back_a_nic_that_a_pod_gave_back_set_down() -> None:
    bench = two_up().sample(LINK, at=1001, admin_up=1, carrier=1, carrier_down=3)
    _returns(_moves(bench), admin_up=False)
    again = Bench(2)
    again.engine.restore(bench.engine.records())
    again.functions, again.links, again.now = bench.functions, bench.links, bench.now + 30
    assert (again.look().health().state, again.health().allocatable) == (State.UNKNOWN, True)
    again.set(admin_up=True, carrier=True, operstate="up", at=again.now + 1)
    again.set(admin_up=False, carrier=None, operstate="down", at=again.now + 60)
    assert (again.reasons()[0], again.health().allocatable) == ("admin_down", False)


def test_a_nic_without_carrier_is_not_given_again_by_a_way_to_another_namespace() -> None:
    bench = two_up().down()
    bench.links.pop(bench.pfs[0].pci_address)
    bench.functions[0] = replace(bench.pfs[0], netdev=None)
    assert bench.look().health().allocatable is False


def test_stale_data_is_a_reason_and_changes_no_device() -> None:
    bench = two_up()
    for i in range(60):
        bench.sample(PCIE, at=1000 + i, pcie_width=8, pcie_expected_width=16)
    assert bench.reasons() == ["pcie_width"]
    assert bench.health().allocatable is False
    bench.wait(3600)
    assert bench.reasons() == ["pcie_width", "data_stale"]
    assert bench.health().allocatable is False
    bench.sample(PCIE, pcie_width=16, pcie_expected_width=16)
    for _ in range(7):
        bench.sample(PCIE, at=bench.now + 10, pcie_width=16, pcie_expected_width=16)
    assert bench.health() == HEALTHY


def test_a_source_that_becomes_stale_starts_no_fault() -> None:
    bench = two_up().sample(PCIE, at=1001, pcie_width=16, pcie_expected_width=16)
    bench.sample(PCIE, at=1002, pcie_width=8, pcie_expected_width=16)
    bench.engine.judge(1002 + 400)
    assert "pcie_width" not in bench.wait(400).reasons()


# --- the gate ----------------------------------------------------------------------------------------------


def test_a_port_that_was_never_connected_is_unused() -> None:
    bench = Bench(2, up=False).look()
    assert bench.health().state is State.UNUSED
    assert bench.health().allocatable is False, "it has no link to offer"
    assert bench.reasons() == ["unused"]
    assert bench.up().health() == HEALTHY
    assert bench.down().health().state is State.DOWN, "it was up in this boot"
    assert bench.health(2).state is State.UNUSED


def test_an_expected_port_is_down_from_the_first_scan() -> None:
    bench = Bench(2, HealthSettings(expected=(ExpectedLinks(links=("eth1",)),)), up=False).look()
    assert [bench.health(n).state for n in (1, 2)] == [State.DOWN, State.UNUSED]


def test_one_down_link_among_eight_is_a_fault() -> None:
    bench = Bench(8)
    bench.down(4)
    assert bench.health(4).state is State.DOWN
    assert [bench.health(n).state for n in (1, 2, 3, 5, 6, 7, 8)] == [State.HEALTHY] * 7


def test_eight_links_that_were_never_up_are_unused() -> None:
    bench = Bench(8, up=False).look()
    assert {bench.health(n).state for n in range(1, 9)} == {State.UNUSED}


def test_a_port_is_compared_within_its_role_also_when_the_role_changes() -> None:
    bench = Bench(10)
    for number in (9, 10):
        bench.down(number)
    assert bench.health(9).state is State.DOWN, "eight of ten are up"
    address = [nic.pci_address for nic in bench.pfs]
    bench.engine.take_roles({pci: "compute" if i < 8 else "storage" for i, pci in enumerate(address)})
    assert bench.wait(0).health(9).state is State.UNUSED
    for number in range(2, 9):
        bench.down(number)
    assert bench.health(2).state is State.DOWN, "most of them were up in this boot"


def test_a_port_that_is_configured_unused_is_unused_even_after_it_was_up() -> None:
    bench = Bench(4, HealthSettings(unused=("eth1",))).look()
    assert bench.down().health().state is State.UNUSED


def test_the_nic_with_the_default_route_is_not_compared() -> None:
    bench = Bench(4, up=False)
    bench.set(1, carrier=True, operstate="up", default_route=True)
    assert {bench.health(n).state for n in (2, 3, 4)} == {State.UNUSED}


# --- speed -------------------------------------------------------------------------------------------------


def test_the_majority_sets_the_expected_speed() -> None:
    bench = Bench(8).look()
    bench.set(1, speed_mbps=200_000)
    bench.set(2, speed_mbps=100_000)
    assert bench.reasons() == []
    bench.wait(10)
    assert [bench.reasons(n) for n in (1, 2)] == [["speed_reduced"]] * 2
    assert "200G, limit 400G" in bench.health().reasons[0].detail
    assert bench.allocatable() == [False] * 2 + [True] * 6


def test_a_single_link_is_compared_with_its_best_and_the_configured_speed() -> None:
    bench = Bench(1, HealthSettings(guard=GuardSettings(share=1.0))).look()
    assert bench.set(speed_mbps=100_000).wait(10).reasons() == ["speed_reduced"]
    slow = Bench(1)
    assert slow.set(speed_mbps=100_000).wait(60).reasons() == []
    slow.engine.adopt(
        HealthSettings(
            expected=(ExpectedLinks(links=("eth*",), speed_mbps=400_000),), guard=GuardSettings(share=1.0)
        )
    )
    assert slow.wait(0).wait(10).reasons() == ["speed_reduced"]


# --- damping -----------------------------------------------------------------------------------------------


def flaps(bench: Bench, *counts: tuple[float, float]) -> Bench:
    for at, count in counts:
        bench.sample(LINK, at=at, carrier=1, carrier_down=count)
    return bench


def test_three_losses_suppress_a_link_until_its_penalty_has_decayed() -> None:
    bench = flaps(two_up(), (1001, 10), (1006, 12))
    assert bench.reasons() == []
    flaps(bench, (1011, 13))
    assert bench.reasons() == ["flapping"]
    assert bench.health().allocatable is False
    # 2994 points halve every ten minutes: 1000 after 949 s.
    for i in range(1, 190):
        bench.sample(LINK, at=1011 + 5 * i, carrier=1, carrier_down=13)
    assert bench.reasons() == ["flapping"]
    assert bench.wait(5).health() == HEALTHY


def test_a_link_is_suppressed_for_an_hour_at_most() -> None:
    bench = flaps(two_up(), (1001, 0), (1002, 2000))
    for i in range(1, 71):
        bench.sample(LINK, at=1002 + 51 * i, carrier=1, carrier_down=2000)
        assert "flapping" in bench.reasons()
    bench.wait(31)
    assert "flapping" not in bench.reasons()


def test_losses_before_the_start_of_the_agent_are_not_counted() -> None:
    assert flaps(two_up(), (1001, 4000), (1006, 4000)).reasons() == []


def test_a_counter_that_was_reset_is_a_new_baseline() -> None:
    bench = flaps(two_up(), (1001, 4000), (1006, 40))
    assert bench.engine.devices[bench.pfs[0].pci_address].losses.penalty.points == 0
    assert bench.reasons() == []


def test_five_losses_in_a_day_withdraw_a_link_until_an_hour_without_a_loss() -> None:
    bench = two_up()
    for i in range(6):
        bench.sample(LINK, at=1001 + 3000 * i, carrier=1, carrier_down=i)
    assert bench.reasons() == ["flapping_daily"]
    assert bench.health().state is State.DEGRADED
    assert bench.health().allocatable is False
    assert [reason.detail for reason in bench.health().reasons] == [
        "PF 0000:01:00.0 (eth1): 5 losses, limit 5 losses"
    ]
    bench.sample(LINK, at=bench.now + 3590, carrier=1, carrier_down=5)
    assert bench.reasons() == ["flapping_daily"]
    assert bench.wait(11).health() == HEALTHY
    bench.sample(LINK, at=bench.now + 20, carrier=1, carrier_down=6)
    assert bench.reasons() == ["flapping_daily"], "one more loss within the day"


# --- over a restart ----------------------------------------------------------------------------------------


def restarted(bench: Bench) -> Bench:
    after = Bench(len(bench.pfs), bench.engine.settings)
    after.now, after.links = bench.now, bench.links
    after.engine.restore(bench.engine.records())
    return after


def test_a_restart_during_suppression_keeps_the_penalty() -> None:
    bench = flaps(two_up(), (1001, 10), (1002, 13))
    after = restarted(bench)
    after.now = 1100
    assert after.look().reasons() == ["flapping"]
    assert after.health().allocatable is False
    flaps(after, (1101, 14))
    points = after.engine.devices[after.pfs[0].pci_address].losses.penalty.points
    assert points > 3500, "the losses during the restart count"


HOURS = 10 * 3600


@pytest.mark.parametrize("counter", ["carrier_down", "link_down_events"])
def test_losses_while_no_agent_ran_are_spread_over_that_time(counter: str) -> None:
    """Four losses in ten hours are no flapping, though one reading shows them all."""
    bench = two_up()
    for at in (1001, 1011):
        bench.sample(
            LINK, at=at, carrier=1, carrier_down=10, **({} if counter == "carrier_down" else {counter: 10})
        )
    after = restarted(bench)
    after.look(at=1011 + HOURS)
    after.sample(LINK, at=1012 + HOURS, carrier=1, **({"carrier_down": 14} | {counter: 14}))
    assert after.reasons() == []


def test_a_change_that_was_seen_before_the_restart_explains_losses_that_were_read_after_it() -> None:
    """They may have been lost before the agent ended, soon after the change."""
    bench = two_up()
    for at in (1001, 1011):
        bench.sample(LINK, at=at, carrier=1, carrier_down=10)
    bench.set(mtu=1500)
    after = restarted(bench).look(at=1900)
    after.sample(LINK, at=1901, carrier=1, carrier_down=14)
    assert after.reasons() == []


def test_losses_of_a_short_restart_count_at_once() -> None:
    bench = two_up()
    for at in (1001, 1011):
        bench.sample(LINK, at=at, carrier=1, carrier_down=10)
    after = restarted(bench).look(at=1021)
    after.sample(LINK, at=1022, carrier=1, carrier_down=14)
    assert after.reasons() == ["flapping"]


def test_a_restart_during_a_hold_keeps_its_end() -> None:
    after = restarted(two_up().down(at=1010).up(at=1020)).look(at=1050)
    assert after.allocatable() == [False, True]
    assert after.wait(30).allocatable() == [True, True]


def test_after_a_restart_a_link_that_was_up_in_this_boot_is_evaluated() -> None:
    after = restarted(two_up().down(at=1010)).look(at=1050)
    assert after.health().state is State.DOWN


# --- the guard ---------------------------------------------------------------------------------------------


def test_one_witness_withdraws_at_most_half_of_the_devices() -> None:
    bench = Bench(8).look()
    for number in range(1, 9):
        bench.down(number)
    assert bench.allocatable() == [False] * 4 + [True] * 4
    assert bench.health(5).state is State.DOWN, "the guard does not change the state"
    assert bench.reasons(5) == ["carrier_down", "guard"]
    for number in range(1, 9):
        bench.sample(LINK, number, carrier=0, carrier_down=1)
    assert bench.allocatable() == [False] * 8, "two sources agree"
    assert bench.reasons(5) == ["carrier_down"]


def test_the_guard_delays_and_never_forbids() -> None:
    bench = Bench(1).look().down(at=1010)
    assert bench.health().allocatable is True
    assert bench.wait(59).health().allocatable is True
    assert bench.wait(1).health().allocatable is False


def test_a_fault_that_ends_while_the_guard_holds_it_back_never_withdraws() -> None:
    bench = Bench(1).look().down(at=1010).up(at=1030)
    assert bench.wait(90).health() == HEALTHY
    assert [health.allocatable for health in bench.vfs()] == [True, True]


def test_the_guard_can_be_switched_off() -> None:
    bench = Bench(8, HealthSettings(guard=GuardSettings(share=1.0))).look()
    for number in range(1, 9):
        bench.down(number)
    assert bench.allocatable() == [False] * 8


def test_a_device_that_returned_leaves_its_share_to_others() -> None:
    bench = Bench(2, with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=0))).look()
    for _ in range(5):
        assert bench.down(1).allocatable() == [False, True]
        assert bench.up(1).down(2).allocatable() == [True, False]
        bench.up(2)


# --- several reasons ---------------------------------------------------------------------------------------


def test_of_two_faults_one_clears_and_the_other_stays() -> None:
    bench = two_up()
    for i in range(20):
        bench.sample(PCIE, at=1000 + i, pcie_width=8, pcie_expected_width=16)
    bench.down()
    assert bench.reasons() == ["carrier_down", "pcie_width"]
    assert bench.health().state is State.DOWN
    bench.up()
    for _ in range(7):
        bench.sample(PCIE, at=bench.now + 10, pcie_width=8, pcie_expected_width=16)
    assert bench.reasons() == ["pcie_width"]
    assert bench.health().state is State.DEGRADED


def test_a_vf_with_a_fault_of_its_own_is_down_alone() -> None:
    bench = two_up()
    bench.functions = [f for f in bench.functions if f != vf(bench.pfs[0], 1)]
    bench.look()
    assert [health.state for health in bench.vfs()] == [State.HEALTHY, State.DOWN]
    bench.down()
    assert [reason.key for reason in bench.vfs()[1].reasons] == ["device_missing", "carrier_down"]


def test_a_pf_that_does_not_answer_for_30_s_is_down_until_it_answers() -> None:
    bench = two_up()
    bench.hanging.add(bench.pfs[0].pci_address)
    assert bench.look().wait(29).health().allocatable
    assert bench.wait(1).reasons() == ["not_answering"]
    assert [health.allocatable for health in bench.vfs()] == [False, False]
    assert bench.health(2) == HEALTHY
    bench.hanging.clear()
    assert bench.look().health() == HEALTHY


def test_a_missing_pf_is_down_at_once_and_returns_after_its_hold() -> None:
    bench = two_up()
    bench.functions = [f for f in bench.functions if f.pci_address[:7] != "0000:01"]
    kept = bench.links.pop(bench.pfs[0].pci_address)
    assert bench.look().reasons() == ["device_missing"]
    assert [health.allocatable for health in bench.vfs()] == [False, False]
    bench.functions += [bench.pfs[0], vf(bench.pfs[0], 0), vf(bench.pfs[0], 1)]
    bench.links[kept.pci_address] = kept
    assert bench.look().wait(59).health().allocatable is False
    assert bench.wait(1).health() == HEALTHY


# --- flow control, RDMA ------------------------------------------------------------------------------------


def test_network_pauses_leave_the_device_allocatable() -> None:
    bench = two_up()
    for i in range(241):
        bench.take(DRIVER, {"prio_rx_pause_seconds/3": 0.4 * 15 * i}, at=1000 + 15 * i)
    assert bench.reasons() == ["network_paused"]
    assert bench.health().state is State.HEALTHY, "a warning lessens no state"
    assert bench.health().allocatable is True
    assert bench.health().reasons[0].warning is True
    assert "priority 3" in bench.health().reasons[0].detail


def test_rnr_retries_alone_are_no_fault() -> None:
    bench = two_up()
    for i in range(100):
        bench.sample(RDMA, at=1000 + 15 * i, rdma_rnr_retries=1e6 * i, rdma_port_active=1, roce_v2_gids=2)
    assert bench.health() == HEALTHY


def test_a_32_bit_counter_that_wraps_is_no_fault() -> None:
    bench = two_up()
    values = [2**32 - 50, 2**32 - 20, 10, 40]
    for i in range(40):
        value = values[i] if i < 4 else 40 + i
        bench.sample(RDMA, at=1000 + 15 * i, rdma_ack_timeouts=value)
    assert bench.health() == HEALTHY


# --- cabling -----------------------------------------------------------------------------------------------


def neighbor(port: str, *, stale: bool = False) -> Neighbor:
    return Neighbor(
        "eth1",
        Identifier("mac", "02:00:00:00:00:99"),
        Identifier("ifname", port),
        "leaf-1.example.com",
        stale=stale,
    )


def test_a_link_at_another_port_than_planned_is_miscabled_after_a_minute() -> None:
    bench = two_up()
    bench.engine.take_plan({"eth1": Port("leaf-1", "Ethernet1/1")})
    bench.engine.take_neighbors([neighbor("Ethernet1/2")])
    assert bench.wait(0).wait(59).reasons() == []
    assert bench.wait(1).reasons() == ["miscabled"]
    assert bench.health().state is State.MISCABLED
    assert bench.health().allocatable is True
    assert "leaf-1.example.com Ethernet1/2, planned leaf-1 Ethernet1/1" in bench.health().reasons[0].detail
    bench.engine.take_neighbors([neighbor("ethernet1/1")])
    assert bench.wait(0).health() == HEALTHY


def test_a_stale_neighbor_is_no_evidence() -> None:
    bench = two_up()
    bench.engine.take_plan({"eth1": Port("leaf-1", "Ethernet1/1")})
    bench.engine.take_neighbors([neighbor("Ethernet1/2", stale=True)])
    assert bench.wait(600).health() == HEALTHY
    bench.engine.take_neighbors([neighbor("Ethernet1/2")])
    bench.wait(0).wait(60)
    bench.engine.take_neighbors([neighbor("Ethernet1/2", stale=True)])
    assert bench.wait(600).reasons() == ["miscabled"], "nor does it acquit"


# --- in general --------------------------------------------------------------------------------------------


def test_changed_rules_apply_at_once() -> None:
    bench = two_up().down(at=1010).up(at=1020)
    bench.engine.adopt(with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=0)))
    assert bench.wait(0).health() == HEALTHY
    bench.down()
    bench.engine.adopt(with_rules(RuleSettings(rule="carrier_down", enabled=False)))
    assert bench.wait(0).health() == HEALTHY


def test_every_rule_is_explained_with_its_threshold() -> None:
    bench = flaps(two_up(), (1001, 0), (1002, 3)).down(at=1010).up(at=1020)
    bench.wait(10)
    first = bench.explained()[0]
    assert (first.name, first.state, first.allocatable) == ("eth1", State.DOWN, False)
    rules = {rule.rule: rule for rule in first.rules}
    assert list(rules) == [rule.key for rule in NIC_RULES]
    carrier, flapping = rules["carrier_down"], rules["flapping"]
    assert (carrier.phase, carrier.in_s, carrier.clears) == ("clearing", 50.0, "when it ends, for 1 min")
    assert (flapping.phase, flapping.threshold, flapping.clears) == (
        "active",
        "≥ 2500 points",
        "≤ 1000 points",
    )
    assert flapping.measured is not None
    assert flapping.measured.startswith("penalty 29")
    assert rules["pcie_width"].phase == "unknown"


names = st.sampled_from(["carrier", "admin_up", "carrier_down", "crc_errors", "speed_mbps", "nonsense"])
events = st.one_of(
    st.tuples(st.just("up"), st.integers(1, 3), st.none()),
    st.tuples(st.just("down"), st.integers(1, 3), st.none()),
    st.tuples(st.just("wait"), st.floats(0, 900), st.none()),
    st.tuples(st.just("sample"), st.integers(1, 3), st.dictionaries(names, st.floats() | st.integers())),
)


@given(st.lists(events, max_size=30))
def test_any_history_gives_consistent_health(history: list[Any]) -> None:
    bench = Bench(3).look()
    for step, number, values in history:
        if step == "wait":
            bench.wait(number)
        elif step == "sample":
            bench.take(LINK, values, number)
        else:
            getattr(bench, step)(number)
        for function in bench.judged:
            health = function.health
            assert health.state in (State.HEALTHY, State.DOWN, State.DEGRADED, State.UNUSED, State.UNKNOWN)
            assert (health.state is State.HEALTHY) == all(reason.warning for reason in health.reasons)
            assert len({reason.key for reason in health.reasons}) == len(health.reasons)
        again = bench.engine.judge(bench.now)
        assert again == bench.judged, "the same question has the same answer"
        due = bench.engine.due()
        assert due is None or due > bench.engine.now


def test_an_empty_node_and_a_pf_without_a_link_are_evaluated() -> None:
    engine = NicJudge()
    assert engine.judge(1.0) == ()
    assert engine.due() is None
    functions, faults = find_faults([pf(1)], [])
    engine.take_facts(functions, [], faults)
    assert engine.judge(2.0)[0].health.state is State.UNKNOWN


@one_item("rule", NIC_RULES, ids=lambda rule: rule.key)
def test_no_default_clears_looser_than_it_enters(rule: Any) -> None:
    assert not rule.looser
    assert rule.meaning.endswith(".")
    assert rule.origin, "every default names its origin"
    assert rule.clear_for_s <= 3600


@pytest.mark.parametrize("half_life", [1.0, 3.5, 600.0])
def test_a_penalty_is_finite_with_any_half_life(half_life: float) -> None:
    bench = flaps(
        Bench(2, with_rules(RuleSettings(rule="flapping", window_seconds=half_life))).look(),
        (1001, 0),
        (1002, 2000),
    )
    assert "flapping" in bench.reasons()


def test_a_speed_that_changes_without_a_loss_is_that_of_the_sample() -> None:
    bench = Bench(3, with_rules(guard=GuardSettings(share=1.0))).look()
    for i in range(4):
        bench.sample(Source.MODES, at=1000 + 5 * i, speed_mbps=200_000)
    assert bench.reasons() == ["speed_reduced"]
