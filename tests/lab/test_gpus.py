"""Events of simulated GPUs, read by the agent's driver for recordings."""

import pytest

from hack.docs.sample_texts import TEXTS
from nodeagent.facts.model import HEALTHY
from nodeagent.host.gpu_driver import GpuEvent
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent.measurements.table import MEASUREMENTS, measurement
from nodeagent_lab.sim.machine import Machine
from tests.support.judged_gpus import GpuBench


class World:
    def __init__(self, folder):
        self.machine = Machine.load("two-gpu-two-nic")
        self.machine.write(folder)
        self.driver = RecordedGpuDriver(folder)
        self.driver.open()
        self.uuids = [device.gpu.uuid for device in self.machine.gpus]
        self.bench, self.now = GpuBench(), 0.0

    def values(self, gpu=0):
        (vitals,) = (one for one in self.driver.vitals() if one.uuid == self.uuids[gpu])
        assert vitals.absurd == ()
        return vitals.values

    def keys(self, after_s=0):
        """The faults of each GPU, read at intervals of 15 s."""
        until = self.now + after_s
        while True:
            self.bench.take(self.now, readings=self.driver.gpus(), vitals=self.driver.vitals())
            if self.now >= until:
                healths = self.bench.healths()
                return [[reason.key for reason in health.reasons] for health in healths]
            self.now += 15


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "m")
    yield world
    world.driver.close()


def test_a_new_machine_is_healthy(world):
    assert world.keys() == [[], []]
    (first, _) = world.driver.vitals()
    assert all(measurement(name) for name in first.values)
    assert set(first.texts) <= set(TEXTS)
    assert {name.partition("/")[0] for name in first.values} <= set(MEASUREMENTS)
    assert sum(name.startswith("gpu_nvlink_up/") for name in first.values) == 18
    assert (first.values["gpu_pcie_generation"], first.values["gpu_pcie_width"]) == (5, 16)


def test_sram_errors_are_a_fault_until_a_reset(world):
    world.machine.ecc(1, correctable=5)
    assert world.keys() == [[], []]
    world.machine.ecc(1, uncorrectable=1)
    world.machine.set_recovery_action(1, "gpu_reset")
    assert world.keys() == [[], ["recovery_gpu_reset", "sram_uncorrectable"]]
    world.machine.reset_gpu(1)
    assert world.keys() == [[], []]


def test_a_bad_row_is_a_fault_until_a_reset_or_for_good(world):
    world.machine.remap(0)
    assert world.keys() == [["remap_pending"], []]
    world.machine.reset_gpu(0)
    assert world.keys(600) == [[], []]
    world.machine.remap(0, failed=True)
    world.machine.reset_gpu(0)
    assert world.keys(600) == [["remap_failed"], []]
    world.machine.remap(1, 513)
    assert world.keys()[1] == ["remap_limit", "remap_pending"]


def test_a_failed_nvlink_is_a_fault_after_its_hold_until_it_returns(world):
    assert world.keys() == [[], []]
    world.machine.nvlink(0, 17, up=False)
    assert world.keys(15) == [[], []]
    assert world.keys(15) == [["nvlink_down"], []]
    world.machine.nvlink(0, 17, up=True)
    assert world.keys(585) == [["nvlink_down"], []]
    assert world.keys(15) == [[], []]


def test_a_narrow_or_slow_pcie_link_degrades(world):
    world.keys()
    world.machine.pcie(0, generation=1)
    world.machine.gpu_load(0, 0.0, performance_state=8)
    assert world.keys(3600) == [[], []]
    world.machine.gpu_load(0, 0.9)
    assert world.keys(915) == [["pcie_speed"], []]
    world.machine.pcie(1, width=8)
    assert world.keys(15) == [["pcie_speed"], ["pcie_width"]]
    assert all(health.allocatable for health in world.bench.healths())


def test_an_unavailable_gpu_is_an_event(world):
    world.machine.gpu_unavailable(1)
    assert world.driver.wait(5) == (GpuEvent(world.uuids[1], None, unavailable=True),)


def test_missing_and_impossible_values_cause_no_fault(world):
    assert world.keys() == [[], []]
    world.machine.measure(0, gpu_pcie_width=None, gpu_row_remap_failed=2**32, gpu_celsius=9000)
    (first, _) = world.driver.vitals()
    assert first.absurd == ("gpu_celsius", "gpu_row_remap_failed")
    assert world.keys(600) == [[], []]
    assert world.bench.healths()[0] == HEALTHY


def test_a_lost_gpu_has_no_vitals(world):
    world.machine.lose_gpu(0)
    assert [one.uuid for one in world.driver.vitals()] == world.uuids[1:]
