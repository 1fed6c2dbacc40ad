"""The files of the state folder that cannot be written or read, and what is lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class UnwritableMemory(msgspec.Struct, frozen=True):
    """A file of the state folder that cannot be written, or that is ``broken``: it cannot be read. ``loss`` is what a
    restart loses; a broken file that the agent has not read before, ``known``, has lost it already."""

    path: str
    reason: str
    loss: str
    broken: bool = False
    known: bool = True


def unwritable_remark(files: Sequence[UnwritableMemory]) -> str:
    """Return the sentences about files of one folder, of which there is at least one."""
    sentences = [
        f"{file.path} cannot be read ({file.reason}), so {'after a restart ' * file.known}{file.loss}. "
        "Move it away, and set again what it held"
        for file in files
        if file.broken
    ]
    if unwritten := [file for file in files if not file.broken]:
        folder = unwritten[0].path.rpartition("/")[0]
        losses = "; ".join(dict.fromkeys(file.loss for file in unwritten))
        sentences.append(
            f"the state folder {folder} cannot be written ({unwritten[0].reason}), so after a restart {losses}. "
            "Mount a writable folder there or set health.stateDirectory"
        )
    return ". ".join(sentences)
