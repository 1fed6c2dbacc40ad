"""Show the hardware of a machine and the devices that would be offered, as a table or as JSON.

The agent answers with its facts, the health that it has derived, and the devices that it offers. Without one the
machine is scanned.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import json as msgspec_json
from msgspec import structs, to_builtins

from nodeagent import discovery
from nodeagent.agent_config import Config, config_digest, load
from nodeagent.agent_config import check as check_config
from nodeagent.attach.address_plan import interface_name
from nodeagent.attach.given_numbers import read_given_numbers
from nodeagent.attach.host_names import read_left
from nodeagent.attach.pod_plan import AttachPlan
from nodeagent.attach.share_netdevs import is_share
from nodeagent.attach.vf_plan import PfAddresses, attach_plan, pf_addresses, route_gateways, with_left
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.plain_text import few
from nodeagent.base.supervise import beside
from nodeagent.config.file_errors import ConfigError, FileError
from nodeagent.config.merged_tree import ConfigText
from nodeagent.console.agent_query import Fetch, ask_for, follow_agent, origin, wait_for
from nodeagent.console.json_document import json_document, node_name
from nodeagent.console.options import GOOD, USAGE
from nodeagent.console.running_sources import sentences, unanswered, view_of
from nodeagent.console.terminal import (
    PLAIN,
    Screen,
    beginnings,
    joined,
    note,
    remarks,
    screen,
    screen_section,
    watching,
)
from nodeagent.dra.device_attributes import LEAF, PCIE_ROOT
from nodeagent.dra.devices import MIG, NIC
from nodeagent.facts.affinity import Affinity, affinity
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Gpu, Health, Link, Snapshot
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import named
from nodeagent.kinds.device_list_size import status_remarks
from nodeagent.kinds.hardware_selection import offers_vfs_of
from nodeagent.kinds.resource_settings import network_entries
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.offering.offer import Offer
from nodeagent.sources.link_selection import select
from nodeagent.web.machine_view import MachineView

_ALONE = "this is a look of the command itself, without the samples, holds and penalties of an agent"
_VIEW = msgspec_json.Decoder(MachineView)
NIC_HEADS = (
    "NIC", "NETDEV", "PCI ADDRESS", "RDMA", "SWITCH", "PORT", "NEAREST GPU", "SPEED", "LINK", "VFS", "DRIVER", "NUMA",
    "STATE",
)  # fmt: skip


async def show_machine(config: Config, options: argparse.Namespace) -> int:
    """Print the machine, with ``--watch`` at every change. Return the exit code."""
    root, file = options.root, options.config
    fetch = partial(_of_agent, config, file, root)
    agent, source = await in_thread(fetch)
    sentence = origin(agent, source, _ALONE)
    if agent is not None and _differs(agent, config, file):
        sentence += f"; its configuration is not {file}, and the resources are those of that file"
    if options.watch is not None:
        views = (
            _watch(config, root) if agent is None else follow_agent(agent, fetch, operator.eq, options.watch)
        )
    else:
        views = _once(config, root, options.wait, agent, fetch)
    named, code = options.json, GOOD
    addresses = None
    if config.attach.interface:
        state = Tree(Path("/")).path(config.health.state_directory)
        addresses = await in_thread(partial(_addresses_of_pfs, root, state))
    with watching(in_place=options.watch is not None and not options.json) as show:
        async for view in views:
            if not named:
                note(sentence)
            named = True
            place = None if agent is None else source
            shown, plan = screen(), _pod_plan(config, view, addresses)
            show(
                machine_json(view, place, root, plan)
                if options.json
                else joined(machine_table(view, shown), pod_plan_table(plan, shown))
            )
            code = USAGE if agent is None and unanswered(view.snapshot.stale_sources) else GOOD
    return code


def _of_agent(config: Config, file: Path | None, root: Path) -> tuple[MachineView | None, str]:
    """Ask the agent. With a file that differs from its configuration: its facts, and the resources of that file.

    Raises ``AgentQueryError``."""
    answer = ask_for(_VIEW, "/scan", config, root)
    view, source = answer
    if view is not None and _differs(view, config, file):
        return view_of(Offer(config), view.snapshot), source
    return answer


def _differs(view: MachineView, config: Config, file: Path | None) -> bool:
    """Whether the view is not by the configuration of this file."""
    return file is not None and view.configuration != config_digest(config)


async def _once(
    config: Config, root: Path, wait_s: float, agent: MachineView | None, fetch: Fetch[MachineView]
) -> AsyncIterator[MachineView]:
    """Yield the machine once. ``wait_s``: until every link with carrier has a neighbor, for this long at most."""
    if agent is None:
        yield await scan_machine(config, root, wait_s)
        return
    wait_s = wait_s if wait_s > 0 and discovery.finds_neighbors(config, Tree(root)) else 0.0
    yield await wait_for(agent, fetch, wait_s, lambda view: without_neighbor(config, view.snapshot))


async def scan_machine(config: Config, root: Path, wait_s: float = 0.0) -> MachineView:
    """Scan once. With ``wait_s``, receive LLDP for that time, or until every link with carrier has a neighbor."""
    rails = RailMemory(Tree(root).path(config.health.state_directory))
    async with _scanning(config, root, rails) as inventory:
        if wait_s > 0 and discovery.finds_neighbors(config, Tree(root)):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while without_neighbor(config, inventory.snapshot):
                        await inventory.changed(inventory.snapshot.revision)
        return view_of(Offer(config, rails.content.numbering), inventory.snapshot)


def without_neighbor(config: Config, snapshot: Snapshot) -> set[str]:
    """The links with carrier and without a neighbor; empty if the LLDP source cannot work."""
    if any(source.source == "lldp" for source in snapshot.stale_sources):
        return set()
    with Netdevs() as netdevs:
        links = select(config.links.select, netdevs.read(), snapshot.functions)
    up = {link.name for link in links if link.netdev.carrier}
    if config.infiniband.asks:
        ports = {
            function.pci_address for function in snapshot.functions if function.link_type == "infiniband"
        }
        known = {remark.link for remark in snapshot.remarks}  # such as a peer that does not answer
        active = {link.netdev for link in snapshot.links if link.carrier and link.pci_address in ports}
        up |= active - known
    return up - {neighbor.link for neighbor in snapshot.neighbors}


async def _watch(config: Config, root: Path) -> AsyncIterator[MachineView]:
    """Yield a view now and one at every change, until cancelled."""
    rails = RailMemory(Tree(root).path(config.health.state_directory))
    async with _scanning(config, root, rails) as inventory:
        offer = Offer(config, rails.content.numbering)
        while True:
            snapshot = inventory.snapshot
            yield view_of(offer, snapshot)
            await inventory.changed(snapshot.revision)


def check_text(
    text: str | ConfigText, root: Path | None, *, name: str
) -> tuple[Config, tuple[str, ...], tuple[str, ...]]:
    """Check the configuration in a file's text, or in those of several files, also for the machine under ``root``.
    Return it with remarks, and with a sentence about each part of the machine that has not answered.

    Without a machine, or its GPUs, the length of the device lists is checked for eight GPUs of 80 GB, and a fault names
    this assumption. Raises ``ConfigError``.
    """
    if root is None:
        config = check_config(text, name=name)
        return config, tuple(status_remarks(config.resources)), ()
    view = asyncio.run(scan_machine(load(text, name=name), root))
    silent = unanswered(view.snapshot.stale_sources)
    known = not any(entry.source == "gpus" for entry in silent)
    memories = [gpu.memory_mib for gpu in view.snapshot.gpus]
    config = check_config(text, name=name, gpu_memories_mib=memories if known else None)
    faults = [
        FileError("resources", None, None, trouble.message) for trouble in view.troubles if trouble.fatal
    ]
    if faults:
        raise ConfigError(name, faults)
    notes = tuple(trouble.message for trouble in view.troubles)
    return config, notes, tuple(sentences(silent))


@asynccontextmanager
async def _scanning(config: Config, root: Path, rails: RailMemory) -> AsyncIterator[Inventory]:
    """Run the sources without LLDP frames: a switch would take the shutdown frame for the agent's."""
    config = structs.replace(config, lldp=structs.replace(config.lldp, transmit=False))
    inventory = Inventory()
    work = discovery.Discovery(inventory, lambda: config, root, rails=rails).run()
    async with beside(work, discovery.first_facts(inventory)):
        yield inventory


