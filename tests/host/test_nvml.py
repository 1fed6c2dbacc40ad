"""The real binding against a stand-in ``libnvidia-ml.so.1``: its ABI, its errors, its events."""

import doctest
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from nodeagent.facts.model import MigDevice, MigSlot
from nodeagent.host import nvml_mig
from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuReading
from nodeagent.host.nvml_mig import profile
from tests.support.waiting import Lines

pytestmark = pytest.mark.needs("pynvml", "cc")

HERE = Path(__file__).parents[1]
XID, DBE, RECOVERY, ALL = 0x8, 0x2, 0x8000, 0xF60F
GIB = 1 << 30


def build(folder, *options):
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread"]
    source = HERE / "nvml" / "standin.c"
    subprocess.run([*command, *options, "-o", library, source], check=True)
    return folder


@pytest.fixture(scope="session")
def young(tmp_path_factory):
    return build(tmp_path_factory.mktemp("young"))


@pytest.fixture(scope="session")
def old(tmp_path_factory):
    return build(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER")


def gpu(index, *, mib=81559, mig=0, lost=0, action=0, events=ALL, bus=None, uuid=None, name="NVIDIA H100"):
    bus = bus or f"00000000:{0x1B + index:02X}:00.0"
    uuid = uuid or f"GPU-{index}"
    return f"gpu {index} {uuid} {index} {bus} {mib << 20} {mig} {lost} {action} {events} {name}"


class Machine:
    """The control file; replaced as a whole, so that no call reads half of it."""

    def __init__(self, path):
        self.path = path
        self.set(gpu(0), gpu(1))

    def set(self, *lines):
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(["driver 580.95.05", *lines]) + "\n")
        new.rename(self.path)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "control")


def environment(machine, library):
    environ = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    environ |= {"NVML_STANDIN": str(machine.path), "PYTHONPATH": str(HERE.parent)}
    return environ | ({"LD_LIBRARY_PATH": str(library)} if library else {})


