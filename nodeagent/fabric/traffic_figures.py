"""The answer of the agent about the traffic of its pods: figures of the last readings. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NODE_TRAFFIC = "NodeTraffic"
"""The kind of the document, among the objects that a verb reads."""


class VfFigures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Bytes and packets a second that the VF received and sent during ``seconds``; ``None`` before two readings.
    ``quiet_s``: since it moved last. Not ``measured``: the driver does not count what the VF may carry."""

    link: str
    pci_address: str
    seconds: float | None = None
    received: float | None = None
    sent: float | None = None
    received_packets: float | None = None
    sent_packets: float | None = None
    quiet_s: float | None = None
    measured: bool = True


class PodFigures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``gpus``: the load of its GPUs, 0 to 1, by NVML's index. ``quiet_s``: since when none of its VFs moves."""

    namespace: str
    pod: str
    vfs: tuple[VfFigures, ...] = ()
    gpus: Mapping[str, float] = {}
    quiet_s: float | None = None
    longest_pause_s: float = 0.0


class TrafficFigures(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The figures of one node; ``node`` is its name."""

    kind: str = NODE_TRAFFIC
    node: str = ""
    pods: tuple[PodFigures, ...] = ()
