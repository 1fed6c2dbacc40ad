"""Recorded samples: JSON lines, a header first and then one sample on each line.

``nodeagent capture --samples`` writes them and the rules are replayed on them. The law of this file:

* The header says in which form the lines are and what the devices are, and never which node it was.
* Samples of one source and device are in the order of their times; a slow source's stand after those of faster
  ones that began later.
* A line stands for itself. The last one may be cut short, by whoever ended the recording, and is left out
  then; any other line that is no sample is a ``RecordingError`` with its number.
* What a newer agent of the same version adds to a line is passed over; another version is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal

import msgspec

from nodeagent.measurements.sample import Sample

VERSION = 1
LINE_MAX = 1024 * 1024
"""A sample of a PF with 256 VFs has 50 KiB."""


class RecordingError(Exception):
    """What was given is no recording; the message names the line and what is wrong with it."""


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that samples may be of.

    ``device`` is what samples call it: a PF's PCI address or a GPU's UUID. ``path`` is its way from the root
    complex, as ``Function.pci_path``; with ``link_type``, ``speed_mbps``, ``numa_node`` and ``default_route``
    it is what roles are guessed from. ``mac`` is the permanent address. ``index`` is the driver's number of a GPU.
    """

    device: str
    kind: Literal["nic", "gpu"] = "nic"
    netdev: str | None = None
    rdma: str | None = None
    mac: str | None = None
    driver: str | None = None
    link_type: str | None = None
    speed_mbps: int | None = None
    numa_node: int | None = None
    default_route: bool = False
    index: int | None = None
    path: tuple[str, ...] = ()


class Header(msgspec.Struct, frozen=True):
    """``boot_id`` tells recordings of one boot; ``booted_at`` is CLOCK_REALTIME at zero of CLOCK_BOOTTIME."""

    form: Literal["nodeagent-samples"] = "nodeagent-samples"
    version: int = VERSION
    agent: str = ""
    boot_id: str = ""
    booted_at: float = 0.0
    devices: tuple[Subject, ...] = ()


_encoder = msgspec.json.Encoder()
_samples = msgspec.json.Decoder(Sample)


def encode(one: Header | Sample) -> bytes:
    """One line, with its end."""
    return _encoder.encode(one) + b"\n"


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Those of a file, none of them longer than ``LINE_MAX``. Raises ``RecordingError``."""
    number = 0
    while line := file.readline(LINE_MAX + 1):
        number += 1
        if len(line) > LINE_MAX:
            raise RecordingError(f"line {number} is longer than {LINE_MAX} bytes, and no sample")
        yield line


def decode(lines: Iterable[bytes]) -> tuple[Header, Iterator[Sample]]:
    """The header, and the samples as they are asked for. Lines keep their ends, as a binary file gives them.

    Raises ``RecordingError``, here and from the iterator.
    """
    left = iter(lines)
    return _header(next(left, b"")), _rest(left)


def _header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            f"line 1 is no header of recorded samples ({error}); "
            "take a file that `nodeagent capture --samples` wrote"
        ) from error
    if header.version != VERSION:
        raise RecordingError(
            f"line 1: these samples are in version {header.version}, and this is an agent for version {VERSION}; "
            "replay them with the agent that recorded them"
        )
    return header


def _rest(lines: Iterator[bytes]) -> Iterator[Sample]:
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            sample = _samples.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise RecordingError(f"line {number} is no sample: {error}") from error
        if not math.isfinite(sample.at):
            raise RecordingError(f"line {number} is no sample: its time is {sample.at}")
        yield sample
