"""The two files between the agent and ``nodeagent mps``, and the lock that shows whether the latter runs.

The agent writes which GPUs need a daemon, and ``nodeagent mps`` writes the state of each. The agent needs no right for
the daemons, and they do not end with it.

``nodeagent mps`` has more rights than the agent, which can write to this folder: a UUID becomes a part of a path, so
both files are refused if one has another form.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from nodeagent.host.file_writing import replace_file
from nodeagent.regular_file import read_regular

WANTED, STATES, LOCK = "wanted.json", "daemons.json", "lock"
_SIZE_MAX = 1 << 20
_GPUS_MAX = 1024

Uuid = Annotated[str, msgspec.Meta(pattern=r"^(GPU|MIG)-[0-9a-fA-F-]{1,64}\Z")]


class WantedDaemons(Struct, frozen=True, rename="camel"):
    """The UUIDs of the GPUs that need a daemon. ``exclusive_process``: set their compute mode too."""

    gpus: Annotated[tuple[Uuid, ...], msgspec.Meta(max_length=_GPUS_MAX)] = ()
    exclusive_process: bool = False


class DaemonState(Struct, frozen=True, rename="camel"):
    """The daemon of one GPU. ``obstacle`` is why no program can use it, empty if one can. ``last_end`` is how the last
    one ended that was not asked to. ``exclusive``: the compute mode of the GPU was set."""

    uuid: Uuid
    obstacle: str = ""
    pid: int | None = None
    last_end: str = ""
    exclusive: bool = False


class DaemonStates(Struct, frozen=True):
    """All daemons, by UUID."""

    daemons: Annotated[tuple[DaemonState, ...], msgspec.Meta(max_length=_GPUS_MAX)] = ()


class MpsFiles:
    """The files in one folder. Each call blocks and may raise ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_wanted(self, wanted: WantedDaemons) -> None:
        replace_file(self.folder / WANTED, msgspec.json.encode(wanted))

    def read_wanted(self) -> WantedDaemons:
        """Return an empty list without a file. Raises ``ValueError`` for a file that is not valid."""
        try:
            content = read_regular(str(self.folder / WANTED), _SIZE_MAX)
        except FileNotFoundError:
            return WantedDaemons()
        return msgspec.json.decode(content, type=WantedDaemons)

    def write_states(self, states: DaemonStates) -> None:
        replace_file(self.folder / STATES, msgspec.json.encode(states))

    def read_states(self) -> DaemonStates:
        """Return no state without a file, and for one that is not valid."""
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode(read_regular(str(self.folder / STATES), _SIZE_MAX), type=DaemonStates)
        return DaemonStates()

    def take_lock(self) -> int | None:
        """Return the descriptor of the lock until this process ends; ``None`` while another process has it."""
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        """Whether ``nodeagent mps`` runs."""
        try:
            descriptor = os.open(self.folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
