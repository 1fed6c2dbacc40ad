"""Check the machine: kernel, product name, clock, boot ID."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic
from nodeagent.doctor.reads import Target, text, version
from nodeagent.host.sysfs import Tree
from nodeagent.offering.offer import FALLBACK_PREFIX, prefix

TOPIC = Topic(
    "machine",
    "MACHINE",
    {
        "kernel": FACT,
        "kernel_old": Advice(
            "Before 5.14 the kernel does not report over netlink which PCI function a netdev belongs to. "
            "Before 4.20 each LLDP socket costs CPU time for every packet that is sent.",
            "run Linux 5.14 or newer, or a distribution kernel with these changes",
        ),
        "product": FACT,
        "product_unknown": Advice(
            "`resourcePrefix: auto` uses the product name of the firmware. Without one, every resource is "
            "named nodeagent.io/... on all types of nodes.",
            "set resourcePrefix in the configuration, one for each type of node",
        ),
        "clock": FACT,
        "clock_unset": Advice(
            "No certificate is valid at this time: kubelet and agent cannot connect to the API server.",
            "set the clock (timedatectl set-ntp true, or chronyc makestep)",
        ),
        "clock_unsynchronized": Advice(
            "Leases, tokens and the order of events across nodes need clocks that agree.",
            "run chrony or systemd-timesyncd on the host",
        ),
        "boot_id": FACT,
        "boot_id_unreadable": Advice(
            "By the boot ID the agent detects a reboot. Without it, state that is saved "
            "for one boot is lost when the agent restarts.",
            "run on a kernel with /proc/sys, and in a container that has /proc",
        ),
    },
)

RELEASED = 1_760_000_000
"""October 2025 as Unix time: a correct clock shows a later time."""
_STA_UNSYNC = 0x0040  # include/uapi/linux/timex.h
_TIMEX_BYTES = 256  # struct timex is 208 octets on 64-bit machines
_STATUS_AT = 40  # modes, padding, offset, freq, maxerror, esterror, then status


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """``now`` and ``synchronized`` are ``None`` for another machine than this one."""

    kernel: str | None
    product: str | None
    boot_id: str | None
    now: float | None = None
    synchronized: bool | None = None


def read(target: Target) -> MachineFacts:
    # A container's own /proc shows the host's kernel; the host's /proc is not mounted below --root.
    kernel = target.tree if target.recorded else Tree()
    return MachineFacts(
        kernel=text(kernel, "/proc/sys/kernel/osrelease") or _of_version(text(kernel, "/proc/version")),
        product=text(target.tree, "/sys/class/dmi/id/product_name"),
        boot_id=text(kernel, "/proc/sys/kernel/random/boot_id"),
        now=None if target.recorded else time.time(),
        synchronized=None if target.recorded else _synchronized(),
    )


def findings(machine: MachineFacts, config: Config) -> Iterator[Finding]:
    yield _kernel(machine.kernel)
    name = prefix(config, machine.product)
    product = machine.product or "no product name in the firmware"
    if config.resource_prefix == "auto" and name == FALLBACK_PREFIX:
        yield TOPIC.note("product_unknown", f"{product}: resources are named {name}/...")
    else:
        yield TOPIC.ok("product", f"{product}: resources are named {name}/...")
    if machine.now is not None and machine.now < RELEASED:
        then = time.strftime("%Y-%m-%d", time.gmtime(machine.now))
        yield TOPIC.fix("clock_unset", f"the clock shows {then}, a time in the past")
    elif machine.synchronized is False:
        yield TOPIC.note("clock_unsynchronized", "the kernel's clock is not synchronized")
    elif machine.synchronized:
        yield TOPIC.ok("clock", "synchronized")
    if machine.boot_id is None:
        yield TOPIC.warn("boot_id_unreadable", "the boot ID cannot be read")
    else:
        yield TOPIC.ok("boot_id", machine.boot_id)


def _kernel(release: str | None) -> Finding:
    running = version(release)
    if running is None:
        return TOPIC.note("kernel", f"kernel release {release or 'unknown'}")
    if running < (4, 18):
        return TOPIC.warn("kernel_old", f"Linux {release}")
    if running < (5, 14):
        return TOPIC.note("kernel_old", f"Linux {release}")
    return TOPIC.ok("kernel", f"Linux {release}")


def _of_version(text: str | None) -> str | None:
    match = re.match(r"Linux version (\S+)", text or "")
    return match[1] if match else None


def _synchronized() -> bool | None:
    """Whether the kernel's clock is synchronized by NTP; adjtimex(2) needs no privilege to read."""
    asked = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(asked)
    except (OSError, AttributeError):
        return None
    if state < 0 or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    status = int.from_bytes(asked.raw[_STATUS_AT : _STATUS_AT + 4], "little", signed=True)
    return not status & _STA_UNSYNC
