"""Recorded samples: JSON lines, a header first and then one sample on each line.

``nodeagent capture --samples`` writes them, and ``nodeagent health replay`` reads them.

* The header contains the form of the lines and the devices, but not the name of the node.
* Samples of one source and device are in the order of their times. Those of a slow source follow those of faster
  sources that started later.
* Each line is complete in itself. The last line may be cut short by the end of the recording, and is then ignored.
  Any other line that is not a sample is a ``RecordingError`` with its number.
* Unknown fields of a line are ignored; another version is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal

import msgspec

from nodeagent.measurements.sample import Sample

_VERSION = 1
LINE_MAX = 1024 * 1024
"""A sample of a PF with 256 VFs has 50 KiB."""


class RecordingError(Exception):
    """The file is not a recording; the message contains the line and the fault."""

    def __init__(self, line: int, fault: str) -> None:
        super().__init__(f"line {line}: {fault}")
        self.line, self.fault = line, fault


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of the recording.

    ``device`` is its name in samples: the PCI address of a PF, the UUID of a GPU. ``path`` is its path from the root
    complex, as ``Function.pci_path``. The roles of PFs follow from ``path``, ``link_type``, ``speed_mbps``,
    ``numa_node`` and ``default_route``. ``mac`` is the permanent address, ``index`` the driver's number of a GPU.
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
    """``boot_id`` identifies recordings of one boot; ``booted_at`` is CLOCK_REALTIME at zero of CLOCK_BOOTTIME."""

    form: Literal["nodeagent-samples"] = "nodeagent-samples"
    version: int = _VERSION
    agent: str = ""
    boot_id: str = ""
    booted_at: float = 0.0
    devices: tuple[Subject, ...] = ()


_encoder = msgspec.json.Encoder()
_samples = msgspec.json.Decoder(Sample)


def encode_recorded(content: Header | Sample) -> bytes:
    """Return one line, with its end."""
    return _encoder.encode(content) + b"\n"


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. Raises ``RecordingError`` for a line longer than ``LINE_MAX``."""
    number = 0
    while line := file.readline(LINE_MAX + 1):
        number += 1
        if len(line) > LINE_MAX:
            raise RecordingError(number, f"it is longer than {LINE_MAX} bytes, and not a sample")
        yield line


def decode_recording(lines: Iterable[bytes]) -> tuple[Header, Iterator[Sample]]:
    """Return the header and an iterator of samples. Lines keep their ends, as in a binary file.

    Raises ``RecordingError``, here and from the iterator.
    """
    remaining = iter(lines)
    return _header(next(remaining, b"")), _samples_of(remaining)


def _header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(1, f"this is not the header of recorded samples ({error})") from error
    if header.version != _VERSION:
        raise RecordingError(
            1,
            f"these samples are in version {header.version}, and this is an agent for version {_VERSION}; "
            "replay them with the agent that recorded them",
        )
    return header


def _samples_of(lines: Iterator[bytes]) -> Iterator[Sample]:
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            sample = _samples.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise RecordingError(number, f"this is not a sample: {error}") from error
        if not math.isfinite(sample.at):
            raise RecordingError(number, f"this is not a sample: its time is {sample.at}")
        yield sample