class Remote:
    """``Nvml`` in a child process, with its own interface."""

    def __init__(self, machine, library):
        self.child = subprocess.Popen(
            [sys.executable, HERE / "nvml" / "child.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(machine, library),
        )
        self.lines = Lines(self.child.stdout.fileno())

    def send(self, call, *arguments):
        self.child.stdin.write(json.dumps([call, arguments]) + "\n")
        self.child.stdin.flush()

    def receive(self):
        answer = json.loads(self.lines.next())
        if "error" in answer:
            raise DriverError(answer["error"], absent=answer["absent"])
        return answer["value"]

    def ask(self, call, *arguments):
        self.send(call, *arguments)
        return self.receive()

    def open(self):
        self.ask("open")

    def close(self):
        self.ask("close")

    def version(self):
        return self.ask("version")

    def gpus(self):
        return msgspec.convert(self.ask("gpus"), tuple[GpuReading, ...])

    def excluded(self):
        return set(self.ask("excluded"))

    def wait(self, timeout_s):
        return tuple(GpuEvent(**event) for event in self.ask("wait", timeout_s))

    def end(self):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.terminate()
        assert self.child.wait(5) in (0, -15)  # an abort of the stand-in would show here


@pytest.fixture
def start(machine):
    remotes = []

    def start(library, *, opened=True):
        remote = Remote(machine, library)
        remotes.append(remote)
        if opened:
            remote.open()
        return remote

    yield start
    for remote in remotes:
        remote.end()


@pytest.fixture
def nvml(start, young):
    return start(young)


def test_a_gpu_has_the_kernels_pci_address_and_memory_in_mib(nvml, machine):
    machine.set(gpu(0, uuid="GPU-aa-bb", bus="00000000:1B:00.0", name="NVIDIA H100 80GB HBM3"))
    assert nvml.gpus() == (
        GpuReading(
            index=0,
            uuid="GPU-aa-bb",
            minor=0,
            name="NVIDIA H100 80GB HBM3",
            pci_address="0000:1b:00.0",
            memory_mib=81559,
            recovery_action="none",
            nvlink_domain="",
            nvlink_ends=(),
        ),
    )
    assert nvml.version() == "580.95.05"


def test_a_domain_beyond_four_digits_has_the_kernels_form(nvml, machine):
    machine.set(gpu(0, bus="00010000:E1:00.0"), gpu(1, bus="0000ABCD:01:00.0"))
    assert [one.pci_address for one in nvml.gpus()] == ["10000:e1:00.0", "abcd:01:00.0"]


def test_memory_beyond_four_gib_and_odd_sizes_are_rounded_down(nvml, machine):
    machine.set(f"gpu 0 GPU-0 0 00000000:1B:00.0 {2 * 1024 * GIB + 4095} 0 0 0 8 Big")
    assert nvml.gpus()[0].memory_mib == 2 * 1024 * 1024


def test_eight_gpus_are_listed_by_index(nvml, machine):
    machine.set(*(gpu(index) for index in range(8)))
    assert [one.uuid for one in nvml.gpus()] == [f"GPU-{index}" for index in range(8)]


def test_no_gpu_is_an_empty_listing_and_a_wait_that_times_out(nvml, machine):
    machine.set()
    assert nvml.gpus() == ()
    assert nvml.wait(0.01) == ()


def test_mig_and_every_recovery_action_are_read(nvml, machine):
    unknown, not_available = gpu(9, action=-1), gpu(10, action=-2)
    machine.set(
        gpu(0, mig=1), *(gpu(action, action=action) for action in range(1, 9)), unknown, not_available
    )
    readings = nvml.gpus()
    assert [one.mig for one in readings] == [True] + [False] * 10
    assert [one.recovery_action for one in readings] == [
        "none",
        "gpu_reset",
        "node_reboot",
        "drain_p2p",
        "drain_and_reset",
        "recover_imex_domain",
        "bus_reset",
        "system_reboot",
        "action_8",
        None,
        None,
    ]


def test_without_the_library_there_is_no_driver(start, tmp_path):
    remote = start(tmp_path, opened=False)
    with pytest.raises(DriverError, match="Not Found") as error:
        remote.open()
    assert error.value.absent


def test_a_library_that_is_installed_later_is_found_without_a_restart(start, young, tmp_path):
    path = tmp_path / "later"
    path.mkdir()
    remote = start(path, opened=False)
    with pytest.raises(DriverError):
        remote.open()
    shutil.copy(young / "libnvidia-ml.so.1", path)
    remote.open()
    assert len(remote.gpus()) == 2


@pytest.mark.parametrize(("code", "absent"), [(9, True), (18, False), (4, False), (999, False), (777, False)])
def test_an_error_of_init_shows_whether_a_driver_exists(start, young, machine, code, absent):
    machine.set(f"fail nvmlInitWithFlags {code}")
    remote = start(young, opened=False)
    with pytest.raises(DriverError, match="nvmlInit") as error:
        remote.open()
    assert error.value.absent is absent
    machine.set(gpu(0))
    remote.open()
    assert len(remote.gpus()) == 1


ABOUT_A_GPU = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetFieldValues",
)


@pytest.mark.parametrize("call", ABOUT_A_GPU)
def test_an_error_about_one_gpu_is_only_its_own_fault(nvml, machine, call):
    sound = nvml.gpus()
    for code in (2, 4, 6, 14, 15, 16, 17, 20, 27, 999, 12345):
        machine.set(gpu(0), gpu(1), gpu(2), f"fail {call} {code} 1")
        first, second, third = nvml.gpus()
        assert first == sound[0]
        assert third.fault is None
        assert third.uuid == "GPU-2"
        assert second.index == 1
        assert second.fault is not None
        assert call.removesuffix("_v2").removesuffix("_v3") in second.fault
        assert second.lost is (code == 15)
        assert (second.recovery_action == "gpu_reset") is (code == 16)
        assert second.uuid == (None if call in ABOUT_A_GPU[:2] else "GPU-1")
    machine.set(gpu(0), gpu(1))
    assert nvml.gpus() == sound


@pytest.mark.parametrize("call", ABOUT_A_GPU)
@pytest.mark.parametrize("code", [1, 9, 18])
def test_an_error_about_the_driver_is_not_a_gpus_fault(nvml, machine, call, code):
    machine.set(gpu(0), gpu(1), f"fail {call} {code} 1")
    with pytest.raises(DriverError) as error:
        nvml.gpus()
    assert error.value.absent is (code == 9)


