"""The device nodes of MIG devices, from the driver's list of numbers."""

from __future__ import annotations

from pathlib import Path

from nodeagent.facts.model import MigDevice
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.sysfs import Tree
from nodeagent.sources.mig_nodes import MIG_MINORS, parse_minors, with_nodes

LISTED = "config 1\nmonitor 2\ngpu1/gi7/access 201\ngpu1/gi7/ci0/access 202\ngpu1/gi8/access 210\nnonsense\n"


def reading(*devices: MigDevice, minor: int | None = 1) -> GpuReading:
    return GpuReading(0, "GPU-0", minor, mig=True, mig_devices=devices)


def test_a_device_has_the_nodes_of_both_instances(tmp_path: Path) -> None:
    file = tmp_path / MIG_MINORS.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(LISTED)
    whole, half = MigDevice("MIG-a", "1g.10gb", 9856, 7, 0), MigDevice("MIG-b", "1g.10gb", 9856, 8, 0)
    (read,) = with_nodes(Tree(tmp_path), (reading(whole, half),))
    assert [device.nodes for device in read.mig_devices or ()] == [
        ("/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202"),
        (),
    ]
    assert with_nodes(Tree(tmp_path), (reading(whole, minor=None),)) == (reading(whole, minor=None),)
    assert parse_minors(LISTED)[1, 8, None] == 210


def test_without_the_list_the_readings_stay_as_they_are(tmp_path: Path) -> None:
    readings = (reading(MigDevice("MIG-a", "1g.10gb", 9856, 7, 0)), GpuReading(1, "GPU-1"))
    assert with_nodes(Tree(tmp_path), readings) == readings
