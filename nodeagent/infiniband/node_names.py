"""Names of InfiniBand nodes: from their descriptions, and from a map of GUIDs. Pure.

A description is free text that its owner sets. A managed switch has the form ``MF0;NAME:MODEL/U1``; a chip of a modular
switch adds its board, ``MF0;NAME:MODEL/L03/U1``, and each chip is a switch. All unmanaged switches of a model have one
text, ``Quantum-2 Mellanox Technologies``: it is no name, and a map of GUIDs gives them one.

The map has the form of opensm and infiniband-diags (``--node-name-map``): a line has a GUID and a quoted name, such as
``0xb83fd20300aa0000 "su1-leaf0"``, and ``#`` begins a comment.

Sources: ``libibnetdisc/src/chassis.c`` and ``ibdiag_common.c`` of rdma-core 44 (forms of descriptions),
``complib/cl_nodenamemap.c`` of opensm 3.3 (the map).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.lldp.escaping import printable, text_of

NameMap = Mapping[int, str]
"""Names by node GUID, printable."""

_NAMES_MAX = 200_000
_NAME_MAX = 255
_MANAGED = re.compile(r"M[A-Z]\d;([^:]*)(?::[^/]*)?((?:/[^/]*)*)", re.DOTALL)
_BOARD = re.compile(r"/([LS]\d+)(?=[/:]|$)")
_CHIP = re.compile(r"/(U\d+)$")
_MODEL_WORDS = ("Mellanox Technologies", "NVIDIA", "Infiniscale")
"""Words of the descriptions that the firmware of a switch or an adapter has until an administrator sets another one."""
_PADDING = b"\0\t\n\v\f\r "
_LINE = re.compile(r'\s*(?:0[xX])?([0-9a-fA-F]{1,16})\s+"([^"]*)"\s*(?:#.*)?')


class NameMapError(ValueError):
    """The map cannot be read; the message has the line."""


def switch_name(description: bytes) -> str | None:
    """The name in a switch's description, printable; ``None`` if it has only the name of its model."""
    text = text_of(description.strip(_PADDING))
    if managed := _MANAGED.fullmatch(text):
        name, places = managed[1].strip(" \0"), managed[2]
        if not name:
            return None
        board, chip = _BOARD.search(places), _CHIP.search(places)
        if board is not None:
            name += f"/{board[1]}"
        if chip is not None and (board is not None or chip[1] != "U1"):
            name += f"/{chip[1]}"
        return printable(name)
    return _own_name(text)


def adapter_name(description: bytes) -> str | None:
    """The host and device in an adapter's description (``gpu-001 mlx5_0``), printable; ``None`` for a model's name."""
    return _own_name(text_of(description.strip(_PADDING)))


def _own_name(text: str) -> str | None:
    return None if not text or any(word in text for word in _MODEL_WORDS) else printable(text)


def parse_name_map(text: bytes) -> dict[int, str]:
    """Read a map. Raises ``NameMapError``."""
    names: dict[int, str] = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        content = text_of(line).strip()
        if not content or content.startswith("#"):
            continue
        match = _LINE.fullmatch(content)
        if match is None:
            raise NameMapError(f'line {number} is not a GUID and a quoted name: 0xb83fd20300aa0000 "leaf-1"')
        guid, name = int(match[1], 16), printable(match[2].strip(" \0"))
        if not 1 <= len(name) <= _NAME_MAX:
            raise NameMapError(f"line {number}: a name has 1 to {_NAME_MAX} characters")
        if names.setdefault(guid, name) != name:
            raise NameMapError(f"line {number}: the GUID {match[1]} has another name on an earlier line")
        if len(names) > _NAMES_MAX:
            raise NameMapError(f"it has more than {_NAMES_MAX} names")
    return names