# --- for programs ---------------------------------------------------------------------------------------


def _addresses_of_pfs(root: Path, state: Path) -> PfAddresses | None:
    """The addresses of the PFs of this machine; ``None`` for one that is somewhere else. ``state`` is the state
    directory. Blocks."""
    if root != Path("/"):
        return None
    with suppress(NetlinkError):
        return with_left(pf_addresses(None), read_left(state))
    return None


def _pod_plan(config: Config, view: MachineView, addresses: PfAddresses | None) -> AttachPlan | None:
    """The names and addresses that VFs would have in pods; ``None``: their netdevs stay on the host."""
    if config.attach.interface is None:
        return None
    # The second NIC of a rail is nic3.1.
    rails = {device: int(name.removeprefix("nic").partition(".")[0]) for device, name in view.nics.items()}
    gateways = () if addresses is None else route_gateways()
    given = None
    if config.attach.numbers and addresses is not None:
        given = read_given_numbers(Tree(Path("/")).path(config.health.state_directory), node_name(Path("/")))
    offered = [devices for _, of_resource in view.resources for devices in of_resource]
    links = {link.pci_address: link for link in view.snapshot.links}
    entries = [entry for entry in network_entries(config.resources) if entry.whole]
    whole = {
        address
        for address, nic in view.snapshot.whole_nics.items()
        if any(offers_vfs_of(entry, nic, links.get(address)) for entry in entries)
    }
    return attach_plan(config.attach, view.snapshot, rails, addresses, gateways, offered, given, whole)


