"""GPUs that NVML does not name: state and reason of each, by its kernel driver and by a trouble of the whole driver."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.facts.model import Gpu, GpuFunction, Snapshot, State
from nodeagent.health.gpu import GpuJudge
from nodeagent.health.service import HealthService
from nodeagent.health.unusable_gpus import DriverTrouble, find_unusable
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.kinds import gpu_access
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading
from nodeagent.sources.remembered_gpus import RememberedGpus

ADDRESS = "0000:1b:00.0"


@pytest.mark.parametrize(
    ("driver", "trouble", "state", "key", "text"),
    [
        ("nvidia", None, State.UNHEALTHY, "gpu_lost", "no longer reaches"),
        ("nouveau", None, State.UNHEALTHY, "gpu_lost", "bound to nouveau"),
        (None, None, State.UNHEALTHY, "gpu_lost", "No kernel driver"),
        ("vfio-pci", None, State.UNUSED, "gpu_passthrough", "bound to vfio-pci"),
        ("nvgrace_gpu_vfio_pci", None, State.UNUSED, "gpu_passthrough", "virtual machines"),
        ("nvidia", DriverTrouble("mismatch"), State.UNHEALTHY, "driver_version_mismatch", "mismatch"),
        (None, DriverTrouble("no library", absent=True), State.UNKNOWN, "driver_absent", "no library"),
        ("vfio-pci", DriverTrouble("no library", absent=True), State.UNUSED, "gpu_passthrough", "vfio"),
    ],
)
def test_a_gpu_on_the_bus_without_a_name_has_a_reason(
    driver: str | None, trouble: DriverTrouble | None, state: State, key: str, text: str
) -> None:
    (gpu,) = find_unusable([GpuFunction(ADDRESS, driver)], [], [], trouble=trouble)
    assert (gpu.place, gpu.health.state, gpu.health.allocatable) == (ADDRESS, state, False)
    (reason,) = gpu.health.reasons
    assert reason.key == key
    assert text in reason.detail


def test_a_named_gpu_is_not_unusable_and_a_reading_explains_the_gpu_at_its_place() -> None:
    functions = [GpuFunction(f"0000:{bus}:00.0", "nvidia") for bus in ("1b", "1c", "1d", "1e")]
    readings = [
        GpuReading(1, fault="Unknown Error"),
        GpuReading(2, pci_address="0000:1e:00.0", lost=True),
    ]
    found = find_unusable(functions, ["0000:1b:00.0"], readings)
    assert [(gpu.place, gpu.health.reasons[0].key) for gpu in found] == [
        ("0000:1c:00.0", "gpu_unreadable"),
        ("0000:1d:00.0", "gpu_lost"),
        ("0000:1e:00.0", "gpu_lost"),
    ]
    assert [gpu.place for gpu in find_unusable([], [], readings)] == ["0000:1e:00.0", "index 1"]


def reading(index: int, uuid: str | None = None, bus: int | None = None, **more: object) -> GpuReading:
    bus = index if bus is None else bus
    return GpuReading(index, uuid, index, "H100", f"0000:{bus:02x}:00.0", 81559, **more)


def test_a_reading_without_a_uuid_is_of_the_gpu_at_its_address_whatever_its_index() -> None:
    judge = GpuJudge()
    judge.recall([reading(0, "GPU-a"), reading(1, "GPU-b"), reading(2, "GPU-c")], 0)
    odd = GpuReading(1, pci_address="0000:02:00.0", fault="Unknown Error")
    judge.take_readings(
        [reading(0, "GPU-a"), odd],
        1,
        bus={f"0000:0{n}:00.0": GpuFunction(f"0000:0{n}:00.0", "nvidia") for n in (0, 2)},
    )
    health = judge.judge(1)
    assert [health[uuid].reasons[0].key if health[uuid].reasons else "" for uuid in judge.devices] == [
        "",
        "gpu_lost",
        "gpu_unreadable",
    ]
    assert [gpu.index for gpu in judge.devices.values()] == [0, 1, 2]


def test_indexes_follow_the_driver_again_when_every_gpu_is_listed() -> None:
    judge = GpuJudge()
    judge.recall([reading(0, "GPU-a"), reading(1, "GPU-b"), reading(2, "GPU-c")], 0)
    judge.take_readings([reading(0, "GPU-b", 1), reading(1, "GPU-c", 2)], 1)
    assert {uuid: gpu.index for uuid, gpu in judge.devices.items()} == {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    judge.take_readings([reading(0, "GPU-b", 1), reading(1, "GPU-c", 2), reading(2, "GPU-new", 7)], 2)
    assert {gpu.index for gpu in judge.devices.values()} == {0, 1, 2, 3}
    judge.forget("GPU-a")
    judge.take_readings([reading(0, "GPU-b", 1), reading(1, "GPU-c", 2), reading(2, "GPU-new", 7)], 3)
    assert {uuid: gpu.index for uuid, gpu in judge.devices.items()} == {"GPU-b": 0, "GPU-c": 1, "GPU-new": 2}


def test_a_lost_gpu_keeps_its_index_whatever_the_order_of_the_uuids() -> None:
    judge = GpuJudge()
    judge.recall([reading(0, "GPU-z"), reading(1, "GPU-a")], 0)
    judge.take_readings([reading(0, "GPU-a", 1)], 1)
    assert {uuid: gpu.index for uuid, gpu in judge.devices.items()} == {"GPU-z": 0, "GPU-a": 1}


PLACES = range(6)


def listed(shown: Collection[int], unnamed: Collection[int] = ()) -> list[GpuReading]:
    """The list of NVML, which counts the GPUs that it has in the order of the bus. Some of them have no name."""
    return [
        GpuReading(index, fault="Unknown Error")
        if place in unnamed
        else reading(index, f"GPU-{place}", place)
        for index, place in enumerate(sorted({*shown, *unnamed}))
    ]


@given(
    steps=st.lists(
        st.tuples(
            st.sets(st.sampled_from(PLACES)), st.sampled_from(["bus first", "driver first", "same agent"])
        ),
        min_size=1,
        max_size=6,
    ),
    unnamed=st.sets(st.sampled_from(PLACES)),
)
@example(steps=[({1, 2}, "driver first"), ({0, 1, 2}, "same agent")], unnamed=set())
@example(steps=[({0, 3}, "bus first"), (set(PLACES), "driver first")], unnamed={1})
@example(steps=[({0}, "bus first"), ({2}, "bus first")], unnamed=set())
def test_a_gpu_has_one_index_from_its_first_publication_on_whichever_others_the_driver_lists(
    steps: list[tuple[set[int], str]], unnamed: set[int]
) -> None:
    """GPUs fail to initialize from time to time, before and after starts of agents. At first some have no name."""
    bus = {f"0000:{n:02x}:00.0": GpuFunction(f"0000:{n:02x}:00.0", "nvidia") for n in PLACES}
    judge = GpuJudge()
    kept: dict[int, int] = {}
    for now, (shown, order) in enumerate(steps):
        if order != "same agent":
            judge = GpuJudge()
            judge.recall([reading(index, f"GPU-{place}", place) for place, index in kept.items()], now)
        readings = listed(shown, () if now else unnamed)
        judge.take_readings(readings, now, None if order == "driver first" else bus)
        if order == "driver first":
            judge.locate(bus, now)
        kept = {int(uuid[4:]): gpu.index for uuid, gpu in judge.devices.items()}
        assert kept.keys() >= {int(one.uuid[4:]) for one in readings if one.uuid is not None}
        assert all(place == index for place, index in kept.items())


@pytest.mark.parametrize(
    ("shown", "unnamed", "lost"),
    [
        ({0, 1, 3}, {2}, set()),  # each of the others is where it was: it is the one that has no reading
        ({0, 1, 2}, {3}, set()),
        ({0, 1}, {3}, {2, 3}),  # 2 is gone, and 3 has its index
        ({0}, {2, 3}, {1, 2, 3}),
        ({1, 2}, {3}, {0, 3}),  # the others have moved
        ({0, 1}, {2, 3}, set()),
    ],
)
def test_a_reading_that_names_nothing_is_of_the_gpu_at_its_index_only_while_the_count_is_the_same(
    shown: set[int], unnamed: set[int], lost: set[int]
) -> None:
    """NVML counts the GPUs that it lists: behind one that is gone each index is that of another GPU."""
    every = [reading(place, f"GPU-{place}", place) for place in range(4)]
    same, later = GpuJudge(), GpuJudge()
    same.take_readings(every, 0)
    later.recall(every, 0)
    for judge in (same, later):
        judge.take_readings(listed(shown, unnamed), 1)
        assert {int(uuid[4:]) for uuid, gpu in judge.devices.items() if not gpu.listed} == lost


def test_the_count_is_that_of_the_last_reading() -> None:
    """A GPU that was lost before has no index any more."""
    judge = GpuJudge()
    judge.take_readings(listed({0, 1, 2, 3}), 0)
    judge.take_readings(listed({0, 2, 3}), 1)
    judge.take_readings(listed({0, 3}, {2}), 2)
    assert [uuid for uuid, gpu in judge.devices.items() if not gpu.listed] == ["GPU-1"]
    judge.take_readings(listed({0, 2, 3}, {1}), 3)
    assert [uuid for uuid, gpu in judge.devices.items() if not gpu.listed] == ["GPU-1"]


def test_a_gpu_that_a_person_keeps_from_the_driver_has_no_place_in_its_count() -> None:
    bus = {
        "0000:00:00.0": GpuFunction("0000:00:00.0", "vfio-pci"),
        "0000:01:00.0": GpuFunction("0000:01:00.0", "nvidia", excluded=True),
        "0000:02:00.0": GpuFunction("0000:02:00.0", "nouveau"),
    }
    judge = GpuJudge()
    judge.take_readings([reading(0, "GPU-a", 3)], 0, bus)
    assert judge.devices["GPU-a"].index == 0


def test_an_index_of_an_earlier_agent_stays_although_that_one_did_not_count_a_hidden_gpu() -> None:
    bus = {f"0000:0{n}:00.0": GpuFunction(f"0000:0{n}:00.0", "nvidia") for n in range(2)}
    judge = GpuJudge()
    judge.recall([reading(0, "GPU-b", 1)], 0)
    judge.take_readings([reading(0, "GPU-b", 1)], 1)
    judge.locate(bus, 2)
    assert judge.devices["GPU-b"].index == 0
    judge.take_readings([reading(0, "GPU-a", 0), reading(1, "GPU-b", 1)], 3, bus)
    assert {uuid: gpu.index for uuid, gpu in judge.devices.items()} == {"GPU-a": 0, "GPU-b": 1}


def test_gpus_are_stored_once_the_bus_is_known(tmp_path: Path) -> None:
    publisher = GpuPublisher(HealthService(), RememberedGpus(tmp_path))
    publisher.take_reading(DriverReading("580", (reading(0, "GPU-b", 1),), {}))
    assert publisher.remembered.gpus == ()
    publisher.take_functions(tuple(GpuFunction(f"0000:0{n}:00.0", "nvidia") for n in range(2)))
    assert [(gpu.uuid, gpu.index) for gpu in publisher.remembered.gpus] == [("GPU-b", 1)]


def test_the_minor_number_of_a_gpu_that_is_not_listed_is_unknown() -> None:
    publisher = GpuPublisher(HealthService())
    published: list[tuple[Gpu, ...]] = []
    publisher.publish_to(published.append)
    lost, other = reading(0, "GPU-a"), reading(1, "GPU-b")
    publisher.take_reading(DriverReading("580", (lost, other), {}))
    publisher.take_reading(DriverReading("580", (structs.replace(other, index=0, minor=0),), {}))
    assert [(gpu.uuid, gpu.minor) for gpu in published[-1]] == [("GPU-a", None), ("GPU-b", 0)]
    assert set(gpu_access.cdi_devices(Snapshot(gpus=published[-1])).devices) == {"GPU-b"}


def test_gpus_of_an_earlier_agent_are_marked_when_the_driver_refuses_from_the_start(tmp_path: Path) -> None:
    text = '[{"uuid": "GPU-a", "index": 0, "pci_address": "0000:1b:00.0", "memory_mib": 81559}]'
    (tmp_path / "gpus.json").write_text(text)
    publisher = GpuPublisher(HealthService(), RememberedGpus(tmp_path))
    published: list[tuple[Gpu, ...]] = []
    publisher.publish_to(published.append)
    publisher.take_functions((GpuFunction("0000:1b:00.0", "nvidia"), GpuFunction("0000:1c:00.0", "nvidia")))
    publisher.take_driver_failure("it hangs")
    assert published == [], "a driver without an answer is no evidence, and the GPUs may be there"
    publisher.take_mismatch("nvmlInit: version mismatch")
    (gpu,), (other,) = published[-1], publisher.unusable
    assert [reason.key for reason in gpu.health.reasons] == ["driver_version_mismatch"]
    assert (gpu.uuid, gpu.memory_mib, gpu.health.allocatable) == ("GPU-a", 81559, False)
    assert (other.place, other.health.reasons[0].key) == ("0000:1c:00.0", "driver_version_mismatch")
    publisher.take_reading(DriverReading("580", (reading(0, "GPU-a", 0x1B), reading(1, "GPU-b", 0x1C)), {}))
    assert [gpu.health.allocatable for gpu in published[-1]] == [True, True]
    assert publisher.unusable == ()


def test_a_known_gpu_at_the_address_of_a_lost_one_replaces_nothing() -> None:
    judge = GpuJudge()
    judge.recall([reading(0, "GPU-a"), reading(1, "GPU-b")], 0)
    judge.take_readings([reading(0, "GPU-b", 0)], 1)
    assert set(judge.devices) == {"GPU-a", "GPU-b"}
    assert judge.replaced == []


def test_a_mismatch_marks_all_gpus_at_once_and_ends_with_the_next_good_reading() -> None:
    judge = GpuJudge()
    gpus = [reading(n, f"GPU-{n}") for n in range(8)]
    judge.take_readings(gpus, 0)
    judge.judge(0)
    judge.take_mismatch("they differ", 1)
    assert not any(health.allocatable for health in judge.judge(1).values()), "the guard lets it pass"
    judge.take_readings(gpus, 2)
    assert all(health.allocatable for health in judge.judge(2).values())
