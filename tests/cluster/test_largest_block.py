"""The label nodeagent.io/gpu-mem-largest: coarse, quick to fall, slow to rise, and never above what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster.cluster_settings import ClusterSettings, GpuMemLargestSettings
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.largest_block import (
    DampedBlock,
    FreeBlock,
    free_block,
    level_in_force,
    levels_in_force,
)
from nodeagent.cluster.node_marks import BLOCK_LABEL, LEVEL_LABEL
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import ContainerLimit, Holding, LimitSupport, Snapshot
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.whole_gpu import WholeGpus
from tests.support.cluster_node import GPU_LOST, snapshot
from tests.support.waiting import until

KIND = GpuMemory("x/gpu-mem")  # 79 slices of 1 GiB on each GPU


def held(slices: int, **changes: object) -> Snapshot:
    """Two GPUs; the second is full, and pods hold so many slices of the first."""
    ids = (*(f"GPU-0::{n}" for n in range(slices)), *(f"GPU-1::{n}" for n in range(79)))
    return replace(snapshot([None], [None, None], (Holding("d", "p", "c", "x/gpu-mem", ids),)), **changes)


def test_the_block_is_that_of_the_first_resource_of_memory_and_unknown_before_podresources():
    kinds = (WholeGpus("x/gpu"), KIND, GpuMemory("x/other", slice_mib=10))
    assert free_block(kinds, held(30)) == FreeBlock(49, 79)
    assert free_block(kinds, held(30, holdings=None)) is None
    assert free_block(kinds[:1], held(30)) is None
    assert free_block(kinds, held(30, gpus=())) is None
    lost = tuple(replace(gpu, health=GPU_LOST) for gpu in held(0).gpus)
    assert free_block(kinds, held(0, gpus=lost)) == FreeBlock(0, 79)


blocks = st.integers(1, 90).flatmap(lambda whole: st.builds(FreeBlock, st.integers(0, whole), st.just(whole)))


@given(blocks, st.integers(1, 100))
def test_the_number_is_never_above_the_block_and_less_than_a_step_below(block: FreeBlock, step: int):
    value = block.coarse(step)
    assert block.largest - step < value <= block.largest
    assert value == block.whole or value % step == 0
    assert (block.largest == block.whole) <= (value == block.whole)


@given(st.lists(st.tuples(st.integers(0, 79), st.integers(0, 40)), min_size=1, max_size=20))
def test_a_fall_counts_at_once_and_a_rise_after_its_wait_with_the_lowest_value_of_it(looks):
    damped, now = DampedBlock(8, 60.0), 0
    above: list[tuple[int, int]] = []  # the looks since which every value was above the published one
    for largest, pause in looks:
        now += pause
        value = FreeBlock(largest, 79).coarse(8)
        before = damped.published
        got = damped.observe(FreeBlock(largest, 79), now)
        if before is None or value <= before:
            assert got == value
            above = []
            continue
        above.append((now, value))
        if now - above[0][0] < 60:
            assert got == before
            assert damped.due_s(now) == above[0][0] + 60 - now
        else:
            assert got == min(value for _, value in above)
            above = []


def labelled(step: int = 8, rise_s: float = 0.0, **changes: object) -> ClusterSettings:
    return ClusterSettings(
        gpu_mem_largest=GpuMemLargestSettings(enabled=True, step=step, rise_seconds=rise_s), **changes
    )


def marker(client, inventory: Inventory, settings: ClusterSettings) -> DeviceMarker:
    made = DeviceMarker(
        client, inventory, "gpu-0", settings, block=lambda facts: free_block((KIND,), facts), jitter_s=0
    )
    made._rate = RateLimit(100, 100)
    return made


def tell(inventory: Inventory, facts: Snapshot) -> None:
    inventory.publish("pci", functions=facts.functions)
    inventory.publish("gpus", gpus=facts.gpus)
    inventory.publish("pods", holdings=facts.holdings)


def label_of(server) -> str | None:
    return server.find("nodes", "gpu-0")["metadata"].get("labels", {}).get(BLOCK_LABEL)


async def test_the_label_follows_the_holdings_and_small_changes_write_nothing(server, client, running):
    inventory = Inventory()
    tell(inventory, held(0))
    running(marker(client, inventory, labelled()).run())
    await server.until(lambda: label_of(server) == "79")
    tell(inventory, held(34))
    await server.until(lambda: label_of(server) == "40")
    patches = server.counts["patch", "nodes"]
    tell(inventory, held(39))  # 40 are free, still
    tell(inventory, held(40))
    await server.until(lambda: label_of(server) == "32")
    assert server.counts["patch", "nodes"] == patches + 1
    tell(inventory, held(10))
    await server.until(lambda: label_of(server) == "64")


async def test_a_rise_waits_also_over_a_restart_and_an_unknown_block_changes_nothing(server, client, running):
    server.put(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "labels": {BLOCK_LABEL: "8"}}}
    )
    inventory = Inventory()
    tell(inventory, replace(held(0), holdings=None))
    made = marker(client, inventory, labelled(rise_s=3600.0))
    running(made.run())
    await server.until(lambda: server.counts["get", "nodes"] == 1)
    tell(inventory, held(0))
    await until(lambda: made._damped.due_s(0) < float("inf"))
    assert label_of(server) == "8"
    tell(inventory, held(75))
    await server.until(lambda: label_of(server) == "0")


async def test_a_label_of_an_earlier_configuration_is_removed(server, client, running):
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "labels": {BLOCK_LABEL: "0", "a": "b"}},
        }
    )
    inventory = Inventory()
    tell(inventory, held(0))
    running(marker(client, inventory, ClusterSettings(label=True)).run())
    await server.until(lambda: label_of(server) is None)
    assert server.find("nodes", "gpu-0")["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("states", "level", "in_force"),
    [
        ((), "env", None),
        (("unknown", "waiting"), "env", None),
        (("in force", "unknown"), "env", True),
        (("in force", "not in force"), "nvml-limits", False),
        (("not in force",), "mps", None),
    ],
)
def test_a_level_is_in_force_while_the_driver_shows_each_limit(states, level, in_force):
    limits = tuple(ContainerLimit("ns", "p", "c", "GPU-0", 1, state, 0.0) for state in states)
    (found,) = levels_in_force((replace(KIND, enforcement=level),), Snapshot(gpu_limits=limits))
    assert (found.enforcement, found.in_force) == (level, in_force)
    (claimed,) = levels_in_force((), Snapshot(gpu_limits=limits), (replace(KIND, enforcement=level),) * 2)
    assert claimed == replace(found, enforcement="env" if level == "nvml-limits" else level)


async def test_the_level_in_force_is_a_label_and_one_of_an_earlier_configuration_is_removed(
    server, client, running
):
    inventory = Inventory()
    tell(inventory, held(0))
    settings = ClusterSettings(gpu_mem_enforcement=True)
    made = DeviceMarker(
        client, inventory, "gpu-0", settings, level=lambda facts: level_in_force((KIND,), facts), jitter_s=0
    )
    made._rate = RateLimit(100, 100)
    running(made.run())

    def label():
        return server.find("nodes", "gpu-0")["metadata"].get("labels", {}).get(LEVEL_LABEL)

    await server.until(lambda: label() == "none")
    inventory.publish("paths", limit_support=LimitSupport(cgroup2=True))
    inventory.publish("gpus", gpu_driver="615.71.09")
    await server.until(lambda: label() == "env")
    assert level_in_force((WholeGpus("x/gpu"),), inventory.snapshot) is None
    running(marker(client, inventory, ClusterSettings(label=True)).run())
    await server.until(lambda: label() is None)
