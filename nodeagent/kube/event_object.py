"""What a watch tells: one change of one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """``type`` is ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``; a bookmark has no object."""

    type: str
    object: T | None
    resource_version: str
