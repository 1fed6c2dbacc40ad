"""Read the files that a user names on the command line. A fault names the file, the line and what is expected.

Only regular files are opened by name: a named pipe would block until a writer comes. ``-`` is the standard input, of
any kind.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from nodeagent.base.regular_file import open_regular

SIZE_MAX = 1 << 30
"""Bytes of a file that is read as a whole; the reports of 100,000 nodes have about 300 MB."""
STDIN = "standard input"
_CHUNK = 1 << 16
"""A reader reserves what it is asked for, and a folder may have 100,000 files."""


class UserFileError(Exception):
    """The file is not what the verb reads: exit code 2. The message is ``FILE:LINE: fault; expected …``."""

    def __init__(self, name: str, fault: str, expected: str, line: int | None = None) -> None:
        place = name if line is None else f"{name}:{line}"
        super().__init__(f"{place}: {fault}; expected {expected}")


class _UserFile(io.RawIOBase):
    """A file whose failed reading names it: a file of ``/proc`` is regular, and may refuse to be read."""

    def __init__(self, descriptor: int, source: str, expected: str) -> None:
        self._descriptor, self._source, self._expected = descriptor, source, expected

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            return os.readv(self._descriptor, [buffer])
        except OSError as error:
            raise UserFileError(self._source, error.strerror or str(error), self._expected) from error

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


@contextmanager
def opened(source: str, expected: str, stdin: BinaryIO | None = None) -> Iterator[BinaryIO]:
    """Open a regular file, or ``-``, which may have been kept as ``stdin``. Raises ``UserFileError``."""
    if source == "-":
        if stdin is not None:
            stdin.seek(0)
        yield stdin or sys.stdin.buffer
        return
    try:
        descriptor = open_regular(source)
    except OSError as error:
        raise UserFileError(source, error.strerror or str(error), expected) from error
    with io.BufferedReader(_UserFile(descriptor, source, expected)) as file:
        yield file


def kept_stdin() -> BinaryIO:
    """The standard input, read to its end, as a file that can be read again."""
    try:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
    except OSError:  # a container without a folder to write to
        file = os.fdopen(os.memfd_create("stdin"), "w+b")
    shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
    return file


def name_of(source: str) -> str:
    """The name of a source in a fault."""
    return STDIN if source == "-" else source


def read(source: str, expected: str, size_max: int = SIZE_MAX) -> bytes:
    """The whole content. Raises ``UserFileError``."""
    with opened(source, expected) as file:
        if source != "-" and os.fstat(file.fileno()).st_size > size_max:
            raise _too_large(source, expected, size_max)
        return read_rest(file, name_of(source), expected, 0, size_max)


def read_at_most(stream: BinaryIO, size: int) -> bytes:
    """``size`` bytes, or less at the end of the stream."""
    content = bytearray()
    while len(content) < size and (more := stream.read(min(size - len(content), _CHUNK))):
        content += more
    return bytes(content)


def read_rest(stream: BinaryIO, name: str, expected: str, before: int, size_max: int = SIZE_MAX) -> bytes:
    """The rest of a stream, of which ``before`` bytes were read. Raises ``UserFileError``."""
    content = read_at_most(stream, size_max - before + 1)
    if before + len(content) > size_max:
        raise _too_large(name, expected, size_max)
    return content


def _too_large(name: str, expected: str, size_max: int) -> UserFileError:
    return UserFileError(name, f"it has more than {size_max} bytes", expected)


def refuse_unless_utf8(content: bytes, name: str, expected: str, lines: int = 0) -> None:
    """Raises ``UserFileError`` with the line of the first byte that is not UTF-8; ``content`` is after ``lines``."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserFileError(name, "the text is UTF-16", f"{expected}, in UTF-8", 1)
    if content.isascii():
        return
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines + content.count(b"\n", 0, error.start) + 1
        raise UserFileError(name, f"byte {error.start} is not UTF-8", expected, line) from error
