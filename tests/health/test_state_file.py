"""The state file: what it keeps over a restart of the agent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from nodeagent.base.stored_file import StoredFile
from nodeagent.health import state_file as module
from nodeagent.health.state_file import HEALTH_FORM, DeviceIdentity, StateFile
from tests.support.waiting import until


class Kept(msgspec.Struct, frozen=True):
    penalty: float


A, B = DeviceIdentity("0000:18:00.0", "aa:bb:cc:00:00:01"), DeviceIdentity("0000:9a:00.0", None)


async def written(state_file: StateFile) -> None:
    """Run until cancelled, which writes what is due."""
    task = asyncio.create_task(state_file.run())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_records_are_read_by_the_next_agent(tmp_path: Path) -> None:
    state_file = StateFile.open(tmp_path / "state")
    state_file.store("nic", {A: Kept(1000), B: Kept(2.5)})
    state_file.store("gpu", {DeviceIdentity("0000:1b:00.0", "GPU-1"): [48, 79]})
    await written(state_file)
    again = StateFile.open(tmp_path / "state")
    assert again.load("nic", Kept) == {A: Kept(1000), B: Kept(2.5)}
    assert again.load("gpu", list[int]) == {DeviceIdentity("0000:1b:00.0", "GPU-1"): [48, 79]}
    assert again.load("other", Kept) == {}
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["health.json"]


def test_another_card_in_the_slot_is_another_device() -> None:
    assert A.matches(DeviceIdentity(A.pci_address, None))
    assert not A.matches(DeviceIdentity(A.pci_address, "aa:bb:cc:00:00:02"))
    assert not B.matches(A)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\x00",
        b"[]",
        b'{"version":1}',
        b'{"version":2,"boot_id":"x","entries":[]}',
        b"x" * (1 << 23),
        b'{"version":1,"boot_id":"x","entries":[{"room":"nic","pci_address":"x","identity":null,"value":'
        + b"[" * 100_000,
    ],
)
def test_a_broken_or_foreign_file_is_ignored_with_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    (tmp_path / "health.json").write_bytes(text)
    state_file = StateFile.open(tmp_path)
    assert state_file.load("nic", Kept) == {}
    assert len(caplog.records) == 1
    assert "cannot be read" in caplog.text


def test_the_file_of_another_boot_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state_file = StateFile(StoredFile(tmp_path, HEALTH_FORM, "an earlier boot"))
    state_file.store("nic", {A: Kept(1000)})
    state_file.file.write(state_file.content())
    assert StateFile.open(tmp_path).load("nic", Kept) == {}
    assert "of an earlier boot" in caplog.text


async def test_an_invalid_record_is_ignored_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state_file = StateFile.open(tmp_path)
    state_file.store("nic", {A: {"penalty": "much"}, B: Kept(1)})
    await written(state_file)
    assert StateFile.open(tmp_path).load("nic", Kept) == {B: Kept(1)}
    assert "0000:18:00.0" in caplog.text


async def test_a_folder_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    state_file = StateFile.open(tmp_path / "file")
    caplog.clear()
    for penalty in (1, 2, 3):
        state_file.store("nic", {A: Kept(penalty)})
        await written(state_file)
    assert len(caplog.records) == 1
    assert "health.stateDirectory" in caplog.text


async def test_equal_records_are_not_written_again_and_writes_have_a_minimum_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_GAP_S", 3600.0)
    state_file = StateFile.open(tmp_path)
    task = asyncio.create_task(state_file.run())
    state_file.store("nic", {A: Kept(1)})
    await until((tmp_path / "health.json").exists)
    first = (tmp_path / "health.json").stat().st_ino
    state_file.store("nic", {A: Kept(1)})
    assert not state_file._changed.is_set()
    state_file.store("nic", {A: Kept(2)})
    assert (tmp_path / "health.json").stat().st_ino == first
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert StateFile.open(tmp_path).load("nic", Kept) == {A: Kept(2)}


async def test_records_that_a_task_stores_at_its_end_are_written(tmp_path: Path) -> None:
    state_file = StateFile.open(tmp_path)

    async def judge() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            state_file.store("gpu", {DeviceIdentity("0000:1b:00.0", None): "xid_79"})

    tasks = [asyncio.create_task(state_file.run()), asyncio.create_task(judge())]
    await asyncio.sleep(0)
    for task in tasks:  # in this order
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "xid_79" in (tmp_path / HEALTH_FORM.name).read_text()
