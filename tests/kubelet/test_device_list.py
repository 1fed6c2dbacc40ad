"""The device list: its bytes are protobuf's, no ID is ever removed, and no equal list is sent again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import HEALTHY, Health, Reason, State
from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.kubelet.device_list import (
    MISSING_DEVICE,
    PLUGIN_API_VERSION,
    DeviceList,
    encode_devices,
    register_request,
)

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)


def vf(number: int, health: Health = HEALTHY) -> Devices:
    return Devices("0000:1a:00.0", (f"0000:1a:00.{number}",), (0,), health)


def health_by_id(device_list: DeviceList) -> dict[str, str]:
    return {
        device.ID: device.health for device in pb.ListAndWatchResponse.FromString(device_list.message).devices
    }


@given(
    ids=st.lists(st.text(max_size=70), max_size=5),
    numa=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    allocatable=st.booleans(),
)
def test_a_segment_has_the_bytes_of_protobuf(
    ids: list[str], numa: tuple[int, ...], allocatable: bool
) -> None:
    ids = [text.encode("utf-8", "replace").decode() for text in ids]
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=number) for number in numa]) if numa else None
    expected = pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=text, health="Healthy" if allocatable else "Unhealthy", topology=topology)
            for text in ids
        ]
    )
    decoded = pb.ListAndWatchResponse.FromString(
        encode_devices(Devices("p", tuple(ids), numa, Health(allocatable=allocatable)))
    )
    assert decoded == expected
    if all(ids):
        assert (
            encode_devices(Devices("p", tuple(ids), numa, Health(allocatable=allocatable)))
            == expected.SerializeToString()
        )


@given(endpoint=st.text(min_size=1, max_size=300), resource=st.text(min_size=1, max_size=300))
def test_a_register_request_has_the_bytes_of_protobuf(endpoint: str, resource: str) -> None:
    expected = pb.RegisterRequest(
        version=PLUGIN_API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    assert register_request(endpoint, resource) == expected.SerializeToString()


def test_a_device_that_goes_is_unhealthy_and_healthy_when_it_is_back() -> None:
    device_list = DeviceList()
    assert device_list.update((vf(1), vf(2)))
    assert device_list.update((vf(2),))
    assert health_by_id(device_list) == {"0000:1a:00.1": "Unhealthy", "0000:1a:00.2": "Healthy"}
    assert device_list.first_missing(["0000:1a:00.2", "0000:1a:00.1"]) == "0000:1a:00.1"
    assert device_list.first_missing(["0000:1a:00.2"]) is None
    assert device_list.devices[-1].health is MISSING_DEVICE
    assert device_list.devices[-1].numa_nodes == (0,)
    assert device_list.update((vf(1), vf(2)))
    assert health_by_id(device_list) == {"0000:1a:00.1": "Healthy", "0000:1a:00.2": "Healthy"}


def test_an_equal_list_is_not_sent_again() -> None:
    device_list = DeviceList()
    assert device_list.update((vf(1),))
    message, revision, listed = device_list.message, device_list.revision, device_list.devices
    assert not device_list.update((vf(1),))
    assert device_list.message is message
    assert device_list.devices is listed, "a list that is as it was is not made again"
    # Another reason for the same health changes no byte, but a refused Allocate names the latest reason.
    assert device_list.update((vf(1, DOWN),))
    assert not device_list.update((vf(1, Health(State.DOWN, (), allocatable=False)),))
    assert device_list.revision == revision + 1
    assert device_list.devices[0].health.reasons == ()


def test_the_first_list_is_sent_even_if_it_is_empty() -> None:
    device_list = DeviceList()
    assert device_list.update(())
    assert device_list.revision == 1
    assert device_list.message == b""


def test_a_device_that_a_pod_holds_and_no_source_reported_is_listed() -> None:
    device_list = DeviceList()
    assert device_list.update((vf(1),), held=["0000:1a:00.7"])
    assert health_by_id(device_list) == {"0000:1a:00.1": "Healthy", "0000:1a:00.7": "Unhealthy"}
    assert device_list.update((vf(1), vf(7)), held=["0000:1a:00.7"])
    assert health_by_id(device_list) == {"0000:1a:00.1": "Healthy", "0000:1a:00.7": "Healthy"}


def test_fewer_slices_of_the_same_gpu_leave_the_old_ids_unhealthy() -> None:
    device_list = DeviceList()
    device_list.update((Devices("GPU-a", ("GPU-a::0", "GPU-a::1"), ()),))
    device_list.update((Devices("GPU-a", ("GPU-a::0",), ()),))
    assert health_by_id(device_list) == {"GPU-a::0": "Healthy", "GPU-a::1": "Unhealthy"}
    assert device_list.counts() == (1, 2)


@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.booleans()), unique_by=lambda p: p[0]), max_size=12))
def test_every_id_that_was_ever_offered_stays_listed(
    steps: list[list[tuple[int, bool]]],
) -> None:
    device_list, ever = DeviceList(), set[str]()
    for step in steps:
        now = {f"0000:1a:00.{n}": good for n, good in sorted(step)}
        device_list.update(tuple(vf(n, Health() if good else DOWN) for n, good in sorted(step)))
        ever |= now.keys()
        assert health_by_id(device_list) == {id_: "Healthy" if now.get(id_) else "Unhealthy" for id_ in ever}
        assert {id_ for id_ in ever if device_list.first_missing([id_])} == ever - now.keys()
