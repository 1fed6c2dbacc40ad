"""The section `ipam` of a CNI configuration as a pattern of the rails. Pure.

Each text in it may have the number of the rail, by the grammar of ``address_plan``; nothing else is evaluated, and keys
are taken as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from nodeagent.attach.address_plan import of_rail, pattern_complaint

IpamSection = Mapping[str, Any]
"""JSON: texts, numbers, booleans, null, lists and mappings."""

SECTION_MAX = 16 * 1024
"""Bytes of JSON. A section of host-local for eight ranges has one thousand."""
_TYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_UNFIT = {
    "dhcp": "asks in the pod's network namespace for a lease, where the netdev is only after it has an address",
    "static": "gives each pod the same addresses",
    "whereabouts": "takes addresses back at night, under running pods, that Multus does not list in network-status",
}
"""Plugins that cannot give each VF an address of its own until its pod ends, and why."""


def ipam_complaint(section: IpamSection) -> str | None:
    """Why a section gives no addresses to the VFs of the rails; ``None`` if it may."""
    kind = section.get("type")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        return "`type` must be the file name of an IPAM plugin, such as host-local"
    if (why := _UNFIT.get(kind)) is not None:
        return f"type: {kind} {why}: use host-local or nv-ipam"
    if len(msgspec.json.encode(section)) > SECTION_MAX:
        return f"it is larger than {SECTION_MAX} bytes of JSON"
    has_rail = False
    for path, text in _texts(section, ""):
        if "{" not in text and "}" not in text:
            continue
        if fault := pattern_complaint(text):
            return f"{path}: {fault}"
        has_rail = True
    if not has_rail:
        return "it needs {rail} in a text, so that each rail has its own addresses"
    return None


def ipam_of_rail(section: IpamSection, rail: int) -> dict[str, Any]:
    """The section for one rail.

    >>> ipam_of_rail({"type": "host-local", "ranges": [[{"subnet": "10.{100+rail}.0.0/16"}]]}, 3)["ranges"]
    [[{'subnet': '10.103.0.0/16'}]]
    """
    return {key: _of_rail(value, rail) for key, value in section.items()}


def _of_rail(value: Any, rail: int) -> Any:
    if isinstance(value, str):
        return of_rail(value, rail)
    if isinstance(value, Mapping):
        return {key: _of_rail(one, rail) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_of_rail(one, rail) for one in value]
    return value


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each text with its path: ``ranges[0][0].subnet``."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from _texts(one, f"{path}[{place}]")
