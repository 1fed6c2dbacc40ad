"""`nodeagent health --problem`: the line and the exit code that a custom plugin of Node Problem Detector has."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.cli import main
from nodeagent.commands.health.device_health import problem_line
from nodeagent.facts.model import Reason, State
from nodeagent.health.explain import DeviceView
from tests.support.running_agent import node


def view(name: str, state: State = State.HEALTHY, *keys: str, warning: bool = False) -> DeviceView:
    reasons = tuple(Reason(key, "", warning=warning) for key in keys)
    kind = "gpu" if name.startswith("GPU") else "nic"
    return DeviceView(name, name, kind, state, not keys, True, None, reasons)


FLEET = [view("nic0"), view("nic1", State.DOWN, "carrier_down"), view("nic2", State.UNUSED), view("GPU0")]


@pytest.mark.parametrize(
    ("views", "kind", "code", "line"),
    [
        (FLEET, "links", 1, "1 of 3 links: nic1 carrier_down"),
        (FLEET, "gpus", 0, "1 GPUs are healthy"),
        ([view("nic0", State.HEALTHY, "lane_imbalance", warning=True)], "links", 0, "1 links are healthy"),
        ([view("nic0"), view("nic1", State.UNKNOWN, "stale")], "links", 2, "1 of 2 links have no current data"),
        ([view("nic0")], "gpus", 2, "no GPUs are known"),
        (
            [view("GPU0", State.DEGRADED, "nvlink_errors"), view("GPU3", State.UNHEALTHY, "xid_79", "nvlink_down")],
            "gpus", 1, "2 of 2 GPUs: GPU3 xid_79, nvlink_down; GPU0 nvlink_errors",
        ),
    ],
)  # fmt: skip
def test_a_problem_names_the_worst_device_first(views, kind, code: int, line: str) -> None:
    assert problem_line(views, kind) == (code, line)


def test_the_line_has_at_most_eighty_characters() -> None:
    views = [view(f"enp{n}s0f0np0", State.DOWN, "carrier_down") for n in range(8)]
    code, line = problem_line(views, "links")
    assert (code, len(line)) == (1, 80)
    assert line.endswith("…")


async def test_the_state_is_that_of_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    async with node() as n:
        verb = ["health", "--problem", "links", "--root", str(n.root)]
        assert await asyncio.to_thread(main, verb) == 2
        assert capsys.readouterr().out.startswith("no agent: ")
        await n.kubelet.start()
        await n.start_agent(n.configure(""))
        await n.allocatable("two-gpus-and-two-nics/nic0", 4)
        assert await asyncio.to_thread(main, verb) == 0
        assert capsys.readouterr().out.endswith(" links are healthy\n")
        n.machine.set_link(0, up=False)
        await n.allocatable("two-gpus-and-two-nics/nic0", 0)
        assert await asyncio.to_thread(main, verb) == 1
        assert "carrier_down" in capsys.readouterr().out