def pod_plan_table(plan: AttachPlan | None, on: Screen = PLAIN) -> str:
    """The planned VFs, NICs and the first share of each HCA, and below them why some have no address."""
    if plan is None:
        return ""
    by_plugin = None if plan.ipam is None else f"by {plan.ipam['type']}"
    rows = [
        (
            device,
            vf.rail,
            interface_name(plan.interface, vf.rail, 0),
            vf.mtu,
            ", ".join(vf.addresses) or by_plugin,
        )
        for device, vf in sorted(plan.vfs.items())
        if not is_share(device) or device.endswith("::0")
    ]
    reasons: dict[str, list[str]] = {}
    for device, vf in sorted(plan.vfs.items()):
        if vf.refusal:
            reasons.setdefault(vf.refusal, []).append(device)
    return joined(
        screen_section(
            "IN PODS", ("DEVICE", "RAIL", "NETDEV", "MTU", "ADDRESS"), rows, on, optional=("MTU",)
        ),
        remarks("NO ADDRESS", [f"{', '.join(few(devices))}: {why}" for why, devices in reasons.items()], on),
    )


def machine_json(
    view: MachineView, agent: str | None = None, root: Path = Path("/"), plan: AttachPlan | None = None
) -> str:
    """One object on one line. ``agent``: the socket of the agent that has answered, if one has. Absent values are
    null; ids are listed in full. ``plan``: for the netdevs of VFs in pods."""
    snapshot = view.snapshot
    return json_document(
        {
            "agent": agent,
            "product": snapshot.product,
            "guest": snapshot.guest,
            "gpus": [to_builtins(gpu) for gpu in snapshot.gpus],
            "unusable_gpus": [to_builtins(gpu) for gpu in snapshot.unusable_gpus],
            "functions": [to_builtins(function) for function in snapshot.functions],
            "links": [to_builtins(link) for link in snapshot.links],
            "resources": [
                {
                    "resource": resource,
                    "devices": [to_builtins(entry) for entry in devices],
                    "free": view.free.get(resource),
                    "enforcement": view.levels.get(resource),
                }
                for resource, devices in view.resources
            ],
            "by_claim": [to_builtins(device) for device in view.by_claim],
            "affinity": [
                {"gpu": gpu.uuid, "pf": pf.pci_address, "affinity": _affinity(gpu, pf)}
                for gpu in snapshot.gpus
                for pf in _offered_pfs(view)
            ],
            "neighbors": [to_builtins(neighbor) for neighbor in snapshot.neighbors],
            "findings": [to_builtins(remark) for remark in snapshot.remarks],
            "troubles": [to_builtins(trouble) for trouble in view.troubles],
            "silent": [to_builtins(source) for source in snapshot.stale_sources],
            "nics": dict(view.nics),
            "unreadable": list(snapshot.unreadable),
            **({} if plan is None else {"in_pods": to_builtins(plan.vfs)}),
        },
        root,
        agent,
    )


