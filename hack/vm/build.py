"""Build the machine of vm.toml from the distribution's packages: QEMU, a kernel and a root, none installed here.

    python hack/vm/build.py [--cache DIR]     build it and print its folder

apt resolves the packages for an empty machine, in folders of its own, from the mirror of this machine's apt. They are
unpacked over each other without configuration and without root. The root is one cpio archive that the kernel unpacks
into memory, so there is no disk, no boot loader and no initrd before init. Programs of an unpacked tree run with that
tree's own dynamic loader.

The folder's name is a hash of the inputs (this file, vm.toml, init): it is built once, and later runs need no network.
Delete it to get newer packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("NODEAGENT_VM_CACHE", HERE.parent.parent / ".cache/vm"))
ARCH = "amd64"
TRIPLET = "x86_64-linux-gnu"
UNNEEDED = (
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl",
    "usr/share/snmp",
    "usr/share/zoneinfo",
    f"usr/lib/{TRIPLET}/perl",
    f"usr/lib/{TRIPLET}/gconv",
)


def machine() -> dict[str, Any]:
    return tomllib.loads((HERE / "vm.toml").read_text())


def built(cache: Path = CACHE) -> Path:
    """The folder with ``qemu/``, ``vmlinuz``, ``root.cpio`` and ``manifest.json``; builds it if it is missing."""
    inputs = [Path(__file__), HERE / "vm.toml", HERE / "init"]
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    folder = cache / key
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as temporary:
            work = Path(temporary) / "out"
            work.mkdir()
            build(machine(), work, Path(temporary))
            work.rename(folder)
    return folder


def build(wanted: dict[str, Any], out: Path, scratch: Path) -> None:
    suites = {wanted[part]["suite"] for part in ("kernel", "qemu", "guest")}
    apt = Apt(scratch / "apt", suites)
    versions = {}

    debs = apt.closure(wanted["qemu"]["suite"], wanted["qemu"]["packages"])
    versions |= unpack(debs, out / "qemu")

    tree = scratch / "tree"
    versions |= unpack(apt.closure(wanted["guest"]["suite"], wanted["guest"]["packages"]), tree)
    image = apt.depends(wanted["kernel"]["suite"], wanted["kernel"]["package"], "linux-image-")
    versions |= unpack([apt.download(wanted["kernel"]["suite"], image)], scratch / "kernel")
    release = next((scratch / "kernel/lib/modules").iterdir()).name
    shutil.copy(scratch / f"kernel/boot/vmlinuz-{release}", out / "vmlinuz")

    modules = keep_modules(scratch / "kernel", tree, release, wanted)
    slim(tree)
    run_of(tree, "usr/bin/python3", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash",
           str(tree / "usr/lib/python3.11"), check=False)  # fmt: skip
    (tree / "etc/modules").write_text("".join(f"{name}\n" for name in wanted["kernel"]["modules"]))
    # The part of the packages' own scripts that is needed here.
    (tree / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n_lldpd:x:100:100::/run/lldpd:/bin/false\n")
    (tree / "etc/group").write_text("root:x:0:\n_lldpd:x:100:\n")
    if not (tree / "bin/sh").exists():
        (tree / "bin/sh").symlink_to("dash")
    shutil.copy(HERE / "init", tree / "init")
    (tree / "init").chmod(0o755)
    with open(out / "root.cpio", "wb") as archive:
        write_cpio(tree, archive)
    manifest = {"kernel": release, "modules": modules, "packages": dict(sorted(versions.items()))}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1))


class Apt:
    """apt with lists, cache and status of its own, and the mirror of this machine's apt."""

    def __init__(self, folder: Path, suites: Iterable[str]) -> None:
        self._folder = folder
        for name in ("lists/partial", "parts"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        mirror = self._mirror()
        (folder / "sources").write_text("".join(f"deb {mirror} {suite} main\n" for suite in sorted(suites)))
        self._options = [
            f"-oAPT::Architecture={ARCH}",
            "-oAPT::Install-Recommends=false",
            "-oAPT::Sandbox::User=",
            f"-oDir::Etc::SourceList={folder}/sources",
            f"-oDir::Etc::SourceParts={folder}/parts",
            "-oDir::Etc::Preferences=/dev/null",
            f"-oDir::Etc::PreferencesParts={folder}/parts",
            f"-oDir::State={folder}",
            f"-oDir::State::Lists={folder}/lists",
            f"-oDir::State::Status={folder}/status",
            f"-oDir::Cache={folder}",
            "-qq",
        ]
        self._run("apt-get", "update")

    @staticmethod
    def _mirror() -> str:
        """The mirror from which this machine's apt gets Debian."""
        asked = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(SITE)"]
        for line in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines():
            if line.startswith("Debian|Debian|"):
                return line.rpartition("|")[2]
        raise SystemExit("apt has no Debian archive on this machine: run apt-get update and try again")

    def closure(self, suite: str, packages: Sequence[str]) -> list[Path]:
        """Download the packages with all their dependencies."""
        folder = self._fresh()
        where = f"-oDir::Cache::Archives={folder}"
        self._run("apt-get", where, "install", "--download-only", "--yes", f"-t{suite}", *packages)
        return sorted(folder.glob("*.deb"))

    def depends(self, suite: str, package: str, prefix: str) -> str:
        for line in self._run("apt-cache", "depends", f"{package}/{suite}").splitlines():
            name = line.rpartition("Depends: ")[2].strip()
            if name.startswith(prefix) and name != package:
                return name
        raise SystemExit(f"{package} of {suite} depends on no {prefix}*")

    def download(self, suite: str, package: str) -> Path:
        """Download one package without dependencies."""
        folder = self._fresh()
        self._run("apt-get", "download", f"{package}/{suite}", cwd=folder)
        return next(folder.glob("*.deb"))

    def _fresh(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        (folder / "partial").mkdir()
        return folder

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        return subprocess.run(
            [program, *self._options, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=cwd
        ).stdout


def unpack(debs: Iterable[Path], tree: Path) -> dict[str, str]:
    """Unpack over a merged /usr; returns the versions."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (tree / name).exists():
            (tree / name).symlink_to(f"usr/{name}")
    versions = {}
    for deb in debs:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as content:
            tar = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", tree]
            subprocess.run(tar, stdin=content.stdout, check=True)
        fields = subprocess.run(
            ["dpkg-deb", "-f", deb, "Package", "Version"], check=True, capture_output=True, text=True
        ).stdout
        name, version = (line.partition(": ")[2] for line in fields.splitlines())
        versions[name] = version
    return versions


def command_of(tree: Path, program: str) -> list[str]:
    """The command for a program of an unpacked tree, with that tree's loader and libraries."""
    path = f"{tree}/usr/lib/{TRIPLET}:{tree}/usr/lib:{tree}/usr/lib/{TRIPLET}/pulseaudio"
    return [f"{tree}/usr/lib/{TRIPLET}/ld-linux-x86-64.so.2", "--library-path", path, str(tree / program)]


def run_of(tree: Path, program: str, *arguments: str, check: bool = True) -> str:
    return subprocess.run(
        [*command_of(tree, program), *arguments],
        check=check,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONHOME": str(tree / "usr")},
    ).stdout


def keep_modules(kernel: Path, tree: Path, release: str, wanted: dict[str, Any]) -> list[str]:
    """Copy the modules of vm.toml and their dependencies into the root; returns their names."""
    (scripts := kernel / "bin").mkdir(exist_ok=True)
    for name in ("depmod", "modprobe"):  # kmod acts by the name it is called with
        (scripts / name).unlink(missing_ok=True)
        (scripts / name).symlink_to(tree.absolute() / "usr/bin/kmod")
    depmod = [*command_of(tree, "usr/bin/kmod")[:-1], str(scripts / "depmod")]
    subprocess.run([*depmod, "-b", str(kernel), release], check=True)
    kept: list[str] = []
    for name in (*wanted["kernel"]["modules"], *wanted["kernel"]["on_demand"], *wanted["nic"]["modules"]):
        shown = subprocess.run(
            [*depmod[:-1], str(scripts / "modprobe"), "-d", str(kernel), "-S", release, "--show-depends", name],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for line in shown.splitlines():
            if line.startswith("insmod "):
                source = Path(line.split()[1])
                goal = tree / "usr" / source.resolve().relative_to((kernel / "usr").resolve())
                if not goal.exists():
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, goal)
                    kept.append(source.name.partition(".")[0])
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(kernel / f"lib/modules/{release}/{name}", tree / f"lib/modules/{release}/{name}")
    subprocess.run([*depmod, "-b", str(tree), release], check=True)
    return kept


def slim(tree: Path) -> None:
    for name in UNNEEDED:
        shutil.rmtree(tree / name, ignore_errors=True)


def write_cpio(tree: Path, archive: BinaryIO, under: str = "") -> None:
    """Write the format that the kernel unpacks ("newc"); several archives may follow each other.

    All files belong to root. ``under`` is the folder, with its slash, that the tree is unpacked into.
    """

    def entry(name: str, mode: int, data: bytes, number: int) -> None:
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = "070701" + "".join(f"{field:08x}" for field in fields)
        archive.write(padded(head.encode() + name.encode() + b"\0"))
        archive.write(padded(data))

    def padded(data: bytes) -> bytes:
        return data + b"\0" * (-len(data) % 4)

    if under:
        entry(under.rstrip("/"), 0o40755, b"", 0)
    for number, (relative, path) in enumerate(walk(tree), start=1):
        name = under + relative
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            entry(name, mode, os.readlink(path).encode(), number)
        elif stat.S_ISREG(mode):
            entry(name, mode, path.read_bytes(), number)
        elif stat.S_ISDIR(mode):
            entry(name, mode, b"", number)
    entry("TRAILER!!!", 0, b"", 0)


def walk(tree: Path) -> Iterator[tuple[str, Path]]:
    """Parents before their children, in a fixed order."""
    for path in sorted(tree.rglob("*")):
        yield str(path.relative_to(tree)), path


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the machine of vm.toml; prints its folder.")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(default: %(default)s)")
    print(built(parser.parse_args().cache))
    return 0


if __name__ == "__main__":
    sys.exit(main())
