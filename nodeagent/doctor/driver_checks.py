"""A GPU driver asked in a process of its own: ``python -m nodeagent.doctor.driver_checks ROOT DRIVER``.

A call into NVML may hang in the kernel, and a library and a kernel module that do not match may crash whoever
loads them. Neither must end the doctor: it reads one JSON line from this process's stdout, or none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

import msgspec

from nodeagent import discovery
from nodeagent.host.gpu_driver import DriverError, GpuReading
from nodeagent.host.sysfs import Tree
from nodeagent.sources.source_settings import GpuSettings

_REAP_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """``error`` is what the driver as a whole refused with; ``absent`` where there is none; ``crashed`` how the
    process that asked it ended instead of answering.
    """

    version: str | None = None
    readings: tuple[GpuReading, ...] = ()
    error: str | None = None
    absent: bool = False
    crashed: str | None = None


def ask(root: str, driver: str, timeout_s: float) -> Answer | None:
    """``None`` where nothing came within the time; whatever still runs then is left to itself."""
    command = [sys.executable, "-m", "nodeagent.doctor.driver_checks", root, driver]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        told, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # a call that hangs in the kernel does not hear the signal
            child.wait(_REAP_S)
        return None
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    try:
        return msgspec.json.decode(told, type=Answer)
    except msgspec.DecodeError:
        last = complaint.decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return Answer(crashed=": ".join([how, *last]))


def answer(root: str, name: str) -> Answer:
    tree = Tree(root)
    driver = discovery.driver(tree, GpuSettings(driver="nvml" if name == "nvml" else "none"))
    try:
        driver.open()
        return Answer(driver.version(), driver.gpus())
    except DriverError as error:
        return Answer(error=str(error), absent=error.absent)
    finally:
        driver.close()


if __name__ == "__main__":
    print(json.dumps(asdict(answer(*sys.argv[1:3]))), flush=True)  # noqa: T201
