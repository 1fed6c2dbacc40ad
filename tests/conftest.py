"""What holds for every test: tools that are missing, where files go, and how Hypothesis looks for examples.

No example has a deadline, for the machines that run this are shared and a pause proves nothing. On a
person's machine every run looks at new examples; ``--hypothesis-profile=ci`` looks at the same ones each
time, so that a gate fails for what has changed and for nothing else.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]

# A simulated machine is thousands of small files, which a disk makes slowly.
if Path("/dev/shm").is_dir():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

settings.register_profile(
    "explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("explore")


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """A verb sets the level and the handlers for its process; the next test is another process to us."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
