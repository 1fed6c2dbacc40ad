"""How a room declares a setting.

A setting is a field ``Annotated[type, setting("meaning", ...)]`` of a ``Settings`` struct. The loader, the commented
default, the JSON schema and the table in the docs are made from these structs:

* In the file the field's name is in camelCase. The name contains the unit.
* Absent is ``None``. Lists are tuples and mean sets.
* A default suits a plain node; a setting that changes hardware does nothing by default.

A module with settings has no ``from __future__ import annotations``: msgspec would compile the text of each annotation
twice at each start, which takes longer than all else about the configuration.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from nodeagent.config import formats

RATE_MAX = 2**32 - 1  # IFLA_VF_RATE carries 32-bit values
SECONDS_MAX = 86400
ENTRIES_MAX = 64


def wire(name: str) -> str:
    """``slice_mib`` → ``sliceMiB``."""
    first, *rest = name.split("_")
    return first + "".join("MiB" if part == "mib" else part.capitalize() for part in rest)


def setting(
    meaning: str,
    *,
    required: bool = False,
    exponent: bool = False,
    restart: bool = False,
    example: tuple[str, msgspec.Struct] | None = None,
    missing: str | None = None,
    **bounds: Any,
) -> msgspec.Meta:
    """Declare a setting with its meaning and bounds.

    ``required``: the file must hold the key although the struct has a default. ``exponent``: the number may be
    written as 1e-12. ``restart``: a running daemon keeps the value it started with, also of every setting below this
    one (``config/in_force.py``). ``example``: a line of text and an entry that the commented default shows for a list.
    ``missing``: what a file must say that lacks a setting without a default, if the type does not show it.
    """
    extra = {
        "required": required,
        "exponent": exponent,
        "restart": restart,
        "example": example,
        "missing": missing,
    }
    return msgspec.Meta(description=meaning, extra=extra, **bounds)


def listed(meaning: str, at_most: int = 256) -> msgspec.Meta:
    """Declare a setting that is a set of values."""
    return setting(meaning, max_length=at_most, extra_json_schema={"uniqueItems": True})


Hex4 = Annotated[str, formats.HEX4]
PciAddress = Annotated[str, formats.PCI_ADDRESS]
Glob = Annotated[str, formats.GLOB]
NetdevGlob = Annotated[str, formats.NETDEV_GLOB]
Model = Annotated[str, formats.MODEL]
Uuid = Annotated[str, formats.UUID]
IndexRange = Annotated[str, formats.INDEX_RANGE]
DriverName = Annotated[str, formats.DRIVER_NAME]
AbsolutePath = Annotated[str, formats.ABSOLUTE_PATH]
Argument = Annotated[str, formats.ARGUMENT]
Prefix = Annotated[str, formats.PREFIX]
Name = Annotated[str, formats.NAME]
VfTemplate = Annotated[str, formats.VF_TEMPLATE]
GpuTemplate = Annotated[str, formats.GPU_TEMPLATE]
MigTemplate = Annotated[str, formats.MIG_TEMPLATE]
Address = Annotated[str, formats.LISTEN]
HostName = Annotated[str, formats.HOST_NAME]
SystemName = Annotated[str, formats.SYSTEM_NAME]
Count = Annotated[int, msgspec.Meta(ge=0, le=formats.VF_INDEX_MAX)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=SECONDS_MAX)]
LinkType = Literal["ethernet", "infiniband"]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=wire):
    """The root of all settings structs."""

    misplaced: ClassVar[Mapping[str, str]] = {}
    """Keys that a user may look for in this struct, each with the sentence that names its place."""
    when_empty: ClassVar[str] = "write the settings into it"
    """The remedy for an empty file that must hold these settings."""
