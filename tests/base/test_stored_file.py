"""The file that keeps a value over restarts: what is read, what is refused, and a disk that hangs or is full.

The files are real: a FIFO, a device and a folder in place of the file, a folder that does not answer (FUSE), and one
that takes no file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nodeagent.base import stored_file
from nodeagent.base.stored_file import (
    RESTORE_S,
    STORED_SIZE_MAX,
    StoredFile,
    StoredForm,
    keep_files,
    unwritable,
)
from tests.support.dead_files import dead

FORM = StoredForm(
    name="numbers.json", type=dict[str, int], content="numbers", loss="a changed number is not noticed"
)


def value_at(path: Path) -> StoredFile[dict[str, int]]:
    return StoredFile(path.parent, FORM)


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
    "a large file": (lambda path: path.write_bytes(b" " * (STORED_SIZE_MAX + 1)), "larger than"),
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


class OfOneBoot(msgspec.Struct, frozen=True):
    boot_id: str
    version: int = 1


BOUND = StoredForm(
    name="bound.json", type=OfOneBoot, content="numbers", loss="all is lost", version=1, of_boot=True
)


def test_a_file_of_another_boot_is_not_used_and_is_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = StoredFile(tmp_path, BOUND, "boot-1")
    first.write(OfOneBoot("boot-1"))
    assert first.read() == OfOneBoot("boot-1")
    second = StoredFile(tmp_path, BOUND, "boot-2")
    assert (second.read(), second.unreadable) == (None, None)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "of an earlier boot" in caplog.text


def test_a_file_of_another_version_is_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredFile(tmp_path, BOUND, "boot-1")
    stored.write(OfOneBoot("boot-1", version=2))
    assert stored.read() is None
    assert stored.unreadable == "it is of version 2, this agent reads 1"
    assert f"file={stored.path} version=2" in caplog.text


async def test_without_a_folder_nothing_is_kept_and_nothing_fails() -> None:
    stored = StoredFile(None, FORM)
    assert stored.read() is None
    assert await stored.save({"a": 1})
    assert await stored.changed() is None
    assert (stored.path, stored.fault()) == (None, None)


async def test_what_another_program_writes_is_seen_once(tmp_path: Path) -> None:
    stored, other = value_at(tmp_path / "numbers.json"), value_at(tmp_path / "numbers.json")
    assert await stored.save({"a": 1})
    assert await stored.changed() is None
    other.write({"a": 2})
    assert await stored.changed() == {"a": 2}
    assert await stored.changed() is None
    assert stored.path is not None
    stored.path.write_bytes(b"{")
    assert await stored.changed() is None
    stored.path.unlink()
    assert await stored.changed() is None


async def test_a_caller_that_is_cancelled_leaves_its_write_and_the_next_one_waits_for_it(
    tmp_path: Path,
) -> None:
    stored = value_at(tmp_path / "numbers.json")
    saving = asyncio.create_task(stored.save({"a": 1}))
    await asyncio.sleep(0)
    saving.cancel()
    assert await stored.save({"a": 2})
    assert value_at(tmp_path / "numbers.json").read() == {"a": 2}


@pytest.mark.needs("root", "fuse")
async def test_a_disk_that_hangs_delays_the_caller_once_and_is_used_again_when_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "numbers.json"
    path.parent.mkdir()
    stored = value_at(path)
    with dead(path.parent):
        assert not await stored.save({"a": 1}, 0.05)
        assert not await stored.save({"a": 2}, 0.05)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "did not answer" in (stored.unwritable or "")
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "bounded-call")
    async with asyncio.timeout(10):
        while not await stored.save({"a": 3}):
            await asyncio.sleep(0.01)
    assert stored.unwritable is None
    assert value_at(path).read() == {"a": 3}


@pytest.mark.usefixtures("virtual_time")
async def test_a_deleted_file_is_written_again_and_one_that_never_was_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    stored, empty = value_at(folder / "numbers.json"), StoredFile(folder, replace(FORM, name="others.json"))
    assert await stored.save({"a": 1})
    keeping = asyncio.create_task(keep_files((stored, empty)))
    shutil.rmtree(folder)
    folder.write_text("in its place")
    await asyncio.sleep(RESTORE_S + 1)
    assert unwritable((stored,)) != ()
    folder.unlink()
    await asyncio.sleep(RESTORE_S + 1)
    assert unwritable((stored,)) == ()
    assert value_at(stored.path).read() == {"a": 1}
    assert [path.name for path in folder.iterdir()] == ["numbers.json"]
    keeping.cancel()


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("written", [True, False])
async def test_what_a_power_failure_left_of_a_write_goes_also_if_the_value_never_changes(
    tmp_path: Path, written: bool
) -> None:
    before = value_at(tmp_path / "numbers.json")
    assert await before.save({"a": 1})
    half = tmp_path / ".numbers.json.0123abcd.tmp"
    half.write_text('{"a"')
    os.utime(half, (0, 0))
    stored = value_at(tmp_path / "numbers.json")
    assert stored.read() == {"a": 1}
    assert half.exists(), "a verb that reads changes nothing"
    if written:
        assert await stored.save({"a": 2})
    else:
        keeping = asyncio.create_task(keep_files((stored,)))
        await asyncio.sleep(RESTORE_S + 1)
        keeping.cancel()
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]


@pytest.mark.usefixtures("virtual_time")
async def test_what_was_left_a_moment_before_the_start_goes_when_it_is_old(tmp_path: Path) -> None:
    stored = value_at(tmp_path / "numbers.json")
    half = tmp_path / ".numbers.json.0123abcd.tmp"
    half.write_text('{"a"')
    assert await stored.save({"a": 1})
    keeping = asyncio.create_task(keep_files((stored,)))
    await asyncio.sleep(RESTORE_S + 1)
    assert half.exists(), "it may be the file of a writer that still works"
    os.utime(half, (0, 0))
    await asyncio.sleep(RESTORE_S)
    keeping.cancel()
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]


@pytest.mark.usefixtures("virtual_time")
async def test_an_old_file_that_is_still_there_hides_no_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = value_at(tmp_path / "numbers.json")
    assert await stored.save({"a": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stored_file, "replace_file", full)
    assert not await stored.save({"a": 2})
    await stored.restore()
    assert stored.fault() is not None


async def test_a_failed_write_is_logged_once_until_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file in place of the folder")
    stored = value_at(folder / "numbers.json")
    assert not await stored.save({"a": 1})
    assert not await stored.save({"a": 2})
    assert len(caplog.records) == 1
    (fault,) = unwritable([stored, StoredFile(None, FORM)])
    assert (fault.path, fault.loss) == (str(stored.path), "a changed number is not noticed")
    assert fault.reason == stored.unwritable
    folder.unlink()
    assert await stored.save({"a": 2})
    assert (stored.unwritable, stored.fault()) == (None, None)
    folder.rename(tmp_path / "aside")
    folder.write_text("")
    assert not await stored.save({"a": 3})
    assert len(caplog.records) == 2
