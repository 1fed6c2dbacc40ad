"""The rails and GPUs that the agent stores: which of them are here, and how to forget one that does not come back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from nodeagent.agent_config import Config
from nodeagent.base.plain_text import one_line
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.console.json_document import json_document
from nodeagent.console.options import FAILED, GOOD, USAGE
from nodeagent.console.terminal import screen, screen_section, tell
from nodeagent.facts.card_identity import mac_and_guid
from nodeagent.host.sysfs import Tree
from nodeagent.kinds.rail_numbers import Rail, match, nic_names, nics_of, selection
from nodeagent.kinds.resource_settings import (
    network_entries,
)
from nodeagent.kubelet import rail_memory
from nodeagent.kubelet.rail_memory import RailsFile, without
from nodeagent.sources import pci_source, remembered_gpus
from nodeagent.sources.machine_access import permanent_macs
from nodeagent.sources.nic_identity import with_permanent_macs
from nodeagent.sources.pci_source import PciFacts
from nodeagent.sources.remembered_gpus import RememberedGpu, sound

T = TypeVar("T")

_STATES = {True: "present", False: "missing", None: "not known: a file of it does not answer"}
_ON_BUS = {True: "yes", False: "no", None: "not known"}


class RememberedError(Exception):
    """A file cannot be read; the message contains the remedy."""


class RailRow(NamedTuple):
    """One rail of one entry of the configuration, as it is stored, and ``rail`` with its present address. ``present``
    is ``None`` where a file of the NIC does not answer. ``nic`` is the name of its NIC in all verbs and pages."""

    name: str
    nic: str | None
    stored: Rail
    rail: Rail
    present: bool | None
    netdev: str | None
    rdma: str | None
    vfs: int
    in_force: bool


class NamedDevice(NamedTuple):
    """A device that the agent stores: ``name`` is nic3 or gpu2, ``device`` a PCI address or UUID, ``identity`` that of
    the card of a NIC."""

    name: str
    device: str
    identity: str | None = None


class _Machine:
    """The PCI bus now, without the devices of which a file hangs."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root)
        self.facts: PciFacts = pci_source.scan_once(self.tree)
        self.hanging: Collection[str] = pci_source.hanging_devices(self.tree, self.facts.links)

    def has(self, address: str, present: Collection[str]) -> bool | None:
        """Whether a device is among the ``present`` ones; ``None`` where a file of it does not answer."""
        return True if address in present else None if address in self.hanging else False

    def has_gpu(self, gpu: RememberedGpu) -> bool | None:
        return self.has(gpu.pci_address, {here.pci_address for here in self.facts.gpus})


def show_stored_devices(config: Config, options: argparse.Namespace) -> int:
    """Print the rails in force and those of earlier configurations, and the GPUs."""
    file, content = _rails(config, options.root)
    machine = _Machine(options.root)
    rows = _rail_rows(config, machine, content)
    stored, gpus = _gpus(config, options.root)
    if options.json:
        rails = [_rail_object(row) for row in rows]
        listed = [_gpu_object(gpu, machine.has_gpu(gpu)) for gpu in gpus]
        print(json_document({"rails": rails, "gpus": listed}, options.root, None))
        return GOOD
    parts = [
        f"No rails are stored in {file.path}; the agent stores them when it offers VFs.\n",
        f"No GPUs are stored in {stored.path}; the agent stores them when the driver lists them.\n",
    ]
    if rows:
        heads: Sequence[str] = ("RAIL", "PCI ADDRESS", "MAC OR GUID", "NETDEV", "VFS", "STATE")
        parts[0] = screen_section("RAILS", heads, map(_rail_cells, rows), screen())
    if gpus:
        heads = ("GPU", "UUID", "MODEL", "MEMORY", "PCI ADDRESS", "ON THE BUS")
        cells = (_gpu_cells(gpu, machine.has_gpu(gpu)) for gpu in gpus)
        parts[1] = screen_section("GPUS", heads, cells, screen(), optional=("MODEL",))
    print("\n".join(parts), end="")
    return GOOD


