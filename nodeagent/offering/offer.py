"""The resources that this node offers: the configuration applied to the facts, as kinds of devices. No I/O.

``Offer`` keeps the rail of each NIC, and the netdev that names it, for each name and selection of an entry. If the
rails moved when a NIC is unplugged, a pod would get another network; ``kinds/rail_numbers.py`` has the rules. The first
numbers are in PCI order, missing NICs included. A NIC counts if it has VFs, or if the ``vfs`` section creates VFs on
it: so an agent that starts while they are gone assigns the same rails. Literal ``pciAddresses`` fix the rails: the rail
of a NIC is then its place in that list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from nodeagent.agent_config import Config
from nodeagent.dra.device_attributes import VALUE_MAX
from nodeagent.dra.device_table import ClaimEntry, devices_of, lacking_enforcement
from nodeagent.dra.devices import DraDevice
from nodeagent.facts.card_identity import lacks_guid
from nodeagent.facts.model import Function, Link, Snapshot, State
from nodeagent.health.link_modes import ports_in_another_mode
from nodeagent.kinds import DeviceKind
from nodeagent.kinds import named as _named
from nodeagent.kinds.device_list_size import status_remark
from nodeagent.kinds.empty_selection import why_no_functions, why_no_gpus
from nodeagent.kinds.hardware_selection import (
    literal_addresses,
    matches,
    offers_vfs_of,
    selected_gpus,
    selected_pf,
)
from nodeagent.kinds.mps_clients import MPS_FOLDER, MpsShares
from nodeagent.kinds.rail_numbers import (
    HeldRails,
    Numbering,
    Rail,
    Rails,
    Selection,
    added,
    exchanged,
    held_rails,
    identified,
    match,
    nics_of,
    recalled,
    selection,
)
from nodeagent.kinds.resource_settings import (
    ExpectSettings,
    GpuMemResource,
    GpuResource,
    MigResource,
    NetworkResource,
    ResourceSettings,
    hca_entries,
    memory_entries,
    mig_entries,
    network_entries,
    vf_entries,
)
from nodeagent.offering.gpu_kinds import GpuContext, gpu_kinds
from nodeagent.offering.nic_kinds import nic_kind
from nodeagent.web.machine_view import Lack

FALLBACK_PREFIX = "nodeagent.io"

# Placeholders of firmware for a product name (SMBIOS type 1), and the names of virtual machines.
_MEANINGLESS = re.compile(
    r"to be filled|default string|system product|not specified|^none$|o\.e\.m|standard pc|virtual|kvm", re.I
)


def prefix(config: Config, product: str | None) -> str:
    """Return the part of a resource name before the slash: configured, or made from the DMI product name.

    >>> prefix(Config(), "DGXH100")
    'nvidia-dgx-h100'
    >>> prefix(Config(), "PowerEdge XE9680")
    'poweredge-xe9680'
    >>> prefix(Config(), None)
    'nodeagent.io'
    """
    if config.resource_prefix != "auto":
        return config.resource_prefix
    if not product or _MEANINGLESS.search(product):
        return FALLBACK_PREFIX
    # A DGX reports "DGXH100", or "DGXA100 920-23687-2530-000" with its part number.
    if match := re.match(r"(?:NVIDIA )?([DH]GX)[ _-]?([A-Z]+\d+[A-Z]*)\b", product, re.I):
        return f"nvidia-{match[1]}-{match[2]}".lower()
    slug = re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:63].strip("-")
    return slug or FALLBACK_PREFIX


def mps_shares(config: Config) -> MpsShares:
    """Return how shares are granted through MPS daemons. Their folder is on the host, whatever root the agent has."""
    mps = config.gpu.mps
    return MpsShares(
        f"{config.health.state_directory.rstrip('/')}/{MPS_FOLDER}",
        mps.clients,
        by_share=mps.threads == "share",
    )


class Offer:
    """Applies one configuration to each snapshot in turn."""

    def __init__(
        self, config: Config, numbering: Numbering = MappingProxyType({}), before: Offer | None = None
    ) -> None:
        """``numbering`` are the rails of an earlier agent, ``before`` is the offer that this one replaces: entries with
        the same name and selection keep their rails."""
        self.config = config
        self.numbering: dict[Selection, Rails] = dict(before.numbering if before else numbering)
        self._netdevs: dict[str, str] = before._netdevs if before else {}
        self._reported: Rails = before._reported if before else ()
        self._recalls: bool = before._recalls if before else False
        self._awaits_holdings: bool = before._awaits_holdings if before else False
        self._undecided: set[Selection] = set(before._undecided) if before else set()
        self._waits: dict[Selection, str] = {}
        """Why new NICs get no number now."""
        self._unnumbered: dict[Selection, tuple[str, ...]] = {}
        """The PCI addresses of the NICs that wait for their number."""
        self._forgotten: set[str] = before._forgotten if before else set()
        """PCI addresses of missing NICs that get no rail."""

    def kinds(self, snapshot: Snapshot) -> tuple[DeviceKind, ...]:
        """Return the resources that device plugins offer, in the order of the configuration."""
        return tuple(kind for entry, kind in self._all_kinds(snapshot) if not entry.by_claim)

    def dra_devices(self, snapshot: Snapshot) -> tuple[DraDevice, ...]:
        """Return the GPUs, places of MIG devices and PFs that claims allocate (``mode: dra``), PFs last."""
        if not self.dra_pools:
            return ()
        by_claim = (
            ClaimEntry(kind, _rails_of(entry, self.numbering), entry.vf_devices)
            for entry, kind in self._all_kinds(snapshot)
            if entry.by_claim
        )
        return devices_of(by_claim, snapshot)

    @property
    def dra_pools(self) -> frozenset[str]:
        """The pools of the kinds with ``mode: dra``: ``gpu``, ``mig``, ``nic``."""
        return frozenset(entry.pool for entry in self.config.resources if entry.by_claim)

    def _all_kinds(self, snapshot: Snapshot) -> Iterator[tuple[ResourceSettings, DeviceKind]]:
        taken: frozenset[str] = frozenset()
        for entry in self.config.resources:
            made = tuple(self._kinds_of(entry, snapshot, taken))
            taken = taken.union(*(kind.hardware(snapshot) for kind in made if kind.source == "gpus"))
            yield from ((entry, kind) for kind in made)

    @property
    def rails(self) -> dict[str, int]:
        """The rail of each offered PF, by PCI address. A missing PF has its last address. Of entries that number a PF
        differently, that of VFs counts, then the first one."""
        found: dict[str, int] = {}
        for _, rails in sorted(self.in_force(), key=lambda one: not vf_entries((one[0],))):
            for rail in rails:
                if rail.pci_address is not None:
                    found.setdefault(rail.pci_address, rail.number)
        return found

    def in_force(self) -> Iterator[tuple[NetworkResource, Rails]]:
        """Yield the entries of NICs with their rails."""
        for entry in network_entries(self.config.resources):
            yield entry, self.numbering.get(selection(entry), ())

    def recall(self, reported: Rails = (), *, awaits_holdings: bool = False) -> None:
        """The file of the rails is gone: number new NICs as the report of this node and the names of held VFs have
        them. ``awaits_holdings``: number no NIC for good before these are known."""
        self._recalls = True
        self._reported = reported or self._reported
        self._awaits_holdings |= awaits_holdings

    def awaits_holdings(self, entry: ResourceSettings) -> bool:
        """Whether the numbers of this entry wait for the holdings."""
        return any(selection(one) in self._undecided for one in network_entries((entry,)))

    def wait(self, entry: ResourceSettings) -> str | None:
        """Return why new NICs of this entry get no number now."""
        return next((self._waits.get(selection(one)) for one in network_entries((entry,))), None)

    def undecided(self, entry: ResourceSettings) -> bool:
        """Whether the first numbers of this entry wait. Until they are there, nothing is stored: the next agent too
        must ask the other memories."""
        return self.awaits_holdings(entry) or (self._recalls and self.wait(entry) is not None)

    def missing(self, snapshot: Snapshot) -> Iterator[tuple[NetworkResource, Rails, Rails]]:
        """Yield the rails of each entry whose NICs are not on the bus, and those of as many NICs that came in the
        meantime, if there are."""
        present = nics_of(snapshot.functions, ())
        for entry, rails in self.in_force():
            if missing := tuple(rail for rail in rails if rail.pci_address not in present):
                yield entry, missing, exchanged(rails, present)[1]

    def forget(self, rails: Collection[Rail]) -> None:
        """Remove the rails of missing NICs. Their numbers are free."""
        self._reported = ()
        self._forgotten.update(rail.pci_address for rail in rails if rail.pci_address is not None)
        gone = {rail.place for rail in rails}
        for key, known in self.numbering.items():
            self.numbering[key] = tuple(rail for rail in known if rail.place not in gone)

    def troubles(self, snapshot: Snapshot) -> tuple[Lack, ...]:
        """Return what is wrong with this configuration on this machine."""
        finders = (
            self._offered_twice,
            self._pf_in_two_entries,
            self._refused,
            self._nothing_offered,
            self._less_than_expected,
        )
        devices = (device.kind for device in self.dra_devices(snapshot))
        hindered = _hindered((*self.kinds(snapshot), *devices), snapshot)
        return (
            *(trouble for find in finders for trouble in find(snapshot)),
            *hindered,
            *_tiny_slices(self.config, snapshot),
            *_two_numbers(self.config, self.numbering),
            *_unreachable_vfs(self.rails, snapshot),
            *_without_rdma_cm(self.config, self.rails, snapshot),
            *_in_another_mode(snapshot),
        )

    def _offered_twice(self, snapshot: Snapshot) -> Iterator[Lack]:
        owner: dict[str, str] = {}
        for entry in self.config.resources:
            for kind in self._kinds_of(entry, snapshot, frozenset()):
                hardware = kind.hardware(snapshot)
                twice = [id_ for id_ in hardware if id_ in owner]
                if twice:
                    yield Lack(
                        f"{hardware[twice[0]]} is offered twice, as {owner[twice[0]]} and as {kind.resource}; "
                        f"{entry.apart}",
                        fatal=True,
                    )
                owner |= {id_: kind.resource for id_ in hardware if id_ not in owner}

    def _pf_in_two_entries(self, snapshot: Snapshot) -> Iterator[Lack]:
        """With mode dra a PF is one device; two entries would publish it twice, with different VFs. So would they the
        places of MIG devices on a GPU."""
        devices = self.dra_devices(snapshot)
        counts = Counter(device.name for device in devices)
        twice = {
            (f"GPU {gpu.index} ({gpu.uuid})", "GPU") if (gpu := it.divided_gpu) else (it.name, "PF"): count
            for it in devices
            if (count := counts[it.name]) > 1
        }
        for (name, what), count in twice.items():
            message = f"{name} is in {count} entries of resources; with mode dra each {what} is in one"
            yield Lack(message, fatal=True)

    def _refused(self, snapshot: Snapshot) -> Iterator[Lack]:
        for kind in self.kinds(snapshot):
            if (refusal := kind.refusal(snapshot)) is not None:
                yield Lack(f"{kind.resource.partition('/')[2]}: {refusal}", fatal=True)
        for name, lacking in lacking_enforcement(self.dra_devices(snapshot), snapshot):
            yield Lack(f"{name.partition('/')[2]}: {lacking}", fatal=True)
        yield from _cut_names(self._all_kinds(snapshot))

    def _nothing_offered(self, snapshot: Snapshot) -> Iterator[Lack]:
        for entry in self.config.resources:
            kinds = tuple(self._kinds_of(entry, snapshot, frozenset()))
            for one in mig_entries((entry,)):
                yield from _undivided(one, snapshot)
            if entry.may_be_empty or any(kind.hardware(snapshot) for kind in kinds):
                continue
            if self.awaits_holdings(entry) or self.wait(entry) is not None:
                continue
            find_shortage, find_cause = _CAUSES[entry.source]
            shortage = find_shortage(self.config, entry, snapshot)
            message = f"{entry.name}: {shortage or f'nothing is offered: {find_cause(entry, snapshot)}'}"
            yield Lack(message, fatal=False, ready=shortage is None, source=entry.source, key="idle")

    def _less_than_expected(self, snapshot: Snapshot) -> Iterator[Lack]:
        expect = self.config.expect
        if expect == ExpectSettings():
            return
        kinds = [kind for _, kind in self._all_kinds(snapshot)]
        if expect.gpus is not None:
            gone = {gpu.uuid for gpu in snapshot.gpus if gpu.lost}
            lists = (kind.devices(snapshot) for kind in kinds if kind.source == "gpus")
            offered = {entry.parent for devices in lists for entry in devices}
            yield from _too_few("gpus", expect.gpus, offered, gone)
        if expect.nics is not None:
            gone = {pf.pci_address for pf in snapshot.functions if pf.missing}
            pools = (kind.devices(snapshot) for kind in kinds if kind.source == "pci")
            yield from _too_few("nics", expect.nics, {entry.parent for pool in pools for entry in pool}, gone)

    def _kinds_of(
        self, entry: ResourceSettings, snapshot: Snapshot, taken: frozenset[str]
    ) -> Iterator[DeviceKind]:
        """Make the kinds of one entry. A GPU that an earlier entry has ``taken`` is left out."""
        if entry.source == "gpus":
            head, own_cdi = prefix(self.config, snapshot.product), self.config.cdi.generate
            return gpu_kinds(entry, GpuContext(snapshot, taken, head, own_cdi, mps_shares(self.config)))
        return (kind for one in network_entries((entry,)) for kind in self._nic_kinds(one, snapshot))

    def _nic_kinds(self, entry: NetworkResource, snapshot: Snapshot) -> Iterator[DeviceKind]:
        head = prefix(self.config, snapshot.product)
        for function in snapshot.functions:
            if function.parent is None and function.netdev is not None:
                self._netdevs.setdefault(function.pci_address, function.netdev)
        named: dict[str, list[str]] = {} if "{" in entry.name else {entry.name: []}
        for rail in self._numbered(entry, snapshot):
            address = rail.pci_address
            if address is None and "{netdev}" in entry.name:
                continue  # its netdev is not known
            netdev = self._netdevs.setdefault(address, address.replace(":", "-")) if address else ""
            pfs = named.setdefault(entry.name.format(rail=rail.number, netdev=netdev), [])
            pfs += [address] if address else []
        for address in () if "{rail}" in entry.name else self._unnumbered.get(selection(entry), ()):
            netdev = self._netdevs.setdefault(address, address.replace(":", "-"))
            named.setdefault(entry.name.format(netdev=netdev), []).append(address)
        divided = {
            function.pci_address
            for function in snapshot.functions
            if entry.whole and _creates_vfs(self.config, function)
        }
        shared = any(
            type(other) is not type(entry) and selection(other) == selection(entry)
            for other in network_entries(self.config.resources)
        )
        for name, pfs in named.items():
            kind = nic_kind(self.config, entry, f"{head}/{name}", tuple(sorted(set(pfs) - divided)), snapshot)
            if not shared or kind.devices(snapshot) or _is_held(kind.resource, snapshot):
                yield kind

    def _numbered(self, entry: NetworkResource, snapshot: Snapshot) -> Rails:
        """Return the rails of an entry, with those of NICs that are new."""
        key, literal = selection(entry), literal_addresses(entry.select)
        links = {link.pci_address: link for link in snapshot.links}
        nics = nics_of(snapshot.functions, snapshot.links)
        rails = self.numbering.get(key, ())
        if literal:
            rails = identified(rails, nics)
        elif rails and key not in self._undecided:
            rails = match(rails, nics)
        elif self._recalls:
            rails = _recalled(self.config, self._reported, entry, snapshot, links)
            self._undecided.discard(key)
            if self._awaits_holdings and snapshot.holdings is None:
                self._undecided.add(key)
        new = () if key in self._undecided else self._new(entry, rails, snapshot, links)
        self.numbering[key] = self._with_new(rails, entry, new, snapshot, links)
        return self.numbering[key]

    def _new(
        self, entry: NetworkResource, rails: Rails, snapshot: Snapshot, links: Mapping[str, Link]
    ) -> tuple[str, ...]:
        """Return the NICs that get a number now, in PCI order. While a file hides whether there is another one, none
        does: the numbers would be others once the file can be read. Configured numbers wait for nothing."""
        key, literal = selection(entry), literal_addresses(entry.select)
        numbered = {rail.pci_address for rail in rails}
        unread = {} if literal else _unread_values(snapshot)
        new, doubtful = [], []
        pfs = {function.pci_address: function for function in snapshot.functions if function.parent is None}
        for address in sorted({*pfs, *unread} - numbered - {""}):
            values = unread.get(address, frozenset()) | unread.get("", frozenset())
            pf, link = pfs.get(address), links.get(address)
            if pf is None or "" in values:
                if _may_be_at(entry, address):
                    doubtful.append(address)
            elif self._is_new(entry, pf, link, values, doubt=False):
                new.append(address)
            elif values and self._is_new(entry, pf, link, values, doubt=True):
                doubtful.append(address)
        self._waits.pop(key, None)
        self._unnumbered.pop(key, None)
        if doubtful and (new or not rails or self._recalls):
            self._waits[key] = _why_doubtful(doubtful[0], snapshot)
            self._unnumbered[key] = tuple(new)
            return ()
        return tuple(new)

    def _is_new(
        self, entry: NetworkResource, pf: Function, link: Link | None, unread: Collection[str], *, doubt: bool
    ) -> bool:
        """Whether a PF that has no rail gets one. ``unread`` and ``doubt``: see ``selected_pf``."""
        if pf.missing and pf.pci_address in self._forgotten:
            return False
        if "{netdev}" in entry.name and "netdev" in unread and not doubt:
            return False
        counts = _counts(self.config, entry, pf, unread, doubt=doubt)
        return counts and offers_vfs_of(entry, pf, link, unread, doubt=doubt)

    def _with_new(
        self,
        rails: Rails,
        entry: NetworkResource,
        new: Collection[str],
        snapshot: Snapshot,
        links: Mapping[str, Link],
    ) -> Rails:
        """Return the rails with new NICs, by PCI address. A number that another memory has is only for its NIC."""
        literal, nics = literal_addresses(entry.select), nics_of(snapshot.functions, snapshot.links)
        cards = {rail.pci_address: rail.identity for known in self.numbering.values() for rail in known}
        number_of = {address: place for place, address in enumerate(literal)}
        reserved: frozenset[int] = frozenset()
        if new and self._recalls and not literal:
            recalled_rails = _recalled(self.config, self._reported, entry, snapshot, links)
            number_of = {rail.pci_address: rail.number for rail in recalled_rails if rail.pci_address}
            mine = (rail.number for rail in self._reported if _may_own(entry, rail, snapshot, links))
            reserved = _held(self.config, entry, snapshot).numbers.union(mine)
        late = not literal and any(rail.pci_address not in nics for rail in rails)
        for address in new:
            number = number_of.get(address)
            if number in {rail.number for rail in rails}:
                number = None
            card = nics.get(address) or cards.get(address)
            rails = added(rails, address, card, number, reserved, late=late)
        return rails


def _rails_of(entry: ResourceSettings, numbering: Numbering) -> Mapping[str, int]:
    """The rail of each PF of an entry whose name has it, by PCI address."""
    return {
        rail.pci_address: rail.number
        for one in network_entries((entry,))
        for rail in numbering.get(selection(one), ())
        if rail.pci_address is not None and "{rail}" in one.name
    }


def _two_numbers(config: Config, numbering: Numbering) -> Iterator[Lack]:
    """The first NIC of entries with different selections, which number it differently."""
    named: dict[str, tuple[int, str]] = {}
    for entry in config.resources:
        for address, number in _rails_of(entry, numbering).items():
            before, name = named.setdefault(address, (number, entry.name))
            if before != number:
                yield Lack(
                    f"{address} has two numbers: {before} by {name} and {number} by {entry.name}; entries with one "
                    "`select` share their numbers",
                    fatal=False,
                )
                return


def _counts(
    config: Config, entry: NetworkResource, pf: Function, unread: Collection[str], *, doubt: bool
) -> bool:
    """Whether a PF counts for an entry: for one of VFs it has some or gets them, for one of whole NICs it has none."""
    if entry.whole:
        has_none = doubt if "num_vfs" in unread else not pf.num_vfs
        return has_none and not _creates_vfs(config, pf, unread, doubt=False)
    if not vf_entries((entry,)):
        return True
    has_vfs = doubt if "num_vfs" in unread else bool(pf.num_vfs)
    return has_vfs or _creates_vfs(config, pf, unread, doubt=doubt)


def _is_held(resource: str, snapshot: Snapshot) -> bool:
    return any(holding.resource == resource for holding in snapshot.holdings or ())


def _hindered(kinds: Iterable[DeviceKind], snapshot: Snapshot) -> Iterator[Lack]:
    """Yield what the host lacks for containers with a device."""
    lacking = ((kind.resource, kind.obstacle(snapshot)) for kind in dict.fromkeys(kinds))
    for resource, obstacle in dict.fromkeys(lacking):
        if obstacle is not None:
            message = f"{resource.partition('/')[2]}: {obstacle}"
            yield Lack(message, fatal=False, ready=False, source="paths")


def _unreachable_vfs(offered: Collection[str], snapshot: Snapshot) -> Iterator[Lack]:
    active = {link.pci_address for link in snapshot.links if link.carrier}
    vfs = [vf for vf in snapshot.functions if vf.parent in offered and not vf.missing]
    inactive = [
        vf.pci_address
        for vf in vfs
        if vf.rdma is not None
        and vf.rdma.port_active is False
        and vf.parent in active
        and not lacks_guid(vf)  # a fault of its own
    ]
    nameless = [vf.pci_address for vf in vfs if vf.mac is not None and not vf.mac.strip("0:")]
    faults: tuple[tuple[list[str], Literal["vf_port", "vf_mac"], str], ...] = (
        (
            inactive,
            "vf_port",
            "a port that is not active, although that of their PF is: set linkState: auto under vfs",
        ),
        (nameless, "vf_mac", "no MAC address: bind their driver again, or set one at the PF"),
    )
    for found, key, what in faults:
        if found:
            yield Lack(f"VFs have {what} ({_named(found)})", fatal=False, key=key)


def _without_rdma_cm(config: Config, offered: Collection[str], snapshot: Snapshot) -> Iterator[Lack]:
    whole = snapshot.whole_nics if any(entry.whole for entry in config.resources) else {}
    shared = bool(hca_entries(config.resources))
    of_pods = (
        it
        for it in snapshot.functions
        if it.parent in offered or (it.pci_address in offered and (shared or it.pci_address in whole))
    )
    if not snapshot.paths.rdma_cm and any(it.rdma for it in of_pods):
        message = (
            "containers with VFs or shares of HCAs get no /dev/infiniband/rdma_cm, because the host has none: modprobe "
            "rdma_ucm, and name it in /etc/modules-load.d"
        )
        yield Lack(message, fatal=False, source="paths", key="rdma_cm")


def _in_another_mode(snapshot: Snapshot) -> Iterator[Lack]:
    for _, sentence in ports_in_another_mode(
        snapshot.functions, snapshot.links, snapshot.gpu_functions, guest=snapshot.guest
    ):
        yield Lack(sentence, fatal=False, key="link_mode")


def _nic_shortage(config: Config, entry: NetworkResource, snapshot: Snapshot) -> str | None:
    """Return why this node offers no VF although PFs that the entry selects can have VFs, or no NIC although it has
    some that the entry selects and that have no VFs."""
    links = {link.pci_address: link for link in snapshot.links}
    if entry.whole:
        nics = [
            nic
            for nic in snapshot.whole_nics.values()
            if offers_vfs_of(entry, nic, links.get(nic.pci_address)) and not _creates_vfs(config, nic)
        ]
        what = "none of them matches driver, or they are under a driver of user space without an IOMMU"
        return f"no NIC of {_named(nic.pci_address for nic in nics)} is offered: {what}" if nics else None
    pfs = [
        function
        for function in snapshot.functions
        if function.parent is None
        and (function.num_vfs or (function.total_vfs and function.health.state is not State.UNUSED))
        and offers_vfs_of(entry, function, links.get(function.pci_address))
    ]
    if not pfs:
        return None
    if any(function.num_vfs for function in pfs):
        remedy = "none of their VFs matches vfDriver and vfIndexes"
    elif any(_creates_vfs(config, function) for function in pfs):
        remedy = "`nodeagent vfs apply` has not made their VFs: its log names the cause"
    else:
        remedy = "create VFs (vfs), or take the entry out of resources on nodes of this type"
    return f"no VF is offered by the PFs {_named(pf.pci_address for pf in pfs)}: {remedy}"


def _gpu_shortage(
    config: Config, entry: GpuMemResource | GpuResource | MigResource, snapshot: Snapshot
) -> str | None:
    """Return why this node offers no GPU although the PCI bus has GPUs that the entry may select."""
    # NVML names no GPU that a person has kept from pods: for virtual machines, or by a setting of the driver.
    unused = {gpu.place for gpu in snapshot.unusable_gpus if gpu.health.state is State.UNUSED}
    functions = (gpu for gpu in snapshot.gpu_functions if not gpu.for_guests)
    seen = [gpu.pci_address for gpu in functions if gpu.pci_address not in unused]
    globs = entry.select.pci_addresses
    seen = [address for address in seen if not globs or matches(address, globs)]
    if snapshot.gpus or not seen or config.gpu.driver == "none":
        return None
    return (
        f"the PCI bus has the GPUs {_named(seen)}, and NVML is not loaded or names none: install or start the "
        "driver (its container may still be starting), and give the agent's pod the runtime `nvidia`"
    )


_Shortage = Callable[[Config, Any, Snapshot], str | None]
_Cause = Callable[[Any, Snapshot], str]
_CAUSES: Mapping[str, tuple[_Shortage, _Cause]] = {
    "pci": (_nic_shortage, why_no_functions),
    "gpus": (_gpu_shortage, why_no_gpus),
}
"""By the source of an entry's facts: why a node with such hardware offers none of it, and why it has no such
hardware."""


def _tiny_slices(config: Config, snapshot: Snapshot) -> Iterator[Lack]:
    for entry in memory_entries(config.resources):
        if not entry.by_claim:
            memories = [gpu.memory_mib for gpu in selected_gpus(entry.select, snapshot.gpus)]
            if remark := status_remark(entry.slice_mib, entry.reserved_mib, memories):
                yield Lack(f"{entry.name}: {remark}", fatal=False, source="gpus", key="slices")


def _held(config: Config, entry: NetworkResource, snapshot: Snapshot) -> HeldRails:
    """The numbers in the names under which pods hold VFs of this selection."""
    head, key = prefix(config, snapshot.product), selection(entry)
    others = network_entries(config.resources)
    templates = [f"{head}/{other.name}" for other in others if selection(other) == key]
    held = [(holding.resource, id_) for holding in snapshot.holdings or () for id_ in holding.device_ids]
    parents = {
        function.pci_address: function.parent or function.pci_address for function in snapshot.functions
    }
    return held_rails(held, templates, parents)


def _recalled(
    config: Config, reported: Rails, entry: NetworkResource, snapshot: Snapshot, links: Mapping[str, Link]
) -> Rails:
    """Return the rails of the NICs that this entry selects, as other memories have them. A missing one is known by
    its address alone: it belongs to the entry if no entry with another selection may select it."""
    nics = nics_of(snapshot.functions, snapshot.links)
    if not nics:
        return ()
    alone = len({selection(other) for other in network_entries(config.resources)}) == 1
    known = recalled(reported, _held(config, entry, snapshot).of_pf, nics)
    mine = [
        rail
        for rail in known
        if (alone or rail.pci_address in nics) and _may_own(entry, rail, snapshot, links)
    ]
    numbers = Counter(rail.number for rail in mine)
    return tuple(rail for rail in mine if numbers[rail.number] == 1)


def _creates_vfs(
    config: Config, function: Function, unread: Collection[str] = (), *, doubt: bool = False
) -> bool:
    """Whether the ``vfs`` section creates VFs on this PF, which may lack them at present. ``unread`` and ``doubt``: see
    ``selected_pf``."""
    able = doubt if "total_vfs" in unread else bool(function.total_vfs)
    return able and any(
        entry.count and selected_pf(entry.select, function, unread, doubt=doubt) for entry in config.vfs
    )


def _unread_values(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """The values that cannot be read now, by PCI address."""
    addresses = {one.pci_address for one in snapshot.unread}
    return {
        address: frozenset(one.value for one in snapshot.unread if one.pci_address == address)
        for address in addresses
    }


def _why_doubtful(address: str, snapshot: Snapshot) -> str:
    paths = [
        one.path for one in snapshot.unread if one.pci_address in (address, "") and one.value != "product"
    ]
    return (
        f"{_named(paths)} cannot be read, so it is not known whether a NIC at {address} gets a number, and new "
        "NICs wait for theirs; if it stays so, leave it out with select.exclude, or set the numbers with "
        "select.pciAddresses"
    )


def _may_own(entry: NetworkResource, rail: Rail, snapshot: Snapshot, links: Mapping[str, Link]) -> bool:
    address = rail.pci_address or ""
    for function in snapshot.functions:
        if function.pci_address == address and not function.missing:
            unread = {one.value for one in snapshot.unread if one.pci_address in (address, "")}
            return offers_vfs_of(entry, function, links.get(address), unread, doubt=True)
    return _may_be_at(entry, address)


def _may_be_at(entry: NetworkResource, address: str) -> bool:
    """Whether an entry may select a NIC at this address, of which nothing else is known."""
    globs, exclude = entry.select.pci_addresses or ("*",), entry.select.exclude
    return matches(address, globs) and not matches(address, exclude)


def _undivided(entry: MigResource, snapshot: Snapshot) -> Iterator[Lack]:
    for gpu in selected_gpus(entry.select, snapshot.gpus) if entry.by_claim else ():
        if gpu.mig and not gpu.mig_profiles and not gpu.lost:
            message = (
                f"{entry.name}: GPU {gpu.index} is in MIG mode, and the driver does not show how it can be divided; "
                "the agent needs components/mig-claims"
            )
            yield Lack(message, fatal=False, source="gpus", key="undivided")


def _cut_names(kinds: Iterable[tuple[ResourceSettings, DeviceKind]]) -> Iterator[Lack]:
    """With vfDevices Multus compares the name of the resource with an attribute, which holds so many bytes."""
    for entry, kind in kinds:
        if entry.vf_devices and len(kind.resource) > VALUE_MAX:
            message = (
                f"{kind.resource} has more than {VALUE_MAX} characters, and vfDevices needs a shorter name"
            )
            yield Lack(message, fatal=True)


def _too_few(setting: str, expected: int, offered: set[str], gone: set[str]) -> Iterator[Lack]:
    present = len(offered - gone)
    if present < expected:
        without = f", without {_named(sorted(offered & gone))}" if offered & gone else ""
        message = (
            f"expect.{setting} is {expected}, and {present} are offered{without}: `nodeagent doctor` looks for the "
            f"others; or correct expect.{setting}"
        )
        source = "pci" if setting == "nics" else setting
        yield Lack(message, fatal=False, ready=False, source=source)
