"""Write the section of ``docs/reference/verified.md`` about a machine with real VFs: the results of a complete run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm.conftest import Run

SECTION = "## On a real kernel with SR-IOV"
WRITTEN = """\
`NODEAGENT_GOLDEN=write make test-vm` writes this section after a run in which every test passes. The guest itself
reports the facts about the machine."""


def page(before: str, run: Run, passed: Iterable[str]) -> str:
    """Return the page with its section about this run in place of the one before."""
    head, _, rest = before.partition(f"{SECTION}\n")
    next_ = "\n## "
    return f"{head}{section(run, passed)}\n{next_}{rest.partition(next_)[2]}"


def section(run: Run, passed: Iterable[str]) -> str:
    facts, nic = run.step("facts"), run.nic
    packages = run.manifest["packages"]
    lines = [SECTION, "", WRITTEN, ""]
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
            ("kubelet", "nodeagent_lab.sim.kubelet"),
            ("LLDP", f"lldpd {packages['lldpd']}"),
        ],
    )
    lines += ["", "Each line is a test:", ""]
    lines += [f"- {sentence(name)}" for name in passed]
    cable, removed, restart = run.step("cable"), run.step("removed"), run.step("restart")
    lines += [
        "",
        "Seconds from the event in the kernel or in QEMU until the kubelet receives the device list:",
        "",
    ]
    lines += table(
        ("cause", "s"),
        [
            ("the cable of a PF is pulled (worst of three)", worst(cable, "down_s")),
            ("the cable is plugged in again, with negotiation", worst(cable, "up_s")),
            ("the VFs of a PF are removed", f"{removed['gone_s']:.2f}"),
            ("of these in the kernel", f"{removed['kernel_s']:.2f}"),
            ("the VFs are created again and probed by their driver", f"{removed['back_s']:.2f}"),
            ("the driver of all VFs is loaded", f"{run.step('late')['healthy_s']:.2f}"),
            ("the agent is restarted", f"{restart['again_s']:.2f}"),
            ("the whole run, with boot", f"{run.seconds:.0f}"),
        ],
    )
    return "\n".join(lines)


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
