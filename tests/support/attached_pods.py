"""A node whose VFs are veths, with pods that are network namespaces: for the parts that move netdevs.

A VF is known by its MAC address, because a veth has no PCI address: ``02:aa:00:00:03:01`` is VF 1 of 0000:03:00.0.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.attach.attached_spec import AttachedSpec
from nodeagent.attach.attachments import Attachments, HoldingsError, KubeletList
from nodeagent.attach.cni_plugin import CniPlugins
from nodeagent.attach.host_names import HostNames
from nodeagent.attach.leases import PLUGIN_LOCK, Leases
from nodeagent.attach.node_netdevs import NodeNetdevs
from nodeagent.attach.nri_plugin import Sandbox
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf, claim_stamp
from nodeagent.attach.pod_rdma import PodRdma
from nodeagent.attach.share_netdevs import share_of
from nodeagent.attach.vf_allocations import VfAllocations
from nodeagent.base.stored_file import boot_id
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.prepared_claim import PreparedClaim, PreparedDevice
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Holding
from nodeagent.host.netlink.netdevs import Netdev
from nodeagent.kubelet.device_info import DeviceInfoFiles
from tests.support.namespaces import Netns
from tests.support.waiting import until


def vf(rail: int, index: int = 0) -> str:
    """The PCI address of a VF."""
    return f"0000:{rail:02x}:00.{index + 2}"


def pf(rail: int) -> str:
    """The PCI address of a PF; ``AttachedNode.add_pf`` makes it, with the MAC address 02:aa:00:01:RAIL:00."""
    return f"0000:{rail:02x}:00.0"


def device_of(netdev: Netdev) -> str | None:
    mac = netdev.mac
    if mac and mac[:4] == b"\x02\xaa\x00\x01":
        return pf(mac[4])
    return vf(mac[4], mac[5]) if mac and mac[:4] == b"\x02\xaa\x00\x00" else share_of(netdev)


class AttachedNode:
    """``attachments`` is the part that is tested; ``restarted`` makes another one, as after a kill."""

    def __init__(self, folder: Path, rails: int = 2, vfs: int = 2) -> None:
        self.host, self.far = Netns(), Netns()
        self.folder = folder
        self.vfs = [(rail, index) for rail in range(rails) for index in range(vfs)]
        for rail, index in self.vfs:
            self.host.ip(
                f"link add {self.host_name(rail, index)} address 02:aa:00:00:{rail:02x}:{index:02x} type veth "
                f"peer name far{rail}-{index} netns {self.far.path}"
            )
        self.plan: AttachPlan | None = AttachPlan(
            "rail{rail}",
            {
                vf(rail, index): PlannedVf(rail, 4200, f"10.{100 + rail}.{16 * (index + 1)}.7/16")
                for rail, index in self.vfs
            },
        )
        self.holdings: list[Holding] | None = []
        self.unlisted: set[tuple[str, str]] = set()
        """Pods that the kubelet does not list yet."""
        self.asked = 0
        self.plugins = CniPlugins(folder / "cni-bin", folder / PLUGIN_LOCK)
        self.rdma = PodRdma()
        self.at_list: Callable[[], object] = lambda: None
        """Called while the kubelet answers."""
        self.stamps = AttachStamps(folder)
        self.claim_files = ClaimFiles(
            folder / "claims",
            folder / "cdi",
            DeviceInfoFiles(folder / "info"),
            boot_id(),
            folder / "metadata",
        )
        self.claims = 0
        """Records that were written so far."""
        self.allocated: dict[str, str] = {}
        """The CDI device that the last container of each VF names."""
        self.attachments = self.restarted()
        self.pods: dict[str, Netns] = {}

    async def add_pf(self, rail: int) -> str:
        """Make the PF of a rail, up and with its own address, and let pods' addresses be asked for over it. Its other
        end is in ``far``; return its name there. The kernel sends nothing before both ends are in the state UP."""
        name = f"far-pf{rail}"
        self.host.ip(
            f"link add ens{rail} address 02:aa:00:01:{rail:02x}:00 type veth peer name {name} netns {self.far.path}\n"
            f"address add 10.{100 + rail}.0.7/16 dev ens{rail}\nlink set ens{rail} up\n"
            f"address add fe80::{rail:x}:1/64 dev ens{rail} nodad"
        )
        self.far.ip(f"link set {name} up")
        assert self.plan is not None
        vfs = {device: replace(planned, pf=pf(planned.rail)) for device, planned in self.plan.vfs.items()}
        self.plan = replace(self.plan, vfs=vfs, probe=True)
        ends = ((self.host, f"ens{rail}"), (self.far, name))
        await until(lambda: all(links(ns)[end]["operstate"] == "UP" for ns, end in ends))
        return name

    def close(self) -> None:
        for ns in (*self.pods.values(), self.host, self.far):
            ns.__exit__()

    def restarted(self) -> Attachments:
        self.attachments = Attachments(
            lambda: self.plan,
            self._held,
            AttachedSpec(self.folder / "cdi"),
            VfAllocations(self.folder),
            NodeNetdevs(HostNames(self.folder), device_of, self.host.path, self.rdma),
            Leases(self.folder, self.plugins),
        )
        return self.attachments

    async def _held(self) -> KubeletList:
        answer, self.asked = self.holdings, self.asked + 1
        self.at_list()
        if answer is None:
            raise HoldingsError("the kubelet does not answer")
        return KubeletList(frozenset(("default", pod) for pod in self.pods) - self.unlisted, tuple(answer))

    @staticmethod
    def host_name(rail: int, index: int = 0) -> str:
        return f"ens{rail}v{index}"

    def pod(self, name: str, *devices: str) -> tuple[Sandbox, Netns]:
        """A sandbox of a new pod, which holds these VFs. Its path goes with its namespace, as a runtime's file does."""
        ns = self.pods[name] = Netns()
        self.allocate(*devices)
        if devices and self.holdings is not None:
            self.holdings.append(Holding("default", name, "main", "example.com/nic", devices))
        path = self.folder / f"cni-{name}"
        path.symlink_to(ns.path)
        return Sandbox(f"sandbox-{name}", "default", name, f"uid-{name}", str(path)), ns

    def allocate(self, *devices: str) -> None:
        """As the agent answers the kubelet for one container."""
        names = tuple(f"nodeagent.io/attached={device}" for device in devices)
        allocation = self.stamps.stamped(Allocation(cdi_devices=names))
        self.stamps.write(allocation)
        self.allocated |= {
            device: name.partition("=")[2]
            for device, name in zip(devices, allocation.cdi_devices, strict=True)
        }

    def claim(self, name: str, pods: dict[str, str], *devices: str) -> PreparedClaim:
        """The record of a prepared claim as the agent writes it, for pods by their UIDs."""
        self.claims += 1
        stamp = claim_stamp(f"uid-{name}", self.claims)
        names = {device: f"nodeagent.io/attached={device}-{stamp}" for device in devices}
        prepared = tuple(
            PreparedDevice("r", "n1/nic", "nic", "nic-a", 1, "example.com/nic", ("c=0", cdi), vfs=(device,))
            for device, cdi in names.items()
        )
        record = PreparedClaim(
            f"uid-{name}", "default", name, self.claims, "a", prepared, {}, (), tuple(pods.values()),
            pod_uids=tuple(pods),
        )  # fmt: skip
        self.claim_files.write_record(record)
        self.allocated |= {device: cdi.partition("=")[2] for device, cdi in names.items()}
        return record

    def pod_by_claim(self, name: str, *devices: str) -> tuple[Sandbox, Netns]:
        """A sandbox of a new pod, which has a claim for these VFs."""
        self.claim(f"claim-{name}", {f"uid-{name}": name}, *devices)
        return self.pod(name)

    def long_after_the_allocation(self) -> None:
        """The last allocation was a minute ago."""
        for folder in (self.folder / "attach/stamps", self.folder / "claims"):
            if folder.exists():
                before = folder.stat().st_mtime_ns - 60_000_000_000
                os.utime(folder, ns=(before, before))

    def ended(self, sandbox: Sandbox) -> None:
        """The kubelet no longer lists the pod, and the runtime has removed the file of its namespace."""
        self.released(sandbox.pod)
        Path(sandbox.network).unlink()

    def released(self, pod: str) -> None:
        self.holdings = [holding for holding in self.holdings or () if holding.pod != pod]

    def entries(self) -> dict[str, dict[str, Any]]:
        """The edits of each device in the CDI spec, by the VF: the last stamp of each must be there."""
        path = self.folder / "cdi" / "nodeagent-attached.json"
        if not path.exists():
            return {}
        spec = json.loads(path.read_text())
        assert spec["kind"] == "nodeagent.io/attached"
        found = {device["name"]: device["containerEdits"] for device in spec["devices"]}
        return {name.rpartition("-")[0]: edits for name, edits in found.items()}

    def starts(self, *devices: str) -> bool:
        """Whether a runtime would start the container that was allocated last with these VFs."""
        path = self.folder / "cdi" / "nodeagent-attached.json"
        spec = json.loads(path.read_text()) if path.exists() else {"devices": []}
        defined = {device["name"]: device["containerEdits"] for device in spec["devices"]}
        names = [self.allocated[device] for device in devices]
        return all(name in defined for name in names) and all(
            Path(mount["hostPath"]).exists() for name in names for mount in defined[name].get("mounts", ())
        )

    def on_host(self) -> set[str]:
        return {name for name in links(self.host) if name != "lo"}

    def all_host_names(self) -> set[str]:
        return {self.host_name(*one) for one in self.vfs}


def links(ns: Netns) -> dict[str, dict[str, Any]]:
    """The netdevs of a namespace as `ip` lists them, with their addresses."""
    said = subprocess.run(
        ns.command("ip", "-json", "address"), check=True, capture_output=True, text=True, timeout=30
    )
    return {link["ifname"]: link for link in json.loads(said.stdout) if link["ifname"] != "lo"}


def rules(ns: Netns) -> str:
    """The routing rules of a namespace as `ip` lists them."""
    said = subprocess.run(ns.command("ip", "rule"), check=True, capture_output=True, text=True, timeout=30)
    return said.stdout


def addresses(ns: Netns) -> dict[str, list[str]]:
    return {
        name: [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["family"] == "inet"]
        for name, link in links(ns).items()
    }
