"""How a setting is declared: what every struct of the configuration is made from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from nodeagent.config import formats

AUTO = "auto"
RATE_MAX = 2**32 - 1  # IFLA_VF_RATE carries 32-bit values
MTU_MAX = 65535
SECONDS_MAX = 86400
ENTRIES_MAX = 64


def wire(name: str) -> str:
    """``slice_mib`` → ``sliceMiB``."""
    first, *rest = name.split("_")
    return first + "".join("MiB" if part == "mib" else part.capitalize() for part in rest)


def setting(meaning: str, *, required: bool = False, exponent: bool = False, **bounds: Any) -> msgspec.Meta:
    """``required``: the file must hold the key although the struct has a default. ``exponent``: a number that
    may be written as 1e-12."""
    return msgspec.Meta(description=meaning, extra={"required": required, "exponent": exponent}, **bounds)


def listed(meaning: str, at_most: int = 256) -> msgspec.Meta:
    """A setting that is a set of values, each standing once."""
    return setting(meaning, max_length=at_most, extra_json_schema={"uniqueItems": True})


Hex4 = Annotated[str, formats.HEX4]
PciAddress = Annotated[str, formats.PCI_ADDRESS]
Glob = Annotated[str, formats.GLOB]
Model = Annotated[str, formats.MODEL]
Uuid = Annotated[str, formats.UUID]
IndexRange = Annotated[str, formats.INDEX_RANGE]
Driver = Annotated[str, formats.DRIVER]
Directory = Annotated[str, formats.DIRECTORY]
Argument = Annotated[str, formats.ARGUMENT]
Prefix = Annotated[str, formats.PREFIX]
Name = Annotated[str, formats.NAME]
Template = Annotated[str, formats.TEMPLATE]
Address = Annotated[str, formats.LISTEN]
Count = Annotated[int, msgspec.Meta(ge=0, le=formats.VF_INDEX_MAX)]
Xid = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Mtu = Annotated[int, msgspec.Meta(ge=68, le=MTU_MAX)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=SECONDS_MAX)]
LinkType = Literal["ethernet", "infiniband"]
Strategy = Literal["cdi", "envvar"]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=wire):
    """What all the structs here have in common."""
