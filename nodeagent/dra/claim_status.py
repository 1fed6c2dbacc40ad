"""The status of the devices of a prepared claim, as ``status.devices`` has it (KEP-4817). Pure.

Each result of the allocation has one entry: whether it is prepared, its health, and for a VF what a reader of the
cluster cannot know otherwise: which VF of the PF it is, its MAC address and its netdev on the host. They are those of
now while the host has the netdev, and of the moment when the claim was prepared once a CNI plugin has moved it.
Where `nodeagent attach` moves it, they are its name and its addresses in the pod. Otherwise addresses are not known: a
CNI plugin sets them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nodeagent.dra import DRIVER
from nodeagent.dra.devices import DraDevice
from nodeagent.dra.prepared_claim import PreparedClaim, PreparedDevice, VfInterface
from nodeagent.facts.model import Function, Health, PodNetdev, State

_Json = dict[str, Any]

VFS_MAX = 16
"""VFs that the data of one entry names; its limit is 10 KiB (types.go, AllocatedDeviceStatusDataMaxLength)."""
_MESSAGE_MAX = 1024
READY, HEALTHY = "Ready", "Healthy"
_NO_MAC = "00:00:00:00:00:00"
_NETWORK = ("interfaceName", "hardwareAddress", "ips")
_IPS_MAX = 16
"""types.go, NetworkDeviceDataMaxIPs."""


def device_statuses(
    record: PreparedClaim,
    devices: Mapping[str, DraDevice],
    functions: Mapping[str, Function],
    netdevs: Mapping[str, PodNetdev] | None = None,
) -> list[_Json]:
    """Return the entries of a claim, without the times of their conditions.

    ``devices`` are those of the node by name, ``functions`` its PCI functions by address, and ``netdevs`` those of VFs
    in pods, ``None`` while they are not known: they are then as they were planned.
    """
    entries: dict[tuple[Any, ...], _Json] = {}
    for device in record.devices:
        entry: _Json = {"driver": DRIVER, "pool": device.pool, "device": device.device}
        if device.share_id is not None:
            entry["shareID"] = device.share_id
        interfaces = tuple(
            _present(_in_pod(it, record, netdevs), functions.get(it.pci_address)) for it in device.interfaces
        )
        seen = msgspec.structs.replace(device, interfaces=interfaces)
        health = _health(device, devices.get(device.device), functions)
        conditions = [_condition(READY, "True", "Prepared", "the container gets the device by CDI"), health]
        entry |= {"conditions": conditions, "data": _data(seen)}
        if network := _network(seen):
            entry["networkData"] = network
        entries.setdefault(key(entry), entry)
    return list(entries.values())


def key(entry: _Json) -> tuple[Any, ...]:
    """Return what identifies an entry in ``status.devices``."""
    return entry.get("driver"), entry.get("pool"), entry.get("device"), entry.get("shareID")


def own_entries(claim: _Json) -> list[_Json]:
    """Return the entries of this driver in a claim as the API server stores it, without what others add to them."""
    entries = (claim.get("status") or {}).get("devices") or ()
    return [_own_part(entry) for entry in entries if entry.get("driver") == DRIVER]


def _own_part(entry: _Json) -> _Json:
    """Any writer may add a condition of its own."""
    network = {name: value for name, value in (entry.get("networkData") or {}).items() if name in _NETWORK}
    conditions = [it for it in entry.get("conditions") or () if it.get("type") in (READY, HEALTHY)]
    others = {name: value for name, value in entry.items() if name != "networkData"}
    return {**others, "conditions": conditions, **({"networkData": network} if network else {})}


def same(entries: Iterable[_Json], stored: Iterable[_Json]) -> bool:
    """Whether the entries differ in nothing but the times of conditions and their order. Where they have no addresses,
    those that are stored are a CNI plugin's."""
    wanted, found = _timeless(entries), _timeless(stored)
    for name, entry in found.items():
        if "ips" in entry.get("networkData", ()) and "ips" not in wanted.get(name, {}).get("networkData", ()):
            found[name] = _without_addresses(entry)
    return wanted == found


def _without_addresses(entry: _Json) -> _Json:
    network = {name: value for name, value in entry["networkData"].items() if name != "ips"}
    others = {name: value for name, value in entry.items() if name != "networkData"}
    return {**others, **({"networkData": network} if network else {})}


