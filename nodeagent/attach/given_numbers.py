"""The controller's word on this node's rails in RailPartners, kept in a file of the state directory.

With the file the plan of the agent is the same after a restart, while the API server does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import STORED_SIZE_MAX
from nodeagent.fabric.rail_partners import RailNumber, RailPartnersSpec

log = logging.getLogger(__name__)

NUMBERS_FILE = f"{ATTACH_FOLDER}/rail-partners.json"


class GivenNumbers(NamedTuple):
    """The numbers of the node by the PCI addresses of its PFs, or by the names of its links (``nic0``) where an earlier
    controller wrote no more, and by prefix; and the addresses of others, with whose they are."""

    of: Mapping[tuple[str, str], RailNumber] = MappingProxyType({})
    taken: Mapping[IPv4Address | IPv6Address, str] = MappingProxyType({})

    def at(self, pf: str, name: str, prefix: object) -> RailNumber | None:
        """The number of a PF with this name in a prefix."""
        return self.of.get((pf, str(prefix))) or self.of.get((name, str(prefix)))


NOTHING_GIVEN = GivenNumbers()


class _Kept(msgspec.Struct):
    """The content of the file. A disk that was copied has the numbers of another node, and a Node that was made again
    under its name has another UID: its numbers may be another node's by now."""

    node: str
    spec: RailPartnersSpec
    uid: str = ""


def given_numbers(spec: RailPartnersSpec) -> GivenNumbers:
    """Read an object of the controller. Pure."""
    taken: dict[IPv4Address | IPv6Address, str] = {}
    for rail in spec.rails:
        for node, nic, address in (
            *((one.node, one.nic, one.address) for one in rail.probe),
            *((one.node, one.nic, one.address) for one in rail.answer),
        ):
            with suppress(ValueError):
                taken[ip_address(address)] = f"{nic} of the node {node}"
    return GivenNumbers({(one.pci_address or one.rail, one.prefix): one for one in spec.numbers}, taken)


def write_given_numbers(folder: Path, node: str, spec: RailPartnersSpec, uid: str = "") -> None:
    """Keep the object of the node that was read last, if it differs. ``folder`` is the state directory, ``uid`` that of
    the Node; empty: it is not known. Blocks; raises ``OSError``."""
    replace_changed_file(folder / NUMBERS_FILE, msgspec.json.encode(_Kept(node, spec, uid)) + b"\n")


def drop_given_numbers(folder: Path, uid: str) -> bool:
    """Remove the object that was kept for another Node than the one with this UID, also of the same name. Return
    whether there was one. Blocks; raises ``OSError``."""
    path = folder / NUMBERS_FILE
    with suppress(FileNotFoundError, ValueError):
        if msgspec.json.decode(read_regular(path, STORED_SIZE_MAX), type=_Kept).uid not in ("", uid):
            path.unlink()
            return True
    return False


def read_given_numbers(folder: Path, node: str) -> GivenNumbers:
    """The object of the node that was kept; nothing without a file, with that of another node, or if it cannot be read.
    Blocks."""
    path = folder / NUMBERS_FILE
    try:
        kept = msgspec.json.decode(read_regular(path, STORED_SIZE_MAX), type=_Kept)
        if kept.node == node:
            return given_numbers(kept.spec)
        log.warning("The numbers of another node are not used. file=%s node=%r", path, kept.node)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("The numbers of this node cannot be read. file=%s reason=%r", path, str(error))
    return NOTHING_GIVEN