def device_names(config: Config, root: Path) -> dict[str, NamedDevice]:
    """The NICs with a rail in force and the GPUs, by each of their names in small letters."""
    found: dict[str, NamedDevice] = {}
    for row in _rail_rows(config, _Machine(root), _rails(config, root)[1]):
        if row.in_force and row.rail.pci_address:
            device = NamedDevice(row.nic or row.name, row.rail.pci_address, row.rail.identity)
            found |= dict.fromkeys(_keys(row), device)
    for gpu in _gpus(config, root)[1]:
        device = NamedDevice(f"gpu{gpu.index}", gpu.uuid)
        found |= {name.lower(): device for name in (device.name, gpu.uuid, gpu.pci_address)}
    return found


def read_stored(
    config: Config, root: Path, form: StoredForm[T], remedy: str
) -> tuple[StoredFile[T], T | None]:
    """The file and its content. Raises ``RememberedError``."""
    file = StoredFile(Tree(root).path(config.health.state_directory), form)
    content = file.read()
    if file.unreadable is not None:
        raise RememberedError(f"{file.path} cannot be read: {file.unreadable}; {remedy}")
    return file, content


# --- rails ----------------------------------------------------------------------------------------------


def _rails(config: Config, root: Path) -> tuple[StoredFile[RailsFile], RailsFile]:
    file, content = read_stored(config, root, rail_memory.RAILS_FORM, "delete it to number the NICs again")
    return file, content or RailsFile()


def _rail_cells(row: RailRow) -> Sequence[object]:
    state = _STATES[row.present] if row.in_force else f"{_STATES[row.present]}, of an earlier configuration"
    return row.name, row.rail.pci_address or None, row.rail.identity, row.netdev, row.vfs, state


def _rail_object(row: RailRow) -> dict[str, object]:
    mac, guid = mac_and_guid(row.rail.identity)
    return {
        "name": row.name,
        "rail": row.rail.number,
        "pciAddress": row.rail.pci_address,
        "permanentMac": mac,
        "nodeGuid": guid,
        "netdev": row.netdev,
        "rdma": row.rdma,
        "vfs": row.vfs,
        "present": row.present,
        "inForce": row.in_force,
    }


def forget_rails(config: Config, root: Path, names: Sequence[str]) -> int:
    """Remove these rails from the file; without a name every rail. Return the exit code."""
    file, content = _rails(config, root)
    rows = _rail_rows(config, _Machine(root), content)
    wanted = {name.rpartition("/")[2].lower() for name in names}
    unknown = wanted - {key for row in rows for key in _keys(row)}
    if unknown:
        return _refuse(", ".join(sorted(unknown)), "rail", file.path, [row.name for row in rows])
    if not rows:
        print(f"nodeagent: no rail is stored in {file.path}", file=sys.stderr)
        return USAGE
    gone = [row for row in rows if not names or wanted & _keys(row)]
    file.write(without(content, [row.stored for row in gone], names=not config.kubelet.pod_resources))
    said = []
    for row in gone:
        nic = row.rail.pci_address or row.rail.identity
        outcome = {
            None: ". Whether the NIC is here is not known: a file of it hangs.",
            True: ". The NIC is here: drain the node and restart the agent.",
            False: f", and its number is free; a running agent takes this over within {config.scan_seconds:g} s.",
        }
        said.append(f"{row.name} ({nic}) is forgotten{outcome[row.present]}")
    return GOOD if tell("\n".join(said)) else FAILED


def _refuse(unknown: str, kind: str, file: Path | None, known: Sequence[str]) -> int:
    there = ", ".join(known) or "none"
    print(f"nodeagent: {unknown}: no such {kind} in {file}; there are: {there}", file=sys.stderr)
    return USAGE


