"""Readings that cannot be true lose their UUID, each for its own reason, and all others stay as they are."""

from __future__ import annotations

import pytest
from msgspec import structs

from nodeagent.facts.model import MigDevice
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.host.plausible_gpus import plausible_gpus

GOOD = GpuReading(0, "GPU-3a3372fa-989f-4f6e-9d5b-7f6d8f0a1b2c", 0, "NVIDIA H100", "0000:1b:00.0", 81559)
OTHER = GpuReading(1, "GPU-1", 1, "NVIDIA H100", "00010000:e1:1f.7", 4 << 20)


def test_readings_of_real_gpus_stay_as_they_are() -> None:
    nameless = GpuReading(2, fault="Unknown Error")
    assert plausible_gpus([GOOD, OTHER, nameless]) == (GOOD, OTHER, nameless)


@pytest.mark.parametrize(
    "uuid", ["", "all", "none", "0", "MIG-1", "GPU-", "GPU-a-", "GPU-a::0", "GPU-a/b", "GPU-" + 37 * "a"]
)
def test_a_uuid_that_cdi_or_the_kubelet_cannot_name_is_nonsense(uuid: str) -> None:
    (kept, odd) = plausible_gpus([GOOD, structs.replace(OTHER, uuid=uuid)])
    assert kept == GOOD
    assert (odd.uuid, odd.index, odd.pci_address) == (None, 1, OTHER.pci_address)
    assert odd.fault == f'the driver reports the UUID "{uuid[:39] + "…" if len(uuid) > 40 else uuid}"'


@pytest.mark.parametrize("field", ["uuid", "pci_address", "minor"])
def test_two_gpus_with_one_value_are_both_left_out(field: str) -> None:
    third = GpuReading(2, "GPU-2", 2, "NVIDIA H100", "0000:1d:00.0", 81559)
    twin = structs.replace(OTHER, **{field: getattr(GOOD, field)})
    first, second, other = plausible_gpus([GOOD, twin, third])
    assert (first.uuid, second.uuid, other) == (None, None, third)
    assert "of another GPU" in (first.fault or "")
    assert (first.pci_address is None) == (field == "pci_address")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_mib", 0),
        ("memory_mib", -1),
        ("memory_mib", (4 << 20) + 1),
        ("memory_mib", 1 << 43),
        ("minor", -1),
        ("minor", 0xFFFFFFFF),
        ("pci_address", ""),
        ("pci_address", "1b:00.0"),
        ("pci_address", "0000:1b:20.0"),
        ("pci_address", "../../x"),
    ],
)
def test_a_value_out_of_range_is_nonsense(field: str, value: object) -> None:
    (odd,) = plausible_gpus([structs.replace(GOOD, **{field: value})])
    assert odd.uuid is None
    assert odd.memory_mib is None
    assert (odd.fault or "").startswith("the driver reports ")


def test_texts_are_on_one_line_and_have_an_end() -> None:
    (odd,) = plausible_gpus(
        [structs.replace(GOOD, name="a\n\x1b[2J\u202e" + 200 * "b", fault="c\n" + 400 * "d")]
    )
    assert odd.uuid == GOOD.uuid
    assert odd.name is not None
    assert odd.name.startswith("a\\n\\x1b[2J\\u202eb")
    assert odd.fault is not None
    assert (len(odd.name) <= 96 + 12, len(odd.fault)) == (True, 200)


@pytest.mark.parametrize(
    ("uuid", "profile"),
    [
        ("MIG-GPU-a/7/0", "1g.10gb"),
        ("GPU-1", "1g.10gb"),
        ("MIG-1", "1g 10gb"),
        ("MIG-1", ""),
        ("MIG-1", "G" * 30),
    ],
)
def test_a_mig_device_that_can_name_no_device_or_resource_is_a_fault_of_its_gpu(uuid, profile):
    sound = MigDevice("MIG-0", "1c.3g.40gb+me.all", 9856, 7, 0)
    good = GpuReading(0, "GPU-0", 0, mig=True, mig_devices=(sound,))
    bad = GpuReading(1, "GPU-1", 1, mig=True, mig_devices=(MigDevice(uuid, profile, 9856, 7, 0),))
    first, second = plausible_gpus((good, bad))
    assert first == good
    assert (second.uuid, second.mig_devices) == (None, None)
    assert "the MIG device" in second.fault
