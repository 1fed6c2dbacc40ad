"""Jobs in simulated time: pauses alarm nobody, and each planted cause is named in the table within three minutes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodeagent.fabric.job_traffic import (
    SILENT_AFTER_S,
    JobPause,
    RankTraffic,
    job_pause,
    odd_ones,
    rails_below,
    rank_traffic,
)
from nodeagent.fabric.nodelinks import HeldVf, NodeLinks, RailLevel, TrafficLevel, VfHolder
from nodeagent.fabric.traffic_figures import PodFigures, VfFigures
from nodeagent.features.pod_traffic.traffic_judge import PodVf
from tests.support.job_traffic_sim import KINDS, LINE_BPS, STEP_S, JobKind, SimulatedJob, run

PODS, RAILS, GPUS = 4, 8, 8
BUSY, WAITS, IDLE = (0.95, 0.4), (1.0, 0.0), (0.0, 0.0)
State = tuple[list[list[float]], list[list[tuple[float, float]]]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_pauses_of_every_kind_alarm_nobody(kind: JobKind) -> None:
    """`hack/bench_stalls.py` has 200 jobs of 1,000 hours."""
    tally = run(kind, 40.0, 7)
    assert tally.alarms == ()
    assert tally.writes / (tally.hours * 2) < 1


@pytest.mark.parametrize("seed", [53, 153])
def test_a_job_with_little_traffic_that_waits_for_a_straggler_alarms_nobody(seed: int) -> None:
    """Found in 200 jobs of 1,000 hours: its rails carried less than begins a movement, and its GPUs waited 4 min."""
    (kind,) = (one for one in KINDS if one.name == "sparse")
    assert run(kind, 6.0, seed).alarms == ()


class Planted:
    """A job of 32 GPUs that trains for an hour. Then something happens."""

    def __init__(self) -> None:
        self.job, self.now = SimulatedJob(PODS, RAILS, GPUS), 0.0
        self.rates = [[0.4 * LINE_BPS] * RAILS for _ in range(PODS)]
        self.loads = [[BUSY] * GPUS for _ in range(PODS)]
        self.places = [[f"rail{rail}" for rail in range(RAILS)] for _ in range(PODS)]
        self.run(3600)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.job.step(self.now, STEP_S, self.rates, self.loads)

    @property
    def pause(self) -> JobPause:
        return job_pause(self.job.levels, self.now)

    def ranks(self, *, figures: bool) -> list[RankTraffic]:
        found = []
        for number, name in enumerate(self.job.names):
            namespace, _, pod = name.partition("/")
            judge, held = self.job.judges[number], self.job.held.vfs
            vfs = tuple(
                HeldVf(link=link, pci_address=vf.address)
                for link, vf in zip(self.places[number], held, strict=True)
            )
            holder = VfHolder(namespace=namespace, pod=pod, vfs=vfs, since="2027-01-15T06:00:00Z")
            (level,) = self.job.reports[number].traffic
            asked = self.figures(number, judge.rates(), held) if figures else None
            found.append(rank_traffic(pod, f"gpu-{number:03d}", holder, level, asked, self.now))
        return found

    def figures(self, number: int, rates: object, held: tuple[PodVf, ...]) -> PodFigures:
        judge = self.job.judges[number]
        vfs = []
        for vf, link in zip(held, self.places[number], strict=True):
            rate, moved_at = judge.rates()[vf.address]
            assert rate is not None
            quiet_s = None if moved_at is None else self.now - moved_at
            vfs.append(VfFigures(link, vf.address, rate.seconds, rate.received, rate.sent, 1.0, 1.0, quiet_s))
        since, longest = judge.quiet(self.job.names[number])
        loads = {str(index): load for index, (load, _) in enumerate(self.loads[number])}
        return PodFigures(
            "ml", f"job-{number}", tuple(vfs), loads, None if since is None else self.now - since, longest
        )

    def table(self) -> list[str]:
        return [one.sentence for one in odd_ones(self.ranks(figures=True))]


def all_silent(planted: Planted) -> None:
    """The collective waits: nothing is sent, and a kernel spins on each GPU."""
    planted.rates = [[0.0] * RAILS for _ in range(PODS)]
    planted.loads = [[WAITS] * GPUS for _ in range(PODS)]


def rank_stopped(planted: Planted) -> None:
    """SIGSTOP: it launches no kernel any more."""
    all_silent(planted)
    planted.loads[2][5] = IDLE


def process_killed(planted: Planted) -> None:
    """All ranks of one pod ended, and nobody noticed."""
    all_silent(planted)
    planted.loads[3] = [IDLE] * GPUS


def rail_dark(planted: Planted) -> None:
    planted.rates[1][6] = 0.0


def wrong_place(planted: Planted) -> None:
    """A VF on rail 4 in place of one on rail 5: both VFs there share the link."""
    planted.places[0][5] = "rail4"


def gpu_at_zero(planted: Planted) -> None:
    planted.loads[2][1] = IDLE


@pytest.mark.parametrize(
    ("plant", "sentence", "stalls"),
    [
        (rank_stopped, "31 GPUs at 100 %, gpu-002/5 at 0 %: it did not arrive (job-2)", True),
        (process_killed, "24 GPUs at 100 %, gpu-003/0, gpu-003/1, gpu-003/2", True),
        (rail_dark, "job-1 sends nothing on rail6, its peers do, for ", False),
        (wrong_place, "job-0 has no VF on rail5, but 2 on rail4; its peers have", False),
        (gpu_at_zero, "gpu-002/1 at 0 %, the others of the job at 95 %", False),
    ],
)
def test_a_planted_cause_is_named_within_three_minutes(
    plant: Callable[[Planted], None], sentence: str, stalls: bool
) -> None:
    planted = Planted()
    assert planted.table() == []
    plant(planted)
    planted.run(180)
    found = planted.table()
    assert len(found) == 1, found
    assert sentence in found[0]
    planted.run(120)
    assert not planted.pause.stalled, "never below five minutes"
    planted.run(90)
    assert planted.pause.stalled is stalls
    by_levels = [one.sentence for one in odd_ones(planted.ranks(figures=False))]
    if stalls:
        assert "did not arrive" in by_levels[0]
        assert planted.pause.seconds >= 300
    elif plant is not gpu_at_zero:
        assert by_levels[0].split(", ")[0] == found[0].split(", ")[0]


def test_waiting_for_a_file_system_is_shown_and_is_no_stall() -> None:
    planted = Planted()
    all_silent(planted)
    planted.loads = [[IDLE] * GPUS for _ in range(PODS)]
    planted.run(3600)
    assert not planted.pause.stalled
    assert planted.pause.seconds >= 3500
    assert planted.table() == [
        "all rails silent for 1 h, GPUs idle: the job waits for something else, such as a file system"
    ]


def test_a_stall_needs_twice_the_longest_pause_of_the_job() -> None:
    planted = Planted()
    rates = planted.rates
    planted.rates, planted.loads = [[0.0] * RAILS] * PODS, [[IDLE] * GPUS] * PODS
    planted.run(600)
    planted.rates, planted.loads = rates, [[BUSY] * GPUS] * PODS
    planted.run(1800)
    rank_stopped(planted)
    planted.run(1200)
    assert not planted.pause.stalled
    planted.run(600)
    assert planted.pause.stalled


def test_a_stall_outlives_a_restart_of_the_agents() -> None:
    planted = Planted()
    rank_stopped(planted)
    planted.run(400)
    assert planted.pause.stalled
    before = planted.pause.seconds
    for pod in range(PODS):
        planted.job.restart_agent(pod, planted.now)
    for _ in range(40):
        planted.run(30)
        assert planted.pause.stalled
    assert planted.pause.seconds == pytest.approx(before + 1200, abs=2)


def test_agents_that_restart_before_the_stall_find_it() -> None:
    planted = Planted()
    for pod in range(PODS):
        planted.job.restart_agent(pod, planted.now)
    rank_stopped(planted)
    planted.run(600)
    assert planted.pause.stalled


@pytest.mark.parametrize("seen", [True, False], ids=["pods are seen to go", "between two looks"])
def test_a_job_that_is_restarted_in_a_stall_is_stalled_no_more(seen: bool) -> None:
    """Its new pods have the names of the old ones, start for 20 minutes, and train."""
    planted = Planted()
    trains = planted.rates
    rank_stopped(planted)
    planted.run(600)
    assert planted.pause.stalled
    if seen:
        for number, judge in enumerate(planted.job.judges):
            assert judge.take(planted.now + 15, {}, {}, {}) == ()
            planted.job.reports[number] = NodeLinks(node_name=f"n{number}")
    planted.job.sent = [[0.0] * RAILS for _ in range(PODS)]
    planted.loads = [[IDLE] * GPUS for _ in range(PODS)]
    planted.run(150)
    for _ in range(40):
        planted.run(30)
        assert not planted.pause.stalled
    planted.rates, planted.loads = trains, [[BUSY] * GPUS for _ in range(PODS)]
    planted.run(600)
    assert planted.pause == JobPause(0.0, stalled=False)
    assert planted.table() == []


def test_a_job_of_one_pod_without_a_gpu_is_told_and_never_stalled() -> None:
    job, now = SimulatedJob(1, 1, 0), 0.0
    for rate in (LINE_BPS, 0.0):
        for _ in range(60):
            now += STEP_S
            job.step(now, STEP_S, [[rate]], [[]])
    (found,) = job.levels
    assert (found.level, found.gpus) == ("silent", None)
    pause = job_pause(job.levels, now)
    assert (pause.stalled, pause.seconds) == (False, 1800)
    rank = rank_traffic("p", "n", None, found, None, now)
    assert [one.sentence for one in odd_ones([rank])] == ["all rails silent for 30 min"]


def level(name: str, **other: object) -> TrafficLevel:
    values = {
        "namespace": "ml",
        "pod": "p",
        "level": name,
        "since": "1970-01-01T00:00:00Z",
        "gpus": "waiting",
    }
    return TrafficLevel(**(values | other))


@pytest.mark.parametrize(
    ("levels", "stalled"),
    [
        ([], False),
        ([level("silent")], True),
        ([level("silent"), level("moving")], False),
        ([level("silent"), level("unused")], True),
        ([level("silent"), level("unused"), level("unused")], False),
        ([level("silent"), level("of a later version")], True),
        ([level("silent", gpus=None)], False),
        ([level("silent", gpus="idle"), level("silent")], True),
        ([level("silent", gpus="idle"), level("silent", gpus="working"), level("silent")], False),
        ([level("silent", since=None)], False),
        ([level("silent", since="nonsense")], False),
        ([level("silent", longest_pause_seconds=600)], False),
    ],
)
def test_which_levels_are_a_stall(levels: list[TrafficLevel], stalled: bool) -> None:
    assert job_pause(levels, 900.0).stalled is stalled


def test_rails_below_their_peers_are_those_of_pods_that_move() -> None:
    rails = tuple(
        RailLevel(link=f"rail{n}", pci_address="", level=word)
        for n, word in enumerate(("silent", "below", "unmeasured"))
    )
    assert rails_below([level("moving", rails=rails), level("silent", rails=rails)]) == 2


def test_figures_of_drivers_that_do_not_count_are_not_zero() -> None:
    vfs = (VfFigures("rail0", "a", 30.0, 0.0, 0.0, 0.0, 0.0, None, measured=False),)
    rank = rank_traffic("p", "n", None, None, PodFigures("ml", "p", vfs), 0.0)
    assert (rank.word, rank.rails["rail0"].word, rank.rails["rail0"].sent) == (
        "unmeasured",
        "unmeasured",
        None,
    )
    assert [*odd_ones([rank])] == []
    assert SILENT_AFTER_S == 2 * STEP_S
