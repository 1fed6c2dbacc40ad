"""A file is read up to its limit; a named pipe, a socket, a device and a folder are refused at once."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from nodeagent.base.regular_file import read_regular


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 300_000])
def test_a_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert read_regular(path) == path.read_bytes()
    assert read_regular(str(path), size) == path.read_bytes()


@pytest.mark.parametrize("size_max", [0, 9, 70_000])
def test_a_larger_file_is_refused_with_its_limit(tmp_path: Path, size_max: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size_max + 1))
    with pytest.raises(OSError, match=f"it is larger than {size_max} bytes; give a smaller file") as error:
        read_regular(path, size_max)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(OSError, match="it is larger than 5 bytes"):
        read_regular("/proc/self/mountinfo", 5)


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a character device"])
def test_a_file_of_another_kind_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    listening = socket.socket(socket.AF_UNIX)
    match kind:
        case "a named pipe":
            os.mkfifo(path)
        case "a socket":
            listening.bind(str(path))
        case _:
            path.symlink_to("/dev/zero")
    with listening, pytest.raises(OSError, match=f"it is {kind}; put a regular file there") as error:
        read_regular(path)
    assert (error.value.errno, error.value.filename) == (errno.EINVAL, str(path))


def test_a_folder_and_a_missing_file_are_errors_as_of_open(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory") as error:
        read_regular(tmp_path)
    assert error.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
