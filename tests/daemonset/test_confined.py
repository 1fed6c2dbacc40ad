"""Run the agent with exactly the rights of its manifest: read-only root, its mounts, user root with one capability.

Any other write, open or privileged system call fails here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.daemonset.test_manifests import CONFIGS, RESOURCES
from tests.support import confined_container
from tests.support.manifests import ROOT, Manifest, built, named, pod_specs

pytestmark = pytest.mark.needs("kubectl", "root")

REFUSED = re.compile(r"permission|read-only file|not permitted|denied", re.I)
NICS = {name: count for name, count in RESOURCES.items() if "/nic" in name}
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "NODE_NAME": "dgx-001",
}  # fmt: skip


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder whose path is short enough for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="na-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def host(base: Path) -> Path:
    """The disk of a node."""
    host = base / "h"
    Machine.load("dgx-h100").write(host)
    shutil.copytree(host / "proc" / "net", host / "proc" / "1" / "net")
    return host


def configured(base: Path, name: str, more: str = "") -> Path:
    folder = base / "config"
    folder.mkdir()
    (folder / "nodeagent.yaml").write_text(CONFIGS[name].read_text() + more)
    (folder / "nodeagent.d").mkdir()  # as the kubelet makes it for the mount in this folder
    return folder


@asynccontextmanager
async def contained(
    spec: Manifest, container: Manifest, host: Path, given: dict[str, Path]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    words = container.get("command", [sys.executable, "-m", "nodeagent", *container.get("args", ())])
    words = [word.replace("nodeagent vfs", f"{sys.executable} -m nodeagent vfs") for word in words]
    line = confined_container.command(spec, container, host, host.parent / "scratch", words, given)
    process = await asyncio.create_subprocess_exec(
        *line, env=ENVIRONMENT, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    log: list[str] = []

    async def read() -> None:
        assert process.stderr is not None
        async for line in process.stderr:  # a test reads the log while it grows
            log.append(line.decode().rstrip())  # noqa: PERF401

    reading = asyncio.create_task(read())
    try:
        yield process, log
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await reading


@pytest.mark.parametrize("recorded", [True, False], ids=["with-gpus", "of-the-kernel"])
async def test_the_agent_serves_with_exactly_the_rights_of_the_manifest(
    base: Path, host: Path, recorded: bool
) -> None:
    """Run with recorded GPUs, and as on a real node with netlink, AF_PACKET sockets and NVML."""
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    if recorded:
        container = container | {
            "volumeMounts": [
                *container["volumeMounts"],
                {"name": "gpus", "mountPath": "/host/.nodeagent", "readOnly": True},
            ]
        }
        spec = spec | {"volumes": [*spec["volumes"], {"name": "gpus"}]}
    given = {"config": configured(base, "base"), "token": base / "token", "gpus": host / ".nodeagent"}
    kubelet = Kubelet(host / "var/lib/kubelet", seed=1)
    kubelet.directory.mkdir(parents=True)
    await kubelet.start()
    try:
        async with contained(spec, container, host, given) as (process, log):
            wanted = RESOURCES if recorded else {**NICS, "nvidia-dgx-h100/gpu-mem": 0}
            await kubelet.until(
                lambda: kubelet.allocatable() == wanted or process.returncode is not None, 30.0
            )
            assert process.returncode is None, log
            asked = {"nvidia-dgx-h100/nic0": 1} | ({"nvidia-dgx-h100/gpu-mem": 40} if recorded else {})
            admission = await kubelet.admit(PodSpec.single("trainer", asked))
            assert admission.admitted, admission.message
            assert [path.name for path in (host / "var/run/k8s.cni.cncf.io/devinfo/dp").iterdir()]
            if recorded:
                (cdi,) = (host / "var/run/cdi").iterdir()
                assert json.loads(cdi.read_text())["kind"] == "nodeagent.io/gpu"
            else:
                async with asyncio.timeout(30):
                    while not any("source=kernel" in line for line in log):
                        await asyncio.sleep(0.05)
    finally:
        await kubelet.stop()
    assert not [line for line in log if REFUSED.search(line)]
    collectors = [line for line in log if "etrics collector" in line]
    assert not [line for line in collectors if "WARNING" in line]
    assert sum("source=kernel" in line for line in collectors) == (0 if recorded else 1)


async def test_an_agent_that_only_observes_lacks_nothing_that_it_uses(base: Path, host: Path) -> None:
    (spec,) = pod_specs(named(built("overlays/observe"), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    given = {"config": configured(base, "observe"), "token": base / "token"}
    async with contained(spec, container, host, given) as (process, log), asyncio.timeout(60):
        while process.returncode is None and not any("source=kernel" in line for line in log):
            await asyncio.sleep(0.05)
        assert process.returncode is None, log
    assert not [line for line in log if REFUSED.search(line) or "kubelet" in line], log
    assert not (host / "var/lib/kubelet").exists()


WRITTEN = {
    "containers": {
        "/host/sys/bus/pci/devices/0000:18:00.0/sriov_numvfs": False,
        "/host/dev/x": False,
        "/host/usr/x": False,
        "/host/etc/cdi/x": False,
        "/host/run/nvidia/x": False,
        "/etc/nodeagent/x": False,
        "/x": False,
        "/host/var/lib/nodeagent/x": True,
        "/var/lib/kubelet/device-plugins/x": True,
        "/var/lib/kubelet/pod-resources/x": False,
    },
    "initContainers": {
        "/host/sys/bus/pci/devices/0000:18:00.0/sriov_numvfs": True,
        "/host/var/lib/kubelet/pod-resources/x": False,
        "/x": False,
    },
}


@pytest.mark.parametrize("part", WRITTEN)
async def test_only_the_writable_mounts_can_be_written(base: Path, host: Path, part: str) -> None:
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec[part]
    given = {"config": configured(base, "base"), "token": base / "token"}
    script = "; ".join(f"(echo 8 > {path}) 2> /dev/null && echo {path} >&2" for path in WRITTEN[part])
    writing = {key: one for key, one in container.items() if key != "args"} | {
        "command": ["sh", "-c", f"{script}; true"]
    }
    async with contained(spec, writing, host, given) as (process, log), asyncio.timeout(60):
        assert await process.wait() == 0
    assert log == [path for path, may in WRITTEN[part].items() if may]


async def test_the_rights_of_the_init_container_are_enough(base: Path, host: Path) -> None:
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["initContainers"]
    given = {"config": configured(base, "dgx-h100")}
    line = {"command": [*container["command"][:2], container["command"][2].replace("|| [ $? -ne 2 ]", ">&2")]}
    async with contained(spec, container | line, host, given) as (process, log), asyncio.timeout(60):
        assert await process.wait() == 0, log
    assert log
    assert not [one for one in log if REFUSED.search(one)]


async def test_the_doctor_in_the_pod_reports_nothing_that_the_manifest_withholds_on_purpose(
    base: Path, host: Path
) -> None:
    """The command of docs/install.md: files of the container itself are not expected below --root."""
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    given = {"config": configured(base, "base"), "token": base / "token"}
    words = ["doctor", "--root", "/host", "--config", "/etc/nodeagent/nodeagent.yaml", "--json"]
    line = [sys.executable, "-m", "nodeagent", *words]
    said = shlex.join(line) + " >&2; true"
    async with contained(spec, container | {"command": ["sh", "-c", said]}, host, given) as (process, log):
        async with asyncio.timeout(60):
            await process.wait()
    findings = {one["key"]: one for one in json.loads("\n".join(log))["findings"]}
    release = Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert findings["kernel"]["what"] == f"Linux {release}"
    assert findings["boot_id"]["what"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert findings["state"]["level"] == findings["folders"]["level"] == "ok"
    assert findings["net_admin_missing"]["level"] == findings["syslog_missing"]["level"] == "note"
    assert "/dev/kmsg" in findings["syslog_missing"]["what"]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/var/lib/nodeagent/history.json", "mounted read-only"),
        ("/host/var/lib/nodeagent/history.json", None),
        ("history.json", None),
    ],
)
async def test_the_doctor_names_a_history_that_ends_with_the_container(
    base: Path, host: Path, file: str, said: str | None
) -> None:
    """A path of the container as the state folder of the host is spelled keeps nothing: the root is read-only."""
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    given = {"config": configured(base, "base", f"history: {{file: {file}}}\n"), "token": base / "token"}
    words = ["doctor", "--root", "/host", "--config", "/etc/nodeagent/nodeagent.yaml", "--json"]
    line = f"{shlex.join([sys.executable, '-m', 'nodeagent', *words])} >&2; true"
    async with contained(spec, container | {"command": ["sh", "-c", line]}, host, given) as (process, log):
        async with asyncio.timeout(60):
            await process.wait()
    findings = {one["key"]: one for one in json.loads("\n".join(log))["findings"]}
    assert ("history_lost" in findings) == (said is not None)
    if said is not None:
        assert findings["history_lost"]["level"] == "warn"
        assert said in findings["history_lost"]["what"]
