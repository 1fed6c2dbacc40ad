"""Held against ibsim with opensm, smpquery and ibnetdiscover: independent fabric, subnet manager and readers.

What the agent reads through its umad code equals what they read, with and without a subnet manager. Then a hall of two
units with eight rails and a storage switch: agents' sources, reports, and the real controller.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodeagent.agent_config import load
from nodeagent.cluster import node_report
from nodeagent.discovery import Discovery
from nodeagent.facts.inventory import Inventory
from nodeagent.offering.offer import Offer
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.machine import Machine
from tests.controller.test_controller import groups, running, valid
from tests.support import infiniband_machine
from tests.support.ibsim import NEEDS, PRELOAD_SOURCE, STATES, Ibsim, IbsimPorts
from tests.support.running_agent import HEAD
from tests.support.waiting import LIMIT_S, until

pytestmark = [pytest.mark.needs(*NEEDS), pytest.mark.timeout(600)]

RAILS, EACH, UNITS = 8, 3, 2
STORAGE = RAILS  # the number of the storage NIC
HOSTILE = b"\x1b]0;owned\x07\xff\xfe\xe2\x80\xae;&`" + b"\x80" * 44
UNMANAGED = b"Quantum-2 Mellanox Technologies"
ASK = """
import sys
from pathlib import Path
from nodeagent.infiniband.smp import guid_text
from nodeagent.sources.infiniband_source import ask_peer
peer = ask_peer(Path("/dev/infiniband/umad0"), 1)
print(guid_text(peer.info.node_guid), peer.info.local_port, (peer.description or b"").hex())
"""


def leaf_guid(unit: int, rail: int) -> int:
    return 0xB83FD20300AA0000 + 0x100 * unit + rail


STORAGE_GUID = 0xB83FD20300CC0000


def hosts() -> list[str]:
    return [f"gpu-{unit}{number}" for unit in range(UNITS) for number in range(EACH)]


def hca(host: str, device: int) -> str:
    return f"{host}-mlx5_{device}"


def net(descriptions: dict[int, bytes] | None = None) -> bytes:
    """The hall: a leaf for each rail of each unit, and a storage switch with a cable to every node."""
    switches: dict[int, tuple[bytes, list[str]]] = {}
    for unit in range(UNITS):
        for rail in range(RAILS):
            ends = [hca(f"gpu-{unit}{number}", rail) for number in range(EACH)]
            switches[leaf_guid(unit, rail)] = (f"MF0;su{unit}-leaf{rail}:MQM9700/U1".encode(), ends)
    switches[STORAGE_GUID] = (b"MF0;storage-0:MQM8700/U1", [hca(host, STORAGE) for host in hosts()])
    text = bytearray()
    for guid, (usual, ends) in switches.items():
        description = (descriptions or {}).get(guid, usual)
        text += f"vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x{guid:x}\nswitchguid=0x{guid:x}\n".encode()
        text += f'Switch 64 "S-{guid:x}" # "'.encode() + description + b'" base port 0 lid 0 lmc 0\n'
        text += b"".join(f'[{port}] "{end}"[1]\n'.encode() for port, end in enumerate(ends, 1)) + b"\n"
        for end in ends:
            host, _, device = end.rpartition("-")
            text += f'Hca 1 "{end}" # "{host} {device}"\n[1] "S-{guid:x}"[{ends.index(end) + 1}]\n\n'.encode()
    return bytes(text)


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("preload") / "umad_preload.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, PRELOAD_SOURCE], check=True)
    return library


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Ibsim]:
    with Ibsim(tmp_path / "ibsim", net({leaf_guid(0, 1): UNMANAGED, leaf_guid(0, 2): HOSTILE})) as ibsim:
        yield ibsim


def smpquery(fabric: Ibsim, host: str) -> tuple[str, int, str]:
    """GUID, port and description of the peer, as smpquery prints them."""
    info = dict(re.findall(r"(\w+):\.+(\S+)", fabric.run(host, ["smpquery", "-D", "nodeinfo", "0,1"])))
    described = fabric.run(host, ["smpquery", "-D", "nodedesc", "0,1"])
    return (
        info["Guid"].removeprefix("0x"),
        int(info["LocalPort"]),
        described.partition(":")[2].lstrip(".").rstrip("\n"),
    )


def asked(fabric: Ibsim, host: str, preload: Path) -> tuple[str, int, bytes]:
    """The same by the agent's code: the umad device, its ioctls and the codec."""
    guid, port, description = fabric.run(host, [sys.executable, "-c", ASK], [preload]).split(" ")
    return guid, int(port), bytes.fromhex(description)


