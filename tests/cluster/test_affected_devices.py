"""Which devices of a node the cluster learns about, and which pods hold a failed one."""

from __future__ import annotations

from msgspec.structs import replace

from nodeagent.cluster.affected_devices import affected_pods, reported_devices
from nodeagent.facts.model import Health, Reason, StaleSource, State, UnusableGpu
from tests.support.cluster_node import DOWN, GPU_LOST, offered, snapshot


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


def test_a_gpu_without_a_name_is_reported_and_one_for_guests_is_not():
    lost = Health(State.UNHEALTHY, (Reason("gpu_lost", "x"),), allocatable=False)
    places = (UnusableGpu("0000:1b:00.0", lost), UnusableGpu("0000:1c:00.0", Health(State.UNUSED)))
    made = replace(snapshot([], []), unusable_gpus=places)
    assert [(one.title, one.link, one.health) for one in reported_devices(made)] == [
        ("GPU at 0000:1b:00.0", False, lost)
    ]
