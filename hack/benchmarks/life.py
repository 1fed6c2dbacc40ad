"""Measure the time until every resource is registered, after a start of the agent and of the kubelet."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial

from benchmarks.figures import Figure
from benchmarks.stage import ENVIRONMENT, INSIDE, Stage, first_lists, registrations, settled

_LISTEN_DELAY_S = 0.05


async def start(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    runs = 5 if quick else 25
    group = "Start of `nodeagent run`, from exec to the kubelet's answers"
    registered: list[float] = []
    listed: list[float] = []
    worked: list[float] = []
    for number in range(runs + 1):
        async with stage.kubelet() as kubelet, stage.agent(kubelet) as process:
            if number:  # the first run fills caches
                worked.append(1000 * process.cpu_s())
                registered.append(1000 * (max(registrations(kubelet, 0).values()) - process.began))
                listed.append(1000 * (max(first_lists(kubelet, 0).values()) - process.began))
    yield Figure(group, "all 9 resources are registered", "ms", registered, key="agent start")
    yield Figure(group, "all 9 device lists have reached the kubelet", "ms", listed)
    yield Figure(group, "CPU time of the agent until then, which depends less on other load", "ms", worked)
    async for figure in _parts(stage, group, 5 if quick else 15):
        yield figure
    yield _imports(group, 3 if quick else 7)


async def _parts(stage: Stage, group: str, runs: int) -> AsyncIterator[Figure]:
    """The same start with timestamps between its parts."""
    names = ("interpreter is up", "modules are imported", "configuration is read")
    parts: dict[str, list[float]] = {}
    for _ in range(runs):
        async with stage.kubelet() as kubelet, stage.agent(kubelet, command=INSIDE) as process:
            stamps = await process.answer()
            published = stamps["published"]
            moments = [process.began, stamps["born"], stamps["imported"], stamps["ready"]]
            for name, before, at in zip(names, moments, moments[1:], strict=False):
                parts.setdefault(name, []).append(1000 * (at - before))
            last = max(published, key=published.get)
            for source, at in published.items():
                parts.setdefault(f"source {source} has published", []).append(1000 * (at - stamps["ready"]))
            registered_at = max(registrations(kubelet, 0).values())
            parts.setdefault("sockets and registrations", []).append(1000 * (registered_at - published[last]))
    for name in (*names, *sorted(name for name in parts if name.startswith("source"))):
        yield Figure(group, f"  of that, until: {name}", "ms", parts[name])
    yield Figure(
        group,
        "  of that, after the sources: sockets and registrations",
        "ms",
        parts["sockets and registrations"],
    )


def _imports(group: str, runs: int) -> Figure:
    """Import times by Python itself; measuring makes the imports slower."""
    totals = []
    shares: dict[str, list[float]] = {}
    for _ in range(runs):
        traced = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import nodeagent.cli, nodeagent.agent"],
            capture_output=True, text=True, check=True, env=ENVIRONMENT,
        )  # fmt: skip
        own: dict[str, float] = {}
        for self_us, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", traced.stderr):
            top = ".".join(name.split(".")[:2]) if name.startswith("google.") else name.split(".")[0]
            own[top] = own.get(top, 0.0) + int(self_us) / 1000
        totals.append(sum(own.values()))
        for top, ms in own.items():
            shares.setdefault(top, []).append(ms)
    ranked = sorted(((statistics.median(ms), top) for top, ms in shares.items()), reverse=True)[:8]
    note = "own time by package, as -X importtime counts it: " + ", ".join(
        f"{top} {ms:.0f}" for ms, top in ranked
    )
    return Figure(group, "  sum of -X importtime over all modules", "ms", totals, note=note)


async def restart(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    runs = 10 if quick else 50
    group = "Kubelet restart, from the moment it begins to start (or listens) to the last answer"
    note = "includes the start of the stand-in kubelet, and what it does in Python for each registration"
    random_ = random.Random(1)
    async with stage.kubelet() as kubelet, stage.agent(kubelet) as agent:
        for name, killed, delay_s, key in (
            ("stopped and started", False, 0.0, ""),
            ("killed and started", True, 0.0, "agent restart"),
            (
                f"killed; its socket refuses for {1000 * _LISTEN_DELAY_S:.0f} ms, then listens",
                True,
                _LISTEN_DELAY_S,
                "",
            ),
        ):
            registered: list[float] = []
            listening: list[float] = []
            listed: list[float] = []
            worked: list[float] = []
            simulated: list[float] = []
            for _ in range(runs):
                await (kubelet.kill() if killed else kubelet.stop())
                await asyncio.sleep(random_.uniform(0.0, 0.2))
                agent_s, own_s = agent.cpu_s(), time.process_time()
                began = time.monotonic()
                await kubelet.start(listen_delay_s=delay_s)
                await kubelet.until(partial(settled, kubelet, began), 30.0)
                ready = began + delay_s
                worked.append(1000 * (agent.cpu_s() - agent_s))
                simulated.append(1000 * (time.process_time() - own_s))
                last = max(registrations(kubelet, began).values())
                registered.append(1000 * (last - ready))
                listening.append(1000 * (last - kubelet.bound_at - delay_s))
                listed.append(1000 * (max(first_lists(kubelet, began).values()) - ready))
            yield Figure(group, f"{name}: all 9 registered", "ms", registered, note=note, key=key)
            yield Figure(group, "  of that, after its socket listens", "ms", listening)
            yield Figure(group, f"{name}: all 9 lists received", "ms", listed)
            yield Figure(group, "  CPU time of the agent until then", "ms", worked)
            yield Figure(group, "  CPU time of the stand-in kubelet until then", "ms", simulated)
