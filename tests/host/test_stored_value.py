"""The file that keeps a value over restarts: what is read, what is refused, and a disk that hangs or is full.

The files are real: a FIFO, a device and a folder in place of the file, a folder that does not answer (FUSE), and one
that takes no file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from nodeagent.host import stored_value
from nodeagent.host.stored_value import SIZE_MAX, StoredValue
from tests.support.dead_files import dead


def value_at(path: Path) -> StoredValue[dict[str, int]]:
    return StoredValue(path, dict[str, int], content="numbers", loss="a changed number is not noticed")


async def test_a_saved_value_is_read_again_and_an_equal_one_causes_no_write(tmp_path: Path) -> None:
    path = tmp_path / "new" / "numbers.json"
    assert await value_at(path).save({"a": 1})
    again = value_at(path)
    assert again.read() == {"a": 1}
    before = path.stat()
    assert await again.save({"a": 1})
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mode & 0o777 == 0o600
    assert await again.save({"a": 2})
    assert value_at(path).read() == {"a": 2}


def test_an_absent_file_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = value_at(tmp_path / "numbers.json")
    assert stored.read() is None
    assert (stored.unreadable, caplog.records) == (None, [])


def fifo(path: Path) -> None:
    os.mkfifo(path)


OBSTACLES = {
    "a FIFO": (fifo, "put a regular file there"),
    "a folder": (Path.mkdir, "directory"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "put a regular file there"),
    "a large file": (lambda path: path.write_bytes(b" " * (SIZE_MAX + 1)), "larger than"),
    "another type": (lambda path: path.write_text('{"a": "b"}'), "int"),
    "no JSON": (lambda path: path.write_bytes(b"\xff"), "malformed"),
    "deep JSON": (lambda path: path.write_bytes(b'{"a":' + b"[" * 100_000), ""),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_an_unreadable_file_is_one_warning_with_the_loss(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = OBSTACLES[name]
    path = tmp_path / "numbers.json"
    make(path)
    stored = value_at(path)
    assert stored.read() is None
    assert reason in (stored.unreadable or "").lower() or reason in (stored.unreadable or "")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a changed number is not noticed" in caplog.records[0].getMessage()


@pytest.mark.needs("root", "fuse")
async def test_a_disk_that_hangs_delays_the_caller_once_and_is_used_again_when_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_value, "WRITE_S", 0.05)
    path = tmp_path / "folder" / "numbers.json"
    path.parent.mkdir()
    stored = value_at(path)
    with dead(path.parent):
        assert not await stored.save({"a": 1})
        assert not await stored.save({"a": 2})
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "did not answer" in (stored.unwritable or "")
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "bounded-call")
    async with asyncio.timeout(10):
        while not await stored.save({"a": 3}):
            await asyncio.sleep(0.01)
    assert stored.unwritable is None
    assert value_at(path).read() == {"a": 3}


async def test_a_failed_write_is_logged_once_until_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file in place of the folder")
    stored = value_at(folder / "numbers.json")
    assert not await stored.save({"a": 1})
    assert not await stored.save({"a": 2})
    assert len(caplog.records) == 1
    assert stored.unwritable is not None
    folder.unlink()
    assert await stored.save({"a": 2})
    assert stored.unwritable is None
    folder.rename(tmp_path / "aside")
    folder.write_text("")
    assert not await stored.save({"a": 3})
    assert len(caplog.records) == 2
