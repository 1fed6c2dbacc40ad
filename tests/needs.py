"""What a test needs of the machine, said where the test is: ``pytestmark = pytest.mark.needs("root", "lldpd")``.

Without it the test is skipped, and the reason names what is missing. ``NODEAGENT_TESTS_REQUIRE`` lists (with
commas or spaces) what must be there: a skip for one of those is a failure.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import threading

import pytest

_CLONE_NEWNET = 0x4000_0000


@functools.cache
def missing(tool: str) -> str | None:
    """Why the tool cannot be used; ``None`` where it can. ``root`` means that namespaces can be made."""
    if tool == "root":
        return None if _can_unshare() else "root, who may make network namespaces"
    return None if shutil.which(tool) else tool


def need(*tools: str) -> None:
    """Skip the running test, or fail it where a missing tool is required."""
    required = os.environ.get("NODEAGENT_TESTS_REQUIRE", "").replace(",", " ").split()
    for tool in tools:
        why = missing(tool)
        if why and tool in required:
            pytest.fail(f"needs {why}, and NODEAGENT_TESTS_REQUIRE lists {tool}", pytrace=False)
        if why:
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
