"""An offer without news: it looks after its files and the removed devices, and decides nothing again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Health, HostPaths, Snapshot, State
from nodeagent.kinds import DeviceKind
from nodeagent.kubelet import offer_files, removed_devices
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering import device_offering
from nodeagent.offering.device_offering import DeviceOffering
from tests.support.running_agent import HEAD
from tests.support.waiting import until

PF, VF = "0000:01:00.0", "0000:01:00.1"
CONFIG = f"{HEAD}scanSeconds: 300\nresources: [{{kind: vf, name: nic}}]\n"
"""The next whole offer without news is far away."""


@dataclass
class Plugins:
    """Keeps each update that the kubelet's plugins would get."""

    updates: list[frozenset[str]] = field(default_factory=list)
    kinds: tuple[DeviceKind, ...] = ()

    def update(
        self, kinds: tuple[DeviceKind, ...], snapshot: Snapshot, removed: frozenset[str] = frozenset()
    ) -> None:
        self.updates.append(removed)
        self.kinds = kinds


def functions(*, missing: bool = False) -> tuple[Function, ...]:
    def function(address: str, **more: object) -> Function:
        values = {"vendor": "15b3", "device": "1021", "driver": "mlx5_core", "netdev": None} | more
        path = ("pci0000:00", address)
        return Function(
            pci_address=address, link_type="ethernet", rdma=None, vfio_group=None, vdpa=None, numa_node=0,
            pci_path=path, **values,
        )  # fmt: skip

    return (
        function(PF, num_vfs=1, total_vfs=8, netdev="eth0"),
        function(VF, parent=PF, vf_index=0, missing=missing),
    )


@asynccontextmanager
async def offering(folder: Path) -> AsyncIterator[tuple[DeviceOffering, Inventory, Plugins, list[str]]]:
    inventory, plugins, forgotten = Inventory(), Plugins(), list[str]()
    config = load(CONFIG, name="test")
    made = DeviceOffering(
        config,
        inventory,
        plugins,
        OfferFiles(DeviceInfoFiles(folder / "devinfo"), CdiSpecFiles(folder / "cdi")),
        SliceSizes(folder),
        RailMemory(folder),
        forgotten.extend,
    )
    inventory.publish("paths", paths=HostPaths())
    inventory.publish("pods", holdings=())
    inventory.publish("pci", product=None, functions=functions(), links=())
    made.holdings_read()
    task = asyncio.create_task(made.run())
    try:
        await until(lambda: plugins.kinds or task.done())
        yield made, inventory, plugins, forgotten
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_files_are_tried_again_without_another_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_files, "FILES_CHECK_S", 0.01)
    monkeypatch.setattr(offer_files, "FILES_RETRY_S", 0.01)
    folder, try_writing = tmp_path / "devinfo", DeviceInfoFiles.try_writing
    async with offering(tmp_path) as (made, _, plugins, _):
        offers, before = len(plugins.updates), list[int]()

        def without_folder(files: DeviceInfoFiles) -> None:
            """Runs in the thread of the attempts: none is under way. Each of the first three makes the folder again."""
            if len(before) <= 3:
                folder.rmdir()
            if len(before) == 3:
                folder.touch()  # no folder can be made here
            before.append(len(plugins.updates))
            try_writing(files)

        monkeypatch.setattr(DeviceInfoFiles, "try_writing", without_folder)
        await until(lambda: len(plugins.updates) > offers)
        assert before[:4] == [offers] * 4
        assert not made.offered
        assert [withheld.resource for withheld in made.withheld] == ["nodeagent.io/nic"]
        folder.unlink()
        await until(lambda: made.offered)
        assert folder.is_dir()


async def test_a_stale_file_that_cannot_be_removed_ends_no_offer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a folder in its place, or a folder of files that goes while it is listed."""
    stale = tmp_path / "devinfo/nodeagent.io-nic-0000:02:00.1-device.json"
    stale.mkdir(parents=True)
    os.utime(stale, (0, 0))
    async with offering(tmp_path) as (_, inventory, plugins, _):
        await until(lambda: "Device-info files of an earlier agent stay" in caplog.text)
        assert str(stale) in caplog.text
        offers = len(plugins.updates)
        inventory.publish("pci", functions=functions(missing=True))
        await until(lambda: len(plugins.updates) > offers)


async def test_files_of_an_earlier_agent_that_cannot_be_listed_in_time_are_one_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    monkeypatch.setattr(offer_files, "SWEEP_S", 0.01)
    monkeypatch.setattr(DeviceInfoFiles, "remove_stale", lambda *_: (released.wait(), [])[1])
    try:
        async with offering(tmp_path):
            await until(lambda: "stale device-info files" in caplog.text)
    finally:
        released.set()
    assert "Device-info files of an earlier agent stay" not in caplog.text


async def test_a_removed_vf_leaves_the_list_without_other_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_files, "FILES_CHECK_S", 0.01)
    monkeypatch.setattr(removed_devices, "FREE_S", 0.05)
    async with offering(tmp_path) as (_, inventory, plugins, forgotten):
        inventory.publish("pci", functions=functions(missing=True))
        await until(lambda: frozenset({VF}) in plugins.updates)
        assert forgotten == [VF]


async def test_a_fault_is_offered_in_the_next_turn_of_the_event_loop(tmp_path: Path) -> None:
    async with offering(tmp_path) as (_, inventory, plugins, _):
        # The offer waits for news.
        await until(lambda: "rest of the offer" in {task.get_name() for task in asyncio.all_tasks()})
        pf, vf = functions()
        offers = len(plugins.updates)
        down = replace(vf, health=Health(State.DOWN, allocatable=False))
        inventory.publish("pci", functions=(pf, down))
        for _ in range(2):  # the event's future, then the task
            await asyncio.sleep(0)
        assert len(plugins.updates) == offers + 1


async def test_troubles_are_found_although_news_comes_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_offering, "LATE_S", 0.1)
    async with offering(tmp_path) as (made, inventory, _, _):

        async def publish() -> None:
            while True:
                inventory.publish("pci", functions=functions()[: inventory.snapshot.revision % 2])
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        await until(lambda: made.shown().troubles)
        publishing.cancel()


async def test_a_failed_write_counts_although_news_comes_while_the_folder_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_files, "FILES_CHECK_S", 3600.0)
    monkeypatch.setattr(offer_files, "MOMENT_S", 60.0)
    loop, tried, answers = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def fail(files: DeviceInfoFiles) -> None:
        loop.call_soon_threadsafe(tried.set)
        answers.wait(60)
        raise OSError(errno.ENOSPC, "No space left on device", str(files.folder))

    async with offering(tmp_path) as (made, inventory, _, _):
        assert made.offered
        monkeypatch.setattr(DeviceInfoFiles, "try_writing", fail)
        made._files.failed.set()  # as after a failed allocation
        await tried.wait()
        pf, vf = functions()
        inventory.publish("pci", functions=(pf, replace(vf, health=Health(State.DOWN, allocatable=False))))
        for _ in range(10):  # the offer takes the news
            await asyncio.sleep(0)
        answers.set()
        await until(lambda: not made.offered)
