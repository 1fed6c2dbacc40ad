"""The accounts of the GPUs of this node, and the pods that exceed their share. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from nodeagent.facts.gpu_usage import GpuUsage
from nodeagent.facts.model import Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.sharing.gpu_accounts import GpuAccount, accounts
from nodeagent.sharing.over_use import OverUse, OverUses

log = logging.getLogger(__name__)

OFF = "gpu.health.processes is false"
NOT_YET = "the GPUs are not measured yet"
GIB = 1 << 30


class GpuAccounting:
    """``revision`` grows with each change of ``over_uses``. ``slice_bytes`` returns the size of a slice by resource.
    ``obstacle`` is why the use of the GPUs is unknown, if it is."""

    def __init__(
        self,
        settings: GpuSettings,
        snapshot: Callable[[], Snapshot],
        slice_bytes: Callable[[], Mapping[str, int]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.revision = 0
        self._changed = asyncio.Event()
        self.obstacle: str | None = NOT_YET if settings.health.processes else OFF
        self.settings = settings
        self.grace_s = settings.accounting.grace_seconds
        self.evict_s = settings.accounting.evict_seconds
        self.enabled = settings.health.processes
        self._snapshot, self._slice_bytes, self._now = snapshot, slice_bytes, now
        self._usage: Mapping[str, GpuUsage] = {}
        self._over = OverUses(settings.accounting.tolerance_mib << 20, self.grace_s, settings.health.gap_s)

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
            if self._over.observe(self.accounts(), self._now()):
                self._log(before)
                self.revision += 1
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""
        while self.revision == revision:
            await self._changed.wait()

    def _log(self, before: set[tuple[str, str, str]]) -> None:
        for key, over in self._over.active.items():
            if key in before:
                continue
            used_gib, granted_gib = over.used_bytes / GIB, over.granted_bytes / GIB
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


def _name(namespace: str, pod: str) -> str:
    """The pod as kubectl names it; its UID where the kubelet's folder of logs does not name it."""
    return f"{namespace}/{pod}" if namespace else f"uid:{pod}"