@pytest.mark.parametrize("call", ABOUT_A_GPU[2:])
def test_an_unsupported_call_is_not_a_fault(nvml, machine, call):
    machine.set(gpu(0), f"fail {call} 3")
    assert nvml.gpus()[0].fault is None


def test_an_error_of_the_gpu_count_is_a_driver_error(nvml, machine):
    machine.set(gpu(0), "fail nvmlDeviceGetCount_v2 999")
    with pytest.raises(DriverError, match="nvmlDeviceGetCount: Unknown Error"):
        nvml.gpus()


def test_gpus_that_the_driver_leaves_out_have_the_kernels_pci_address(start, nvml, old, machine):
    assert nvml.excluded() == set()
    machine.set(gpu(0), "excluded 00000000:1C:00.0", "excluded 00010000:E1:00.0")
    assert nvml.excluded() == {"0000:1c:00.0", "10000:e1:00.0"}
    machine.set(gpu(0), "excluded nonsense:x")
    assert nvml.excluded() == set()
    machine.set(gpu(0), "excluded 00000000:1C:00.0", "fail nvmlGetExcludedDeviceInfoByIndex 999")
    assert nvml.excluded() == set()
    assert start(old).excluded() == set()


def test_a_driver_without_a_version_is_still_used(nvml, machine):
    machine.set(gpu(0), "fail nvmlSystemGetDriverVersion 999")
    assert nvml.version() is None
    assert len(nvml.gpus()) == 1


@pytest.mark.parametrize("call", ["nvmlEventSetFree", "nvmlShutdown"])
def test_a_driver_that_fails_to_close_can_be_opened_again(nvml, machine, call):
    machine.set(gpu(0), f"fail {call} 999")
    nvml.close()
    with pytest.raises(DriverError, match="not open"):
        nvml.gpus()
    nvml.open()
    assert len(nvml.gpus()) == 1


def test_a_failed_event_set_is_an_error_and_an_unsupported_one_is_not(start, young, machine):
    machine.set(gpu(0), "fail nvmlEventSetCreate 999")
    remote = start(young, opened=False)
    with pytest.raises(DriverError, match="nvmlEventSetCreate"):
        remote.open()
    machine.set(gpu(0), "fail nvmlEventSetCreate 3")
    remote.open()
    assert len(remote.gpus()) == 1
    assert remote.wait(0.01) == ()


def test_the_same_xid_twice_is_two_events_and_old_ones_are_not_repeated(nvml, machine):
    machine.set(gpu(0), gpu(1), f"event 1 1 {XID} 79")
    nvml.close()
    nvml.open()
    nvml.gpus()
    assert nvml.wait(0.01) == ()
    lines = [gpu(0), gpu(1), f"event 1 1 {XID} 79", f"event 2 1 {XID} 79", f"event 3 1 {XID} 79"]
    machine.set(*lines)
    assert nvml.wait(1) == (GpuEvent("GPU-1", 79), GpuEvent("GPU-1", 79))
    assert nvml.wait(0.01) == ()


def test_an_xid_ends_a_running_wait(nvml, machine):
    nvml.gpus()
    nvml.send("wait", 30)
    machine.set(gpu(0), gpu(1), f"event 1 0 {XID} 48")
    assert nvml.receive() == [{"uuid": "GPU-0", "xid": 48, "unavailable": False}]


def test_an_event_without_an_xid_only_requests_a_reading(nvml, machine):
    nvml.gpus()
    machine.set(gpu(0), gpu(1), f"event 1 0 {RECOVERY} 0", f"event 2 1 {DBE} 0")
    assert nvml.wait(1) == (GpuEvent("GPU-0", None), GpuEvent("GPU-1", None))


def test_the_xid_of_a_lost_gpu_has_its_uuid(nvml, machine):
    nvml.gpus()
    machine.set(gpu(0), gpu(1, lost=1), f"event 1 1 {XID} 79")
    assert nvml.wait(1) == (GpuEvent("GPU-1", 79),)


