"""Use against grant: by pod and GPU, without a grant, without a measurement."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.facts.model import Holding, Snapshot, VgpuShare
from nodeagent.health.gpu_settings import GpuAccountingSettings, GpuHealthSettings, GpuSettings
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.gpu_accounts import GpuAccount, PodAccount, accounts
from nodeagent.sharing.over_use import RESTART_S, OverUse, OverUses
from tests.support.kind_machines import gpu_of, uuid_of
from tests.support.waiting import until

GIB = 1 << 30
SLICES = {"x/gpu-mem": GIB}
FULL = 81_559 << 20


def holding(pod: str, resource: str, *ids: str, container: str = "main") -> Holding:
    return Holding("team", pod, container, resource, ids)


def machine(*holdings: Holding) -> Snapshot:
    return Snapshot(gpus=(gpu_of(0), gpu_of(1)), holdings=holdings)


def test_grants_are_added_up_over_containers_and_resources_and_never_exceed_the_gpu() -> None:
    snapshot = machine(
        holding("llm", "x/gpu-mem", f"{uuid_of(0)}::0", f"{uuid_of(0)}::1"),
        holding("llm", "x/gpu-mem", f"{uuid_of(0)}::2", container="side"),
        holding("whole", "nvidia.com/gpu", uuid_of(1), "GPU-of-another-node"),
        holding("whole", "x/gpu", uuid_of(1)),
        holding("net", "x/nic0", "0000:1a:00.1"),
    )
    assert accounts(snapshot, SLICES, {}) == (
        GpuAccount(uuid_of(0), (PodAccount("team", "llm", 3 * GIB, None),)),
        GpuAccount(uuid_of(1), (PodAccount("team", "whole", FULL, None),)),
    )


def test_the_shares_that_volcano_chose_for_the_containers_of_a_pod_are_added_up() -> None:
    shares = tuple(
        VgpuShare("team", "llm", uuid_of(0), slices, name) for name, slices in (("a", 2), ("b", 3))
    )
    snapshot = replace(machine(holding("llm", NUMBER, f"{uuid_of(0)}::vgpu0")), vgpu_shares=shares)
    one, _ = accounts(snapshot, {MEMORY: GIB}, {})
    assert one.pods == (PodAccount("team", "llm", 5 * GIB, None),)


def test_a_pod_without_a_grant_is_listed_and_one_without_processes_uses_nothing() -> None:
    snapshot = machine(holding("llm", "x/gpu-mem", f"{uuid_of(0)}::0"))
    outside = (NamedProcess(7, "X", 5),)
    usage = {
        uuid_of(0): GpuUsage((PodUse("kube-system", "probe", 9, 1, 0.5),), outside),
        uuid_of(1): GpuUsage(),
    }
    assert accounts(snapshot, SLICES, usage) == (
        GpuAccount(
            uuid_of(0),
            (PodAccount("kube-system", "probe", 0, 9, 0.5, 1), PodAccount("team", "llm", GIB, 0)),
            outside,
        ),
        GpuAccount(uuid_of(1), ()),
    )


def account(used: int | None, pod: str = "llm", outside: int = 0) -> GpuAccount:
    processes = (NamedProcess(7, "X", outside),) if outside else ()
    return GpuAccount("GPU-0", (PodAccount("team", pod, 100, used),), processes)


def test_an_over_use_counts_after_the_grace_and_ends_at_once() -> None:
    over = OverUses(tolerance_bytes=10, grace_s=60, gap_s=30)
    assert not over.observe([account(111)], 0)
    assert not over.observe([account(111)], 30)
    assert not over.observe([account(115)], 59)
    assert over.observe([account(120)], 60)
    assert list(over.active.values()) == [OverUse("team", "llm", "GPU-0", 100, 120, 0)]
    assert not over.observe([account(999)], 75), "the numbers of a report do not change"
    assert over.observe([account(110)], 90)
    assert not over.active


def test_a_pod_of_the_same_name_and_another_uid_has_a_grace_of_its_own() -> None:
    """A StatefulSet makes ``llm-0`` again between two measurements."""
    over = OverUses(tolerance_bytes=0, grace_s=60, gap_s=30)

    def used_by(uid: str) -> GpuAccount:
        return replace(account(0), pods=(PodAccount("team", "llm", 100, 111, uid=uid),))

    for now in (0, 30, 60):
        over.observe([used_by("u1")], now)
    (first,) = over.active.values()
    assert first.uid == "u1"
    assert over.observe([used_by("u2")], 75)
    assert not over.active
    over.observe([used_by("u2")], 105)
    assert over.observe([used_by("u2")], 135)
    (second,) = over.active.values()
    assert (second.uid, second.since) == ("u2", 75)


def beyond(uid: str = "u1", used: int | None = 111) -> GpuAccount:
    return replace(account(0), pods=(PodAccount("team", "llm", 100, used, uid=uid),))


def of_an_earlier_agent() -> OverUses:
    """Fifty seconds of a pod beyond its share."""
    over = OverUses(tolerance_bytes=0, grace_s=60, gap_s=30)
    for now in (0, 30, 50):
        over.observe([beyond()], now)
    assert not over.active
    return over


@pytest.mark.parametrize(
    ("uid", "first_s", "since"),
    [
        ("u1", 60, 10),
        ("u1", 200, 150),  # 50 s were measured; nobody knows what was between
        ("u1", 50 + RESTART_S, RESTART_S),
        ("u1", 51 + RESTART_S, 51 + RESTART_S),
        ("u2", 60, 60),  # another pod of the same name
    ],
)
def test_over_a_restart_the_measured_time_counts_and_the_time_without_an_agent_does_not(
    uid: str, first_s: float, since: float
) -> None:
    later = OverUses(0, 60, 30, of_an_earlier_agent().begun)
    later.observe([beyond(uid, None)], first_s - 1)  # an unknown use ends nothing
    for now in (first_s, first_s + 30, first_s + 60):
        later.observe([beyond(uid)], now)
        assert bool(later.active) is (now - since >= 60)
    (over,) = later.active.values()
    assert over.since == since


@pytest.mark.parametrize("first", [[], [beyond(used=100)]], ids=["ended", "within its share"])
def test_a_pod_that_was_within_its_share_meanwhile_starts_again(first: list[GpuAccount]) -> None:
    later = OverUses(0, 60, 30, of_an_earlier_agent().begun)
    later.observe(first, 55)
    assert later.begun == ()
    for now in (60, 90):
        later.observe([beyond()], now)
        assert not later.active


def test_two_restarts_add_up() -> None:
    second = OverUses(0, 60, 30, of_an_earlier_agent().begun)
    second.observe([beyond()], 100)
    second.observe([beyond()], 105)
    third = OverUses(0, 60, 30, second.begun)
    assert OverUses(0, 60, 30, third.begun).begun == second.begun, (
        "an agent that measures nothing loses nothing"
    )
    third.observe([beyond()], 200)
    third.observe([beyond()], 204)
    assert not third.active
    third.observe([beyond()], 205)
    assert [over.since for over in third.active.values()] == [145]


async def test_the_file_of_the_same_boot_is_read_by_the_next_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = GpuSettings(
        health=GpuHealthSettings(processes=True, read_seconds=15),
        accounting=GpuAccountingSettings(grace_seconds=60, tolerance_mib=0),
    )
    snapshot = replace(machine(), holdings=())
    clock = [0.0]

    def agent(boot: str = "b") -> GpuAccounting:
        return GpuAccounting(settings, lambda: snapshot, lambda: {}, lambda: clock[0], tmp_path, boot)

    def measure(one: GpuAccounting, at: float) -> None:
        clock[0] = at
        one.take_usage({uuid_of(0): GpuUsage((PodUse("team", "llm", GIB, 1, None, "u1"),))}, None)

    first = agent()
    keeping = asyncio.create_task(first.keep())
    for at in (0, 15, 30):
        measure(first, at)
    file = tmp_path / "over-uses.json"
    await until(lambda: file.exists() and '"seen":30' in file.read_text())
    keeping.cancel()
    await asyncio.wait([keeping])
    same, other = agent(), agent("another")
    clock[0] = 29.0
    before, clock[0] = agent(), 90.0
    assert "cannot be so for that long" in caplog.text, "a time that has not come yet"
    for one in (same, other, before):
        for at in (90, 105, 120):
            measure(one, at)
    assert [over.since for over in same.over_uses] == [60]
    assert other.over_uses == before.over_uses == ()


def test_two_pods_of_one_name_are_added_up_and_neither_is_named() -> None:
    """The earlier one ends while its successor starts; the kubelet's grants name both alike."""
    usage = GpuUsage((PodUse("team", "llm", 5, 1, 0.75, "u1"), PodUse("team", "llm", 7, 2, 0.5, "u2")))
    first, _ = accounts(machine(), {}, {uuid_of(0): usage})
    assert first.pods == (PodAccount("team", "llm", 0, 12, 1.0, 3),)


