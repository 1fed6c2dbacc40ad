"""The driver of a recorded machine: changes, exact values, errors."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuReading
from nodeagent.host.recorded_gpus import PATH, RecordedGpuDriver, record

H100 = {
    "uuid": "GPU-0",
    "index": 0,
    "minor": 0,
    "name": "NVIDIA H100",
    "pci_address": "0000:1b:00.0",
    "memory_mib": 81559,
    "mig": False,
    "lost": False,
    "recovery_action": "none",
}


class Machine:
    def __init__(self, root):
        self.root = root
        self.path = root / PATH.lstrip("/")
        self.path.parent.mkdir(parents=True)

    def write(self, text):
        new = self.path.with_suffix(".new")
        new.write_bytes(text if isinstance(text, bytes) else text.encode())
        new.rename(self.path)

    def set(self, **parts):
        content = {"driver_version": "580.95.05", "cuda_version": "13.0", "failure": None}
        self.write(json.dumps(content | {"gpus": [H100], "events": []} | parts))


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    machine.set()
    return machine


@pytest.fixture
def driver(machine):
    driver = RecordedGpuDriver(machine.root)
    driver.open()
    yield driver
    driver.close()


def event(sequence, xid=79, uuid="GPU-0"):
    return {"sequence": sequence, "uuid": uuid, "xid": xid}


def test_gpus_are_read_each_time_and_sorted_by_index(driver, machine):
    assert driver.version() == "580.95.05"
    assert [one.memory_mib for one in driver.gpus()] == [81559]
    machine.set(gpus=[H100 | {"index": 1, "uuid": "GPU-1", "lost": True}, H100])
    assert [(one.uuid, one.lost) for one in driver.gpus()] == [("GPU-0", False), ("GPU-1", True)]


def test_old_events_are_not_returned_and_the_same_xid_twice_is_two_events(machine):
    machine.set(events=[event(1), event(2)])
    driver = RecordedGpuDriver(machine.root)
    driver.open()
    assert driver.wait(0) == ()
    machine.set(events=[event(4), event(3), event(2)])
    assert driver.wait(5) == (GpuEvent("GPU-0", 79), GpuEvent("GPU-0", 79))
    assert driver.wait(0) in ((), (GpuEvent(None, None),))
    driver.close()


def test_a_wait_ends_as_soon_as_the_file_is_replaced(driver, machine):
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(driver.wait(30)))
    waiting.start()
    machine.set(events=[event(1, xid=48)])
    waiting.join(10)
    assert heard == [(GpuEvent("GPU-0", 48),)]


def test_a_change_without_an_event_requests_a_reading(driver, machine):
    machine.set(gpus=[H100 | {"recovery_action": "gpu_reset"}])
    assert driver.wait(5) == (GpuEvent(None, None),)
    assert driver.wait(0) == ()


def test_an_in_place_rewrite_ends_a_wait_too(driver, machine):
    machine.path.write_text(json.dumps({"gpus": [], "events": [event(1)]}))
    assert driver.wait(5) == (GpuEvent("GPU-0", 79),)


@pytest.mark.parametrize("call", ["init", "list", "wait"])
def test_a_failure_is_a_driver_error_of_the_named_call_only(driver, machine, call):
    machine.set(failure={"call": call, "error": "Unknown Error"})
    asks = {"init": driver.open, "list": driver.gpus, "wait": lambda: driver.wait(0)}
    with pytest.raises(DriverError, match=r"^Unknown Error$") as error:
        asks.pop(call)()
    assert not error.value.absent
    for ask in asks.values():
        ask()


def test_without_a_recording_there_is_no_driver(tmp_path):
    with pytest.raises(DriverError) as error:
        RecordedGpuDriver(tmp_path).open()
    assert error.value.absent


def test_a_removed_recording_is_an_absent_driver(driver, machine):
    machine.path.unlink()
    with pytest.raises(DriverError) as error:
        driver.wait(5)
    assert error.value.absent


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    (tmp_path / PATH.lstrip("/")).mkdir(parents=True)
    with pytest.raises(DriverError, match="cannot be read"):
        RecordedGpuDriver(tmp_path).open()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"gpus": 3}',
        '{"gpus": [{}]}',
        '{"gpus": [{"index": "0"}]}',
        '{"failure": {"call": "dance", "error": "x"}}',
        '{"events": [{"sequence": 1.5, "uuid": "a", "xid": 1}]}',
        b"\xff\xfe",
        "[" * 100_000,
    ],
)
def test_a_malformed_recording_is_an_error_that_names_the_file(driver, machine, text):
    machine.write(text)
    for ask in (driver.gpus, driver.version, lambda: driver.wait(0)):
        with pytest.raises(DriverError, match=r"gpus\.json is not a recording"):
            ask()


@given(raw=st.binary(max_size=200))
def test_any_content_of_the_file_raises_only_driver_error(tmp_path_factory, raw):
    machine = Machine(tmp_path_factory.mktemp("any"))
    machine.write(raw)
    try:
        RecordedGpuDriver(machine.root).gpus()
    except DriverError as error:
        assert "gpus.json" in str(error)  # noqa: PT017 - either outcome is good


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
READINGS = st.builds(
    GpuReading,
    index=st.integers(0, 31),
    uuid=TEXT,
    minor=st.none() | st.integers(0, 255),
    name=TEXT,
    pci_address=TEXT,
    memory_mib=st.none() | st.integers(0, 2**40),
    mig=st.booleans(),
    recovery_action=TEXT,
    lost=st.booleans(),
    fault=TEXT,
)


@given(readings=st.lists(READINGS, max_size=4, unique_by=lambda one: one.index), version=TEXT)
def test_a_recording_reads_back_the_same_values(tmp_path_factory, readings, version):
    machine = Machine(tmp_path_factory.mktemp("recorded"))
    machine.write(record(tuple(readings), version))
    driver = RecordedGpuDriver(machine.root)
    assert driver.gpus() == tuple(sorted(readings, key=lambda one: one.index))
    assert driver.version() == version
