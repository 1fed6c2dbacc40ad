"""The doctor reads real things: a kubelet's sockets, the NVML binding, netlink, read-only mounts."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent import doctor
from nodeagent.agent_config import Config, load
from nodeagent.doctor import capabilities, driver_process, kubelet_checks, lldp_checks, nic_checks
from nodeagent.doctor.reads import Target
from nodeagent.health import state_file
from nodeagent.host.ethtool import Ethtool
from nodeagent.host.sysfs import Tree
from nodeagent.kube import deviceplugin_pb2 as pb
from tests.commands.test_neighbors import announce, links, root
from tests.host.test_nvml import Machine as NvmlMachine
from tests.host.test_nvml import build, environment, gpu
from tests.support.device_plugin import Plugin, device
from tests.support.running_agent import node

__all__ = ["links", "root"]

FEATURES = 4  # ETH_SS_FEATURES: names that every netdev has


def of(tree: Path, config: Config | None = None, **fields: object) -> Target:
    return Target(Tree(tree), config or Config(), recorded=False, kubelet_dir=None, **fields)


def found(report: doctor.DoctorReport) -> set[str]:
    return {f"{one.level} {one.key}" for one in report.findings}


# --- the kubelet ----------------------------------------------------------------------------------------


async def examined(world, kubelet_dir: Path | None = None) -> doctor.DoctorReport:
    place = doctor.DoctorOptions(world.root, kubelet_dir=kubelet_dir or world.kubelet.directory)
    return await asyncio.to_thread(doctor.examine, place)


async def test_a_running_agent_is_not_its_own_rival() -> None:
    async with node() as world:
        await world.kubelet.start()
        await world.start_agent()
        await world.allocatable("two-gpus-and-two-nics/gpu-mem", 158)
        keys = found(await examined(world))
    assert {"ok agent", "ok kubelet", "ok podresources"} <= keys
    assert not [one for one in keys if one.startswith(("fix", "warn"))]


async def test_plugins_with_our_names_or_our_devices_are_found() -> None:
    async with node() as world:
        await world.kubelet.start()
        folder = world.kubelet.socket.parent
        uuid = json.loads((world.root / ".nodeagent/gpus.json").read_text())["gpus"][0]["uuid"]
        plugins = [
            Plugin(folder / "thief.sock", "two-gpus-and-two-nics/gpu-mem", [device("foreign-0")]),
            Plugin(
                folder / "nvidia-gpu.sock", "nvidia.com/gpu", [device(f"{uuid}::0"), device(f"{uuid}::1")]
            ),
            Plugin(folder / "sriov.sock", "intel.com/vfs", [device("0000:18:00.1")]),
        ]
        for plugin in plugins:
            await plugin.start()
            await plugin.register(world.kubelet.socket)
            await world.allocatable(
                plugin.resource, len(pb.ListAndWatchResponse.FromString(plugin._message).devices)
            )
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "dead.sock"))
        report = await examined(world)
        asked = [plugin.called("ListAndWatch") for plugin in plugins]
        for plugin in plugins:
            await plugin.stop()
    findings = {(one.key, one.what) for one in report.findings}
    assert (
        "resource_claimed",
        "two-gpus-and-two-nics/gpu-mem has 1 devices that are not of this agent: foreign-0",
    ) in findings
    twice = sorted(what for key, what in findings if key == "device_promised_twice")
    assert [what.split(" both ")[0] for what in twice] == [
        "intel.com/vfs and two-gpus-and-two-nics/nic0",
        "nvidia.com/gpu and two-gpus-and-two-nics/gpu-mem",
    ]
    assert ("plugin_stale", "no process listens on dead.sock") in findings
    assert [len(calls) for calls in asked] == [1, 1, 1], "no plugin is asked by the doctor"
    assert not report.good


async def test_a_stopped_kubelet_is_a_finding() -> None:
    async with node() as world:
        await world.kubelet.start()
        await world.kubelet.stop()
        assert "fix kubelet_silent" in found(await examined(world))


async def test_a_bound_socket_without_a_listener_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "device-plugins").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "device-plugins/kubelet.sock"))
        seen = await kubelet_checks.read(Target(Tree("/"), Config(), recorded=False, kubelet_dir=tmp_path))
    assert seen.unreachable == "no process listens on it"
    assert seen.locked is False


async def test_a_lock_is_reported_and_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    target = Target(Tree("/"), Config(), recorded=False, kubelet_dir=tmp_path)
    with (folder / "nodeagent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (await kubelet_checks.read(target)).locked is True
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert (await kubelet_checks.read(target)).locked is False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def mounted(folder: Path, options: str, before: str = "true") -> list[dict[str, str]]:
    """The findings in a mount namespace where ``folder``/device-plugins is a tmpfs."""
    place = folder / "device-plugins"
    place.mkdir(parents=True, exist_ok=True)
    script = f'mount -t tmpfs -o size=64k tmpfs "$1"; {before}; {options}; shift; exec "$@"'
    doing = [sys.executable, "-m", "nodeagent", "doctor", "--json", "--kubelet-dir", folder]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", place, *doing],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return findings


@pytest.mark.needs("root", "unshare", "mount")
@pytest.mark.parametrize(
    ("after", "why"),
    [
        ('mount -o remount,ro "$1"', "it is mounted read-only"),
        ('dd if=/dev/zero of="$1/x" 2>/dev/null', "the file system is full"),
    ],
)
def test_an_unwritable_kubelet_directory_is_a_finding(tmp_path: Path, after: str, why: str) -> None:
    findings = mounted(tmp_path, after)
    assert [one["what"] for one in findings if one["key"] == "kubelet_folder_unwritable"] == [
        f"{tmp_path}/device-plugins: {why}"
    ]


# --- NVML -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(tmp_path, library, monkeypatch):
    machine = NvmlMachine(tmp_path / "control")
    for name, value in environment(machine, library).items():
        monkeypatch.setenv(name, value)
    return machine


@pytest.mark.needs("pynvml", "cc")
def test_the_driver_is_read_in_a_separate_process(nvml: NvmlMachine) -> None:
    nvml.set(gpu(0), gpu(1, action=1))
    answer = driver_process.read_in_process("/", "nvml", 30)
    assert answer is not None
    assert answer.version == "580.95.05"
    assert [(one.index, one.memory_mib, one.recovery_action) for one in answer.readings] == [
        (0, 81559, "none"),
        (1, 81559, "gpu_reset"),
    ]
    nvml.set("fail nvmlInitWithFlags 18")
    refused = driver_process.read_in_process("/", "nvml", 30)
    assert refused is not None
    assert refused.error is not None
    assert "finish the driver's upgrade" in refused.error


@pytest.mark.slow
@pytest.mark.needs("pynvml", "cc")
def test_a_hanging_driver_costs_its_time_limit_only(nvml: NvmlMachine, tmp_path: Path) -> None:
    nvml.set(gpu(0), "hang nvmlDeviceGetCount_v2")
    assert driver_process.read_in_process("/", "nvml", 1.0) is None
    report = doctor.examine(doctor.DoctorOptions(timeout_s=1.5))
    assert "fix driver_hung" in found(report)
    assert not report.hung, "the process that hung has been ended"


@pytest.mark.needs("pynvml", "cc")
def test_a_crashing_library_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "bad.c"
    source.write_text("#include <stdlib.h>\nint nvmlInitWithFlags(unsigned flags) { abort(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    answer = driver_process.read_in_process("/", "nvml", 30)
    assert answer is not None
    assert answer.crashed is not None
    assert answer.crashed.startswith("signal 6")


# --- the network ----------------------------------------------------------------------------------------


def test_ethtool_reads_a_netdevs_names_and_flags() -> None:
    with Ethtool() as ethtool:
        assert "rx-checksum" in ethtool.names("lo", FEATURES)
        assert ethtool.private_flags("lo") == {}
        assert ethtool.private_flags("absent0") == {}


SWP = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nlinks: {select: {netdevs: ['swp*']}}\n"


@pytest.mark.needs("root", "ip", "nsenter")
async def test_lldp_of_all_links_ends_the_wait(links, root) -> None:
    _, far = links
    target = of(root, load(SWP, name="x"), wait_s=60.0)

    async def speak() -> None:
        while True:
            for number in (1, 2):
                with far.raw(f"b{number}") as switch:
                    switch.send(announce("leaf-\x1b[31m", f"Ethernet{number}"))
            await asyncio.sleep(0.05)

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(20):
            seen = await lldp_checks.read(target)
    finally:
        speaking.cancel()
        with suppress(asyncio.CancelledError):
            await speaking
    findings = {one.key: one for one in lldp_checks.findings(seen, target.config)}
    assert findings["lldp_heard"].what.startswith("2 of 2 links receive LLDP from leaf-")
    assert findings["lldp_no_carrier"].what == "no carrier on swp3"
    assert "\x1b" not in findings["lldp_heard"].what


@pytest.mark.needs("root", "ip", "nsenter")
async def test_links_without_lldp_are_a_finding(links, root) -> None:
    target = of(root, load(SWP, name="x"), wait_s=0.2)
    seen = await lldp_checks.read(target)
    (one,) = [one for one in lldp_checks.findings(seen, target.config) if one.key == "lldp_unheard"]
    assert one.what == "swp1, swp2 received no LLDP in 0.2 s, less than the send interval"


@pytest.mark.needs("root", "ip", "nsenter")
async def test_netdevs_of_another_network_namespace_are_a_finding(tmp_path: Path) -> None:
    """sysfs belongs to the namespace of its mount; here it is a drawn tree with an unknown NIC."""
    from tests.support.drawn_trees import Machine

    machine = Machine(tmp_path)
    machine.function("0000:18:00.0")
    machine.netdev("ens99np0", "0000:18:00.0")
    machine.vf("0000:18:00.0", 0)
    seen = await nic_checks.read(of(tmp_path))
    assert [one.what for one in nic_checks.findings(seen, Config()) if one.key == "network_namespace"] == [
        "ens99np0: in sysfs, but not in this network namespace"
    ]


# --- rights ---------------------------------------------------------------------------------------------


@pytest.mark.needs("root", "setpriv")
def test_missing_rights_of_the_process_are_findings() -> None:
    """On a node: without a kubelet, rights are not to fix for an ordinary user."""
    less = ["setpriv", "--bounding-set", "-net_raw,-net_admin", "--reuid", "65534", "--clear-groups", "--"]
    with TemporaryDirectory() as kubelet:
        Path(kubelet).chmod(0o755)
        done = subprocess.run(
            [*less, sys.executable, "-m", "nodeagent", "doctor", "--json", "--kubelet-dir", kubelet],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    keys = {one["key"] for one in json.loads(done.stdout)["findings"]}
    assert {"net_raw_missing", "net_admin_missing", "not_root", "folder_unwritable"} <= keys
    assert done.returncode == 1


def test_a_file_instead_of_a_directory_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "var/run").mkdir(parents=True)
    (tmp_path / "var/run/cdi").touch()
    folders = capabilities.read(of(tmp_path)).folders
    assert folders["/var/run/cdi"] == f"{tmp_path}/var/run/cdi is not a directory"
    assert folders["/var/run/k8s.cni.cncf.io/devinfo/dp"] is None
    assert sorted(os.listdir(tmp_path / "var/run")) == ["cdi"]


OF_ANOTHER_BOOT = json.dumps({"version": state_file.FORM.version, "boot_id": "x", "entries": []})


@pytest.mark.parametrize(
    ("text", "broken"),
    [(OF_ANOTHER_BOOT, []), *((text, ["health.json"]) for text in ("", "{}", "[]", "{", "[" * 100_000))],
    ids=["of another boot", "empty", "without a version", "a list", "half", "deep"],
)
def test_the_state_file_is_checked(tmp_path: Path, text: str, broken: list[str]) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "var/lib/nodeagent").mkdir(parents=True)
    (tmp_path / "var/lib/nodeagent/health.json").write_text(text)
    state = capabilities.read(of(tmp_path)).state
    assert state is not None
    assert list(state.broken) == broken
    assert state.refusal is None
