"""Check GPUs: compare the PCI bus with the driver, and check what containers need of the driver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.agent_config import Config
from nodeagent.doctor.driver_process import DriverAnswer, read_driver, read_in_process
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.reads import Target, small_text, version
from nodeagent.facts.model import Gpu, GpuFunction, LimitSupport
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.sysfs import Tree
from nodeagent.kinds.enforcement import LIMITS_DRIVER
from nodeagent.kinds.resource_settings import (
    memory_entries,
    mig_entries,
)
from nodeagent.sources.host_paths import GPU_NODES, limit_support

GPUS_TOPIC = Topic(
    "gpus",
    "GPUS",
    {
        "gpus": FACT,
        "gpus_none": FACT,
        "gpus_left_alone": FACT,
        "driver": FACT,
        "driver_absent": Advice(
            "The GPUs are on the PCI bus, but no driver serves them: no GPU can be offered.",
            "install NVIDIA's driver, or give it to the agent's container (RuntimeClass nvidia, or mount "
            "the library and the device nodes)",
        ),
        "driver_refused": Advice(
            "Without NVML no GPU can be offered.",
            "nvidia-smi on the host shows the same error: correct it there, and check the kernel log (dmesg "
            "| grep NVRM)",
        ),
        "driver_hung": Advice(
            "A driver that does not answer makes all its GPUs unavailable.",
            "check the kernel log for XIDs; reset the GPU or reboot",
        ),
        "driver_crashed": Advice(
            "Most likely the versions of NVML library and kernel module differ.",
            "complete the driver installation (same version of library and module), then reboot or reload "
            "the module",
        ),
        "driver_other": Advice(
            "NVML cannot read a GPU under another driver, so the agent cannot offer it.",
            "blacklist nouveau and reboot; exclude a GPU for VMs (vfio-pci) with `select`",
        ),
        "gpu_missing": Advice(
            "A GPU that its driver does not list has dropped off the bus or failed to start: its devices "
            "are missing.",
            "check the kernel log (NVRM, XID 79), then reseat the GPU or reboot",
        ),
        "gpu_excluded": Advice(
            "A setting of the driver leaves the GPU out, so the agent cannot offer it.",
            "take it out of NVreg_ExcludedGpus (/etc/modprobe.d) and reload the module to offer it",
        ),
        "gpu_fault": Advice(
            "The GPU reports errors; its devices are Unhealthy.",
            "check the kernel log for its XIDs; reset the GPU (nvidia-smi --gpu-reset -i INDEX) or reboot",
        ),
        "gpu_recovery": Advice(
            "The driver requires this action before the GPU is used again.",
            "drain the node and do it: nvidia-smi --gpu-reset -i INDEX, or a reboot",
        ),
        "recovery_untold": Advice(
            "Drivers before r565 do not report a required reset. Then only XIDs show it, and only while the "
            "agent runs.",
            "run driver r565 or newer",
        ),
        "mig_not_offered": Advice(
            "MIG divides a GPU in hardware: only its MIG devices are offered, and only by an entry of kind mig.",
            "add `- kind: mig` to resources, or switch MIG off: nvidia-smi -i N -mig 0",
        ),
        "mig_empty": Advice(
            "A GPU in MIG mode without MIG devices is of no use. The devices are lost at a reboot, MIG mode is not.",
            "make devices: nvidia-smi mig -i N -cgi PROFILES -C, or NVIDIA's mig-parted at boot",
        ),
        "mig": FACT,
        "gpu_nodes": Advice(
            "CUDA opens these device nodes, which do not exist until a program has created them.",
            "run nvidia-modprobe -u -c=0 at boot, or nvidia-persistenced",
        ),
        "persistence_off": Advice(
            "The driver forgets an idle GPU when its last program ends: the next one waits for seconds, and clocks and "
            "counts begin again. The agent keeps the GPUs open while it runs.",
            "run nvidia-persistenced at boot",
        ),
        "gpudirect": FACT,
        "gpudirect_missing": Advice(
            "NICs cannot reach GPU memory (GPUDirect RDMA): NCCL copies each message through the memory of the host.",
            "load nvidia-peermem at boot, or use NVIDIA's open kernel modules with Linux 5.12 or newer (DMA-BUF)",
        ),
        "imex": FACT,
        "imex_missing": Advice(
            "The GPUs are in an NVLink domain of several nodes. Programs share memory across them only with an IMEX "
            "channel.",
            "run nvidia-imex with the module's option NVreg_CreateImexChannel0=1, or NVIDIA's DRA driver, whose "
            "ComputeDomains make channels as pods need them",
        ),
        "memory_limits": FACT,
        "memory_limits_inert": Advice(
            "Slices are counted. The parts that enforce the limit are missing here, so a program can use more than "
            "its share.",
            "use driver r615 with container toolkit 1.20.1 and cgroup v2; without them `enforcement: evict` ends pods "
            "that exceed their share, and only MIG or MPS keep them from it",
        ),
    },
)

_RECOVERY_DRIVER = 565
MODULES = "/sys/module"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
DMA_BUF_KERNEL = (5, 12)
"""The first kernel with DMA-BUF for RDMA (ib_umem_dmabuf_get)."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """``on_bus``: driver by PCI address. ``answer``: ``None`` where none came within ``hung_s``."""

    on_bus: Mapping[str, str | None] = field(default_factory=dict)
    answer: DriverAnswer | None = None
    module: str | None = None
    nodes: tuple[str, ...] = ()
    support: LimitSupport = field(default_factory=LimitSupport)
    hung_s: float = 0.0
    taint: str | None = None
    """The kernel's taint by the module, ``POE`` or ``OE``: P is a proprietary one. ``None`` if it is not seen."""
    peermem: bool = False
    rdma: bool = False
    imex_channels: int = 0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that can be offered; a GPU without UUID, address or memory is left out."""
        return tuple(
            Gpu(r.uuid, r.index, r.minor, r.name or "?", r.pci_address, r.memory_mib, None)
            for r in (self.answer.readings if self.answer else ())
            if r.uuid is not None and r.pci_address is not None and r.memory_mib is not None
        )


def read_gpus(target: Target) -> GpuFacts:
    tree = target.tree
    root, driver = str(tree.root), target.config.gpu.driver
    answer = read_driver(root, driver) if target.recorded else read_in_process(root, driver, target.timeout_s)
    return GpuFacts(
        on_bus=_on_bus(tree),
        answer=answer,
        module=small_text(tree, "/sys/module/nvidia/version"),
        nodes=tuple(node for node in GPU_NODES if tree.exists(node)),
        support=limit_support(tree, target.config.gpu.accounting.pod_logs),
        hung_s=target.timeout_s,
        taint=small_text(tree, f"{MODULES}/nvidia/taint"),
        peermem=any(tree.exists(f"{MODULES}/{name}") for name in ("nvidia_peermem", "nv_peer_mem")),
        rdma=bool(tree.names("/sys/class/infiniband")),
        imex_channels=len(tree.names(IMEX_CHANNELS)),
    )


def gpu_findings(gpus: GpuFacts, config: Config, kernel: str | None = None) -> Iterator[Finding]:
    """``kernel``: its release, if it is known."""
    if config.gpu.driver == "none":
        yield GPUS_TOPIC.ok("gpus_left_alone", "gpu.driver is none: GPUs are ignored")
        return
    ours = {address: driver for address, driver in gpus.on_bus.items() if driver in (None, "nvidia")}
    others = {address: driver for address, driver in gpus.on_bus.items() if address not in ours}
    for address, driver in others.items():
        say = GPUS_TOPIC.note if GpuFunction(address, driver).for_guests else GPUS_TOPIC.warn
        yield say("driver_other", f"GPU {address} is bound to {driver}")
    answer = gpus.answer
    if answer is None:
        yield GPUS_TOPIC.fix("driver_hung", f"NVML did not answer within {gpus.hung_s:g} s")
    elif answer.crashed is not None:
        yield GPUS_TOPIC.fix("driver_crashed", f"the process that reads NVML ended with {answer.crashed}")
    elif answer.error is not None:
        yield from _refused(answer, ours)
    else:
        yield from _answered(gpus, answer, ours, config)
        yield from _shared_memory(gpus, answer, version(kernel) or DMA_BUF_KERNEL)
        yield from _limits(gpus, answer, config)


def _refused(answer: DriverAnswer, on_bus: Mapping[str, str | None]) -> Iterator[Finding]:
    if not answer.absent:
        yield GPUS_TOPIC.fix("driver_refused", f"{answer.error}")
    elif on_bus:
        yield GPUS_TOPIC.fix(
            "driver_absent", f"{count(len(on_bus), 'NVIDIA GPU')} on the PCI bus, but {answer.error}"
        )
    else:
        yield GPUS_TOPIC.ok("gpus_none", "no NVIDIA GPU on the PCI bus, and no driver")


def _answered(
    gpus: GpuFacts, answer: DriverAnswer, on_bus: Mapping[str, str | None], config: Config
) -> Iterator[Finding]:
    module = f", kernel module {gpus.module}" if gpus.module and gpus.module != answer.version else ""
    yield GPUS_TOPIC.ok("driver", f"NVIDIA {answer.version or 'of an unknown version'}{module}")
    names = sorted({reading.name or "?" for reading in answer.readings})
    if answer.readings:
        yield GPUS_TOPIC.ok("gpus", f"{count(len(answer.readings), 'GPU')}: {', '.join(names)}")
    else:
        yield GPUS_TOPIC.ok("gpus_none", "the driver lists no GPU")
    listed = {reading.pci_address for reading in answer.readings}
    for address in sorted(on_bus.keys() - listed):
        if address in answer.excluded:
            yield GPUS_TOPIC.note("gpu_excluded", f"the driver leaves {address} out")
        elif None not in listed:
            yield GPUS_TOPIC.fix(
                "gpu_missing", f"{address} is on the PCI bus, but the driver does not list it"
            )
    mig_modes = {entry.mode for entry in mig_entries(config.resources)}
    for reading in answer.readings:
        yield from _reading(reading, mig_modes)
    old = _major(answer.version)
    if old is not None and old < _RECOVERY_DRIVER and answer.readings:
        yield GPUS_TOPIC.note("recovery_untold", f"driver {answer.version}")
    missing = [node for node in ("/dev/nvidiactl", "/dev/nvidia-uvm") if node not in gpus.nodes]
    if answer.readings and missing:
        yield GPUS_TOPIC.warn("gpu_nodes", f"{', '.join(missing)}: missing")


def _reading(reading: GpuReading, mig_modes: Collection[str]) -> Iterator[Finding]:
    name = f"GPU {reading.index} ({reading.uuid or reading.pci_address or 'nameless'})"
    reset = f"reset it (nvidia-smi --gpu-reset -i {reading.index}) or reboot"
    if reading.lost or reading.fault:
        remedy = f"check the kernel log for its XIDs; {reset}"
        yield GPUS_TOPIC.fix("gpu_fault", f"{name}: {'lost' if reading.lost else reading.fault}", remedy)
    if reading.recovery_action not in (None, "none"):
        remedy = f"drain the node, then {reset}"
        yield GPUS_TOPIC.fix("gpu_recovery", f"{name}: {reading.recovery_action}", remedy)
    if reading.mig and not mig_modes:
        yield GPUS_TOPIC.warn("mig_not_offered", f"{name} is in MIG mode")
    elif reading.mig and reading.mig_devices == () and "dra" in mig_modes:
        yield GPUS_TOPIC.ok("mig", f"{name} is in MIG mode, and no claim has a MIG device of it")
    elif reading.mig and reading.mig_devices == ():
        yield GPUS_TOPIC.warn("mig_empty", f"{name} is in MIG mode and has no MIG device")
    elif reading.mig and reading.mig_devices:
        profiles = Counter(device.profile for device in reading.mig_devices)
        listed = ", ".join(f"{count} x {profile}" for profile, count in sorted(profiles.items()))
        yield GPUS_TOPIC.ok("mig", f"{name} has MIG devices: {listed}")


def _shared_memory(gpus: GpuFacts, answer: DriverAnswer, kernel: tuple[int, int]) -> Iterator[Finding]:
    """Findings about the driver that training on several nodes depends on."""
    if answer.not_persistent:
        named = ", ".join(map(str, answer.not_persistent))
        yield GPUS_TOPIC.note("persistence_off", f"persistence mode is off on GPU {named}")
    if answer.readings and gpus.rdma and gpus.peermem:
        yield GPUS_TOPIC.ok("gpudirect", "NICs reach GPU memory: nvidia-peermem is loaded")
    elif answer.readings and gpus.rdma and gpus.taint is not None:
        if kernel >= DMA_BUF_KERNEL and "P" not in gpus.taint:
            yield GPUS_TOPIC.ok(
                "gpudirect", "NICs reach GPU memory by DMA-BUF: NVIDIA's open kernel modules are loaded"
            )
        else:
            yield GPUS_TOPIC.warn(
                "gpudirect_missing", "nvidia-peermem is not loaded, and there is no DMA-BUF"
            )
    domains = {reading.nvlink_domain for reading in answer.readings if reading.nvlink_domain}
    if domains and gpus.imex_channels:
        yield GPUS_TOPIC.ok("imex", f"{count(gpus.imex_channels, 'IMEX channel')} for the NVLink domain")
    elif domains:
        yield GPUS_TOPIC.note("imex_missing", f"{IMEX_CHANNELS} has no channel")


def _limits(gpus: GpuFacts, answer: DriverAnswer, config: Config) -> Iterator[Finding]:
    levels = ("auto", "env", "nvml-limits")
    wanted = [entry for entry in memory_entries(config.resources) if entry.enforcement in levels]
    major = _major(answer.version)
    if not wanted or not answer.readings or major is None:
        return
    lacking = [f"driver {answer.version}"] if major < LIMITS_DRIVER else []
    lacking += ["cgroup v1"] if gpus.support.cgroup2 is False else []
    if lacking:
        yield GPUS_TOPIC.note(
            "memory_limits_inert", f"{shortened_list(lacking)}: {wanted[0].name} is counted, but not enforced"
        )
    else:
        yield GPUS_TOPIC.ok(
            "memory_limits",
            f"driver {answer.version} supports memory limits; the container toolkit must support them too",
        )


def _major(version: str | None) -> int | None:
    match = re.match(r"\d{1,5}", version or "")
    return int(match[0]) if match else None


def _on_bus(tree: Tree) -> dict[str, str | None]:
    """The driver of each NVIDIA display or 3D controller, by PCI address."""
    drivers: dict[str, str | None] = {}
    for address in tree.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{address}"
        if (small_text(tree, f"{folder}/vendor") or "").lower() != "0x10de":
            continue
        if (small_text(tree, f"{folder}/class") or "")[:6] in ("0x0300", "0x0302"):
            drivers[address] = tree.link(f"{folder}/driver")
    return drivers
