"""The identity of a NIC at any PCI address: in rails, reports, cordons and the records of its health.

Each kind of link has one value that belongs to the card (``IDENTITIES``):

* Ethernet: the permanent MAC address, in the memory of the card. A bond changes the address of the netdev alone.
* InfiniBand: the node GUID of the RDMA device (IBTA volume 1, 14.2.5.3, NodeInfo). The address of IPoIB identifies no
  card: it begins with the number of a queue pair, which the driver gives at each start, and a link needs no IPoIB.

A MAC address and a GUID never look alike, so one text holds either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from nodeagent.facts.model import ETHERNET, INFINIBAND, Function, Link

_ETHERNET = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")


def ethernet_mac(mac: str | None) -> str | None:
    """``None`` for the address of IPoIB, whose first bytes change, and for one of zeros."""
    return _valid(mac, _ETHERNET)


def node_guid(guid: str | None) -> str | None:
    """``None`` for a GUID of zeros: that of a VF that nobody has configured."""
    return _valid(guid, _GUID)


def _valid(text: str | None, form: re.Pattern[str]) -> str | None:
    text = text.strip().lower() if text else ""
    return text if form.fullmatch(text) and text.strip("0:") else None


IDENTITIES: Mapping[str, Callable[[Function, Link | None], str | None]] = {
    ETHERNET: lambda _pf, link: ethernet_mac(link.permanent_mac) if link is not None else None,
    INFINIBAND: lambda pf, _link: node_guid(pf.rdma.node_guid) if pf.rdma is not None else None,
}
"""By the type of the link: how the identity of a PF is read."""


def card_identity(pf: Function, link: Link | None) -> str | None:
    """The permanent MAC address or the node GUID of a PF; ``None`` if it cannot be read."""
    return IDENTITIES[pf.link_type or ETHERNET](pf, link)


def valid_identity(text: str | None) -> str | None:
    """A stored identity; ``None`` for the address of IPoIB, which earlier agents stored too."""
    mac, guid = mac_and_guid(text)
    return mac or guid


def mac_and_guid(identity: str | None) -> tuple[str | None, str | None]:
    """An identity as permanent MAC address and as node GUID; at most one of them is known.

    >>> mac_and_guid("0c42:a103:0016:054c")
    (None, '0c42:a103:0016:054c')
    """
    return ethernet_mac(identity), node_guid(identity)
