"""The source over a recorded machine, and over drivers that misbehave as no recording can."""

import asyncio
import contextlib
import json
import logging
import threading
import time

import pytest

from nodeagent.base.stored_file import boot_id
from nodeagent.facts.model import HEALTHY, GpuFunction, State
from nodeagent.health.service import GPU_SECTION, HealthService
from nodeagent.health.state_file import StateFile
from nodeagent.host.gpu_driver import DriverError, DriverMessage, GpuEvent, GpuReading, GpuVitals
from nodeagent.host.recorded_gpus import PATH, RecordedGpuDriver
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import measurement
from nodeagent.sources import gpu_source, nvml_session
from nodeagent.sources.gpu_publisher import GpuPublisher
from tests.support.waiting import LIMIT_S


def recorded(index, **parts):
    gpu = {"uuid": f"GPU-{index}", "index": index, "minor": index, "name": "NVIDIA H100"}
    gpu |= {"pci_address": f"0000:{0x1B + index:02x}:00.0", "memory_mib": 81559, "recovery_action": "none"}
    return gpu | parts


class Machine:
    def __init__(self, root):
        self.root = root
        self.path = root / PATH.lstrip("/")
        self.path.parent.mkdir(parents=True)
        self.events = []

    def write(self, text):
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def set(self, *machines_gpus, **parts):
        content = {"driver_version": "580.95.05", "gpus": machines_gpus, "events": self.events}
        self.write(json.dumps(content | parts))

    def place(self, address, bridge, numa):
        real = self.root / f"sys/devices/pci0000:15/{bridge}/{address}"
        real.mkdir(parents=True)
        (real / "numa_node").write_text(f"{numa}\n")
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(f"../../../devices/pci0000:15/{bridge}/{address}")


class Published:
    """The latest published GPUs, or the reason why the source failed."""

    def __init__(self):
        self.gpus = None
        self.failure = None
        self.news = asyncio.Event()
        self.samples = []
        self.facts = None

    def take_samples(self, samples):
        self.samples.append(samples)

    def publish(self, all_gpus):
        self.gpus, self.failure = all_gpus, None
        self.news.set()

    def mark_stale(self, why):
        self.failure = why
        self.news.set()

    async def until(self, true):
        async with asyncio.timeout(LIMIT_S):
            while not true():
                self.news.clear()
                await self.news.wait()

    async def keys(self, *expected):
        """Until each GPU, by index, has these reasons."""

        def keys():
            return [" ".join(reason.key for reason in gpu.health.reasons) for gpu in self.gpus or ()]

        await self.until(lambda: self.failure is None and keys() == list(expected))


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    machine.set(recorded(0), recorded(1))
    return machine


@contextlib.asynccontextmanager
async def watching(driver, root, state_file=None, **settings):
    published = Published()
    pace = {"interval_s": 0.05, "with_events_s": 0.05, "vitals_s": 0.05, "absent_s": 0.05, "timeout_s": 5.0}
    pace |= {name: settings.pop(name) for name in pace if name in settings}
    health = HealthService(state_file=state_file)
    published.facts = GpuPublisher(health)
    published.facts.publish_to(published.publish, published.take_samples)
    storing = asyncio.create_task(health.run())
    settings["pace"] = gpu_source.Pace(**pace)
    task = asyncio.create_task(
        gpu_source.watch_gpus(driver, Tree(root), published.facts, published.mark_stale, **settings)
    )
    task.add_done_callback(lambda _: published.news.set())
    try:
        yield published
    finally:
        for ended in (task, storing):
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended


def on(machine, **settings):
    return watching(lambda: RecordedGpuDriver(machine.root), machine.root, **settings)


async def test_gpus_are_published_with_their_numa_node_and_pci_path(machine):
    machine.place("0000:1b:00.0", "0000:15:01.0", 1)
    machine.place("0000:1c:00.0", "0000:15:02.0", -1)
    async with on(machine) as published:
        await published.keys("", "")
    first, second = published.gpus
    assert (first.numa_node, first.pci_path) == (1, ("pci0000:15", "0000:15:01.0", "0000:1b:00.0"))
    assert (second.numa_node, second.pci_path[-1]) == (None, "0000:1c:00.0")
    assert (first.uuid, first.minor, first.memory_mib, first.health) == ("GPU-0", 0, 81559, HEALTHY)