def test_a_wait_with_a_lost_gpu_fails_and_a_new_opening_receives_the_others_events(nvml, machine):
    nvml.gpus()
    machine.set(gpu(0), gpu(1, lost=1))
    with pytest.raises(DriverError, match="lost"):
        nvml.wait(1)
    nvml.close()
    nvml.open()
    sound, lost = nvml.gpus()
    assert sound.fault is None
    assert lost.lost
    assert lost.uuid is None
    machine.set(gpu(0), gpu(1, lost=1), f"event 1 0 {XID} 31")
    assert nvml.wait(1) == (GpuEvent("GPU-0", 31),)


@pytest.mark.parametrize("code", [1, 2, 17, 999])
def test_any_other_error_of_the_wait_is_a_driver_error_until_a_new_opening(nvml, machine, code):
    nvml.gpus()
    machine.set(gpu(0), gpu(1), f"fail nvmlEventSetWait_v2 {code}")
    with pytest.raises(DriverError, match="nvmlEventSetWait_v2") as error:
        nvml.wait(1)
    assert not error.value.absent
    machine.set(gpu(0), gpu(1))
    nvml.close()
    nvml.open()
    assert [one.fault for one in nvml.gpus()] == [None, None]


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
@pytest.mark.parametrize("code", [2, 3, 15, 999])
def test_a_gpu_without_events_has_no_fault_and_the_others_send_events(start, young, machine, call, code):
    machine.set(gpu(0), gpu(1), f"fail {call} {code} 0")
    remote = start(young)
    assert [one.fault for one in remote.gpus()] == [None, None]
    machine.set(gpu(0), gpu(1), f"fail {call} {code} 0", f"event 1 1 {XID} 13")
    assert remote.wait(1) == (GpuEvent("GPU-1", 13),)


def test_only_supported_events_are_registered(start, young, machine):
    machine.set(gpu(0, events=XID))  # the stand-in refuses a mask with anything more
    remote = start(young)
    remote.gpus()
    machine.set(gpu(0, events=XID), f"event 1 0 {XID} 62")
    assert remote.wait(1) == (GpuEvent("GPU-0", 62),)


def test_an_old_driver_without_some_functions_still_lists_its_gpus(start, old, machine):
    remote = start(old)
    reading = remote.gpus()[0]
    assert reading.memory_mib == 81559
    assert (reading.mig, reading.recovery_action, reading.fault) == (False, None, None)
    assert remote.wait(0.01) == ()
    assert remote.wait(0.01) == ()


SCENARIO = """
import asyncio, sys
from nodeagent.host.nvml import Nvml
from nodeagent.host.sysfs import Tree
from nodeagent.sources import gpu_source
from nodeagent.health.service import HealthService
from nodeagent.sources.gpu_publisher import GpuPublisher

async def main():
    def state(all_gpus):
        gpus = (
            f"{gpu.uuid}={gpu.health.state}:{','.join(reason.key for reason in gpu.health.reasons)}"
            for gpu in all_gpus
        )
        print("state", *gpus, flush=True)
    def failed(reason):
        print("failed", reason, flush=True)
    facts = GpuPublisher(HealthService())
    facts.publish_to(state)
    watching = asyncio.create_task(gpu_source.watch_gpus(
        Nvml, Tree(sys.argv[1]), facts, failed,
        pace=gpu_source.Pace(timeout_s=0.3, interval_s=0.2, with_events_s=0.2, vitals_s=0.2, absent_s=0.1)))
    command = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while "freed" in command and gpu_source.stuck_threads():
        await asyncio.sleep(0.01)
    print("stuck", gpu_source.stuck_threads(), flush=True)
    watching.cancel()

asyncio.run(main())
"""


class Agent:
    """The source with the real binding in a child process, which prints each fact as a line."""

    def __init__(self, machine, library, root):
        self.child = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCENARIO, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(machine, library),
        )
        self.watchdog = threading.Timer(20, self.child.kill)  # a fact that never comes is a failure
        self.watchdog.start()

    def until(self, text):
        for line in self.child.stdout:
            if text in line:
                return line.strip()
        raise AssertionError(f"the agent ended before it printed {text!r}")

    def end(self, command=""):
        self.child.stdin.write(f"{command}\n")
        self.child.stdin.close()
        stuck = self.until("stuck")
        self.child.stdout.close()
        assert self.child.wait(5) == 0
        return stuck


@pytest.fixture
def agent(machine, young, tmp_path):
    agent = Agent(machine, young, tmp_path)
    yield agent
    agent.watchdog.cancel()
    if agent.child.poll() is None:
        agent.child.kill()
        agent.child.wait()
    for stream in (agent.child.stdin, agent.child.stdout):
        stream.close()


