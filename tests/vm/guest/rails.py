"""Probe over a link whose delay, order and loss are those of netem, and over rails in a bond or VRF, or with soft-RoCE.

Two probers of the installed agent: one here, on ``rail0``, and its partner in a namespace. Their clock is the step's
own, ``TICK_REAL_S`` for each tick, so that a minute of probes takes seconds.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_interface
from pathlib import Path

from ground import Json, netdev_of, read, sh

from nodeagent.fabric.rail_partners import (
    AnsweredPartner,
    ProbedPartner,
    RailList,
    RailPartners,
    RailPartnersSpec,
)
from nodeagent.facts.model import Link
from nodeagent.features.rail_probing.leg_windows import SLOT_S
from nodeagent.features.rail_probing.rail_probes import TICK_S, RailLink, RailProbes, checks
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import open_rail_socket
from nodeagent.features.rail_probing.rail_watch import rail_view, read_rail_links
from nodeagent_lab.sim.netns import Netns

TICK_REAL_S = 0.04
HERE, THERE = "10.9.0.1/24", "10.9.0.2/24"
PCI_ADDRESS = "0000:ff:00.0"
ROCE_PORT = 4791
CASES = {
    "still": "",
    "delay": "delay 20ms",
    "jitter": "delay 20ms 10ms",
    "late": "delay 300ms",
    "reorder": "delay 20ms reorder 50% 50%",
    "duplicate": "duplicate 100%",
    "loss": "loss 30%",
}
"""The arguments of netem for the packets from here to the partner."""


class Probing:
    """A prober of ``rail0`` here and one of its partner; ``pass_s`` moves the clock of both."""

    def __init__(self, there: Netns) -> None:
        self.now = 1_000_000.0
        self._there = there

        def open_there(*arguments: Json) -> socket.socket:
            with there.entered():
                return open_rail_socket(*arguments)

        settings = RailsSettings(probe=True)
        self.probes = RailProbes(settings, self._links, clock=lambda: self.now)
        self.partner = RailProbes(settings, self._links_there, clock=lambda: self.now, open_socket=open_there)

    async def _links(self) -> tuple[RailLink, ...]:
        return seen("rail0")

    async def _links_there(self) -> tuple[RailLink, ...]:
        return (
            RailLink(
                "nic0", PCI_ADDRESS, "rail1", self._there.ifindex("rail1"), 1500, (ip_interface(THERE),)
            ),
        )

    async def start(self) -> None:
        probed = ProbedPartner(node="there", nic="nic0", address=THERE.partition("/")[0], per_second=2.0)
        answered = AnsweredPartner(node="here", nic="nic0", address=HERE.partition("/")[0])
        self.probes.take_partners(listed(RailList(rail="nic0", probe=(probed,))))
        self.partner.take_partners(listed(RailList(rail="nic0", answer=(answered,))))
        await self.probes.arrange()
        await self.partner.arrange()

    async def pass_s(self, seconds: float) -> None:
        for number in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.probes.tick()
            await asyncio.sleep(TICK_REAL_S)
            if number % round(SLOT_S / TICK_S) == 0:
                self.probes.evaluate()

    def result(self) -> Json:
        (check,) = checks(self.probes, self.now, self.now)
        (rail,) = self.probes.rails.values()
        view = rail_view(rail, self.now)
        return {
            "checked": check.checked,
            "levels": [leg.level for leg in check.legs],
            "sent": sum(rail.sent.values()),
            "lost": sum(rail.lost.values()),
            "round_trips": sum(rail.rtt_counts),
            "rtt_us": [partner.rtt_us for partner in view.partners],
        }

    def close(self) -> None:
        self.probes.close()
        self.partner.close()


def listed(rail: RailList) -> RailPartners:
    return RailPartners(spec=RailPartnersSpec(rails=(rail,)))


def seen(netdev: str, pci_address: str = PCI_ADDRESS) -> tuple[RailLink, ...]:
    """The rail as the agent reads it from the kernel."""
    link = Link(netdev, pci_address, None, True, True, "up", None, 1500)
    return read_rail_links([link], {pci_address: 0})


async def probe(there: Netns, seconds: float, *netem: str) -> Json:
    """Probe for this time, after an answer without netem; then let what is under way arrive."""
    probing = Probing(there)
    try:
        await probing.start()
        await probing.pass_s(3)
        if netem:
            await sh("tc", "qdisc", "replace", "dev", "rail0", "root", "netem", *netem)
        await probing.pass_s(seconds)
        during = probing.result()
        (rail,) = probing.probes.rails.values()
        rail.legs = {}
        await probing.pass_s(14)
        return {**probing.result(), **{key: during[key] for key in ("checked", "levels", "rtt_us")}}
    finally:
        probing.close()
        if netem:
            await sh("tc", "qdisc", "delete", "dev", "rail0", "root")


@contextmanager
def wired() -> Iterator[Netns]:
    """``rail0`` here, and the namespace with its other end."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    with Netns() as there:
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "rail1", "netns", there.path)
        try:
            with there.entered():
                ip("address", "add", THERE, "dev", "rail1")
                ip("link", "set", "rail1", "up")
            ip("address", "add", HERE, "dev", "rail0")
            ip("link", "set", "rail0", "up")
            yield there
        finally:
            ip("link", "delete", "rail0")