async def test_a_gpu_that_left_sysfs_keeps_its_place(machine):
    machine.place("0000:1b:00.0", "0000:15:01.0", 1)
    async with on(machine) as published:
        await published.keys("", "")
        (machine.root / "sys/bus/pci/devices/0000:1b:00.0").unlink()
        machine.set(recorded(0, lost=True), recorded(1))
        await published.keys("gpu_lost", "")
    assert published.gpus[0].numa_node == 1


async def test_an_unreadable_numa_node_is_unknown_alone(machine):
    machine.place("0000:1b:00.0", "0000:15:01.0", "rubbish")
    async with on(machine) as published:
        await published.keys("", "")
    assert published.gpus[0].numa_node is None


async def test_an_xid_is_published_and_counted_each_time_and_a_reset_clears_it(machine):
    async with on(machine, interval_s=60) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-1", "xid": 79}] * 1
        machine.set(recorded(0), recorded(1))
        await published.keys("", "xid_79")
        assert not published.gpus[1].health.allocatable
        machine.events += [{"sequence": 2, "uuid": "GPU-1", "xid": 79}]
        machine.set(recorded(0), recorded(1, recovery_action="gpu_reset"))
        await published.keys("", "recovery_gpu_reset xid_79")
        machine.set(recorded(0), recorded(1))
        await published.keys("", "")
    assert published.facts.xids == {("GPU-1", 79): 2}


async def test_a_missing_gpu_stays_as_lost_and_recovers(machine):
    async with on(machine) as published:
        await published.keys("", "")
        machine.set(recorded(0))
        await published.keys("", "gpu_lost")
        machine.set(recorded(0), recorded(1), recorded(2))
        await published.keys("", "", "")


