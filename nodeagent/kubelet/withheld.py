"""The resources that are not offered, and the files that keep them from being offered. Pure."""

from __future__ import annotations

import msgspec


class Withheld(msgspec.Struct, frozen=True):
    """A configured resource that is not offered. ``resource`` is the name of its entry while the PFs that name it
    are not known: ``nic{rail}``."""

    resource: str
    reason: str

    @property
    def named(self) -> bool:
        """Whether ``resource`` is a whole name, prefix included."""
        return "/" in self.resource


class UnwritableFile(msgspec.Struct, frozen=True):
    """A file or folder that cannot be written. ``error`` is the name of the errno: ``ENOSPC``."""

    path: str
    error: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} cannot be written: {self.cause} ({self.error}); {self.remedy}"
