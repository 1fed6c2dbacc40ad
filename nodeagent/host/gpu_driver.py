"""What a GPU driver says, whoever asks it: NVML (``host/nvml.py``) or a recording (``host/recorded_gpus.py``).

A reading is partial where the driver was: a field that could not be read is ``None`` and ``fault`` says
why. Nothing is remembered here and nobody is judged; both are the business of ``health/xids.py``.

Both drivers offer ``open``, ``close``, ``version``, ``gpus``, ``vitals`` and ``wait`` and belong to one thread:
the one that opened. Only ``DriverError`` leaves them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class DriverError(Exception):
    """The driver as a whole gave no answer. ``absent``: there is none on this machine (yet)."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as the driver listed it just now.

    ``recovery_action`` is one of ``nvml.RECOVERY_ACTIONS``, or ``None`` from a driver that does not know
    of them. ``lost`` is the driver's own word: the GPU does not answer any more. ``fault`` is the text of
    the first call about this GPU that failed.
    """

    index: int
    uuid: str | None = None
    minor: int | None = None
    name: str | None = None
    pci_address: str | None = None
    memory_mib: int | None = None
    mig: bool = False
    recovery_action: str | None = None
    lost: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on the GPU. ``pid`` is of the driver's process namespace, the host's."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuVitals:
    """What was measured on one GPU just now, by the names of ``measurements/table.py``.

    Whatever the driver does not tell is not there. What it told and cannot be (a width of 0xffffffff) is not
    there either, and its name is in ``absurd``. ``processes`` is ``None`` where nobody asked for them.
    """

    uuid: str
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    absurd: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something happened. ``xid`` is ``None`` for whatever is no XID: the GPUs are worth another reading.

    ``uuid`` is ``None`` where the driver did not name a GPU that can be told. ``unavailable``: the driver has
    given this GPU up, with or without an XID of its own.
    """

    uuid: str | None
    xid: int | None
    unavailable: bool = False