async def test_an_absent_driver_is_logged_once_and_a_later_one_found(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    looked = threading.Semaphore(0)

    class Looking(RecordedGpuDriver):
        def open(self):
            looked.release()
            super().open()

    async with watching(lambda: Looking(tmp_path), tmp_path, absent_s=0.01) as published:
        await published.until(lambda: published.gpus == ())
        for _ in range(3):
            assert await asyncio.to_thread(looked.acquire, timeout=5)
        assert caplog.text.count("There is no GPU driver") == 1
        machine = Machine(tmp_path)
        machine.set(recorded(0))
        await published.keys("")


async def test_a_hint_finds_a_new_driver_at_once(tmp_path):
    hints = asyncio.Event()
    async with watching(
        lambda: RecordedGpuDriver(tmp_path), tmp_path, absent_s=3600, hints=hints
    ) as published:
        await published.until(lambda: published.gpus == ())
        Machine(tmp_path).set(recorded(0))
        hints.set()
        await published.keys("")


@pytest.mark.parametrize("broken", ["{", '{"failure": {"call": "list", "error": "Unknown Error"}}'])
async def test_a_failing_driver_fails_the_source_and_its_gpus_stay(machine, broken):
    async with on(machine) as published:
        await published.keys("", "")
        machine.write(broken)
        await published.until(lambda: published.failure is not None)
        assert [gpu.health.state for gpu in published.gpus] == [State.UNKNOWN] * 2
        assert all(gpu.health.allocatable for gpu in published.gpus)
        machine.set(recorded(0), recorded(1))
        await published.keys("", "")


async def test_a_failing_wait_changes_no_health(machine):
    readings = []
    async with on(machine) as published:
        await published.keys("", "")
        machine.set(recorded(0), recorded(1), failure={"call": "wait", "error": "Unknown Error"})
        for _ in range(4):
            published.news.clear()
            async with asyncio.timeout(10):
                await published.news.wait()
            readings.append((published.failure, [gpu.health for gpu in published.gpus]))
        machine.events = [{"sequence": 1, "uuid": "GPU-0", "xid": 48}]
    assert readings == [(None, [HEALTHY, HEALTHY])] * 4


async def test_a_gpu_without_a_uuid_is_left_out_and_logged_once(machine, caplog):
    caplog.set_level(logging.INFO)
    machine.set(recorded(0), {"index": 1, "fault": "Unknown Error"}, recorded(2, memory_mib=None))
    async with on(machine) as published:
        await published.keys("")
        for _ in range(3):
            published.news.clear()
            await published.news.wait()
    assert caplog.text.count("A GPU is not offered. gpu='index 1' reason=gpu_unreadable") == 1
    assert caplog.text.count("A GPU is not offered. gpu='0000:1d:00.0' reason=gpu_unreadable") == 1
    assert [gpu.place for gpu in published.facts.unusable] == ["0000:1d:00.0", "index 1"]


# Vitals


async def test_measured_values_are_published_as_samples_and_evaluated(machine):
    values = {"gpu_celsius": 40, "gpu_row_remap_failed": 0, "gpu_nvlink_up/17": 1}
    machine.set(recorded(0, values=values, texts={"gpu_serial": "1"}), recorded(1))
    async with on(machine) as published:
        await published.keys("", "")
        await published.until(lambda: published.samples)
        machine.events = [{"sequence": n, "uuid": "GPU-0", "xid": 13} for n in (1, 2)]
        machine.set(recorded(0, values=values | {"gpu_row_remap_failed": 1}), recorded(1))
        await published.keys("remap_failed", "")
        assert not published.gpus[0].health.allocatable
    batches = published.samples
    first, second = batches[0]
    assert (first.device, first.source, second.device) == ("GPU-0", Source.GPU, "GPU-1")
    assert first.values == values
    assert batches[-1][0].values == values | {"gpu_row_remap_failed": 1, "gpu_xids/13": 2}
    assert first.texts == {
        "gpu_serial": "1",
        "gpu_driver": "580.95.05",
        "gpu_recovery_action": "none",
    }
    assert 0 < first.at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert all(measurement(name) for sample in batches[0] for name in sample.values)


async def test_impossible_values_are_dropped_and_logged_once(machine, caplog):
    absurd = {"gpu_pcie_width": 2**32 - 1, "gpu_celsius": -300, "gpu_nvlink_up/x": 1, "rm -rf": 1}
    machine.set(recorded(0, values=absurd | {"gpu_memory_celsius": 41}))
    async with on(machine) as published:
        await published.until(lambda: len(published.samples) > 3)
    assert [sample.values for sample in published.samples[-1]] == [{"gpu_memory_celsius": 41}]
    assert caplog.text.count("Implausible GPU values dropped") == 1
    assert all(repr(name) in caplog.text for name in absurd)


async def test_a_failing_measurement_costs_nothing_else_and_is_logged_once(machine, caplog):
    machine.set(recorded(0), recorded(1), failure={"call": "vitals", "error": "Unknown Error"})
    async with on(machine) as published:
        await published.keys("", "")
        for _ in range(10):
            published.news.clear()
            await published.news.wait()
        assert published.failure is None
    assert caplog.text.count("The GPUs cannot be measured") == 1


async def test_memory_is_reported_by_container_and_never_by_process(machine):
    inner, outer = "ab" * 32, "cd" * 32
    scope = f"0::/docker/{outer}/kubepods.slice/kubepods-pod1.slice/cri-containerd-{inner}.scope\n"
    for pid, text in (("11", scope), ("12", scope), ("13", "0::/user.slice\n")):
        (machine.root / "proc" / pid).mkdir(parents=True)
        (machine.root / "proc" / pid / "cgroup").write_text(text)
    used = [
        {"pid": pid, "memory_bytes": size} for pid, size in ((11, 5), (12, 7), (13, 9), (14, 1), (13, None))
    ]
    machine.set(recorded(0, processes=used), recorded(1, processes=[]))
    async with on(machine) as published:
        await published.until(lambda: published.samples)
    first, second = published.samples[0]
    assert first.values == {
        "gpu_processes": 5,
        f"gpu_container_memory_bytes/{inner}": 12,
        "gpu_container_memory_bytes/host": 9,
        "gpu_container_memory_bytes/unknown": 1,
    }
    assert second.values == {"gpu_processes": 0}


async def test_an_event_triggers_a_measurement_too(machine):
    async with on(machine, interval_s=3600, vitals_s=3600) as published:
        await published.keys("", "")
        await published.until(lambda: published.samples)
        machine.set(recorded(0, values={"gpu_row_remap_pending": 1}), recorded(1))
        await published.keys("remap_pending", "")


async def test_a_line_of_the_kernel_log_decodes_an_xid_and_withdraws_its_gpu(machine):
    line = DriverMessage("0000:1b:00", 149, True, 8, unit="NETIR_LINK_EVT", subcode=36)
    async with on(machine) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-0", "xid": 149}]
        machine.set(recorded(0), recorded(1))
        await published.keys("xid_149", "")
        assert published.gpus[0].health.allocatable
        published.facts.take_messages([line, DriverMessage("0000:05:00.0", 20034, False, 3, switch=True)])
        assert not published.gpus[0].health.allocatable
        assert published.gpus[1].health == HEALTHY
        assert published.facts.sxids == {("0000:05:00.0", 20034): 1}


async def test_a_line_that_the_driver_repeats_is_logged_once(machine, caplog):
    said = DriverMessage("0000:1c:00.0", 0, True, words="RmInitAdapter failed (0x26:0x65:1482)")
    async with on(machine) as published:
        await published.keys("", "")
        for _ in range(3):
            published.facts.take_messages([said])
        assert caplog.text.count("tells why GPUs are not reached") == 1


async def test_the_kernel_log_says_why_a_gpu_is_not_reached(machine):
    said = DriverMessage("0000:1c:00.0", 0, True, words="RmInitAdapter failed (0x26:0x65:1482)")
    functions = tuple(GpuFunction(f"0000:{bus}:00.0", "nvidia") for bus in ("1b", "1c"))
    async with on(machine) as published:
        await published.keys("", "")
        published.facts.take_functions(functions)
        published.facts.take_messages([said])
        assert published.gpus[1].health == HEALTHY, "a line alone is not a fault"
        machine.set(recorded(0))
        await published.keys("", "gpu_lost")
        assert (
            "(kernel log: RmInitAdapter failed (0x26:0x65:1482))"
            in published.gpus[1].health.reasons[0].detail
        )
        machine.set(recorded(0), recorded(1))
        await published.keys("", "")
        machine.set(recorded(0))
        await published.keys("", "gpu_lost")
        assert "kernel log" not in published.gpus[1].health.reasons[0].detail, (
            "an old line explains no new loss"
        )
        published.facts.take_messages([said])
        assert "kernel log" in published.gpus[1].health.reasons[0].detail


def test_lines_of_the_kernel_log_publish_nothing_where_no_gpu_is_known():
    facts = GpuPublisher(HealthService())
    facts.publish_to(lambda _gpus: pytest.fail("an empty list would be a fact"))
    facts.take_messages([DriverMessage("0000:05:00.0", 20034, True, 3, switch=True)])


async def test_an_unavailable_gpu_is_unhealthy_alone(machine):
    async with on(machine) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-1", "xid": None, "unavailable": True}]
        machine.set(recorded(0), recorded(1, recovery_action="gpu_reset"))
        await published.keys("", "recovery_gpu_reset gpu_unavailable")
        machine.set(recorded(0), recorded(1))
        await published.keys("", "")


async def test_a_driver_that_hangs_in_a_measurement_is_used_without_it(tmp_path, caplog):
    hung = []

    def make():
        hung.append(Scripted(hold=("vitals",)))
        return hung[-1]

    async with watching(make, tmp_path, timeout_s=0.1) as published:
        await published.keys("")
        await published.until(lambda: len(hung) > 1 and hung[1].listed > 3)
        assert (published.failure, published.samples) == (None, [])
        assert len(hung) == 2
        for driver in hung:
            driver.release.set()
    assert "nothing is measured for 600 s" in caplog.text


async def test_each_gpu_is_explained_and_counted_for_metrics(machine):
    values = {"gpu_row_remap_failed": 1, "gpu_pcie_width": 16, "gpu_pcie_width_max": 16}
    async with on(machine) as published:
        await published.keys("", "")
        machine.set(recorded(0, values=values), recorded(1))
        await published.keys("remap_failed", "")
        first, second = published.facts.health.explain()
        figures = published.facts.health.figures()
    assert (first.name, first.state, first.allocatable) == ("GPU0", State.UNHEALTHY, False)
    assert {rule.phase for rule in second.rules} == {"unknown"}
    phases = {rule.rule: rule.phase for rule in first.rules}
    assert (phases["remap_failed"], phases["pcie_width"], phases["nvlink_down"]) == (
        "active",
        "quiet",
        "unknown",
    )
    assert figures["GPU-0"].transitions == {("healthy", "unhealthy"): 1}
    assert figures["GPU-0"].values == {"remap_failed": 1, "pcie_width": 16}
    assert figures["GPU-1"].transitions == {}


async def test_nothing_is_measured_while_a_measurement_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_source, "VITALS_REST_S", 0.0)
    made = []

    def make():
        made.append(Scripted(hold=("vitals",) if not made else ()))
        return made[-1]

    async with watching(make, tmp_path, timeout_s=0.1, vitals_s=0.01) as published:
        await published.keys("")
        await published.until(lambda: len(made) > 1 and made[1].listed > 5)
        assert published.samples == []
        made[0].release.set()
        await published.until(lambda: published.samples)
    assert len(made) == 2


