"""GPUs that are not registered with their NVLink fabric: at the start, later, misconfigured, and without a fabric."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeagent.health.gpu import GpuJudge
from nodeagent.health.gpu_settings import GpuHealthSettings, GpuSettings
from nodeagent.host.gpu_driver import GpuVitals
from tests.host import test_nvml as library
from tests.host.test_nvlink_domain import COMPLETED, IN_PROGRESS, NOT_STARTED, fabric
from tests.host.test_nvml import Machine, environment
from tests.host.test_nvml import gpu as line
from tests.support.judged_gpus import GpuBench, gpu, measured
from tests.support.running_agent import HEAD, Node, node

young = library.young
ALL = range(8)
MEMORY = "two-gpus-and-two-nics/gpu-mem"
CORRECT, NO_PARTITION = 1 << 8, 4 << 8  # the field of the health mask from bit 8 on


class Hgx:
    """Eight GPUs under the guard, as the driver reports them every five seconds."""

    def __init__(self, settings: GpuSettings | None = None, *, mig: bool = False) -> None:
        self.judge = GpuJudge(settings)
        self.mig, self.now = mig, 0.0

    def read(self, pending: Sequence[bool | None], *, vitals: bool = True) -> int:
        """One reading, and the measured values that follow it. Return how many GPUs are offered."""
        readings = [gpu(n, mig=self.mig, fabric_pending=one) for n, one in enumerate(pending)]
        self.judge.take_readings(readings, self.now)
        offered = self.offered()
        if vitals:
            values = [None if one is None else float(one) for one in pending]
            self.judge.take_vitals(
                [GpuVitals(f"GPU-{n}", measured(gpu_fabric_not_ready=one)) for n, one in enumerate(values)],
                self.now,
            )
            offered = self.offered()
        return offered

    def offered(self) -> int:
        return sum(health.allocatable for health in self.judge.judge(self.now).values())

    def for_s(self, seconds: float, pending: Sequence[bool | None], *, vitals: bool = True) -> list[int]:
        """Read every five seconds. Return the numbers of offered GPUs."""
        offered = []
        for _ in range(round(seconds / 5)):
            self.now += 5
            offered.append(self.read(pending, vitals=vitals))
        return offered


@pytest.mark.parametrize("vitals", [True, False], ids=["measured", "only-read"])
def test_after_a_reboot_no_gpu_is_offered_before_its_fabric_is_up(vitals: bool) -> None:
    """The fabric manager finishes 40 s after the agent's start. Nothing was offered until then, not for a moment."""
    node = Hgx()
    assert node.read([True] * 8, vitals=False) == 0
    assert node.for_s(35, [True] * 8, vitals=vitals) == [0] * 7
    assert node.for_s(30, [False] * 8, vitals=vitals) == [0] * 6
    assert node.for_s(5, [False] * 8, vitals=vitals) == [8]


def test_each_gpu_is_offered_when_its_own_registration_is_complete() -> None:
    node = Hgx()
    assert node.read([True] * 8) == 0
    node.for_s(30, [False] * 3 + [True] * 5)
    assert node.for_s(5, [False] * 3 + [True] * 5) == [3]
    (reason,) = node.judge.health("GPU-7").reasons
    assert reason.key == "fabric_not_ready"
    assert "802" in reason.detail


def test_a_fabric_that_is_lost_while_pods_run_withdraws_half_at_first() -> None:
    """The driver's word about all GPUs at once is one source: it has the hold and the guard's minute to change it."""
    node = Hgx()
    assert node.read([False] * 8) == 8
    assert node.for_s(30, [True] * 8) == [8] * 6
    assert node.for_s(60, [True] * 8) == [4] * 12
    assert node.for_s(5, [True] * 8) == [0]
    node.for_s(30, [False] * 8)
    assert node.for_s(5, [False] * 8) == [8]


def test_one_gpu_that_loses_its_fabric_is_withdrawn_after_the_hold() -> None:
    node = Hgx()
    node.read([False] * 8)
    assert node.for_s(35, [True] + [False] * 7) == [8] * 6 + [7]


def test_calls_that_fail_are_no_evidence() -> None:
    node = Hgx()
    node.read([False] * 8)
    assert set(node.for_s(600, [None] * 8)) == {8}
    after_start = Hgx()
    assert after_start.read([None] * 8, vitals=False) == 8
    assert set(after_start.for_s(600, [None] * 8)) == {8}