# --- for people -----------------------------------------------------------------------------------------


def machine_table(view: MachineView, on: Screen = PLAIN) -> str:
    """UUIDs are shortened on a screen that is narrower than the table."""
    snapshot = view.snapshot
    parts = [
        screen_section(
            "RESOURCES",
            ("RESOURCE", "DEVICES", "HEALTHY", "FREE", "LARGEST", "LIMITS", "PARENT", "NUMA"),
            _resource_rows(view),
            on,
            optional=("NUMA", "LIMITS", "PARENT"),
            absent=_absent(snapshot, "pci", "gpus"),
        ),
        _claim_section(view, on),
        _gpu_section(view, on),
        _nvlink_section(snapshot, on),
        screen_section(
            "NICS",
            NIC_HEADS,
            _pf_rows(view),
            on,
            optional=("NUMA", "DRIVER", "VFS", "RDMA", "PCI ADDRESS", "LINK"),
            absent=_absent(snapshot, "pci"),
        ),
        _affinity_section(view, on),
        _reasons(view, on),
    ]
    return joined(*parts)


def _resource_rows(view: MachineView) -> Iterable[Sequence[object]]:
    for resource, devices in view.resources:
        parents = sorted({entry.parent for entry in devices})
        numa = sorted({numa for entry in devices for numa in entry.numa_nodes})
        free = view.free.get(resource)
        yield (
            resource,
            sum(len(entry.ids) for entry in devices),
            sum(len(entry.ids) for entry in devices if entry.health.allocatable),
            None if free is None else sum(free.values()),
            None if free is None else max(free.values(), default=0),
            view.levels.get(resource),
            parents[0] if len(parents) == 1 else f"{len(parents)} of them" if parents else None,
            ",".join(map(str, numa)) or None,
        )


def _claim_section(view: MachineView, on: Screen) -> str:
    heads = ("DEVICE", "POOL", "CAPACITY", "RAIL", "LEAF", "PCIE ROOT", "PARENT")
    of_profile = Counter((device.parent, device.attributes.get("profile")) for device in view.by_claim)
    shown = {
        (device.parent, device.attributes["profile"]) if device.pool == MIG else device.name: device
        for device in view.by_claim
    }
    rows = [
        (
            f"{key[1]}, {of_profile[key]} place{'s' * (of_profile[key] > 1)}"
            if isinstance(key, tuple)
            else device.name,
            device.pool,
            f"{device.capacity} VFs" if device.pool == NIC else device.capacity,
            device.attributes.get("rail"),
            device.attributes.get(LEAF),
            device.attributes.get(PCIE_ROOT),
            device.parent,
        )
        for key, device in shown.items()
    ]
    optional = ("PARENT", "LEAF")
    return screen_section("ALLOCATED BY CLAIMS", heads, rows, on, optional=optional) if rows else ""


def _gpu_section(view: MachineView, on: Screen) -> str:
    heads = ("GPU", "UUID", "MODEL", "MEMORY", "FREE", "PCI ADDRESS", "NUMA", "STATE")
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    rows = [*_gpu_rows(view, uuids)]
    short = [*beginnings(uuids), *["-"] * (len(rows) - len(uuids))]
    absent = _absent(view.snapshot, "gpus")
    return screen_section(
        "GPUS", heads, rows, on, shorter={"UUID": short}, optional=("NUMA", "MEMORY"), absent=absent
    )


def _absent(snapshot: Snapshot, *sources: str) -> str:
    """The word for an empty table of these sources."""
    return "not known" if {entry.source for entry in snapshot.stale_sources} & {*sources} else "none"


def _gpu_rows(view: MachineView, uuids: Sequence[str]) -> Iterable[Sequence[object]]:
    """FREE is the largest request that the GPU can still serve: all slices of a container are on one GPU."""
    snapshot = view.snapshot
    free: dict[str, int] = {}
    offered: dict[str, int] = {}
    for resource, devices in view.resources:
        if resource in view.free:
            for entry in devices:
                offered[entry.parent] = offered.get(entry.parent, 0) + len(entry.ids)
            for parent, count in view.free[resource].items():
                free[parent] = free.get(parent, 0) + count
    for gpu, uuid in zip(snapshot.gpus, uuids, strict=True):
        yield (
            gpu.index,
            uuid,
            gpu.name,
            f"{gpu.memory_mib} MiB",
            f"{free.get(gpu.uuid, 0)}/{offered[gpu.uuid]}" if gpu.uuid in offered else None,
            gpu.pci_address,
            gpu.numa_node,
            gpu.health.state,
        )
    numa_nodes = {function.pci_address: function.numa_node for function in snapshot.gpu_functions}
    for unusable in snapshot.unusable_gpus:
        numa_node = numa_nodes.get(unusable.place)
        yield *[None] * 5, unusable.place, numa_node, unusable.health.state


