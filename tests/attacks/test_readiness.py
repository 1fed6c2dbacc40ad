"""The agent is ready only if it offers what is configured and what the node has.

Conditions: NVML is not loaded although GPUs are on the PCI bus (a lost driver, a driver container that still starts).
No PF has a VF. A NIC or a GPU is gone, and `expect` counts them. A node has no such hardware at all. Claims allocate
the devices, alone and beside a device plugin. Nothing is configured. What must hold: `/readyz` is 503 with the name of
the setting and a remedy while something is short, and 200 at once when it is not; a node without the hardware is ready,
and its page gives the reason. Each resource counts in its own mode: a DRA driver when the kubelet has registered it and
its slices are published.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.agent_config import load
from nodeagent.config.faults import ConfigError
from nodeagent.dra import DRIVER
from nodeagent_lab.sim.apiserver import ApiServer
from tests.dra.test_agent import kubeconfig
from tests.support.running_agent import HEAD, Node, node, shorten_holdings

NAME = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{NAME}/nic0", f"{NAME}/nic1", f"{NAME}/gpu-mem"
RECORDED_GPUS = ".nodeagent/gpus.json"


async def becomes(n: Node, wanted: int, *texts: str) -> str:
    """Wait for the status and the texts, and return the page."""
    seen = 0, ""

    async def shown() -> bool:
        nonlocal seen
        seen = await n.get("/readyz")
        return seen[0] == wanted and all(text in seen[1] for text in texts)

    try:
        async with asyncio.timeout(15):
            while not await shown():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(seen) from None
    return seen[1]


async def test_gpus_on_the_bus_without_nvml_stop_a_rollout_until_the_driver_is_there() -> None:
    async with node() as n:
        recorded = n.root / RECORDED_GPUS
        driver = recorded.read_bytes()
        recorded.unlink()
        await n.kubelet.start()
        await n.start_agent(n.configure("scanSeconds: 1\n"))
        await n.allocatable(NIC0, 4)
        body = await becomes(n, 503, "gpu-mem: the PCI bus has the GPUs 0000:1b:00.0, 0000:9d:00.0")
        assert "runtime `nvidia`" in body
        recorded.write_bytes(driver)
        await n.allocatable(MEMORY, 158)
        assert "not ready" not in await becomes(n, 200)


async def test_an_agent_that_may_not_ask_the_kubelet_says_what_it_does_not_notice() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("kubelet: {podResources: false}\n"))
        await n.allocatable(NIC0, 4)
        await becomes(n, 200, "kubelet.podResources is off: another device plugin that takes a resource name")


async def test_pfs_without_vfs_are_not_ready_and_the_page_names_the_setting() -> None:
    async with node() as n:
        n.machine.set_vfs(0, 0)
        n.machine.set_vfs(1, 0)
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(MEMORY, 158)
        assert "create VFs (vfs)" in await becomes(
            n, 503, "nic{rail}: no VF is offered by the PFs 0000:18:00.0"
        )
        n.machine.set_vfs(0, 4)
        await n.allocatable(NIC0, 4)
        await becomes(n, 200)


async def test_vfs_that_are_configured_and_missing_are_not_ready() -> None:
    async with node() as n:
        n.machine.set_vfs(0, 0)
        n.machine.set_vfs(1, 0)
        await n.kubelet.start()
        await n.start_agent(n.configure('vfs: [{select: {pciAddresses: ["*"]}, count: 4}]\n'))
        await n.allocatable(MEMORY, 158)
        await becomes(n, 503, "`nodeagent vfs apply` has not made their VFs")


async def test_a_node_without_such_hardware_is_ready_and_gives_the_reason() -> None:
    async with node() as n:
        for gpu in n.machine.gpus:
            n.machine.unplug(gpu.address)
        for nic in (0, 1):
            n.machine.unplug(nic)
        (n.root / RECORDED_GPUS).unlink(missing_ok=True)
        await n.kubelet.start()
        await n.start_agent(n.configure("resourcePrefix: example.com\n"))
        await n.until(lambda: any(status.registered for status in n.agent.plugins.statuses()))
        body = await becomes(n, 200, "gpu-mem: nothing is offered: this machine has no GPU")
        assert "nic{rail}: nothing is offered: 0000:0b:00.0 (eno1) has no SR-IOV" in body


async def test_fewer_gpus_or_nics_than_expected_are_not_ready() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("expect: {gpus: 3, nics: 2}\n"))
        await n.allocatable(MEMORY, 158)
        await becomes(n, 503, "expect.gpus is 3, and 2 are offered", "expect.gpus (not ready)")
        n.configure("expect: {gpus: 2, nics: 2}\n")
        await becomes(n, 200)
        n.machine.unplug(1)
        assert "0000:" in await becomes(n, 503, "expect.nics is 2, and 1 are offered, without ")
        n.machine.plug(1, vfs=4)
        await becomes(n, 200)
        n.machine.lose_gpu(0)
        await becomes(n, 503, "expect.gpus is 2, and 1 are offered, without GPU-")
        n.machine.find_gpu(0)
        await becomes(n, 200)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("expect: {nics: 2}\nresources: [{kind: gpu-mem}]\n", "expect.nics"),
        ("expect: {gpus: 2}\nresources: [{kind: vf}]\n", "expect.gpus"),
        ("expect: {gpus: 0}\n", "expect.gpus"),
    ],
)
def test_an_expectation_that_nothing_can_meet_is_a_fault_of_the_file(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(HEAD + text, name="expect")


def access_of(folder: Path, server: ApiServer) -> str:
    return f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig(folder, server)}, report: false, events: false}}\n"


BY_CLAIM = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"
"""No device plugin."""
BESIDE = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem}\n"
"""A DRA driver beside one device plugin."""


async def test_a_node_whose_devices_are_all_allocated_by_claims_becomes_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_holdings(monkeypatch)
    server = await ApiServer().start()
    try:
        async with node() as n:
            await n.kubelet.start()
            await n.start_agent(n.configure(access_of(tmp_path, server) + BY_CLAIM), node_name="n1")
            page = await becomes(n, 200, "gpu (dra): 2 of 2 healthy", "nic (dra): 2 of 2 healthy")
            assert "not " not in page
            n.machine.lose_gpu(0)
            await becomes(n, 200, "gpu (dra): 1 of 2 healthy")
    finally:
        await server.stop()


@pytest.mark.parametrize("resources", [BY_CLAIM, BESIDE])
async def test_a_node_whose_slices_are_refused_is_not_ready_until_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: str
) -> None:
    shorten_holdings(monkeypatch)
    server = await ApiServer().start()
    server.fail("403", verb="create", resource="resourceslices", times=None)
    try:
        async with node() as n:
            await n.kubelet.start()
            await n.start_agent(n.configure(access_of(tmp_path, server) + resources), node_name="n1")
            await n.kubelet.until(lambda: n.kubelet.dra.registered(DRIVER), 20)
            page = await becomes(n, 503, "nic (dra): not published: ", "cluster slices: is refused")
            assert "not registered" not in page
            server.heal()
            await becomes(n, 200, "nic (dra): 2 of 2 healthy")
    finally:
        await server.stop()


@pytest.mark.parametrize("resources", [BY_CLAIM, BESIDE])
async def test_a_node_whose_driver_the_kubelet_refuses_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: str
) -> None:
    shorten_holdings(monkeypatch)
    server = await ApiServer().start()
    try:
        async with node() as n:
            await n.kubelet.start()
            n.kubelet.dra.knows = ()
            await n.start_agent(n.configure(access_of(tmp_path, server) + resources), node_name="n1")
            await server.until(lambda: bool(server.objects("resourceslices")))
            await becomes(n, 503, "nic (dra): not registered: ", "no version of")
    finally:
        await server.stop()


@pytest.mark.parametrize("resources", [BY_CLAIM, BESIDE])
async def test_a_node_of_claims_without_an_api_server_is_never_ready_and_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, resources: str
) -> None:
    shorten_holdings(monkeypatch)
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(resources), node_name="n1")
        await n.kubelet.until(lambda: n.kubelet.dra.registered(DRIVER), 20)
        await becomes(n, 503, "nic (dra): not published: ", "set cluster.access")


async def test_a_node_to_which_nothing_is_configured_is_ready_and_its_page_gives_the_reason() -> None:
    """The first step of adoption: health, LLDP and metrics beside other device plugins, without the kubelet."""
    async with node() as n:
        await n.start_agent(n.configure("resources: []\n"))
        page = await becomes(n, 200, "resources is empty")
        assert "nothing offered yet" not in page
        assert not list(n.kubelet.directory.rglob("*.lock"))


async def test_a_node_without_any_of_the_named_hardware_is_ready_although_no_resource_has_a_name() -> None:
    async with node() as n:
        for nic in (0, 1):
            n.machine.unplug(nic)
        await n.kubelet.start()
        await n.start_agent(n.configure("resourcePrefix: example.com\nresources: [{kind: vf}]\n"))
        await becomes(n, 200, "nic{rail}: nothing is offered: 0000:0b:00.0 (eno1) has no SR-IOV")
