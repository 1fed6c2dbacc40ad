"""Health from end to end: machine, agent, kubelet, web page, command, and a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from nodeagent.base.stored_file import boot_id
from nodeagent.cli import main
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.support.running_agent import Node, node

pytestmark = pytest.mark.usefixtures("with_and_without_features")
HEAD = "two-gpus-and-two-nics"
NIC0, NIC1 = f"{HEAD}/nic0", f"{HEAD}/nic1"
PF0, PF1 = "0000:18:00.0", "0000:9a:00.0"


def held(seconds: float) -> str:
    return f"health: {{rules: [{{rule: carrier_down, clearForSeconds: {seconds:g}}}]}}\n"


async def ready(n: Node, config: str) -> None:
    await n.kubelet.start()
    await n.start_agent(n.configure(config))
    await n.allocatable(NIC0, 4)
    await n.allocatable(NIC1, 4)


def keys(n: Node, pci_address: str) -> list[str]:
    assert n.agent is not None
    functions = n.agent.inventory.snapshot.functions
    return [
        reason.key
        for function in functions
        if function.pci_address == pci_address
        for reason in function.health.reasons
    ]


async def test_the_kubelet_gets_unhealthy_at_once_and_healthy_after_the_hold() -> None:
    async with node() as n:
        await ready(n, held(1.0))
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        down = n.kubelet.updates[-1].at
        n.machine.set_link(0, up=True)
        await n.allocatable(NIC0, 4)
        assert n.kubelet.updates[-1].at - down >= 1.0
        assert keys(n, PF0) == []


async def test_the_hold_outlives_a_restart_of_the_kubelet_and_of_the_agent() -> None:
    async with node() as n:
        await ready(n, held(3600))
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        n.machine.set_link(0, up=True)
        await n.kubelet.kill()
        await n.kubelet.start()
        await n.allocatable(NIC1, 4)
        await n.kubelet.until(lambda: NIC0 in n.kubelet.capacity() and n.kubelet.capacity()[NIC0] == 4)
        assert n.kubelet.allocatable()[NIC0] == 0
        await n.stop_agent()
        if boot_id() is None:
            pytest.skip("the kernel has no boot ID")
        await n.start_agent(n.configure(held(3600)))
        await n.allocatable(NIC1, 4)
        assert keys(n, PF0) == ["carrier_down"]
        assert not (await n.kubelet.admit(PodSpec.single("one", {NIC0: 1}))).admitted
        n.configure(held(0))
        await n.allocatable(NIC0, 4)  # a reload applies the new rules


async def test_one_witness_does_not_withdraw_most_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with node() as n:
        await ready(n, "health: {guard: {seconds: 1}}\n")
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        n.machine.set_link(1, up=False)
        await n.allocatable(NIC1, 0)  # when a sample confirms it, or the fault has been active for a second
        lines = [
            record.getMessage()
            for record in caplog.records
            if "The health of a NIC is now down" in record.message
        ]
        assert any(PF1 in line for line in lines)


async def test_a_port_that_was_never_connected_is_not_offered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        n.machine.set_link(0, up=False)
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(NIC1, 4)
        await n.allocatable(NIC0, 0)
        assert keys(n, PF0) == ["unused"]
        n.machine.set_link(0, up=True)
        await n.allocatable(NIC0, 4)


async def test_the_page_and_the_command_explain_health(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await ready(n, held(3600))
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        n.machine.set_link(0, up=True)
        await n.until(lambda: n.agent is not None and n.agent.health.nics.due() is not None)
        status, body = await n.get("/health")
        assert status == 200
        first = json.loads(body)[0]
        assert (first["device"], first["state"], first["allocatable"]) == (PF0, "down", False)
        rule = next(rule for rule in first["rules"] if rule["rule"] == "carrier_down")
        assert (rule["phase"], rule["measured"]) == ("clearing", "carrier")
        assert rule["clears"] == "when it ends, for 1 h"
        assert 3500 < rule["inS"] <= 3600
        assert any(view["kind"] == "gpu" for view in json.loads(body))
        verb = ["health", "--agent", f"127.0.0.1:{n.port}"]
        assert await asyncio.to_thread(main, verb) == 0
        output = capsys.readouterr()
        assert "no agent runs" not in output.err
        assert "clears: when it ends, for 1 h" in output.out
        for name in ("nic1", "enp154s0np0", "mlx5_1", "0000:9a:00.0", "9a:00.0"):
            assert await asyncio.to_thread(main, [*verb, name]) == 0
            detail = capsys.readouterr().out
            assert re.search(r"^  flapping +(unknown|quiet) ", detail, re.MULTILINE), (
                "unknown until the counter of losses is read, which may be before or after this line"
            )
            assert re.search(r"^  nic1 +enp154s0np0 +0000:9a:00.0 ", detail, re.MULTILINE), name
        assert await asyncio.to_thread(main, [*verb, "nic7"]) == 2
        assert "similar are nic1, nic0" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_reads_the_machine_without_an_agent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "r"
    machine = Machine.load("two-gpu-two-nic")
    machine.write(root)
    machine.set_link(0, up=False)
    assert main(["health", "--root", str(root), "enp24s0np0"]) == 0
    output = capsys.readouterr()
    assert "no agent runs here" in output.err
    assert "unused" in output.out
    assert "carrier_down" in output.out
    assert main(["health", "--root", str(root), "nobody"]) == 2
    assert "enp154s0np0" in capsys.readouterr().err
    assert main(["health", "--root", str(root), "--json"]) == 0
    assert {view["kind"] for view in json.loads(capsys.readouterr().out)} == {"nic", "gpu"}
    assert main(["health", "--root", str(root), "enp24s0np0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["netdev"] == "enp24s0np0"
    assert main(["health", "replay"]) == 2
    assert main(["health", "a", "b"]) == 2


@pytest.mark.slow
async def test_faults_by_samples_reach_the_kubelet_and_end() -> None:
    """Flaps that only the kernel counted, a PCIe link with too few lanes, and failed firmware."""
    config = (
        "health:\n  rules:\n"
        "  - {rule: carrier_down, clearForSeconds: 0}\n"
        "  - {rule: flapping, windowSeconds: 1}\n"
        "  - {rule: pcie_width, enterForSeconds: 0, clearForSeconds: 0}\n"
        "  - {rule: firmware_fatal, clearForSeconds: 0}\n"
    )
    async with node() as n:
        await ready(n, config)
        assert n.agent is not None
        await n.until(
            lambda: n.agent is not None and bool(n.agent.health.nics.devices[PF0].values.get("pcie_width"))
        )
        n.machine.flap(0, 4)
        await n.until(lambda: "flapping" in keys(n, PF0))
        await n.allocatable(NIC0, 0)
        await n.allocatable(NIC0, 4)  # 4000 points are 1000 after 2 half-lives, of a second here
        n.machine.fail_reporter(1)
        await n.allocatable(NIC1, 0)
        assert keys(n, PF1) == ["firmware_fatal"]
        n.machine.recover_reporter(1)
        await n.allocatable(NIC1, 4)


async def test_a_restart_of_the_switch_withdraws_all_devices_when_two_sources_agree() -> None:
    async with node() as n:
        await ready(n, held(0))
        assert n.agent is not None
        await n.until(lambda: n.agent is not None and tuple(n.agent.sources.reader_statuses()))
        await n.until(lambda: n.agent is not None and "flapping" in n.agent.health.nics.devices[PF0].values)
        for nic in (0, 1):
            n.machine.set_link(nic, up=False)
        await n.allocatable(NIC0, 0)
        await n.allocatable(NIC1, 0)
        for nic in (0, 1):
            n.machine.set_link(nic, up=True)
        await n.allocatable(NIC0, 4)
        await n.allocatable(NIC1, 4)
