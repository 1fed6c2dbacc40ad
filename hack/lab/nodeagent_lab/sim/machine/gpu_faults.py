"""The GPUs of a simulated machine: the answers of their driver, and the events and faults that a test causes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from nodeagent_lab.sim.machine.blueprint import DriverVersions
from nodeagent_lab.sim.machine.hardware_values import EccMemory, reset_gpu_values
from nodeagent_lab.sim.machine.kernel import Kernel
from nodeagent_lab.sim.machine.state import Device, SimulatedGpu

RecoveryAction = Literal["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"]
Call = Literal["init", "wait", "list", "vitals"]
_EVENTS_KEPT = 64


class GpuDriver:
    """The driver's answers, in the form of ``/.nodeagent/gpus.json``. ``failure`` makes a call fail:
    ``{"call": ..., "error": ...}``."""

    def __init__(self, driver: DriverVersions | None) -> None:
        self._driver = driver
        self.failure: dict[str, str] | None = None
        self._events: deque[dict[str, str | int | bool | None]] = deque(maxlen=_EVENTS_KEPT)
        self._sequence = 0

    def add_event(self, uuid: str, xid: int | None) -> None:
        """Add an XID event; ``None`` means that the GPU is unavailable."""
        self._sequence += 1
        event: dict[str, str | int | bool | None] = {"sequence": self._sequence, "uuid": uuid, "xid": xid}
        self._events.append(event if xid is not None else event | {"unavailable": True})

    def continue_after(self, recording: Path) -> None:
        """Number the next event after those of an earlier process: its readers have seen them."""
        with suppress(FileNotFoundError):
            events = json.loads(recording.read_bytes())["events"]
            self._sequence = max((event["sequence"] for event in events), default=0)

    def facts(self, devices: Iterable[Device]) -> dict[str, object]:
        driver = self._driver
        gpus = []
        devices = tuple(devices)
        for device in devices:
            facts = device.gpu
            assert facts is not None
            # A GPU bound to another driver is not listed; a removed one is still listed, as lost.
            bound = device.driver == device.natural or (not device.present and facts.lost)
            if bound and facts.listed and not facts.excluded:
                gpus.append(
                    {
                        "uuid": facts.uuid,
                        "index": facts.index if facts.counted is None else facts.counted,
                        "minor": facts.index,
                        "name": facts.part.name,
                        "pci_address": device.address,
                        "memory_mib": facts.part.memory_mib,
                        "mig": facts.mig,
                        "mig_devices": list(facts.mig_devices),
                        "lost": facts.lost,
                        "recovery_action": facts.recovery_action,
                        "nvlink_domain": facts.nvlink_domain,
                        "fabric_pending": facts.fabric_pending,
                        "values": facts.values,
                        "texts": facts.texts,
                    }
                )
        return {
            "driver_version": driver.version if driver else None,
            "cuda_version": driver.cuda_version if driver else None,
            "failure": self.failure,
            "gpus": gpus,
            "excluded": [
                device.address for device in devices if device.gpu is not None and device.gpu.excluded
            ],
            "events": list(self._events),
        }


class GpuActions:
    """The methods of ``Machine`` for GPUs. GPUs are named by index, UUID or PCI address."""

    _kernel: Kernel
    _driver: GpuDriver

    def _publish_driver(self) -> None:
        """Publish what the driver answers now."""
        raise NotImplementedError

    def _facts(self, gpu: int | str) -> SimulatedGpu:
        facts = self._kernel.gpu(gpu).gpu
        assert facts is not None
        return facts

    def raise_xid(self, gpu: int | str, xid: int) -> None:
        self._driver.add_event(self._facts(gpu).uuid, xid)
        self._publish_driver()

    def gpu_unavailable(self, gpu: int | str) -> None:
        """The driver gives the GPU up, without an XID."""
        self._driver.add_event(self._facts(gpu).uuid, None)
        self._publish_driver()

    def set_recovery_action(self, gpu: int | str, action: RecoveryAction) -> None:
        self._facts(gpu).recovery_action = action
        self._publish_driver()

    def set_mig_mode(self, gpu: int | str, *, on: bool) -> None:
        """Switch MIG mode. Its MIG devices end with it."""
        facts = self._facts(gpu)
        facts.mig, facts.mig_devices = on, []
        self._publish_driver()

    def make_mig_device(self, gpu: int | str, uuid: str, profile: str, memory_mib: int) -> None:
        """Make a GPU instance with one compute instance."""
        facts = self._facts(gpu)
        used = {device["gpu_instance"] for device in facts.mig_devices}
        facts.mig_devices.append(
            {
                "uuid": uuid,
                "profile": profile,
                "memory_mib": memory_mib,
                "gpu_instance": min(set(range(1, 15)) - used),
                "compute_instance": 0,
            }
        )
        self._publish_driver()

    def destroy_mig_device(self, gpu: int | str, uuid: str) -> None:
        facts = self._facts(gpu)
        facts.mig_devices = [device for device in facts.mig_devices if device["uuid"] != uuid]
        self._publish_driver()

    def measure(self, gpu: int | str, **values: float | None) -> None:
        """Set measured values by their names in the recording; ``None`` removes a value."""
        measured = self._facts(gpu).values
        for name, value in values.items():
            if value is None:
                measured.pop(name, None)
            else:
                measured[name] = value
        self._publish_driver()

    def measured(self, gpu: int | str, names: Iterable[str]) -> dict[str, float | None]:
        """Return the present values of these names, for ``measure``."""
        return {name: self._facts(gpu).values.get(name) for name in names}

    def ecc(
        self, gpu: int | str, uncorrectable: int = 0, correctable: int = 0, memory: EccMemory = "sram"
    ) -> None:
        """Add ECC errors since the last reset."""
        values = self._facts(gpu).values
        for kind, count in (("uncorrectable", uncorrectable), ("correctable", correctable)):
            name = f"gpu_ecc_{kind}_{memory}"
            values[name] = values.get(name, 0) + count
        self._publish_driver()

    def remap(
        self, gpu: int | str, rows: int = 1, *, correctable: bool = False, failed: bool = False
    ) -> None:
        """Add bad memory rows: remapped at the next reset, or with ``failed`` not remappable."""
        values = self._facts(gpu).values
        values[f"gpu_remapped_{'' if correctable else 'un'}correctable"] += rows
        values["gpu_row_remap_failed" if failed else "gpu_row_remap_pending"] = 1
        self._publish_driver()

    def nvlink(self, gpu: int | str, link: int, up: bool) -> None:
        self.measure(gpu, **{f"gpu_nvlink_up/{link}": float(up)})

    def join_nvlink_domain(self, cluster_uuid: str, clique_id: int, *gpus: int | str) -> None:
        """Assign GPUs, or all of them, to a partition of an NVSwitch fabric. An empty UUID is no fabric."""
        domain = f"{cluster_uuid}.{clique_id}" if cluster_uuid else ""
        for gpu in gpus or [device.address for device in self._kernel.gpus]:
            self._facts(gpu).nvlink_domain = domain
        self._publish_driver()

    def pcie(self, gpu: int | str, generation: int | None = None, width: int | None = None) -> None:
        """Set the trained PCIe link; values that are not given stay."""
        values = self._facts(gpu).values
        if generation is not None:
            values["gpu_pcie_generation"] = generation
        if width is not None:
            values["gpu_pcie_width"] = width
        self._publish_driver()

    def gpu_load(self, gpu: int | str, utilization: float, performance_state: int = 0) -> None:
        self.measure(gpu, gpu_utilization=utilization, gpu_performance_state=performance_state)

    def reset_gpu(self, gpu: int | str) -> None:
        """Reset like ``nvidia-smi --gpu-reset``: no recovery action is left, and volatile counters are zero."""
        facts = self._facts(gpu)
        facts.recovery_action, facts.lost = "none", False
        reset_gpu_values(facts.values)
        self._publish_driver()

    def lose_gpu(self, gpu: int | str) -> None:
        """The GPU has fallen off the bus. A real driver also reports XID 79: ``raise_xid``."""
        self._facts(gpu).lost = True
        self._publish_driver()

    def reload_driver(self) -> None:
        """Load the driver again, as a reboot does: it lists only the GPUs that answer, and counts them from 0."""
        count = 0
        for device in self._kernel.gpus:
            facts = self._facts(device.address)
            facts.listed = not facts.lost and not facts.excluded
            facts.counted = count
            count += facts.listed and device.driver == device.natural
        self._publish_driver()

    def exclude_gpu(self, gpu: int | str) -> None:
        """Let a setting of the driver leave the GPU out (``NVreg_ExcludedGpus``)."""
        self._facts(gpu).excluded = True
        self._publish_driver()

    def replace_gpu(self, gpu: int | str, uuid: str) -> None:
        """Put another GPU into the slot."""
        facts = self._facts(gpu)
        facts.uuid, facts.lost, facts.listed = uuid, False, True
        self._publish_driver()

    def find_gpu(self, gpu: int | str) -> None:
        self._kernel.check_present(self._kernel.gpu(gpu))
        self._list_again(self._facts(gpu))
        self._publish_driver()

    def _list_again(self, facts: SimulatedGpu) -> None:
        facts.lost, facts.listed = False, True
        for device in self._kernel.gpus:
            self._facts(device.address).counted = None

    def fail_driver(self, call: Call, error: str) -> None:
        """Let this call of the GPU driver fail from now on."""
        self._driver.failure = {"call": call, "error": error}
        self._publish_driver()

    def heal_driver(self) -> None:
        self._driver.failure = None
        self._publish_driver()
