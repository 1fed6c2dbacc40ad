"""inotify, on the kernel that runs the tests."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.host.inotify import (
    CONTENT,
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    FolderChange,
    FolderWatch,
    InotifyError,
)


@pytest.fixture
def watch() -> Iterator[FolderWatch]:
    with FolderWatch() as watch:
        yield watch


async def changes_of(watch: FolderWatch) -> tuple[FolderChange, ...]:
    async with asyncio.timeout(5):
        return await watch.changes()


async def test_a_new_name_is_reported_with_its_folder(watch: FolderWatch, tmp_path: Path) -> None:
    watch.add(tmp_path)
    (tmp_path / "kubelet.sock").touch()
    (change,) = await changes_of(watch)
    assert (change.folder, change.name, change.mask) == (str(tmp_path), "kubelet.sock", IN_CREATE)
    assert not change.gone


async def test_a_change_made_while_waiting_wakes_the_waiter(watch: FolderWatch, tmp_path: Path) -> None:
    watch.add(tmp_path)
    waiting = asyncio.create_task(changes_of(watch))
    await asyncio.sleep(0)
    (tmp_path / "a").touch()
    assert [change.name for change in await waiting] == ["a"]


async def test_many_events_for_one_name_are_one_change(watch: FolderWatch, tmp_path: Path) -> None:
    watch.add(tmp_path, CONTENT)
    for _ in range(10):
        (tmp_path / "a").write_text("1")
        (tmp_path / "b").touch()
        (tmp_path / "a").unlink()
    changes = await changes_of(watch)
    assert [(change.name, change.mask) for change in changes] == [
        ("a", IN_CREATE | IN_CLOSE_WRITE | IN_DELETE),
        ("b", IN_CREATE | IN_CLOSE_WRITE),
    ]


async def test_changes_name_their_folder(watch: FolderWatch, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        watch.add(tmp_path / name)
    (tmp_path / "x/a").touch()
    (tmp_path / "x/a").rename(tmp_path / "y/a")
    assert [(change.folder, change.name, change.mask) for change in await changes_of(watch)] == [
        (str(tmp_path / "x"), "a", IN_CREATE | IN_MOVED_FROM),
        (str(tmp_path / "y"), "a", IN_MOVED_TO),
    ]


async def test_names_that_are_not_utf8_are_decoded_like_pythons(watch: FolderWatch, tmp_path: Path) -> None:
    watch.add(tmp_path)
    path = os.path.join(os.fsencode(tmp_path), b"\xff\xfe")
    os.close(os.open(path, os.O_CREAT))
    (change,) = await changes_of(watch)
    assert os.fsencode(change.name) == b"\xff\xfe"


async def test_a_deleted_folder_is_gone_and_can_be_added_again(watch: FolderWatch, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    watch.add(folder)
    (folder / "a").touch()
    (folder / "a").unlink()
    folder.rmdir()
    named, gone = await changes_of(watch)
    assert (named.name, named.gone) == ("a", False)
    assert (gone.name, gone.gone, bool(gone.mask & IN_DELETE_SELF)) == ("", True, True)
    folder.mkdir()
    watch.add(folder)
    (folder / "b").touch()
    assert [change.name for change in await changes_of(watch)] == ["b"]


async def test_a_moved_folder_is_gone_and_no_longer_watched(watch: FolderWatch, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    watch.add(folder)
    folder.rename(tmp_path / "away")
    (change,) = await changes_of(watch)
    assert (change.folder, change.mask, change.gone) == (str(folder), IN_MOVE_SELF, True)
    (tmp_path / "away/a").touch()
    folder.mkdir()
    watch.add(folder)
    (folder / "b").touch()
    assert [(change.folder, change.name) for change in await changes_of(watch)] == [(str(folder), "b")]


async def test_queued_events_of_a_removed_folder_are_dropped(watch: FolderWatch, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    watch.add(tmp_path / "x")
    watch.add(tmp_path / "y")
    (tmp_path / "x/a").touch()
    watch.remove(tmp_path / "x")
    watch.remove(tmp_path / "never")
    (tmp_path / "x/b").touch()
    (tmp_path / "y/c").touch()
    assert [change.name for change in await changes_of(watch)] == ["c"]


QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


async def test_lost_events_are_an_overflow(watch: FolderWatch, tmp_path: Path) -> None:
    limit = int(QUEUE.read_text())
    if limit > 65536:
        pytest.skip(f"fs.inotify.max_queued_events is {limit}: too many to fill")
    watch.add(tmp_path)
    # Two names in turn, for the kernel merges an event that equals the last one.
    for _ in range(limit // 4 + 1):
        for name in ("a", "b"):
            os.close(os.open(tmp_path / name, os.O_CREAT))
            (tmp_path / name).unlink()
    changes = await changes_of(watch)
    assert [bool(change.mask & IN_Q_OVERFLOW) for change in changes] == [False, False, True]
    (tmp_path / "c").touch()
    assert [change.name for change in await changes_of(watch)] == ["c"]


async def test_a_cancelled_waiter_loses_no_change(watch: FolderWatch, tmp_path: Path) -> None:
    watch.add(tmp_path)
    waiting = asyncio.create_task(changes_of(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    (tmp_path / "a").touch()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [change.name for change in await changes_of(watch)] == ["a"]


@pytest.mark.parametrize("what", ["absent", "file"])
def test_a_path_that_is_not_a_folder_is_an_error_with_its_name(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").touch()
    with (
        FolderWatch() as watch,
        pytest.raises(InotifyError, match=f"{what} cannot be watched: .*folder that exists"),
    ):
        watch.add(tmp_path / what)


def test_close_frees_the_descriptor_and_may_be_repeated() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    watch = FolderWatch()
    assert set(Path("/proc/self/fd").iterdir()) > before
    watch.close()
    watch.close()
    assert set(Path("/proc/self/fd").iterdir()) == before
