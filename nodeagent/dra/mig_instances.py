"""Make and remove the MIG devices of claims, in calls that block.

One call is made at a time (``BoundedCalls``): one that hangs in the driver may still make an instance, and what removes
it waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from nodeagent.base.bounded_calls import enter
from nodeagent.dra.prepared_claim import MadeMig
from nodeagent.facts.model import MigSlot
from nodeagent.host.gpu_driver import DriverError, MigRefused
from nodeagent.host.nvml import opened_gpu
from nodeagent.host.nvml_mig import check_free, make_mig_device, remove_mig_device
from nodeagent.host.sysfs import Tree
from nodeagent.sources.mig_nodes import MIG_MINORS, numbered_nodes


class MigInstances:
    """``opened`` opens NVML for one GPU: the library and the handle."""

    def __init__(
        self, tree: Tree, opened: Callable[[str], AbstractContextManager[tuple[Any, Any]]] = opened_gpu
    ) -> None:
        self._tree, self._opened = tree, opened

    def check_free(self, slot: MigSlot) -> None:
        """Raise ``MigRefused`` if a GPU instance is in the slot."""
        enter(f"MIG device at slice {slot.start} of {slot.gpu}")
        try:
            with self._opened(slot.gpu) as (lib, gpu):
                check_free(lib, gpu, slot)
        except DriverError as error:
            raise MigRefused(str(error), remains=False) from error

    def make(self, slot: MigSlot, *, fresh: bool) -> MadeMig:
        """Make the MIG device of a slot, or find it. ``fresh``: no earlier attempt can have made it. Raises
        ``MigRefused``."""
        enter(f"MIG device at slice {slot.start} of {slot.gpu}")
        remains = not fresh
        try:
            with self._opened(slot.gpu) as (lib, gpu):
                minor = int(lib.nvmlDeviceGetMinorNumber(gpu))
                device = make_mig_device(lib, gpu, slot, fresh=fresh)
                remains = True
        except DriverError as error:
            raise MigRefused(str(error), remains=remains) from error
        if not (nodes := numbered_nodes(self._tree, minor, device)):
            raise MigRefused(
                f"its device nodes are not known: mount {MIG_MINORS} and /proc/devices of the host for the agent "
                "(components/mig-claims)"
            )
        return MadeMig(device.uuid, nodes)

    def remove(self, slot: MigSlot) -> None:
        """Remove the MIG device of a slot, if it is there. Raises ``MigRefused``."""
        enter(f"MIG device at slice {slot.start} of {slot.gpu}")
        try:
            with self._opened(slot.gpu) as (lib, gpu):
                remove_mig_device(lib, gpu, slot)
        except DriverError as error:
            if not error.absent:  # with the driver or the GPU its instances have gone
                raise MigRefused(str(error)) from error
