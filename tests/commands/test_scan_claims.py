"""`nodeagent scan` lists the devices that claims allocate."""

from __future__ import annotations

import json

import msgspec

from nodeagent.agent_config import load
from nodeagent.commands.running_sources import view_of
from nodeagent.commands.scan.listing import as_json, as_table
from nodeagent.offering.offer import Offer
from nodeagent.web.machine_view import MachineView
from tests.dra.test_published_pools import CONFIG
from tests.support.kind_machines import dgx

VIEW = view_of(Offer(load(CONFIG, name="test")), dgx())


def test_the_table_has_each_device_with_its_capacity_rail_and_place() -> None:
    part = as_table(VIEW).partition("ALLOCATED BY CLAIMS\n")[2].partition("\n\n")[0]
    rows = [line.split() for line in part.splitlines()]
    assert rows[0] == ["DEVICE", "POOL", "CAPACITY", "RAIL", "LEAF", "PCIE", "ROOT", "PARENT"]
    assert rows[4][1:5] == ["gpu", "80896Mi", "-", "-"]
    assert rows[12] == ["nic-0000-43-00-0", "nic", "8", "VFs", "3", "-", "pci0000:03", "0000:43:00.0"]
    assert len(rows) == 17
    assert "nic3" in as_table(VIEW).partition("PCIE AFFINITY\n")[2]


def test_programs_get_the_attributes_and_the_answer_of_an_agent_is_decoded() -> None:
    devices = json.loads(as_json(VIEW))["by_claim"]
    assert devices[11]["attributes"]["rail"] == 3
    assert msgspec.json.decode(msgspec.json.encode(VIEW), type=MachineView).by_claim == VIEW.by_claim


def test_without_mode_dra_there_is_no_such_part() -> None:
    plain = CONFIG.replace(", mode: dra", "")
    assert "ALLOCATED BY CLAIMS" not in as_table(view_of(Offer(load(plain, name="test")), dgx()))
