"""Tools that a test needs, declared beside the test: ``pytestmark = pytest.mark.needs("root", "lldpd")``.

A test whose tool is missing is skipped, and the reason names the tool. ``NODEAGENT_TESTS_REQUIRE`` lists required
tools, separated by commas or spaces: a skip for a required tool is a failure. ``.ci/run`` sets it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import sysconfig
import threading
from pathlib import Path
from typing import NoReturn

import pytest

UMAD2SIM = Path(f"/usr/lib/{os.uname().machine}-linux-gnu/umad2sim/libumad2sim.so")
"""Debian's place for the library that gives a program a port of ibsim."""
_CLONE_NEWNET = 0x4000_0000
_MODULES = ("pynvml", "scapy", "kubernetes_validate", "cel_expr_python", "helm_python", "kubernetes", "shtab")


@functools.cache
def missing(tool: str) -> str | None:
    """Return why the tool cannot be used, or ``None``. ``root`` means that the test can create namespaces."""
    if tool == "root":
        return None if _can_unshare() else "root, who may make network namespaces"
    if tool == "tun":
        return None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun"
    if tool == "fuse":
        return None if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse"
    if tool in _MODULES:
        return None if importlib.util.find_spec(tool) else f"the Python module {tool}"
    if tool == "umad2sim":
        return None if UMAD2SIM.exists() else f"{UMAD2SIM} (Debian: ibsim-utils)"
    return None if which(tool) else tool


def which(tool: str) -> str | None:
    """Find a program; programs of the development packages come first."""
    return shutil.which(tool, path=sysconfig.get_path("scripts")) or shutil.which(tool)


def need(*tools: str) -> None:
    """Skip the running test, or fail it if the missing tool is required."""
    for tool in tools:
        if why := missing(tool):
            lack(tool, why)


def lack(tool: str, why: str) -> NoReturn:
    """Skip or fail the running test for a tool that it found unusable."""
    if tool in os.environ.get("NODEAGENT_TESTS_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"needs {why}, and NODEAGENT_TESTS_REQUIRE lists {tool}", pytrace=False)
    pytest.skip(f"needs {why}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)


def _can_unshare() -> bool:
    said = []
    libc = ctypes.CDLL(None, use_errno=True)
    thread = threading.Thread(target=lambda: said.append(libc.unshare(_CLONE_NEWNET)))
    thread.start()
    thread.join()
    return os.geteuid() == 0 and said == [0]
