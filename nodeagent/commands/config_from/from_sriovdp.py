"""The configuration of sriov-network-device-plugin (``resourceList``) → a draft of ours. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.commands.config_from.draft import Draft, DraftEntry
from nodeagent.commands.config_from.foreign_documents import (
    Fields,
    ListForm,
    UnreadableFile,
    foreign_text,
    in_use,
    known,
    listed_entries,
    texts,
    truth,
)
from nodeagent.commands.config_from.foreign_keys import SRIOVDP_RESOURCE, SRIOVDP_SELECTORS
from nodeagent.commands.config_from.vf_selection import (
    NO_MACHINE,
    MachineVfs,
    PfSelection,
    Selector,
    are_apart,
    joined_selection,
    select_vfs,
)
from nodeagent.config.file_errors import quote

SRIOVDP_PREFIX = "intel.com"
"""Its prefix without the option -resource-prefix (cmd/sriovdp/main.go)."""
_DEVICE_TYPES = {
    "netdevice": None,
    "accelerator": "nodeagent offers no accelerators but NVIDIA's GPUs; keep that plugin for them, with other names",
    "auxnetdevice": "nodeagent offers no sub-functions; keep that plugin for them, with other names",
}
_FORM = ListForm("sriov-network-device-plugin", "resourceList", "sriovDevicePlugin")
ROUTE = (
    "The VFs of a NIC with the host's default route are not offered (select.defaultRoute); that program offers them. "
    "Nor is a NIC of an entry of kind vf that has no VFs: where that program offers it, it is kind nic."
)


def draft_of_sriovdp(
    files: Sequence[tuple[str, str]], prefix: str | None, key: str | None, machine: MachineVfs = NO_MACHINE
) -> Draft:
    """Return the draft for files, given as name and text. ``machine``: for that one alone.

    Raises ``UnreadableFile``."""
    draft = Draft("Made by `nodeagent config from sriovdp`.")
    draft.about.append(ROUTE)
    entries: list[tuple[str, Fields]] = []
    for name, text in files:
        entries += listed_entries(name, text, key, _FORM)
    prefixes = [
        own_prefix(fields, place, SRIOVDP_RESOURCE) or prefix or SRIOVDP_PREFIX for place, fields in entries
    ]
    choose_prefix(draft, prefixes, [place for place, _ in entries], prefix)
    names: set[str] = set()
    for place, fields in entries:
        _add(draft, place, fields, names, machine)
    keep_apart(draft)
    return draft


def choose_prefix(draft: Draft, prefixes: Sequence[str], places: Sequence[str], given: str | None) -> None:
    """Set the prefix of most resources, and name those that have another one."""
    draft.prefix = Counter(prefixes).most_common(1)[0][0] if prefixes else given
    for place, own in zip(places, prefixes, strict=True):
        if own != draft.prefix:
            draft.lose(
                f"{place}.resourcePrefix",
                f"{quote(own)}: all resources have one prefix, here {draft.prefix}; pods must ask for the new name",
            )


def keep_apart(draft: Draft) -> None:
    """That plugin gives a VF that two resources select to the first one: leave it out of the second one."""
    for i, entry in enumerate(draft.resources):
        if entry.why_off is not None:
            continue
        for other in draft.resources[:i]:
            name = other.settings["name"]
            if other.why_off is not None or other.narrowed:
                if other.narrowed or not are_apart(entry.settings, other.settings):
                    draft.lose(entry.origin, f"it may select VFs that {name} has there and has lost here")
                    break
            elif not are_apart(entry.settings, other.settings):
                if not _excluded(entry, other):
                    draft.lose(
                        entry.origin,
                        f"it may select VFs of {name} too. There the first resource gets them, here two resources must "
                        "select different ones: separate them by select.exclude, netdevs or vfIndexes",
                    )
                    break
                draft.note(entry.origin, f"select.exclude leaves out the PFs of {name}, which is first there")


def _excluded(entry: DraftEntry, first: DraftEntry) -> bool:
    """Leave the PFs of ``first`` out of ``entry``, where that leaves out what ``first`` selects and nothing else."""
    keys = list(first.settings.get("select", {}))
    of_kind = "driver" if first.settings["kind"] == "nic" else "vfDriver"
    driver = first.settings.get(of_kind, "any")
    if keys not in (["netdevs"], ["pciAddresses"]):
        return False
    if driver not in ("any", entry.settings.get(of_kind, "any")):
        return False
    select = entry.settings.setdefault("select", {})
    select["exclude"] = list(dict.fromkeys([*select.get("exclude", []), *first.settings["select"][keys[0]]]))
    return True


def own_prefix(fields: Any, place: str, keys: Mapping[str, str]) -> str | None:
    """The ``resourcePrefix`` of an entry with these keys. Raises ``UnreadableFile``."""
    found, _ = known(fields, place, keys)
    prefix = (
        foreign_text(found["resourcePrefix"], f"{place}.resourcePrefix") if "resourcePrefix" in found else ""
    )
    return prefix or None


def _add(draft: Draft, place: str, fields: Fields, names: set[str], machine: MachineVfs) -> None:
    found, unknown = known(fields, place, SRIOVDP_RESOURCE)
    note_unknown(draft, place, unknown)
    name = resource_name(found, place, names)
    kind = foreign_text(found.get("deviceType", "netDevice"), f"{place}.deviceType")
    if kind.lower() not in _DEVICE_TYPES:
        raise UnreadableFile(
            f"{place}.deviceType is {quote(kind)}, must be netDevice, accelerator or auxNetDevice"
        )
    lose_used(draft, place, found, SRIOVDP_RESOURCE)
    if (why := _DEVICE_TYPES[kind.lower()]) is not None:
        draft.lose(f"{place}.deviceType", f"{kind}: {why}")
        return
    written = found.get("selectors", {})
    listed = isinstance(written, list)
    if listed and not written:
        raise UnreadableFile(f"{place}.selectors is empty; that program needs at least one")
    places = [f"{place}.selectors[{i}]" for i in range(len(written))] if listed else [f"{place}.selectors"]
    selections, vhost = [], False
    for where, selector in zip(places, written if listed else [written], strict=True):
        selection, wants_vhost = _selection(draft, where, selector, machine)
        for key, why in selection.lost:
            draft.lose(f"{where}.{key}", why)
        for key, text in selection.notes:
            draft.note(f"{where}.{key}", text)
        selections.append(selection)
        vhost = vhost or wants_vhost
    joined = joined_selection(selections)
    if joined is None:
        draft.lose(
            places[1],
            "one entry cannot select what several selectors with different keys do, and the first is written alone; "
            "make entries with names of their own for the others",
        )
        joined = selections[0]
        joined.lost.append(("selectors", ""))
    add_resource(draft, place, name, joined, vhost=vhost)


def resource_name(found: Fields, place: str, names: set[str]) -> str:
    """Return ``resourceName``, which must not have come before. Raises ``UnreadableFile``."""
    name = foreign_text(found.get("resourceName", ""), f"{place}.resourceName")
    if not name:
        raise UnreadableFile(f"{place} has no resourceName")
    if name in names:
        raise UnreadableFile(f"{place}.resourceName: {quote(name)} stands twice; that program refuses it too")
    names.add(name)
    return name


def add_resource(draft: Draft, place: str, name: str, selection: PfSelection, *, vhost: bool) -> None:
    """Add an entry of kind vf or nic, as a comment where its selection would take in more than that program's."""
    settings: dict[str, Any] = {"kind": "nic" if selection.whole else "vf", "name": name}
    if selection.select:
        settings["select"] = selection.select
    if selection.vf_driver != "any":
        settings["driver" if selection.whole else "vfDriver"] = selection.vf_driver
    if vhost:
        settings["vhostNet"] = True
    why_off = selection.unsafe
    if "{" in name or "}" in name:
        why_off = f"the name {quote(name)} has a brace"
        draft.lose(f"{place}.resourceName", why_off)
    draft.resources.append(DraftEntry(place, settings, why_off, narrowed=bool(selection.lost)))


