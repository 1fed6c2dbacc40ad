"""Keep the hard limit of GPU memory on the cgroup of each container that holds a share (``enforcement: nvml-limits``),
or read back the one that NVIDIA's container toolkit should have set (``env``).

Rules:

* State is a level: each pass reads which container holds which share, finds its cgroups, reads their limits from the
  driver and sets those that differ. So the agent stores nothing for a container that was restarted, for a driver that
  was loaded again, or for a limit that another program has changed.
* The limit is set on the cgroup that the container's processes are in. If it cannot have a limit, its parent gets it.
* Only a limit that was read back is in force. ``limits_kept`` of the snapshot says whether the last pass had one.
* The soft limit is 0 (``host.nvml_limits``), also where another program has set one: nothing is left in the cgroups
  above when a container's cgroup goes.
* A limit that cannot be read is unknown, and the last state of its share stays. The container toolkit sets its limit
  before the first program of a container runs, so a running container without one stays so.
* A cgroup that went during the pass is no failure.
* NVML is opened for a pass and closed after it, so that this part never keeps a driver from being unloaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, enter
from nodeagent.base.supervise import either
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import ContainerLimit
from nodeagent.host.gpu_driver import DriverError, LimitRefused
from nodeagent.host.inotify import FolderWatch, InotifyError
from nodeagent.host.nvml import Nvml
from nodeagent.host.nvml_limits import CHARGED, UNLIMITED, CgroupLimit, MemoryLimits
from nodeagent.host.sysfs import Tree
from nodeagent.sharing.container_cgroups import CONTAINER_LOGS, ContainerCgroups, FoundCgroups
from nodeagent.sharing.shares import Share

log = logging.getLogger(__name__)

_STATES = ("set", "waiting", "failed")
_INTERVAL_S = 15.0
STARTING_S = 0.5
"""Between two passes while a container with a share is not found: it is about to start."""
STARTING_PASSES = 120
"""A minute of such passes after the last event; then only events and the interval count."""
PASS_S = 10.0
"""For one call of the driver, or one file."""
IN_FORCE, NOT_IN_FORCE = "in force", "not in force"
_IN_WORDS = {"set": IN_FORCE, "failed": NOT_IN_FORCE, "waiting": "waiting"}
SET_BY_TOOLKIT = "env"
NOT_SEEN = (
    "the agent does not see the cgroups and logs of containers; components/gpu-memory-limits mounts them"
)


class LimitState(Struct, frozen=True):
    """One share, and the cgroups that have its limit.

    ``named``: they are those of the container; else it does not run, or the kubelet has not named it yet. ``failure``
    is why the limit cannot be set or is not in force, or, with ``unreadable``, why it is not known.
    """

    share: Share
    cgroups: tuple[str, ...] = ()
    named: bool = False
    failure: str | None = None
    unreadable: bool = False

    @property
    def word(self) -> str:
        return "failed" if self.failure is not None else "set" if self.named else "waiting"

    @property
    def in_words(self) -> str:
        return "unknown" if self.unreadable else _IN_WORDS[self.word]


class CgroupLimits:
    """The limits of this node. Belongs to one event loop. ``revision`` grows when ``states`` changes."""

    def __init__(
        self,
        tree: Tree,
        pod_logs: str,
        inventory: Inventory,
        shares: Callable[[], tuple[Share, ...] | None],
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self.states: tuple[LimitState, ...] = ()
        self.writes = 0
        """The limits that were set since the start."""
        self.revision = 0
        self._changed = asyncio.Event()
        self._tree, self._pod_logs = tree, pod_logs
        self._inventory, self._shares, self._interval_s = inventory, shares, interval_s
        self._calls = BoundedCalls("limits of GPU memory", PASS_S)
        self._logged: dict[Share, str] = {}

    async def run(self) -> None:
        """Keep the limits until cancelled."""
        idle = 0
        with FolderWatch() as watch:
            while True:
                snapshot, shares = self._inventory.snapshot, self._shares()
                folders = await self._keep(shares or ())
                with suppress(Unanswered):
                    await self._calls.run(self._watch, watch, folders)
                starting = any(state.word == "waiting" for state in self.states) and idle < STARTING_PASSES
                pause_s = min(STARTING_S, self._interval_s) if starting else self._interval_s
                idle = 0 if await self._woken(watch, snapshot.revision, shares, pause_s) else idle + 1

    @property
    def limits(self) -> tuple[ContainerLimit, ...]:
        """The same as facts of the node: with the time since when each is so, and through times without an answer."""
        return self._inventory.snapshot.gpu_limits

    def counts(self) -> dict[str, int]:
        """The shares whose limits the agent sets, by state; empty where no container has one."""
        words = [state.word for state in self.states if state.share.level != SET_BY_TOOLKIT]
        return {word: words.count(word) for word in _STATES} if words else {}

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""
        while self.revision == revision:
            await self._changed.wait()

    async def _keep(self, shares: tuple[Share, ...]) -> set[str]:
        if not shares:
            self._take(())
            return set()
        try:
            states, writes, folders = await self._calls.run(set_limits, self._tree, self._pod_logs, shares)
        except (DriverError, Unanswered) as error:
            self._take(tuple(LimitState(share, failure=str(error), unreadable=True) for share in shares))
            return set()
        self.writes += writes
        self._take(states)
        return folders

    def _watch(self, watch: FolderWatch, folders: Iterable[str]) -> None:
        """Blocks."""
        for folder in folders:
            with suppress(InotifyError):  # the pod has ended
                watch.add(self._tree.path(folder))

    async def _woken(
        self, watch: FolderWatch, revision: int, shares: tuple[Share, ...] | None, pause_s: float
    ) -> bool:
        """Return true when a cgroup appears in a watched folder or other shares are held, false after ``pause_s``."""
        try:
            async with asyncio.timeout(pause_s):
                await either(watch.changes(), self._shares_change(revision, shares))
        except TimeoutError:
            return False
        return True

    async def _shares_change(self, revision: int, shares: tuple[Share, ...] | None) -> None:
        while self._shares() == shares:
            revision = (await self._inventory.changed(revision)).revision

    def _take(self, states: tuple[LimitState, ...]) -> None:
        if states == self.states:
            return
        self.states = states
        self.revision += 1
        own = [state for state in states if state.share.level != SET_BY_TOOLKIT]
        kept = any(state.cgroups for state in own)
        if not kept and not any(state.failure for state in own):
            kept = self._inventory.snapshot.limits_kept
        self._inventory.publish("limits", limits_kept=kept, gpu_limits=tuple(self._facts(states)))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for state in states:
            self._log(state)
        shares = {state.share for state in states}
        self._logged = {share: text for share, text in self._logged.items() if share in shares}

    def _facts(self, states: Iterable[LimitState]) -> Iterator[ContainerLimit]:
        before = {
            (limit.namespace, limit.pod, limit.container, limit.uuid, limit.size_bytes): limit
            for limit in self.limits
        }
        for state in states:
            limit = ContainerLimit(*state.share[:5], state.in_words, time.time(), state.failure)
            last = before.get(state.share[:5], limit)
            if state.unreadable and last.state != "waiting":
                yield last
            else:
                yield replace(limit, since=last.since) if limit.state == last.state else limit

    def _log(self, state: LimitState) -> None:
        share, text = state.share, state.failure or state.word
        if self._logged.get(share) == text or state.word == "waiting":
            return
        self._logged[share] = text
        fields = (share.namespace, share.pod, share.container, share.uuid, share.size_bytes >> 20)
        if state.failure is not None:
            log.warning(
                "A limit of GPU memory is %s. pod=%s/%s container=%s gpu=%s mib=%d reason=%r",
                *(state.in_words, *fields, state.failure),
            )
        else:
            log.info("A limit of GPU memory is in force. pod=%s/%s container=%s gpu=%s mib=%d", *fields)


def set_limits(
    tree: Tree, pod_logs: str, shares: tuple[Share, ...]
) -> tuple[tuple[LimitState, ...], int, set[str]]:
    """Set the limits that differ. Return the state of each share, the number of limits that were set, and the folders
    in which cgroups of these containers appear. Raises ``DriverError``. Blocks."""
    found = ContainerCgroups(tree, pod_logs)
    cgroups = found.of(shares)
    driver, states, writes = Nvml(), [], 0
    enter("nvmlInit")
    driver.open(events=False)
    try:
        limits = driver.memory_limits()
        for share in shares:
            if share.level == SET_BY_TOOLKIT:
                visible = bool(found.pods and found.pods_of and tree.exists(CONTAINER_LOGS))
                states.append(_read_limit(tree, limits, share, cgroups[share[:3]], visible=visible))
                continue
            state, written = _set_limit(tree, limits, share, cgroups[share[:3]])
            states.append(state)
            writes += written
    finally:
        driver.close()
    return tuple(states), writes, found.folders_of(shares)


def _set_limit(tree: Tree, limits: MemoryLimits, share: Share, found: FoundCgroups) -> tuple[LimitState, int]:
    present: list[str] = []
    writes = 0
    for cgroup in found.cgroups:
        enter(f"the limit of {cgroup}")
        try:
            cgroup, written = _set_on(tree, limits, share, cgroup)  # noqa: PLW2901 - its parent, if it has to be
        except LimitRefused as refusal:
            if tree.exists(cgroup):
                return LimitState(share, failure=f"{refusal} ({cgroup})"), writes
        else:
            present.append(cgroup)
            writes += written
    return LimitState(share, tuple(present), found.named and bool(present)), writes


def _read_limit(
    tree: Tree, limits: MemoryLimits, share: Share, found: FoundCgroups, *, visible: bool
) -> LimitState:
    """The getter needs no right. The toolkit sets a soft limit too: any hard limit within the share keeps it."""
    if not visible:
        return LimitState(share, failure=NOT_SEEN, unreadable=True)
    for cgroup in found.cgroups if found.named else ():
        enter(f"the limit of {cgroup}")
        try:
            shown = limits.read(share.uuid, own_path(tree, cgroup))
        except LimitRefused as refusal:
            if tree.exists(cgroup):
                return LimitState(share, failure=f"{refusal} ({cgroup})", unreadable=True)
            continue
        if shown is None or shown.hard > share.size_bytes:
            amount = "no limit" if shown is None or shown.hard == UNLIMITED else f"{shown.hard >> 20} MiB"
            why = f"the driver shows {amount} ({cgroup}); NVIDIA's container toolkit sets it from 1.20.1 on"
            return LimitState(share, failure=why)
    return LimitState(share, found.cgroups, found.named)


def _set_on(tree: Tree, limits: MemoryLimits, share: Share, cgroup: str) -> tuple[str, bool]:
    """Set the limit, if it differs, on the cgroup or its parent. Return the cgroup, and whether the limit was set."""
    path, wanted = own_path(tree, cgroup), CgroupLimit(0, share.size_bytes)
    if limits.read(share.uuid, path) == wanted:
        return cgroup, False
    try:
        limits.write(share.uuid, path, share.size_bytes)
    except LimitRefused as refusal:
        if not (refusal.no_cgroup and cgroup.endswith("/container") and tree.exists(cgroup)):
            raise
        return _set_on(tree, limits, share, cgroup.removesuffix("/container"))
    if (shown := limits.read(share.uuid, path)) != wanted:
        amount = "no limit" if shown is None else f"{shown.hard >> 20} MiB"
        raise LimitRefused(f"the driver shows {amount} after it was set{CHARGED}")
    return cgroup, True


def own_path(tree: Tree, cgroup: str) -> str:
    """Return the path that NVML gets. The agent may see the host's cgroups below its root and at their own place; the
    driver documents only that place."""
    path = tree.path(cgroup)
    with suppress(OSError):
        if Path(cgroup).samefile(path):
            return cgroup
    return str(path)
