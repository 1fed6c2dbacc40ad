"""What happens to the GPUs of a simulated machine, as their driver tells it."""

from __future__ import annotations

from typing import Literal

from nodeagent.sim.machine import gpu_vitals
from nodeagent.sim.machine.driver_events import GpuDriver
from nodeagent.sim.machine.kernel import Kernel
from nodeagent.sim.machine.state import GpuFacts

RecoveryAction = Literal["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"]
Call = Literal["init", "wait", "list", "vitals"]


class GpuActions:
    """The GPUs' half of ``Machine``: GPUs are named by index, UUID or PCI address."""

    _kernel: Kernel
    _driver: GpuDriver

    def _settle(self) -> None:
        """Show what has changed."""
        raise NotImplementedError

    def _facts(self, gpu: int | str) -> GpuFacts:
        facts = self._kernel.gpu(gpu).gpu
        assert facts is not None
        return facts

    def raise_xid(self, gpu: int | str, xid: int) -> None:
        self._driver.tell(self._facts(gpu).uuid, xid)
        self._settle()

    def gpu_unavailable(self, gpu: int | str) -> None:
        """The driver gives the GPU up, without an XID."""
        self._driver.tell(self._facts(gpu).uuid, None)
        self._settle()

    def set_recovery_action(self, gpu: int | str, action: RecoveryAction) -> None:
        self._facts(gpu).recovery_action = action
        self._settle()

    def measure(self, gpu: int | str, **values: float | None) -> None:
        """Set what is measured, by its name in the recording; ``None``: the driver no longer tells it."""
        told = self._facts(gpu).values
        for name, value in values.items():
            if value is None:
                told.pop(name, None)
            else:
                told[name] = value
        self._settle()

    def ecc(
        self, gpu: int | str, uncorrectable: int = 0, correctable: int = 0, memory: gpu_vitals.Memory = "sram"
    ) -> None:
        """So many more errors, since the last reset."""
        values = self._facts(gpu).values
        for kind, count in (("uncorrectable", uncorrectable), ("correctable", correctable)):
            name = f"gpu_ecc_{kind}_{memory}"
            values[name] = values.get(name, 0) + count
        self._settle()

    def remap(
        self, gpu: int | str, rows: int = 1, *, correctable: bool = False, failed: bool = False
    ) -> None:
        """Bad rows of memory: remapped at the next reset, or beyond it."""
        values = self._facts(gpu).values
        values[f"gpu_remapped_{'' if correctable else 'un'}correctable"] += rows
        values["gpu_row_remap_failed" if failed else "gpu_row_remap_pending"] = 1
        self._settle()

    def nvlink(self, gpu: int | str, link: int, up: bool) -> None:
        self.measure(gpu, **{f"gpu_nvlink_up/{link}": float(up)})

    def pcie(self, gpu: int | str, generation: int | None = None, width: int | None = None) -> None:
        """The link as it is trained; what is not given stays."""
        values = self._facts(gpu).values
        if generation is not None:
            values["gpu_pcie_generation"] = generation
        if width is not None:
            values["gpu_pcie_width"] = width
        self._settle()

    def gpu_load(self, gpu: int | str, utilization: float, performance_state: int = 0) -> None:
        self.measure(gpu, gpu_utilization=utilization, gpu_performance_state=performance_state)

    def reset_gpu(self, gpu: int | str) -> None:
        """As ``nvidia-smi --gpu-reset`` does: nothing is asked for any more, and the vitals begin anew."""
        facts = self._facts(gpu)
        facts.recovery_action, facts.lost = "none", False
        gpu_vitals.reset(facts.values)
        self._settle()

    def lose_gpu(self, gpu: int | str) -> None:
        """It has fallen off the bus for the driver. The driver reports XID 79 with that: ``raise_xid``."""
        self._facts(gpu).lost = True
        self._settle()

    def find_gpu(self, gpu: int | str) -> None:
        self._kernel.check_present(self._kernel.gpu(gpu))
        self._facts(gpu).lost = False
        self._settle()

    def fail_driver(self, call: Call, error: str) -> None:
        """From now on this call of the GPU driver fails."""
        self._driver.failure = {"call": call, "error": error}
        self._settle()

    def heal_driver(self) -> None:
        self._driver.failure = None
        self._settle()
