"""Fixtures for every test: missing tools, limits and virtual time, temporary files, and the profiles of Hypothesis.

Examples have no deadline, because test machines are shared. The profile ``ci`` is the default: it repeats the same
examples, so that a test fails only because of a change. ``quick`` has few of them. ``search`` (`make search`) tries
many new ones and keeps those that fail in ``.hypothesis``.
"""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import golden, longest_first, needs, time_limits
from tests.support.features import with_and_without_features
from tests.support.virtual_time import pytest_asyncio_loop_factories, virtual_time

__all__ = ["pytest_asyncio_loop_factories", "virtual_time", "with_and_without_features"]

# A simulated machine is thousands of small files, which are slow to create on a disk. A container's default is 64 MiB.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("TMPDIR", "/dev/shm")
    tempfile.tempdir = None  # read TMPDIR again

settings.register_profile(
    "search", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=2000
)
settings.register_profile(
    "ci", settings.get_profile("search"), derandomize=True, database=None, max_examples=60
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=10)
settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell SIGINT is ignored, and children that a test interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _of_this_loop(record: logging.LogRecord) -> bool:
    """gRPC has one poller for all loops of a process. It reports in a test what ends late in the closed loop of an
    earlier one; the agent has one loop."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed")


logging.getLogger("asyncio").addFilter(_of_this_loop)


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (golden, longest_first, needs, time_limits):
        config.pluginmanager.register(plugin)


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """Restore the level and handlers of the root logger, which a verb sets for its whole process."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _nothing_exempt_from_garbage_collection() -> Iterator[None]:
    """Agents and controllers exempt their objects for the life of a process. Here they end with their test."""
    yield
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is not UTF-8 in the captured output and log: pytest-xdist ends the whole run at such a text."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
