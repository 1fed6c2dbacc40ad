"""Notes of requests survive a restart: the file, and the placement that `pack` makes with and without it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kubelet.grown_requests import REQUESTS_FORM, GrownRequests, RequestNotes
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.kind_machines import dgx
from tests.support.running_agent import node
from tests.support.virtual_time import run

SMALL = "two-gpus-and-two-nics"
RESOURCE = "nodeagent.io/gpu-mem"
SLICES = 79
"""Of each of eight GPUs."""


def refused_share(restarted: Callable[[GrownRequests], GrownRequests], pods: int = 2000) -> float:
    """The part of random pods that is refused, with a restart after each 200 pods.

    Pods of 1 to 79 slices end in random order while more than 70 % of the slices are held.
    """
    chance, kind, snapshot = random.Random(20261126), GpuMemory(RESOURCE), dgx(0)
    free = {id_ for entry in kind.devices(snapshot) for id_ in entry.ids}
    room, held = len(free), list[list[str]]()
    requests, refused = GrownRequests(), 0
    for pod in range(pods):
        if pod % 200 == 0:
            requests = restarted(requests)
        while room - len(free) > 0.7 * room:
            free.update(held.pop(chance.randrange(len(held))))
        size, now = chance.randint(1, SLICES), 60.0 * pod
        requests.ask((), size, now)
        try:
            ids = kind.prefer(snapshot, tuple(free), (), size, (), requests.later_sizes(size))
        except Refused:
            refused += 1
            continue
        requests.allocate(ids, now)
        held.append(ids)
        free.difference_update(ids)
    return refused / pods


@pytest.mark.slow
def test_after_restarts_pack_is_best_fit_with_the_notes_of_earlier_agents() -> None:
    unbroken = refused_share(lambda requests: requests)
    kept = refused_share(lambda requests: GrownRequests(requests.notes))
    fresh = refused_share(lambda _requests: GrownRequests())
    assert kept == unbroken
    assert kept < fresh / 2, (kept, fresh)


def test_the_notes_are_saved_after_a_request_and_an_agent_that_starts_again_has_them(tmp_path: Path) -> None:
    async def requests() -> None:
        notes = RequestNotes(tmp_path)
        running = asyncio.create_task(notes.run())
        notes.of(RESOURCE).allocate([f"GPU-0::{n}" for n in range(16)], 0.0)
        notes.of(RESOURCE).ask([f"GPU-0::{n}" for n in range(16)], 40, 0.1)
        while notes.file.path is None or not notes.file.path.exists():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait((running,))

    run(requests())
    again = RequestNotes(tmp_path).of(RESOURCE)
    assert again.later_sizes(16) == (40,)
    assert again.later_sizes(8) is None


async def test_an_agent_that_starts_again_knows_the_sizes_that_pods_have_asked_for() -> None:
    memory = f"{SMALL}/gpu-mem"
    async with node() as n:
        file = n.root / "var/lib/nodeagent" / REQUESTS_FORM.name
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(memory, 158)
        assert (await n.kubelet.admit(PodSpec.single("p", {memory: 16}))).admitted
        await n.until(file.exists)
        await n.stop_agent()
        await n.start_agent()
        assert n.agent.stored.requests.of(memory).later_sizes(16) == ()


def test_the_file_of_this_version_is_read_by_a_later_one(tmp_path: Path) -> None:
    (tmp_path / REQUESTS_FORM.name).write_text(json.dumps({RESOURCE: {"16": [16, 40], "40": [40]}}))
    again = RequestNotes(tmp_path).of(RESOURCE)
    assert (again.later_sizes(16), again.later_sizes(40)) == ((40,), ())


@pytest.mark.parametrize("text", ["[]", '{"a": {"x": [1]}}', '{"a": {"1": "2"}}', "\x00"])
def test_a_damaged_file_is_like_none(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / REQUESTS_FORM.name).write_text(text)
    assert RequestNotes(tmp_path).of("a").later_sizes(1) is None
    assert "goes to the emptiest GPU" in caplog.text
