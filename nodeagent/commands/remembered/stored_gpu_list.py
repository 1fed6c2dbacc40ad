"""The GPUs that the agent stores, and how to forget one that was taken out of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.commands.options import GOOD, USAGE

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.base.stored_file import StoredFile
    from nodeagent.sources.remembered_gpus import RememberedGpu


def table(config: Config, root: Path) -> str:
    """The GPUs, and whether each is on the PCI bus."""
    from nodeagent.commands.terminal import screen, section

    stored, gpus = _read(config, root)
    if not gpus:
        return f"No GPUs are stored in {stored.path}; the agent stores them when the driver lists them.\n"
    on_bus = _on_bus(root)
    heads = ("GPU", "UUID", "MODEL", "MEMORY", "PCI ADDRESS", "ON THE BUS")
    return section("GPUS", heads, (_cells(gpu, on_bus(gpu)) for gpu in gpus), screen(), optional=("MODEL",))


def objects(config: Config, root: Path) -> list[dict[str, object]]:
    """The GPUs for programs."""
    on_bus = _on_bus(root)
    return [_as_object(gpu, on_bus(gpu)) for gpu in _read(config, root)[1]]


def _cells(gpu: RememberedGpu, on_bus: bool | None) -> tuple[str, ...]:
    here = "not known" if on_bus is None else "yes" if on_bus else "no"
    return str(gpu.index), gpu.uuid, gpu.name or "-", f"{gpu.memory_mib} MiB", gpu.pci_address, here


def _as_object(gpu: RememberedGpu, on_bus: bool | None) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.name,
        "memoryMib": gpu.memory_mib,
        "pciAddress": gpu.pci_address,
        "onBus": on_bus,
    }


def forget(config: Config, root: Path, names: Sequence[str]) -> int:
    """Remove these GPUs, named by UUID, from the file. Return the exit code."""
    from nodeagent.base.plain_text import one_line

    stored, gpus = _read(config, root)
    unknown = set(names) - {gpu.uuid for gpu in gpus}
    if unknown:
        known = ", ".join(gpu.uuid for gpu in gpus) or "none"
        wrong = ", ".join(one_line(name, 64) for name in sorted(unknown))
        print(f"nodeagent: {wrong}: no such GPU in {stored.path}; there are: {known}", file=sys.stderr)
        return USAGE
    stored.write(tuple(gpu for gpu in gpus if gpu.uuid not in names))
    for gpu in gpus:
        if gpu.uuid in names:
            print(
                f"{gpu.uuid} is forgotten; a running agent takes this over within {config.scan_seconds:g} s."
            )
    return GOOD


def _read(
    config: Config, root: Path
) -> tuple[StoredFile[tuple[RememberedGpu, ...]], tuple[RememberedGpu, ...]]:
    """Return the file and its GPUs. Raises ``RememberedError``."""
    from nodeagent.base.stored_file import StoredFile
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.remembered_gpus import FORM, sound

    stored = StoredFile(Tree(root).path(config.health.state_directory), FORM)
    gpus = stored.read()
    if stored.unreadable is not None:
        reason = (
            f"{stored.path} cannot be read: {stored.unreadable}; delete it, and the agent writes it again"
        )
        raise RememberedError(reason)
    return stored, sound(gpus or ())


def _on_bus(root: Path) -> Callable[[RememberedGpu], bool | None]:
    """Whether a GPU is on the PCI bus; ``None`` where a file of it does not answer."""
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources import pci_source

    tree = Tree(root)
    facts = pci_source.scan_once(tree)
    here, hanging = {gpu.pci_address for gpu in facts.gpus}, pci_source.hanging_devices(tree, facts.links)
    return lambda gpu: True if gpu.pci_address in here else None if gpu.pci_address in hanging else False


class RememberedError(Exception):
    """The file cannot be read; the message contains the remedy."""
