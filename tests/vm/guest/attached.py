"""Move real VFs into pods and back: `nodeagent attach` below the runtime, on this kernel and its drivers."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
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


async def returned(vfs: tuple[str, ...]) -> None:
    """The kernel removes a namespace some time after its last user."""
    async with asyncio.timeout(60):
        while not all(here(vfs).values()):
            await asyncio.sleep(0.2)
