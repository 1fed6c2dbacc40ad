"""The configuration of k8s-rdma-shared-dev-plugin (``configList``) → a draft of ours. Pure.

There a resource is a number of shares, each with the device nodes of all its functions; here an entry has that number
for each HCA. So an entry equals a resource where both select one HCA, and that is certain of one netdev alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodeagent.commands.config_from.draft import Draft, DraftEntry
from nodeagent.commands.config_from.foreign_documents import (
    Fields,
    ListForm,
    UnreadableFile,
    known,
    listed_entries,
    texts,
    whole_number,
)
from nodeagent.commands.config_from.foreign_keys import (
    RDMA_SHARED_RESOURCE,
    RDMA_SHARED_SELECTORS,
    VF_DEVICES,
)
from nodeagent.commands.config_from.from_sriovdp import choose_prefix, note_unknown, own_prefix, resource_name
from nodeagent.commands.config_from.vf_selection import are_apart, glob_of, our_link_types
from nodeagent.kinds.resource_settings import SHARES_MAX

RDMA_SHARED_PREFIX = "rdma"
"""Its prefix by default (pkg/resources/resources_manager.go)."""
_FORM = ListForm("k8s-rdma-shared-dev-plugin", "configList", "rdmaSharedDevicePlugin")
_VF_IDS = frozenset(device for _, device in VF_DEVICES)
_SELECTORS = {"vendors": "vendors", "deviceIDs": "devices", "drivers": "drivers", "ifNames": "netdevs"}
_ABOUT = (
    "That program shares the NIC with the host's default route too (select.defaultRoute), and VFs, which are kind vf "
    "here. Its pods also get the device nodes umad and issm; verbs and the RDMA connection manager need neither (umad: "
    "true)."
)


def draft_of_rdma_shared(files: Sequence[tuple[str, str]], prefix: str | None, key: str | None) -> Draft:
    """Return the draft for files, given as name and text. Raises ``UnreadableFile``."""
    draft = Draft("Made by `nodeagent config from rdma-shared`.")
    draft.about.append(_ABOUT)
    entries = [entry for name, text in files for entry in listed_entries(name, text, key, _FORM)]
    prefixes = [
        own_prefix(fields, place, RDMA_SHARED_RESOURCE) or prefix or RDMA_SHARED_PREFIX
        for place, fields in entries
    ]
    choose_prefix(draft, prefixes, [place for place, _ in entries], prefix)
    names: set[str] = set()
    for place, fields in entries:
        _add(draft, place, fields, names)
    return draft


def _add(draft: Draft, place: str, fields: Any, names: set[str]) -> None:
    found, unknown = known(fields, place, RDMA_SHARED_RESOURCE)
    note_unknown(draft, place, unknown)
    name = resource_name(found, place, names)
    shares = whole_number(found.get("rdmaHcaMax", "0"), f"{place}.rdmaHcaMax")
    select, why_off = _selected(draft, place, found)
    if shares == 0:
        draft.note(f"{place}.rdmaHcaMax", "0: that program offers no device of it")
        return
    if shares > SHARES_MAX:
        draft.lose(
            f"{place}.rdmaHcaMax",
            f"{shares}: an HCA has at most {SHARES_MAX} shares here; no node has as many pods",
        )
    settings: dict[str, Any] = {
        "kind": "rdma",
        "name": name,
        "select": {**select, "defaultRoute": "always"},
        "shares": min(shares, SHARES_MAX),
    }
    if why_off is None and len(select.get("netdevs", ())) != 1:
        draft.lose(
            f"{place}.selectors",
            "where it selects several HCAs, a container there has all of them with one share, and here one HCA with "
            'each share: write name: "rdma{rail}" for a resource of each HCA, and let pods ask for those they need',
        )
    for other in draft.resources:
        if why_off is None and other.why_off is None and not are_apart(settings, other.settings):
            draft.lose(
                place,
                f"it may select HCAs of {other.settings['name']} too, and here one entry alone shares out an HCA: "
                "separate them by netdevs or select.exclude",
            )
            break
    draft.resources.append(DraftEntry(place, settings, why_off))


def _selected(draft: Draft, place: str, found: Fields) -> tuple[dict[str, Any], str | None]:
    """Return ``select`` of ours, and why it would select more than that program does."""
    selectors, unknown = known(found.get("selectors", {}), f"{place}.selectors", RDMA_SHARED_SELECTORS)
    note_unknown(draft, f"{place}.selectors", unknown)
    lists = {key: texts(selectors.get(key, []), f"{place}.selectors.{key}") for key in RDMA_SHARED_SELECTORS}
    devices = texts(found.get("devices", []), f"{place}.devices")
    if devices and any(lists.values()):
        raise UnreadableFile(f"{place} has devices and selectors; that program refuses it too")
    if not devices and not any(lists.values()):
        raise UnreadableFile(f"{place} has neither devices nor selectors; that program refuses it too")
    lists["ifNames"] = lists["ifNames"] or devices
    why_off = None
    if of_vfs := [device for device in lists["deviceIDs"] if device.lower() in _VF_IDS]:
        lists["deviceIDs"] = [device for device in lists["deviceIDs"] if device not in of_vfs]
        why_off = None if lists["deviceIDs"] else f"deviceIDs: {', '.join(of_vfs)} are the IDs of VFs"
        draft.lose(
            f"{place}.selectors.deviceIDs",
            f"{', '.join(of_vfs)}: the ID of VFs, and here PFs are shared. Each VF is a device of its own: kind vf "
            "with vfDriver: rdma",
        )
    select: dict[str, Any] = {
        ours: list(dict.fromkeys(lists[key])) for key, ours in _SELECTORS.items() if lists[key]
    }
    for ours in ("netdevs", "drivers"):
        if ours in select:
            select[ours] = [glob_of(name) for name in select[ours]]
    if lists["linkTypes"]:
        types = our_link_types(lists["linkTypes"])
        if types is None:
            why_off = f"linkTypes: {', '.join(lists['linkTypes'])}: nodeagent knows ether and infiniband"
            draft.lose(f"{place}.selectors.linkTypes", why_off.partition(": ")[2])
        else:
            select["linkTypes"] = types
    return select, why_off
