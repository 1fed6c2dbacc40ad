"""Measure the reception of LLDP on real veth pairs, with the sender in a process of its own. Needs root.

    python hack/bench_lldp_wire.py [--quick]

wire → fact   from just before the sender's send() until the facts are published; each frame is a change
idle cost     33 links with frames at ``SPEED`` times the normal rate; CPU time of the whole process, less its
              time without frames, divided by ``SPEED``
flood         10,000 frames a second for 10 s on one link, all different and half of them well formed, while
              another link changes every 50 ms
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nodeagent.host.netlink.kernel_events import LinkEvents  # noqa: E402
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame  # noqa: E402
from nodeagent.lldp.lldpdu import Capabilities, ChassisId, Lldpdu, ManagementAddress, PortId  # noqa: E402
from nodeagent.lldp.lldpdu_codec import encode_lldpdu  # noqa: E402
from nodeagent.sources.lldp_receiver import LldpReceiver  # noqa: E402
from nodeagent.sources.lldp_source import run_receiver  # noqa: E402
from nodeagent.sources.source_settings import LinkSelect  # noqa: E402
from tests.support.namespaces import Netns, veth  # noqa: E402

LINKS = 33
SPEED = 100
INTERVAL_S = 30.0


def frame(number: int, name: str) -> bytes:
    pdu = Lldpdu(
        ChassisId(4, number.to_bytes(6, "big")),
        PortId(5, b"swp1s0"),
        120,
        port_description="node-0123 rail 0 mlx5_0",
        system_name=name,
        system_description="Cumulus Linux version 5.9.1 running on Nvidia SN5600",
        capabilities=Capabilities(0x14, 0x14),
        management_addresses=(ManagementAddress(1, bytes((192, 0, 2, 17)), 2, 2),),
        pvid=100,
        maximum_frame_size=9216,
    )
    return build_frame(NEAREST_BRIDGE, b"\x02\0\0\0\0\1", encode_lldpdu(pdu))


# --- the sender's process ---------------------------------------------------------------------------------


def send(ns: Netns, kind: str, seconds: float) -> subprocess.Popen[str]:
    command = ns.command(sys.executable, __file__, "--send", kind, "--seconds", str(seconds))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def sending(kind: str, seconds: float) -> None:
    def raw(number: int) -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        opened.bind((f"b{number}", 0))
        return opened

    ends = time.monotonic() + seconds
    if kind == "changes":
        link = raw(0)
        while time.monotonic() < ends:
            link.send(frame(1, str(time.monotonic_ns())))
            time.sleep(random.uniform(0.025, 0.075))
    elif kind == "life":
        links = [(raw(n), frame(n + 1, f"leaf-{n}")) for n in range(LINKS)]
        gap = INTERVAL_S / SPEED / LINKS
        at, turn = time.monotonic(), 0
        while at < ends:
            link, payload = links[turn % LINKS]
            link.send(payload)
            turn, at = turn + 1, at + gap
            time.sleep(max(0.0, at - time.monotonic()))
    else:
        flood(raw(1), raw(0), ends)


def flood(hostile, quiet, ends: float) -> None:
    source = random.Random(1)
    noise = [build_frame(NEAREST_BRIDGE, b"\x02\0\0\0\0\2", source.randbytes(300)) for _ in range(5000)]
    evil = [frame(2 + n, f"evil-{n}") for n in range(5000)]
    began, sent, next_quiet = time.monotonic(), 0, 0.0
    while (now := time.monotonic()) < ends:
        while sent < (now - began) * 10_000:
            hostile.send(noise[sent // 2 % 5000] if sent % 2 else evil[sent // 2 % 5000])
            sent += 1
        if now >= next_quiet:
            quiet.send(frame(1, str(time.monotonic_ns())))
            next_quiet = now + 0.05
        time.sleep(0.001)
    print(sent)


# --- the agent's side ---------------------------------------------------------------------------------------


class Bench:
    """Run the receiver and record how long each change of link 0 takes to become a fact."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.publications = 0
        self._last = ""

    def publish(self, neighbors, _remarks) -> None:
        now = time.monotonic_ns()
        self.publications += 1
        for neighbor in neighbors:
            name = neighbor.system_name or ""
            if neighbor.link == "swp0" and name.isdecimal() and name != self._last:
                self._last = name
                self.latencies.append((now - int(name)) / 1e6)

    @contextlib.asynccontextmanager
    async def agent(self):
        with LinkEvents() as events:
            receiver = LldpReceiver(self.publish)
            task = asyncio.create_task(run_receiver(receiver, LinkSelect(netdevs=("swp*",)), tuple, [events]))
            await receiver.updated.wait()
            await asyncio.sleep(0.5)
            try:
                yield receiver
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


_REACTION_S = 0.2
"""For what the last frames make the agent do."""


async def run(ns: Netns, kind: str, seconds: float, lags: list[float] | None = None) -> tuple[float, str]:
    """CPU seconds of this process while the sender runs, however long its start takes, and the sender's output."""
    sender = send(ns, kind, seconds) if kind else None
    before = time.process_time()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends if sender is None else sender.poll() is None:
        # Stands for the other work of the agent's loop: it is due every 10 ms.
        at = time.monotonic()
        await asyncio.sleep(0.01 if lags is not None else 1.0)
        if lags is not None:
            lags.append((time.monotonic() - at - 0.01) * 1e3)
    await asyncio.sleep(_REACTION_S)
    spent = time.process_time() - before
    return spent, sender.communicate()[0] if sender else ""


def quantiles(values: list[float]) -> dict[str, float]:
    cut = statistics.quantiles(values, n=100)
    return {"n": len(values), "p50": cut[49], "p99": cut[98], "max": max(values)}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def main(scale: float) -> dict[str, object]:
    figures: dict[str, object] = {}
    with Netns() as near, Netns() as far:
        for number in range(LINKS):
            veth(near, f"swp{number}", far, f"b{number}")
        with near.entered():
            bench = Bench()
            async with bench.agent():
                await run(far, "changes", 20 * scale)
                figures["wire_to_fact_ms"] = quantiles(bench.latencies)
            bench = Bench()
            async with bench.agent() as receiver:
                still, _ = await run(far, "", 10 * scale)
                spent, _ = await run(far, "life", 10 * scale)
                frames = sum(sum(receiver.counts(f"swp{n}").values()) for n in range(LINKS))
                per_frame = max(0.0, spent - still) / frames
                figures["idle"] = {
                    "frames": frames,
                    "cpu_us_per_frame": per_frame * 1e6,
                    "cpu_percent_in_life": per_frame * LINKS / INTERVAL_S * 100,
                    "cpu_percent_without_frames": still / (10 * scale) * 100,
                }
            bench, lags = Bench(), []
            async with bench.agent() as receiver:
                before = resident_mib()
                spent, sent = await run(far, "flood", 10 * scale, lags)
                figures["flood"] = {
                    "sent": int(sent),
                    "cpu_percent": spent / (10 * scale) * 100,
                    "rss_growth_mib": resident_mib() - before,
                    "publications": bench.publications,
                    "other_link_ms": quantiles(bench.latencies),
                    "loop_lag_ms": quantiles(lags),
                    "fate": dict(receiver.counts("swp1")),
                }
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        sending(options.send, options.seconds)
    else:
        print(json.dumps(asyncio.run(main(0.1 if options.quick else 1.0)), indent=2))