def test_an_unknown_use_and_a_gap_between_measurements_begin_and_end_nothing() -> None:
    over = OverUses(tolerance_bytes=0, grace_s=60, gap_s=30)
    over.observe([account(101)], 0)
    over.observe([account(101)], 1000)  # the time between them is unknown
    assert not over.observe([account(101)], 1030)
    assert over.observe([account(101)], 1060)
    assert not over.observe([account(None)], 1090)
    assert over.active
    assert over.observe([], 1091), "the pod has ended"


def test_processes_outside_of_pods_are_named() -> None:
    over = OverUses(tolerance_bytes=10, grace_s=0, gap_s=30)
    assert over.observe([account(0, outside=11)], 0)
    assert [(one.pod, one.used_bytes, one.processes) for one in over.active.values()] == [("", 11, "X (7)")]
    many = replace(account(0), outside=tuple(NamedProcess(n, "", 5) for n in range(5)))
    fresh = OverUses(10, 0, 30)
    fresh.observe([many], 0)
    assert [one.processes for one in fresh.active.values()] == ["? (0), ? (1), ? (2) and 2 more"]


looks = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from((0, 100, 105, 106, 200, None))), min_size=1, max_size=30
)


@given(looks)
def test_a_pod_is_reported_exactly_while_every_known_look_of_the_grace_time_is_above(sequence) -> None:
    over, now = OverUses(tolerance_bytes=5, grace_s=60, gap_s=30), 0
    since, last, active = None, 0, False
    for pause, used in sequence:
        now += pause
        over.observe([account(used)], now)
        if used is not None:
            if used <= 105:
                since, active = None, False
            else:
                if since is None or now - last > 30:
                    since = now
                active = active or now - since >= 60
                last = now
        assert bool(over.active) == active