def _nvlink_section(snapshot: Snapshot, on: Screen) -> str:
    """The NVLink domains of the GPUs; empty if no GPU is in one."""
    indexes: dict[str, list[str]] = {}
    for gpu in snapshot.gpus:
        domain = gpu.nvlink_domain
        indexes.setdefault("not known yet" if domain is None else domain or "none", []).append(str(gpu.index))
    if not any(gpu.nvlink_domain for gpu in snapshot.gpus):
        return ""
    rows = [(domain, ",".join(gpus)) for domain, gpus in indexes.items()]
    return screen_section("NVLINK", ("DOMAIN", "GPUS"), rows, on)


def _pf_rows(view: MachineView) -> Iterable[Sequence[object]]:
    """Every name of a NIC, the switch port of its first neighbor, and the GPUs that are nearest to it."""
    snapshot = view.snapshot
    links = {link.pci_address: link for link in snapshot.links}
    neighbors = {neighbor.link: neighbor for neighbor in reversed(snapshot.neighbors)}
    for pf in _pfs(snapshot):
        link, neighbor = links.get(pf.pci_address), neighbors.get(pf.netdev or "")
        yield (
            view.nics.get(pf.pci_address),
            pf.netdev or None,
            pf.pci_address,
            pf.rdma.device if pf.rdma else None,
            (neighbor.system_name or neighbor.chassis_id.value) if neighbor else None,
            (neighbor.port + (" (stale)" if neighbor.stale else "")) if neighbor else None,
            _nearest_gpus(pf, snapshot.gpus),
            f"{link.speed_mbps // 1000}G" if link and link.speed_mbps else None,
            _link_word(link),
            None if pf.total_vfs is None else f"{'-' if pf.num_vfs is None else pf.num_vfs}/{pf.total_vfs}",
            pf.driver or None,
            pf.numa_node,
            pf.health.state,
        )


def _nearest_gpus(pf: Function, gpus: Sequence[Gpu]) -> str | None:
    """The GPUs behind the same PCIe switch or host bridge, by index."""
    far = [affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node) for gpu in gpus]
    least = min(far, default=Affinity.SYS)
    near = [f"GPU{gpu.index}" for gpu, distance in zip(gpus, far, strict=True) if distance == least]
    return ", ".join(near) if least <= Affinity.PHB else None


def _link_word(link: Link | None) -> str | None:
    if link is None:
        return None
    word = "admin-down" if not link.admin_up else "up" if link.carrier else "down"
    return f"{word} (default route)" if link.default_route else word


def _affinity_section(view: MachineView, on: Screen) -> str:
    pfs = _offered_pfs(view)
    names = {
        devices[0].parent: resource.rpartition("/")[2]
        for resource, devices in view.resources
        if len({entry.parent for entry in devices}) == 1
    }
    names |= {
        device.parent: f"rail{device.attributes['rail']}"
        for device in view.by_claim
        if "rail" in device.attributes
    }
    heads = [view.nics.get(pf.pci_address) or names.get(pf.pci_address, pf.pci_address) for pf in pfs]
    rows = [[f"GPU{gpu.index}", *(_affinity(gpu, pf) for pf in pfs)] for gpu in view.snapshot.gpus]
    return screen_section("PCIE AFFINITY", ("", *heads), rows, on) if pfs and rows else ""


def _reasons(view: MachineView, on: Screen) -> str:
    """Return sentences about faults, remarks, failed sources and unreadable files."""
    snapshot = view.snapshot
    lines = [*_faults(view), *_of_resources(view)]
    lines += [f"{_label(view, remark.link)}: {remark.key}: {remark.detail}" for remark in snapshot.remarks]
    lines += sentences(snapshot.stale_sources)
    lines += [f"unreadable: {sentence}" for sentence in snapshot.unreadable]
    lines += [f"{'cannot be offered' if t.fatal else 'note'}: {t.message}" for t in view.troubles]
    lines += _of_guest(view)
    return remarks("REASONS", lines, on)


