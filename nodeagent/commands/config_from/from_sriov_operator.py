"""Policies of the SR-IOV network operator (``SriovNetworkNodePolicy``) → a draft of ours. Pure.

The operator makes of its policies VFs on each node, and a configuration of sriov-network-device-plugin; here the first
becomes ``vfs``, the second ``resources``. As there, policies with one ``resourceName`` join their selectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nodeagent.commands.config_from.draft import Draft, DraftEntry
from nodeagent.commands.config_from.foreign_documents import (
    Fields,
    UnreadableFile,
    foreign_text,
    in_use,
    known,
    objects,
    texts,
    truth,
    whole_number,
)
from nodeagent.commands.config_from.foreign_keys import SRIOV_NIC_SELECTOR, SRIOV_POLICY
from nodeagent.commands.config_from.from_sriovdp import (
    ROUTE,
    add_resource,
    keep_apart,
    lose_used,
    note_unknown,
)
from nodeagent.commands.config_from.vf_selection import Selector, select_vfs
from nodeagent.config.file_errors import quote

SRIOV_OPERATOR_PREFIX = "openshift.io"
"""Its prefix by default (operator.resourcePrefix of its chart)."""
_DEFAULT_POLICY = "default"
_NETWORKS = ("SriovNetwork", "SriovIBNetwork", "OVSNetwork")
_TYPES = {"eth": "ether", "ib": "infiniband"}


class Policy(NamedTuple):
    """A policy: where it stands, its node selector, its priority and its fields."""

    place: str
    nodes: Mapping[str, str]
    priority: int
    fields: Fields
    nic: Fields


def draft_of_policies(
    files: Sequence[tuple[str, str]], prefix: str | None, labels: Mapping[str, str] | None
) -> Draft:
    """Return the draft for the nodes with these ``labels``, or for all. Raises ``UnreadableFile``."""
    draft = Draft("Made by `nodeagent config from sriov-operator`.")
    draft.about.append(ROUTE)
    draft.prefix = prefix or SRIOV_OPERATOR_PREFIX
    policies = _policies(draft, files)
    if labels is None:
        kinds = {tuple(sorted(policy.nodes.items())): policy for policy in policies}
        if len(kinds) > 1:
            listed = "; ".join(
                ",".join(f"{key}={value}" for key, value in nodes) or "all nodes" for nodes in kinds
            )
            raise UnreadableFile(
                f"the policies are for {len(kinds)} kinds of nodes ({listed}), and a configuration is for one: give "
                "the labels of a node with --labels KEY=VALUE,..., once for each kind"
            )
    else:
        policies = [policy for policy in policies if policy.nodes.items() <= labels.items()]
        if not policies:
            raise UnreadableFile("no policy selects a node with these labels")
    nodes = {f"{key}={value}" for policy in policies for key, value in policy.nodes.items()}
    if nodes:
        draft.about.append(
            f"For the nodes with the labels {', '.join(sorted(nodes))}: label them for a pool of this file."
        )
    policies.sort(key=lambda policy: policy.priority, reverse=True)
    by_name: dict[str, list[Policy]] = {}
    for policy in policies:
        name = foreign_text(policy.fields.get("resourceName", ""), f"{policy.place}.spec.resourceName")
        if not name:
            raise UnreadableFile(f"{policy.place}.spec has no resourceName")
        by_name.setdefault(name, []).append(policy)
        _add_vfs(draft, policy)
    for name, joined in by_name.items():
        _add_joined(draft, name, joined)
    keep_apart(draft)
    return draft


def _policies(draft: Draft, files: Sequence[tuple[str, str]]) -> list[Policy]:
    found: list[Policy] = []
    for name, text in files:
        for place, fields in objects(text, name):
            metadata = fields.get("metadata")
            own = metadata.get("name") if isinstance(metadata, dict) else None
            where = f"{name}: {own}" if isinstance(own, str) else place
            kind = fields.get("kind")
            if kind in _NETWORKS:
                draft.lose(
                    where,
                    f"the operator makes a NetworkAttachmentDefinition of a {kind} and removes it with it; keep that "
                    "one: kubectl get network-attachment-definitions -A -o yaml",
                )
            elif kind == "SriovNetworkPoolConfig":
                draft.lose(
                    where, "nodeagent drains no node; `nodeagent vfs apply` touches no VF that a pod holds"
                )
            elif kind != "SriovNetworkNodePolicy":
                draft.note(where, f"{quote(str(kind))} is not read")
            elif own != _DEFAULT_POLICY:  # which the operator ignores
                found.append(_policy(draft, where, fields.get("spec")))
    if not found:
        raise UnreadableFile(f"{', '.join(name for name, _ in files)}: no SriovNetworkNodePolicy in it")
    return found


def _policy(draft: Draft, place: str, spec: Any) -> Policy:
    fields, unknown = known(spec, f"{place}.spec", SRIOV_POLICY)
    nic, of_nic = known(fields.get("nicSelector", {}), f"{place}.spec.nicSelector", SRIOV_NIC_SELECTOR)
    note_unknown(draft, f"{place}.spec", unknown)
    note_unknown(draft, f"{place}.spec.nicSelector", of_nic)
    if fields.get("eSwitchMode") == "legacy":
        del fields["eSwitchMode"]
    lose_used(draft, f"{place}.spec", fields, SRIOV_POLICY)
    lose_used(draft, f"{place}.spec.nicSelector", nic, SRIOV_NIC_SELECTOR)
    nodes = fields.get("nodeSelector", {})
    if not isinstance(nodes, dict) or not all(isinstance(value, str) for value in nodes.values()):
        raise UnreadableFile(f"{place}.spec.nodeSelector must be labels")
    kind = foreign_text(fields.get("deviceType", "netdevice"), f"{place}.spec.deviceType")
    if kind not in ("netdevice", "vfio-pci"):
        raise UnreadableFile(f"{place}.spec.deviceType is {quote(kind)}, must be netdevice or vfio-pci")
    if (link := fields.get("linkType")) is not None and str(link).lower() not in _TYPES:
        raise UnreadableFile(f"{place}.spec.linkType is {quote(str(link))}, must be eth or ib")
    return Policy(
        place, nodes, whole_number(fields.get("priority", "0"), f"{place}.spec.priority"), fields, nic
    )


def _selector(policy: Policy) -> Selector:
    place, nic, fields = f"{policy.place}.spec.nicSelector", policy.nic, policy.fields
    vfio = fields.get("deviceType") == "vfio-pci"
    link = str(fields.get("linkType", "")).lower()
    vendor, device = (foreign_text(nic.get(key, ""), f"{place}.{key}") for key in ("vendor", "deviceID"))
    return Selector(
        vendors=[vendor] if vendor else [],
        pf_devices=[device] if device else [],
        drivers=["vfio-pci"] if vfio else [],
        pf_names=texts(nic.get("pfNames", []), f"{place}.pfNames"),
        root_devices=texts(nic.get("rootDevices", []), f"{place}.rootDevices"),
        link_types=[_TYPES[link]] if link and not vfio else [],
        is_rdma=truth(fields.get("isRdma", "false"), f"{policy.place}.spec.isRdma"),
    )


def _unsafe(policy: Policy) -> str | None:
    """Why the policy's resource is left out: without this key more would be selected."""
    if in_use(policy.nic.get("netFilter", "")):
        return "without netFilter it would select more"
    if in_use(policy.fields.get("vdpaType", "")):
        return "without vdpaType it would select more"
    if not (policy.nic.keys() & {"vendor", "deviceID", "rootDevices", "pfNames"}):
        return "nicSelector is empty"
    return None