# What outlives the process


async def test_a_fault_outlives_a_restart_and_a_reset_meanwhile_clears_it(machine, tmp_path):
    folder = tmp_path / "state"
    state_file = StateFile.open(folder)
    writing = asyncio.create_task(state_file.run())
    async with on(machine, state_file=state_file) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-1", "xid": 79}]
        machine.set(recorded(0, values={"gpu_nvlink_up/12": 1}), recorded(1, recovery_action="gpu_reset"))
        await published.keys("", "recovery_gpu_reset xid_79")
    writing.cancel()
    await asyncio.wait([writing])
    async with on(machine, state_file=StateFile.open(folder)) as published:
        await published.keys("", "recovery_gpu_reset xid_79")
    machine.set(recorded(0), recorded(1))
    async with on(machine, state_file=StateFile.open(folder)) as published:
        await published.keys("", "")


async def test_another_boot_starts_without_faults(machine, tmp_path):
    state_file = StateFile.open(tmp_path / "state")
    writing = asyncio.create_task(state_file.run())
    async with on(machine, state_file=state_file) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-1", "xid": 79}]
        machine.set(recorded(0), recorded(1))
        await published.keys("", "xid_79")
    writing.cancel()
    await asyncio.wait([writing])
    file = tmp_path / "state" / "health.json"
    file.write_text(file.read_text().replace(boot_id(), "0b5a4c8e-0000-4000-8000-000000000000"))
    async with on(machine, state_file=StateFile.open(tmp_path / "state")) as published:
        await published.keys("", "")


