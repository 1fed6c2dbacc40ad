"""The agent reads what `nodeagent attach` tells: facts for pages and verbs, numbers for metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.attach.attach_files import AttachCounts, AttachFiles, AttachState, WaitingPod
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import PodNetdev, Snapshot
from nodeagent.features.netdevs_in_pods.attach_watch import AttachWatch, attach_sample
from nodeagent.features.netdevs_in_pods.netdevs_task import ATTACH_FAMILIES
from nodeagent.metrics.scrape_input import ScrapeInput

NETDEVS = (PodNetdev("0000:18:00.2", "ml", "worker-0", "rail0", ("10.100.16.7/16",)),)


async def test_the_netdevs_of_the_state_are_facts_of_the_node(tmp_path: Path) -> None:
    inventory, files = Inventory(), AttachFiles(tmp_path)
    watch = AttachWatch(tmp_path, inventory)
    await watch.look()
    assert inventory.snapshot.pod_netdevs == ()
    files.folder.mkdir()
    files.write_state(AttachState("containerd 2.1.9", netdevs=NETDEVS))
    await watch.look()
    assert inventory.snapshot.pod_netdevs == NETDEVS
    revision = inventory.snapshot.revision
    files.write_state(AttachState("containerd 2.1.9", netdevs=NETDEVS, counts=AttachCounts().attached(0.2)))
    await watch.look()
    assert inventory.snapshot.revision == revision, "a count wakes nobody"


async def test_a_state_that_cannot_be_read_leaves_the_last_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inventory, files = Inventory(), AttachFiles(tmp_path)
    watch = AttachWatch(tmp_path, inventory)
    files.folder.mkdir()
    files.write_state(AttachState(netdevs=NETDEVS))
    await watch.look()
    (files.folder / "state.json").write_text("{")
    for _ in range(3):
        await watch.look()
    assert inventory.snapshot.pod_netdevs == NETDEVS
    assert [entry.source for entry in inventory.snapshot.stale_sources] == ["attach"]
    assert len(caplog.records) == 1
    files.write_state(AttachState())
    await watch.look()
    assert (inventory.snapshot.pod_netdevs, inventory.snapshot.stale_sources) == ((), ())


async def test_it_is_connected_while_the_process_runs_and_a_runtime_is_there(tmp_path: Path) -> None:
    files = AttachFiles(tmp_path)
    watch = AttachWatch(tmp_path, Inventory())
    connected = []
    for runtime in ("", "containerd 2.1.9"):
        files.folder.mkdir(exist_ok=True)
        files.write_state(AttachState(runtime))
        await watch.look()
        connected.append(watch.samples()[0].values["attach_connected"])
    assert files.take_lock() is not None
    await watch.look()
    connected.append(watch.samples()[0].values["attach_connected"])
    assert connected == [0, 0, 1]


def test_the_families_show_times_failures_and_waiting_pods() -> None:
    counts = AttachCounts().attached(0.08).attached(0.3).failed("move").failed("move").failed("set up")
    waiting = (WaitingPod("ml/a", "x"), WaitingPod("ml/a", "y"), WaitingPod("ml/b", "x"))
    sample = attach_sample(AttachState("containerd 2.1.9", waiting=waiting, counts=counts), 1.0, runs=True)
    shown = ScrapeInput(snapshot=Snapshot(), samples=(sample,))
    lines = [line for family in ATTACH_FAMILIES for line in family.lines(shown).values()]
    assert "".join(lines).splitlines() == [
        "nodeagent_attach_connected 1.0",
        "nodeagent_attach_waiting_pods 2",
        'nodeagent_attach_seconds_bucket{le="0.05"} 0',
        'nodeagent_attach_seconds_bucket{le="0.1"} 1',
        'nodeagent_attach_seconds_bucket{le="0.2"} 1',
        'nodeagent_attach_seconds_bucket{le="0.5"} 2',
        'nodeagent_attach_seconds_bucket{le="1"} 2',
        'nodeagent_attach_seconds_bucket{le="2"} 2',
        'nodeagent_attach_seconds_bucket{le="5"} 2',
        'nodeagent_attach_seconds_bucket{le="+Inf"} 2',
        "nodeagent_attach_seconds_count 2",
        "nodeagent_attach_seconds_sum 0.38",
        'nodeagent_attach_failures_total{step="move"} 2',
        'nodeagent_attach_failures_total{step="set up"} 1',
    ]
