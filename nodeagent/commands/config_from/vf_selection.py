"""A selector of sriov-network-device-plugin → ``select`` of ours, exactly or not at all. Pure.

Its selectors match functions: VFs, and PFs that have none. Ours match PFs, and the kind of the entry says whether their
VFs are offered (``vf``) or they themselves (``nic``). The SR-IOV operator writes selectors for that plugin, so its
policies come through here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import msgspec

from nodeagent.commands.config_from.foreign_keys import NO_PCI_DRIVERS, UIO_DRIVERS, VF_DEVICES, VF_DRIVERS
from nodeagent.config.file_errors import quote
from nodeagent.config.formats import VF_INDEX_MAX
from nodeagent.facts.model import Function

_ADDRESS = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_INDEXES = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*")
_LINK_TYPES = {"ether": "ethernet", "infiniband": "infiniband"}
_PF_DEVICES = frozenset(pf for pfs in VF_DEVICES.values() for pf in pfs)
_WHOLE = "the ID of a PF beside IDs of VFs; a NIC without VFs is an entry of kind nic, with a name of its own"

Ranges = tuple[tuple[int, int], ...]


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """One selector. ``devices`` are the IDs of functions, ``pf_devices`` those of PFs. ``whole``: it is for NICs
    without VFs."""

    vendors: Sequence[str] = ()
    devices: Sequence[str] = ()
    pf_devices: Sequence[str] = ()
    drivers: Sequence[str] = ()
    pci_addresses: Sequence[str] = ()
    pf_names: Sequence[str] = ()
    root_devices: Sequence[str] = ()
    link_types: Sequence[str] = ()
    is_rdma: bool = False
    whole: bool = False


class MachineVfs(NamedTuple):
    """The VFs of a machine: PF and index of each, by address; the device IDs of the PFs whose VFs have an ID; and the
    addresses of NICs without VFs."""

    places: Mapping[str, tuple[str, int]]
    pf_devices: Mapping[str, tuple[str, ...]]
    whole: frozenset[str] = frozenset()


def machine_vfs(functions: Iterable[Function]) -> MachineVfs:
    """Return the VFs among the functions of a machine whose PF and index are known, and the NICs without VFs."""
    devices = {function.pci_address: function.device for function in functions if function.parent is None}
    places: dict[str, tuple[str, int]] = {}
    of_ids: dict[str, list[str]] = {}
    for vf in functions:
        if vf.parent in devices and vf.vf_index is not None:
            places[vf.pci_address] = (vf.parent, vf.vf_index)
            of_ids.setdefault(vf.device, []).append(devices[vf.parent])
    whole = devices.keys() - {pf for pf, _ in places.values()}
    return MachineVfs(places, {vf: tuple(_unique(pfs)) for vf, pfs in of_ids.items()}, frozenset(whole))


NO_MACHINE = MachineVfs({}, {})


class PfSelection:
    """A selector in our words. ``lost``: for each key that is lost, why; ``unsafe``: without it more is selected.
    ``whole``: it is for NICs without VFs, kind nic."""

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self.select: dict[str, Any] = {}
        self.vf_driver = "any"
        self.lost: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str]] = []
        self.unsafe: str | None = None

    def refuse(self, key: str, why: str) -> None:
        self.lost.append((key, why))
        self.unsafe = self.unsafe or f"{key}: {why}"


def select_vfs(selector: Selector, machine: MachineVfs = NO_MACHINE) -> PfSelection:
    """Return the selection of VFs that equals a selector, on every machine or on this one."""
    made = PfSelection(whole=_is_whole(selector, machine))
    if selector.vendors:
        made.select["vendors"] = _unique(vendor.lower().removeprefix("0x") for vendor in selector.vendors)
    _set_devices(selector, made, machine)
    _set_driver(selector, made)
    names = _by_ranges(selector.pf_names, "pfNames", made)
    roots = _by_ranges(selector.root_devices, "rootDevices", made)
    if names is not None and names[1]:
        made.select["netdevs"] = [glob_of(name) for name in names[1]]
    if roots is not None and roots[1]:
        made.select["pciAddresses"] = [_address(address, made) for address in roots[1]]
    own = _by_address(selector, machine, made)
    _set_indexes([found[0] for found in (names, roots, own) if found is not None], made)
    if selector.link_types:
        types = our_link_types(selector.link_types)
        if types is None:
            made.refuse(
                "linkTypes", f"{quote(','.join(selector.link_types))}: nodeagent knows ether and infiniband"
            )
        else:
            made.select["linkTypes"] = types
    return made


def glob_of(name: str) -> str:
    """Return the glob that matches this name alone."""
    return re.sub(r"([*?[])", r"[\1]", name)


def our_link_types(words: Sequence[str]) -> list[str] | None:
    """Return link types in our words; ``None`` if one has no counterpart."""
    types = [_LINK_TYPES.get(word.lower()) for word in words]
    return None if None in types else _unique(word for word in types if word is not None)


def joined_selection(selections: Sequence[PfSelection]) -> PfSelection | None:
    """Return one selection of what any of them selects, or ``None`` where one entry cannot say that."""
    first = selections[0]
    result = PfSelection(whole=first.whole)
    result.select, result.vf_driver = dict(first.select), first.vf_driver
    differing: str | None = None
    for other in selections[1:]:
        keys = [
            key for key in {*result.select, *other.select} if result.select.get(key) != other.select.get(key)
        ]
        if (other.whole, other.vf_driver) != (first.whole, first.vf_driver) or len(keys) > 1:
            return None
        for key in keys:
            if (
                key == "vfIndexes"
                or differing not in (None, key)
                or not (result.select.get(key) and other.select.get(key))
            ):
                return None
            differing = key
            result.select[key] = _unique([*result.select[key], *other.select[key]])
    for selection in selections:
        result.lost += selection.lost
        result.notes += selection.notes
        result.unsafe = result.unsafe or selection.unsafe
    return result


def are_apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two entries certainly share no device: VFs and whole NICs are different ones."""
    if a["kind"] != b["kind"]:
        return True
    drivers = {one.get("driver" if one["kind"] == "nic" else "vfDriver", "any") for one in (a, b)}
    if drivers in ({"vfio-pci", "netdevice"}, {"vfio-pci", "rdma"}):
        return True
    one, other = a.get("select", {}), b.get("select", {})
    for key in ("vendors", "devices", "drivers", "pciAddresses", "netdevs", "linkTypes"):
        if one.get(key) and other.get(key) and not {*one[key]} & {*other[key]}:
            return True
    if one.get("vfIndexes") and other.get("vfIndexes"):
        ranges = ([_parsed(text) for text in select["vfIndexes"]] for select in (one, other))
        return not _intersection(*(tuple(span for spans in of_one for span in spans) for of_one in ranges))
    return False


