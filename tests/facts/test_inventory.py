"""The inventory: an equal fact wakes no reader, a failed source keeps its facts."""

from __future__ import annotations

import asyncio

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu, StaleSource

GPU = Gpu("GPU-a", 0, 0, "H100", "0000:1b:00.0", 81559, 0)


async def test_a_reader_wakes_at_a_change_and_sees_the_latest() -> None:
    inventory = Inventory()
    reader = asyncio.create_task(inventory.changed(0))
    await asyncio.sleep(0)
    inventory.publish("gpus", gpus=(GPU,))
    inventory.publish("pci", product="DGXH100")
    snapshot = await reader
    assert snapshot.gpus == (GPU,)
    assert snapshot.product == "DGXH100"


async def test_an_equal_fact_wakes_no_reader() -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=(GPU,))
    revision = inventory.snapshot.revision
    assert not inventory.publish("gpus", gpus=(Gpu("GPU-a", 0, 0, "H100", "0000:1b:00.0", 81559, 0),))
    assert inventory.snapshot.revision == revision


async def test_the_first_facts_of_a_source_wake_even_if_they_are_empty() -> None:
    inventory = Inventory()
    assert not inventory.has_published("gpus")
    inventory.publish("gpus", gpus=())
    assert inventory.has_published("gpus")
    assert (await asyncio.wait_for(inventory.changed(0), 1)).gpus == ()


async def test_a_failed_source_keeps_its_facts_and_a_reason_until_it_publishes() -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=(GPU,))
    assert inventory.mark_stale("gpus", "NVML hangs in wait")
    assert not inventory.mark_stale("gpus", "NVML hangs in wait")
    assert inventory.snapshot.gpus == (GPU,)
    assert inventory.snapshot.stale_sources == (StaleSource("gpus", "NVML hangs in wait"),)
    inventory.publish("gpus", gpus=(GPU,))
    assert inventory.snapshot.stale_sources == ()


async def test_a_cancelled_reader_leaves_no_waiter() -> None:
    inventory = Inventory()
    reader = asyncio.create_task(inventory.changed(0))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert inventory._waiters == []
