"""Prepare the guest's files: both wheels with their dependencies, installed for the guest's Python, and a driver.

    python hack/vm/stage.py DRIVER PLAN.JSON SHARE

``DRIVER`` is a folder of Python files, ``guest.py`` among them, which the guest runs.
``SHARE/agent`` is the installed agent with the laboratory, whose kubelet the guest runs; ``SHARE/deps`` are the pinned
dependencies, cached by the hash of their list. pip installs both for the Python of vm.toml, not for the one here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from build import CACHE, machine

REPOSITORY = Path(__file__).parent.parent.parent
REQUIREMENTS = REPOSITORY / "hack/requirements-run.txt"


def stage(driver: Path, plan: str, share: Path, cache: Path = CACHE) -> None:
    """Needs the environment of the project's development requirements (hatchling, pip)."""
    python = machine()["guest"]["python"]
    share.mkdir(parents=True)
    shutil.copytree(dependencies(python, cache), share / "deps", copy_function=link_or_copy)
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        for project in (REPOSITORY, REPOSITORY / "hack/lab"):
            subprocess.run(build, check=True, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        install(python, share / "agent", "--no-deps", *map(str, Path(folder).glob("*.whl")))
    for file in driver.glob("*.py"):
        shutil.copy(file, share)
    (share / "plan.json").write_text(plan)


def link_or_copy(source: str, goal: str) -> None:
    """A hard link is fast, but needs both paths on one file system."""
    try:
        os.link(source, goal)
    except OSError:
        shutil.copy2(source, goal)


def dependencies(python: str, cache: Path) -> Path:
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + python.encode()).hexdigest()[:16]
    folder = cache / f"deps-{key}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            made = Path(temporary) / "deps"
            install(python, made, "--require-hashes", "-r", str(REQUIREMENTS))
            made.rename(folder)
    return folder


def install(python: str, target: Path, *what: str) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--target", str(target), "--python-version", python, "--implementation", "cp",
            "--only-binary=:all:", *what,
        ],
        check=True,
    )  # fmt: skip


def main() -> int:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    driver, plan, share = map(Path, sys.argv[1:])
    stage(driver, plan.read_text(), share)
    return 0


if __name__ == "__main__":
    sys.exit(main())
