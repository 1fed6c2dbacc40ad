"""Whether a machine is a virtual one, by the clocks that its kernel has and the names in its firmware (DMI). Pure.

Firecracker has no DMI. A virtual machine has the NICs that its host passes through, as whole functions. It cannot make
VFs of a VF, and has no access to the settings of a card.
"""

from __future__ import annotations

import re

_VENDORS = re.compile(
    r"QEMU|KVM|VMware|innotek|Xen|Bochs|Parallels|KubeVirt|Nutanix|OpenStack|DigitalOcean", re.I
)
_PRODUCTS = re.compile(
    r"Standard PC|\bKVM\b|Virtual Machine|Virtual Platform|VirtualBox|HVM domU|Google Compute Engine|OpenStack|"
    r"KubeVirt|Alibaba Cloud ECS|Droplet|\bAHV\b",
    re.I,
)
_AMAZON = "Amazon EC2"
_CLOCKS = re.compile(r"\bkvm-clock\b|\bhyperv_clocksource_")
"""Clocks that a host gives its guest (Linux 6.18: arch/x86/kernel/kvmclock.c, drivers/clocksource/hyperv_timer.c)."""


def is_virtual(vendor: str | None, product: str | None, clocks: str | None = None) -> bool:
    """Whether ``sys_vendor``, ``product_name`` or ``available_clocksource`` are those of a virtual machine.

    >>> is_virtual(None, None, "tsc kvm-clock "), is_virtual(None, None, "tsc hpet acpi_pm ")
    (True, False)
    >>> is_virtual("QEMU", "Standard PC (Q35 + ICH9, 2009)"), is_virtual("Microsoft Corporation", "Virtual Machine")
    (True, True)
    >>> is_virtual("Amazon EC2", "p5.48xlarge"), is_virtual("Amazon EC2", "c5n.metal")
    (True, False)
    >>> is_virtual("NVIDIA", "DGXH100"), is_virtual(None, None)
    (False, False)
    """
    vendor, product = vendor or "", product or ""
    if _CLOCKS.search(clocks or ""):
        return True
    if _AMAZON in vendor:
        return ".metal" not in product
    return bool(_VENDORS.search(vendor) or _PRODUCTS.search(product))
