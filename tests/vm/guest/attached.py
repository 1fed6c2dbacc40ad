"""Move real VFs into pods and back: `nodeagent attach` below the runtime, on this kernel and its drivers."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from ground import DEVICES, Json, netdev_of, read, rebind, virtual_functions

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.attach.attached_spec import AttachedSpec
from nodeagent.attach.attachments import Attachments, KubeletList
from nodeagent.attach.cni_plugin import CniPlugins
from nodeagent.attach.host_names import HostNames
from nodeagent.attach.leases import CNI_FOLDER, Leases
from nodeagent.attach.node_netdevs import NodeNetdevs
from nodeagent.attach.nri_plugin import Sandbox
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.attach.vf_allocations import VfAllocations
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Holding
from nodeagent_lab.sim.netns import Netns

FOLDER = Path("/tmp/attach")


class Node:
    """The VFs of the PFs, each with an address of its rail; ``restarted`` is another process."""

    def __init__(self, pfs: list[str]) -> None:
        self.plan = AttachPlan(
            "rail{rail}",
            {
                vf: PlannedVf(rail, 1500, f"10.{100 + rail}.{16 * (index + 1)}.7/16")
                for rail, pf in enumerate(pfs)
                for index, vf in enumerate(virtual_functions(pf))
            },
        )
        self.holdings: list[Holding] = []
        self.stamps = AttachStamps(FOLDER)
        self.attachments = self.restarted()

    def restarted(self) -> Attachments:
        async def held() -> KubeletList:
            pods = frozenset((holding.namespace, holding.pod) for holding in self.holdings)
            return KubeletList(pods, tuple(self.holdings))

        self.attachments = Attachments(
            lambda: self.plan,
            held,
            AttachedSpec(FOLDER / "cdi"),
            VfAllocations(FOLDER),
            NodeNetdevs(HostNames(FOLDER)),
            Leases(FOLDER, CniPlugins(CNI_FOLDER, FOLDER / "plugin.lock")),
        )
        return self.attachments

    def pod(self, name: str, ns: Netns, *vfs: str) -> Sandbox:
        self.holdings.append(Holding("default", name, "main", "nodeagent.io/nic", vfs))
        names = tuple(f"nodeagent.io/attached={vf}" for vf in vfs)
        self.stamps.write(self.stamps.stamped(Allocation(cdi_devices=names)))
        path = FOLDER / f"cni-{name}"
        FOLDER.mkdir(exist_ok=True)
        path.symlink_to(ns.path)
        return Sandbox(f"id-{name}", "default", name, f"uid-{name}", str(path))

    def ended(self, sandbox: Sandbox) -> None:
        self.holdings = [holding for holding in self.holdings if holding.pod != sandbox.pod]
        Path(sandbox.network).unlink()


def entries() -> list[str]:
    path = FOLDER / "cdi/nodeagent-attached.json"
    if not path.exists():
        return []
    return sorted({one["name"].rpartition("-")[0] for one in json.loads(path.read_text())["devices"]})


async def inside(ns: Netns) -> Json:
    """The netdevs of a pod, as `ip` lists them."""
    said = json.loads(await asyncio.to_thread(_run_in, ns, "ip", "-d", "-j", "address"))
    return {
        link["ifname"]: {
            "pci": link.get("parentdev"),
            "mac": link["address"],
            "mtu": link["mtu"],
            "up": "UP" in link["flags"],
            "addresses": [
                f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["family"] == "inet"
            ],
        }
        for link in said
        if link["ifname"] != "lo"
    }


def _run_in(ns: Netns, *command: str) -> str:
    with ns.entered():  # a child of this thread is in the namespace too
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _datagram(sender: Netns, receiver: Netns, source: str, target: str) -> str:
    """The source address of a packet from one pod as another one receives it; why none came."""
    with receiver.entered():
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender.entered():
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with there, out:
        there.bind((target, 4711))
        there.settimeout(2)
        out.bind((source, 4711))
        for _ in range(30):
            out.sendto(b"rail", (target, 4711))
            try:
                return str(there.recvfrom(16)[1][0])
            except TimeoutError:
                continue
    return "nothing came"


def here(vfs: tuple[str, ...]) -> Json:
    """The names of VFs on the host, by sysfs; ``None``: not here."""
    found = {}
    for vf in vfs:
        folder = DEVICES / vf / "net"
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        found[vf] = names[0] if names else None
    return found


async def steps(pfs: list[str], vf_driver: str) -> Json:
    node = Node(pfs)
    vfs = (virtual_functions(pfs[0])[0], virtual_functions(pfs[1])[0])
    neighbor = virtual_functions(pfs[0])[1]
    all_vfs = (*vfs, neighbor)
    data: Json = {"vfs": vfs, "neighbor": neighbor, "before": here(all_vfs)}
    data["macs"] = {vf: read(f"/sys/class/net/{netdev_of(vf)}/address") for vf in all_vfs}

    # A pod begins and ends; another one is beside it on the first rail.
    with Netns() as pod, Netns() as other:
        first, second = node.pod("first", pod, *vfs), node.pod("second", other, neighbor)
        await node.attachments.begin(first)
        await node.attachments.begin(second)
        data["begun"] = {
            "pod": await inside(pod),
            "other": await inside(other),
            "host": here(all_vfs),
            "spec": entries(),
        }
        try:
            data["datagram"] = await asyncio.to_thread(_datagram, pod, other, "10.100.16.7", "10.100.32.7")
        except OSError as error:
            data["datagram"] = str(error)
        await node.restarted().synchronize((first, second))
        data["synchronized"] = {"pod": await inside(pod), "spec": entries()}
        # The driver of a VF is loaded again under the pod.
        await rebind(vfs[0], vf_driver)
        data["rebound"] = here(all_vfs)
        await node.attachments.settle()
        data["settled"] = {"pod": await inside(pod), "spec": entries()}
        await node.attachments.end(first)
        data["ended"] = {"pod": await inside(pod), "host": here(all_vfs), "spec": entries()}
        node.ended(first)
        await node.attachments.end(second)
        node.ended(second)
        data["all_ended"] = {"host": here(all_vfs), "spec": entries()}

    # The namespace dies while nobody listens: the kernel returns the netdevs.
    with Netns() as pod:
        third = node.pod("third", pod, *vfs, neighbor)
        await node.attachments.begin(third)
        data["third"] = {"pod": await inside(pod), "spec": entries()}
        node.restarted()
    node.ended(third)
    await returned(all_vfs)
    data["returned"] = here(all_vfs)
    await node.attachments.synchronize(())
    data["named"] = {"host": here(all_vfs), "spec": entries()}
    return data


async def on_host(nics: tuple[str, ...]) -> Json:
    """The state of NICs as a whole on the host, as `ip` lists it, by PCI address."""
    said = json.loads(await asyncio.to_thread(_out, "ip", "-d", "-j", "address"))
    return {
        link["parentdev"]: {
            "name": link["ifname"],
            "mtu": link["mtu"],
            "up": "UP" in link["flags"],
            "addresses": sorted(
                f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"
            ),
        }
        for link in said
        if link.get("parentdev") in nics
    }


def _out(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _tcp(client: Netns, server: Netns, source: str, target: str) -> str:
    """The size of the data that the server has received over TCP, and its sender."""
    with server.entered():
        listening = socket.create_server((target, 4712))
    with client.entered():
        out = socket.socket()
    with listening, out:
        listening.settimeout(60)
        out.settimeout(60)
        out.bind((source, 0))
        out.connect((target, 4712))
        accepted, (address, _) = listening.accept()
        with accepted:
            out.sendall(b"x" * 100_000)
            out.shutdown(socket.SHUT_WR)
            received = 0
            while chunk := accepted.recv(65536):
                received += len(chunk)
    return f"{received} from {address}"


def _pings(client: Netns, source: str, target: str) -> int:
    """The answers to ten echo requests."""
    with client.entered():
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    answers = 0
    with raw:
        raw.bind((source, 0))
        raw.settimeout(10)
        for number in range(10):
            body = struct.pack("!BBHHH", 8, 0, 0, 4713, number) + b"rail"
            words = sum(struct.unpack("!6H", body))
            words = (words & 0xFFFF) + (words >> 16)
            raw.sendto(body[:2] + struct.pack("!H", ~words & 0xFFFF) + body[4:], (target, 0))
            with suppress(TimeoutError):
                while True:
                    packet = raw.recv(2048)
                    if packet[20] == 0 and packet[24:28] == struct.pack("!HH", 4713, number):
                        answers += 1
                        break
    return answers


async def whole_nics(first: str, second: str) -> Json:
    """PFs without VFs as NICs of pods. The first one has an address and an MTU on the host, the second one gets one by
    the plan; a cable joins them."""
    nics, kept, given = (first, second), "10.102.0.7/16", "10.102.0.9/16"
    for nic, mtu in ((first, "1400"), (second, "1500")):
        await asyncio.to_thread(_out, "ip", "link", "set", netdev_of(nic), "mtu", mtu, "up")
    await asyncio.to_thread(_out, "ip", "address", "add", kept, "dev", netdev_of(first))
    node = Node([])
    node.plan = AttachPlan(
        "rail{rail}",
        {
            first: PlannedVf(2, whole=True, kept=(kept,)),
            second: PlannedVf(2, address=given, pf=second, whole=True),
        },
        probe=True,
    )
    node.restarted()
    data: Json = {"nics": nics, "before": await on_host(nics)}
    with Netns() as pod, Netns() as other:
        one, two = node.pod("whole-1", pod, first), node.pod("whole-2", other, second)
        await node.attachments.begin(one)
        await node.attachments.begin(two)
        data["begun"] = {
            "pod": await inside(pod), "other": await inside(other), "host": await on_host(nics), "spec": entries()
        }  # fmt: skip
        here_ip, there_ip = kept.partition("/")[0], given.partition("/")[0]
        try:
            data["tcp"] = await asyncio.to_thread(_tcp, pod, other, here_ip, there_ip)
            data["pings"] = await asyncio.to_thread(_pings, other, there_ip, here_ip)
        except OSError as error:
            data["tcp"], data["pings"] = str(error), 0
        await node.restarted().synchronize((one, two))
        data["synchronized"] = entries()
        await node.attachments.end(one)
        node.ended(one)
        data["ended"] = {"pod": await inside(pod), "host": await on_host(nics), "spec": entries()}
        await node.attachments.end(two)
        node.ended(two)
        data["all_ended"] = {"host": await on_host(nics), "spec": entries()}

    # Everything of the pod and of `nodeagent attach` is killed: the kernel returns the NICs.
    with Netns() as pod:
        three = node.pod("whole-3", pod, *nics)
        await node.attachments.begin(three)
        data["third"] = {"pod": await inside(pod), "spec": entries()}
        node.restarted()
    node.ended(three)
    await returned(nics)
    data["returned"] = await on_host(nics)
    await node.attachments.synchronize(())
    data["restored"] = {"host": await on_host(nics), "spec": entries()}
    return data


async def returned(vfs: tuple[str, ...]) -> None:
    """The kernel removes a namespace some time after its last user."""
    async with asyncio.timeout(60):
        while not all(here(vfs).values()):
            await asyncio.sleep(0.2)
