"""LLDPDUs as JSON objects and as lines for a person: what ``nodeagent decode`` prints.

An absent TLV is an absent key. Text is valid Unicode; JSON's own escapes make it safe for a terminal.
Offsets in errors and warnings count from the start of the captured frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from nodeagent.lldp.escaping import family_word, mac, object_identifier, plain, printable
from nodeagent.lldp.ethernet import Frame
from nodeagent.lldp.lldpdu import (
    ALGORITHM_WORDS,
    INTERFACE_WORDS,
    SELECTOR_WORDS,
    Ets,
    EtsRecommendation,
    LinkAggregation,
    Lldpdu,
    LldpError,
    ManagementAddress,
    Med,
    capability_words,
)
from nodeagent.lldp.lldpdu_codec import decode
from nodeagent.lldp.pcap import Capture, Packet, lldp_frames
from nodeagent.rfc3339 import rfc3339

Json = dict[str, Any]


def lines(capture: Capture, as_json: bool) -> Iterator[str]:
    """One line for each LLDP frame of a pcap or pcapng file. Raises ``PcapError`` where the file breaks."""
    for found in decode_file(capture):
        yield json.dumps(found, separators=(", ", ": ")) if as_json else line(found)


def decode_file(capture: Capture) -> Iterator[Json]:
    """The JSON object of each LLDP frame: what it says, or ``error`` when it is no valid LLDPDU."""
    for packet, frame in lldp_frames(capture):
        yield _described(packet, frame)


def _described(packet: Packet, frame: Frame) -> Json:
    found: Json = {"frame": packet.number, "time": packet.time}
    if frame.destination is not None:
        found["destination"] = mac(frame.destination)
    if frame.source is not None:
        found["source"] = mac(frame.source)
    if frame.vlans:
        found["tags"] = list(frame.vlans)
    cut = ""
    if len(packet.data) < packet.length:
        cut = f"the capture kept {len(packet.data)} of {packet.length} bytes"
    try:
        pdu = decode(frame.data, frame.offset)
    except LldpError as error:
        return {"frame": packet.number, "error": f"{error} ({cut})" if cut else str(error)}
    found |= describe(pdu)
    if cut:
        found["warnings"] = [*found.get("warnings", ()), cut]
    return found


def describe(pdu: Lldpdu) -> Json:
    """The object of one LLDPDU; keys in the order of the standard's TLVs."""
    found: Json = {
        "chassis_id": {"subtype": pdu.chassis_id.word, "value": plain(pdu.chassis_id.text)},
        "port_id": {"subtype": pdu.port_id.word, "value": plain(pdu.port_id.text)},
        "ttl": pdu.ttl,
    }
    for name in ("port_description", "system_name", "system_description"):
        text = getattr(pdu, name)
        if text is not None:
            found[name] = plain(text)
    if pdu.capabilities is not None:
        found["capabilities"] = {
            "supported": list(capability_words(pdu.capabilities.supported)),
            "enabled": list(capability_words(pdu.capabilities.enabled)),
        }
    if pdu.management_addresses:
        found["management_addresses"] = [_management(each) for each in pdu.management_addresses]
    found |= _ieee(pdu)
    if pdu.med is not None:
        found["med"] = _med(pdu.med)
    if pdu.organizational:
        found["organizational"] = [
            {"oui": each.oui.hex("-"), "subtype": each.subtype, "hex": each.value.hex()}
            for each in pdu.organizational
        ]
    if pdu.reserved:
        found["reserved"] = [{"type": each.type, "hex": each.value.hex()} for each in pdu.reserved]
    if pdu.warnings:
        found["warnings"] = list(pdu.warnings)
    return found