def test_end_to_end_a_fatal_xid_and_a_reset_are_published(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), f"event 1 1 {XID} 48")
    agent.until("GPU-0=healthy: GPU-1=unhealthy:xid_48")
    machine.set(gpu(0), gpu(1, action=1), f"event 1 1 {XID} 48", f"event 2 1 {RECOVERY} 1")
    agent.until("GPU-0=healthy: GPU-1=unhealthy:recovery_gpu_reset,xid_48")
    machine.set(gpu(0), gpu(1, action=1), f"event 3 0 {XID} 119")
    agent.until("GPU-0=unhealthy:xid_119 GPU-1=unhealthy:recovery_gpu_reset,xid_48")
    machine.set(gpu(0), gpu(1, action=0))
    agent.until("GPU-0=unhealthy:xid_119 GPU-1=healthy:")
    assert agent.end() == "stuck 0"


def test_end_to_end_xid_154_means_the_action_of_field_230_or_counts_itself(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1, action=2), f"event 1 1 {XID} 154")
    agent.until("GPU-0=healthy: GPU-1=unhealthy:recovery_node_reboot")
    machine.set(gpu(0, action=-1), gpu(1))
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0, action=-1), gpu(1), f"event 2 0 {XID} 154")
    agent.until("GPU-0=unhealthy:xid_154 GPU-1=healthy:")


def test_end_to_end_a_lost_gpu_affects_only_itself_and_recovers(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1, lost=1))
    agent.until("GPU-0=healthy: GPU-1=unhealthy:gpu_lost")
    machine.set(gpu(0), gpu(1))
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), "fail nvmlInitWithFlags 9", "fail nvmlDeviceGetCount_v2 1")
    agent.until("failed nvmlDeviceGetCount")
    agent.until("GPU-0=unhealthy:gpu_lost GPU-1=unhealthy:gpu_lost")
    machine.set(gpu(0), gpu(1))
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    assert agent.end() == "stuck 0"


def test_a_loss_that_no_wait_reports_shows_in_one_call(nvml, machine):
    machine.set(gpu(0), gpu(1), "quiet")
    nvml.open()
    nvml.gpus()
    assert nvml.ask("any_lost") is False
    machine.set(gpu(0), gpu(1, lost=1), "quiet")
    assert nvml.wait(0.01) == ()
    assert nvml.ask("any_lost") is True
    nvml.gpus()
    assert nvml.ask("any_lost") is False  # it is known by now


def test_a_gpu_without_memory_of_its_own_is_not_lost(nvml, machine):
    machine.set(gpu(0), "fail nvmlDeviceGetMemoryInfo 3", "quiet")
    nvml.open()
    nvml.gpus()
    assert nvml.ask("any_lost") is False


def test_end_to_end_a_failed_wait_causes_no_fault(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), "fail nvmlEventSetWait_v2 999")
    for _ in range(3):  # a new session each time, and both GPUs stand
        assert agent.until("state") == "state GPU-0=healthy: GPU-1=healthy:"
    machine.set(gpu(0), gpu(1))
    agent.until("state")
    machine.set(gpu(0), gpu(1), f"event 1 0 {XID} 119")
    agent.until("GPU-0=unhealthy:xid_119 GPU-1=healthy:")


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo", "nvmlEventSetWait_v2"])
def test_a_hanging_call_fails_the_source_and_does_not_block_the_exit(agent, machine, call):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), f"hang {call}", "fail nvmlDeviceGetName 1" if "Init" in call else "")
    agent.until("GPU-0=unknown:driver_silent GPU-1=unknown:driver_silent")
    agent.until("has not answered")
    assert int(agent.end().split()[1]) >= 1


def test_a_hanging_call_that_returns_restores_the_facts(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), "hang nvmlDeviceGetCount_v2")
    agent.until("has not answered")
    machine.set(gpu(0), gpu(1))
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    assert agent.end("freed") == "stuck 0"