@pytest.mark.parametrize(
    "managed", [False, True], ids=["before any subnet manager", "after the death of one"]
)
def test_the_answers_are_those_of_smpquery(fabric: Ibsim, preload: Path, managed: bool) -> None:
    if managed:
        fabric.sweep("gpu-00-mlx5_0")
    for host in (hca("gpu-00", 0), hca("gpu-01", 1), hca("gpu-12", 7), hca("gpu-11", STORAGE)):
        guid, port, description = asked(fabric, host, preload)
        assert (guid, port, description.decode()) == smpquery(fabric, host)
    assert asked(fabric, hca("gpu-00", 2), preload)[2] == HOSTILE


class HallNode:
    """The sources of one node, whose umad devices are ports of ibsim."""

    def __init__(self, name: str, folder: Path, fabric: Ibsim) -> None:
        self.name, self.root, self.fabric = name, folder / name, fabric
        self.machine: Machine = infiniband_machine.machine(self.root, RAILS, 1, seed=name, num_vfs=1)
        self.inventory = Inventory()
        config = load(
            f"{HEAD}infiniband: {{query: auto}}\ngpu: {{driver: none}}\nlldp: {{source: none}}\n", name="hall"
        )
        self.offer = Offer(config)
        self.discovery = Discovery(self.inventory, lambda: config, self.root, node_name=name)
        self.links = {
            place: hca(name, device) for device, place in enumerate(infiniband_machine.umads(self.root))
        }

    def follow_fabric(self, device: int) -> None:
        """Take the state of a port from ibsim into the files of the kernel."""
        info = self.fabric.port_info(hca(self.name, device))
        state, lid, sm_lid = info[32] & 15, int.from_bytes(info[16:18]), int.from_bytes(info[18:20])
        self.machine.set_link(device, state > 1)
        if state > 1:
            self.machine.set_subnet(device, state=STATES[state], lid=lid, sm_lid=sm_lid)

    def neighbors(self) -> dict[str, tuple[str, str, bool]]:
        return {
            neighbor.link: (neighbor.chassis_id.value, neighbor.port_id.value, neighbor.stale)
            for neighbor in self.inventory.snapshot.neighbors
        }

    def remarks(self) -> list[tuple[str, str]]:
        return [(remark.link, remark.key) for remark in self.inventory.snapshot.remarks]

    def report(self) -> dict[str, Any]:
        snapshot = self.inventory.snapshot
        tuple(self.offer.kinds(snapshot))
        report = node_report.report(
            snapshot, self.name, self.offer.rails, None, now=0.0, namespace="nodeagent"
        )
        body = node_report.body(report, None)
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
        return {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", **decoded}

    async def until(self, good: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not good():
                await self.inventory.changed(self.inventory.snapshot.revision)


def discovered(fabric: Ibsim) -> dict[str, tuple[str, str]]:
    """The switch GUID and port of each HCA, as ibnetdiscover prints them."""
    text = fabric.run(hca("gpu-00", 0), ["ibnetdiscover"])
    found = {}
    for block in text.split("\n\n"):
        name = re.search(r'^Ca\t.*# "(\S+) (\S+)"$', block, re.MULTILINE)
        end = re.search(r'^\[1\]\(\w+\) \t"S-([0-9a-f]{16})"\[(\d+)\]', block, re.MULTILINE)
        if name and end:
            found[f"{name[1]}-{name[2]}"] = (end[1], end[2])
    return found


@pytest.mark.slow
async def test_a_hall_of_two_units_becomes_two_hypernodes(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fabric = stack.enter_context(Ibsim(tmp_path / "ibsim", net()))
        for host in (hca("gpu-00", 0), hca("gpu-00", STORAGE)):
            fabric.sweep(host)
        nodes = [HallNode(name, tmp_path, fabric) for name in hosts()]
        places = {place: host for node in nodes for place, host in node.links.items()}
        ports = stack.enter_context(IbsimPorts(fabric, places))
        tasks = [asyncio.ensure_future(node.discovery.run()) for node in nodes]
        stack.push_async_callback(ended, tasks)
        await asyncio.gather(
            *(node.until(lambda node=node: len(node.neighbors()) == RAILS + 1) for node in nodes)
        )

        compute = discovered(fabric)  # the first port sees its own subnet: rail 0 of its unit
        seen = {
            hca(node.name, int(link[3:])): (guid, port)
            for node in nodes
            for link, (guid, port, _) in node.neighbors().items()
        }
        assert len(seen) == (RAILS + 1) * EACH * UNITS
        assert compute
        assert compute.items() <= seen.items()
        assert all(node.remarks() == [] for node in nodes)

        server = await ApiServer().start()
        stack.push_async_callback(server.stop)
        for node in nodes:
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}})
            reported = node.report()
            assert {link["linkType"] for link in reported["links"]} == {"infiniband"}
            server.put(reported)
        units = [hosts()[:EACH], hosts()[EACH:]]
        async with running(server) as controller:
            await until(lambda: groups(server) == units)
            valid(server)
            assert controller_anomalies(controller) == []

            # A cable of rail 3 is plugged into the other unit: the port goes down and comes back.
            moved = nodes[0]
            fabric.command(f'Unlink "S-{leaf_guid(0, 3):x}"[1]')
            moved.follow_fabric(3)
            await moved.until(lambda: moved.neighbors()["ibp3"][2])
            fabric.command(f'Link "{hca(moved.name, 3)}"[1] "S-{leaf_guid(1, 3):x}"[40]')
            moved.follow_fabric(3)  # in the state Init: no subnet manager has swept since
            other = f"{leaf_guid(1, 3):016x}"
            await moved.until(lambda: moved.neighbors()["ibp3"] == (other, "40", False))
            server.put(moved.report())
            foreign = ("foreign-leaf", moved.name, "nic3", "su1-leaf3")
            await until(lambda: controller_anomalies(controller) == [foreign])
            assert groups(server) == units

            # A switch that answers nothing: three questions for each port, and nothing changes in the tree.
            fabric.command(f'Error "S-{leaf_guid(1, 5):x}" 100')
            before = len(ports.questions)
            silent = nodes[EACH:]
            for node in silent:
                node.machine.set_subnet(5, lid=100)
            await asyncio.gather(
                *(
                    node.until(lambda node=node: node.remarks() == [("ibp5", "silent_port")])
                    for node in silent
                )
            )
            assert all(node.neighbors()["ibp5"][2] for node in silent)
            unanswered = [host for host, _ in ports.questions[before:] if host.endswith("mlx5_5")]
            assert sorted(unanswered) == sorted(hca(node.name, 5) for node in silent for _ in range(3))
            for node in silent:
                server.put(node.report())
            await until(lambda: controller_anomalies(controller) == [foreign])
            assert groups(server) == units

            # Two hosts back to back are neighbors of each other, and no leaf.
            first, second = nodes[0], nodes[1]
            for node, port in ((first, 1), (second, 2)):
                fabric.command(f'Unlink "S-{leaf_guid(0, 6):x}"[{port}]')
                node.follow_fabric(6)
            fabric.command(f'Link "{hca(first.name, 6)}"[1] "{hca(second.name, 6)}"[1]')
            for node in (first, second):
                node.follow_fabric(6)
                await node.until(lambda node=node: ("ibp6", "adapter_neighbor") in node.remarks())
                server.put(node.report())
            both = [foreign, ("node-to-node", first.name, "nic6", "")]
            await until(lambda: controller_anomalies(controller) == both)
            assert groups(server) == units
    for _, mad in ports.questions:
        assert mad[:4] == bytes((1, 0x81, 1, 1))
        assert mad[7] == 1


def controller_anomalies(controller: Any) -> list[tuple[str, str, str, str]]:
    outcome = controller.progress.outcome
    anomalies = outcome.anomalies if outcome is not None else ()
    return sorted((anomaly.kind.value, anomaly.node, anomaly.link, anomaly.switch) for anomaly in anomalies)


async def ended(tasks: list[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
