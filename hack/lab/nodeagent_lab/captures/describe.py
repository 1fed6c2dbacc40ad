"""Print LLDPDUs as JSON objects or as text lines, for ``nodeagent decode``.

An absent TLV is an absent key. Text is valid Unicode; JSON's own escapes make it safe for a terminal.
Offsets in errors and warnings count from the start of the captured frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.console.json_document import camel
from nodeagent.facts.model import ets_algorithm
from nodeagent.lldp.escaping import family_word, mac, object_identifier, printable, valid_unicode
from nodeagent.lldp.ethernet import Frame
from nodeagent.lldp.lldpdu import (
    INTERFACE_WORDS,
    SELECTOR_WORDS,
    EtsConfiguration,
    EtsRecommendation,
    LinkAggregation,
    Lldpdu,
    LldpError,
    ManagementAddress,
    Med,
    capability_words,
)
from nodeagent.lldp.lldpdu_codec import decode
from nodeagent_lab.captures.pcap import Capture, Packet, lldp_frames

Json = dict[str, Any]


def lines(capture: Capture, as_json: bool) -> Iterator[str]:
    """One line for each LLDP frame of a pcap or pcapng file. Raises ``PcapError`` at a malformed packet."""
    for decoded in decode_file(capture):
        yield json.dumps(camel(decoded), separators=(", ", ": ")) if as_json else line(decoded)


def decode_file(capture: Capture) -> Iterator[Json]:
    """The JSON object of each LLDP frame: its values, or ``error`` if the LLDPDU is invalid."""
    for packet, frame in lldp_frames(capture):
        yield _described(packet, frame)


def _described(packet: Packet, frame: Frame) -> Json:
    output: Json = {"frame": packet.number, "time": packet.time}
    if frame.destination is not None:
        output["destination"] = mac(frame.destination)
    if frame.source is not None:
        output["source"] = mac(frame.source)
    if frame.vlans:
        output["tags"] = list(frame.vlans)
    cut = ""
    if len(packet.data) < packet.length:
        cut = f"the capture kept {len(packet.data)} of {packet.length} bytes"
    try:
        pdu = decode(frame.data, frame.offset)
    except LldpError as error:
        return {"frame": packet.number, "error": f"{error} ({cut})" if cut else str(error)}
    output |= describe(pdu)
    if cut:
        output["warnings"] = [*output.get("warnings", ()), cut]
    return output


def describe(pdu: Lldpdu) -> Json:
    """The object of one LLDPDU; keys in the order of the standard's TLVs."""
    output: Json = {
        "chassis_id": {"subtype": pdu.chassis_id.word, "value": valid_unicode(pdu.chassis_id.text)},
        "port_id": {"subtype": pdu.port_id.word, "value": valid_unicode(pdu.port_id.text)},
        "ttl": pdu.ttl,
    }
    for name in ("port_description", "system_name", "system_description"):
        text = getattr(pdu, name)
        if text is not None:
            output[name] = valid_unicode(text)
    if pdu.capabilities is not None:
        output["capabilities"] = {
            "supported": list(capability_words(pdu.capabilities.supported)),
            "enabled": list(capability_words(pdu.capabilities.enabled)),
        }
    if pdu.management_addresses:
        output["management_addresses"] = [_management(item) for item in pdu.management_addresses]
    output |= _ieee(pdu)
    if pdu.med is not None:
        output["med"] = _med(pdu.med)
    if pdu.organizational:
        output["organizational"] = [
            {"oui": item.oui.hex("-"), "subtype": item.subtype, "hex": item.value.hex()}
            for item in pdu.organizational
        ]
    if pdu.reserved:
        output["reserved"] = [{"type": item.type, "hex": item.value.hex()} for item in pdu.reserved]
    if pdu.warnings:
        output["warnings"] = list(pdu.warnings)
    return output


