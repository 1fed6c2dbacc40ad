"""The files of the state folder that cannot be written, and what a restart loses. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class UnwritableMemory(msgspec.Struct, frozen=True):
    """A file of the state folder that cannot be written. ``loss`` is what a restart loses."""

    path: str
    reason: str
    loss: str


def unwritable_remark(files: Sequence[UnwritableMemory]) -> str:
    """Return the sentence about files of one folder, of which there is at least one."""
    folder = files[0].path.rpartition("/")[0]
    losses = "; ".join(dict.fromkeys(file.loss for file in files))
    return (
        f"the state folder {folder} cannot be written ({files[0].reason}), so after a restart {losses}. "
        "Mount a writable folder there or set health.stateDirectory"
    )
