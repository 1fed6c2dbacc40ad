"""GPUs: what the PCI bus shows of them against what their driver says, and what containers need of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.agent_config import Config
from nodeagent.doctor.driver_checks import Answer, answer, ask
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.target import Subject
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kinds.resource_settings import GpuMemResource
from nodeagent.model import Gpu
from nodeagent.sources.host_paths import GPU_NODES

TOPIC = Topic(
    "gpus",
    "GPUS",
    {
        "gpus": FACT,
        "gpus_none": FACT,
        "gpus_left_alone": FACT,
        "driver": FACT,
        "driver_absent": Entry(
            "The GPUs are on the PCI bus and no driver speaks for them: none can be offered.",
            "install NVIDIA's driver, or let the agent's container see it (RuntimeClass nvidia, or the library and "
            "device nodes mounted)",
        ),
        "driver_refused": Entry(
            "Without NVML no GPU can be offered.",
            "nvidia-smi on the host says the same: mend it there, and look at the kernel's log (dmesg | grep NVRM)",
        ),
        "driver_hung": Entry(
            "A driver that does not answer takes all its GPUs from the kubelet.",
            "look at the kernel's log for XIDs; a reset of the GPU or a reboot is what ends it",
        ),
        "driver_crashed": Entry(
            "The library and the kernel's module most likely do not belong together.",
            "finish the driver's installation (same version of library and module), then reboot or reload the module",
        ),
        "driver_other": Entry(
            "A GPU under another driver is not NVML's to tell, and not ours to offer.",
            "blacklist nouveau and reboot; a GPU that is meant for VMs (vfio-pci) is left out by `select`",
        ),
        "gpu_missing": Entry(
            "A GPU that its driver does not list has fallen off the bus or failed to start: its slices are missing.",
            "look at the kernel's log (NVRM, XID 79), reseat or reboot",
        ),
        "gpu_fault": Entry(
            "The GPU does not answer as it should; its devices are Unhealthy.",
            "look at the kernel's log for its XIDs; reset it (nvidia-smi --gpu-reset -i N) or reboot",
        ),
        "gpu_recovery": Entry(
            "The driver itself asks for this before the GPU is used again.",
            "drain the node and do what it asks: nvidia-smi --gpu-reset -i N, or a reboot",
        ),
        "recovery_untold": Entry(
            "Only drivers from r565 on tell when a GPU waits for a reset; before, XIDs alone do, and only while the "
            "agent listens.",
            "run driver r565 or newer",
        ),
        "mig_on": Entry(
            "A GPU in MIG mode is cut in hardware: its memory is not offered in slices, and it is Unhealthy.",
            "nvidia-smi -i N -mig 0, or leave the GPU out by `select`",
        ),
        "gpu_nodes": Entry(
            "CUDA opens these device nodes, which nobody makes before the first program needs them.",
            "run nvidia-modprobe -u -c=0 at boot, or nvidia-persistenced",
        ),
        "memory_limits": FACT,
        "memory_limits_inert": Entry(
            "Slices are counted, and a container is told its share; what makes that a hard limit is missing here, so "
            "that a program may take more than its own.",
            "driver r615 with container toolkit 1.20.1 and cgroup v2; until then only MIG or MPS enforce",
        ),
    },
)

_LIMITS_DRIVER = 615
_RECOVERY_DRIVER = 565


@dataclass(frozen=True, slots=True)
class Gpus:
    """``on_bus`` is the driver by PCI address. ``answer`` is ``None`` where it did not come in ``hung_s``."""

    on_bus: Mapping[str, str | None] = field(default_factory=dict)
    answer: Answer | None = None
    module: str | None = None
    nodes: tuple[str, ...] = ()
    cgroup2: bool | None = None
    hung_s: float = 0.0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """As the offer counts them; whoever lacks what a device needs is none."""
        return tuple(
            Gpu(r.uuid, r.index, r.minor, r.name or "?", r.pci_address, r.memory_mib, None)
            for r in (self.answer.readings if self.answer else ())
            if r.uuid is not None and r.pci_address is not None and r.memory_mib is not None
        )


def look(subject: Subject) -> Gpus:
    tree = subject.tree
    root, driver = str(tree.root), subject.config.gpu.driver
    said = answer(root, driver) if subject.recorded else ask(root, driver, subject.timeout_s)
    return Gpus(
        on_bus=_on_bus(tree),
        answer=said,
        module=_text(tree, "/sys/module/nvidia/version"),
        nodes=tuple(node for node in GPU_NODES if tree.exists(node)),
        cgroup2=None if subject.recorded else tree.exists("/sys/fs/cgroup/cgroup.controllers"),
        hung_s=subject.timeout_s,
    )


def judge(gpus: Gpus, config: Config) -> Iterator[Finding]:
    if config.gpu.driver == "none":
        yield TOPIC.ok("gpus_left_alone", "gpu.driver is none: GPUs are not asked for")
        return
    ours = {address: driver for address, driver in gpus.on_bus.items() if driver in (None, "nvidia")}
    others = {address: driver for address, driver in gpus.on_bus.items() if address not in ours}
    for address, driver in others.items():
        say = TOPIC.note if driver == "vfio-pci" else TOPIC.warn
        yield say("driver_other", f"GPU {address} is bound to {driver}")
    said = gpus.answer
    if said is None:
        yield TOPIC.fix("driver_hung", f"NVML did not answer within {gpus.hung_s:g} s")
    elif said.crashed is not None:
        yield TOPIC.fix("driver_crashed", f"asking NVML ended with {said.crashed}")
    elif said.error is not None:
        yield from _refused(said, ours)
    else:
        yield from _answered(gpus, said, ours)
        yield from _limits(gpus, said, config)


def _refused(said: Answer, on_bus: Mapping[str, str | None]) -> Iterator[Finding]:
    if not said.absent:
        yield TOPIC.fix("driver_refused", f"{said.error}")
    elif on_bus:
        yield TOPIC.fix(
            "driver_absent", f"{count(len(on_bus), 'NVIDIA GPU')} on the PCI bus, but {said.error}"
        )
    else:
        yield TOPIC.ok("gpus_none", "no NVIDIA GPU on the PCI bus, and no driver for one")


def _answered(gpus: Gpus, said: Answer, on_bus: Mapping[str, str | None]) -> Iterator[Finding]:
    module = f", kernel module {gpus.module}" if gpus.module and gpus.module != said.version else ""
    yield TOPIC.ok("driver", f"NVIDIA {said.version or 'of an unknown version'}{module}")
    names = sorted({reading.name or "?" for reading in said.readings})
    if said.readings:
        yield TOPIC.ok("gpus", f"{count(len(said.readings), 'GPU')}: {', '.join(names)}")
    else:
        yield TOPIC.ok("gpus_none", "the driver counts no GPU")
    listed = {reading.pci_address for reading in said.readings}
    for address in sorted(on_bus.keys() - listed):
        if None not in listed:
            yield TOPIC.fix("gpu_missing", f"{address} is on the PCI bus and the driver does not list it")
    for reading in said.readings:
        yield from _reading(reading)
    old = _major(said.version)
    if old is not None and old < _RECOVERY_DRIVER and said.readings:
        yield TOPIC.note("recovery_untold", f"driver {said.version}")
    missing = [node for node in ("/dev/nvidiactl", "/dev/nvidia-uvm") if node not in gpus.nodes]
    if said.readings and missing:
        yield TOPIC.warn("gpu_nodes", f"{', '.join(missing)}: not there")


def _reading(reading: GpuReading) -> Iterator[Finding]:
    name = f"GPU {reading.index} ({reading.uuid or reading.pci_address or 'nameless'})"
    if reading.lost or reading.fault:
        yield TOPIC.fix("gpu_fault", f"{name}: {'lost' if reading.lost else reading.fault}")
    if reading.recovery_action not in (None, "none"):
        yield TOPIC.fix("gpu_recovery", f"{name}: {reading.recovery_action}")
    if reading.mig:
        yield TOPIC.warn("mig_on", f"{name} is in MIG mode")


def _limits(gpus: Gpus, said: Answer, config: Config) -> Iterator[Finding]:
    wanted = [e for e in config.resources if isinstance(e, GpuMemResource) and e.memory_limits]
    version = _major(said.version)
    if not wanted or not said.readings or version is None:
        return
    lacking = [f"driver {said.version}"] if version < _LIMITS_DRIVER else []
    lacking += ["cgroup v1"] if gpus.cgroup2 is False else []
    if lacking:
        yield TOPIC.note("memory_limits_inert", f"{some(lacking)}: {wanted[0].name} is counted, not enforced")
    else:
        yield TOPIC.ok(
            "memory_limits", f"driver {said.version} can limit memory; the container toolkit must too"
        )


def _major(version: str | None) -> int | None:
    match = re.match(r"\d{1,5}", version or "")
    return int(match[0]) if match else None


def _on_bus(tree: Tree) -> dict[str, str | None]:
    """NVIDIA's display and 3D controllers."""
    found: dict[str, str | None] = {}
    for address in tree.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{address}"
        if (_text(tree, f"{folder}/vendor") or "").lower() != "0x10de":
            continue
        if (_text(tree, f"{folder}/class") or "")[:6] in ("0x0300", "0x0302"):
            found[address] = tree.link(f"{folder}/driver")
    return found


def _text(tree: Tree, path: str) -> str | None:
    try:
        return (tree.text(path) or "").strip() or None
    except SysfsError:
        return None