def _ieee(pdu: Lldpdu) -> Json:
    """The TLVs of 802.1 and 802.3."""
    output: Json = {}
    if pdu.pvid is not None:
        output["pvid"] = pdu.pvid
    if pdu.ppvids:
        output["ppvids"] = [
            {"id": item.vid, "supported": item.supported, "enabled": item.enabled} for item in pdu.ppvids
        ]
    if pdu.vlans:
        output["vlans"] = [{"id": item.vid, "name": valid_unicode(item.name)} for item in pdu.vlans]
    aggregation = pdu.link_aggregation or pdu.link_aggregation_8023
    if aggregation is not None:
        output["link_aggregation"] = _aggregation(aggregation)
    if pdu.mac_phy is not None:
        output["mac_phy"] = {
            "autonegotiation": {
                "supported": pdu.mac_phy.autonegotiation_supported,
                "enabled": pdu.mac_phy.autonegotiation_enabled,
            },
            "advertised": pdu.mac_phy.advertised,
            "mau": pdu.mac_phy.mau,
        }
    if pdu.maximum_frame_size is not None:
        output["maximum_frame_size"] = pdu.maximum_frame_size
    dcbx = _dcbx(pdu)
    if dcbx:
        output["dcbx"] = dcbx
    return output


def line(decoded: Json) -> str:
    """One text line of an object of ``decode_file``. No character of it can move a cursor."""
    if "error" in decoded:
        return f"{decoded['frame']:>6}  error: {decoded['error']}"
    chassis, port = decoded["chassis_id"], decoded["port_id"]
    addresses = decoded.get("management_addresses", ())
    parts = [
        f"{decoded['frame']:>6}",
        _clock(decoded["time"]),
        decoded.get("source", "?"),
        f"chassis {chassis['subtype']} {_escaped(chassis['value'])}",
        f"port {port['subtype']} {_escaped(port['value'])}",
        "shutdown" if decoded["ttl"] == 0 else f"ttl {decoded['ttl']}",
    ]
    if decoded.get("system_name"):
        parts.append(f"name {_escaped(decoded['system_name'])}")
    if decoded.get("port_description"):
        parts.append(f"description {_escaped(decoded['port_description'])}")
    parts.extend(f"management {_escaped(address['address'])}" for address in addresses)
    if "pvid" in decoded:
        parts.append(f"pvid {decoded['pvid']}")
    parts.extend(f"warning: {_escaped(warning)}" for warning in decoded.get("warnings", ()))
    return "  ".join(parts)


def _clock(time: float | None) -> str:
    if time is None:
        return "-"
    try:
        return rfc3339(time, "microseconds")
    except (ValueError, OverflowError, OSError):  # a capture may contain any year
        return f"{time:.6f}"


def _escaped(text: str) -> str:
    """Printable text, without doubling the backslashes of escapes that ``plain`` has made."""
    return printable(text).replace("\\\\", "\\")


def _management(value: ManagementAddress) -> Json:
    output: Json = {
        "family": family_word(value.family),
        "address": valid_unicode(value.text),
        "interface": {
            "subtype": INTERFACE_WORDS.get(value.interface_subtype, str(value.interface_subtype)),
            "number": value.interface_number,
        },
    }
    if value.oid:
        output["oid"] = object_identifier(value.oid)
    return output


def _aggregation(value: LinkAggregation) -> Json:
    return {"capable": value.capable, "enabled": value.enabled, "port_id": value.port_id}


def _tables(value: EtsConfiguration | EtsRecommendation) -> Json:
    return {
        "classes": list(value.classes),
        "bandwidth": list(value.bandwidth),
        "algorithms": list(map(ets_algorithm, value.algorithms)),
    }


def _dcbx(pdu: Lldpdu) -> Json:
    output: Json = {}
    if pdu.ets is not None:
        output["ets"] = {
            "willing": pdu.ets.willing,
            "credit_based_shaper": pdu.ets.credit_based_shaper,
            "max_classes": pdu.ets.max_classes,
            **_tables(pdu.ets),
        }
    if pdu.ets_recommendation is not None:
        output["ets_recommendation"] = _tables(pdu.ets_recommendation)
    if pdu.pfc is not None:
        output["pfc"] = {
            "willing": pdu.pfc.willing,
            "macsec_bypass": pdu.pfc.macsec_bypass,
            "capability": pdu.pfc.capability,
            "enabled": list(pdu.pfc.priorities),
        }
    if pdu.applications is not None:
        output["applications"] = [
            {
                "priority": item.priority,
                "selector": SELECTOR_WORDS.get(item.selector, str(item.selector)),
                "protocol": item.protocol,
            }
            for item in pdu.applications
        ]
    return output


def _med(value: Med) -> Json:
    output: Json = {}
    if value.capabilities is not None:
        output["capabilities"] = value.capabilities.bits
        output["device_class"] = value.capabilities.device_class
    for name in Med.__struct_fields__[1:]:
        text = getattr(value, name)
        if text is not None:
            output[name] = valid_unicode(text)
    return output
