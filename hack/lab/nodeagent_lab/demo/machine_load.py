"""The load of the demo's machine: GPUs that work, traffic, light that varies a little, and corrected errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from nodeagent_lab.sim.machine import Machine, MachineError

EVERY_S = 5.0
GIB = 1 << 30
_TURN_S, _BUSY, _MEMORY_GIB = 180.0, 0.7, 48
_BYTES_PER_S = 20e9
_WATTS = 0.001


class MachineLoad:
    """A training with a step of three minutes, whose traffic the NICs ``pfs`` carry. ``dimming``: the receive power in
    watts of NICs whose light fades."""

    def __init__(self, machine: Machine, pfs: Sequence[str]) -> None:
        self._machine, self._pfs = machine, pfs
        self.dimming: dict[str, float] = {}

    async def run(self) -> None:
        """Change the values every five seconds, until cancelled."""
        turn = 0
        while True:
            self.change(turn * EVERY_S)
            turn += 1
            await asyncio.sleep(EVERY_S)

    def change(self, at_s: float) -> None:
        """The values after ``at_s`` seconds."""
        for gpu in range(len(self._machine.gpus)):
            wave = math.sin(2 * math.pi * at_s / _TURN_S + gpu / 2)
            busy = min(1.0, _BUSY + 0.25 * wave)
            self._machine.gpu_load(gpu, busy)
            memory = int((_MEMORY_GIB + 4 * wave) * GIB)
            self._machine.measure(gpu, gpu_memory_used_bytes=memory, gpu_celsius=round(31 + 35 * busy))
        for number, pf in enumerate(self._pfs):
            wave = math.sin(2 * math.pi * at_s / _TURN_S + number / 2)
            if not self._machine.nic(pf).cable:
                continue
            if pf in self.dimming:
                self.dimming[pf] /= 1.5
            self._machine.light(pf, 0, self.dimming.get(pf, _WATTS * (1 + 0.05 * wave)))
            for name in ("rx_bytes", "tx_bytes"):
                self._count(pf, name, _BYTES_PER_S * EVERY_S * (1 + 0.3 * wave))
            self._count(pf, "fec_corrected_blocks", round(40 + 20 * wave))

    def _count(self, pf: str, name: str, by: float) -> None:
        try:
            self._machine.count(pf, name, round(by))
        except MachineError:
            return  # this model of NIC lacks the counter
