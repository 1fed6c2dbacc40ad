"""The longest tests begin first: each part of a run with several workers begins with its share of them."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.longest_first import dealt

ROOT = Path(__file__).parents[2]

TESTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.0, 0.0, 180.0, 600.0])), max_size=60)


def parts(order: list[int], workers: int) -> list[list[int]]:
    """The parts that worksteal makes."""
    found = []
    for left in range(workers, 0, -1):
        size = len(order) // left
        found.append(order[:size])
        order = order[size:]
    return found


@given(TESTS, st.integers(1, 6))
def test_each_test_has_one_place_and_equal_files_are_shared_out(
    tests: list[tuple[int, float]], workers: int
) -> None:
    listed = [(number, f"file-{file}", weight) for number, (file, weight) in enumerate(sorted(tests))]
    order = dealt(listed, workers)
    assert sorted(order) == [*range(len(tests))]
    quick = [number for number in order if not listed[number][2]]
    assert quick == sorted(quick), "quick tests keep their order"


def test_each_part_begins_with_its_share_and_the_longest_file() -> None:
    slow = [
        (name, f"slow-{name[0]}", 600.0 if name[0] == "d" else 180.0)
        for name in ("a1", "a2", "b1", "c1", "d1")
    ]
    quick = [(f"q{number}", "quick", 0.0) for number in range(15)]
    order = dealt([*quick[:7], *slow, *quick[7:]], 2)
    first, second = parts(order, 2)
    assert first[:1] == ["d1"]
    assert second[:4] == ["a1", "a2", "b1", "c1"]
    assert [*first[1:], *second[4:]] == [one[0] for one in quick]


@pytest.mark.slow
def test_each_worker_runs_its_slow_tests_first(tmp_path: Path) -> None:
    for name in "ab":
        quick = "".join(f"def test_quick_{number}(): note('quick')\n" for number in range(8))
        (tmp_path / f"test_{name}.py").write_text(
            "import os, pathlib, pytest\n\n"
            "def note(what):\n"
            f"    with open({str(tmp_path)!r} + '/ran', 'a') as file:\n"
            "        file.write(os.environ['PYTEST_XDIST_WORKER'] + ' ' + what + '\\n')\n\n"
            f"{quick}"
            "@pytest.mark.slow\ndef test_slow(): note('slow')\n"
        )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.longest_first", "-n", "2", "--dist", "worksteal",
         "-c", tmp_path / "pytest.ini", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ran: dict[str, list[str]] = defaultdict(list)
    for line in (tmp_path / "ran").read_text().splitlines():
        worker, what = line.split()
        ran[worker].append(what)
    assert sum(map(len, ran.values())) == 18
    assert {found[0] for found in ran.values()} == {"slow"}
    assert sum(found.count("slow") for found in ran.values()) == 2
