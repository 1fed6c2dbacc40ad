"""The InfiniBand source: ask the peer of each port who it is, and publish the answers as neighbors.

Ports are read at start, after every hint and every ``_POLL_S``, because the kernel announces no change of a LID.
``nodeagent.infiniband.asking`` decides when a port asks. All ports that are due ask at once, each in a thread with a
time limit: a device that hangs delays the others by this limit and does not stop them.

The questions that were not answered are kept over restarts of the agent: a switch with a management key reports each
question to its subnet manager as an attack, and an agent that starts again and again would raise three of these reports
each time. Their times are CLOCK_BOOTTIME: the file of another boot is not used, as the ports were down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, enter, in_thread
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.facts.model import Function, Link, Neighbor, Remark
from nodeagent.host.clock import boottime
from nodeagent.host.sysfs import Tree
from nodeagent.host.umad import REMEDIES, NoAnswerError, UmadError, UmadPort, UmadReason
from nodeagent.infiniband import smp
from nodeagent.infiniband.asking import AskingPace, PortAsking, UnansweredQuestions
from nodeagent.infiniband.node_names import NameMap, NameMapError, parse_name_map
from nodeagent.infiniband.peer import AskedPort, Peer, infiniband_neighbors, remarks_of, with_description
from nodeagent.infiniband.smp import Attribute, SmpError
from nodeagent.sources.bounded_scan import BoundedScan
from nodeagent.sources.ib_ports import IbPort, read_ib_ports
from nodeagent.sources.scan_hints import ScanHint, forward

log = logging.getLogger(__name__)

_POLL_S = 10.0
ASK_S = 2.0
"""For opening a device, and for each question: far more than the timeout of the kernel."""
NAMES_S = 60.0
PACE = AskingPace()

PortKey = tuple[str, int]
"""PCI address, and number of the port."""


class _UnansweredPort(msgspec.Struct, frozen=True):
    pci_address: str
    port: int
    asked: UnansweredQuestions


class _UnansweredPorts(msgspec.Struct, frozen=True):
    boot_id: str
    ports: tuple[_UnansweredPort, ...]


PEERS_FORM = StoredForm(
    name="infiniband.json",
    type=_UnansweredPorts,
    content="unanswered InfiniBand questions",
    loss="switches that do not answer are asked again",
    of_boot=True,
)


class UnansweredPorts:
    """The file of this boot. Times are those of the running event loop."""

    def __init__(self, folder: Path | None, boot: str | None = None) -> None:
        """Without a folder nothing is kept. ``boot`` is the ID of the boot; ``None``: the present one."""
        self._file = StoredFile(folder, PEERS_FORM, boot)

    async def read(self) -> dict[PortKey, UnansweredQuestions]:
        found = await in_thread(self._file.read)
        if found is None:
            return {}
        ahead = _boottime_ahead()
        return {
            (each.pci_address, each.port): structs.replace(each.asked, due_at=each.asked.due_at - ahead)
            for each in found.ports
        }

    async def save(self, ports: Mapping[PortKey, UnansweredQuestions]) -> None:
        ahead = _boottime_ahead()
        entries = [
            _UnansweredPort(address, port, structs.replace(asked, due_at=round(asked.due_at + ahead)))
            for (address, port), asked in sorted(ports.items())
        ]
        await self._file.save(_UnansweredPorts(self._file.boot or "", tuple(entries)))


def _boottime_ahead() -> float:
    return boottime() - asyncio.get_running_loop().time()


IbPublish = Callable[[tuple[Neighbor, ...], tuple[Remark, ...]], object]


async def watch_infiniband(
    tree: Tree,
    functions: Callable[[], tuple[Function, ...]],
    links: Callable[[], tuple[Link, ...]],
    hints: Iterable[ScanHint],
    publish: IbPublish,
    *,
    node_names: Path | None = None,
    unanswered: UnansweredPorts | None = None,
    pace: AskingPace = PACE,
    poll_s: float = _POLL_S,
) -> None:
    """Publish neighbors and remarks until cancelled.

    ``functions`` and ``links`` return the last known facts; their change should be one of the hints. ``unanswered``
    keeps the questions without an answer over restarts.
    """
    unanswered = unanswered or UnansweredPorts(None)
    woken = asyncio.Event()
    source = InfinibandSource(
        tree,
        publish,
        node_names=node_names,
        before=await unanswered.read(),
        save=unanswered.save,
        pace=pace,
        again=woken.set,
    )
    try:
        async with asyncio.TaskGroup() as group:
            for hint in hints:
                group.create_task(forward(hint, woken))
            while True:
                woken.clear()
                wait_s = await source.look(functions(), links())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(wait_s, poll_s)):
                        await woken.wait()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class InfinibandSource:
    """The ports of one machine with what is known of their peers. Belongs to one event loop."""

    def __init__(
        self,
        tree: Tree,
        publish: IbPublish,
        *,
        node_names: Path | None = None,
        before: Mapping[PortKey, UnansweredQuestions] | None = None,
        save: Callable[[Mapping[PortKey, UnansweredQuestions]], Awaitable[object]] | None = None,
        pace: AskingPace = PACE,
        again: Callable[[], object] = lambda: None,
    ) -> None:
        """``again`` is called when a file or a device that hung has answered after all. ``before``: the questions of
        an earlier agent without an answer; ``save`` keeps those of this one.
        """
        self._before, self._save = before or {}, save
        self._tree, self._publish, self._pace = tree, publish, pace
        self._again = again
        self._reads = BoundedScan("infiniband", tree, again)
        self._names = _NodeNames(node_names)
        self._ports: dict[tuple[str, int], _WatchedPort] = {}
        self._published: tuple[tuple[Neighbor, ...], tuple[Remark, ...]] | None = None

    async def look(self, functions: tuple[Function, ...], links: tuple[Link, ...]) -> float:
        """Read the ports, ask where a question is due, and publish. Return the seconds until the next question."""
        now = asyncio.get_running_loop().time
        await self._names.refresh(now())
        read = await self._reads.run(read_ib_ports, self._tree, functions, links)
        present = {(port.pci_address, port.number): port for port in read}
        known = {function.pci_address for function in functions}
        self._ports = {key: watched for key, watched in self._ports.items() if key[0] in known}
        for key, port in present.items():
            watched = self._ports.get(key)
            if watched is None:
                asking = PortAsking(self._pace, self._before.get(key))
                watched = self._ports[key] = _WatchedPort(port, asking, self._again)
            watched.take(port, now())
        for key in self._ports.keys() - present.keys():
            self._ports[key].asking.remove()
        due = [watched for watched in self._ports.values() if watched.asking.due(now())]
        await asyncio.gather(*(watched.ask(self._tree) for watched in due))
        if self._save is not None:
            await self._save(self._unanswered())
        self._publish_change()
        dues = (
            watched.asking.due_at for watched in self._ports.values() if watched.asking.due_at is not None
        )
        return max(0.0, min(dues, default=float("inf")) - now())

    def ports(self) -> tuple[tuple[IbPort, AskedPort], ...]:
        """The ports with what is known of their peers."""
        return tuple((watched.port, watched.view()) for watched in self._ports.values())

    def _unanswered(self) -> dict[PortKey, UnansweredQuestions]:
        """The questions without an answer, by port."""
        asked = ((key, watched.asking.unanswered()) for key, watched in self._ports.items())
        return {key: questions for key, questions in asked if questions is not None}

    def _publish_change(self) -> None:
        ports = [view for _, view in self.ports()]
        neighbors = infiniband_neighbors(ports, self._names.names)
        facts = (neighbors, remarks_of(ports, neighbors))
        if facts != self._published:
            self._published = facts
            self._publish(*facts)


class _WatchedPort:
    def __init__(self, port: IbPort, asking: PortAsking, again: Callable[[], object]) -> None:
        self.port = port
        self._again = again
        self.asking = asking
        self._peer: Peer | None = None
        self._error: str | None = None
        self._calls: dict[str, BoundedCalls] = {}

    def take(self, port: IbPort, now: float) -> None:
        before, after = self.port.state.sm_lid, port.state.sm_lid
        if before and after and before != after:
            log.info(
                "Another subnet manager configures a port. link=%s lid=%d before=%d", port.link, after, before
            )
        self.port = port
        self.asking.observe(port.state, now)

    def view(self) -> AskedPort:
        return AskedPort(self.port.link, self.asking.peer, self.port.state, self._peer, self._error)

    def _returned(self) -> None:
        """An abandoned question has returned."""
        self.asking.hasten(asyncio.get_running_loop().time())
        self._again()

    async def ask(self, tree: Tree) -> None:
        """Ask the peer once. A failure is part of the view, and logged when it is new."""
        port = self.port
        before = self._error
        loop = asyncio.get_running_loop()
        spread = random.random()  # noqa: S311 - it spreads load
        try:
            if port.umad is None:
                raise _without_device(port)
            calls = self._calls.setdefault(port.umad, BoundedCalls(port.umad, ASK_S, self._returned))
            peer = await calls.run(_ask_through, tree, port.umad, port.umad_port)
        except (UmadError, Unanswered, SmpError) as error:
            remedy = REMEDIES[error.reason] if isinstance(error, UmadError) else REMEDIES[UmadReason.FAILED]
            self._error = f"the peer of {port.device} port {port.number} cannot be asked: {error}; {remedy}"
            self.asking.postpone(loop.time(), spread)
            if self._error != before:
                log.warning("A port cannot ask its peer. link=%s reason=%r", port.link, self._error)
            return
        except NoAnswerError:
            answered = False
        else:
            answered = True
            self._peer = with_description(peer, self._peer)
        self._error = None
        self.asking.asked(loop.time(), spread, answered=answered)


def _ask_through(tree: Tree, umad: str, port: int) -> Peer:
    """As ``ask_peer``. Resolving the path may block too."""
    enter(umad)
    return ask_peer(tree.path(umad), port)


def ask_peer(umad: Path, port: int) -> Peer:
    """Ask the peer of a port both questions. Blocks. Raises ``UmadError``, ``NoAnswerError`` or ``SmpError``.

    A missing answer to the second question leaves the description unknown.
    """
    transaction = random.getrandbits(31) << 1
    with UmadPort.open(umad) as device:
        info = smp.node_info(device.ask(smp.question(Attribute.NODE_INFO, port, transaction)))
        try:
            packet = device.ask(smp.question(Attribute.NODE_DESCRIPTION, port, transaction + 1))
            return Peer(info, smp.node_description(packet))
        except (NoAnswerError, SmpError):
            return Peer(info)


def _without_device(port: IbPort) -> UmadError:
    if port.has_mads:
        return UmadError(UmadReason.NO_SMI, "no issm device belongs to it")
    return UmadError(UmadReason.NO_MODULE, "it has no umad device")


class _NodeNames:
    """The map of names. If it cannot be read, the last one stays in force, and the log has one warning."""

    def __init__(self, path: Path | None) -> None:
        self.names: NameMap = {}
        self._path = path
        self._reads = BoundedCalls("infiniband node names", ASK_S)
        self._text: bytes | None = None
        self._due_at = float("-inf")
        self._logged = ""

    async def refresh(self, now: float) -> None:
        if self._path is None or now < self._due_at:
            return
        self._due_at = now + NAMES_S
        try:
            self._text, self.names = await self._reads.run(_read_names, self._path, self._text, self.names)
            self._logged = ""
        except (OSError, NameMapError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            if reason != self._logged:
                log.warning(
                    "The names of InfiniBand nodes cannot be read. file=%s reason=%r", self._path, reason
                )
            self._logged = reason


def _read_names(path: Path, before: bytes | None, names: NameMap) -> tuple[bytes, NameMap]:
    text = read_regular(path)
    return text, names if text == before else parse_name_map(text)