def _of_guest(view: MachineView) -> Iterable[str]:
    """A line about the NICs of a virtual machine that no resource offers."""
    offered = {pf.pci_address for pf in _offered_pfs(view)}
    left = [
        nic.netdev or nic.pci_address
        for nic in view.snapshot.whole_nics.values()
        if not nic.missing and nic.total_vfs is None and nic.pci_address not in offered
    ]
    if view.snapshot.guest and left:
        yield (
            f"note: this is a virtual machine: {named(left)} can be offered as a whole (kind: nic); VFs, link modes "
            "and the firmware of its NICs are the host's"
        )


def _label(view: MachineView, netdev: str) -> str:
    """The names of a link: ``nic7 (enp220s0np0)``, or its netdev alone."""
    nics = {pf.netdev: view.nics[pf.pci_address] for pf in _pfs(view.snapshot) if pf.pci_address in view.nics}
    return f"{nics[netdev]} ({netdev})" if netdev in nics else netdev


def _faults(view: MachineView) -> Iterable[str]:
    """A line for each reason of a GPU or PF, and one for each of the VFs of a PF, unless the PF has it too."""
    snapshot = view.snapshot
    for gpu in snapshot.gpus:
        yield from _lines(f"GPU{gpu.index} {gpu.uuid}", gpu.health)
    for unusable in snapshot.unusable_gpus:
        yield from _lines(f"GPU at {unusable.place}", unusable.health)
    pfs = {pf.pci_address: pf for pf in _pfs(snapshot)}
    vfs: dict[tuple[str, str, str], list[tuple[Function, str]]] = {}
    for function in snapshot.functions:
        pf, health = pfs.get(function.parent or ""), function.health
        if pf is None:
            yield from _lines(_name(view, function), health)
        elif pf.health.reasons != health.reasons:
            for reason in health.reasons:
                alike = vfs.setdefault((pf.pci_address, health.state, reason.key), [])
                alike.append((function, reason.detail))
    for (pf_address, state, key), alike in vfs.items():
        vf, detail = alike[0]
        if len(alike) == 1:
            yield f"{_name(view, vf)}: {state}: {key}: {detail}"
        else:
            name = _name(view, pfs[pf_address])
            yield f"{name}: {len(alike)} VFs {state}: {key}: {detail}; {len(alike) - 1} more like it"


def _lines(name: str, health: Health) -> Iterable[str]:
    return (f"{name}: {health.state}: {reason.key}: {reason.detail}" for reason in health.reasons)


def _name(view: MachineView, function: Function) -> str:
    name = _label(view, function.netdev) if function.netdev else "VF" if function.parent else "PF"
    return f"{name} {function.pci_address}"


def _of_resources(view: MachineView) -> Iterable[str]:
    """A line for each reason of the devices of a resource that is none of a GPU, PF or VF: what the resource needs
    beside the hardware, such as an MPS daemon."""
    snapshot = view.snapshot
    hardware = {reason for gpu in snapshot.gpus for reason in gpu.health.reasons}
    hardware |= {reason for function in snapshot.functions for reason in function.health.reasons}
    for resource, devices in view.resources:
        counts: Counter[str] = Counter()
        for entry in devices:
            for reason in entry.health.reasons:
                if reason not in hardware:
                    counts[f"{entry.health.state}: {reason.key}: {reason.detail}"] += len(entry.ids)
        total = sum(len(entry.ids) for entry in devices)
        for sentence, count in counts.items():
            yield f"{resource.rpartition('/')[2]}: {count} of {total} devices {sentence}"


def _pfs(snapshot: Snapshot) -> list[Function]:
    return [function for function in snapshot.functions if function.parent is None]


def _offered_pfs(view: MachineView) -> list[Function]:
    parents = {entry.parent for _, devices in view.resources for entry in devices}
    parents |= {device.parent for device in view.by_claim}
    return [pf for pf in _pfs(view.snapshot) if pf.pci_address in parents]


def _affinity(gpu: Gpu, pf: Function) -> str:
    return affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node).name
