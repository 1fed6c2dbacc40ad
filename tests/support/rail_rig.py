"""Two leaves of eight hosts and four spines in network namespaces, with real sockets and a clock of the test.

Each host has one rail with a /31 to its leaf; the leaves spread their traffic over the spines by port.
All hosts are in one event loop. ``pass_s`` moves the clock, and the packets of each tick pass before the next.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from contextlib import ExitStack
from ipaddress import ip_interface
from types import TracebackType

from msgspec import structs

from nodeagent.fabric.rail_partners import (
    ACROSS,
    LEAF,
    AnsweredPartner,
    ProbedPartner,
    RailList,
    RailPartners,
    RailPartnersSpec,
)
from nodeagent.facts.model import RailCheck
from nodeagent.features.rail_probing.check_guests import ReadAddresses
from nodeagent.features.rail_probing.probe_caps import IpInterface
from nodeagent.features.rail_probing.rail_burst import RailBurst
from nodeagent.features.rail_probing.rail_probes import SLOT_S, TICK_S, RailLink, RailProbes, checks
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_socket import open_rail_socket
from nodeagent.features.rail_probing.rail_views import BurstResult
from nodeagent_lab.sim.netns import Netns, veth

HOSTS, SPINES = 8, 4
START = 1_000_000.0
SETTINGS = RailsSettings(probe=True, networks=("10.0.0.0/8",), dscp=26)


def address(leaf: int, host: int) -> str:
    return f"10.{leaf + 1}.{host}.1"


class RailRig:
    """``with RailRig() as rig``; ``hosts`` and ``probes`` by leaf and host."""

    def __init__(self) -> None:
        self.now = START
        self._stack = ExitStack()
        self.probes: dict[tuple[int, int], RailProbes] = {}
        self.stopped: set[tuple[int, int]] = set()
        self.reports = {
            f"n{leaf}-{host}": [address(leaf, host)] for leaf in range(2) for host in range(HOSTS)
        }
        self.read: list[str] = []
        self._faults: list[tuple[Netns, str]] = []

    def __enter__(self) -> RailRig:
        enter = self._stack.enter_context
        self.leaves = [enter(Netns()) for _ in range(2)]
        self.spines = [enter(Netns()) for _ in range(SPINES)]
        self.hosts = {(leaf, host): enter(Netns()) for leaf in range(2) for host in range(HOSTS)}
        for (leaf, host), ns in self.hosts.items():
            veth(ns, "rail0", self.leaves[leaf], f"h{host}")
            ns.ip(f"link set lo up\nlink set rail0 up\naddr add {address(leaf, host)}/31 dev rail0\n"
                  f"route add default via 10.{leaf + 1}.{host}.0 dev rail0")  # fmt: skip
            self.leaves[leaf].ip(f"link set h{host} up\naddr add 10.{leaf + 1}.{host}.0/31 dev h{host}")
            set_kernel(ns, "net/ipv4/icmp_ratelimit", "0")
        for number, spine in enumerate(self.spines):
            for leaf in range(2):
                veth(spine, f"l{leaf}", self.leaves[leaf], f"s{number}")
                spine.ip(f"link set l{leaf} up\naddr add 10.100.{leaf * SPINES + number}.1/31 dev l{leaf}")
                self.leaves[leaf].ip(
                    f"link set s{number} up\naddr add 10.100.{leaf * SPINES + number}.0/31 dev s{number}"
                )
                spine.ip(f"route add 10.{leaf + 1}.0.0/16 via 10.100.{leaf * SPINES + number}.0")
            set_kernel(spine, "net/ipv4/ip_forward", "1")
        for leaf, ns in enumerate(self.leaves):
            set_kernel(ns, "net/ipv4/ip_forward", "1")
            set_kernel(ns, "net/ipv4/fib_multipath_hash_policy", "1")
            hops = " ".join(f"nexthop via 10.100.{leaf * SPINES + s}.1" for s in range(SPINES))
            ns.ip(f"route add 10.{2 - leaf}.0.0/16 {hops}")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    async def start(self, per_second: float = 0.5) -> None:
        """Start an agent on each host, with the partners of a ring and one across."""
        for key in self.hosts:
            await self.start_one(key, per_second)

    async def start_one(self, key: tuple[int, int], per_second: float = 0.5) -> None:
        """Start the agent of a host, or another one in its place."""
        ns = self.hosts[key]
        if key in self.probes:
            self.probes[key].close()
        with ns.entered():
            link = rail_link("rail0", (ip_interface(f"{address(*key)}/31"),))
        self.probes[key] = probes = probes_in(ns, [link], lambda: self.now, read_addresses=self._read)
        probes.take_partners(partners_of(*key, per_second))
        await probes.arrange()

    async def _read(self, node: str) -> list[str]:
        """The report of a node, as the API server has it."""
        self.read.append(node)
        return self.reports.get(node, [])

    async def check(self, key: tuple[int, int], to: tuple[int, int], seconds: float = 5.0) -> BurstResult:
        """Do as `nodeagent rails check` does."""
        ns = self.hosts[key]
        with ns.entered():
            links = [rail_link("rail0", (ip_interface(f"{address(*key)}/31"),))]
        burst = RailBurst(
            SETTINGS,
            f"n{key[0]}-{key[1]}",
            links,
            {"nic0": [f"{address(*to)}/31"]},
            clock=lambda: self.now,
            open_socket=opening(ns),
        )
        while burst.tick(seconds):
            self.now += 0.05
            await packets_pass()
        burst.close()
        return BurstResult("", "" if burst.answered else "silent", tuple(one.result() for one in burst.rails))

    async def stop(self) -> None:
        for probes in self.probes.values():
            probes.close()
        self.probes, self.stopped = {}, set()
        for ns, rule in reversed(self._faults):
            iptables(ns, f"-D {rule}")
        self._faults = []

    def fault(self, ns: Netns, rule: str) -> None:
        """Add a rule of iptables until ``stop``: ``FORWARD -o h0 -j DROP``."""
        iptables(ns, f"-A {rule}")
        self._faults.append((ns, rule))

    def repair(self) -> None:
        for ns, rule in reversed(self._faults):
            iptables(ns, f"-D {rule}")
        self._faults = []

    async def pass_s(self, seconds: float) -> None:
        """Let this time pass."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for key, probes in self.probes.items():
                if key not in self.stopped:
                    probes.tick()
            await packets_pass()
            if (self.now - START) % SLOT_S < TICK_S:
                for key, probes in self.probes.items():
                    if key not in self.stopped:
                        probes.evaluate()

    async def stop_process(self, key: tuple[int, int], seconds: float) -> None:
        """Do as SIGSTOP does: for this time the process neither sends nor reads, and its sockets keep what comes."""
        loop, probes = asyncio.get_running_loop(), self.probes[key]
        sockets = [one for rail in probes.rails.values() for one in rail.sockets.values()]
        self.stopped.add(key)
        for one in sockets:
            loop.remove_reader(one._socket)
        await self.pass_s(seconds)
        self.stopped.discard(key)
        for one in sockets:
            loop.add_reader(one._socket, one.read)
        probes.tick(paused=True)

    def found(self, leaf: int, host: int) -> RailCheck:
        (found,) = checks(self.probes[leaf, host], self.now, self.now)
        return found

    def lossy(self, *, large: bool = False) -> dict[tuple[str, str], int]:
        """The level of each leg that is not good, by the nodes of its ends."""
        return {
            (f"n{leaf}-{host}", leg.node): leg.level
            for leaf, host in self.probes
            for leg in self.found(leaf, host).legs
            if leg.large == large
        }


