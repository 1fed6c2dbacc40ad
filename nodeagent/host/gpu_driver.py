"""The values that a GPU driver returns: NVML (``host/nvml.py``) or a recording (``host/recorded_gpus.py``).

A reading may be partial: a field that could not be read is ``None``, and ``fault`` has the reason. These values
contain no health state; ``health/`` derives it.

Both drivers offer ``open``, ``close``, ``version``, ``gpus``, ``any_lost``, ``excluded``, ``vitals`` and ``wait``. They
belong to the thread that opened them and raise only ``DriverError``.
"""

from __future__ import annotations

from msgspec import Struct

from nodeagent.facts.gpu_usage import GpuUsage
from nodeagent.facts.model import MigDevice, MigProfile, MigSlot


class DriverError(Exception):
    """The driver as a whole does not answer. ``absent``: this machine has no driver, or not yet. ``mismatch``: library
    and kernel module have different versions."""

    def __init__(self, message: str, *, absent: bool = False, mismatch: bool = False) -> None:
        super().__init__(message)
        self.absent, self.mismatch = absent, mismatch


class LimitRefused(Exception):  # noqa: N818 - the driver's answer about one cgroup
    """A limit of GPU memory cannot be read or set. ``no_cgroup``: this cgroup cannot have a limit of its own."""

    def __init__(self, message: str, *, no_cgroup: bool = False) -> None:
        super().__init__(message)
        self.no_cgroup = no_cgroup


class MigRefused(Exception):  # noqa: N818 - the driver's answer about one GPU instance
    """A MIG device is not made or not removed. ``remains``: its GPU instance is there, or may be. ``in_use``: a process
    still uses it."""

    def __init__(self, message: str, *, remains: bool = True, in_use: bool = False) -> None:
        super().__init__(message)
        self.remains, self.in_use = remains, in_use


class GpuReading(Struct, frozen=True):
    """One GPU as the driver lists it.

    ``recovery_action`` is one of ``nvml.RECOVERY_ACTIONS``, or ``None`` if the driver does not support it. ``lost``:
    the driver reports that the GPU does not answer any more. ``fault`` is the error text of the first failed call
    about this GPU. ``nvlink_domain`` is ``None`` while the driver does not know it yet, ``mig_devices``,
    ``mig_profiles`` and ``mig_instances`` if they could not be read. ``fabric_pending``: whether its registration with
    the NVLink fabric has yet to be completed; ``None`` if it has no fabric, or this is not known. ``nvlink_ends``: the
    PCI addresses of what its NVLinks lead to, NVSwitches or other GPUs; ``None`` if this is not known.
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
    nvlink_domain: str | None = None
    mig_devices: tuple[MigDevice, ...] | None = ()
    fabric_pending: bool | None = None
    nvlink_ends: tuple[str, ...] | None = None
    mig_profiles: tuple[MigProfile, ...] | None = ()
    mig_instances: tuple[MigSlot, ...] | None = ()


class GpuProcess(Struct, frozen=True):
    """A process on the GPU: compute, graphics, or client of MPS. ``pid`` is in the driver's PID namespace, which is
    the host's. ``utilization`` is its part of the time of the SMs, 0 to 1; ``None`` if the driver does not report it.
    """

    pid: int
    memory_bytes: int | None
    utilization: float | None = None


class GpuVitals(Struct, frozen=True):
    """Measured values of one GPU, by the names of ``measurements/table.py``.

    A value that the driver does not report is absent. So is an impossible value (a width of 0xffffffff); its name is
    in ``absurd``. ``processes`` is ``None`` if they were not requested.
    """

    uuid: str
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
    absurd: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    usage: GpuUsage | None = None
    """Added by the source, which finds the pods of the processes; ``None`` if it cannot."""


class DriverMessage(Struct, frozen=True):
    """A line of the kernel log about an error: an XID of the NVLinks of a GPU, or with ``switch`` an SXid of an
    NVSwitch. ``pci_address`` has no function for an XID. ``unit`` and ``subcode`` (of the register ``intrinfo``) are of
    XIDs; ``link`` is ``None`` where the line names none. ``words``: why the driver does not reach the GPU; such a line
    has no number."""

    pci_address: str
    number: int
    fatal: bool
    link: int | None = None
    switch: bool = False
    unit: str = ""
    subcode: int = 0
    words: str = ""


class GpuEvent(Struct, frozen=True):
    """An event of the driver. ``xid`` is ``None`` for other events, after which the GPUs should be read again.

    ``uuid`` is ``None`` if the driver did not name a known GPU. ``unavailable``: the driver has given up this GPU,
    with or without an XID.
    """

    uuid: str | None
    xid: int | None
    unavailable: bool = False