def _by_address(
    selector: Selector, machine: MachineVfs, made: PfSelection
) -> tuple[Ranges | None, list[str]] | None:
    """Select the VFs that are named by address, by their PFs and their indexes."""
    if not selector.pci_addresses:
        return None
    if made.whole:
        _add_addresses(selector.pci_addresses, made)
        return None
    if not (machine.places or machine.whole):
        made.refuse(
            "pciAddresses",
            "it names VFs, or NICs without VFs, by address, and what these are is known on their node alone: convert "
            "it there with --root /",
        )
        return None
    indexes: dict[str, list[int]] = {}
    for address in selector.pci_addresses:
        if (place := machine.places.get(address.lower())) is None:
            why = (
                "is a NIC without VFs, beside VFs: make an entry of kind nic of it, with another name"
                if address.lower() in machine.whole
                else "is not a VF of this machine, and no NIC without VFs"
            )
            made.lost.append(("pciAddresses", f"{quote(address)} {why}"))
        else:
            indexes.setdefault(place[0], []).append(place[1])
    groups: dict[Ranges, list[str]] = {}
    for pf, numbers in indexes.items():
        groups.setdefault(_parsed(",".join(map(str, numbers))), []).append(pf)
    if not groups:
        made.unsafe = made.unsafe or "pciAddresses: none is a VF of this machine"
        return None
    (ranges, pfs), *others = groups.items()
    for _, left in others:
        made.lost.append(
            (
                "pciAddresses",
                f"other VFs of {', '.join(left)}: an entry has one list of VF indexes; make an entry of its "
                "own for these, with another name",
            )
        )
    made.notes.append(
        ("pciAddresses", "the PFs and VF indexes are those of this machine; other nodes may differ")
    )
    before = made.select.get("pciAddresses")
    made.select["pciAddresses"] = pfs if before is None else [pf for pf in pfs if pf in before]
    if not made.select["pciAddresses"]:
        made.refuse("pciAddresses", "none is a VF of a PF in rootDevices, so it selects nothing")
    return ranges, pfs


