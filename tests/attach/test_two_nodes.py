"""Pods on two nodes reach each other over all rails at once, and no NIC answers for an address of another rail."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.attached_pods import AttachedNode, addresses, links, vf
from tests.support.namespaces import Netns

pytestmark = pytest.mark.needs("root", "ip", "nsenter")

RAILS = 4
_ARP, _REPLY, _ALL_NICS = 0x0806, 2, b"\xff" * 6
_ALL_FRAMES = 3
"""``ETH_P_ALL``: a bridge takes the frames of its ports before a socket of one protocol."""
_WAIT_S = 20.0
_SILENCE_S = 0.3


class Answers:
    """Follows the ARP answers in a namespace of switches: the MAC addresses that answered for each address."""

    def __init__(self, switches: Netns) -> None:
        with switches.entered():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))

    def read(self, addresses: Collection[str]) -> dict[str, set[str]]:
        """Read until these addresses were answered for and nobody answers any more. A neighbor that somebody has known
        for some seconds is asked for again."""
        found: dict[str, set[str]] = {}
        while select.select([self.socket], [], [], _SILENCE_S if found.keys() >= {*addresses} else _WAIT_S)[
            0
        ]:
            frame = self.socket.recv(128)
            kind, operation = frame[12:14], frame[20:22]
            if (int.from_bytes(kind), int.from_bytes(operation)) == (_ARP, _REPLY):
                found.setdefault(socket.inet_ntoa(frame[28:32]), set()).add(frame[22:28].hex(":"))
        return found


def ask(switches: Netns, switch: str, address: str) -> None:
    """Ask on a switch who has an address, from one that nobody has."""
    mac = bytes.fromhex("020000000001")
    ethernet = _ALL_NICS + mac + _ARP.to_bytes(2)
    arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + b"\0" * 4 + b"\0" * 6 + socket.inet_aton(address)
    with switches.raw(switch) as sent:
        sent.send(ethernet + arp)


def ping(pod: Netns, pairs: dict[str, str]) -> set[str]:
    """Send an echo request from each address to its partner, all before the first answer; return who answered."""
    with ExitStack() as stack:
        opened = []
        for source, target in pairs.items():
            with pod.entered():
                one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
            one.bind((source, 0))
            one.settimeout(_WAIT_S)
            opened.append(one)
            one.sendto(struct.pack("!BBHHH", 8, 0, 0xFFFF - 0x0800, 0, 0), (target, 0))
        return {one.recvfrom(1024)[1][0] for one in opened}


def exchange(pod: Netns, other: Netns, pairs: dict[str, str]) -> set[tuple[str, str]]:
    """Connect each address with its partner, all at once; return source and target as the other end sees them."""
    with ExitStack() as stack:
        listening, connected = [], []
        for target in pairs.values():
            with other.entered():
                one = stack.enter_context(socket.create_server((target, 5000)))
            one.settimeout(_WAIT_S)
            listening.append(one)
        for source, target in pairs.items():
            with pod.entered():
                one = stack.enter_context(
                    socket.create_connection((target, 5000), _WAIT_S, source_address=(source, 0))
                )
            connected.append(one)
        seen = set()
        for near, server in zip(connected, listening, strict=True):
            far = stack.enter_context(server.accept()[0])
            far.settimeout(_WAIT_S)
            near.sendall(b"over this rail")
            assert far.recv(100) == b"over this rail"
            seen.add((far.getpeername()[0], far.getsockname()[0]))
        return seen


@pytest.mark.parametrize("switches", [RAILS, 1], ids=["a switch for each rail", "one switch for all rails"])
async def test_pods_on_two_nodes_use_all_rails_at_once_and_each_nic_answers_for_itself(
    tmp_path: Path, switches: int
) -> None:
    with ExitStack() as stack:
        nodes = []
        for number in range(2):
            node = AttachedNode(tmp_path / str(number), rails=RAILS, vfs=2)
            stack.callback(node.close)
            assert node.plan is not None
            vfs = {
                device: replace(planned, mtu=1400, address=f"10.{100 + planned.rail}.16.{7 + number}/16")
                for device, planned in node.plan.vfs.items()
            }
            node.plan = replace(node.plan, vfs=vfs)
            nodes.append(node)
        fabric = nodes[0].far
        for switch in range(switches):
            fabric.ip(f"link add rail{switch} type bridge\nlink set rail{switch} up")
        for number, node in enumerate(nodes):
            for rail in range(RAILS):
                port = f"node{number}-{rail}"
                node.far.ip(f"link set far{rail}-{number} netns {fabric.path} name {port}")
                fabric.ip(f"link set {port} master rail{rail % switches} up")
        pods: list[tuple[Netns, list[str]]] = []
        macs: dict[str, set[str]] = {}
        for number, node in enumerate(nodes):
            sandbox, pod = node.pod(f"worker-{number}", *(vf(rail, number) for rail in range(RAILS)))
            await node.attachments.begin(sandbox)
            given = {name: cidrs[0].partition("/")[0] for name, cidrs in addresses(pod).items()}
            macs |= {given[name]: {link["address"]} for name, link in links(pod).items()}
            pods.append((pod, [given[f"rail{rail}"] for rail in range(RAILS)]))
        answers = Answers(fabric)
        stack.callback(answers.socket.close)
        (pod, mine), (other, theirs) = pods
        pairs = dict(zip(mine, theirs, strict=True))
        assert ping(pod, pairs) == set(theirs)
        assert ping(other, {target: source for source, target in pairs.items()}) == set(mine)
        assert exchange(pod, other, pairs) == set(pairs.items())
        told = answers.read(theirs)  # the other end learns ours by being asked, and may ask for them later
        assert told.keys() >= {*theirs}
        assert told == {address: macs[address] for address in told}
        for asked in range(switches):
            for address in (*mine, *theirs):
                ask(fabric, f"rail{asked}", address)
            there = {one for of in (mine, theirs) for rail, one in enumerate(of) if rail % switches == asked}
            told = answers.read(there)
            assert told.keys() >= there
            assert told == {address: macs[address] for address in told}
