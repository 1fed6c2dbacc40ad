"""``docs/verified.md``: what a whole run has shown, with its figures and its limits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm.conftest import Run

HEAD = """\
# What was verified where

Written by `make test-vm` after a run in which every test passed; not to be edited. What is said of the
machine is what the guest itself reported.
"""

LIMITS = """\
## What no test here can reach

- **Other NICs.** The VFs are real to the kernel, the silicon is QEMU's model of an Intel 82576. What firmware
  does (mlx5 above all: VF limits, trust, eswitch modes, LLDP that the NIC keeps for itself) is not there.
- **RDMA and InfiniBand.** The model has none: RDMA devices, their exclusive mode, GUIDs and IPoIB are tested
  against recorded and simulated trees alone.
- **GPUs.** There are none in the guest; NVML is tested against a stand-in library.
- **A kubelet.** The one in the guest is `nodeagent.sim.kubelet`, written after the kubelet's source. It runs no
  containers, so that a CNI plugin moves the VF is played by `ip link set netns`.
- **A DGX.** Its PCIe switches and its number of NICs are simulated, its firmware is not.
- **Time.** With the accelerator tcg everything is emulated by software, on a machine that others share: the
  figures say that nothing waits for a timer, not how fast a node is.
"""


def text(run: Run, passed: Iterable[str]) -> str:
    facts, nic = run.step("facts"), run.nic
    packages = run.manifest["packages"]
    lines = [HEAD, "## On a real kernel with SR-IOV", ""]
    lines += table(
        ("", ""),
        [
            ("date", datetime.now(UTC).strftime("%Y-%m-%d")),
            ("nodeagent", facts["nodeagent"].removeprefix("nodeagent ")),
            ("kernel", f"{facts['kernel']} ({facts['build']})"),
            ("drivers", f"{nic['pf_driver']}, {nic['vf_driver']}, vfio-pci, from that kernel"),
            (
                "QEMU",
                f"{packages['qemu-system-x86']}, machine q35, accelerator {run.machine['machine']['accel']}",
            ),
            ("NICs", f"{len(run.pfs)} {nic['model']} on NUMA nodes {nic['numa_nodes']}, VFs {nic['vfs']}"),
            ("Python", f"{facts['python']}, the installed wheel"),
            ("kubelet", "nodeagent.sim.kubelet"),
            ("LLDP", f"lldpd {packages['lldpd']}"),
        ],
    )
    lines += ["", "Each line is a test:", ""]
    lines += [f"- {sentence(name)}" for name in passed]
    cable, removed, restart = run.step("cable"), run.step("removed"), run.step("restart")
    lines += ["", "Seconds, from the cause in the kernel or in QEMU until the kubelet has been told:", ""]
    lines += table(
        ("cause", "s"),
        [
            ("the cable of a PF is pulled (the worst of three)", worst(cable, "down_s")),
            ("it is plugged in again, negotiation included", worst(cable, "up_s")),
            ("the VFs of a PF are removed", f"{removed['gone_s']:.2f}"),
            ("… of which the kernel takes", f"{removed['kernel_s']:.2f}"),
            ("they are made again and their driver has probed them", f"{removed['back_s']:.2f}"),
            ("the driver of all VFs is loaded", f"{run.step('late')['healthy_s']:.2f}"),
            ("the agent is started again", f"{restart['again_s']:.2f}"),
            ("the whole run, boot included", f"{run.seconds:.0f}"),
        ],
    )
    return "\n".join([*lines, "", LIMITS])


def sentence(name: str) -> str:
    """``…::test_a_pulled_cable`` → ``a pulled cable``."""
    return name.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")


def worst(rounds: list[dict[str, float]], key: str) -> str:
    return f"{max(one[key] for one in rounds):.2f}"


def table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"| {head[0]} | {head[1]} |",
        "| --- | --- |",
        *(f"| {left} | {right} |" for left, right in rows),
    ]
