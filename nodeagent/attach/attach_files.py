"""The files of `nodeagent attach` in the folder ``attach`` of the state directory: its lock, and what the doctor reads.

The lock keeps two of them from moving netdevs at once, as during an update by hand.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from nodeagent.base.file_writing import make_folder, replace_changed_file
from nodeagent.base.regular_file import read_regular

ATTACH_FOLDER = "attach"
STATE_FILE = f"{ATTACH_FOLDER}/state.json"
_LOCK = "lock"


class WaitingPod(Struct, frozen=True):
    """A pod whose netdevs could not be moved, and why."""

    pod: str
    reason: str


class AttachState(Struct, frozen=True):
    """``runtime`` is the runtime with its version, empty while none is connected; ``obstacle`` then says why. ``pods``
    is the number of pods with netdevs."""

    runtime: str = ""
    obstacle: str = ""
    pods: int = 0
    waiting: tuple[WaitingPod, ...] = ()


class AttachFiles:
    """``directory`` is the state directory. Each call blocks and may raise ``OSError``."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / ATTACH_FOLDER

    def take_lock(self) -> int | None:
        """Return the descriptor of the lock until this process ends; ``None`` while another process has it."""
        make_folder(self.folder)
        descriptor = os.open(
            self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        """Whether ``nodeagent attach`` runs."""
        try:
            descriptor = os.open(self.folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def write_state(self, state: AttachState) -> None:
        replace_changed_file(self.folder.parent / STATE_FILE, msgspec.json.encode(state) + b"\n")

    def read_state(self) -> AttachState:
        """Return the state that was written last; an empty one without a file. Raises ``ValueError`` too."""
        try:
            return msgspec.json.decode(read_regular(self.folder.parent / STATE_FILE), type=AttachState)
        except FileNotFoundError:
            return AttachState()
