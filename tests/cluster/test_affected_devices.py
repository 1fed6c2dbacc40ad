"""Which devices of a node the cluster learns about, and which pods hold a failed one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.cluster.affected_devices import affected_pods, reported_devices
from nodeagent.cluster.agent_events import device_notices
from nodeagent.cluster.evictions import failed_device_causes
from nodeagent.facts.model import Health, Holding, MigDevice, Reason, StaleSource, State, UnusableGpu
from tests.support.cluster_node import DOWN, GPU_LOST, holding, offered, snapshot


def test_links_and_gpus_are_reported_and_pods_that_hold_a_failed_one_are_affected():
    made = snapshot([None, DOWN, Health(State.UNUSED)], [GPU_LOST])
    assert [(one.title, one.health.state.value) for one in reported_devices(made)] == [
        ("ens0np0 (0000:10:00.0)", "healthy"),
        ("ens1np0 (0000:11:00.0)", "down"),
        ("GPU 0 (GPU-0)", "unhealthy"),
    ]
    assert [(pod.pod, pod.device_ids, pod.device.title) for pod in affected_pods(made, offered(made))] == [
        ("a", ("GPU-0::0", "GPU-0::1"), "GPU 0 (GPU-0)"),
        ("b", ("0000:11:00.1",), "VF 0000:11:00.1 of ens1np0 (0000:11:00.0)"),
    ]


def test_a_held_device_that_is_gone_has_failed_unless_a_source_fails():
    gone = snapshot([None])
    assert [pod.device.health.reasons[0].key for pod in affected_pods(gone, offered(gone))] == [
        "device_missing"
    ]
    quiet = replace(gone, stale_sources=(StaleSource("pci", "hangs"),))
    assert affected_pods(quiet, offered(quiet)) == ()
    unknown = replace(gone, holdings=None)
    assert affected_pods(unknown, offered(unknown)) == ()


@pytest.mark.parametrize("name", ["rival0", "GPU-32563e7a-82ba-5729-ba77-604a25030a17-3", "12", "mlx5_3"])
def test_a_device_of_another_plugin_under_our_name_is_none_of_ours(name: str) -> None:
    """On a real kubelet the pods with the devices of a plugin that had taken the name were evicted."""
    holdings = (holding("a", "x/mem", name), holding("b", "x/nic", name))
    made = snapshot([None], [None], holdings=holdings)
    assert affected_pods(made, offered(made)) == ()


def test_a_held_device_that_is_here_and_not_offered_under_its_name_has_its_own_health() -> None:
    """The configuration leaves its PF out now, or its GPU has fewer slices than before."""
    holdings = (
        holding("a", "x/mem", "GPU-0::7", "GPU-0::8"),
        holding("b", "x/nic", "0000:11:00.1"),
        holding("c", "x/nic", "0000:10:00.1"),
    )
    made = snapshot([None, DOWN], [GPU_LOST], holdings=holdings)
    ((nic, vfs), (memory, slices)) = offered(made)
    fewer = [(nic, [replace(vfs[0], ids=("0000:10:00.2",))]), (memory, slices)]
    assert [(pod.pod, pod.device_ids, pod.device.title) for pod in affected_pods(made, fewer)] == [
        ("a", ("GPU-0::7", "GPU-0::8"), "GPU 0 (GPU-0)"),
        ("b", ("0000:11:00.1",), "VF 0000:11:00.1 of ens1np0 (0000:11:00.0)"),
    ]
    well = snapshot([None, None], [None], holdings=holdings)
    assert affected_pods(well, fewer) == ()


def test_the_slices_of_a_gpu_in_mig_mode_are_gone_and_its_mig_devices_are_not() -> None:
    part = MigDevice("MIG-0", "1g.10gb", 9728, 1, 0)
    holdings = (holding("a", "x/mem", "GPU-0::0"), holding("b", "x/mig", "MIG-0"))
    made = snapshot([], [None, None], holdings=holdings)
    divided = replace(made, gpus=(replace(made.gpus[0], mig=True, mig_devices=(part,)), made.gpus[1]))
    names = [("x/mem", offered(divided)[1][1][1:]), ("x/mig", offered(divided)[1][1][1:])]
    assert [pod.pod for pod in affected_pods(divided, names)] == ["a"]


def test_a_gpu_without_a_name_is_reported_and_one_for_guests_is_not():
    lost = Health(State.UNHEALTHY, (Reason("gpu_lost", "x"),), allocatable=False)
    places = (UnusableGpu("0000:1b:00.0", lost), UnusableGpu("0000:1c:00.0", Health(State.UNUSED)))
    made = replace(snapshot([], []), unusable_gpus=places)
    assert [(one.title, one.link, one.health) for one in reported_devices(made)] == [
        ("GPU at 0000:1b:00.0", False, lost)
    ]


def by_claim(pod: str, resource: str, *ids: str) -> Holding:
    return replace(holding(pod, resource, *ids), container="", claim="train")


def test_a_pod_that_holds_a_failed_device_by_a_claim_is_affected_too() -> None:
    """Nobody offers the resource by a device plugin, and the IDs are those of shares of a claim."""
    holdings = (
        by_claim("a", "x/mem", "GPU-0::0a1b.0", "GPU-0::0a1b.1"),
        by_claim("b", "x/nic", "0000:11:00.1"),
        by_claim("c", "x/nic", "0000:10:00.1"),
        by_claim("d", "x/mig", "MIG-made-a-moment-ago"),
    )
    made = snapshot([None, DOWN], [GPU_LOST], holdings=holdings)
    assert [(pod.pod, pod.claim, pod.device.title) for pod in affected_pods(made, ())] == [
        ("a", "train", "GPU 0 (GPU-0)"),
        ("b", "train", "VF 0000:11:00.1 of ens1np0 (0000:11:00.0)"),
    ]
    (notice,) = [it for it in device_notices(made, "n", ()) if it.target.name == "a"]
    assert notice.message == (
        "GPU 0 (GPU-0), held by the claim train, has failed: XID 79: the GPU has fallen off the bus"
    )
    assert not failed_device_causes(made, (), lambda _: 600.0, 0.0), "health.noExecute decides"
    gone = snapshot([None], [None], holdings=holdings[1:2])
    assert [pod.device.health.reasons[0].key for pod in affected_pods(gone, ())] == ["device_missing"]
    quiet = replace(gone, stale_sources=(StaleSource("pci", "hangs"),))
    assert affected_pods(quiet, ()) == ()
    assert affected_pods(snapshot(holdings=holdings), ()) == (), "the machine is not known yet"
    assert (
        affected_pods(snapshot([None, DOWN], holdings=(by_claim("", "x/nic", "0000:11:00.1"),)), ()) == ()
    ), "no pod has reserved the claim"
