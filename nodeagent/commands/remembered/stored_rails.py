"""The rails that the agent stores: which NIC has which rail, and how to forget a NIC that does not come back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.commands.options import GOOD, USAGE

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.base.stored_file import StoredFile
    from nodeagent.kinds.rail_numbers import Rail
    from nodeagent.kubelet.rail_memory import RailsFile


_STATES = {True: "present", False: "missing", None: "not known: a file of it does not answer"}


class RailRow(NamedTuple):
    """One rail of one entry of the configuration, as it is stored, and ``rail`` with its present address. ``present``
    is ``None`` where a file of the NIC does not answer."""

    name: str
    stored: Rail
    rail: Rail
    present: bool | None
    netdev: str | None
    vfs: int
    in_force: bool


def table(config: Config, root: Path) -> str:
    """The rails in force and those of earlier configurations."""
    from nodeagent.commands.terminal import screen, section

    file, content = _read(config, root)
    rows = _rows(config, root, content)
    if not rows:
        return f"No rails are stored in {file.path}; the agent stores them when it offers VFs.\n"
    heads = ("RAIL", "PCI ADDRESS", "PERMANENT MAC", "NETDEV", "VFS", "STATE")
    return section("RAILS", heads, map(_cells, rows), screen())


def objects(config: Config, root: Path) -> list[dict[str, object]]:
    """The rails for programs."""
    _, content = _read(config, root)
    return [_as_object(row) for row in _rows(config, root, content)]


def _cells(row: RailRow) -> tuple[str, ...]:
    state = _STATES[row.present]
    return (
        row.name,
        row.rail.pci_address or "-",
        row.rail.permanent_mac or "-",
        row.netdev or "-",
        str(row.vfs),
        state if row.in_force else f"{state}, of an earlier configuration",
    )


def _as_object(row: RailRow) -> dict[str, object]:
    return {
        "name": row.name,
        "rail": row.rail.number,
        "pciAddress": row.rail.pci_address,
        "permanentMac": row.rail.permanent_mac,
        "netdev": row.netdev,
        "vfs": row.vfs,
        "present": row.present,
        "inForce": row.in_force,
    }


def forget(config: Config, root: Path, names: Sequence[str]) -> int:
    """Remove these rails from the file; without a name every rail. Return the exit code."""
    from nodeagent.kubelet.rail_memory import without

    file, content = _read(config, root)
    rows = _rows(config, root, content)
    wanted = {name.rpartition("/")[2].lower() for name in names}
    unknown = wanted - {key for row in rows for key in _keys(row)}
    if unknown or not rows:
        known = ", ".join(row.name for row in rows) or "none"
        print(
            f"nodeagent: {', '.join(sorted(unknown)) or 'forget'}: no such rail in {file.path}; there are: {known}",
            file=sys.stderr,
        )
        return USAGE
    gone = [row for row in rows if not names or wanted & _keys(row)]
    rails = [row.stored for row in gone]
    file.write(without(content, rails, names=not config.kubelet.pod_resources))
    for row in gone:
        nic = row.rail.pci_address or row.rail.permanent_mac
        if row.present is None:
            print(
                f"{row.name} ({nic}) is forgotten. Whether the NIC is here is not known: a file of it hangs."
            )
        elif row.present:
            print(f"{row.name} ({nic}) is forgotten. The NIC is here: drain the node and restart the agent.")
        else:
            print(
                f"{row.name} ({nic}) is forgotten, and its number is free; "
                f"a running agent takes this over within {config.scan_seconds:g} s."
            )
    return GOOD


def _keys(row: RailRow) -> set[str]:
    names = row.name.split(",") if row.in_force else []
    return {key.lower() for key in (*names, row.rail.pci_address, row.rail.permanent_mac) if key}


def _read(config: Config, root: Path) -> tuple[StoredFile[RailsFile], RailsFile]:
    """Return the file and its content. Raises ``RailsError``."""
    from nodeagent.base.stored_file import StoredFile
    from nodeagent.host.sysfs import Tree
    from nodeagent.kubelet.rail_memory import FORM, RailsFile

    file = StoredFile(Tree(root).path(config.health.state_directory), FORM)
    content = file.read()
    if file.unreadable is not None:
        raise RailsError(f"{file.path} cannot be read: {file.unreadable}; delete it to number the NICs again")
    return file, content or RailsFile()


def _rows(config: Config, root: Path, content: RailsFile) -> list[RailRow]:
    """The rails with the present addresses of their NICs; those of the configuration first."""
    from nodeagent.host.sysfs import Tree
    from nodeagent.kinds.rail_numbers import match, nics_of, selection
    from nodeagent.kinds.resource_settings import VfResource
    from nodeagent.sources import pci_source
    from nodeagent.sources.machine_access import permanent_macs
    from nodeagent.sources.nic_identity import ethernet_mac

    tree = Tree(root)
    facts = pci_source.scan_once(tree)
    macs = permanent_macs(tree, facts.links)
    nics = {address: ethernet_mac(macs.get(address)) for address in nics_of(facts.functions, ())}
    in_force: dict[str, list[str]] = {}
    for entry in config.resources:
        if isinstance(entry, VfResource):
            in_force.setdefault(selection(entry), []).append(entry.name)
    stored = {nic.pf.pci_address: nic for nic in content.nics}
    present = {function.pci_address: function for function in facts.functions}
    hanging = pci_source.hanging_devices(tree, facts.links)
    rows = []
    for key, rails in content.numbering.items():
        known = {rail.number: rail for rail in rails}
        for rail in match(rails, nics):
            address = rail.pci_address or ""
            nic, here = stored.get(address), present.get(address)
            netdev = here.netdev if here else nic.pf.netdev if nic else None
            vfs = here.num_vfs or 0 if here else len(nic.vfs) if nic else 0
            names = [_name(name, rail, netdev) for name in in_force.get(key, [str(rail.number)])]
            name = ",".join(dict.fromkeys(names))
            before = known[rail.number]
            is_here = None if here is None and address in hanging else here is not None
            rows.append(RailRow(name, before, rail, is_here, netdev, vfs, key in in_force))
    return sorted(rows, key=lambda row: (not row.in_force, row.rail.number))


def _name(template: str, rail: Rail, netdev: str | None) -> str:
    """The name of the resource without its prefix, as far as it is known."""
    return template.replace("{rail}", str(rail.number)).replace("{netdev}", netdev or "{netdev}")


class RailsError(Exception):
    """The rails cannot be read or changed; the message contains the remedy."""
