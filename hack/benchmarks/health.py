"""Measure the time from a change of health on the machine to the message at the kubelet."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from functools import partial
from operator import eq

from benchmarks.figures import Figure
from benchmarks.stage import QUIET_S, Delay, Stage, change
from nodeagent.host.netlink.kernel_events import LinkEvents

PREFIX = "nvidia-dgx-h100"
NICS = 8
VFS = 8
SLICES = 79

_GROUP = "Health, from the change on the machine to the message at the kubelet"
_SIMULATED = (
    "simulated machine: files replace sysfs, driver and kernel events. The time includes writing them; the row below "
    "begins when the last of them, the event, is written"
)
_GAP_S = 0.25
"""The GPU source reads at most every 0.1 s; a fault after this time is read at once."""


async def health(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    async with stage.kubelet() as kubelet, stage.agent(kubelet):
        await asyncio.sleep(QUIET_S)
        down, up = [], []
        resource = f"{PREFIX}/gpu-mem"
        total = len(stage.machine.gpus) * SLICES
        for number in range(8 if quick else 60):
            gpu = number % len(stage.machine.gpus)
            fault = partial(stage.machine.raise_xid, gpu, 79)
            down.append(await change(stage, kubelet, resource, fault, healthy=lambda n: n < total))
            await asyncio.sleep(_GAP_S)
            stage.machine.set_recovery_action(gpu, "gpu_reset")
            await asyncio.sleep(_GAP_S)
            reset = partial(stage.machine.set_recovery_action, gpu, "none")
            up.append(await change(stage, kubelet, resource, reset, healthy=lambda n: n == total))
            await asyncio.sleep(_GAP_S)
        for figure in (
            *_figures("XID 79: 79 slices Unhealthy", down, "agent xid"),
            *_figures("GPU reset: the slices are Healthy again", up),
        ):
            yield figure
        down, up = [], []
        await asyncio.sleep(QUIET_S)
        for number in range(4 if quick else 56):
            nic = number % NICS
            resource = f"{PREFIX}/nic{nic}"
            for delays, carrier in ((down, False), (up, True)):
                pf = [pf for pf in stage.machine.pfs if pf.may_have_vfs][nic].address
                act = partial(stage.machine.set_link, pf, carrier)
                wanted = VFS if carrier else 0
                delays.append(await change(stage, kubelet, resource, act, healthy=partial(eq, wanted)))
                await asyncio.sleep(QUIET_S)
        for figure in (
            *_figures("carrier of a PF lost: 8 VFs Unhealthy", down, "agent carrier"),
            *_figures("carrier back: the VFs are Healthy again", up),
        ):
            yield figure
    if samples := await _announcements(3 if quick else 12):
        yield Figure(
            _GROUP, "a real link's carrier lost: the agent's loop is woken", "ms", samples, {},
            "a tap in a network namespace of its own, over rtnetlink; needs root. This is a part of the way; "
            "`--only taps` measures all of it",
        )  # fmt: skip


def _figures(name: str, delays: list[Delay], key: str = "") -> tuple[Figure, Figure]:
    return (
        Figure(_GROUP, name, "ms", [1000 * delay.whole for delay in delays], note=_SIMULATED),
        Figure(
            _GROUP,
            "  of that, after the event",
            "ms",
            [1000 * delay.after_event for delay in delays],
            key=key,
        ),
    )


# include/uapi/linux/if_tun.h, sched.h
_TUNSETIFF = 0x400454CA
_TUNSETCARRIER = 0x400454E2
_IFF_TAP_NO_PI = 0x0002 | 0x1000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_LINKWATCH_S = 1.1
"""The kernel delays a further carrier change by up to a second."""


async def _announcements(count: int) -> list[float]:
    """Time from a carrier lost on a tap (TUNSETCARRIER) to ``LinkEvents``; empty without the rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNET):
            return []
        try:
            return await _tap(count)
        except FileNotFoundError:  # no /dev/net/tun
            return []
        finally:
            libc.setns(before, _CLONE_NEWNET)
    finally:
        os.close(before)


async def _tap(count: int) -> list[float]:
    samples = []
    with (
        os.fdopen(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC), "r+b", 0) as tap,
        LinkEvents() as events,
    ):
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"tap0", _IFF_TAP_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"tap0", 1))
        for _ in range(count):
            fcntl.ioctl(tap, _TUNSETCARRIER, struct.pack("I", 1))
            await _drain(events)
            woken = asyncio.ensure_future(events.wait())
            await asyncio.sleep(0)
            began = time.monotonic()
            fcntl.ioctl(tap, _TUNSETCARRIER, struct.pack("I", 0))
            await woken
            samples.append(1000 * (time.monotonic() - began))
            await _drain(events)
    return samples


async def _drain(events: LinkEvents) -> None:
    """Wait until no event has come for longer than the kernel delays one."""
    try:
        while True:
            async with asyncio.timeout(_LINKWATCH_S):
                await events.wait()
    except TimeoutError:
        return
