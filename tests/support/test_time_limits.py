"""A test that hangs ends at its limit, is named as failed, and shows where it hangs.

The inner run has two workers of pytest-xdist. Its tests hang in a thread, in a coroutine, in an example of Hypothesis,
and in a child that holds the pipes of the run.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HANGING = """
import asyncio, subprocess, threading
from hypothesis import given, strategies

def test_blocked():
    threading.Event().wait()

async def test_waiting():
    await asyncio.Event().wait()  # the line of the task

@given(strategies.integers())
def test_example(number):
    threading.Event().wait()

def test_child():
    subprocess.run(["sleep", "600"])

def test_done():
    pass
"""


def test_each_hanging_test_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.time_limits']\n")
    (tmp_path / "test_hanging.py").write_text(HANGING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", f"--rootdir={tmp_path}", "--timeout=2",
         "-p", "no:cacheprovider", "-n", "2", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "4 failed, 1 passed" in done.stdout, done.stdout
    for name in ("test_blocked", "test_waiting", "test_example", "test_child"):
        assert f"crashed while running 'test_hanging.py::{name}'" in done.stdout
        assert f"{name} was not done after 2 s" in done.stderr
        assert f"in {name}\n" in done.stderr, "the frame of the test"
    assert "# the line of the task" in done.stderr
