"""A named pipe, or a link to an endless device, in the place of each file that the agent reads or writes.

Opening a pipe waits for its other end, and ``/dev/zero`` has no end. The agent refuses the file or replaces it, offers
every device that does not need it, and its event loop answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running_agent import node

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = [pipe, endless]
FILES = {
    "an attribute of a PF": "r/{pf}/sriov_totalvfs",
    "an attribute of a link": "r/sys/class/net/{netdev}/speed",
    "the product's name": "r/sys/class/dmi/id/product_name",
    "the health of an earlier agent": "r/var/lib/nodeagent/health.json",
    "the slice sizes of an earlier agent": "r/var/lib/nodeagent/slices.json",
    "the requests of an earlier agent": "r/var/lib/nodeagent/requests.json",
    "the rails of an earlier agent": "r/var/lib/nodeagent/rails.json",
    "the socket for the verbs": "r/var/lib/nodeagent/agent.sock",
    "a CDI spec of the agent": "r/var/run/cdi/nodeagent-gpu.json",
    "a CDI spec of another program": "r/etc/cdi/vendor.yaml",
    "the cabling plan": "plan.yaml",
    "a socket of the agent": f"k/device-plugins/nodeagent-{HEAD}_nic0.sock",
}


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize("name", FILES)
async def test_a_pipe_or_a_device_in_the_place_of_a_file(name: str, put: Callable[[Path], None]) -> None:
    async with node() as n:
        nic = n.machine.nic(0)
        assert nic.netdev is not None
        place = FILES[name].format(pf=f"sys/bus/pci/devices/{nic.address}", netdev=nic.netdev.name)
        path = n.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.parent.resolve() / path.name
        path.unlink(missing_ok=True)
        put(path)
        more = ""
        if name == "the cabling plan":
            more = f"  cablingPlan: {path}\n"
        head = "resourcePrefix: " + HEAD + "\n"
        rules = f"health:\n  guard: {{share: 1}}\n{more}"
        config = n.configure(head + rules)
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(MEMORY, 158)
        await n.allocatable(NIC1, 4)
        await n.allocatable(NIC0, 4)
        assert await n.get("/healthz") == (200, "ok\n")


@pytest.mark.parametrize("put", KINDS)
async def test_a_configuration_that_becomes_a_pipe_or_a_device_is_refused_and_the_running_one_stays(
    put: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with node() as n:
        config = n.configure("resources: [{kind: gpu-mem}]\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(MEMORY, 158)
        put(n.folder / "new")
        (n.folder / "new").replace(n.config_file)
        await n.until(lambda: "The changed configuration is refused, the running one stays." in caplog.text)
        assert "put a regular file there" in caplog.text
        n.configure("resources: [{kind: vf}]\n")
        await n.allocatable(NIC0, 4)


async def test_a_pipe_in_the_place_of_the_lock_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as n:
        await n.kubelet.start()
        lock = n.kubelet.directory / "device-plugins/nodeagent.lock"
        pipe(lock)
        await n.start_agent()
        await n.until(lambda: "it is a named pipe; put a regular file there" in caplog.text)
        lock.unlink()
        await n.allocatable(MEMORY, 158)