def _ieee(pdu: Lldpdu) -> Json:
    """What 802.1 and 802.3 added."""
    found: Json = {}
    if pdu.pvid is not None:
        found["pvid"] = pdu.pvid
    if pdu.ppvids:
        found["ppvids"] = [
            {"id": each.vid, "supported": each.supported, "enabled": each.enabled} for each in pdu.ppvids
        ]
    if pdu.vlans:
        found["vlans"] = [{"id": each.vid, "name": plain(each.name)} for each in pdu.vlans]
    aggregation = pdu.link_aggregation or pdu.link_aggregation_8023
    if aggregation is not None:
        found["link_aggregation"] = _aggregation(aggregation)
    if pdu.mac_phy is not None:
        found["mac_phy"] = {
            "autonegotiation": {
                "supported": pdu.mac_phy.autonegotiation_supported,
                "enabled": pdu.mac_phy.autonegotiation_enabled,
            },
            "advertised": pdu.mac_phy.advertised,
            "mau": pdu.mac_phy.mau,
        }
    if pdu.maximum_frame_size is not None:
        found["maximum_frame_size"] = pdu.maximum_frame_size
    dcbx = _dcbx(pdu)
    if dcbx:
        found["dcbx"] = dcbx
    return found


def line(found: Json) -> str:
    """One line for a person, from what ``decode_file`` gave. Nothing in it can move a cursor."""
    if "error" in found:
        return f"{found['frame']:>6}  error: {found['error']}"
    chassis, port = found["chassis_id"], found["port_id"]
    parts = [
        f"{found['frame']:>6}",
        _clock(found["time"]),
        found.get("source", "?"),
        f"chassis {chassis['subtype']} {_shown(chassis['value'])}",
        f"port {port['subtype']} {_shown(port['value'])}",
        "shutdown" if found["ttl"] == 0 else f"ttl {found['ttl']}",
    ]
    if found.get("system_name"):
        parts.append(f"name {_shown(found['system_name'])}")
    if found.get("port_description"):
        parts.append(f"description {_shown(found['port_description'])}")
    parts.extend(f"management {_shown(each['address'])}" for each in found.get("management_addresses", ()))
    if "pvid" in found:
        parts.append(f"pvid {found['pvid']}")
    parts.extend(f"warning: {_shown(each)}" for each in found.get("warnings", ()))
    return "  ".join(parts)


def _clock(time: float | None) -> str:
    if time is None:
        return "-"
    try:
        return rfc3339(time, "microseconds")
    except (ValueError, OverflowError, OSError):  # a capture may claim any year
        return f"{time:.6f}"


def _shown(text: str) -> str:
    """Printable, without doubling the backslashes of escapes that ``plain`` has made."""
    return printable(text).replace("\\\\", "\\")


def _management(value: ManagementAddress) -> Json:
    found: Json = {
        "family": family_word(value.family),
        "address": plain(value.text),
        "interface": {
            "subtype": INTERFACE_WORDS.get(value.interface_subtype, str(value.interface_subtype)),
            "number": value.interface_number,
        },
    }
    if value.oid:
        found["oid"] = object_identifier(value.oid)
    return found


def _aggregation(value: LinkAggregation) -> Json:
    return {"capable": value.capable, "enabled": value.enabled, "port_id": value.port_id}


def _tables(value: Ets | EtsRecommendation) -> Json:
    return {
        "classes": list(value.classes),
        "bandwidth": list(value.bandwidth),
        "algorithms": [ALGORITHM_WORDS.get(each, str(each)) for each in value.algorithms],
    }


def _dcbx(pdu: Lldpdu) -> Json:
    found: Json = {}
    if pdu.ets is not None:
        found["ets"] = {
            "willing": pdu.ets.willing,
            "credit_based_shaper": pdu.ets.credit_based_shaper,
            "max_classes": pdu.ets.max_classes,
            **_tables(pdu.ets),
        }
    if pdu.ets_recommendation is not None:
        found["ets_recommendation"] = _tables(pdu.ets_recommendation)
    if pdu.pfc is not None:
        found["pfc"] = {
            "willing": pdu.pfc.willing,
            "macsec_bypass": pdu.pfc.macsec_bypass,
            "capability": pdu.pfc.capability,
            "enabled": list(pdu.pfc.priorities),
        }
    if pdu.applications is not None:
        found["applications"] = [
            {
                "priority": each.priority,
                "selector": SELECTOR_WORDS.get(each.selector, str(each.selector)),
                "protocol": each.protocol,
            }
            for each in pdu.applications
        ]
    return found


def _med(value: Med) -> Json:
    found: Json = {}
    if value.capabilities is not None:
        found["capabilities"] = value.capabilities.bits
        found["device_class"] = value.capabilities.device_class
    for each in fields(value)[1:]:
        text = getattr(value, each.name)
        if text is not None:
            found[each.name] = plain(text)
    return found
