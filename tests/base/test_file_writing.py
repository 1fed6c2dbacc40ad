"""Files are replaced in one step, with the given mode, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeagent.base import file_writing
from nodeagent.base.file_writing import (
    ABANDONED_S,
    make_folder,
    remove_abandoned,
    replace_changed_file,
    replace_file,
    unwritable_because,
)
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_of_any_mode_is_replaced_with_content_and_mode(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "new" / "folder" / "file"
    old = os.umask(0o077)
    try:
        replace_file(path, b"one", mode=0o444, durable=durable)
        replace_file(path, b"two", mode=0o644, durable=durable)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(OSError, match="directory") as error:
        replace_file(path, b"one")
    assert error.value.filename == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="/dev/null/file"):
        replace_file(Path("/dev/null/file"), b"one")


def test_a_writable_folder_has_no_obstacle_and_a_missing_one_raises(tmp_path: Path) -> None:
    assert unwritable_because(tmp_path) is None
    with pytest.raises(FileNotFoundError):
        unwritable_because(tmp_path / "missing")


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two agents of one node, each the process 1 of its container, or an abandoned thread that writes late."""
    files, path = DeviceInfoFiles(tmp_path), tmp_path / "a.json"

    def write(text: str) -> None:
        for _ in range(500):
            replace_file(path, text.encode())
            assert path.read_text() in texts
            files.try_writing()

    texts = ["a" * 9000, "b" * 9000]
    with ThreadPoolExecutor() as threads:
        list(threads.map(write, texts))
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_with_the_content_is_not_replaced_and_anything_else_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert replace_changed_file(path, b"one")
    inode = path.stat().st_ino
    assert not replace_changed_file(path, b"one")
    assert path.stat().st_ino == inode
    assert replace_changed_file(path, b"two")
    path.unlink()
    os.mkfifo(path)
    assert replace_changed_file(path, b"two")
    assert path.read_bytes() == b"two"


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_what_a_killed_writer_left_is_removed_and_a_younger_or_foreign_one_stays(tmp_path: Path) -> None:
    def left(name: str, age_s: float) -> str:
        path = tmp_path / name
        path.write_text("half")
        os.utime(path, times=(time.time() - age_s,) * 2)
        return name

    old = ABANDONED_S + 60
    left(".a.json.0123abcd.tmp", old)
    left(".nodeagent.0123abcd.trial", old)
    left("..nodeagent.0123abcd.trial.0123abcd.tmp", old)
    stay = {
        left(".a.json.0123abce.tmp", ABANDONED_S - 60),
        left(".b.json.0123abcd.tmp", old),
        left(".nodeagent.0123abce.trial", ABANDONED_S - 60),
        left(".other.0123abcd.trial", old),
        left(".a.json.tmp", old),
        left("a.json", old),
    }
    remove_abandoned(tmp_path, "a.json")
    remove_abandoned(tmp_path / "missing", "a.json")
    assert set(os.listdir(tmp_path)) == stay


def _of_specs(folder: Path) -> Callable[[], object]:
    specs = CdiSpecFiles(folder)
    specs.look()
    return specs.flush


def _of_device_info(folder: Path) -> Callable[[], object]:
    files = DeviceInfoFiles(folder)
    files.remove_stale("nodeagent.io-", ())
    return files.try_writing


@pytest.mark.parametrize(
    ("begin", "left"),
    [
        (_of_specs, ".nodeagent-gpu.json.0123abcd.tmp"),
        (_of_specs, ".nodeagent.0123abcd.trial"),
        (_of_device_info, ".nodeagent.io-nic0-0000:18:00.1-device.json.0123abcd.tmp"),
        (_of_device_info, ".nodeagent.0123abcd.trial"),
    ],
)
def test_what_is_too_young_at_the_start_goes_at_a_later_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], Callable[[], object]], left: str
) -> None:
    """After a power failure and a quick start of the machine no agent can tell it from the file of another writer."""
    monkeypatch.setattr(file_writing, "ABANDONED_S", 0.0)
    path = tmp_path / left
    path.write_text("half")
    os.utime(path, times=(time.time() + 600,) * 2)
    look = begin(tmp_path)
    look()
    assert path.exists()
    os.utime(path, times=(time.time() - 1,) * 2)
    look()
    assert not path.exists()
