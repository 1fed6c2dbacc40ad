"""Read a regular file, and refuse everything else at its path before a byte is read.

Opening a named pipe waits for a writer, a device may return bytes without end, and reading a socket fails with a
number. A disk or a driver that does not answer still blocks: callers on an event loop read in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SIZE_MAX = 16 * 1024 * 1024
"""Bytes; far more than a configuration or an attribute has."""

_CHUNK = 65536
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_regular(path: str | os.PathLike[str], size_max: int = _SIZE_MAX) -> bytes:
    """Return the content of a file. Blocks.

    Raises ``OSError`` with ``path`` as its file name: as ``open`` does, EINVAL for anything but a regular file or a
    directory, and EFBIG for more than ``size_max`` bytes. The last two name the remedy.
    """
    try:
        descriptor = open_regular(path)
        try:
            return read_opened(descriptor, path, size_max)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def read_opened(descriptor: int, path: str | os.PathLike[str], size_max: int) -> bytes:
    """Return the content of an open file. Raises ``OSError`` with EFBIG for more than ``size_max`` bytes. Blocks."""
    content = os.read(descriptor, min(_CHUNK, size_max + 1))
    if content and (more := os.read(descriptor, _CHUNK)):
        content = _read_on(descriptor, content + more, size_max)
    if len(content) > size_max:
        raise OSError(
            errno.EFBIG, f"it is larger than {size_max} bytes; give a smaller file", os.fspath(path)
        )
    return content


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of a file, for reading. Blocks. Raises ``OSError`` as ``read_regular`` does."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise _irregular(path, Path(path).stat().st_mode) from error
        raise
    refuse_irregular(descriptor, path)
    return descriptor


def refuse_irregular(descriptor: int, path: str | os.PathLike[str]) -> None:
    """Close the descriptor and raise ``OSError`` unless it is of a regular file."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)


def _read_on(descriptor: int, begun: bytes, size_max: int) -> bytes:
    parts, size = [begun], len(begun)
    while size <= size_max and (part := os.read(descriptor, _CHUNK)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _irregular(path: str | os.PathLike[str], mode: int) -> OSError:
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    reason = f"it is {_KINDS.get(kind, 'of another kind')}; put a regular file there"
    return OSError(errno.EINVAL, reason, os.fspath(path))
