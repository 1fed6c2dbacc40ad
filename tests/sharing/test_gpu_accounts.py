"""Use against grant: by pod and GPU, without a grant, without a measurement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.gpu_usage import GpuUsage, NamedProcess, PodUse
from nodeagent.facts.model import Holding, Snapshot, VgpuShare
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER
from nodeagent.sharing.gpu_accounts import GpuAccount, PodAccount, accounts
from nodeagent.sharing.over_use import OverUse, OverUses
from tests.support.kind_machines import gpu_of, uuid_of

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
