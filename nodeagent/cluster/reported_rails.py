"""The rails of this node in its own NodeLinks report: the second memory, for a node whose file of rails is gone.

It is read before anything is offered, so it has ``REPORT_S``. The API server lets only the agent of this node write the
report, and its content is nevertheless checked as that of a stranger: a rail without a valid number and PCI address,
or at an address that another link has too, is left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nodeagent.fabric.nodelinks import NodeLink, NodeLinks
from nodeagent.kinds.rail_numbers import Rail, Rails
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS

if TYPE_CHECKING:
    from nodeagent.kube.access import Access

log = logging.getLogger(__name__)

REPORT_S = 3.0
RAIL_MAX = 255
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_REPORT = NODELINKS.typed(NodeLinks)


async def read(access: Access, node: str) -> Rails:
    """Return the rails of the report; none if it cannot be read within ``REPORT_S``."""
    client = ApiClient(access, timeout_s=REPORT_S)
    try:
        async with asyncio.timeout(REPORT_S):
            report = await client.get(_REPORT, node, namespace=access.namespace)
    except (ApiError, TimeoutError) as error:
        if isinstance(error, ApiError) and error.missing:
            return ()
        log.warning(
            "The file of the rails is gone, and the report of this node cannot be read; NICs without a held VF are "
            "numbered in PCI order. reason=%r",
            str(error) or f"no answer within {REPORT_S:g} s",
        )
        return ()
    finally:
        await client.close()
    if report.node_name != node:
        log.warning("A report with the name of this node is that of another one. node=%r", report.node_name)
        return ()
    rails = rails_of(report)
    if rails:
        log.warning(
            "The file of the rails is gone; the numbers are those of the report of this node. rails=%s",
            ",".join(f"{rail.number}={rail.pci_address}" for rail in rails),
        )
    return rails


def rails_of(report: NodeLinks) -> Rails:
    """Return the rails that the report has without a contradiction. A number may occur once for each selection.

    A MAC address is that of the netdev: where a bond has changed it, no card has it, and the PCI address decides.
    """
    found = list(_valid(report))
    addresses = Counter(link.pci_address for link in found)
    macs = Counter(link.mac for link in found)
    rails = (
        Rail(link.rail, link.pci_address, link.mac if link.mac and macs[link.mac] == 1 else None)
        for link in found
        if link.rail is not None and addresses[link.pci_address] == 1
    )
    valid = (
        rail if _MAC.fullmatch(rail.permanent_mac or "") else Rail(rail.number, rail.pci_address)
        for rail in rails
    )
    return tuple(sorted(valid, key=lambda rail: rail.number))


def _valid(report: NodeLinks) -> Iterator[NodeLink]:
    for link in report.links:
        if link.rail is not None and 0 <= link.rail <= RAIL_MAX and _PCI.fullmatch(link.pci_address or ""):
            yield link
