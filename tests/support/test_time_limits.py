"""A test that hangs fails at its limit and shows where it hangs; its worker runs the other tests.

The inner runs have one worker of pytest-xdist. Tests hang in a thread, in a coroutine, in an example of Hypothesis, in
a child that holds the pipes of the run, in a task that takes the first signal for its own, and in C.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

HANGING = """
import asyncio, subprocess, threading
import pytest
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

async def test_task():
    async def busy():
        while True:
            await asyncio.sleep(0)
    await asyncio.gather(busy(), asyncio.Event().wait())

@pytest.fixture
def fixture():
    yield
    print("the fixture ended")

def test_with_a_fixture(fixture):
    threading.Event().wait()

def test_done():
    pass
"""
IN_TEARDOWN = """
import asyncio, threading
import pytest

@pytest.fixture
def other():
    yield
    print("the other fixture ended")

@pytest.fixture
def blocked(other):
    yield
    threading.Event().wait()

@pytest.fixture
async def waiting(other):
    yield
    await asyncio.Event().wait()

@pytest.fixture
async def thread(other):
    yield
    await asyncio.to_thread(threading.Event().wait, 20)

def test_blocked(blocked):
    pass

async def test_waiting(waiting):
    pass

async def test_thread(thread):
    pass

def test_failed_and_blocked(blocked):
    assert False

async def test_failed_and_waiting(waiting):
    assert False

def test_done():
    pass
"""
IN_REPORT = """
import threading

def test_reported():
    threading.Event().wait()

def test_done():
    pass
"""
SLOW_REPORTS = """
import time, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo is not None:
        time.sleep(4.5)
"""
IN_C = """
import ctypes, signal

def test_in_c():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.CDLL(None).pause()

def test_done():
    pass
"""


WITHOUT_LINES = """
def endless():
    while True:
        pass

def test_endless():
    type(endless)(endless.__code__.replace(co_linetable=b""), {})()

def test_done():
    pass
"""
"""The interpreter gives no line for some instructions; here for all of a function."""


def run(folder: Path, tests: str, hooks: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(
        "from tests.support import time_limits\n"
        "time_limits.TEARDOWN_S = 2\n"
        "time_limits.UNINTERRUPTED_S = 4\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(time_limits)\n" + hooks
    )
    (folder / "test_hanging.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", f"--rootdir={folder}", "--timeout=1",
         "-p", "no:cacheprovider", "-n", "1", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip


def test_each_hanging_test_fails_and_its_worker_runs_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING)
    assert "6 failed, 1 passed" in done.stdout, done.stdout
    assert "crashed" not in done.stdout
    for name in ("blocked", "waiting", "example", "child", "task", "with_a_fixture"):
        assert f"test_{name} was not done after 1 s" in done.stderr
        assert f"in test_{name}\n" in done.stderr, "the frame of the test"
    assert done.stdout.count("LimitReached: not done after 1 s") >= 6
    assert "the fixture ended" in done.stdout
    assert "# the line of the task" in done.stderr


def test_a_fixture_that_hangs_at_its_end_fails_its_test_and_no_other(tmp_path: Path) -> None:
    """A test that failed before has the time limit too, and the other fixtures of each test end."""
    done = run(tmp_path, IN_TEARDOWN)
    assert "2 failed, 4 passed, 5 errors" in done.stdout, done.stdout
    assert "crashed" not in done.stdout
    assert "ERROR at teardown of test_done" not in done.stdout
    assert done.stdout.count("the other fixture ended") == 5


def test_the_report_of_a_hang_has_time_of_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, IN_REPORT, SLOW_REPORTS)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "crashed" not in done.stdout


def test_a_hang_at_an_instruction_of_no_line_ends_no_worker(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_LINES)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "INTERNALERROR" not in done.stdout


def test_a_test_that_no_signal_interrupts_ends_with_its_worker(tmp_path: Path) -> None:
    done = run(tmp_path, IN_C)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "crashed while running 'test_hanging.py::test_in_c'" in done.stdout
    assert "test_in_c was not done after 1 s" in done.stderr
