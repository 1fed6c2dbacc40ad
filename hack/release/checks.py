"""The checks before a release. Each returns its complaints; a complaint names the remedy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hack.release import notices, versions
from hack.release.versions import ROOT, ReleaseError, git

BASE = ROOT / "hack/base-image.txt"
MAINTAINERS = ROOT / ".github/MAINTAINERS.md"
NOBODY = "to be filled in"
PIN = "make release ARGS=base, on a machine that reaches the registry of the base, and commit the file"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The name of an architecture for images, and for wheels."""
GLIBC = 36
"""The minor version of glibc in Debian 12, the base of the image."""


NO_WHEEL = ("No matching distribution", "DO NOT MATCH THE HASHES")
"""The answers of pip where no wheel fits, or none of those whose hashes the lock has."""


def all_complaints(base: str | None, architectures: tuple[str, ...] = tuple(ARCHITECTURES)) -> list[str]:
    version = versions.current()
    tags = git("tag", "--points-at", "HEAD").split()
    found = versions.complaints(version, (ROOT / "CHANGELOG.md").read_text(), tags)
    if changed := git("status", "--porcelain"):
        found.append(
            f"the working tree has changes, and a release is a commit: commit or stash them\n{changed}"
        )
    found += base_complaints(base or base_image(BASE.read_text()))
    found += maintainer_complaints(MAINTAINERS.read_text())
    if notices.notices(notices.LOCK.read_text()) != notices.NOTICES.read_text():
        found.append(
            f"{notices.NOTICES.name} is not that of the lock: make release ARGS=notices, and commit it"
        )
    return found + wheel_complaints(notices.pins(notices.LOCK.read_text()), architectures, pip_has_wheels)


def maintainer_complaints(text: str) -> list[str]:
    """A release needs somebody who answers for it."""
    if NOBODY not in text:
        return []
    return [f"{MAINTAINERS.relative_to(ROOT)} names nobody: enter who answers reports of vulnerabilities"]


def base_image(text: str) -> str:
    """The name of the base, with its digest once a release has been made."""
    (name,) = (line for line in text.splitlines() if line and not line.startswith("#"))
    return name


def base_complaints(base: str) -> list[str]:
    digest = base.partition("@sha256:")[2]
    if len(digest) == 64 and not set(digest) - set("0123456789abcdef"):
        return []
    return [f"{BASE.relative_to(ROOT)} has no digest of {base.partition('@')[0]}: {PIN}"]


def pinned(text: str, digest: str) -> str:
    """The text of the file with this digest."""
    old = base_image(text)
    return text.replace(old, f"{old.partition('@')[0]}@{digest}")


def wheel_complaints(
    pins: Mapping[str, str], architectures: tuple[str, ...], has_wheels: Callable[[list[str], str], bool]
) -> list[str]:
    """Name the packages without a wheel for an architecture: at once if all have one, else one by one."""
    found = []
    for architecture in architectures:
        if has_wheels(list(pins), architecture):
            continue
        lacking = [
            f"{name} {version}" for name, version in pins.items() if not has_wheels([name], architecture)
        ]
        found.append(
            f"no wheel for Linux on {architecture}, Python 3.11: {', '.join(lacking) or 'of some package'}. "
            "Choose a version that has one in pyproject.toml, then make lock"
        )
    return found


def pip_has_wheels(names: list[str], architecture: str) -> bool:
    """Whether pip finds wheels with the hashes of the lock; those that it fetches are thrown away."""
    lock = notices.LOCK.read_text()
    entries = [entry for entry in lock.split("\n") if entry]
    wanted, keep = [], False
    for line in entries:
        if not line.startswith(" "):
            keep = line.partition("==")[0] in names
        if keep:
            wanted.append(line)
    machine = ARCHITECTURES[architecture]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lock.txt").write_text("\n".join(wanted) + "\n")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
                *("--require-hashes", "--python-version", "3.11", "--implementation", "cp"),
                *(
                    word
                    for platform in (*platforms, f"manylinux2014_{machine}")
                    for word in ("--platform", platform)
                ),
                *("--dest", folder, "--requirement", str(Path(folder) / "lock.txt")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode and not any(answer in done.stderr for answer in NO_WHEEL):
        raise ReleaseError(f"pip could not look for wheels of {', '.join(names)}: {done.stderr.strip()}")
    return done.returncode == 0
