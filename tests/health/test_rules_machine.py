"""Any history of samples and facts through ``NicJudge``: each withdrawal has evidence, and clean evidence ends it.

The machine keeps its own account of the events. It uses no part of the rules, only the sentences of docs/health.md.
"""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY
from nodeagent.health.hold import Hold
from nodeagent.health.rules import NIC_RULES
from nodeagent.measurements.sample import Source
from tests.support.examples import examples
from tests.support.judged_machine import Bench

ONES = float(2**64 - 1)
SETTLE_S = 60.0
UNREAD_S = 30.0
"""The losses of a longer time without a reading may have been at its end."""
ERRORS = ("symbol_errors", "crc_errors", "pause_storm_errors")
CHANGES = ("admin", "mtu", "rings", "channels", "pause")
SOUND = {"phy_rx_bits": 4e11, "phy_rx_bytes": 2e10, "prio_tx_pause_seconds/3": 0.0}
"""The increase of each counter of a busy and sound NIC per second."""


class NicHistory(RuleBasedStateMachine):
    """One PF, its neighbor without faults, and the counters of its hardware."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(2)
        self.losses = {"carrier_down": 3.0, "link_down_events": 5.0}
        self.errors = dict.fromkeys(ERRORS, 100.0)
        self.moving = dict.fromkeys(SOUND, 0.0)
        self.changes = dict.fromkeys(CHANGES, 0.0)
        self.mtu, self.vfs, self.up, self.admin_up = 9000.0, 2, True, True
        self.phy = False
        self.lost_at: list[float] = []
        """The losses that no change explains, by our own account."""
        self.changed_at = -math.inf
        self.trained_at = -math.inf
        self.errors_at = dict.fromkeys(ERRORS, -math.inf)
        self.paused_at = self.slow_at = self.narrow_at = -math.inf
        self.down_at = -math.inf
        self.read_at = self.driver_read_at = 0.0
        self.kept: set[str] = set()
        """The faults that stood while nothing was read, until they end: one loss then is enough to keep them."""
        self.width, self.speed, self.pausing = 16.0, 32.0, False
        self.bench.look()
        self.read_changes()
        self.pass_time(90)

    @property
    def now(self) -> float:
        return self.bench.now

    @property
    def holds(self) -> dict[str, Hold]:
        return self.bench.engine.devices[self.bench.pfs[0].pci_address].holds

    def faults(self) -> set[str]:
        return {key for key in self.bench.reasons() if key != "data_stale"}

    def starting(self) -> set[str]:
        """Faults whose time to enter runs."""
        return {key for key, hold in self.holds.items() if not hold.active and hold.since is not None}

    # --- the readers ----------------------------------------------------------------------------------

    def look(self) -> None:
        self.bench.functions[0] = replace(self.bench.functions[0], num_vfs=self.vfs)
        self.bench.set(
            at=self.now,
            admin_up=self.admin_up,
            carrier=self.up if self.admin_up else None,
            operstate="up" if self.up and self.admin_up else "down",
        )

    def read_link(self, at: float) -> None:
        values = {"carrier_down": self.losses["carrier_down"], "mtu_bytes": self.mtu}
        values |= {"admin_up": float(self.admin_up)}
        values |= {"carrier": float(self.up)} if self.admin_up else {}
        self.bench.take(Source.LINK, values, at=at)
        self.read_at = at

    def read_driver(self, at: float, **wrong: float) -> None:
        if self.phy and at - self.driver_read_at > UNREAD_S:
            self.lost_at = [at if lost > self.driver_read_at else lost for lost in self.lost_at]
        self.driver_read_at = at
        values = {**self.errors, **self.moving}
        values |= {"link_down_events": self.losses["link_down_events"]} if self.phy else {}
        self.bench.take(Source.DRIVER, {**values, **wrong} if wrong else values, at=at)

    def read_changes(self) -> None:
        """The agent counts the notices from its start on, and reports zeros then."""
        self.bench.take(
            Source.ADMINISTRATION, {f"administration/{name}": n for name, n in self.changes.items()}
        )

    def read_pcie(self, at: float) -> None:
        self.bench.take(
            Source.PCIE,
            {
                "pcie_width": self.width,
                "pcie_expected_width": 16.0,
                "pcie_gts": self.speed,
                "pcie_expected_gts": 32.0,
            },
            at=at,
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass with readings every 5 and 15 s, as the agent makes them."""
        steps = int(seconds // 5)
        for step in range(1, steps + 1):
            at = self.now + 5
            self.bench.wait(5)
            for name, rate in SOUND.items():
                self.moving[name] += 5 * rate
            if self.pausing:
                self.moving["prio_tx_pause_seconds/3"] += 4.95
                self.paused_at = at
            self.note(at)
            self.read_link(at)
            if step % 3 == 0:
                self.read_driver(at)
                self.read_pcie(at)

    def note(self, at: float) -> None:
        self.slow_at = at if self.speed < 32 else self.slow_at
        self.narrow_at = at if self.width < 16 else self.narrow_at
        self.down_at = at if not (self.up and self.admin_up) else self.down_at

    def note_losses(self, times: int) -> None:
        """They are read 5 s later, those of the PHY with the next reading of the driver. By then the time to settle may
        be over."""
        if self.phy or self.now + 5 > self.changed_at + SETTLE_S:
            self.lost_at += [self.now] * times

    # --- the incidents --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([5.0, 15.0, 65.0, 300.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from([40.0, 200.0, 4000.0]))
    def read_nothing(self, seconds: float) -> None:
        """The readers hang: an unknown value neither starts nor ends a fault. The last value is known until it is
        stale, so a time to enter or to clear that runs may end, and lost carriers may be long ago by then."""
        holds = self.holds
        starting = self.starting()
        ending = {key for key, hold in holds.items() if hold.good_since is not None}
        ending |= {rule.key for rule in NIC_RULES if rule.decays}
        before = self.faults()
        self.bench.wait(seconds)
        after = self.faults()
        assert after - before <= starting
        assert before - after <= ending
        self.kept = after
        for name, rate in SOUND.items():
            self.moving[name] += seconds * rate
        self.note(self.now)
        self.paused_at = self.now if self.pausing else self.paused_at

    @precondition(lambda self: self.up and self.admin_up)
    @rule(times=st.integers(1, 4))
    def flap(self, times: int) -> None:
        """Losses that are over before sysfs is read."""
        self.losses = {name: count + times for name, count in self.losses.items()}
        self.note_losses(times)
        self.trained_at = self.now
        self.pass_time(5)

    @precondition(lambda self: self.admin_up)
    @rule(up=st.booleans())
    def change_carrier(self, up: bool) -> None:
        if self.up and not up:
            self.losses = {name: count + 1 for name, count in self.losses.items()}
            self.note_losses(1)
        self.trained_at = self.now
        self.up = up
        self.note(self.now)
        self.look()
        if not up:
            assert not self.bench.health().allocatable, (
                "a lost carrier withdraws at once, whatever was changed"
            )
        self.pass_time(5)

    @rule(change=st.sampled_from([*CHANGES[1:], "vfs"]), losses=st.integers(1, 4), late=st.booleans())
    def administer(self, change: str, losses: int, late: bool) -> None:
        """The driver drops the carrier; the PHY does not lose its link. The notice comes before or after. If nothing
        was read for a while, losses without a notice may have come at any time since."""
        self.losses["carrier_down"] += losses
        unexplained = losses if late and self.now > self.read_at + 5 else 0
        if late:
            self.pass_time(5)
        if change == "vfs":
            self.vfs = 6 - self.vfs
            self.look()
        else:
            self.changes[change] += 1
            self.mtu = 10_500 - self.mtu if change == "mtu" else self.mtu
            self.read_changes()
        self.changed_at = self.now
        self.lost_at = [at for at in self.lost_at if at < self.now - SETTLE_S] + [self.now] * unexplained
        self.trained_at = self.now
        self.pass_time(5)

    @rule(
        names=st.sets(st.sampled_from([*ERRORS, "link_down_events", "phy_rx_bits"]), min_size=1),
        value=st.sampled_from([ONES, 0.0, float(2**32 - 1), math.nan, -1.0]),
    )
    def read_garbage(self, names: set[str], value: float) -> None:
        before = set(self.bench.reasons()) | self.starting()
        wrong = {name: value for name in names if self.phy or name != "link_down_events"}
        self.bench.wait(15)
        for name, rate in SOUND.items():
            self.moving[name] += 15 * rate
        true = self.reasons_by_true_values()
        self.read_driver(self.now, **wrong)
        self.read_link(self.now)
        assert self.faults() <= before | true, "garbage starts no fault"
        self.pass_time(15)

    def reasons_by_true_values(self) -> set[str]:
        """The faults if the next reading has no garbage: it may be the first one after a loss."""
        bench, self.bench = self.bench, deepcopy(self.bench)
        self.read_driver(self.now)
        self.read_link(self.now)
        reasons, self.bench = set(self.bench.reasons()), bench
        return reasons

    @rule()
    def reset_counters(self) -> None:
        """The driver is loaded again: counters begin at a small value."""
        before = set(self.bench.reasons()) | self.starting()
        self.errors = dict.fromkeys(ERRORS, 2.0)
        self.losses = {"carrier_down": 0.0, "link_down_events": 0.0}
        self.moving = dict.fromkeys(SOUND, 0.0)
        self.bench.wait(1)
        self.read_driver(self.now)
        self.read_link(self.now)
        assert self.faults() <= before, "a reset starts no fault"

    @rule(name=st.sampled_from(ERRORS))
    def meet_errors(self, name: str) -> None:
        self.errors[name] += 1e5
        self.errors_at[name] = self.now
        self.pass_time(15)

    @rule(width=st.sampled_from([8.0, 16.0]), speed=st.sampled_from([16.0, 32.0]))
    def change_pcie(self, width: float, speed: float) -> None:
        self.width, self.speed = width, speed
        self.pass_time(30)

    @rule(pausing=st.booleans())
    def pause_switch(self, pausing: bool) -> None:
        self.pausing = pausing
        self.pass_time(30)

    @precondition(lambda self: not self.phy)
    @rule()
    def count_by_phy(self) -> None:
        """The driver reports the PHY's counter from now on."""
        self.phy = True
        self.pass_time(15)

    @rule(seconds=st.sampled_from([1.0, 20.0, 300.0]), vfs=st.booleans())
    def restart(self, seconds: float, vfs: bool) -> None:
        """A new agent with the stored records; ``vfs apply`` runs before it."""
        before = {key for key in self.bench.reasons() if key not in ("data_stale", "guard")}
        records = self.bench.engine.records()
        old = self.bench
        self.bench = Bench(2, settled=False)
        self.bench.functions, self.bench.links = old.functions, old.links
        self.bench.engine.restore(records)
        self.bench.now = old.now + seconds
        if vfs:
            self.vfs = 6 - self.vfs
            self.losses["carrier_down"] += 2
            self.changed_at = self.bench.now
            self.lost_at = [at for at in self.lost_at if at < self.bench.now - SETTLE_S]
        for name, rate in SOUND.items():
            self.moving[name] += seconds * rate
        self.trained_at = self.bench.now
        self.note(self.now)
        self.look()
        self.changes = dict.fromkeys(CHANGES, 0.0)
        self.read_changes()
        after = set(self.bench.reasons())
        assert after <= before, "a restart starts no fault"
        self.pass_time(15)

    # --- what must hold -------------------------------------------------------------------------------

    def evidence(self) -> dict[str, bool]:
        """Each reason that withdraws, and whether something in this history may have caused it."""
        day = [at for at in self.lost_at if at > self.read_at - 86_400 - 5]
        hour = [at for at in day if at > self.read_at - 3600 - 5]
        return {
            "carrier_down": self.now - max(self.down_at, self.trained_at) <= 60 + 35,
            "admin_down": not self.admin_up,
            "flapping": len(hour) >= (1 if "flapping" in self.kept else 2),
            "flapping_daily": len(day) >= 5,
            "post_fec_errors": self.errors_at["symbol_errors"] > -math.inf,
            "pause_storm": self.errors_at["pause_storm_errors"] > -math.inf,
            "pause_source": self.paused_at > -math.inf,
            "pcie_width": self.narrow_at > -math.inf,
            "pcie_speed": self.slow_at > -math.inf,
        }

    @invariant()
    def a_withdrawn_device_has_evidence(self) -> None:
        health = self.bench.health()
        self.kept &= set(self.bench.reasons())
        evidence = self.evidence()
        for reason in health.reasons:
            assert evidence.get(reason.key, True), (reason, self.lost_at, self.changed_at, self.now)
        if not health.allocatable:
            assert any(evidence.get(reason.key) for reason in health.reasons)
        assert self.bench.health(2).allocatable

    def teardown(self) -> None:
        """Clean evidence ends every fault: within an hour and the longest hold, those of a day too."""
        self.up = self.admin_up = True
        self.width, self.speed, self.pausing = 16.0, 32.0, False
        self.look()
        self.pass_time(3600 + 1200)
        assert self.bench.health() == HEALTHY


TestNicHistory = pytest.mark.timeout(180)(NicHistory.TestCase)
TestNicHistory.settings = settings(
    max_examples=examples(8),
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@pytest.mark.parametrize("garbage", [float(2**32 - 1), ONES, 1e12, math.nan, -1.0])
def test_losses_that_the_kernel_counted_are_not_counted_again_after_garbage_of_the_phy(
    garbage: float,
) -> None:
    """Found by the machine: three losses were six. While the driver was not read, the kernel's counter counted. A value
    of garbage then passed for the return of the PHY's counter, and its next true value contained the same losses."""
    history = NicHistory()
    history.count_by_phy()
    history.read_nothing(200)
    history.flap(3)
    history.a_withdrawn_device_has_evidence()
    history.read_garbage({"link_down_events"}, garbage)
    history.a_withdrawn_device_has_evidence()
    assert history.bench.engine.devices[history.bench.pfs[0].pci_address].losses.within_day(history.now) == 3
    history.flap(1)
    history.pass_time(15)
    history.a_withdrawn_device_has_evidence()
    history.teardown()


def test_a_change_explains_losses_that_were_spread_over_a_time_without_readings() -> None:
    """Found by the machine: "6 losses" on three. The notice of the change came after the losses were read. They had
    been spread over the hour without a reading, so that the change explained one of four."""
    history = NicHistory()
    for happens in (
        partial(history.flap, 1),
        partial(history.read_nothing, 4000),
        partial(history.flap, 4),
        partial(history.administer, "pause", losses=2, late=True),
        partial(history.read_garbage, {"link_down_events", "phy_rx_bits"}, float(2**32 - 1)),
        partial(history.flap, 4),
        partial(history.pass_time, 300),
        partial(history.flap, 2),
    ):
        happens()
        history.a_withdrawn_device_has_evidence()
    history.teardown()


def test_a_restart_keeps_when_losses_may_have_been() -> None:
    """Found by the machine: "6 losses" on four. Three losses were spread over a time without readings. A change after a
    restart explained one of them: the record had only the times over which they had been spread."""
    history = NicHistory()
    for happens in (
        partial(history.flap, 4),
        partial(history.read_nothing, 4000),
        history.count_by_phy,
        partial(history.read_nothing, 4000),
        partial(history.restart, 20, vfs=False),
        partial(history.read_nothing, 4000),
        partial(history.flap, 3),
        partial(history.restart, 20, vfs=True),
    ):
        happens()
        history.a_withdrawn_device_has_evidence()
    history.teardown()


def test_losses_that_are_read_late_may_have_been_late() -> None:
    """Found by the machine: the kernel counted two losses at once, the PHY's counter was not read before an hour had
    passed. They may have been at its end, so they keep the fault of three earlier ones."""
    history = NicHistory()
    for happens in (
        history.count_by_phy,
        partial(history.read_nothing, 200),
        partial(history.flap, 3),
        partial(history.restart, 20, vfs=False),
        partial(history.flap, 2),
        partial(history.read_nothing, 4000),
        partial(history.pass_time, 15),
    ):
        happens()
        history.a_withdrawn_device_has_evidence()
    history.teardown()