async def packets_pass() -> None:
    for _ in range(4):
        await asyncio.sleep(0)
    await asyncio.sleep(0.001)  # softirqs of another processor
    await asyncio.sleep(0)


def opening(ns: Netns):
    """Open sockets in this namespace."""

    def opened(netdev: str, ifindex: int, own: IpInterface, port: int, dscp: int):
        with ns.entered():
            return open_rail_socket(netdev, ifindex, own, port, dscp)

    return opened


def probes_in(
    ns: Netns, links: list[RailLink], clock, networks=("10.0.0.0/8",), **more: ReadAddresses
) -> RailProbes:
    async def read() -> list[RailLink]:
        return links

    settings = structs.replace(SETTINGS, networks=networks)
    return RailProbes(settings, read, clock=clock, open_socket=opening(ns), **more)


def rail_link(netdev: str, addresses: tuple[IpInterface, ...], name: str = "nic0") -> RailLink:
    """In the namespace of the netdev."""
    return RailLink(name, "0000:18:00.0", netdev, socket.if_nametoindex(netdev), 1500, addresses)


def partners_of(leaf: int, host: int, per_second: float = 0.5) -> RailPartners:
    def named(to: tuple[int, int]) -> dict[str, str]:
        return {"node": f"n{to[0]}-{to[1]}", "nic": "nic0", "address": address(*to)}

    ring = [(leaf, (host + step) % HOSTS) for step in (1, 5)]
    back = [(leaf, (host - step) % HOSTS) for step in (1, 5)] + [(1 - leaf, host)]
    probe = [ProbedPartner(**named(to), scope=LEAF, per_second=per_second) for to in ring]
    probe.append(ProbedPartner(**named((1 - leaf, host)), scope=ACROSS, ports=8, per_second=per_second))
    answer = tuple(AnsweredPartner(**named(to)) for to in back)
    return RailPartners(
        spec=RailPartnersSpec(rails=(RailList(rail="nic0", probe=tuple(probe), answer=answer),))
    )


def set_kernel(ns: Netns, name: str, value: str) -> None:
    with ns.entered(), open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


def iptables(ns: Netns, rule: str) -> None:
    subprocess.run(ns.command("iptables", "-w", *rule.split()), check=True)
