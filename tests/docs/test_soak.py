"""The soak decides from its figures: what grows past its bound fails, what is equal or shrinks does not.

``.ci/run`` runs the churn itself for a minute: it needs processes, namespaces and time at rest.
"""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "hack"))

import soak

from tests.support.findings import one_item

REST = {"agent": {"rss_mib": 60.0, "threads": 16.0, "files": 30.0, "tasks": 46.0}}


@one_item("figure", soak.BOUNDS)
def test_growth_past_its_bound_is_a_fault_that_names_the_daemon_and_the_figure(figure: str) -> None:
    bound = soak.BOUNDS[figure]
    grown = {"agent": {**REST["agent"], figure: REST["agent"][figure] + bound}}
    assert not soak.growth(REST, grown)
    grown["agent"][figure] += 1
    (fault,) = soak.growth(REST, grown)
    assert fault.startswith(f"agent: {figure} grew from ")
    assert not soak.growth(grown, REST)


def test_the_slope_is_that_of_a_straight_line() -> None:
    samples = [(60.0 * minute, {"agent": {"rss_mib": 50.0 + minute}}) for minute in range(5)]
    assert soak.slope(samples, "agent") == pytest.approx(60.0)
    assert soak.slope(samples[:2], "agent") is None


def test_what_grew_is_named_by_its_line() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        kept = [bytes(1000) for _ in range(200)]
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    first, *_, last = soak.grown(before, after)
    assert "test_soak.py" in first
    assert float(first.split()[0]) >= len(kept) * 1000 / 1024
    assert last.endswith("KiB in all")


def test_the_help_explains_the_result() -> None:
    done = subprocess.run(
        [sys.executable, soak.__file__, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "exit code 1" in done.stdout
