"""How large the slices are that the kubelet was told of, so that what a pod holds keeps its meaning.

A kubelet knows slices by number alone. Were their size changed while pods hold some, a container that was given
20 of 1024 MiB would count as 20 of 2048, and its GPU would be handed out twice or lie idle. A reload looks at what
pods hold before it takes a new size; this is the same over a restart. The law of this file:

* The size is on the disk before the kubelet is told of the first slice. The file is not bound to the boot: the
  kubelet's checkpoint is not either.
* A size that differs from the configured one is held against what pods hold, once that is believed
  (``kubelet/holdings.py``): with none the new size is in force, else the old one for as long as this agent runs.
  Until then nothing is offered: the kubelet must not hand out what is about to mean something else.
* Who cannot know what pods hold (``kubelet.podResources`` is off) stays with the old size.
* Without a file, or with one that cannot be read, there is nothing to hold against.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nodeagent.host.file_writing import replace_file
from nodeagent.kinds.gpu_memory import Slices
from nodeagent.model import Snapshot
from nodeagent.sources.state_file import SIZE_MAX

log = logging.getLogger(__name__)

NAME = "slices.json"
WRITE_S = 1.0
"""A local file is written in a millisecond; a disk that hangs must not keep bad news from the kubelet."""
_Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """A size that stays although ``wanted`` is configured, and why."""

    wanted: int
    why: str


class Sizes:
    """MiB by resource. Belongs to one event loop."""

    def __init__(self, path: Path, told: Mapping[str, int]) -> None:
        self._path = path
        self.told: dict[str, int] = dict(told)
        self._kept: dict[str, Kept] = {}
        self._waiting: set[str] = set()
        self._written = b""
        self._complained = False
        self._writing = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> Sizes:
        """Of an earlier agent. Reads a file: at the start only."""
        path = folder / NAME
        try:
            with path.open("rb") as file:
                text = file.read(SIZE_MAX + 1)
            told = msgspec.json.decode(text, type=_Sizes)
            if any(size < 1 for size in told.values()):
                raise ValueError("a size is less than 1 MiB")
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.warning(
                "The slice sizes of an earlier agent cannot be read; a changed sliceMiB is not noticed. "
                "file=%s reason=%r",
                path,
                str(error),
            )
            return cls(path, {})
        return cls(path, told)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The sizes that stay although others are configured, for ``/readyz``."""
        return tuple(f"{resource}: {kept.why}" for resource, kept in sorted(self._kept.items()))

    def settle(self, kind: Slices, snapshot: Snapshot, *, asked: bool) -> Slices | str:
        """The kind with the size that is in force, or why it is not to be offered yet.

        ``asked``: whether the kubelet is asked what pods hold.
        """
        resource, wanted = kind.resource, kind.slice_mib
        told = self.told.get(resource, wanted)
        kept = self._kept.get(resource)
        if told == wanted:
            self._kept.pop(resource, None)
            self._waiting.discard(resource)
            return kind
        if kept is not None and kept.wanted == wanted:
            return replace(kind, slice_mib=told)
        if asked and snapshot.holdings is None:
            return self._wait(resource, told, wanted, snapshot)
        self._waiting.discard(resource)
        count = held(resource, snapshot)
        if count or not asked:
            why = (
                f"pods hold {count} slices; drain the node and restart its agent"
                if asked
                else "kubelet.podResources is off and nobody knows whether pods hold slices; turn it on"
            )
            sentence = f"slices stay {told} MiB where {wanted} MiB are configured, for {why}"
            self._kept[resource] = Kept(wanted, sentence)
            log.warning("A changed sliceMiB is not in force: %s. resource=%s", sentence, resource)
            return replace(kind, slice_mib=told)
        self._kept.pop(resource, None)
        log.info("No pod holds slices; the changed size is in force. resource=%s mib=%d", resource, wanted)
        self.told[resource] = wanted
        return kind

    def _wait(self, resource: str, told: int, wanted: int, snapshot: Snapshot) -> str:
        if resource not in self._waiting:
            self._waiting.add(resource)
            log.info(
                "A changed sliceMiB waits for the kubelet to say what pods hold. resource=%s from=%d to=%d",
                resource,
                told,
                wanted,
            )
        silent = next((f": {one.reason}" for one in snapshot.silent if one.source == "pods"), "")
        return f"its slices are to change from {told} to {wanted} MiB, and what pods hold is not known yet{silent}"

    def refusal(self, kind: Slices, snapshot: Snapshot) -> str | None:
        """Why a running agent must not take this size, if it must not."""
        told, count = self.told.get(kind.resource, kind.slice_mib), held(kind.resource, snapshot)
        kept = self._kept.get(kind.resource)
        if told == kind.slice_mib or not count or (kept is not None and kept.wanted == kind.slice_mib):
            return None
        return (
            f"sliceMiB of {kind.resource.partition('/')[2]} cannot change from {told} to {kind.slice_mib} while "
            f"pods hold {count} slices; drain the node first"
        )

    async def remember(self, kinds: Iterable[object]) -> None:
        """What the kubelet is about to be told; returns when it is on the disk, or cannot be."""
        self.told |= {kind.resource: kind.slice_mib for kind in kinds if isinstance(kind, Slices)}
        text = msgspec.json.encode(self.told, order="sorted") + b"\n"
        if text != self._written and self.told and not self._writing.locked():
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_S):
                    await asyncio.to_thread(self._write, text)

    def _write(self, text: bytes) -> None:
        with self._writing:
            try:
                replace_file(self._path, text, durable=True)
            except OSError as error:
                if not self._complained:
                    log.warning(
                        "The slice sizes cannot be written, so a restart with another sliceMiB is not noticed; "
                        "mount a writable folder there or set health.stateDirectory. file=%s reason=%r",
                        self._path,
                        error.strerror,
                    )
                self._complained = True
            else:
                self._written, self._complained = text, False


def held(resource: str, snapshot: Snapshot) -> int:
    """How many slices of it pods hold, as far as that is known."""
    return sum(len(one.device_ids) for one in snapshot.holdings or () if one.resource == resource)
