"""A virtual machine is known by its clocks and the names in its firmware, and its scan says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.facts.virtual_machine import is_virtual
from nodeagent.host.sysfs import Tree
from nodeagent.sources.pci_source import scan

VIRTUAL = [
    ("QEMU", "Standard PC (i440FX + PIIX, 1996)"),
    ("QEMU", "KVM Virtual Machine"),
    ("Red Hat", "KVM"),
    ("Red Hat", "OpenStack Compute"),
    ("OpenStack Foundation", "OpenStack Nova"),
    ("VMware, Inc.", "VMware Virtual Platform"),
    ("VMware, Inc.", "VMware7,1"),
    ("Microsoft Corporation", "Virtual Machine"),
    ("Google", "Google Compute Engine"),
    ("Amazon EC2", "p5.48xlarge"),
    ("Xen", "HVM domU"),
    ("innotek GmbH", "VirtualBox"),
    ("Alibaba Cloud", "Alibaba Cloud ECS"),
    ("Nutanix", "AHV"),
    ("KubeVirt", "None"),
]
REAL = [
    ("NVIDIA", "DGXH100"),
    ("Supermicro", "SYS-821GE-TNHR"),
    ("Dell Inc.", "PowerEdge XE9680"),
    ("Microsoft Corporation", "C2190"),
    ("Amazon EC2", "c5n.metal"),
    ("HPE", "ProLiant DL380 Gen11"),
    ("To Be Filled By O.E.M.", "To Be Filled By O.E.M."),
    ("", ""),
    (None, None),
]


@pytest.mark.parametrize(("vendor", "product"), VIRTUAL)
def test_a_virtual_machine(vendor: str, product: str) -> None:
    assert is_virtual(vendor, product)


@pytest.mark.parametrize(("vendor", "product"), REAL)
def test_a_real_machine(vendor: str | None, product: str | None) -> None:
    assert not is_virtual(vendor, product)


@pytest.mark.parametrize(("vendor", "guest"), [("QEMU", True), ("NVIDIA", False), (None, False)])
def test_a_scan_reads_it(tmp_path: Path, vendor: str | None, guest: bool) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    names = tmp_path / "sys/class/dmi/id"
    names.mkdir(parents=True)
    (names / "product_name").write_text("X\n", encoding="utf-8")
    if vendor is not None:
        (names / "sys_vendor").write_text(f"{vendor}\n", encoding="utf-8")
    assert scan(Tree(tmp_path)).guest is guest


def test_a_guest_without_names_is_known_by_the_clock_of_its_host(tmp_path: Path) -> None:
    """Firecracker has no DMI (seen with an H200 passed through, 2026-11-29)."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    clock = tmp_path / "sys/devices/system/clocksource/clocksource0"
    clock.mkdir(parents=True)
    file = clock / "available_clocksource"
    file.write_text("tsc hpet acpi_pm \n", encoding="utf-8")
    assert not scan(Tree(tmp_path)).guest
    file.write_text("tsc kvm-clock \n", encoding="utf-8")
    assert scan(Tree(tmp_path)).guest
