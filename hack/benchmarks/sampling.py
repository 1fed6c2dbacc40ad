"""The cost of sampling the links of a node with 73 interfaces, beside pyroute2 with the same reads; and the time from
a carrier loss to its sample.

The interfaces are veths in their own network namespace. The carriers are those of taps, because linkwatch delays taps
and not veths.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.stage import PATIENCE_S, Stage
from nodeagent.facts.model import Function
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent_lab.sim.netns import Netns

CPU_MS = 3.0
SYSCALLS = 120.0
PYROUTE2_TIMES = 8.0
PAIRS = 36
_FAST = SamplesSettings(
    driver_seconds=None,
    rdma_seconds=None,
    pcie_seconds=None,
    devlink_seconds=None,
    vf_seconds=None,
    module_seconds=None,
    kernel_log=False,
)
_NOTE = (
    "72 veths and lo. A cycle is one dump each of links with counters, modes, link state, FEC and pauses, the "
    "hand-over to a thread, decoding and publishing of samples"
)
_PYROUTE2_NOTE = (
    "get_links, and link modes and link state of each interface: pyroute2 has no dumps of those, no FEC and "
    "no pauses"
)


async def sampling(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    del stage  # a real kernel is measured
    group = "Sampling 73 interfaces"
    try:
        ns = Netns()
    except PermissionError:
        return
    with ns:
        ns.ip("\n".join(f"link add v{n} up type veth peer name w{n}" for n in range(PAIRS)))
        with ns.entered():
            cycles, times = (20, 5) if quick else (50, 20)
            agent = await _agent_cycles(times, cycles // 5)
            yield Figure(group, "CPU of a fast cycle", "ms", agent, {"p50": CPU_MS}, _NOTE)
            pyroute2 = await asyncio.to_thread(_pyroute2_cycles, 3 if quick else 10)
            yield Figure(group, "  pyroute2, the same reads", "ms", pyroute2, {}, _PYROUTE2_NOTE)
            ratio = sorted(pyroute2)[len(pyroute2) // 2] / sorted(agent)[len(agent) // 2]
            yield Figure(group, f"  ratio of the two (goal: {PYROUTE2_TIMES:g} or more)", "", [ratio])
        if shutil.which("strace"):
            few, many = await _syscalls(ns, 10), await _syscalls(ns, 60)
            calls = (many - few) / 50
            yield Figure(group, "system calls of a fast cycle", "", [calls], {"max": SYSCALLS}, _NOTE)
    if Path("/dev/net/tun").exists():
        # In a loop of its own: the threads of this one belong to the other namespace.
        first, second = await asyncio.to_thread(asyncio.run, _losses(3 if quick else 12))
        group = "From a carrier lost on a tap to the sample"
        yield Figure(
            group, "the first", "ms", first, {},
            "30 ms of it are an intended delay: the report to the kubelet comes first, which `taps` measures",
        )  # fmt: skip
        yield Figure(
            group, "another NIC's, 100 ms later", "ms", second, {},
            "the kernel announces it up to a second late; the sweep after the first loss finds it",
        )  # fmt: skip


def _functions(names: Sequence[str]) -> tuple[Function, ...]:
    return tuple(
        Function(
            f"0000:{n:02x}:00.0", "15b3", "1021", "veth", name, "ethernet", None, None, None, None,
            ("pci0000:00", f"0000:{n:02x}:00.0"),
        )
        for n, name in enumerate(names)
    )  # fmt: skip


def _sampler(publish: Callable[[Sequence[Sample]], None] = lambda _: None) -> Sampler:
    functions = _functions([f"{end}{n}" for end in "vw" for n in range(PAIRS)])
    return Sampler(Tree("/"), lambda: functions, publish, _FAST)


async def cycles(count: int) -> None:
    sampler = _sampler()
    for _ in range(count):
        await sampler.once()
    sampler.close()


async def _agent_cycles(times: int, count: int) -> list[float]:
    sampler = _sampler()
    await sampler.once()
    found = []
    for _ in range(times):
        began = time.process_time()
        for _ in range(count):
            await sampler.once()
        found.append(1000 * (time.process_time() - began) / count)
    sampler.close()
    return found


def _pyroute2_cycles(times: int) -> list[float]:
    from pyroute2 import IPRoute
    from pyroute2.netlink.generic.ethtool import NlEthtool

    found = []
    with IPRoute() as route:
        ethtool = NlEthtool()
        for turn in range(times + 1):
            began = time.process_time()
            for link in route.get_links():
                name = link.get_attr("IFLA_IFNAME")
                if name != "lo":
                    ethtool.get_linkmode(name)
                    ethtool.get_linkstate(name)
            if turn:
                found.append(1000 * (time.process_time() - began))
        ethtool.close()
    return found


async def _syscalls(ns: Netns, count: int) -> int:
    """System calls of a whole process, its start included."""
    here = Path(__file__).parent.parent
    code = f"import asyncio; from benchmarks.sampling import cycles; asyncio.run(cycles({count}))"
    done = await asyncio.to_thread(
        subprocess.run,
        ns.command("strace", "-f", "-c", "-q", sys.executable, "-c", code),
        env=os.environ | {"PYTHONPATH": f"{here}:{here.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    total = re.search(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s.*total$", done.stderr, re.MULTILINE)
    assert total, done.stderr
    return int(total[1])


# include/uapi/linux/if_tun.h
_TUNSETIFF, _TUNSETCARRIER = 0x400454CA, 0x400454E2
_IFF_TAP_NO_PI = 0x0002 | 0x1000
_APART_S = 0.1
_QUIET_S = 2.5
"""linkwatch announces a change up to a second late, and then delays the next one by a second."""


async def _losses(count: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the sample: of the first loss after a quiet time, and of another loss 100 ms later."""
    news = asyncio.Event()
    carrier: dict[str, float | None] = {}

    def publish(samples: Sequence[Sample]) -> None:
        carrier.update({sample.device: sample.values.get("carrier") for sample in samples})
        news.set()

    async def lost(fd: int, device: str) -> float:
        began = time.monotonic()
        fcntl.ioctl(fd, _TUNSETCARRIER, struct.pack("I", 0))
        async with asyncio.timeout(PATIENCE_S):
            while carrier.get(device) != 0:
                news.clear()
                await news.wait()
        return 1000 * (time.monotonic() - began)

    first, second = [], []
    functions = _functions(["tap0", "tap1"])
    with Netns() as ns, ns.entered(), LinkEvents() as events:
        taps = [os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC) for _ in range(2)]
        for n, fd in enumerate(taps):
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", f"tap{n}".encode(), _IFF_TAP_NO_PI))
        ns.ip("link set tap0 up\nlink set tap1 up")
        task = asyncio.create_task(Sampler(Tree("/"), lambda: functions, publish, _FAST).watch([events]))
        for _ in range(count):
            for fd in taps:
                fcntl.ioctl(fd, _TUNSETCARRIER, struct.pack("I", 1))
            await asyncio.sleep(_QUIET_S)
            first.append(await lost(taps[0], functions[0].pci_address))
            await asyncio.sleep(_APART_S)
            second.append(await lost(taps[1], functions[1].pci_address))
            await asyncio.sleep(_QUIET_S)
        task.cancel()
        await asyncio.wait((task,))
        for fd in taps:
            os.close(fd)
    return first, second