def with_times(entries: Sequence[_Json], stored: Iterable[_Json], now: str) -> list[_Json]:
    """Return the entries with the time since when each condition has its status: the stored one, or ``now``."""
    known = {
        (key(entry), condition.get("type"), condition.get("status")): condition.get("lastTransitionTime")
        for entry in stored
        for condition in entry.get("conditions") or ()
    }
    return [
        {
            **entry,
            "conditions": [
                {
                    **it,
                    "lastTransitionTime": known.get((key(entry), it["type"], it["status"])) or now,
                }
                for it in entry["conditions"]
            ],
        }
        for entry in entries
    ]


def _timeless(entries: Iterable[_Json]) -> dict[tuple[Any, ...], _Json]:
    found = {}
    for entry in entries:
        conditions = [
            {name: value for name, value in condition.items() if name != "lastTransitionTime"}
            for condition in entry.get("conditions") or ()
        ]
        found[key(entry)] = {**entry, "conditions": sorted(conditions, key=lambda it: str(it.get("type")))}
    return found


def _health(device: PreparedDevice, offered: DraDevice | None, functions: Mapping[str, Function]) -> _Json:
    """The health of a share: that of its VFs, or of its device."""
    found: list[Health] = []
    if device.vfs:
        found = [functions[vf].health for vf in device.vfs if vf in functions]
    elif offered is not None:
        found = [offered.health]
    if len(found) < max(1, len(device.vfs)):
        return _condition(HEALTHY, "Unknown", "NotFound", "the agent does not see the device now")
    health = next(
        (it for it in found if not it.allocatable), next((it for it in found if it.reasons), found[0])
    )
    status = "True" if health.allocatable else "False"
    if health.allocatable and health.state is State.UNKNOWN:
        status = "Unknown"
    text = "; ".join(f"{reason.key}: {reason.detail}" for reason in health.reasons)
    return _condition(HEALTHY, status, health.reasons[0].key if health.reasons else "NoFault", text)


def _condition(kind: str, status: str, reason: str, message: str) -> _Json:
    message = message.encode(errors="backslashreplace")[:_MESSAGE_MAX].decode(errors="ignore")
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _present(interface: VfInterface, function: Function | None) -> VfInterface:
    """The interface as the host has it now: a driver that is loaded again may give the netdev another name."""
    if function is None or function.netdev is None:
        return interface
    rdma = function.rdma.device if function.rdma is not None else interface.rdma
    return msgspec.structs.replace(
        interface, netdev=function.netdev, mac=function.mac or interface.mac, rdma=rdma
    )


def _in_pod(
    interface: VfInterface, record: PreparedClaim, netdevs: Mapping[str, PodNetdev] | None
) -> VfInterface:
    """The interface as it is in the pod of the claim now; on the host if it is in none of its pods."""
    if netdevs is None:
        return interface
    there = netdevs.get(interface.pci_address)
    if there is None or there.namespace != record.namespace or there.pod not in record.pods:
        return msgspec.structs.replace(interface, in_pod=None, addresses=())
    return msgspec.structs.replace(interface, in_pod=there.netdev, addresses=there.addresses)


def _data(device: PreparedDevice) -> _Json:
    if not device.amount:
        return {"adminAccess": True}
    if device.uuid:
        return {"uuid": device.uuid, "memoryMiB": device.amount}
    if device.hca:
        return {"hca": {"pciAddress": device.hca, "shares": device.amount}}
    known = {it.pci_address: it for it in device.interfaces}
    vfs = []
    for address in device.vfs[:VFS_MAX]:
        it = known.get(address)
        facts: _Json = {}
        if it is not None:
            facts = {"netdev": it.netdev, "mac": it.mac, "rdmaDevice": it.rdma}
            facts |= {"interface": it.in_pod, "ips": list(it.addresses)}
        vfs.append({"pciAddress": address, **{name: value for name, value in facts.items() if value}})
    more = {"more": len(device.vfs) - VFS_MAX} if len(device.vfs) > VFS_MAX else {}
    return {"vfs": vfs, **more}


def _network(device: PreparedDevice) -> _Json:
    """The network data of a share with one VF; there is room for one interface alone."""
    if len(device.vfs) != 1 or not device.interfaces:
        return {}
    return network_data(device.interfaces[0])


def network_data(interface: VfInterface) -> _Json:
    """Return the ``networkData`` of one VF; empty if the host knows nothing of it. On the host it has no addresses."""
    values: tuple[object, ...] = interface.in_pod or interface.netdev, interface.mac, None
    if interface.in_pod is not None:
        values = interface.in_pod, interface.mac, list(interface.addresses[:_IPS_MAX])
    named = zip(_NETWORK, values, strict=True)
    return {name: value for name, value in named if value and value != _NO_MAC}
