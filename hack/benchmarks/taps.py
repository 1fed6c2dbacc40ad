"""Measure the time from a carrier lost on a tap to the message at the kubelet, through the whole agent.

A tap is no PCI function. So the PCI side is the files of a simulated DGX, and the kernel's own sysfs folder of a tap is
mounted in place of the netdev of each SR-IOV PF, in a network and mount namespace of its own. rtnetlink, linkwatch,
carrier and samples are the real kernel's; there are no GPUs.

    taps.py ROOT NAME:FOLDER,... COMMAND...   create the taps, start the agent; answer "0 down" on stdin with the time
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.stage import NODEAGENT, PATIENCE_S, Process, Stage, first_lists
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine

FIRST_P99_MS, SECOND_P99_MS = 10.0, 30.0
APART_S = 0.1
QUIET_S = 2.5
"""linkwatch sends an event up to a second after the change, and then none for a second."""
PREFIX = "nvidia-dgx-h100"
VFS = 8
_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
gpu: {driver: none}
resources:
- {kind: vf, name: "nic{rail}", select: {minSpeedMbps: 0}}
health:
  rules:
  - {rule: carrier_down, clearForSeconds: 0}
  - {rule: flapping, enabled: false}
  - {rule: flapping_daily, enabled: false}
"""
_NOTE = (
    "taps in a namespace of their own, mounted as the netdevs of a simulated DGX's eight PFs; from the "
    "ioctl to the message of the PF's 8 VFs at the stand-in kubelet; needs root"
)


async def taps(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return
    group = "From a carrier lost on a tap to the kubelet"
    root = Path(tempfile.mkdtemp(dir=stage.folder))
    machine = Machine.load("dgx-h100")
    machine.write(root)
    shutil.rmtree(root / ".nodeagent")  # without this folder the agent treats the root as a real machine
    pfs = [pf for pf in machine.pfs if pf.may_have_vfs]
    names = [(pf.netdev.name, pf.folder) for pf in pfs if pf.netdev is not None]
    netdevs = ",".join(f"{name}:{folder}/net/{name}" for name, folder in names)
    config = stage.folder / "taps.yaml"
    config.write_text(_CONFIG)
    async with stage.kubelet() as kubelet:
        agent: tuple[str, ...] = (*NODEAGENT, "run", "--config", str(config), "--root", str(root))
        agent += ("--kubelet-dir", str(kubelet.directory), "--listen", "127.0.0.1:0")
        async with stage.process(sys.executable, __file__, str(root), netdevs, *agent) as process:
            if "error" in await process.answer():  # no right to create namespaces, or to mount
                return
            async with asyncio.timeout(PATIENCE_S):
                await kubelet.until(lambda: len(first_lists(kubelet, 0)) == len(pfs), PATIENCE_S)
            first, second = await _losses(process, kubelet, len(pfs), 5 if quick else 50)
    yield Figure(group, "the first loss: 8 VFs Unhealthy", "ms", first, {"p99": FIRST_P99_MS}, _NOTE)
    yield Figure(
        group, "a loss of another PF, 100 ms later", "ms", second, {"p99": SECOND_P99_MS},
        "the kernel announces it up to a second late; the repeated reads after the first one find it",
    )  # fmt: skip


async def _losses(
    process: Process, kubelet: Kubelet, count: int, rounds: int
) -> tuple[list[float], list[float]]:
    first, second = [], []
    for number in range(rounds):
        await asyncio.sleep(QUIET_S)
        rail, other = number % count, (number + 1) % count
        first.append(await _change(process, kubelet, rail, up=False))
        await asyncio.sleep(APART_S)
        second.append(await _change(process, kubelet, other, up=False))
        await asyncio.sleep(QUIET_S)
        for which in (rail, other):
            await _change(process, kubelet, which, up=True)
    return first, second


async def _change(process: Process, kubelet: Kubelet, rail: int, *, up: bool) -> float:
    resource, want = f"{PREFIX}/nic{rail}", VFS if up else 0
    before = len(kubelet.updates)
    began = (await process.ask(f"{rail} {'up' if up else 'down'}"))["at"]

    def arrival() -> float | None:
        news = kubelet.updates[before:]
        return next(
            (update.at for update in news if update.resource == resource and update.healthy == want), None
        )

    await kubelet.until(lambda: arrival() is not None, PATIENCE_S)
    at = arrival()
    assert at is not None
    return float(1000 * (at - began))


# include/uapi/linux/if_tun.h, sched.h, mount.h
_TUNSETIFF, _TUNSETCARRIER = 0x400454CA, 0x400454E2
_IFF_TAP_NO_PI = 0x0002 | 0x1000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CLONE_NEWNS, _CLONE_NEWNET = 0x0002_0000, 0x4000_0000
_MS_BIND, _MS_REC_PRIVATE = 0x1000, 0x4000 | 0x4_0000


def _call(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def _wire(root: str, netdevs: list[str]) -> list[int]:
    """Create the taps in namespaces of this process, and mount them into the root's sysfs."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET), "unshare")
    _call(libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "mount")
    sysfs = tempfile.mkdtemp(dir=root)
    _call(libc.mount(b"sysfs", sysfs.encode(), b"sysfs", 0, None), "mount sysfs")
    opened = []
    for netdev in netdevs:
        name, _, folder = netdev.partition(":")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP_NO_PI))
        fcntl.ioctl(tap, _TUNSETCARRIER, struct.pack("I", 1))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), _IFF_UP))
        real = os.path.realpath(f"{sysfs}/class/net/{name}")
        _call(libc.mount(real.encode(), f"{root}{folder}".encode(), None, _MS_BIND, None), "mount --bind")
        opened.append(tap)
    return opened


def main(root: str, netdevs: str, *command: str) -> None:
    try:
        opened = _wire(root, netdevs.split(","))
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as agent:

        def end(*_: object) -> None:
            agent.terminate()
            sys.exit()  # the with block waits for the agent

        # A signal to this process must end the agent too, which would otherwise continue without a parent.
        signal.signal(signal.SIGTERM, end)
        print("{}", flush=True)
        for line in sys.stdin:
            number, word = line.split()
            at = time.monotonic()
            fcntl.ioctl(opened[int(number)], _TUNSETCARRIER, struct.pack("I", word == "up"))
            print(json.dumps({"at": at}), flush=True)
        agent.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
