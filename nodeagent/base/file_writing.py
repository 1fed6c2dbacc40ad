"""Replace files in one step, and find out why a folder takes none."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from nodeagent.base.regular_file import read_regular

PRIVATE_FOLDER, PUBLIC_FOLDER = 0o700, 0o755
ABANDONED_S = 600.0
"""A temporary file that is older than this has no writer any more: a disk that hangs for so long is dead."""
_HEX = "[0-9a-f]" * 8


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    folder_mode: int = PRIVATE_FOLDER,
    durable: bool = False,
) -> None:
    """Put ``content`` at ``path`` in one step: readers see the old file or the new one. Blocks.

    The file has ``mode``, and a folder that has to be created has ``folder_mode``, whatever the umask is.
    ``durable`` waits until the disk has the content and the name, so that both outlive a power failure. An old
    file is replaced whatever its mode is. Raises ``OSError`` with ``path`` as its file name; no temporary file
    is left then.
    """
    # Two agents of one node may have one PID, each in its own container, and an abandoned thread may write late.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        make_folder(path.parent, folder_mode)
        descriptor = os.open(temporary, flags, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        error.filename = str(path)
        raise


def try_writing(folder: Path, size: int, folder_mode: int = PRIVATE_FOLDER) -> None:
    """Write a file of ``size`` bytes into the folder and remove it. Blocks; raises ``OSError`` with the folder's name.

    Free blocks and permissions alone prove nothing: quotas, and blocks reserved for root, count too.
    """
    trial = folder / f".nodeagent.{os.urandom(4).hex()}.trial"
    try:
        replace_file(trial, b"\n" * size, folder_mode=folder_mode)
        trial.unlink()
    except OSError as error:
        error.filename = str(folder)
        raise


def replace_changed_file(
    path: Path, content: bytes, *, mode: int = 0o600, folder_mode: int = PRIVATE_FOLDER, durable: bool = False
) -> bool:
    """Replace a file as ``replace_file`` does, unless it has the content. Return whether it was written."""
    with suppress(OSError, ValueError):
        if read_regular(path) == content:
            return False
    replace_file(path, content, mode=mode, folder_mode=folder_mode, durable=durable)
    return True


def remove_abandoned(folder: Path, name: str) -> None:
    """Remove what ``replace_file`` left of the files that ``name`` matches, a pattern of ``fnmatch``, and what
    ``try_writing`` left, because the machine lost power or the process was killed. Blocks; what cannot be removed
    stays."""
    left = (f".{name}.{_HEX}.tmp", f".nodeagent.{_HEX}.trial", f"..nodeagent.{_HEX}.trial.{_HEX}.tmp")
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and any(fnmatchcase(entry.name, one) for one in left):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_S:
                        Path(entry.path).unlink()


class Leftovers:
    """The remains of writes of files with these names in a folder. ``sweep`` removes them at once, and then regularly:
    after a power failure and a quick start they are too young at first."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder, self._names = folder, names
        self._next_at = float("-inf")

    def sweep(self) -> None:
        """Blocks."""
        if (now := time.monotonic()) >= self._next_at:
            self._next_at = now + ABANDONED_S
            for name in self._names:
                remove_abandoned(self._folder, name)


def make_folder(path: Path, mode: int = PRIVATE_FOLDER) -> None:
    """Create a folder with ``mode``, and those above it that are missing with 0755, whatever the umask is.

    A folder that exists keeps its mode. Blocks. Raises ``OSError``, such as ``FileExistsError`` for a file at ``path``.
    """
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        make_folder(path.parent, PUBLIC_FOLDER)
        make_folder(path, mode)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(mode)


def nearest_folder(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists. Blocks."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def unwritable_because(folder: Path) -> str | None:
    """Return why no file can be created in a folder, without creating one; ``None`` if one can.

    Raises ``OSError`` if the folder does not exist.
    """
    file_system = os.statvfs(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it is mounted read-only" if file_system.f_flag & os.ST_RDONLY else "no permission to write"
    if file_system.f_blocks and not file_system.f_bavail:
        return "the file system is full"
    if file_system.f_files and not file_system.f_favail:
        return "the file system has no inode left"
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