async def test_a_driver_without_an_answer_after_a_restart_keeps_the_health(machine, tmp_path):
    state_file = StateFile()
    async with on(machine, state_file=state_file) as published:
        await published.keys("", "")
        machine.events = [{"sequence": 1, "uuid": "GPU-1", "xid": 79}]
        machine.set(recorded(0), recorded(1))
        await published.keys("", "xid_79")
    machine.set(failure={"call": "list", "error": "Unknown Error"})
    async with on(machine, state_file=state_file) as published:
        await published.until(lambda: published.failure is not None)
    assert [gpu.health.allocatable for gpu in published.gpus] == [True, False]


async def test_a_quiet_machine_writes_the_state_file_once(machine):
    changes = []

    class CountingStateFile(StateFile):
        def store(self, section, records):
            before = self._sections.get(section)
            super().store(section, records)
            if section == GPU_SECTION:
                changes.append(self._sections.get(section) is not before)

    async with on(machine, state_file=CountingStateFile()) as published:
        await published.keys("", "")
        await published.until(lambda: len(changes) > 10)
    assert changes.count(True) == 1


class Scripted:
    """A driver with one GPU whose calls can be held; each instance is one session's."""

    def __init__(self, hold=(), error=None, *, events=False, fault=None):
        self.hold, self.error = hold, error
        self.events, self.fault = events, fault
        self.release = threading.Event()
        self.waited = threading.Event()
        self.closed = threading.Event()
        self.listed = 0
        self.lost = False

    def enter(self, call):
        if call in self.hold:
            self.release.wait(10)
        if self.error is not None and call == "list":
            raise self.error

    def open(self):
        self.enter("open")

    def close(self):
        self.enter("close")
        self.closed.set()

    def version(self):
        return None

    def gpus(self):
        self.enter("list")
        self.listed += 1
        return (GpuReading(0, "GPU-0", 0, "H100", "0000:1b:00.0", 81559, fault=self.fault, lost=self.lost),)

    def any_lost(self):
        self.enter("presence")
        return self.lost

    def excluded(self):
        return frozenset()

    def vitals(self):
        self.enter("vitals")
        return (GpuVitals("GPU-0", {"gpu_celsius": 40.0}),)

    def has_events(self):
        return self.events

    def wait(self, timeout_s):
        self.enter("wait")
        self.waited.wait(timeout_s)
        return ()


