"""Files of the machine that do not answer, under a running agent.

A FUSE file system without a server makes one file of sysfs hang in the kernel, as a driver does that waits for its
firmware. The other devices stay visible, the hanging one is named and Unhealthy, and everything recovers without a
restart.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeagent.base.bounded_calls import Unanswered, hanging_calls
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.dead_files import dead
from tests.support.running_agent import Node, node

pytestmark = pytest.mark.needs("root", "fuse")

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"
RULES = """\
health:
  rules:
  - {rule: carrier_down, clearForSeconds: 0}
  - {rule: device_missing, clearForSeconds: 0}
  - {rule: not_answering, enterForSeconds: 0}
  guard: {share: 1}
"""


def attribute(n: Node, nic: int, name: str) -> Path:
    return (n.root / f"sys/bus/pci/devices/{n.machine.nic(nic).address}/{name}").resolve()


async def counts(n: Node, nic0: int, nic1: int, memory: int) -> None:
    await n.allocatable(NIC0, nic0)
    await n.allocatable(NIC1, nic1)
    await n.allocatable(MEMORY, memory)


@pytest.mark.slow
async def test_one_file_that_hangs_at_start_hides_no_other_device() -> None:
    async with node() as n:
        config = n.configure(RULES)
        await n.kubelet.start()
        with dead(attribute(n, 0, "sriov_totalvfs")):
            await n.start_agent(config)
            await n.allocatable(NIC1, 4)
            await n.allocatable(MEMORY, 158)
            _, ready = await n.get("/readyz")
            assert f"in /sys/bus/pci/devices/{n.machine.nic(0).address}/sriov_totalvfs" in ready
        await counts(n, 4, 4, 158)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sriov_numvfs", "class"])
async def test_no_nic_has_a_number_while_a_file_hides_whether_the_first_one_counts(name: str) -> None:
    async with node() as n:
        config = n.configure(RULES)
        await n.kubelet.start()
        with dead(attribute(n, 0, name)):
            await n.start_agent(config)
            await n.allocatable(MEMORY, 158)
            await n.until(lambda: "nic{rail}" in str(n.agent.offering.withheld))
            status, ready = await n.get("/readyz")
            assert status == 503
            path = f"/sys/bus/pci/devices/{n.machine.nic(0).address}/{name}"
            assert f"nic{{rail}}: {path} cannot be read, so it is not known whether a NIC" in ready
            assert "select.exclude" in ready
            assert n.kubelet.capacity().keys() == {MEMORY}
            assert not (n.root / "var/lib/nodeagent/rails.json").exists()
        await counts(n, 4, 4, 158)
        assert n.kubelet.devices(NIC0).keys() == {vf.address for vf in n.machine.nic(0).vfs.values()}


@pytest.mark.slow
async def test_a_product_name_that_hangs_at_start_renames_no_resource() -> None:
    async with node() as n:
        config = n.configure(RULES)
        await n.kubelet.start()
        with dead((n.root / "sys/class/dmi/id/product_name").resolve()):
            await n.start_agent(config)
            await n.until(lambda: len(n.agent.offering.withheld) == 3)
            status, ready = await n.get("/readyz")
            assert status == 503
            assert "product_name cannot be read" in ready
            assert "set resourcePrefix" in ready
            assert n.kubelet.capacity() == {}
        await counts(n, 4, 4, 158)
        assert all(resource.startswith(HEAD) for resource in n.kubelet.capacity())


@pytest.mark.slow
async def test_a_pf_that_is_pulled_while_another_hangs_is_unhealthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        config = n.configure(RULES)
        await n.kubelet.start()
        await n.start_agent(config)
        await counts(n, 4, 4, 158)
        path = attribute(n, 0, "sriov_totalvfs")
        named = f"/sys/bus/pci/devices/{n.machine.nic(0).address}/sriov_totalvfs"
        with ExitStack() as hanging:
            hanging.enter_context(dead(path))
            n.machine.unplug(1)
            await n.allocatable(NIC1, 0)
            await n.allocatable(NIC0, 0)
            await n.allocatable(MEMORY, 158)
            status, ready = await n.get("/readyz")
            assert status == 200
            assert "pci: no answer for " in ready
            assert f"in {named}" in ready
            assert 'nodeagent_hanging_call_seconds{source="pci"}' in (await n.get("/metrics"))[1]
            assert f"source=pci step='{named}'" in caplog.text
            assert "does not answer: reading its files in sysfs hangs" in (await n.get("/health"))[1]
            assert (await n.kubelet.admit(PodSpec.single("one", {MEMORY: 3}))).admitted
        await n.allocatable(NIC0, 4)
        n.machine.plug(1, vfs=4)
        await n.allocatable(NIC1, 4)
        assert "no answer" not in (await n.get("/readyz"))[1]


@pytest.mark.slow
async def test_a_hanging_file_of_a_link_leaves_the_carrier_of_the_others_visible() -> None:
    async with node() as n:
        config = n.configure(RULES)
        await n.kubelet.start()
        await n.start_agent(config)
        await counts(n, 4, 4, 158)
        netdev = n.machine.nic(0).netdev.name
        with dead((n.root / f"sys/class/net/{netdev}/speed").resolve()):
            n.machine.set_link(1, up=False)
            await n.allocatable(NIC1, 0)
            n.machine.set_link(1, up=True)
            await n.allocatable(NIC1, 4)
            await n.allocatable(NIC0, 0)
        await n.allocatable(NIC0, 4)


@pytest.mark.slow
async def test_while_all_of_sysfs_hangs_probes_and_the_kubelet_have_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop itself touches no file of the machine: the samplers, which start here, neither."""
    monkeypatch.setattr("nodeagent.discovery.LATER_S", 3.0)
    async with node() as n:
        config = n.configure(f"{RULES}scanSeconds: 5\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await counts(n, 4, 4, 158)
        with dead(n.root / "sys"):
            await n.until(n.agent.sources.reader_statuses)
            await n.until(lambda: "pci" in {call.source for call in hanging_calls()})
            assert (await n.get("/healthz"))[0] == 200
            assert "no answer" in (await n.get("/readyz"))[1]
            await n.kubelet.restart()
            await n.allocatable(MEMORY, 158)
            assert (await n.kubelet.admit(PodSpec.single("one", {MEMORY: 3}))).admitted
        await counts(n, 4, 4, 158)


@pytest.mark.slow
async def test_a_start_while_all_of_sysfs_hangs_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.discovery.START_S", 0.3)
    async with node() as n:
        with dead(n.root / "sys"), pytest.raises(Unanswered, match=r"sysfs: no answer within 0\.3 s"):
            await n.start_agent()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["scan", "health", "remembered"])
async def test_a_verb_without_an_agent_shows_the_rest_of_the_machine_and_ends(verb: str) -> None:
    async with node() as n:
        if verb == "remembered":
            await n.kubelet.start()
            await n.start_agent()
            await counts(n, 4, 4, 158)
            await n.stop_agent()
        with dead(attribute(n, 0, "sriov_totalvfs")):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "nodeagent", verb, "--root", n.root,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            shown, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, complaints
    assert n.machine.nic(1).netdev is not None
    assert n.machine.nic(1).netdev.name in shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--samples", "0.1")], ids=["machine", "samples"])
async def test_a_capture_leaves_out_a_file_that_hangs(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A broken machine is the one that is captured."""
    async with node() as n:
        with dead(attribute(n, 0, "sriov_totalvfs")):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "nodeagent", "capture", *options, "--root", n.root, tmp_path / "made",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, complaints = await asyncio.wait_for(process.communicate(), 90)
        assert process.returncode == 0, complaints
        made = tmp_path / "made"
        if not options:
            assert "ETIMEDOUT" in (made / ".nodeagent/unreadable").read_text()
            assert (made / f"sys/class/net/{n.machine.nic(1).netdev.name}").exists()
        else:
            assert n.machine.nic(1).address in made.read_text()