def _keys(row: RailRow) -> set[str]:
    names = row.name.split(",") if row.in_force else ()
    others = (row.nic, row.rail.pci_address, row.rail.identity, row.netdev, row.rdma)
    return {key.lower() for key in (*names, *others) if key}


def _rail_rows(config: Config, machine: _Machine, content: RailsFile) -> list[RailRow]:
    """The rails with the present addresses of their NICs; those of the configuration first."""
    functions, links = machine.facts.functions, machine.facts.links
    nics = nics_of(functions, with_permanent_macs(links, permanent_macs(machine.tree, links)))
    in_force: dict[str, list[str]] = {}
    for entry in network_entries(config.resources):
        in_force.setdefault(selection(entry), []).append(entry.name)
    stored = {nic.pf.pci_address: nic for nic in content.nics}
    present = {function.pci_address: function for function in functions}
    numbering = {key: (rails, match(rails, nics)) for key, rails in content.numbering.items()}
    names = nic_names(
        {
            it.pci_address: it.number
            for key in in_force
            for it in numbering.get(key, ((), ()))[1]
            if it.pci_address
        }
    )
    rows = []
    for key, (rails, matched) in numbering.items():
        known = {rail.number: rail for rail in rails}
        for rail in matched:
            address = rail.pci_address or ""
            nic, here = stored.get(address), present.get(address)
            netdev = here.netdev if here else nic.pf.netdev if nic else None
            vfs = here.num_vfs or 0 if here else len(nic.vfs) if nic else 0
            name = ",".join(_names(in_force.get(key, [str(rail.number)]), rail, netdev))
            is_here = machine.has(address, present)
            rdma = here.rdma.device if here and here.rdma else None
            nic_name = names.get(address) if key in in_force else None
            row = RailRow(
                name, nic_name, known[rail.number], rail, is_here, netdev, rdma, vfs, key in in_force
            )
            rows.append(row)
    return sorted(rows, key=lambda row: (not row.in_force, row.rail.number))


def _names(templates: Sequence[str], rail: Rail, netdev: str | None) -> Iterator[str]:
    """The names of the resources without their prefix, as far as they are known, each once."""
    number = str(rail.number)
    names = (name.replace("{rail}", number).replace("{netdev}", netdev or "{netdev}") for name in templates)
    yield from dict.fromkeys(names)


# --- GPUs -----------------------------------------------------------------------------------------------


def _gpus(
    config: Config, root: Path
) -> tuple[StoredFile[tuple[RememberedGpu, ...]], tuple[RememberedGpu, ...]]:
    file, gpus = read_stored(
        config, root, remembered_gpus.GPUS_FORM, "delete it, and the agent writes it again"
    )
    return file, sound(gpus or ())


def _gpu_cells(gpu: RememberedGpu, on_bus: bool | None) -> Sequence[object]:
    memory = f"{gpu.memory_mib} MiB"
    return gpu.index, gpu.uuid, gpu.name or None, memory, gpu.pci_address, _ON_BUS[on_bus]


def _gpu_object(gpu: RememberedGpu, on_bus: bool | None) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.name,
        "memoryMib": gpu.memory_mib,
        "pciAddress": gpu.pci_address,
        "onBus": on_bus,
    }


def forget_gpus(config: Config, root: Path, names: Sequence[str]) -> int:
    """Remove these GPUs, named by UUID, from the file. Return the exit code."""
    stored, gpus = _gpus(config, root)
    unknown = set(names) - {gpu.uuid for gpu in gpus}
    if unknown:
        wrong = ", ".join(one_line(name, 64) for name in sorted(unknown))
        return _refuse(wrong, "GPU", stored.path, [gpu.uuid for gpu in gpus])
    stored.write(tuple(gpu for gpu in gpus if gpu.uuid not in names))
    within = f"a running agent takes this over within {config.scan_seconds:g} s"
    said = [f"{gpu.uuid} is forgotten; {within}." for gpu in gpus if gpu.uuid in names]
    return GOOD if tell("\n".join(said)) else FAILED