def test_end_to_end_a_module_of_another_version_marks_every_gpu_until_it_fits_again(agent, machine):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    machine.set(gpu(0), gpu(1), "fail nvmlDeviceGetCount_v2 18", "fail nvmlInitWithFlags 18")
    agent.until("GPU-0=unhealthy:driver_version_mismatch GPU-1=unhealthy:driver_version_mismatch")
    machine.set(gpu(0), gpu(1))
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    assert agent.end() == "stuck 0"


def test_end_to_end_files_of_another_version_mark_every_gpu_although_nvml_still_answers(agent, tmp_path):
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.10.01")
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.95.05\n")
    agent.until("GPU-0=unhealthy:driver_version_mismatch GPU-1=unhealthy:driver_version_mismatch")
    leftover = tmp_path / "usr/lib64"
    leftover.mkdir()
    (leftover / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    agent.until("GPU-0=healthy: GPU-1=healthy:")
    (leftover / "libnvidia-ml.so.1").unlink()
    agent.until("driver_version_mismatch")
    version.write_text("590.10.01\n")
    agent.until("GPU-0=healthy: GPU-1=healthy:")


def test_a_library_that_fits_the_module_is_loaded_without_a_restart(machine, tmp_path):
    folder = tmp_path / "library"
    folder.mkdir()
    build(folder, "-DTOO_OLD")
    remote = Remote(machine, folder)
    with pytest.raises(DriverError, match="library and kernel module differ"):
        remote.open()
    new = tmp_path / "new"
    new.mkdir()
    (build(new) / "libnvidia-ml.so.1").rename(folder / "libnvidia-ml.so.1")
    remote.open()
    assert [reading.uuid for reading in remote.gpus()] == ["GPU-0", "GPU-1"]
    remote.close()
    remote.end()


def test_a_name_that_is_no_text_is_no_fault(nvml, machine):
    machine.path.write_bytes(
        gpu(0, name="NVIDIA \udcff\udc85 H100").encode("utf-8", "surrogateescape") + b"\n"
    )
    (reading,) = nvml.gpus()
    assert (reading.fault, reading.name) == (None, "NVIDIA \\xff\\x85 H100")


def test_nonsense_from_nvml_costs_one_gpu(agent, machine):
    odd = f"gpu 2 GPU-2 -1 00000000:1D:00.0 {81559 << 20} 0 0 0 {ALL} H100"
    huge = f"gpu 3 GPU-3 3 00000000:1E:00.0 {1 << 63} 0 0 0 {ALL} H100"
    machine.set(gpu(0), gpu(1, uuid="GPU-\x1b[2J"), odd, huge, gpu(4), gpu(5, uuid="GPU-4"))
    agent.until("GPU-0=healthy:")
    machine.set(gpu(0), gpu(1, uuid="all"), odd, huge)
    for _ in range(3):
        line = agent.until("state")
        assert "GPU-0=healthy:" in line
        assert "GPU-2" not in line
        assert "GPU-3" not in line
        assert "all" not in line


def mig(index, slot, *, name="1g.10gb", slices=1, compute=1, mib=9856):
    return f"mig {index} {slot} MIG-{index}-{slot} {slot + 7} 0 {mib} {slices} {compute} {name}"


def test_mig_devices_are_read_with_the_names_of_the_driver_and_their_slots_may_have_gaps(
    young, machine, start
):
    machine.set(
        gpu(0, mig=1), mig(0, 0), mig(0, 3, name="3g.40gb+me", slices=3, compute=3, mib=40192), gpu(1)
    )
    first, second = start(young).gpus()
    assert first.mig_devices == (
        MigDevice("MIG-0-0", "1g.10gb", 9856, 7, 0, (), (("multiprocessors", 16), ("copy-engines", 1))),
        MigDevice("MIG-0-3", "3g.40gb+me", 40192, 10, 0, (), (("multiprocessors", 48), ("copy-engines", 3))),
    )
    assert (first.fault, second.mig, second.mig_devices) == (None, False, ())


def test_a_mig_device_without_a_name_is_named_by_its_size(young, machine, start):
    small, part = mig(0, 0, name="-"), mig(0, 1, name="-", slices=3, compute=1, mib=40192)
    machine.set(gpu(0, mig=1), small, part, mig(0, 2, name="-", slices=7, compute=7, mib=80384))
    (reading,) = start(young).gpus()
    assert [device.profile for device in reading.mig_devices] == ["1g.10gb", "1c.3g.40gb", "7g.80gb"]
    assert profile(2, 2, 9984, 40536) == "2g.10gb"
    assert doctest.testmod(nvml_mig).failed == 0


SMALL = "profile 0 0 19 1 9984 16 1 0,1,2,3,4,5,6 MIG 1g.10gb"
MEDIA = "profile 0 7 20 1 9984 16 1 0,1,2,3,4,5,6 MIG 1g.10gb+me"
HALF = "profile 0 2 9 3 40448 60 4 0,4 MIG 3g.40gb"


def test_the_places_of_mig_devices_and_what_is_in_them_are_read(young, old, machine, start):
    machine.set(gpu(0, mig=1), SMALL, MEDIA, HALF, gpu(1))
    nvml = start(young)
    divided, whole = nvml.gpus()
    names = [(one.name, one.memory_mib, one.takes) for one in divided.mig_profiles]
    assert names == [
        ("1g.10gb", 9984, (("multiprocessors", 16),)),
        ("3g.40gb", 40448, (("multiprocessors", 60),)),
        ("1g.10gb+me", 9984, (("multiprocessors", 16),)),
    ]
    assert divided.mig_profiles[1].slots == (MigSlot("GPU-0", 9, 0, 4), MigSlot("GPU-0", 9, 4, 4))
    assert (divided.mig_instances, divided.fault) == ((), None)
    assert (whole.mig_profiles, whole.mig_instances) == ((), ())
    nvml.ask("make", "GPU-0", 9, 4, 4, True)
    assert nvml.gpus()[0].mig_instances == (MigSlot("GPU-0", 9, 4, 4),)
    machine.set(gpu(0, mig=1), SMALL, "fail nvmlDeviceGetGpuInstances 4 0")
    (reading,) = nvml.gpus()
    assert (reading.mig_profiles, reading.fault) == (None, None), (
        "no right to see them is not a fault of the GPU"
    )
    machine.set(gpu(0, mig=1, lost=1), SMALL)
    (reading,) = nvml.gpus()
    assert (reading.lost, reading.mig_profiles, reading.mig_instances) == (True, None, None), (
        "unknown, not gone"
    )
    machine.set(gpu(0, mig=1), SMALL.replace("0,1,2,3,4,5,6", "0,4000000000"))
    (reading,) = nvml.gpus()
    assert [slot.start for slot in reading.mig_profiles[0].slots] == [0], "nonsense of the driver is no place"
    machine.set(gpu(0, mig=1), SMALL)
    (reading,) = start(old).gpus()
    assert (reading.mig, reading.mig_profiles, reading.fault) == (False, (), None)


def test_a_mig_device_is_made_in_its_place_found_again_and_removed(young, machine, start):
    lines = [gpu(0, mig=1), SMALL, MEDIA, HALF]
    machine.set(*lines)
    nvml = start(young)
    made = nvml.ask("make", "GPU-0", 9, 4, 4, True)
    assert (made["uuid"], made["gpu_instance"], made["compute_instance"]) == ("MIG-made-0-5", 5, 0)
    assert nvml.ask("make", "GPU-0", 9, 4, 4) == made, "an earlier attempt has made it"
    foreign = nvml.ask("make", "GPU-0", 9, 4, 4, True)
    assert foreign["remains"] is False
    assert "another program" in foreign["refused"]
    beside = nvml.ask("make", "GPU-0", 20, 5, 1, True)
    assert (beside["remains"], "another GPU instance" in beside["refused"]) == (False, True)
    machine.set(*lines, "used 0 4")
    used = nvml.ask("remove", "GPU-0", 9, 4, 4)
    assert (used["in_use"], used["remains"]) == (True, True)
    machine.set(*lines)
    assert nvml.ask("remove", "GPU-0", 9, 4, 4) is None
    assert nvml.ask("remove", "GPU-0", 9, 4, 4) is None
    assert nvml.gpus()[0].mig_instances == ()
    assert nvml.ask("make", "GPU-0", 20, 5, 1, True)["uuid"] == "MIG-made-0-6"


def test_what_stops_half_way_is_continued_or_taken_back(young, machine, start):
    lines = [gpu(0, mig=1), SMALL]
    machine.set(*lines, "fail nvmlGpuInstanceCreateComputeInstance 999")
    nvml = start(young)
    half = nvml.ask("make", "GPU-0", 19, 6, 1, True)
    assert half["remains"] is False, "a GPU instance without a compute instance is taken back"
    machine.set(*lines, "fail nvmlGpuInstanceCreateComputeInstance 999", "fail nvmlGpuInstanceDestroy 999")
    assert nvml.ask("make", "GPU-0", 19, 6, 1, True)["remains"] is True
    machine.set(*lines)
    assert nvml.ask("make", "GPU-0", 19, 6, 1)["uuid"] == "MIG-made-0-7"
    machine.set(*lines, "fail nvmlGpuInstanceDestroy 999")
    assert nvml.ask("remove", "GPU-0", 19, 6, 1)["remains"] is True
    machine.set(*lines)
    assert nvml.ask("remove", "GPU-0", 19, 6, 1) is None
    machine.set(*lines, "fail nvmlDeviceCreateGpuInstanceWithPlacement 4")
    assert "components/mig-claims" in nvml.ask("make", "GPU-0", 19, 6, 1, True)["refused"]


def test_without_mig_mode_or_gpu_there_is_nothing_to_remove(young, machine, start):
    machine.set(gpu(0), gpu(1, lost=1))
    nvml = start(young)
    assert nvml.ask("remove", "GPU-0", 19, 6, 1) is None
    for gone in ("GPU-1", "GPU-9"):
        with pytest.raises(DriverError) as failure:
            nvml.ask("remove", gone, 19, 6, 1)
        assert failure.value.absent


def test_mig_devices_are_followed_and_a_destroyed_one_is_no_fault(young, machine, start):
    nvml = start(young)
    readings = []
    for lines in (
        [gpu(0, mig=1)],
        [gpu(0, mig=1), mig(0, 0), mig(0, 1)],
        [gpu(0, mig=1), mig(0, 1)],
        [
            gpu(0, mig=1),
            mig(0, 0),
            "fail nvmlDeviceGetAttributes_v2 2 0",
        ],  # destroyed after its handle was read
        [gpu(0)],
    ):
        machine.set(*lines)
        (reading,) = nvml.gpus()
        assert reading.fault is None
        readings.append((reading.mig, [device.uuid for device in reading.mig_devices]))
    assert readings == [
        (True, []),
        (True, ["MIG-0-0", "MIG-0-1"]),
        (True, ["MIG-0-1"]),
        (True, []),
        (False, []),
    ]


def test_a_gpu_in_mig_mode_without_permission_names_the_remedy(young, machine, start):
    """The driver refuses the memory of a GPU in MIG mode without the capability to monitor MIG."""
    machine.set(gpu(0, mig=1), mig(0, 0), "fail nvmlDeviceGetMemoryInfo 4 0")
    (reading,) = start(young).gpus()
    assert reading.mig
    assert reading.mig_devices is None
    assert reading.fault.endswith("; on a GPU in MIG mode the agent needs components/mig")


def test_an_old_driver_has_no_mig_devices(old, machine, start):
    machine.set(gpu(0, mig=1))
    (reading,) = start(old).gpus()
    assert (reading.mig, reading.mig_devices, reading.fault) == (False, (), None)


def test_a_change_of_mig_devices_is_an_event(young, machine, start):
    changed = 0x100
    machine.set(gpu(0, mig=1, events=ALL | changed))
    nvml = start(young)
    nvml.gpus()
    machine.set(gpu(0, mig=1, events=ALL | changed), f"event 1 0 {changed} 0")
    assert nvml.wait(5) == (GpuEvent("GPU-0", None),)


def test_a_capture_records_what_the_driver_answers(machine, young, tmp_path):
    """On a machine with a driver, not one that is recorded already."""
    root, place = tmp_path / "root", tmp_path / "capture"
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    command = [sys.executable, "-m", "nodeagent", "capture", "--root", root, place]
    done = subprocess.run(
        command, env=environment(machine, young), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    recording = json.loads((place / ".nodeagent/gpus.json").read_text())
    assert [gpu["uuid"] for gpu in recording["gpus"]] == ["GPU-0", "GPU-1"]
    assert recording["driver_version"] == "580.95.05"
    assert "gpu_serial" not in json.dumps(recording)
