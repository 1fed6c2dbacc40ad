"""What happens to the GPUs of a simulated machine, as the recorded driver of the agent reads it."""

import pytest

from nodeagent.host.gpu_driver import GpuEvent
from nodeagent.host.recorded_gpus import RecordedDriver
from nodeagent.measurements.table import MEASUREMENTS, TEXTS, measurement
from nodeagent.model import HEALTHY
from nodeagent.sim.machine import Machine
from tests.support.judged_gpus import GpuBench


class World:
    def __init__(self, folder):
        self.machine = Machine.load("two-gpu-two-nic")
        self.machine.write(folder)
        self.driver = RecordedDriver(folder)
        self.driver.open()
        self.uuids = [device.gpu.uuid for device in self.machine.gpus]
        self.bench, self.now = GpuBench(), 0.0

    def values(self, gpu=0):
        (vitals,) = (one for one in self.driver.vitals() if one.uuid == self.uuids[gpu])
        assert vitals.absurd == ()
        return vitals.values

    def keys(self, after_s=0):
        """What stands against each GPU, read now and again every 15 s."""
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


def test_a_sound_machine_is_healthy_in_the_words_of_the_samples(world):
    assert world.keys() == [[], []]
    (first, _) = world.driver.vitals()
    assert all(measurement(name) for name in first.values)
    assert set(first.texts) <= set(TEXTS)
    assert {name.partition("/")[0] for name in first.values} <= set(MEASUREMENTS)
    assert sum(name.startswith("gpu_nvlink_up/") for name in first.values) == 18
    assert (first.values["gpu_pcie_generation"], first.values["gpu_pcie_width"]) == (5, 16)


def test_errors_in_sram_condemn_and_a_reset_gives_back(world):
    world.machine.ecc(1, correctable=5)
    assert world.keys() == [[], []]
    world.machine.ecc(1, uncorrectable=1)
    world.machine.set_recovery_action(1, "gpu_reset")
    assert world.keys() == [[], ["recovery_gpu_reset", "sram_uncorrectable"]]
    world.machine.reset_gpu(1)
    assert world.keys() == [[], []]


def test_a_bad_row_waits_for_a_reset_or_is_the_end(world):
    world.machine.remap(0)
    assert world.keys() == [["remap_pending"], []]
    world.machine.reset_gpu(0)
    assert world.keys(600) == [[], []]
    world.machine.remap(0, failed=True)
    world.machine.reset_gpu(0)
    assert world.keys(600) == [["remap_failed"], []]
    world.machine.remap(1, 513)
    assert world.keys()[1] == ["remap_limit", "remap_pending"]


def test_a_link_that_fails_condemns_after_its_hold_and_its_return_gives_back(world):
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


def test_a_gpu_that_the_driver_gives_up_is_announced(world):
    world.machine.gpu_unavailable(1)
    assert world.driver.wait(5) == (GpuEvent(world.uuids[1], None, unavailable=True),)


def test_what_the_driver_does_not_tell_or_cannot_be_is_not_judged(world):
    assert world.keys() == [[], []]
    world.machine.measure(0, gpu_pcie_width=None, gpu_row_remap_failed=2**32, gpu_celsius=9000)
    (first, _) = world.driver.vitals()
    assert first.absurd == ("gpu_celsius", "gpu_row_remap_failed")
    assert world.keys(600) == [[], []]
    assert world.bench.healths()[0] == HEALTHY


def test_a_lost_gpu_has_no_vitals(world):
    world.machine.lose_gpu(0)
    assert [one.uuid for one in world.driver.vitals()] == world.uuids[1:]
