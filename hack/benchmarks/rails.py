"""The cost of probing the rails, at the default rate, on real sockets: 8 and 128 NICs.

Two nodes in network namespaces, each rail a veth pair, in one process that moves the clock: its CPU time counts for
both, and each sends, receives and answers as an agent with three partners for each rail does.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import ip_interface

from benchmarks.figures import Figure
from benchmarks.stage import Stage
from nodeagent.fabric.rail_partners import (
    AnsweredPartner,
    ProbedPartner,
    RailList,
    RailPartners,
    RailPartnersSpec,
)
from nodeagent.features.rail_probing.probe_caps import IpInterface
from nodeagent.features.rail_probing.rail_probes import SLOT_S, TICK_S, RailLink, RailProbes
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import open_rail_socket
from nodeagent_lab.sim.netns import Netns, veth

PERCENT = 0.5
_SETTINGS = RailsSettings(probe=True, networks=("10.0.0.0/8",))


async def rails(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    del stage  # a real kernel is measured
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for count in (8, 128):
        try:
            found, answered = await _percent(count, 3 if quick else 10)
        except PermissionError:
            return
        yield Figure(
            "Probing the rails of a node", f"{count} NICs: CPU of one core", "%", found, {"p50": PERCENT},
            f"{answered:.0f} probes a second answered; the cap of the sender is 64",
        )  # fmt: skip


async def _percent(count: int, times: int) -> tuple[list[float], float]:
    now = [0.0]
    with Netns() as left, Netns() as right:
        for rail in range(count):
            veth(left, f"r{rail}", right, f"r{rail}")
        nodes = [_probes(ns, end, count, now) for end, ns in enumerate((left, right))]
        try:
            for probes in nodes:
                await probes.arrange()
            await _pass_s(nodes, now, 60)
            before, found = _answered(nodes), []
            for _ in range(times):
                began = time.process_time()
                await _pass_s(nodes, now, 20)
                found.append(100 * (time.process_time() - began) / len(nodes) / 20)
            return found, (_answered(nodes) - before) / len(nodes) / (20 * times)
        finally:
            for probes in nodes:
                probes.close()


def _answered(nodes: list[RailProbes]) -> float:
    return sum(sum(rail.rtt_counts) for probes in nodes for rail in probes.rails.values())


async def _pass_s(nodes: list[RailProbes], now: list[float], seconds: int) -> None:
    for _ in range(round(seconds / TICK_S)):
        now[0] += TICK_S
        for probes in nodes:
            probes.tick()
        for _ in range(6):
            await asyncio.sleep(0)
        if now[0] % SLOT_S == 0:
            for probes in nodes:
                await probes.arrange()
                probes.evaluate()


def _probes(ns: Netns, end: int, count: int, now: list[float]) -> RailProbes:
    def address(rail: int, at: int, partner: int) -> str:
        return f"10.{rail}.{partner}.{at}"

    lines = []
    for rail in range(count):
        lines.append(f"link set r{rail} up")
        lines += [f"addr add {address(rail, end, partner)}/31 dev r{rail}" for partner in range(3)]
    ns.ip("\n".join(lines))
    with ns.entered():
        links = [
            RailLink(
                f"nic{rail}", f"0000:{rail:02x}:00.0", f"r{rail}", socket.if_nametoindex(f"r{rail}"), 1500,
                tuple(ip_interface(f"{address(rail, end, partner)}/31") for partner in range(3)),
            )
            for rail in range(count)
        ]  # fmt: skip

    def opened(netdev: str, ifindex: int, own: IpInterface, port: int, dscp: int) -> socket.socket:
        with ns.entered():
            return open_rail_socket(netdev, ifindex, own, port, dscp)

    async def read() -> list[RailLink]:
        return links

    def partners(rail: int) -> RailList:
        to = [(f"n{partner}", f"nic{rail}", address(rail, 1 - end, partner)) for partner in range(3)]
        return RailList(
            rail=f"nic{rail}",
            probe=tuple(
                ProbedPartner(node=n, nic=nic, address=a, per_second=0.5, ports=8 if n == "n2" else 1)
                for n, nic, a in to
            ),
            answer=tuple(AnsweredPartner(node=n, nic=nic, address=a) for n, nic, a in to),
        )

    probes = RailProbes(_SETTINGS, read, clock=lambda: now[0], open_socket=opened)
    probes.take_partners(RailPartners(spec=RailPartnersSpec(rails=tuple(map(partners, range(count))))))
    return probes