async def netem(there: Netns) -> Json:
    """Probe for 40 s of the step's clock in each case."""
    await sh("modprobe", "sch_netem")
    return {name: await probe(there, 40, *words.split()) for name, words in CASES.items()}


@contextmanager
def captured(netdev: str) -> Iterator[list[bytes]]:
    """The UDP packets that this host sends over the netdev meanwhile."""
    sent: list[bytes] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as opened:
        opened.bind((netdev, 0))
        opened.setblocking(False)
        yield sent
        while True:
            try:
                frame, (_, _, kind, *_) = opened.recvfrom(2048)
            except BlockingIOError:
                break
            if (
                kind == socket.PACKET_OUTGOING
                and frame[12:14] == b"\x08\x00"
                and frame[23] == socket.IPPROTO_UDP
            ):
                sent.append(frame)


async def bond(pf: str) -> Json:
    """Make a PF with an address a port of a bond, and give its agent a list as before."""
    netdev = netdev_of(pf)
    await sh("modprobe", "bonding", "max_bonds=0")
    await sh("ip", "address", "add", HERE, "dev", netdev)
    (before,) = seen(netdev, pf)
    await sh("ip", "link", "add", "bond9", "type", "bond", "mode", "active-backup")
    await sh("ip", "link", "set", netdev, "down")
    await sh("ip", "link", "set", netdev, "master", "bond9")
    await sh("ip", "link", "set", "bond9", "up")
    await sh("ip", "address", "replace", HERE, "dev", netdev)
    (port,) = seen(netdev, pf)
    probed = ProbedPartner(node="there", nic="nic0", address=THERE.partition("/")[0], per_second=2.0)
    now = [1_000_000.0]

    async def links() -> tuple[RailLink, ...]:
        return seen(netdev, pf)

    probes = RailProbes(RailsSettings(probe=True), links, clock=lambda: now[0])
    probes.take_partners(listed(RailList(rail="nic0", probe=(probed,))))
    with captured(netdev) as sent:
        await probes.arrange()
        for _ in range(20):
            now[0] += TICK_S
            probes.tick()
            await asyncio.sleep(0)
        (check,) = checks(probes, now[0], now[0])
    probes.close()
    await sh("ip", "link", "delete", "bond9")
    await sh("ip", "address", "flush", "dev", netdev)
    return {"before": before.fault, "port": port.fault, "checked": check.checked, "packets": len(sent)}


async def vrf(there: Netns) -> Json:
    """A rail in a VRF keeps its address and its probes."""
    await sh("modprobe", "vrf")
    await sh("ip", "link", "add", "vrf9", "type", "vrf", "table", "909")
    await sh("ip", "link", "set", "vrf9", "up")
    await sh("ip", "link", "set", "rail0", "master", "vrf9")
    found = {"fault": seen("rail0")[0].fault, **await probe(there, 20)}
    await sh("ip", "link", "delete", "vrf9")
    return found


async def rxe(there: Netns) -> Json:
    """Soft-RoCE on the rail: its UDP port is the kernel's before, during and after the probes."""
    await sh("modprobe", "rdma_rxe")
    await sh("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "rail0")
    counters = Path("/sys/class/infiniband/rxe9/ports/1/hw_counters")

    def packets() -> Json:
        return {name: read(counters / name) for name in ("sent_pkts", "rcvd_pkts", "rcvd_err")
                if (counters / name).exists()}  # fmt: skip

    before = {"state": read("/sys/class/infiniband/rxe9/ports/1/state"), **packets()}
    with captured("rail0") as sent:
        found = await probe(there, 20)
    after = {"state": read("/sys/class/infiniband/rxe9/ports/1/state"), **packets()}
    ports = {struct.unpack_from("!HH", frame, 34) for frame in sent}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        try:
            other.bind(("0.0.0.0", ROCE_PORT))
            taken = False
        except OSError:
            taken = True
    await sh("rdma", "link", "delete", "rxe9")
    return {
        **found,
        "before": before,
        "after": after,
        "ports": sorted({b for a in ports for b in a}),
        "taken": taken,
    }
