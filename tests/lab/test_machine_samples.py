"""Counters and measured values of a simulated machine."""

import json
from pathlib import Path

import pytest

from nodeagent_lab.sim.machine import MachineError
from tests.lab.small_machine import PF, small


def sampled(root: Path, source: str) -> dict[str, float]:
    for sample in json.loads((root / ".nodeagent/samples.json").read_text()):
        if (sample["device"], sample["source"]) == (PF, source):
            return sample["values"]
    return {}


def test_a_flap_is_counted_by_the_kernel_and_the_driver_and_changes_nothing_else(tmp_path):
    machine, root = small(tmp_path)
    before = sampled(root, "link")
    machine.flap(PF, 7)
    after = sampled(root, "link")
    assert {name for name in after if after[name] != before[name]} == {"carrier_up", "carrier_down"}
    assert after["carrier_down"] == before["carrier_down"] + 7
    assert sampled(root, "driver")["link_down_events"] == 7
    folder = root / "sys/class/net/enp24s0np0"
    assert int((folder / "carrier_down_count").read_text()) == after["carrier_down"]


def test_sysfs_and_samples_have_the_same_values(tmp_path):
    machine, root = small(tmp_path)
    machine.count(PF, "rx_bytes", 1000)
    machine.count(PF, "rx_multicast", 3)
    machine.set_speed(PF, 100_000)
    folder = root / "sys/class/net/enp24s0np0"
    assert (folder / "statistics/rx_bytes").read_text() == "1000\n"
    assert (folder / "statistics/multicast").read_text() == "3\n"
    assert (folder / "speed").read_text() == "100000\n"
    assert sampled(root, "modes")["speed_mbps"] == 100_000
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    assert (port / "rate").read_text() == "100 Gb/sec (4X EDR)\n"
    machine.count(PF, "rdma_rx_bytes", 400)
    machine.count(PF, "rdma_slow_restarts", 5)
    assert (port / "counters/port_rcv_data").read_text() == "100\n"
    assert (port / "hw_counters/roce_slow_restart").read_text() == "5\n"


def test_a_pulled_cable_has_no_light_and_the_state_no_cable(tmp_path):
    machine, root = small(tmp_path)
    machine.set_link(PF, False)
    module = sampled(root, "module")
    assert [module[f"rx_power_watts/{lane}"] for lane in range(4)] == [0, 0, 0, 0]
    assert module["tx_power_watts/0"] > 0
    assert "speed_mbps" not in sampled(root, "modes")
    assert sampled(root, "link")["carrier"] == 0


def test_a_netdev_in_a_pod_has_no_samples(tmp_path):
    machine, root = small(tmp_path)
    machine.move_netdev(PF)
    assert (sampled(root, "link"), sampled(root, "driver"), sampled(root, "module")) == ({}, {}, {})
    assert sampled(root, "devlink")["devlink_error/fw"] == 0
    machine.unplug(PF)
    assert sampled(root, "devlink") == {}


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda m: m.count(PF, "tea"), "no counter 'tea'"),
        (lambda m: m.light(PF, 9, 0.1), "does not measure"),
        (lambda m: m.count_aer(PF, "fatal", "RxErr"), "AER has no fatal"),
        (lambda m: m.recover_reporter(PF), "has not failed"),
        (lambda m: (m.set_link(PF, False), m.flap(PF)), "no carrier to flap"),
    ],
)
def test_an_unknown_measurement_is_an_error(act, why, tmp_path):
    machine, _ = small(tmp_path)
    with pytest.raises(MachineError, match=why):
        act(machine)


def test_the_aer_total_is_the_sum_of_its_errors(tmp_path):
    machine, root = small(tmp_path)
    machine.count_aer(PF, "correctable", "BadTLP", 2)
    machine.count_aer(PF, "correctable", "RxErr")
    text = (root / f"sys/bus/pci/devices/{PF}/aer_dev_correctable").read_text()
    assert text.startswith("RxErr 1\nBadTLP 2\n")
    assert text.endswith("TOTAL_ERR_COR 3\n")