async def test_a_gpu_that_is_lost_without_an_event_is_read_after_the_next_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml_session, "WAIT_S", 0.01)
    driver = Scripted(events=True)
    hour = {"interval_s": 3600, "with_events_s": 3600, "vitals_s": 3600}
    async with watching(lambda: driver, tmp_path, **hour) as published:
        await published.keys("")
        driver.lost = True
        await published.keys("gpu_lost")


def test_a_loss_without_an_event_is_found_within_five_seconds():
    assert nvml_session.WAIT_S + nvml_session.SPACING_S < 5


@pytest.mark.parametrize("call", ["open", "list", "wait", "presence"])
async def test_a_call_that_hangs_is_abandoned_reported_and_replaced(tmp_path, call, monkeypatch):
    monkeypatch.setattr(nvml_session, "WAIT_S", 0.01)  # presence is asked between two readings
    hung, sound = Scripted(hold=(call,)), Scripted()
    drivers = iter([hung, sound])
    async with watching(lambda: next(drivers), tmp_path, timeout_s=0.1) as published:
        await published.until(lambda: published.failure is not None)
        assert f"in {call}" in published.failure
        assert gpu_source.stuck_threads() == 1
        await published.keys("")
        hung.release.set()
        assert await asyncio.to_thread(hung.closed.wait, 10)


async def test_a_close_that_hangs_is_abandoned_too(tmp_path):
    hung, sound = Scripted(hold=("close",), error=DriverError("Unknown Error")), Scripted()
    drivers = iter([hung, sound])
    async with watching(lambda: next(drivers), tmp_path, timeout_s=0.1) as published:
        await published.until(lambda: published.failure is not None and "in close" in published.failure)
        await published.keys("")
        hung.release.set()


async def test_results_of_an_abandoned_session_are_dropped(tmp_path):
    hung, sound = Scripted(hold=("list",)), Scripted()
    hung.gpus = lambda: (hung.enter("list"), (GpuReading(9, "GPU-9", 9, "old", "0000:ff:00.0", 1),))[1]
    drivers = iter([hung, sound])
    async with watching(lambda: next(drivers), tmp_path, timeout_s=0.1) as published:
        await published.keys("")
        hung.release.set()
        assert await asyncio.to_thread(hung.closed.wait, 10)
        published.news.clear()
        await published.news.wait()
        assert [gpu.uuid for gpu in published.gpus] == ["GPU-0"]


