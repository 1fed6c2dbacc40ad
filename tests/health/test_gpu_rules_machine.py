"""Any history of events, readings and measured values through ``GpuJudge``: each reason has evidence and ends with it.

The machine keeps its own account of the evidence. It uses no part of the rules, only the sentences and times of
docs/gpu-health.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodeagent.facts.model import HEALTHY
from nodeagent.host.gpu_driver import GpuEvent, GpuVitals
from tests.support.examples import examples
from tests.support.judged_gpus import GpuBench, gpu, measured

EVERY_S = 15.0
CLEAR_S, XID_CLEAR_S = 600.0, 600.0
UNREADABLE_S = 30.0
FAULTS: dict[str, tuple[dict[str, float], float, float]] = {
    "remap_failed": ({"gpu_row_remap_failed": 1}, 0, CLEAR_S),
    "remap_limit": ({"gpu_remapped_uncorrectable": 513}, 0, CLEAR_S),
    "sram_uncorrectable": ({"gpu_ecc_uncorrectable_sram": 1}, 0, CLEAR_S),
    "remap_pending": ({"gpu_row_remap_pending": 1}, 0, CLEAR_S),
    "nvlink_down": ({"gpu_nvlink_up/17": 0}, 30, CLEAR_S),
    "fabric_unhealthy": ({"gpu_fabric_route_unhealthy": 1}, 30, CLEAR_S),
    "fabric_not_ready": ({"gpu_fabric_not_ready": 1}, 30, 30.0),
    "fabric_failed": ({"gpu_fabric_failed": 1}, 30, 30.0),
    "fabric_misconfigured": ({"gpu_fabric_misconfigured": 1}, 30, 30.0),
    "pcie_width": ({"gpu_pcie_width": 8}, 10, 60.0),
    "pcie_speed": ({"gpu_pcie_generation": 1}, 900, 60.0),
}
"""By reason: the bad value, how long it must last, and how long it must be good again."""
XIDS = {79: "fatal", 48: "fatal", 63: "watch", 31: "ignored"}
REPEATS, INCIDENT_S, DAY_S = 3, 300.0, 86_400.0
"""An XID is repeated if so many of its incidents began within a day. All of these XIDs count: 31, which programs cause
too, because the other GPU does not report it."""
COUNTERS = ("gpu_nvlink_crc_errors", "gpu_nvlink_replays")
ONES = float(2**64 - 1)


@dataclass
class Account:
    """The evidence of one measured fault in this history."""

    bad_s: float = -math.inf
    """For how long it was read as bad without a break; negative: it is good."""
    good_s: float = math.inf
    entered: bool = False


class GpuHistory(RuleBasedStateMachine):
    """One GPU, its neighbor without faults, and the driver that reads both every 15 s."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = GpuBench()
        self.bad: set[str] = set()
        self.account = {key: Account() for key in FAULTS}
        self.xid_at: dict[int, float] = {}
        self.incidents: dict[int, list[float]] = {xid: [] for xid in XIDS}
        self.listed, self.lost, self.failing = True, False, False
        self.action = "none"
        self.trouble_at = -math.inf
        self.failing_s = -math.inf
        self.counters = dict.fromkeys(COUNTERS, 1000.0)
        self.measured_before = False
        self.tick()

    @property
    def now(self) -> float:
        return self.bench.now

    def tick(self, **wrong: float | None) -> None:
        """Read and measure both GPUs. A GPU that is not listed, or whose calls fail, has no measured values."""
        self.bench.now += EVERY_S
        reading = gpu(
            lost=self.lost,
            recovery_action=None if self.failing else self.action,
            fault="the driver reports an unknown error" if self.failing else None,
        )
        measures = self.listed and not self.lost and not self.failing
        changes = {name: value for key in self.bad for name, value in FAULTS[key][0].items()}
        values = measured(**(changes | self.counters | wrong))
        vitals = [GpuVitals("GPU-1", measured())]
        self.bench.take(
            self.now,
            readings=[reading, gpu(1)] if self.listed else [gpu(1)],
            vitals=[GpuVitals("GPU-0", values), *vitals] if measures else vitals,
        )
        self.note(measures)

    def note(self, measures: bool) -> None:
        if not measures or self.action != "none":
            self.trouble_at = self.now
        self.failing_s = max(0.0, self.failing_s + EVERY_S) if self.failing else -math.inf
        step = EVERY_S if self.measured_before else 0.0
        for key, account in self.account.items() if measures else ():
            _, enter_s, clear_s = FAULTS[key]
            if key in self.bad:
                account.bad_s, account.good_s = max(0.0, account.bad_s + step), 0.0
                account.entered = account.entered or account.bad_s >= enter_s
            else:
                account.bad_s = -math.inf
                account.good_s += step
                account.entered = account.entered and account.good_s <= clear_s + EVERY_S
        self.measured_before = measures

    # --- what happens ---------------------------------------------------------------------------------

    @rule(readings=st.sampled_from([1, 3, 20, 70]))
    def wait(self, readings: int) -> None:
        for _ in range(readings):
            self.tick()

    @rule(key=st.sampled_from(sorted(FAULTS)), readings=st.sampled_from([1, 2, 3, 60, 61, 62]))
    def go_bad(self, key: str, readings: int) -> None:
        self.bad.add(key)
        self.wait_for(readings)

    @rule(key=st.sampled_from(sorted(FAULTS)), readings=st.sampled_from([1, 4, 39, 40, 41, 42]))
    def repair(self, key: str, readings: int) -> None:
        self.bad.discard(key)
        self.wait_for(readings)

    @rule(key=st.sampled_from(["nvlink_down", "fabric_unhealthy"]))
    def flap(self, key: str) -> None:
        """A bad value that is shorter than its time to enter, and comes again and again."""
        self.bad.discard(key)
        self.wait_for(1)
        before = key in self.bench.reasons()
        for _ in range(5):
            self.bad.add(key)
            self.wait_for(2)
            self.bad.discard(key)
            self.wait_for(1)
            assert before or key not in self.bench.reasons()

    @rule(xid=st.sampled_from(sorted(XIDS)))
    def meet_xid(self, xid: int) -> None:
        self.bench.take(self.now, events=[GpuEvent("GPU-0", xid)])
        self.xid_at[xid] = self.now
        if not self.incidents[xid] or self.now - self.incidents[xid][-1] >= INCIDENT_S:
            self.incidents[xid].append(self.now)
        if XIDS[xid] == "fatal":
            assert not self.bench.health().allocatable, "a fatal XID withdraws at once"

    @rule(xid=st.sampled_from(sorted(XIDS)), uuid=st.sampled_from([None, "", "GPU-77"]))
    def meet_xid_of_an_unknown_gpu(self, xid: int, uuid: str | None) -> None:
        before = self.bench.healths()
        self.bench.take(self.now, events=[GpuEvent(uuid, xid)])
        assert self.bench.healths() == before

    @rule(listed=st.booleans(), lost=st.booleans(), readings=st.sampled_from([1, 5]))
    def lose(self, listed: bool, lost: bool, readings: int) -> None:
        self.listed, self.lost = listed, lost
        self.wait_for(readings)
        if lost or not listed:
            assert not self.bench.health().allocatable

    @rule(failing=st.booleans(), readings=st.sampled_from([1, 2, 3, 10]))
    def fail_calls(self, failing: bool, readings: int) -> None:
        self.failing = failing
        self.wait_for(readings)

    @rule(action=st.sampled_from(["none", "gpu_reset", "node_reboot"]))
    def ask_for_recovery(self, action: str) -> None:
        self.action = action
        self.wait_for(1)

    @precondition(lambda self: self.listed and not self.lost and not self.failing)
    @rule(
        names=st.sets(st.sampled_from(COUNTERS), min_size=1),
        value=st.sampled_from([ONES, 0.0, 5.0, 2**32 - 1]),
    )
    def read_garbage(self, names: set[str], value: float) -> None:
        """Counters of ones, as a device answers that has left the bus, and counters that begin at 0 again."""
        self.tick(**dict.fromkeys(names, float(value)))
        self.tick()
        assert "nvlink_errors" not in self.bench.reasons()

    @precondition(lambda self: self.listed and not self.lost and not self.failing)
    @rule(key=st.sampled_from(sorted(FAULTS)), readings=st.sampled_from([1, 5, 80]))
    def report_nothing(self, key: str, readings: int) -> None:
        """A value that the driver does not report neither starts nor ends a fault."""
        for _ in range(readings):
            before = self.bench.reasons()
            account = self.account[key]
            kept = Account(account.bad_s, account.good_s, account.entered)
            self.tick(**dict.fromkeys(FAULTS[key][0]))
            self.account[key] = kept
            assert (key in self.bench.reasons()) == (key in before)

    @rule(seconds=st.sampled_from([1.0, 300.0]))
    def restart(self, seconds: float) -> None:
        """A new agent with the stored records: it starts no fault, and counts its times from now on."""
        before = set(self.bench.reasons())
        self.bench.restart(seconds)
        self.measured_before = False
        for key, account in self.account.items():
            account.good_s = 0.0
            if key not in before:
                account.bad_s, account.entered = -math.inf, False
        self.tick()
        announced = {"gpu_lost", f"recovery_{self.action}", "gpu_unreadable"}
        assert set(self.bench.reasons()) <= before | announced | {
            key for key in self.bad if FAULTS[key][1] == 0
        }

    def wait_for(self, readings: int) -> None:
        for _ in range(readings):
            self.tick()

    # --- what must hold -------------------------------------------------------------------------------

    def repeated(self, within_s: float) -> bool:
        """Whether an XID came so often that the last of its incidents that count began so recently."""
        return any(
            len(begun) >= REPEATS and self.now - begun[-REPEATS] <= within_s
            for begun in self.incidents.values()
        )

    def evidence(self) -> dict[str, bool]:
        """Each reason, and whether this history has evidence of it."""
        shown = {key: account.entered for key, account in self.account.items()}
        for xid, at in self.xid_at.items():
            ends = max(at + XID_CLEAR_S, self.trouble_at)
            shown[f"xid_{xid}"] = XIDS[xid] != "ignored" and self.now <= ends + EVERY_S
        gone = self.lost or not self.listed
        return shown | {
            "gpu_lost": gone,
            "gpu_unreadable": self.failing,
            "repeated_xid": self.repeated(DAY_S + EVERY_S),
            "recovery_gpu_reset": self.action == "gpu_reset" or self.failing or gone,
            "recovery_node_reboot": self.action == "node_reboot" or self.failing or gone,
        }

    @invariant()
    def a_reason_has_evidence(self) -> None:
        health, evidence = self.bench.health(), self.evidence()
        for reason in health.reasons:
            assert evidence.get(reason.key), (reason, self.account.get(reason.key), self.now)
        assert health.allocatable or health.reasons
        assert self.bench.health("GPU-1") == HEALTHY

    @invariant()
    def evidence_that_has_lasted_has_a_reason(self) -> None:
        reasons = self.bench.reasons()
        assert ("gpu_lost" in reasons) == (self.lost or not self.listed)
        assert "repeated_xid" in reasons or not self.repeated(DAY_S)
        if self.failing and self.listed and not self.lost and self.failing_s > UNREADABLE_S + EVERY_S:
            assert "gpu_unreadable" in reasons
        for key, account in self.account.items():
            _, enter_s, _ = FAULTS[key]
            if key in self.bad and self.measured_before and account.bad_s > enter_s + EVERY_S:
                assert key in reasons, (account, self.now)

    def teardown(self) -> None:
        """After the cause and its time to clear every fault has ended."""
        self.bad.clear()
        self.listed, self.lost, self.failing, self.action = True, False, False, "none"
        self.bench.now += DAY_S if self.repeated(DAY_S) else 0.0
        self.wait_for(int(max(CLEAR_S, XID_CLEAR_S) / EVERY_S) + 2)
        assert self.bench.health() == HEALTHY
        assert self.bench.health("GPU-1") == HEALTHY


def test_an_xid_that_comes_again_for_hours_is_repeated() -> None:
    """Found by the machine, whose law did not know the reason."""
    history = GpuHistory()
    for _ in range(REPEATS):
        history.meet_xid(63)
        history.wait(70)
        history.a_reason_has_evidence()
    assert "repeated_xid" in history.bench.reasons()
    history.restart(300.0)
    history.evidence_that_has_lasted_has_a_reason()
    history.teardown()


def test_each_restart_begins_the_time_to_enter_again() -> None:
    """Found by the machine, whose law added up the times of three agents."""
    history = GpuHistory()
    for _ in range(3):
        history.go_bad("pcie_speed", 55)
        history.a_reason_has_evidence()
        history.evidence_that_has_lasted_has_a_reason()
        assert history.bench.reasons() == []
        history.restart(1.0)
    history.wait(70)
    history.evidence_that_has_lasted_has_a_reason()
    assert history.bench.reasons() == ["pcie_speed"]
    history.teardown()


TestGpuHistory = GpuHistory.TestCase
TestGpuHistory.settings = settings(
    max_examples=examples(15),
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