def note_unknown(draft: Draft, place: str, unknown: Iterable[tuple[str, str]]) -> None:
    for key, text in unknown:
        draft.note(f"{place}.{key}", text)


def lose_used(draft: Draft, place: str, found: Fields, keys: Any) -> list[str]:
    """Name the keys in use that have no counterpart, and return them."""
    lost = [key for key in keys if keys[key] and in_use(found.get(key, ""))]
    for key in lost:
        draft.lose(f"{place}.{key}", keys[key])
    return lost


def _selection(draft: Draft, place: str, fields: Any, machine: MachineVfs) -> tuple[PfSelection, bool]:
    found, unknown = known(fields, place, SRIOVDP_SELECTORS)
    note_unknown(draft, place, unknown)

    def listed(key: str) -> list[str]:
        return texts(found.get(key, []), f"{place}.{key}")

    selection = select_vfs(
        Selector(
            vendors=listed("vendors"),
            devices=listed("devices"),
            drivers=listed("drivers"),
            pci_addresses=listed("pciAddresses"),
            pf_names=listed("pfNames"),
            root_devices=listed("rootDevices"),
            link_types=listed("linkTypes"),
            is_rdma=truth(found.get("isRdma", "false"), f"{place}.isRdma"),
        ),
        machine,
    )
    for key in lose_used(draft, place, found, SRIOVDP_SELECTORS):
        selection.unsafe = selection.unsafe or f"without {key} it would select more"
    return selection, truth(found.get("needVhostNet", "false"), f"{place}.needVhostNet")
