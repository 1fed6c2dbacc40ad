"""Read a GPU driver in a separate process: ``python -m nodeagent.doctor.driver_process ROOT DRIVER``.

A call into NVML can hang in the kernel, and a mismatch of library and kernel module can crash the process. Neither
ends the doctor: it reads one JSON line from the stdout of this process, or none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from nodeagent import discovery
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.host.gpu_driver import DriverError, GpuReading
from nodeagent.host.sysfs import Tree

_REAP_S = 0.5


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """``excluded``: the PCI addresses that a setting of the driver leaves out. ``error``: the driver refused all calls,
    with this message; ``absent``: there is no driver. ``not_persistent``: the indexes of the GPUs without persistence
    mode. ``crashed``: how the process ended without an answer.
    """

    version: str | None = None
    readings: tuple[GpuReading, ...] = ()
    excluded: frozenset[str] = frozenset()
    error: str | None = None
    absent: bool = False
    crashed: str | None = None
    not_persistent: tuple[int, ...] = ()


def read_in_process(root: str, driver: str, timeout_s: float) -> DriverAnswer | None:
    """The driver's answer, or ``None`` after ``timeout_s``. A process that hangs in the kernel is abandoned."""
    command = [sys.executable, "-m", "nodeagent.doctor.driver_process", root, driver]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        answer, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # a call that hangs in the kernel ignores the signal
            child.wait(_REAP_S)
        return None
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    try:
        return msgspec.json.decode(answer, type=DriverAnswer)
    except msgspec.DecodeError:
        last = complaint.decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return DriverAnswer(crashed=": ".join([how, *last]))


def read_driver(root: str, name: str) -> DriverAnswer:
    tree = Tree(root)
    driver = discovery.driver(tree, GpuSettings(driver="nvml" if name == "nvml" else "none"))
    try:
        driver.open()
        readings = driver.gpus()
        answer = DriverAnswer(driver.version(), readings, driver.excluded())
        with suppress(DriverError):  # what is measured is missed least
            off = {gpu.uuid for gpu in driver.vitals() if gpu.values.get("gpu_persistence_mode") == 0}
            answer = replace(answer, not_persistent=tuple(gpu.index for gpu in readings if gpu.uuid in off))
        return answer
    except DriverError as error:
        return DriverAnswer(error=str(error), absent=error.absent)
    finally:
        driver.close()


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(read_driver(*sys.argv[1:3]))), flush=True)
