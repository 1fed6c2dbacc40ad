"""The agent's half of MPS: the GPUs that it names, the health that follows the daemons, and the pods that are hit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cluster.agent_events import mps_notices
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu, Holding, Mount, Snapshot, State
from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.sharing.mps_files import DaemonState, DaemonStates, MpsFiles, WantedDaemons
from nodeagent.sharing.mps_watch import MPS_NOT_YET, NOT_RUNNING, MpsHit, MpsWatch
from tests.support.waiting import LIMIT_S

RESOURCE = "x/gpu-mem"
SHARES = MpsShares("/var/lib/nodeagent/mps", clients=2)
KIND = GpuMemory(RESOURCE, enforcement="mps", mps=SHARES)


def gpu(n: int) -> Gpu:
    return Gpu(f"GPU-{n}", n, n, "H100", f"0000:{n + 0x1B:02x}:00.0", 4096, 0)


READY = Snapshot(gpus=(gpu(0), gpu(1)), mps_obstacles=(("GPU-0", ""), ("GPU-1", "")), holdings=())


def held(n: int, pod: str, *slices: int) -> Holding:
    return Holding("ns", pod, "main", RESOURCE, tuple(f"GPU-{n}::{m}" for m in slices))


def test_a_container_gets_the_daemon_of_its_gpu_and_its_share_as_limit() -> None:
    allocation = KIND.allocate(READY, ["GPU-1::0", "GPU-1::2"])
    env = dict(allocation.env)
    pipes = "/var/lib/nodeagent/mps/GPU-1/pipe"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in env
    assert allocation.mounts == (Mount(pipes, pipes), Mount("/dev/shm/nodeagent-mps", "/dev/shm"))
    by_share = replace(KIND, mps=replace(SHARES, by_share=True))
    assert dict(by_share.allocate(READY, ["GPU-1::0"]).env)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"


def test_several_whole_gpus_are_granted_without_mps() -> None:
    every = [f"GPU-{n}::{m}" for n in range(2) for m in range(4)]
    allocation = KIND.allocate(READY, every)
    assert allocation.mounts == ()
    assert not [name for name, _ in allocation.env if name.startswith("CUDA_MPS")]


def test_without_its_daemon_a_gpu_is_unhealthy_and_refused() -> None:
    broken = replace(READY, mps_obstacles=(("GPU-0", ""), ("GPU-1", "it has crashed")))
    first, second = KIND.devices(broken)
    assert first.health.allocatable
    assert (second.health.state, second.health.reasons[0].detail) == (State.UNHEALTHY, "it has crashed")
    assert second.health.reasons[0].key == "mps_daemon"
    assert KIND.free(broken) == {"GPU-0": 4, "GPU-1": 0}
    with pytest.raises(Refused, match="GPU-1 is unhealthy: it has crashed"):
        KIND.allocate(broken, ["GPU-1::0"])
    assert not any(entry.health.allocatable for entry in KIND.devices(replace(READY, mps_obstacles=())))


def test_no_more_containers_share_a_gpu_than_the_daemon_has_clients() -> None:
    full = replace(READY, holdings=(held(0, "a", 0), held(0, "b", 1), held(1, "c", 0)))
    with pytest.raises(Refused, match=r"GPU-0 has 2 containers, and gpu\.mps\.clients is 2"):
        KIND.allocate(full, ["GPU-0::3"])
    free = [f"GPU-0::{n}" for n in (2, 3)] + [f"GPU-1::{n}" for n in (1, 2, 3)]
    assert KIND.prefer(full, free, [], 1) == ["GPU-1::1"]
    assert KIND.free(full) == {"GPU-0": 0, "GPU-1": 3}, "the label and the pages show what fits"


@pytest.fixture
def files(tmp_path: Path) -> MpsFiles:
    files = MpsFiles(tmp_path / "mps")
    files.folder.mkdir()
    return files


def watch_of(files: MpsFiles, inventory: Inventory) -> MpsWatch:
    return MpsWatch(files.folder, inventory, lambda: (KIND,), exclusive_process=True)


async def test_only_gpus_whose_slices_are_enforced_by_mps_need_a_daemon(files: MpsFiles) -> None:
    inventory, kinds = Inventory(), [replace(KIND, enforcement="env")]
    inventory.publish("gpus", gpus=READY.gpus)
    watch = MpsWatch(files.folder, inventory, lambda: tuple(kinds), exclusive_process=True)
    await watch.look()
    assert files.read_wanted().gpus == ()
    kinds.append(KIND)
    await watch.look()
    assert files.read_wanted().gpus == ("GPU-0", "GPU-1")


async def test_the_agent_names_the_gpus_and_follows_the_daemons(files: MpsFiles) -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=READY.gpus)
    task = asyncio.create_task(watch_of(files, inventory).run())

    async def obstacles(*expected: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while tuple(dict(inventory.snapshot.mps_obstacles).values()) != expected:
                await inventory.changed(inventory.snapshot.revision)

    await obstacles(NOT_RUNNING, NOT_RUNNING)
    assert files.read_wanted() == WantedDaemons(("GPU-0", "GPU-1"), exclusive_process=True)
    lock = files.take_lock()
    assert lock is not None
    files.write_states(DaemonStates((DaemonState("GPU-0", "", 7), DaemonState("GPU-1", "no program"))))
    await obstacles("", "no program")
    inventory.publish("gpus", gpus=(gpu(0), replace(gpu(1), lost=True)))
    await obstacles("")
    assert files.read_wanted().gpus == ("GPU-0",), "the daemon of a lost GPU would keep the driver"
    inventory.publish("gpus", gpus=READY.gpus)
    files.write_states(DaemonStates((DaemonState("GPU-0", "", 7),)))
    await obstacles("", MPS_NOT_YET)
    os.close(lock)  # as the kernel does at the end of `nodeagent mps`
    await obstacles(NOT_RUNNING, NOT_RUNNING)
    task.cancel()


async def test_the_pods_of_a_gpu_are_hit_when_its_daemon_is_another_one(files: MpsFiles) -> None:
    inventory = Inventory()
    holdings = (held(0, "a", 0), held(0, "b", 1), held(1, "c", 0))
    inventory.publish("gpus", gpus=READY.gpus)
    inventory.publish("pods", holdings=holdings)
    watch = watch_of(files, inventory)
    assert files.take_lock() is not None
    files.write_states(DaemonStates((DaemonState("GPU-0", "", 7), DaemonState("GPU-1", "", 8))))
    await watch.look()
    assert watch.hits == (), "an agent that has just started has no earlier pid"
    files.write_states(DaemonStates((DaemonState("GPU-0", "", 9, "signal 11"), DaemonState("GPU-1", "", 8))))
    await watch.look()
    assert watch.hits == (MpsHit("GPU-0", "ns", "a", "signal 11"), MpsHit("GPU-0", "ns", "b", "signal 11"))
    assert watch.ends == {"GPU-0": 1}
    on_node, on_pod, *_ = mps_notices(watch, READY.gpus, "n1")
    assert (on_node.target.kind, on_pod.target.kind, on_pod.target.name) == ("Node", "Pod", "a")
    assert on_pod.message.startswith("The MPS daemon of GPU 0 (GPU-0) has ended (signal 11);")
    inventory.publish("pods", holdings=(holdings[1],))
    await watch.look()
    assert [hit.pod for hit in watch.hits] == ["b"], "a pod that has ended needs no Event"


async def test_a_broken_file_is_no_daemon(files: MpsFiles) -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=READY.gpus)
    watch = watch_of(files, inventory)
    assert files.take_lock() is not None
    (files.folder / "daemons.json").write_text('{"daemons": [{"uuid": 7}]}')
    await watch.look()
    assert list(dict(inventory.snapshot.mps_obstacles).values()) == [MPS_NOT_YET, MPS_NOT_YET]


async def test_a_list_that_was_deleted_is_written_again(files: MpsFiles) -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=(gpu(0),))
    watch = watch_of(files, inventory)
    await watch.look()
    (files.folder / "wanted.json").unlink()
    await watch.look()
    assert files.read_wanted().gpus == ("GPU-0",)


async def test_an_agent_without_a_list_of_gpus_ends_no_daemon(files: MpsFiles) -> None:
    """At its start, for as long as the driver hangs: the programs of the GPUs run on."""
    wanted = WantedDaemons(("GPU-0", "GPU-1"), exclusive_process=True)
    files.write_wanted(wanted)
    inventory = Inventory()
    watch = watch_of(files, inventory)
    await watch.look()
    assert files.read_wanted() == wanted
    inventory.publish("gpus", gpus=(gpu(0),))
    await watch.look()
    assert files.read_wanted().gpus == ("GPU-0",)


async def test_the_end_of_a_daemon_without_a_record_is_the_end_of_nodeagent_mps(files: MpsFiles) -> None:
    inventory = Inventory()
    inventory.publish("gpus", gpus=READY.gpus)
    inventory.publish("pods", holdings=(held(0, "a", 0),))
    watch = watch_of(files, inventory)
    files.write_states(DaemonStates((DaemonState("GPU-0", "", 7),)))
    await watch.look()
    files.write_states(DaemonStates(()))
    await watch.look()
    assert watch.hits == (MpsHit("GPU-0", "ns", "a", "nodeagent mps has ended"),)
