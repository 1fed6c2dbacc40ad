"""The two files between the agent and ``nodeagent mps``, and the lock that shows whether the latter runs.

The agent writes which GPUs need a daemon, and ``nodeagent mps`` writes the state of each. The agent needs no right for
the daemons, and they do not end with it.

``nodeagent mps`` has more rights than the agent, which can write to this folder: the files are opened as
``host.foreign_folder`` says. A UUID becomes a part of a path, so both files are refused if one has another form, and
numbers and texts are bounded.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from nodeagent.base.file_writing import make_folder
from nodeagent.host.foreign_folder import ForeignFolder

WANTED, STATES, _LOCK = "wanted.json", "daemons.json", "lock"
_SIZE_MAX = 1 << 20
_GPUS_MAX = 128
_TEXT_MAX = 2048
_SHARED = 0o1771
"""The agent, of group 0, replaces its own file; the servers of clients of any user pass."""

_Uuid = Annotated[str, msgspec.Meta(pattern=r"^(GPU|MIG)-[0-9a-fA-F-]{1,64}\Z")]
Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
"""At most the kernel's PID_MAX_LIMIT."""
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class WantedDaemons(Struct, frozen=True, rename="camel"):
    """The UUIDs of the GPUs that need a daemon. ``exclusive_process``: set their compute mode too."""

    gpus: Annotated[tuple[_Uuid, ...], msgspec.Meta(max_length=_GPUS_MAX)] = ()
    exclusive_process: bool = False


class DaemonState(Struct, frozen=True, rename="camel"):
    """The daemon of one GPU. ``obstacle`` is why no program can use it, empty if one can. ``last_end`` is how the last
    one ended that was not asked to. ``exclusive``: the compute mode of the GPU was set."""

    uuid: _Uuid
    obstacle: Text = ""
    pid: Pid | None = None
    last_end: Text = ""
    exclusive: bool = False


class DaemonStates(Struct, frozen=True):
    """All daemons, by UUID."""

    daemons: Annotated[tuple[DaemonState, ...], msgspec.Meta(max_length=_GPUS_MAX)] = ()


class MpsFiles:
    """The files in one folder. Each call blocks and may raise ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def guard(self) -> None:
        """Let the agent replace its own file in the folder and nothing else. Only after it was read there: a link on
        the host may have led the container runtime to another folder, to which the agent cannot write."""
        with ForeignFolder.at(self.folder) as folder:
            folder.guard(_SHARED)

    def write_wanted(self, wanted: WantedDaemons) -> None:
        self._write(WANTED, wanted)

    def read_wanted(self) -> WantedDaemons:
        """Raises ``FileNotFoundError`` without a file, and ``ValueError`` for a file that is not valid."""
        return msgspec.json.decode(self._read(WANTED), type=WantedDaemons)

    def has_wanted(self) -> bool:
        return os.path.lexists(self.folder / WANTED)

    def write_states(self, states: DaemonStates) -> None:
        self._write(STATES, states)

    def read_states(self) -> DaemonStates:
        """Return no state without a file, and for one that is not valid."""
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode(self._read(STATES), type=DaemonStates)
        return DaemonStates()

    def take_lock(self) -> int | None:
        """Return the descriptor of the lock until this process ends; ``None`` while another process has it."""
        with ForeignFolder.at(self.folder) as folder:
            descriptor = folder.open(_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        """Whether ``nodeagent mps`` runs."""
        try:
            with ForeignFolder.at(self.folder) as folder:
                descriptor = folder.open(_LOCK)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _read(self, name: str) -> bytes:
        with ForeignFolder.at(self.folder) as folder:
            return folder.read(name, _SIZE_MAX)

    def _write(self, name: str, content: Struct) -> None:
        make_folder(self.folder)
        with ForeignFolder.at(self.folder) as folder:
            folder.replace(name, msgspec.json.encode(content))
