"""The simulated switches send valid LLDP, which the real receiver decodes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from nodeagent.lldp.ethernet import parse_frame
from nodeagent.lldp.lldpdu_codec import decode_lldpdu
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_switches import SwitchPort, rails, sending
from tests.support.waiting import LIMIT_S


def test_an_announcement_is_a_valid_frame() -> None:
    frame = parse_frame(SwitchPort("ens1", "leaf03", 7).announcement())
    pdu = decode_lldpdu(frame.data, frame.offset)
    assert (pdu.system_name, pdu.port_id.text, pdu.port_description, pdu.ttl) == (
        "leaf03",
        "swp7",
        "rail 3",
        120,
    )
    assert pdu.warnings == ()


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_simulated_machine_has_one_leaf_on_each_rail(tmp_path: Path) -> None:
    folder = tmp_path
    machine = Machine.load("two-gpu-two-nic")
    machine.write(folder / "r")
    config = folder / "nodeagent.yaml"
    config.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        "links: {select: {netdevs: [enp24s0np0, enp154s0np0]}}\n"
    )
    async with sending(rails({0: "enp24s0np0", 1: "enp154s0np0"})) as node:
        verb = ("neighbors", "--root", str(folder / "r"), "--config", str(config), "--wait", "120", "--json")
        process = await asyncio.create_subprocess_exec(
            *node.command(sys.executable, "-m", "nodeagent", *verb),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0
    output = json.dumps(json.loads(printed))
    assert "leaf00" in output
    assert "leaf01" in output
    assert "0000:18:00.0" in output
