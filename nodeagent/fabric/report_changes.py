"""The differences of two reports of a node: states of links, and switch ports at their other ends."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.base.change_log import Change
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.reports import STATE_LETTERS, CompactReport

_STATES = {letter: state for state, letter in STATE_LETTERS.items()}


def report_changes(
    before: CompactReport, after: CompactReport, reported: NodeLinks, at: float
) -> Iterator[Change]:
    """``reported`` is the report that ``after`` was made of. A link or a neighbor that was not known is no change."""
    links = {link.name: link for link in reported.links}
    earlier = {key: text for key, text, _ in _facts(before)}
    for (what, name), text, stale in _facts(after):
        known = earlier.get((what, name))
        if known is None or known == text or stale or (link := links.get(name)) is None:
            continue
        rail = None if link.rail is None or f"nic{link.rail}" in links else f"nic{link.rail}"
        switch = link.neighbor and (link.neighbor.system_name or link.neighbor.chassis_id.value)
        details = (link.reason_details or link.reasons) if what == "nic" else ()
        names = (
            rail,
            link.netdev,
            link.pci_address,
            switch,
            known.partition(" ")[0] if what != "nic" else None,
        )
        found = tuple(dict.fromkeys(it for it in names if it and it != name))
        yield Change(at, what, name, known, text, details, found, reported.node_name)


def _facts(report: CompactReport) -> Iterator[tuple[tuple[str, str], str, bool]]:
    """The kind and the link, the fact in words, and whether it is a neighbor's that has expired."""
    names = (*(slot.link for slot in report.shape), *(other.link for other in report.others))
    for name, letter in zip(names, report.states, strict=False):
        yield ("nic", name), _STATES[letter], False
    for i, (slot, port) in enumerate(zip(report.shape, report.ports, strict=True)):
        if slot.neighbor is not None:
            switch = slot.neighbor.name or slot.neighbor.chassis
            yield ("neighbor", slot.link), f"{switch} {port}".rstrip(), i in report.stale
