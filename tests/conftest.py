"""Fixtures for every test: missing tools, time limits, temporary files, and the profiles of Hypothesis.

Examples have no deadline, because test machines are shared. On a developer's machine every run tries new examples.
``--hypothesis-profile=ci`` repeats the same examples, so that CI fails only because of a change.
"""

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs import pytest_runtest_setup
from tests.support.time_limits import pytest_timeout_set_timer

__all__ = ["pytest_runtest_setup", "pytest_timeout_set_timer"]

# A simulated machine is thousands of small files, which are slow to create on a disk. A container's default is 64 MiB.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("TMPDIR", "/dev/shm")
    tempfile.tempdir = None  # read TMPDIR again

settings.register_profile(
    "explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("explore")


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
