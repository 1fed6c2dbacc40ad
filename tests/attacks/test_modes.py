"""The files, folders and sockets of the agent have the same modes under every umask.

The agent runs under a umask that removes nothing, one that keeps others out, and one that removes every right. It
registers, allocates a VF and a slice, writes its state, and ends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"
MODES = {
    "r/var/lib/nodeagent": 0o700,
    "r/var/lib/nodeagent/*.json": 0o600,
    "r/var/lib/nodeagent/agent.sock": 0o600,
    "r/var/run": 0o755,
    "r/var/run/cdi": 0o755,
    "r/var/run/cdi/nodeagent-gpu.json": 0o644,
    "r/var/run/k8s.cni.cncf.io": 0o755,
    "r/var/run/k8s.cni.cncf.io/devinfo": 0o755,
    "r/var/run/k8s.cni.cncf.io/devinfo/dp": 0o755,
    "r/var/run/k8s.cni.cncf.io/devinfo/dp/*-device.json": 0o444,
    "k/device-plugins/nodeagent.lock": 0o600,
    "k/device-plugins/nodeagent-*.sock": 0o600,
}
"""By path below the folder of the node."""


def files(folder: Path) -> dict[str, int]:
    """The modes of everything below a folder, without following links."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in (
            Path(top, name) for top, folders, names in os.walk(folder) for name in (*folders, *names)
        )
    }


@pytest.fixture(params=[0, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(0o022)
    yield request.param
    os.umask(before)


async def test_each_file_of_the_agent_has_its_own_mode(umask: int) -> None:
    async with node() as n:
        (n.root / "var/lib").mkdir(parents=True, exist_ok=True)
        before = files(n.folder)
        await n.kubelet.start()
        mine = files(n.folder)
        os.umask(umask)
        await n.start_agent()
        await n.allocatable(NIC0, 4)
        await n.allocatable(NIC1, 4)
        await n.allocatable(MEMORY, 158)
        assert (await n.kubelet.admit(PodSpec.single("one", {NIC0: 1, MEMORY: 1}))).admitted
        n.machine.set_link(1, up=False)
        await n.allocatable(NIC1, 0)
        state = n.root / "var/lib/nodeagent"
        await n.until(lambda: (state / "agent.sock").exists() and (state / "health.json").exists())
        found = {path: mode for path, mode in files(n.folder).items() if is_new(path, before | mine)}
        os.umask(0o022)
        expected = {}
        for pattern, mode in MODES.items():
            paths = [
                path for path in found if fnmatch(path, pattern) and path.count("/") == pattern.count("/")
            ]
            assert paths, pattern
            expected |= dict.fromkeys(paths, mode)
        agents = {path: mode for path, mode in found.items() if is_of_agent(path)}
        assert {path: oct(mode) for path, mode in agents.items()} == {
            path: oct(mode) for path, mode in expected.items()
        }


def is_new(path: str, known: dict[str, int]) -> bool:
    """Whether the path is not known and no file that is being written."""
    return path not in known and not path.endswith((".tmp", ".trial"))


def is_of_agent(path: str) -> bool:
    return path.startswith(("r/var/lib", "r/var/run", "k/device-plugins/nodeagent"))
