"""The accounts of the GPUs of this node, and the pods that exceed their share. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.facts.gpu_usage import GpuUsage
from nodeagent.facts.model import Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.sharing.gpu_accounts import GpuAccount, accounts
from nodeagent.sharing.over_use import BegunOverUse, OverUse, OverUses

log = logging.getLogger(__name__)

OFF = "gpu.health.processes is false"
_NOT_YET = "the GPUs are not measured yet"
_GIB = 1 << 30


class BegunOverUses(msgspec.Struct, frozen=True):
    """The content of the file. Each ``seen`` is a time of CLOCK_MONOTONIC, one clock for all agents of a boot."""

    boot_id: str
    begun: tuple[BegunOverUse, ...] = ()


ACCOUNTS_FORM = StoredForm(
    name="over-uses.json",
    type=BegunOverUses,
    content="pods beyond their share of GPU memory",
    loss="their time before an eviction starts again",
    of_boot=True,
)


class GpuAccounting:
    """``revision`` grows with each change of ``over_uses``. ``slice_bytes`` returns the size of a slice by resource.
    ``obstacle`` is why the use of the GPUs is unknown, if it is. ``folder`` has the file of an earlier agent, which is
    read here: blocks. Without a folder nothing is kept. ``boot`` is the ID of the boot; ``None``: the present one."""

    def __init__(
        self,
        settings: GpuSettings,
        snapshot: Callable[[], Snapshot],
        slice_bytes: Callable[[], Mapping[str, int]],
        now: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
        boot: str | None = None,
    ) -> None:
        self.revision = 0
        self._changed = asyncio.Event()
        self.obstacle: str | None = _NOT_YET if settings.health.processes else OFF
        self.settings = settings
        self.grace_s = settings.accounting.grace_seconds
        self.evict_s = settings.accounting.evict_seconds
        self.enabled = settings.health.processes
        self._snapshot, self._slice_bytes, self._now = snapshot, slice_bytes, now
        self._usage: Mapping[str, GpuUsage] = {}
        self.file = StoredFile(folder if self.enabled else None, ACCOUNTS_FORM, boot)
        stored, self._measured = self.file.read(), asyncio.Event()
        self._over = OverUses(
            settings.accounting.tolerance_mib << 20,
            self.grace_s,
            settings.health.gap_s,
            _sound(stored.begun if stored is not None else (), now()),
        )

    @property
    def over_uses(self) -> tuple[OverUse, ...]:
        """The pods that exceed their share, by name."""
        return tuple(over for _, over in sorted(self._over.active.items()))

    def accounts(self) -> tuple[GpuAccount, ...]:
        """The account of each GPU, by index. Grants are known without a measurement too."""
        return accounts(self._snapshot(), self._slice_bytes(), self._usage)

    def take_usage(self, usage: Mapping[str, GpuUsage], obstacle: str | None) -> None:
        """Take a measurement: who uses each GPU, or why this is unknown."""
        if not self.enabled:
            return
        self._usage = usage
        if obstacle != self.obstacle and obstacle is not None:
            log.warning("The use of the GPUs by pod is not known. reason=%r", obstacle)
        self.obstacle = obstacle
        # Before podresources has answered, each pod would seem to have no grant.
        if obstacle is None and self._snapshot().holdings is not None:
            before = set(self._over.active)
            self._measured.set()
            if self._over.observe(self.accounts(), self._now()):
                self._log(before)
                self.revision += 1
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

    async def keep(self) -> None:
        """Save after each measurement which pods are beyond their share, until cancelled."""
        while True:
            await self._measured.wait()
            self._measured.clear()
            if self.file.boot is not None:
                await self.file.save(BegunOverUses(self.file.boot, self._over.begun))

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""
        while self.revision == revision:
            await self._changed.wait()

    def _log(self, before: set[tuple[str, str, str]]) -> None:
        for key, over in self._over.active.items():
            if key in before:
                continue
            used_gib, granted_gib = over.used_bytes / _GIB, over.granted_bytes / _GIB
            if not over.pod:
                log.warning(
                    "GPU memory is used by processes in no pod. gpu=%s used_gib=%.1f processes=%r",
                    *(over.uuid, used_gib, over.processes),
                )
                continue
            log.warning(
                "GPU memory is used beyond its share. pod=%s gpu=%s used_gib=%.1f granted_gib=%.1f",
                *(_name(over.namespace, over.pod), over.uuid, used_gib, granted_gib),
            )
        for namespace, pod, uuid in before - self._over.active.keys():
            if pod:
                log.info("GPU memory is within its share again. pod=%s gpu=%s", _name(namespace, pod), uuid)
            else:
                log.info("Processes in no pod use no more GPU memory than is tolerated. gpu=%s", uuid)


def _sound(found: tuple[BegunOverUse, ...], now: float) -> tuple[BegunOverUse, ...]:
    """The entries that can be true."""
    sound = tuple(one for one in found if 0 <= one.since_s <= one.seen <= now)
    if len(sound) != len(found):
        log.warning(
            "A pod beyond its share cannot be so for that long and is ignored. file=%s", ACCOUNTS_FORM.name
        )
    return sound


def _name(namespace: str, pod: str) -> str:
    """The pod as kubectl names it; its UID where the kubelet's folder of logs does not name it."""
    return f"{namespace}/{pod}" if namespace else f"uid:{pod}"