def _is_whole(selector: Selector, machine: MachineVfs) -> bool:
    """Whether a selector is for NICs without VFs: by addresses of this machine, by IDs of PFs, or on a machine that has
    no VFs."""
    if selector.whole:
        return True
    if selector.pci_addresses:
        return machine.whole.issuperset(address.lower() for address in selector.pci_addresses)
    devices = {device.lower().removeprefix("0x") for device in selector.devices}
    if devices & {vf for _, vf in VF_DEVICES}:
        return False
    return (bool(devices) and devices <= _PF_DEVICES) or (bool(machine.whole) and not machine.places)


def _add_addresses(addresses: Sequence[str], made: PfSelection) -> None:
    """Select NICs by address, within those that are selected already."""
    before = made.select.get("pciAddresses")
    named = _unique(address.lower() for address in addresses)
    made.select["pciAddresses"] = named if before is None else [one for one in named if one in before]
    if not made.select["pciAddresses"]:
        made.refuse("pciAddresses", "none is in rootDevices, so it selects nothing")


def _set_devices(selector: Selector, made: PfSelection, machine: MachineVfs) -> None:
    if made.whole:
        if devices := [*selector.pf_devices, *selector.devices]:
            made.select["devices"] = _unique(device.lower().removeprefix("0x") for device in devices)
        return
    pfs: list[str] = [device.lower().removeprefix("0x") for device in selector.pf_devices]
    vendors = {vendor.lower().removeprefix("0x") for vendor in selector.vendors}
    unknown: list[str] = []
    for device in (text.lower().removeprefix("0x") for text in selector.devices):
        of_vf = [
            pf
            for (vendor, vf), parents in VF_DEVICES.items()
            if vf == device and (not vendors or vendor in vendors)
            for pf in parents
        ] or [*machine.pf_devices.get(device, ())]
        if of_vf:
            pfs += of_vf
            made.notes.append(
                (
                    "devices",
                    f"{device} is the ID of VFs; select.devices has the IDs of the PFs that have such VFs",
                )
            )
        elif device in _PF_DEVICES:
            made.lost.append(("devices", f"{device} is {_WHOLE}"))
            unknown.append(device)
        else:
            unknown.append(device)
            why = f"{quote(device)}: the ID of its PFs is not known; write select.devices with it (`nodeagent scan`)"
            made.lost.append(("devices", why))
    if pfs:
        made.select["devices"] = _unique(pfs)
    elif unknown:
        made.unsafe = f"devices: {', '.join(map(quote, unknown))}: the ID of no VF whose PF is known"