def _joined(policies: Sequence[Policy], *, whole: bool) -> Selector:
    """Join each list of policies with one resource name, as the operator does. ``whole``: they make no VFs."""
    selectors = [_selector(policy) for policy in policies]

    def all_of(field: str) -> list[str]:
        return list(dict.fromkeys(value for selector in selectors for value in getattr(selector, field)))

    drivers = [] if any(not selector.drivers for selector in selectors) else ["vfio-pci"]
    return Selector(
        vendors=all_of("vendors"),
        pf_devices=all_of("pf_devices"),
        drivers=drivers,
        pf_names=all_of("pf_names"),
        root_devices=all_of("root_devices"),
        link_types=all_of("link_types"),
        is_rdma=selectors[0].is_rdma,
        whole=whole,
    )


def _add_joined(draft: Draft, name: str, policies: Sequence[Policy]) -> None:
    first = policies[0]
    whole = {_count(policy) == 0 for policy in policies}
    selection = select_vfs(_joined(policies, whole=whole == {True}))
    for key, why in selection.lost:
        draft.lose(f"{first.place}.spec.nicSelector.{key}", why)
    for key, text in selection.notes:
        draft.note(f"{first.place}.spec.nicSelector.{key}", text)
    for policy in policies:
        selection.unsafe = selection.unsafe or _unsafe(policy)
        if not (policy.nic.keys() & {"vendor", "deviceID", "rootDevices", "pfNames", "netFilter"}):
            draft.lose(f"{policy.place}.spec.nicSelector", "it selects no NIC by a key; name the PFs")
    if len(whole) > 1:
        draft.lose(
            f"{first.place}.spec.numVfs",
            f"{quote(name)} has VFs of some policies and NICs without VFs (numVfs: 0) of others; give these a name of "
            "their own, for an entry of kind nic",
        )
    vhost = truth(first.fields.get("needVhostNet", "false"), f"{first.place}.spec.needVhostNet")
    add_resource(draft, " and ".join(policy.place for policy in policies), name, selection, vhost=vhost)


