"""The source on a simulated machine and subnet: neighbors, remarks, and what it never sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from nodeagent.commands.neighbors.ib_neighbors import with_infiniband
from nodeagent.commands.neighbors.neighbor_listing import neighbor_table
from nodeagent.facts.model import Neighbor, Remark
from nodeagent.host.sysfs import Tree
from nodeagent.infiniband.asking import AskingPace
from nodeagent.sources import infiniband_source
from nodeagent.sources.infiniband_source import UnansweredPorts
from nodeagent.sources.neighbor_view import NeighborListing
from nodeagent.sources.pci_source import scan
from nodeagent.sources.scan_hints import ScanRequest
from nodeagent.sources.source_settings import InfinibandSettings
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_subnet import (
    NODE_DESCRIPTION,
    NODE_INFO,
    SimulatedSubnet,
    SubnetFault,
    SubnetNode,
)
from tests.support import infiniband_machine
from tests.support.dead_files import dead
from tests.support.waiting import LIMIT_S, until

LEAFS = (0xB83FD20300AA0000, 0xB83FD20300AA0001)
HCAS = (0xB83FD20300BB0000, 0xB83FD20300BB0001)
QUICK = AskingPace(again_s=3600.0, try_again_s=(0.0, 0.0), gap_s=0.0, unanswered_gap_s=0.0)


class Watched:
    """A running source, its machine and subnet, and the latest facts."""

    def __init__(self, machine: Machine, root: Path, subnet: SimulatedSubnet) -> None:
        self.machine, self.root, self.subnet = machine, root, subnet
        self.neighbors: tuple[Neighbor, ...] = ()
        self.remarks: tuple[Remark, ...] = ()
        self.published = 0
        self.boot = "boot-1"
        self._hint = ScanRequest()
        self._changed = asyncio.Event()

    def publish(self, neighbors: tuple[Neighbor, ...], remarks: tuple[Remark, ...]) -> None:
        self.neighbors, self.remarks = neighbors, remarks
        self.published += 1
        self._changed.set()

    async def run(self, pace: AskingPace, names: Path | None) -> None:
        tree = Tree(self.root)
        memory = UnansweredPorts(self.root, self.boot)
        await infiniband_source.watch_infiniband(
            tree,
            lambda: scan(tree).functions,
            lambda: scan(tree).links,
            [self._hint],
            self.publish,
            node_names=names,
            unanswered=memory,
            pace=pace,
            poll_s=3600.0,
        )

    def start(self, pace: AskingPace = QUICK, names: Path | None = None) -> None:
        self.neighbors, self.remarks = (), ()
        self._running = asyncio.ensure_future(self.run(pace, names))

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running

    def look(self) -> None:
        self._hint.request()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                if not condition():
                    await self._changed.wait()

    def seen(self) -> dict[str, tuple[str | None, str, bool]]:
        return {
            n.link: (n.system_name or n.chassis_id.value, n.port_id.value, n.stale) for n in self.neighbors
        }

    def remark_keys(self) -> list[tuple[str, str]]:
        return [(remark.link, remark.key) for remark in self.remarks]

    def questions_of(self, guid: int) -> int:
        return sum(asked == guid for asked, _, _ in self.subnet.questions)


@asynccontextmanager
async def watched(
    root: Path,
    *,
    pace: AskingPace = QUICK,
    names: Path | None = None,
    prepare: Callable[[Watched], None] = lambda _: None,
) -> AsyncIterator[Watched]:
    machine = infiniband_machine.machine(root, compute=2)
    with SimulatedSubnet() as subnet:
        for rail, (leaf, hca) in enumerate(zip(LEAFS, HCAS, strict=True)):
            subnet.add(SubnetNode(leaf, description=f"MF0;su1-leaf{rail}:MQM9700/U1".encode()))
            subnet.add(SubnetNode(hca, kind=1, description=f"gpu-001 mlx5_{rail}".encode(), ports=1))
            subnet.cable((hca, 1), (leaf, 9))
        for place, hca in zip(infiniband_machine.umads(root), HCAS, strict=True):
            subnet.attach(place, hca)
        seen = Watched(machine, root, subnet)
        prepare(seen)
        seen.start(pace, names)
        try:
            yield seen
        finally:
            await seen.stop()
        # Whatever happened: only the two questions, over one hop, without a key.
        for _, port, mad in subnet.questions:
            assert mad[:4] == bytes((1, 0x81, 1, 1))
            assert (mad[7], mad[129]) == (1, port)
            assert mad[17] in (NODE_INFO, NODE_DESCRIPTION)
            assert not any(mad[24:32])


async def test_each_port_names_its_switch_and_the_port_there(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        assert seen.seen() == {"ibp0": ("su1-leaf0", "9", False), "ibp1": ("su1-leaf1", "9", False)}
        leaf = seen.neighbors[0]
        assert (leaf.chassis_id.subtype, leaf.chassis_id.value) == ("switch-guid", "b83fd20300aa0000")
        assert (leaf.capabilities, leaf.confirmed) == (("bridge",), True)
        assert leaf.system_description == "MF0;su1-leaf0:MQM9700/U1"
        assert seen.remarks == ()
        assert len(seen.subnet.questions) == 4


async def test_a_lost_link_makes_the_neighbor_stale_and_its_return_asks_again(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.machine.set_link("ibp0", False)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"][2])
        # The cable is plugged into another switch.
        seen.subnet.cable((HCAS[0], 1), (LEAFS[1], 30))
        seen.machine.set_link("ibp0", True)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"] == ("su1-leaf1", "30", False))


async def test_a_new_lid_asks_again_and_an_equal_state_does_not(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.subnet.cable((HCAS[0], 1), (LEAFS[0], 12))
        seen.machine.set_subnet("ibp0", lid=44)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"][1] == "12")
        assert seen.questions_of(HCAS[1]) == 2


async def test_another_subnet_manager_is_logged_and_asks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nodeagent.sources.infiniband_source")
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.machine.set_subnet("ibp0", sm_lid=9)
        seen.machine.set_subnet("ibp1", lid=9)  # a new LID asks, and shows that the source has looked
        seen.subnet.cable((HCAS[1], 1), (LEAFS[1], 21))
        seen.look()
        await seen.until(lambda: seen.seen()["ibp1"][1] == "21")
        assert "link=ibp0 lid=9 before=1" in caplog.text
        assert seen.questions_of(HCAS[0]) == 2


async def test_an_unresponsive_peer_is_asked_three_times_and_the_reason_is_in_words(tmp_path: Path) -> None:
    def protect(seen: Watched) -> None:
        seen.subnet.faults[HCAS[0], 1] = SubnetFault(silent=frozenset({NODE_INFO, NODE_DESCRIPTION}))

    async with watched(tmp_path / "m", prepare=protect) as seen:
        await seen.until(lambda: seen.remark_keys() == [("ibp0", "silent_port")])
        assert "management keys" in seen.remarks[0].detail
        assert list(seen.seen()) == ["ibp1"]
        assert seen.questions_of(HCAS[0]) == 3
        for _ in range(3):  # more looks ask nothing
            before = seen.published
            seen.machine.set_subnet("ibp1", lid=50 + seen.published)
            seen.subnet.cable((HCAS[1], 1), (LEAFS[1], 20 + seen.published))
            seen.look()
            await seen.until(lambda before=before: seen.published > before)
        assert seen.questions_of(HCAS[0]) == 3
        # A change of the port allows three more.
        seen.subnet.faults.clear()
        seen.machine.set_subnet("ibp0", lid=45)
        seen.look()
        await seen.until(lambda: seen.remarks == ())
        assert seen.seen()["ibp0"] == ("su1-leaf0", "9", False)


async def test_the_neighbor_of_a_peer_that_no_longer_answers_is_stale(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.subnet.faults[HCAS[0], 1] = SubnetFault(silent=frozenset({NODE_INFO, NODE_DESCRIPTION}))
        seen.machine.set_subnet("ibp0", lid=45)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"] == ("su1-leaf0", "9", True))
        assert seen.remark_keys() == [("ibp0", "silent_port")]
        assert not seen.seen()["ibp1"][2]


async def test_a_restarted_agent_leaves_an_unresponsive_peer_alone_until_a_change_or_a_reboot(
    tmp_path: Path,
) -> None:
    def protect(seen: Watched) -> None:
        seen.subnet.faults[HCAS[0], 1] = SubnetFault(silent=frozenset({NODE_INFO, NODE_DESCRIPTION}))

    async with watched(tmp_path / "m", prepare=protect) as seen:
        await seen.until(lambda: seen.remark_keys() == [("ibp0", "silent_port")])
        for change, questions in (("none", 0), ("lid", 3), ("reboot", 3)):
            await seen.stop()
            before = seen.questions_of(HCAS[0]), seen.questions_of(HCAS[1])
            if change == "lid":
                seen.machine.set_subnet("ibp0", lid=45)
            if change == "reboot":
                seen.boot = "boot-2"
            seen.start()
            await seen.until(lambda: seen.remark_keys() == [("ibp0", "silent_port")])
            assert seen.questions_of(HCAS[1]) == before[1] + 2
            assert seen.questions_of(HCAS[0]) == before[0] + questions


async def test_a_lost_description_keeps_the_name_that_is_known(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.subnet.faults[HCAS[0], 1] = SubnetFault(silent=frozenset({NODE_DESCRIPTION}))
        seen.subnet.cable((HCAS[0], 1), (LEAFS[0], 13))
        seen.machine.set_subnet("ibp0", lid=9)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"] == ("su1-leaf0", "13", False))
        # Another switch without a description has no name.
        seen.subnet.cable((HCAS[0], 1), (LEAFS[1], 13))
        seen.machine.set_subnet("ibp0", lid=10)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"] == ("b83fd20300aa0001", "13", False))


async def test_two_hosts_back_to_back_are_neighbors_with_a_remark(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        seen.subnet.cable((HCAS[0], 1), (HCAS[1], 1))
        seen.machine.set_subnet("ibp0", lid=5)
        seen.machine.set_subnet("ibp1", lid=6)
        seen.look()
        await seen.until(lambda: len(seen.remarks) == 2)
        assert seen.neighbors[0].chassis_id.subtype == "hca-guid"
        assert seen.remark_keys() == [("ibp0", "adapter_neighbor"), ("ibp1", "adapter_neighbor")]
        assert "gpu-001 mlx5_1 port 1" in seen.remarks[0].detail
        seen.machine.set_link("ibp0", False)
        seen.look()
        await seen.until(lambda: seen.remark_keys() == [("ibp1", "adapter_neighbor")])


@pytest.mark.parametrize("description", [b"\xff" * 64, b"\x1b]0;x\x07\n\r\t" * 7, b"x" * 64, b"\0" * 64])
async def test_64_hostile_octets_are_one_printable_line(tmp_path: Path, description: bytes) -> None:
    def hostile(seen: Watched) -> None:
        seen.subnet.nodes[LEAFS[0]].description = description

    async with watched(tmp_path / "m", prepare=hostile) as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        texts = [
            text for text in (seen.neighbors[0].system_name, seen.neighbors[0].system_description) if text
        ]
        assert all(text.isprintable() for text in texts)
        assert bool(texts) == any(description)


async def test_a_map_names_switches_that_have_only_the_name_of_their_model(tmp_path: Path) -> None:
    def unmanaged(seen: Watched) -> None:
        for leaf in LEAFS:
            seen.subnet.nodes[leaf].description = b"Quantum-2 Mellanox Technologies"

    names = tmp_path / "names"
    names.write_text(f'0x{LEAFS[0]:x} "su1-leaf0"\n')
    async with watched(tmp_path / "m", names=names, prepare=unmanaged) as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        assert [neighbor.system_name for neighbor in seen.neighbors] == ["su1-leaf0", None]
        assert seen.neighbors[1].system_description == "Quantum-2 Mellanox Technologies"


async def test_a_map_is_read_again_when_it_changes_and_an_unreadable_one_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(infiniband_source, "NAMES_S", 0.0)
    names = tmp_path / "names"
    async with watched(
        tmp_path / "m", names=names, pace=msgspec.structs.replace(QUICK, again_s=0.01)
    ) as seen:
        await until(lambda: seen.questions_of(HCAS[0]) >= 20)  # each look reads the names first
        assert caplog.text.count("The names of InfiniBand nodes cannot be read") == 1
        assert seen.published == 1, "equal answers are published once"
        names.write_text(f'0x{LEAFS[0]:x} "rack7"\n')
        await seen.until(lambda: seen.neighbors[0].system_name == "rack7")


async def test_a_device_that_cannot_be_used_is_a_remark_with_a_remedy_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(seen: Watched) -> None:
        seen.subnet.remove(infiniband_machine.umads(seen.root)[0])

    async with watched(
        tmp_path / "m", pace=msgspec.structs.replace(QUICK, again_s=0.01), prepare=broken
    ) as seen:
        await seen.until(lambda: len(seen.neighbors) == 1)
        assert seen.remark_keys() == [("ibp0", "peer_not_asked")]
        assert "the host's /dev/infiniband" in seen.remarks[0].detail
        await until(lambda: seen.questions_of(HCAS[1]) >= 20)  # both ports are tried again and again
        assert caplog.text.count("A port cannot ask its peer. link=ibp0") == 1


@pytest.mark.slow
@pytest.mark.needs("fuse", "root")
async def test_devices_that_hang_stop_neither_the_loop_nor_the_source(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def hang(seen: Watched) -> None:
            stack.enter_context(dead(seen.root / "dev/infiniband"))

        async with watched(tmp_path / "m", prepare=hang) as seen:
            await seen.until(lambda: len(seen.remarks) == 2)
            assert seen.remark_keys() == [("ibp0", "peer_not_asked"), ("ibp1", "peer_not_asked")]
            assert "no answer within 2 s" in seen.remarks[0].detail
            stack.close()  # the devices answer, and are asked without another reason
            await seen.until(lambda: len(seen.neighbors) == 2 and not seen.remarks)


async def test_a_missing_nic_keeps_no_port(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        seen.machine.unplug("ibp0")
        seen.look()
        await seen.until(lambda: list(seen.seen()) == ["ibp1"])


async def test_a_port_that_is_gone_asks_nothing_and_asks_at_once_when_it_is_back(tmp_path: Path) -> None:
    async with watched(tmp_path / "m") as seen:
        await seen.until(lambda: len(seen.neighbors) == 2)
        (port,) = (seen.root / "sys/class/infiniband/mlx5_0/ports").iterdir()
        away = port.rename(seen.root / "away")
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"][2])
        asked = seen.questions_of(HCAS[0])
        seen.subnet.cable((HCAS[0], 1), (LEAFS[0], 12))
        away.rename(port)
        seen.look()
        await seen.until(lambda: seen.seen()["ibp0"] == ("su1-leaf0", "12", False))
        assert seen.questions_of(HCAS[0]) == asked + 2


# The verb `neighbors`


async def listed(root: Path, query: str) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """State and switch of each link, and the notes."""
    listing = await with_infiniband(NeighborListing((), ()), InfinibandSettings(query=query), root)
    table = neighbor_table(listing)
    rows = {
        row.link: (row.state, row.neighbors[0].neighbor.system_name or "" if row.neighbors else "")
        for row in listing.rows
    }
    assert all(link in table for link in rows)
    return rows, [remark.detail for remark in listing.remarks]


async def test_the_verb_asks_each_port_once(tmp_path: Path) -> None:
    root = tmp_path / "m"
    infiniband_machine.machine(root, compute=3).set_link("ibp2", False)
    with SimulatedSubnet() as subnet:
        subnet.add(SubnetNode(LEAFS[0], description=b"MF0;su1-leaf0:MQM9700/U1"))
        subnet.cable((HCAS[0], 1), (LEAFS[0], 9))
        for place, hca in zip(infiniband_machine.umads(root), HCAS, strict=False):
            subnet.attach(place, hca)
        rows, notes = await listed(root, "auto")
        assert rows == {"ibp0": ("live", "su1-leaf0"), "ibp1": ("silent", ""), "ibp2": ("down", "")}
        assert len(notes) == 1
        assert "did not answer" in notes[0]
        assert len(subnet.questions) == 3


async def test_the_verb_shows_why_it_may_not_ask(tmp_path: Path) -> None:
    infiniband_machine.machine(tmp_path / "m", compute=2)
    rows, notes = await listed(tmp_path / "m", "never")
    assert rows == {"ibp0": ("unasked", ""), "ibp1": ("unasked", "")}
    assert len(notes) == 1
    assert "infiniband: {query: auto}" in notes[0]