def _set_driver(selector: Selector, made: PfSelection) -> None:
    drivers = [driver for driver in selector.drivers if driver not in UIO_DRIVERS | NO_PCI_DRIVERS]
    for driver in sorted({*selector.drivers} & NO_PCI_DRIVERS):
        made.notes.append(
            ("drivers", f"no PCI function has the driver {driver}: it selects nothing there, and is left out")
        )
    for driver in sorted({*selector.drivers} & UIO_DRIVERS):
        made.lost.append(
            (
                "drivers",
                f"{driver}: VFs with a UIO driver are never offered, no IOMMU protects the node; use vfio-pci",
            )
        )
    if selector.drivers and not drivers:
        made.unsafe = (
            made.unsafe or f"drivers: {', '.join(map(quote, selector.drivers))} selects nothing here"
        )
        return
    kernel = [driver for driver in drivers if driver != "vfio-pci"]
    unknown = [] if made.whole else [driver for driver in kernel if driver not in VF_DRIVERS]
    if unknown:
        made.refuse(
            "drivers",
            f"{', '.join(map(quote, unknown))}: not known as a network driver of VFs; write vfDriver: netdevice, and "
            "select.drivers with the driver of the PF",
        )
    pf_drivers = (
        [glob_of(driver) for driver in _unique(kernel)]
        if made.whole
        else _unique(pf for driver in kernel for pf in VF_DRIVERS.get(driver, ()))
    )
    if selector.is_rdma:
        made.vf_driver = "rdma"
        if drivers and not kernel:
            made.refuse(
                "isRdma",
                "a VF with vfio-pci has no RDMA device, so this selects nothing; remove one of the two",
            )
        if kernel:
            made.select["drivers"] = pf_drivers
    elif kernel and len(kernel) == len(drivers):
        made.vf_driver = "netdevice"
        made.select["drivers"] = pf_drivers
    elif kernel:
        made.refuse(
            "drivers", "vfio-pci and a network driver in one resource; make two, with names of their own"
        )
    elif drivers:
        made.vf_driver = "vfio-pci"


def _by_ranges(items: Sequence[str], key: str, made: PfSelection) -> tuple[Ranges | None, list[str]] | None:
    """Return the VF indexes (``None``: all) and the PFs that have them; ``None`` if the list is empty."""
    if not items:
        return None
    groups: dict[Ranges | None, list[str]] = {}
    seen: set[str] = set()
    for item in items:
        name, sign, indexes = item.partition("#")
        if name.lower() in seen:
            made.lost.append(
                (key, f"{quote(item)}: that plugin reads the first entry of a PF alone; join the two")
            )
            continue
        seen.add(name.lower())
        if sign and not _INDEXES.fullmatch(indexes):
            made.lost.append(
                (key, f"{quote(item)} has no VF indexes that can be read, so it selects nothing")
            )
            continue
        groups.setdefault(_parsed(indexes) if sign else None, []).append(name)
    if not groups:
        made.unsafe = made.unsafe or f"{key}: no PF is left"
        return None, []
    (ranges, names), *others = groups.items()
    for _, left in others:
        made.lost.append(
            (
                key,
                f"{', '.join(map(quote, left))}: an entry has one list of VF indexes for its PFs; make an entry of its "
                "own for these, with another name",
            )
        )
    return ranges, names


def _set_indexes(found: Sequence[Ranges | None], made: PfSelection) -> None:
    ranges = [spans for spans in found if spans is not None]
    if not ranges:
        return
    if made.whole:
        made.refuse("pfNames", "VF indexes of a NIC without VFs select nothing")
        return
    both = reduce(_intersection, ranges)
    if not both:
        made.refuse("pfNames", "its VF indexes select nothing")
        return
    made.select["vfIndexes"] = [f"{low}-{high}" if low != high else str(low) for low, high in both]


def _parsed(text: str) -> Ranges:
    """``"4,0-2,3"`` → ``((0, 4),)``; a range in descending order is empty."""
    spans = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        spans.append((int(low), min(int(high or low), VF_INDEX_MAX)))
    joined: list[tuple[int, int]] = []
    for first, last in sorted(span for span in spans if span[0] <= span[1]):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _intersection(a: Ranges, b: Ranges) -> Ranges:
    return tuple(
        sorted((max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b if max(x[0], y[0]) <= min(x[1], y[1]))
    )


def _address(text: str, made: PfSelection) -> str:
    low = text.lower()
    if _ADDRESS.fullmatch(low) is None:
        made.refuse("rootDevices", f"{quote(text)} is not a PCI address such as 0000:1a:00.0")
        return low
    if low.count(":") == 1:
        made.notes.append(
            ("rootDevices", f"{quote(text)} matches nothing in that plugin; written in the long form")
        )
        return f"0000:{low}"
    return low


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
