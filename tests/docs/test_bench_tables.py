"""The tables over several runs and over several sizes: medians that hold, and costs that do not grow too steeply."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "hack"))

import bench_halls
import bench_summary

from tests.support.findings import one_item

AROUND = {
    "commit": "abc", "python": "3.11.7", "kernel": "6.1", "machine": "x86_64", "cpus": 2, "load_1min": 0.1,
    "at": "2026-11-30T03:00:00Z",
}  # fmt: skip


def figure(name: str, p50: float, n: int = 25) -> dict[str, Any]:
    return {"group": "Start", "name": name, "unit": "ms", "n": n, "p50": p50, "p99": 2 * p50}


def run(p50: float, ratio: float, **around: object) -> dict[str, Any]:
    goal = {"name": "start", "floor": "bare start", "most": {"p50": 1.6}, "plus": False}
    return {
        "circumstances": AROUND | around,
        "quick": False,
        "figures": [figure("registered", p50), figure("  of that", 1.0), figure("  of that", 3.0)],
        "ratios": [{"goal": goal, "statistic": "p50", "value": ratio, "met": ratio <= 1.6}],
    }


def test_the_table_has_the_median_of_the_runs_and_how_often_a_goal_is_met() -> None:
    text = bench_summary.summary([run(100, 1.5), run(300, 2.5, load_1min=4.0), run(120, 1.55)])
    assert "| registered | 25 | ms | 120 (100 to 300) | 240 (200 to 600) |" in text
    assert "| start | p50 | 1.55 (1.50 to 2.50) | 1.6 | 2 of 3 |" in text
    assert "3 whole runs" in text
    assert "commit abc" in text
    assert "load 0.1 to 4.0" in text


def test_two_rows_of_one_name_stay_apart() -> None:
    text = bench_summary.summary([run(1, 1), run(1, 1)])
    assert "| of that | 25 | ms | 1.00 (1.00 to 1.00)" in text
    assert "| of that | 25 | ms | 3.00 (3.00 to 3.00)" in text


def test_a_figure_that_some_runs_lack_says_in_how_many_it_is() -> None:
    short = run(1, 1)
    del short["figures"][2]
    assert "| of that, in 1 runs |" in bench_summary.summary([run(1, 1), short])


@one_item("name", bench_summary.SAME)
def test_runs_in_other_circumstances_are_refused(name: str) -> None:
    with pytest.raises(bench_summary.SummaryError, match=f"differ in their {name}"):
        bench_summary.summary([run(1, 1), run(1, 1, **{name: "other"})])


def test_a_quick_run_beside_a_whole_one_is_refused() -> None:
    quick = copy.deepcopy(run(1, 1)) | {"quick": True}
    with pytest.raises(bench_summary.SummaryError, match="--quick"):
        bench_summary.summary([run(1, 1), quick])
    assert "not to quote" in bench_summary.summary([quick])


@one_item("other", [{}, [], {"circumstances": AROUND, "figures": []}])
def test_a_file_of_something_else_is_refused(other: Any) -> None:
    with pytest.raises(bench_summary.SummaryError, match=r"no result of bench\.py"):
        bench_summary.summary([run(1, 1), other])


def test_runs_that_were_made_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-1.json").write_text("{}")
    made: list[list[str]] = []

    def bench(command: list[str], **_how: object) -> None:
        made.append(command)
        Path(command[-1]).write_text("{}")

    monkeypatch.setattr(bench_summary.subprocess, "run", bench)
    files = bench_summary.make(2, tmp_path, ["--only", "idle"])
    assert [file.name for file in files] == ["run-1.json", "run-2.json"]
    assert all(file.exists() for file in files)
    assert [command[2:4] for command in made] == [["--only", "idle"]]


@one_item("power", (1.0, 1.5, 2.0))
def test_the_slope_is_the_exponent(power: float) -> None:
    sizes = (1_000, 10_000, 100_000)
    assert bench_halls.slope(sizes, [size**power for size in sizes]) == pytest.approx(power)
    assert 1.0 < bench_halls.n_log_n(sizes) < 1.2


SIZES = (2048, 4096)
"""Large enough for a part that grows with the square: the jobs times the leaf groups were a tenth of all calls here."""
OWN_PROCESS = {name for name in bench_halls.ROWS if name.endswith("more than with one unit")}


def calls(work: Callable[[], object]) -> int:
    """The number of calls, of functions in Python and in C."""
    count = 0

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@one_item("name", sorted(bench_halls.ROWS.keys() - OWN_PROCESS))
def test_no_work_of_the_controller_is_steeper_than_n_log_n(name: str) -> None:
    """Counted in calls, which no load changes; ``make bench-halls`` measures the time."""
    found = bench_halls.slope(SIZES, [calls(bench_halls.ROWS[name](size)) for size in SIZES])
    assert found <= bench_halls.n_log_n(SIZES) + 0.02


def test_a_square_is_found() -> None:
    """The test above would see it."""

    def pairs(size: int) -> int:
        return calls(lambda: [len((one, other)) for one in range(size) for other in range(size)])

    assert bench_halls.slope((16, 32, 64), [pairs(size) for size in (16, 32, 64)]) > 1.9
