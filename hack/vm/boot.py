"""Boot the machine of vm.toml: PFs with SR-IOV behind two host bridges, one on each NUMA node.

    python hack/vm/boot.py --share DIR --out DIR     the guest's files, and its results; see README.md

``share`` is unpacked into the guest's memory beside its root, because Python reads thousands of files. The guest runs
its ``guest.py`` and writes to ``out`` (9p). A virtio serial port named ``qmp`` is QEMU's monitor (QMP), so that the
guest itself pulls the cable of a PF.

PF n is the QEMU device ``pf<n>``, its cable the hub ``n``. On hub 0 there is also a virtio NIC of the guest, which
plays the switch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from build import CACHE, built, command_of, machine, write_cpio

SWITCH_MAC = "02:00:00:00:ff:00"
GUEST_S = 1800.0
"""The guest has one thread without KVM: some 7 minutes alone, 15 to 20 beside all tests on two cores."""


class BootError(Exception):
    """The guest did not end; the message contains the end of its console."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A whole run: the folder of the built machine, and the uptime."""

    built: Path
    seconds: float


def boot(share: Path, out: Path, cache: Path = CACHE, timeout_s: float = GUEST_S) -> Ran:
    """Run the guest until it ends. Raises ``BootError`` if it does not."""
    folder = built(cache)
    out.mkdir(parents=True, exist_ok=True)
    console = out / "console.log"
    began = time.monotonic()
    # The path of a socket may have at most 107 characters, so it does not depend on ``out``.
    with tempfile.TemporaryDirectory(prefix="vm-") as temporary, console.open("wb") as output:
        scratch = Path(temporary)
        with (scratch / "initrd").open("wb") as initrd:
            initrd.write((folder / "root.cpio").read_bytes())
            write_cpio(share, initrd, under="share/")
        qemu = command(folder, scratch, out)
        process = subprocess.Popen(qemu, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BootError(f"the guest was not done after {timeout_s:g} s\n{tail(console)}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code or not (out / "rc").exists():
        raise BootError(f"QEMU ended with {code} before the guest was done\n{tail(console)}")
    return Ran(folder, time.monotonic() - began)


def tail(console: Path, lines: int = 40) -> str:
    return "\n".join(console.read_text(errors="replace").splitlines()[-lines:])


def command(folder: Path, scratch: Path, out: Path) -> list[str]:
    wanted = machine()
    kernel, host, nic = wanted["kernel"], wanted["machine"], wanted["nic"]
    qemu = folder / "qemu"
    firmware = [item for name in ("seabios", "qemu") for item in ("-L", str(qemu / "usr/share" / name))]
    return [
        *command_of(qemu, "usr/bin/qemu-system-x86_64"),
        *firmware,
        "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-machine", f"q35,accel={host['accel']}",
        "-cpu", host["cpu"],
        "-smp", str(host["cpus"]),
        "-m", str(host["memory_mib"]),
        "-device", "intel-iommu",
        "-kernel", str(folder / "vmlinuz"),
        "-initrd", str(scratch / "initrd"),
        "-append", " ".join(["console=ttyS0", "quiet", "panic=-1", *kernel["options"]]),
        *numa(host, sorted(set(nic["numa_nodes"]))),
        *pfs(nic),
        "-netdev", "hubport,id=switch,hubid=0",
        "-device", f"virtio-net-pci,bus=pcie.0,netdev=switch,mac={SWITCH_MAC},romfile=",
        *results(out),
        *monitor(scratch / "qmp"),
    ]  # fmt: skip


def numa(host: dict[str, Any], nodes: list[int]) -> list[str]:
    """Divide memory and CPUs equally."""
    options = []
    for node in nodes:
        mib = host["memory_mib"] // len(nodes)
        cpus = ",".join(f"cpus={cpu}" for cpu in range(host["cpus"]) if cpu % len(nodes) == node)
        options += ["-object", f"memory-backend-ram,id=ram{node},size={mib}M"]
        options += ["-numa", f"node,nodeid={node},memdev=ram{node},{cpus}"]
    return options


def pfs(nic: dict[str, Any]) -> list[str]:
    """Each PF on a root port of its own, below the host bridge of its NUMA node.

    A pxb-pcie accepts only bridges, so all other devices are on bus 0.
    """
    options = []
    for node in sorted(set(nic["numa_nodes"])):
        number = 0x20 * (node + 1)
        options += ["-device", f"pxb-pcie,id=bridge{node},bus=pcie.0,bus_nr={number},numa_node={node}"]
    for n, node in enumerate(nic["numa_nodes"]):
        options += ["-device", f"pcie-root-port,id=port{n},bus=bridge{node},chassis={n + 1},slot={n + 1}"]
        options += ["-netdev", f"hubport,id=cable{n},hubid={n}"]
        mac = f"02:00:00:00:{n:02x}:00"
        options += ["-device", f"{nic['model']},id=pf{n},bus=port{n},netdev=cable{n},mac={mac},romfile="]
    return options


def results(out: Path) -> list[str]:
    fsdev = f"local,id=out,path={out.absolute()},security_model=none,multidevs=remap"
    return ["-fsdev", fsdev, "-device", "virtio-9p-pci,bus=pcie.0,fsdev=out,mount_tag=out"]


def monitor(socket: Path) -> list[str]:
    """QEMU listens on a socket and connects the guest's port to it, so the guest uses QMP on the port."""
    return [
        "-chardev", f"socket,id=monitor,path={socket},server=on,wait=off",
        "-mon", "chardev=monitor,mode=control",
        "-chardev", f"socket,id=guest,path={socket}",
        "-device", "virtio-serial-pci,bus=pcie.0", "-device", "virtserialport,chardev=guest,name=qmp",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Boot the machine of vm.toml once.")
    parser.add_argument(
        "--share", type=Path, required=True, help="the folder with guest.py, which the guest runs"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for the guest's results")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S")
    options = parser.parse_args()
    try:
        ran = boot(options.share, options.out, options.cache, options.timeout)
    except BootError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{ran.seconds:.1f} s; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
