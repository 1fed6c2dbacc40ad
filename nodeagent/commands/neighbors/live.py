"""Listen for a while and say which switch port is at the other end of each link.

A table for people, JSON for programs. This needs no running agent and disturbs none: sockets of its own hear
the same frames, and nothing is transmitted, whatever the settings: a switch that hears us leave would take it
for the agent's farewell. Ages are told here and nowhere else, for they are no facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.sysfs import Tree
from nodeagent.lldp.link_remarks import OWN_FRAMES, SILENT, SILENT_AFTER_S, findings
from nodeagent.model import Finding, Function, Neighbor
from nodeagent.sources import lldpd_client, neighbor_table
from nodeagent.sources.link_selection import Selected, select
from nodeagent.sources.lldp_receiver import Dcb, Ear, Line
from nodeagent.sources.pci_source import scan
from nodeagent.sources.source_settings import LinkSelect, LldpSettings
from nodeagent.text_table import columns

WAIT_S = 35.0
"""A little more than the 30 s that a switch may take until it speaks again."""

_NOBODY = ("unheard", "silent")
COLUMNS = ("LINK", "PCI ADDRESS", "SWITCH", "PORT", "DESCRIPTION", "MANAGEMENT", "AGE", "STATE")


@dataclass(frozen=True, slots=True)
class Heard:
    """A neighbor, and how long ago it spoke last and for the first time; ``None`` where lldpd was asked."""

    neighbor: Neighbor
    age_s: float | None = None
    known_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One link. ``state`` is ``live``, ``stale``, ``unheard`` (carrier, but nobody has spoken yet), ``silent``
    (nor for so long that somebody should have: a finding says why), ``down`` (no carrier), ``away`` (its
    netdev has gone) or ``deaf`` (no socket could be had: ``trouble`` says why).
    """

    link: str
    pci_address: str | None
    driver: str | None
    state: str
    neighbors: tuple[Heard, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """``waited_s`` is how long a look that has ended was prepared to listen."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    waited_s: float | None = None

    @property
    def waiting(self) -> int:
        """Links with carrier on which nobody has been heard yet."""
        return sum(row.state in _NOBODY for row in self.rows)


async def once(
    wanted: LinkSelect,
    settings: LldpSettings,
    root: Path,
    wait_s: float = WAIT_S,
    progress: Callable[[str], object] = lambda _line: None,
    silent_after_s: float = SILENT_AFTER_S,
) -> Seen:
    """Listen until every link with carrier has been heard, or for ``wait_s``.

    Raises ``PacketError``, ``LldpdError``, ``NetlinkError`` or ``SysfsError``. ``progress`` gets lines for
    stderr.
    """
    if settings.source == "lldpd":
        return await _ask(wanted, settings, _functions(root))
    async with _listening(wanted, root, silent_after_s) as (ear, change):
        seen = _seen(ear)
        progress(_counted(seen, wait_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while seen.waiting:
                    await change()
                    before, seen = seen, _seen(ear)
                    if seen.waiting != before.waiting:
                        progress(_counted(seen, None))
        return replace(_seen(ear), waited_s=wait_s)


async def watch(wanted: LinkSelect, settings: LldpSettings, root: Path) -> AsyncIterator[Seen]:
    """A look now and one at every change, until cancelled."""
    if settings.source == "lldpd":
        seen: Seen | None = None
        while True:
            before, seen = seen, await _ask(wanted, settings, _functions(root))
            if seen != before:
                yield seen
            await asyncio.sleep(lldpd_client.EVERY_S)
    async with _listening(wanted, root) as (ear, change):
        while True:
            yield _seen(ear)
            await change()


def _functions(root: Path) -> tuple[Function, ...]:
    return scan(Tree(root)).functions


@asynccontextmanager
async def _listening(
    wanted: LinkSelect, root: Path, silent_after_s: float = SILENT_AFTER_S
) -> AsyncIterator[tuple[Ear, Callable[[], Awaitable[None]]]]:
    """An ear that has looked at the netdevs once, and what waits for the next change."""
    changed = asyncio.Event()
    # Only MACs tell us from others here: who tries this with a switch of their own on the same host would
    # otherwise be told that the host hears itself, for lldpd announces the host's name.
    ear = Ear(lambda _neighbors, _findings: changed.set(), silent_after_s=silent_after_s)
    with LinkEvents() as events, DcbSocket() as ours:

        def dcb(netdev: str) -> Dcb:
            pfc, ets = ours.read(netdev)
            return Dcb(pfc, ets)

        working = asyncio.create_task(
            neighbor_table.watch(ear, wanted, lambda: _functions(root), [events], dcb=dcb)
        )
        looked = asyncio.create_task(ear.looked.wait())
        working.add_done_callback(lambda _: changed.set())

        async def change() -> None:
            await changed.wait()
            changed.clear()
            if working.done():
                await working

        try:
            await asyncio.wait((working, looked), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            yield ear, change
        finally:
            for task in (working, looked):
                task.cancel()
            await asyncio.gather(working, looked, return_exceptions=True)


async def _ask(wanted: LinkSelect, settings: LldpSettings, functions: Iterable[Function]) -> Seen:
    answer = await lldpd_client.ask(settings.command)
    with Netdevs() as netdevs:
        links = select(wanted, await asyncio.to_thread(netdevs.read), functions)
    told: dict[str, list[Heard]] = {}
    for one in answer:
        told.setdefault(one.link, []).append(Heard(one))
    rows = [_row(link, tuple(told.get(link.name, ())), None, silent=False) for link in links]
    sides = [lldpd_client.near_of(link, quiet=False) for link in links]
    return Seen(
        tuple(rows), findings(sides, [one for one in answer if one.link in {row.link for row in rows}])
    )


def _seen(ear: Ear) -> Seen:
    now = asyncio.get_running_loop().time()
    silent = {one.link for one in ear.findings if one.key in (SILENT, OWN_FRAMES)}
    rows = []
    for name, line in sorted(ear.lines.items()):
        heard = tuple(
            Heard(entry.neighbor, round(now - entry.last_heard, 1), round(now - entry.first_heard, 1))
            for entry in ear.entries(name)
        )
        rows.append(_row(line.selected, heard, line, silent=name in silent))
    return Seen(tuple(rows), ear.findings)


def _row(link: Selected, heard: tuple[Heard, ...], line: Line | None, *, silent: bool) -> Row:
    if line is not None and line.away_at is not None:
        state = "away"
    elif line is not None and line.receiver is None:
        state = "deaf"
    elif any(not one.neighbor.stale for one in heard):
        state = "live"
    elif not link.netdev.carrier:
        state = "down"
    elif heard:
        state = "stale"
    else:
        state = "silent" if silent else "unheard"
    trouble = line.trouble if line else None
    return Row(link.name, link.pci_address, link.driver, state, heard, trouble)


def _counted(seen: Seen, wait_s: float | None) -> str:
    carrier = [row for row in seen.rows if row.state not in ("down", "away", "deaf")]
    heard = len(carrier) - seen.waiting
    until = f"; waiting up to {wait_s:.0f} s for the others" if wait_s is not None and seen.waiting else ""
    return f"{heard} of {len(carrier)} links with carrier heard ({len(seen.rows)} links in all){until}"


# --- for programs ---------------------------------------------------------------------------------------


def as_json(seen: Seen) -> str:
    """One object on one line. Absent values are null."""
    return json.dumps(
        {
            "links": [
                {
                    "link": row.link,
                    "pci_address": row.pci_address,
                    "driver": row.driver,
                    "state": row.state,
                    "trouble": row.trouble,
                    "neighbors": [
                        {
                            **{name: value for name, value in asdict(one.neighbor).items() if name != "link"},
                            "age_seconds": one.age_s,
                            "known_seconds": one.known_s,
                        }
                        for one in row.neighbors
                    ],
                }
                for row in seen.rows
            ],
            "findings": [asdict(finding) for finding in seen.findings],
            "waited_seconds": seen.waited_s,
        },
        ensure_ascii=True,
    )


# --- for people -----------------------------------------------------------------------------------------


def as_table(seen: Seen) -> str:
    if not seen.rows:
        return "No netdev is a link here: no physical Ethernet NIC, or none that `links.select` asks for."
    lines = [cells for row in seen.rows for cells in _lines(row)]
    notes = [
        f"{row.link}: nothing was heard in {seen.waited_s:g} s, which says little: a switch speaks every 30 s; "
        f"--wait {SILENT_AFTER_S + 1:.0f} listens for long enough to judge"
        for row in seen.rows
        if row.state == "unheard" and seen.waited_s is not None
    ]
    notes += [f"{row.link}: {row.trouble}" for row in seen.rows if row.trouble]
    notes += [f"{one.link}: {one.detail}" for one in seen.findings]
    return "\n".join([*columns(COLUMNS, lines), *(["", *notes] if notes else [])])


def _lines(row: Row) -> Iterable[tuple[str, ...]]:
    head = (row.link, row.pci_address or "-")
    if not row.neighbors:
        yield (*head, "-", "-", "-", "-", "-", row.state)
    for heard in row.neighbors:
        one = heard.neighbor
        state = row.state if row.state in ("away", "down", "deaf") else "stale" if one.stale else "live"
        yield (
            *head,
            one.system_name or one.chassis_id.value,
            one.port_id.value,
            one.port_description or "-",
            ",".join(one.management_addresses) or "-",
            "-" if heard.age_s is None else f"{heard.age_s:.0f}s",
            state,
        )