async def test_hung_threads_are_bounded_and_one_that_returns_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_source, "BACKOFF_MAX_S", 0.02)
    monkeypatch.setattr(gpu_source, "BACKOFF_FIRST_S", 0.01)
    made = []

    def make():
        made.append(Scripted(hold=("open",) if len(made) < gpu_source.STUCK_MAX else ()))
        return made[-1]

    async with watching(make, tmp_path, timeout_s=0.02) as published:
        await published.until(lambda: gpu_source.stuck_threads() == gpu_source.STUCK_MAX)
        with pytest.raises(TimeoutError):  # five pauses long, no other is made
            async with asyncio.timeout(0.1):
                await published.keys("")
        assert len(made) == gpu_source.STUCK_MAX
        made[0].release.set()
        await published.keys("")
        for driver in made[: gpu_source.STUCK_MAX]:
            driver.release.set()
            assert await asyncio.to_thread(driver.closed.wait, 10)


@pytest.mark.parametrize(
    ("driver", "again"),
    [
        (Scripted(events=False), True),
        (Scripted(events=True), False),
        (Scripted(events=True, fault="nvmlDeviceGetMinorNumber: Unknown Error"), True),
    ],
)
async def test_sound_gpus_whose_changes_the_driver_announces_are_read_less_often(tmp_path, driver, again):
    async with watching(lambda: driver, tmp_path, with_events_s=3600) as published:
        await published.until(lambda: len(published.samples) > 5)
    assert (driver.listed > 1) is again


async def test_a_hint_triggers_a_reading_of_a_running_session(tmp_path):
    driver, hints = Scripted(), asyncio.Event()
    async with watching(lambda: driver, tmp_path, interval_s=3600, hints=hints) as published:
        await published.keys("")
        hints.set()
        await published.until(lambda: driver.listed == 2)


class Reporting(Scripted):
    """A driver whose first wait returns an event."""

    def __init__(self, event):
        super().__init__()
        self.event, self.calls, self.waits_again = event, [], threading.Event()

    def gpus(self):
        self.calls.append("list")
        return super().gpus()

    def wait(self, timeout_s):
        self.calls.append("wait")
        if self.calls.count("wait") == 1:
            return (self.event,)
        self.waits_again.set()
        return super().wait(timeout_s)


@pytest.mark.parametrize(
    ("event", "reads"),
    [
        (GpuEvent("GPU-0", 79), False),
        (GpuEvent("GPU-0", None, unavailable=True), False),
        (GpuEvent("GPU-0", None), True),
    ],
)
async def test_an_event_that_names_a_fault_is_passed_on_before_the_next_reading(
    tmp_path, monkeypatch, event, reads
):
    monkeypatch.setattr(nvml_session, "SPACING_S", 0.0)
    monkeypatch.setattr(nvml_session, "AFTER_FAULT_S", 3600.0)
    driver = Reporting(event)
    async with watching(lambda: driver, tmp_path, interval_s=3600, vitals_s=3600):
        assert await asyncio.to_thread(driver.waits_again.wait, 10)
        assert driver.calls == ["list", "wait", "list", "wait"] if reads else ["list", "wait", "wait"]


async def test_ending_the_source_ends_its_thread(tmp_path):
    driver = Scripted()
    async with watching(lambda: driver, tmp_path) as published:
        await published.keys("")
    assert await asyncio.to_thread(driver.closed.wait, 10)


async def test_a_defect_in_the_driver_reaches_the_supervisor(tmp_path, monkeypatch):
    reported, defects = threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", lambda why: (defects.append(why.exc_type), reported.set()))
    with pytest.raises(RuntimeError, match="thread that talks to the GPU driver died"):
        await gpu_source.watch_gpus(
            lambda: Scripted(error=ZeroDivisionError()),
            Tree(tmp_path),
            GpuPublisher(HealthService()),
            lambda _: None,
        )
    assert await asyncio.to_thread(reported.wait, 10)
    assert defects == [ZeroDivisionError]
