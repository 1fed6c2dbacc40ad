"""The roll of a resource: its bytes are protobuf's, nothing is ever struck off, nothing is said twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.kubelet.device_list import API_VERSION, MISSING, Roll, encode, register_request
from nodeagent.model import HEALTHY, Devices, Health, Reason, State

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)


def vf(number: int, health: Health = HEALTHY) -> Devices:
    return Devices("0000:1a:00.0", (f"0000:1a:00.{number}",), (0,), health)


def told(roll: Roll) -> dict[str, str]:
    return {device.ID: device.health for device in pb.ListAndWatchResponse.FromString(roll.message).devices}


@given(
    ids=st.lists(st.text(max_size=70), max_size=5),
    numa=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    allocatable=st.booleans(),
)
def test_a_segment_is_what_protobuf_would_write(
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
        encode(Devices("p", tuple(ids), numa, Health(allocatable=allocatable)))
    )
    assert decoded == expected
    if all(ids):
        assert (
            encode(Devices("p", tuple(ids), numa, Health(allocatable=allocatable)))
            == expected.SerializeToString()
        )


@given(endpoint=st.text(min_size=1, max_size=300), resource=st.text(min_size=1, max_size=300))
def test_a_registration_is_protobufs_byte_for_byte(endpoint: str, resource: str) -> None:
    expected = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    assert register_request(endpoint, resource) == expected.SerializeToString()


def test_a_device_that_goes_is_unhealthy_and_healthy_when_it_is_back() -> None:
    roll = Roll()
    assert roll.state((vf(1), vf(2)))
    assert roll.state((vf(2),))
    assert told(roll) == {"0000:1a:00.1": "Unhealthy", "0000:1a:00.2": "Healthy"}
    assert roll.missing(["0000:1a:00.2", "0000:1a:00.1"]) == "0000:1a:00.1"
    assert roll.missing(["0000:1a:00.2"]) is None
    assert roll.devices[-1].health is MISSING
    assert roll.devices[-1].numa_nodes == (0,)
    assert roll.state((vf(1), vf(2)))
    assert told(roll) == {"0000:1a:00.1": "Healthy", "0000:1a:00.2": "Healthy"}


def test_an_equal_roll_is_not_told_again() -> None:
    roll = Roll()
    assert roll.state((vf(1),))
    message, revision = roll.message, roll.revision
    assert not roll.state((vf(1),))
    assert roll.message is message
    # Another reason for the same word to the kubelet is no news to it, but Allocate explains the latest.
    assert roll.state((vf(1, DOWN),))
    assert not roll.state((vf(1, Health(State.DOWN, (), allocatable=False)),))
    assert roll.revision == revision + 1
    assert roll.devices[0].health.reasons == ()


def test_the_first_roll_is_told_even_when_it_is_empty() -> None:
    roll = Roll()
    assert roll.state(())
    assert roll.revision == 1
    assert roll.message == b""


def test_a_device_held_by_a_pod_but_never_seen_is_on_the_roll() -> None:
    roll = Roll()
    assert roll.state((vf(1),), held=["0000:1a:00.7"])
    assert told(roll) == {"0000:1a:00.1": "Healthy", "0000:1a:00.7": "Unhealthy"}
    assert roll.state((vf(1), vf(7)), held=["0000:1a:00.7"])
    assert told(roll) == {"0000:1a:00.1": "Healthy", "0000:1a:00.7": "Healthy"}


def test_fewer_slices_of_the_same_gpu_leave_the_old_ids_unhealthy() -> None:
    roll = Roll()
    roll.state((Devices("GPU-a", ("GPU-a::0", "GPU-a::1"), ()),))
    roll.state((Devices("GPU-a", ("GPU-a::0",), ()),))
    assert told(roll) == {"GPU-a::0": "Healthy", "GPU-a::1": "Unhealthy"}
    assert roll.count() == (1, 2)


@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.booleans()), unique_by=lambda p: p[0]), max_size=12))
def test_whatever_is_offered_and_withdrawn_the_kubelet_knows_every_id_ever_offered(
    steps: list[list[tuple[int, bool]]],
) -> None:
    roll, ever = Roll(), set[str]()
    for step in steps:
        now = {f"0000:1a:00.{n}": good for n, good in sorted(step)}
        roll.state(tuple(vf(n, Health() if good else DOWN) for n, good in sorted(step)))
        ever |= now.keys()
        assert told(roll) == {id_: "Healthy" if now.get(id_) else "Unhealthy" for id_ in ever}
        assert {id_ for id_ in ever if roll.missing([id_])} == ever - now.keys()