def test_a_call_that_fails_does_not_return_a_gpu() -> None:
    node = Hgx()
    node.read([True] * 8)
    assert set(node.for_s(600, [None] * 8)) == {0}


@pytest.mark.parametrize(
    ("settings", "mig"),
    [(GpuSettings(health=GpuHealthSettings(ignore=("fabric_not_ready",))), False), (None, True)],
    ids=["ignored", "mig"],
)
def test_a_gpu_whose_fabric_does_not_matter_is_offered(settings: GpuSettings | None, mig: bool) -> None:
    node = Hgx(settings, mig=mig)
    assert node.read([True] * 8, vitals=False) == 8
    assert set(node.for_s(120, [True] * 8)) == {8}


def test_a_restart_of_the_agent_neither_offers_nor_forgets() -> None:
    bench = GpuBench(gpu(fabric_pending=True)).restart(5)
    assert bench.reasons() == ["fabric_not_ready"]
    bench.read(fabric_pending=True)
    assert bench.reasons() == ["fabric_not_ready"]
    bench.read(fabric_pending=False).for_s(30)
    assert bench.reasons() == []


def test_the_faults_of_a_registration_do_not_clear_each_other() -> None:
    """While the registration is repeated, the driver has neither a status nor a health mask."""
    bench = GpuBench(every=5).tick().for_s(60, gpu_fabric_misconfigured=1)
    assert bench.reasons() == ["fabric_misconfigured"]
    unknown = dict.fromkeys(("gpu_fabric_misconfigured", "gpu_fabric_failed"))
    bench.for_s(60, gpu_fabric_not_ready=1, **unknown)
    assert bench.reasons() == ["fabric_not_ready", "fabric_misconfigured"]
    bench.for_s(60, gpu_fabric_misconfigured=1)
    assert bench.reasons() == ["fabric_misconfigured"]
    bench.for_s(30)
    assert bench.reasons() == []


class Driver:
    """NVML's stand-in with the GPUs of a simulated node."""

    def __init__(self, n: Node) -> None:
        self.machine = Machine(n.folder / "control")
        recording = n.root / ".nodeagent/gpus.json"
        self.gpus = [
            line(one["index"], uuid=one["uuid"], bus=f"0000{one['pci_address']}", mib=one["memory_mib"])
            for one in json.loads(recording.read_bytes())["gpus"]
        ]
        recording.unlink()  # NVML is asked instead

    def report(self, state: int, *, status: int = 0, health: int = CORRECT) -> None:
        numbers = range(len(self.gpus))
        self.machine.set(
            *self.gpus,
            *(fabric(n, state=state, status=status) for n in numbers),
            *(f"vital {n} fabric_health {health}" for n in numbers),
        )


@pytest.mark.slow
@pytest.mark.needs("pynvml", "cc")
@pytest.mark.parametrize("first", [NOT_STARTED, IN_PROGRESS])
async def test_the_kubelet_gets_the_gpus_when_the_driver_has_registered_them(young: Path, first: int) -> None:
    async with node() as n:
        driver = Driver(n)
        driver.report(first)
        n.configure(
            f"{HEAD}lldp: {{source: none}}\nhealth: {{guard: {{share: 1}}}}\n"
            "gpu: {health: {readSeconds: 1, fabricSeconds: 1}}\n"
            "resources: [{kind: gpu-mem, deviceListStrategy: envvar}]\n"
        )
        await n.kubelet.start()
        arguments = ("--root", n.root, "--kubelet-dir", n.kubelet.directory, "--config", n.config_file)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodeagent", "run", "--listen", "127.0.0.1:0", *arguments),
            env=environment(driver.machine, young),
        )
        try:
            await n.kubelet.until(lambda: MEMORY in n.kubelet.capacity())
            assert n.kubelet.capacity()[MEMORY] > 0
            assert n.kubelet.allocatable()[MEMORY] == 0, "not in the first list either"
            for trouble in (
                {"health": NO_PARTITION},
                {"status": 3, "health": 0},
                {"state": IN_PROGRESS, "health": 0},
            ):
                driver.report(COMPLETED)
                await n.allocatable(MEMORY, n.kubelet.capacity()[MEMORY])
                driver.report(**{"state": COMPLETED, **trouble})
                await n.allocatable(MEMORY, 0)
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 20)
