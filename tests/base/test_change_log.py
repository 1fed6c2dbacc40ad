"""The log of changes: a hard bound whatever comes, and a file whose loss costs nothing else."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base import kept_changes
from nodeagent.base.change_log import TEXT_MAX, TEXTS_MAX, Change, ChangeLog, changes_since
from nodeagent.base.kept_changes import (
    CHANGES_FORM,
    FILE_BYTES,
    KEPT_MAX,
    ChangesFile,
    ChangesKeeper,
    kept,
    lost_because,
    mount_point,
)

TEXTS = st.text(max_size=TEXT_MAX * 3)
CHANGES = st.builds(
    Change,
    at=st.floats(0, 2e9),
    what=TEXTS,
    where=TEXTS,
    before=TEXTS,
    after=TEXTS,
    details=st.lists(TEXTS, max_size=TEXTS_MAX * 2).map(tuple),
    names=st.lists(TEXTS, max_size=TEXTS_MAX * 2).map(tuple),
    node=TEXTS,
)


def change(at: float, where: str = "nic0", **more: str) -> Change:
    return Change(at, "nic", where, "healthy", "down", **more)  # type: ignore[arg-type]


@given(st.integers(1, 20), st.lists(CHANGES, max_size=60))
def test_neither_number_nor_length_exceeds_the_bound(size: int, changes: list[Change]) -> None:
    log = ChangeLog(size)
    log.add(changes)
    assert len(log.changes) == min(size, len(changes))
    assert log.total == len(changes)
    for stored, given_ in zip(reversed(log.changes), reversed(changes), strict=False):
        assert stored.at == given_.at
        assert max(len(stored.details), len(stored.names)) <= TEXTS_MAX
        texts = (
            stored.what,
            stored.where,
            stored.before,
            stored.after,
            stored.node,
            *stored.details,
            *stored.names,
        )
        assert max(map(len, texts)) <= TEXT_MAX
    assert CHANGES_FORM.decode(CHANGES_FORM.encode(kept(tuple(log.changes)))).changes == tuple(log.changes)


@given(st.lists(st.integers(0, 50), max_size=50).map(sorted), st.integers(0, 60), st.integers(1, 60))
def test_since_gives_the_newest_in_order(times: list[int], since: int, limit: int) -> None:
    log = ChangeLog(1000)
    log.add(change(float(at), f"nic{at % 2}") for at in times)
    wanted = [at for at in times if at >= since]
    assert [it.at for it in changes_since(log.changes, since, limit=limit)] == wanted[-limit:]
    assert [it.at for it in changes_since(log.changes, since, "NIC1")] == [at for at in wanted if at % 2]


def test_a_clock_that_is_set_back_hides_no_change() -> None:
    log = ChangeLog(10)
    log.add(change(at) for at in (100.0, 200.0, 50.0))
    assert [it.at for it in changes_since(log.changes, 80.0)] == [100.0, 200.0]


@pytest.mark.parametrize("name", ["gpu-17", "nic3", "gpu-17/nic3", "leaf3", "0000:41:00.0"])
def test_a_thing_is_found_by_each_of_its_names(name: str) -> None:
    log = ChangeLog(10)
    log.add(
        [Change(1.0, "nic", "nic3", "a", "b", names=("Leaf3", "0000:41:00.0"), node="gpu-17"), change(2.0)]
    )
    assert [it.at for it in changes_since(log.changes, 0, name)] == [1.0]


def test_the_file_keeps_the_newest_that_fit() -> None:
    log = ChangeLog(100_000)
    log.add(change(float(at)) for at in range(KEPT_MAX + 5))
    assert [it.at for it in kept(tuple(log.changes)).changes][:1] == [5.0]
    long = ("x" * TEXT_MAX,) * TEXTS_MAX
    log.add(Change(float(at), "nic", "nic0", "a", "b", long, long) for at in range(KEPT_MAX))
    assert len(CHANGES_FORM.encode(kept(tuple(log.changes)))) <= FILE_BYTES + 100
    assert kept(tuple(log.changes)).changes[-1].at == KEPT_MAX - 1


@pytest.mark.usefixtures("virtual_time")
async def test_the_file_outlives_a_restart_and_is_written_seldom(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    log = ChangeLog(3)
    log.add([change(1.0)])
    keeping = asyncio.create_task(ChangesKeeper(str(path)).keep(log))
    await asyncio.sleep(kept_changes.CHANGES_GAP_S / 2)
    assert not path.exists()
    await asyncio.sleep(kept_changes.CHANGES_GAP_S)
    assert msgspec.json.decode(path.read_bytes(), type=ChangesFile).changes == (change(1.0),)
    log.add([change(2.0), change(3.0)])
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    again = ChangeLog(3)
    again.add([change(4.0)])  # before the file is read
    keeping = asyncio.create_task(ChangesKeeper(str(path)).keep(again))
    await asyncio.sleep(1)
    assert [it.at for it in again.changes] == [2.0, 3.0, 4.0]
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 9, "changes": []}', '{"version": 1, "changes": [7]}']
)
async def test_a_bad_or_other_file_costs_the_older_changes_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)
    log = ChangeLog(3)
    log.add([change(4.0)])
    keeping = asyncio.create_task(ChangesKeeper(str(path)).keep(log))
    await asyncio.sleep(1)
    assert [it.at for it in log.changes] == [4.0]
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    assert [it.at for it in CHANGES_FORM.decode(path.read_bytes()).changes] == [4.0]


MOUNTS = """\
1 0 0:1 / / ro - overlay overlay rw
2 1 0:2 / /host/var/lib/nodeagent rw - ext4 /dev/a rw
3 1 0:3 / /mnt/with\\040space rw - ext4 /dev/b rw
4 1 0:4 / /var/lib rw - tmpfs t rw
"""


@pytest.mark.parametrize(
    ("folder", "point"),
    [
        ("/", "/"),
        ("/host/var/lib", "/"),
        ("/host/var/lib/nodeagent-2", "/"),
        ("/host/var/lib/nodeagent/a/b", "/host/var/lib/nodeagent"),
        ("/mnt/with space", "/mnt/with space"),
        ("/var/lib", "/var/lib"),
    ],
)
def test_the_mount_of_a_folder_is_the_deepest_one_above_it(folder: str, point: str) -> None:
    assert mount_point(Path(folder), MOUNTS) == point


def test_a_path_is_lost_whose_folder_takes_no_files_or_ends_with_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mounts").write_text("1 0 0:1 / / rw - overlay overlay rw\n")
    monkeypatch.setattr(kept_changes, "_MOUNTS", tmp_path / "mounts")
    assert lost_because(tmp_path / "file/kept.json", in_pod=False) == f"{tmp_path}/file is not a directory"
    assert lost_because(tmp_path / "new/deep/kept.json", in_pod=False) is None
    assert lost_because(tmp_path / "new/kept.json", in_pod=True) == "its folder is on no volume of the pod"
    with (tmp_path / "mounts").open("a") as mounts:
        mounts.write(f"2 1 0:2 / {tmp_path} rw - ext4 /dev/a rw\n")
    assert lost_because(tmp_path / "new/kept.json", in_pod=True) is None
