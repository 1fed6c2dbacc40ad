"""The agent's half of MPS: which GPUs need a daemon, which daemons are ready, and the pods that a daemon's end has hit.

Rules:

* A GPU that a resource with ``enforcement: mps`` selects needs a daemon, also while the resource is withheld: its pods
  run on. A GPU that is lost does not: a daemon would keep the driver from being loaded again.
* Before the driver has listed the GPUs, the daemons of an earlier agent stay.
* Without ``nodeagent mps``, which holds a lock, no daemon is ready.
* The programs of a GPU are hit when its daemon has another pid than before. An agent that has just started has no
  earlier pid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.file_writing import make_folder
from nodeagent.base.supervise import either
from nodeagent.facts.inventory import Inventory
from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent.kinds import DeviceKind
from nodeagent.sharing.mps_files import DaemonState, MpsFiles, WantedDaemons
from nodeagent.sharing.shares import shares_of

log = logging.getLogger(__name__)

LEVEL = "mps"
NOT_RUNNING = (
    "`nodeagent mps` does not run on this node: add components/gpu-mps, or set mps.enabled of the chart"
)
MPS_NOT_YET = "its MPS daemon is not started yet"
_FILES_S = 5.0
_LOOK_S = 5.0
"""A write and the end of `nodeagent mps` are events in the folder; this is for those that are lost."""
HITS_MAX = 64


class MpsHit(Struct, frozen=True):
    """A pod that had a share of a GPU when its daemon ended. ``how`` it ended."""

    uuid: str
    namespace: str
    pod: str
    how: str


class MpsWatch:
    """Belongs to one event loop. ``revision`` grows when ``hits`` changes."""

    def __init__(
        self,
        folder: Path,
        inventory: Inventory,
        kinds: Callable[[], Iterable[DeviceKind]],
        *,
        exclusive_process: bool,
    ) -> None:
        self.hits: tuple[MpsHit, ...] = ()
        """The pods that were hit and that still hold their share."""
        self.ends: dict[str, int] = {}
        """The ends of daemons since the start of the agent, by UUID of the GPU."""
        self.revision = 0
        self._changed = asyncio.Event()
        self._files, self._inventory, self._kinds = MpsFiles(folder), inventory, kinds
        self._exclusive = exclusive_process
        self._calls = BoundedCalls("files of MPS daemons", _FILES_S)
        self._wanted: WantedDaemons | None = None
        self._pids: dict[str, int] = {}

    async def run(self) -> None:
        """Follow the daemons until cancelled. A node without the level has no folder."""
        while True:
            revision = self._inventory.snapshot.revision
            if self._gpus() or await self._has_folder():
                break
            await self._inventory.changed(revision)
        with FolderWatch() as watch:
            await self._calls.run(self._watch_folder, watch)
            while True:
                revision = self._inventory.snapshot.revision
                await self.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await either(watch.changes(), self._inventory.changed(revision))

    def _watch_folder(self, watch: FolderWatch) -> None:
        make_folder(self._files.folder)
        watch.add(self._files.folder, CONTENT)

    async def _has_folder(self) -> bool:
        """Without an answer of the disk it counts as missing; the next change of the node asks again."""
        try:
            return await self._calls.run(self._files.folder.is_dir)
        except Unanswered:
            return False

    async def look(self) -> None:
        """Write which GPUs need a daemon, and publish the state of each."""
        if not self._inventory.has_published("gpus"):
            return  # an empty list would end the daemons of an earlier agent
        wanted = WantedDaemons(self._gpus(), self._exclusive)
        try:
            if wanted != self._wanted or not await self._calls.run(self._files.has_wanted):
                await self._calls.run(self._files.write_wanted, wanted)
                self._wanted = wanted
            runs = await self._calls.run(self._files.is_locked)
            states = {state.uuid: state for state in (await self._calls.run(self._files.read_states)).daemons}
        except (OSError, Unanswered) as error:
            self._inventory.mark_stale("mps", str(error))
            return
        obstacles = tuple((uuid, _obstacle(states.get(uuid), runs=runs)) for uuid in wanted.gpus)
        self._find_hits(wanted.gpus, states)
        self._inventory.publish("mps", mps_obstacles=obstacles)

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""
        while self.revision == revision:
            await self._changed.wait()

    def _gpus(self) -> tuple[str, ...]:
        snapshot = self._inventory.snapshot
        lost = {gpu.uuid for gpu in snapshot.gpus if gpu.lost}
        kinds = (kind for kind in self._kinds() if kind.level(snapshot) == LEVEL)
        return tuple(sorted({uuid for kind in kinds for uuid in kind.hardware(snapshot)} - lost))

    def _find_hits(self, gpus: tuple[str, ...], states: dict[str, DaemonState]) -> None:
        shares = shares_of(self._kinds(), self._inventory.snapshot, LEVEL) or ()
        held = {(share.uuid, share.namespace, share.pod) for share in shares if share.pod}
        hits = [hit for hit in self.hits if (hit.uuid, hit.namespace, hit.pod) in held]
        for uuid in gpus:
            state = states.get(uuid)
            pid, before = (None if state is None else state.pid), self._pids.get(uuid)
            if before is not None and pid != before:
                self.ends[uuid] = self.ends.get(uuid, 0) + 1
                how = (state.last_end if state is not None else "") or "nodeagent mps has ended"
                pods = sorted({(namespace, pod) for gpu, namespace, pod in held if gpu == uuid})
                names = ", ".join(f"{namespace}/{pod}" for namespace, pod in pods) or "none"
                log.warning(
                    "An MPS daemon has ended; its programs have lost the GPU. gpu=%s how=%r pods=%s",
                    *(uuid, how, names),
                )
                hits += [MpsHit(uuid, namespace, pod, how) for namespace, pod in pods]
            if pid is None:
                self._pids.pop(uuid, None)
            else:
                self._pids[uuid] = pid
        for uuid in [uuid for uuid in self._pids if uuid not in gpus]:
            del self._pids[uuid]
        latest = tuple(dict.fromkeys(hits))[-HITS_MAX:]
        if latest != self.hits:
            self.hits = latest
            self.revision += 1
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


def _obstacle(state: DaemonState | None, *, runs: bool) -> str:
    if not runs:
        return NOT_RUNNING
    return MPS_NOT_YET if state is None or (state.pid is None and not state.obstacle) else state.obstacle
