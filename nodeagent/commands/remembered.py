"""The verb `remembered`: show the devices that the agent keeps over restarts, and forget one that is gone for good."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import GOOD, USAGE, Add, config_option, json_option, load

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.host.stored_value import StoredValue
    from nodeagent.sources.remembered_gpus import RememberedGpu


def add(add: Add) -> None:
    parser = add(
        "remembered",
        _remembered,
        "show the GPUs that the agent keeps over restarts, and forget one that is gone for good",
        "  nodeagent remembered                      every GPU, and whether it is on the PCI bus\n"
        "  nodeagent remembered forget GPU-… [GPU-…]  remove GPUs that were taken out of the machine\n\n"
        "The agent stores each GPU in `health.stateDirectory`. One that is gone stays on the kubelet's list as\n"
        "Unhealthy, over restarts and reboots. Another GPU in its slot takes its place without this command.\n\n"
        "A running agent takes a removal over within `scanSeconds`, and its slices leave the kubelet's list when the\n"
        "agent is restarted. A GPU that the driver lists is stored again.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("target", nargs="*", metavar="forget GPU", help="see above")


def _remembered(options: argparse.Namespace) -> int:
    config = load(options.config)
    log_to_stderr("error")
    match options.target:
        case []:
            return _show(options, config)
        case ["forget", _, *_]:
            return _forget(config, options.root, options.target[1:])
    print("nodeagent: use `remembered` or `remembered forget GPU-…`", file=sys.stderr)
    return USAGE


def _show(options: argparse.Namespace, config: Config) -> int:
    from nodeagent.plain_text import section

    stored, gpus = _read(config, options.root)
    on_bus = _on_bus(options.root)
    if options.json:
        print(json.dumps([_as_object(gpu, gpu.pci_address in on_bus) for gpu in gpus]))
    elif not gpus:
        print(f"No GPUs are stored in {stored.path}; the agent stores them when the driver lists them.")
    else:
        heads = ("GPU", "UUID", "MODEL", "MEMORY", "PCI ADDRESS", "ON THE BUS")
        print(section("GPUS", heads, (_cells(gpu, gpu.pci_address in on_bus) for gpu in gpus)), end="")
    return GOOD


def _cells(gpu: RememberedGpu, on_bus: bool) -> tuple[str, ...]:
    here = "yes" if on_bus else "no"
    return str(gpu.index), gpu.uuid, gpu.name or "-", f"{gpu.memory_mib} MiB", gpu.pci_address, here


def _as_object(gpu: RememberedGpu, on_bus: bool) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.name,
        "memoryMib": gpu.memory_mib,
        "pciAddress": gpu.pci_address,
        "onBus": on_bus,
    }


def _forget(config: Config, root: Path, names: list[str]) -> int:
    from nodeagent.plain_text import one_line

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
) -> tuple[StoredValue[tuple[RememberedGpu, ...]], tuple[RememberedGpu, ...]]:
    """Return the file and its GPUs. Raises ``RememberedError``."""
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.remembered_gpus import sound, stored_gpus

    stored = stored_gpus(Tree(root).path(config.health.state_directory))
    gpus = stored.read()
    if stored.unreadable is not None:
        reason = (
            f"{stored.path} cannot be read: {stored.unreadable}; delete it, and the agent writes it again"
        )
        raise RememberedError(reason)
    return stored, sound(gpus or ())


def _on_bus(root: Path) -> frozenset[str]:
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources import pci_source

    return frozenset(gpu.pci_address for gpu in pci_source.scan(Tree(root)).gpus)


class RememberedError(Exception):
    """The file cannot be read; the message contains the remedy."""
