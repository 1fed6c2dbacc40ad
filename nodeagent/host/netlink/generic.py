"""Generic netlink: families by name, and the header that all their messages share."""

from __future__ import annotations

import struct
from collections.abc import Callable
from errno import ENOENT
from typing import Self, TypeVar

from nodeagent.host.netlink.message import (
    AbsentError,
    NetlinkError,
    RefusedError,
    attribute,
    attributes,
    number,
)
from nodeagent.host.netlink.socket import Dialog

T = TypeVar("T")

_PROTOCOL = 16  # NETLINK_GENERIC
_CONTROL = 16  # GENL_ID_CTRL
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2  # CTRL_CMD_*, CTRL_ATTR_*, include/uapi/linux/genetlink.h
_HEADER = struct.Struct("=BBH")  # command, version, reserved
HEADER_BYTES = _HEADER.size


class Generic:
    """A dialog with one family. ``version`` is the family's own.

    Raises ``AbsentError`` where this kernel has no such family.
    """

    def __init__(self, family: str, version: int = 1) -> None:
        self._dialog = Dialog(_PROTOCOL, family)
        self._version = version
        try:
            self._kind = _resolve(self._dialog, family)
        except NetlinkError:
            self._dialog.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._dialog.close()

    @property
    def overruns(self) -> int:
        return self._dialog.overruns

    def dump(self, command: int, body: bytes, read: Callable[[bytes], T]) -> list[T]:
        """``read`` gets payloads whose attributes begin at ``HEADER_BYTES``. Raises ``RefusedError``."""
        return self._dialog.dump(self._kind, self._message(command, body), read)

    def ask(self, command: int, body: bytes) -> bytes:
        return self._dialog.ask(self._kind, self._message(command, body))

    def _message(self, command: int, body: bytes) -> bytes:
        return _HEADER.pack(command, self._version, 0) + body


def _resolve(dialog: Dialog, family: str) -> int:
    body = _HEADER.pack(_GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, family.encode() + b"\0")
    try:
        found = number(attributes(dialog.ask(_CONTROL, body), HEADER_BYTES).get(_FAMILY_ID))
    except RefusedError as error:
        if error.code != ENOENT:
            raise
        found = None
    if found is None:
        raise AbsentError(f"this kernel has no netlink family {family}")
    return found