def _count(policy: Policy) -> int:
    return whole_number(policy.fields.get("numVfs", "0"), f"{policy.place}.spec.numVfs")


def _add_vfs(draft: Draft, policy: Policy) -> None:
    place, fields = f"{policy.place}.spec", policy.fields
    count = _count(policy)
    if truth(fields.get("externallyManaged", "false"), f"{place}.externallyManaged"):
        draft.note(f"{place}.externallyManaged", "no entry of vfs: something else creates these VFs")
        return
    if count == 0:
        return
    selector = _selector(policy)
    # VFs that do not exist yet have no driver, and a link type that the operator would switch is not that of the PF.
    selection = select_vfs(
        Selector(
            vendors=selector.vendors,
            pf_devices=selector.pf_devices,
            pf_names=selector.pf_names,
            root_devices=selector.root_devices,
            link_types=selector.link_types,
        )
    )
    select = dict(selection.select)
    indexes = select.pop("vfIndexes", None)
    settings: dict[str, Any] = {"select": select, "count": count}
    mtu = whole_number(fields.get("mtu", "0"), f"{place}.mtu")
    if mtu:
        settings["mtu"] = mtu
    if selector.drivers:
        settings["driver"] = "vfio-pci"
    if str(fields.get("linkType", "")).lower() == "ib":
        settings["guid"] = "auto"
        draft.note(f"{place}.linkType", "guid: auto gives the VFs GUIDs that a reboot does not change")
    if selector.link_types:
        draft.note(
            f"{place}.linkType", "it selects PFs with this link type; nodeagent switches no port to it"
        )
    if indexes is not None and ("driver" in settings or "guid" in settings):
        settings["vfIndexes"] = indexes
    if any(entry.settings == settings and entry.why_off is None for entry in draft.vfs):
        return
    draft.vfs.append(DraftEntry(policy.place, settings, selection.unsafe or _unsafe(policy)))
