"""Run an async scenario of a test module in a process with a mount namespace of its own: mounts end with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.manifests import ROOT

_RUN = "import asyncio; from {module} import {name} as scenario; asyncio.run(scenario())"


def run_in_own_mounts(scenario: Callable[[], Awaitable[None]], timeout_s: float = 120) -> None:
    """Fail with the output of the scenario if it raises. ``scenario`` is a function at the top of its module."""
    program = _RUN.format(module=scenario.__module__, name=getattr(scenario, "__name__", ""))
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def tmpfs(folder: Path, options: str = "rw") -> Iterator[None]:
    """Mount a tmpfs at the folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)
