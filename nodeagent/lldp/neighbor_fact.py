"""Convert an LLDPDU to the fact ``Neighbor``. Pure."""

from __future__ import annotations

from nodeagent.facts.model import Ets, Identifier, Neighbor
from nodeagent.lldp.escaping import printable
from nodeagent.lldp.lldpdu import ALGORITHM_WORDS, Lldpdu, capability_words


def neighbor_of(link: str, pdu: Lldpdu) -> Neighbor:
    """Convert an LLDPDU to a neighbor.

    An empty text becomes ``None``, and so does VLAN ID 0, which means "no port VLAN" (802.1Q D.2.1).
    """
    enabled = pdu.capabilities.enabled if pdu.capabilities else 0
    return Neighbor(
        link=link,
        chassis_id=Identifier(pdu.chassis_id.word, printable(pdu.chassis_id.text)),
        port_id=Identifier(pdu.port_id.word, printable(pdu.port_id.text)),
        system_name=_text(pdu.system_name),
        system_description=_text(pdu.system_description),
        port_description=_text(pdu.port_description),
        management_addresses=tuple(printable(address.text) for address in pdu.management_addresses),
        capabilities=capability_words(enabled),
        pvid=pdu.pvid or None,
        maximum_frame_size=pdu.maximum_frame_size,
        pfc=pdu.pfc.priorities if pdu.pfc else None,
        ets=Ets(
            tuple(pdu.ets.classes),
            tuple(pdu.ets.bandwidth),
            tuple(ALGORITHM_WORDS.get(number, f"algorithm-{number}") for number in pdu.ets.algorithms),
        )
        if pdu.ets
        else None,
    )


def _text(text: str | None) -> str | None:
    return printable(text) or None if text is not None else None
