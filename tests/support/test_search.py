"""``make search`` tries new examples for its time, goes on after a failure, and ends with the smallest examples."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

PROFILES = (
    "from hypothesis import settings\nsettings.register_profile('search', deadline=None, print_blob=True)\n"
)
HEAD = "import time\nfrom hypothesis import given, strategies as st\n"
GOOD = "@given(st.integers())\ndef test_good(number): assert number == number\n"
SLEEPS = "@given(st.integers())\ndef test_sleeps(number): time.sleep(0.7)\n"
WRONG = "@given(st.integers(0))\ndef test_wrong(number): assert number < 7\n"
DIES = "import os\n@given(st.integers(0))\ndef test_dies(number): os._exit(3)\n"
HANGS = "@given(st.integers(0))\ndef test_hangs(number): time.sleep(600)\n"


def search(
    folder: Path, tests: str, minutes: float = 0.7, ends_at: str = "", grace_s: int = 100
) -> tuple[int, str]:
    """The exit code and what it says, interrupted at a line that begins so."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "conftest.py").write_text(PROFILES)
    (folder / "test_some.py").write_text(HEAD + tests)
    (folder / "test_other.py").write_text("def test_without_examples(): assert 0\n")
    command = "import sys; sys.path.insert(0, 'hack'); import search; "
    command += f"search.GRACE_S = {grace_s}; sys.exit(search.main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", command, f"--minutes={minutes}", "-n2", f"--config-file={folder}/pytest.ini",
         f"--rootdir={folder}", folder],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        said = []
        for line in running.stdout:
            said.append(line)
            if ends_at and line.startswith(ends_at):
                running.send_signal(signal.SIGINT)
    return running.returncode, "".join(said)


def test_a_failure_stops_nothing_and_its_smallest_example_is_at_the_end(tmp_path: Path) -> None:
    code, said = search(tmp_path, GOOD + WRONG + DIES, minutes=10, ends_at="round 3")
    assert code == 1, said
    assert said.count("of 3: FAILED test_some.py::test_wrong") == 1, "a known one is left out"
    last = said.partition("\nFAILED: test_some.py::test_dies\n")[2]
    assert "\nFAILED: test_some.py::test_wrong\n" in last
    assert "number=7," in last
    assert last.endswith("\n1 of 3 property tests passed, 2 failed\n")


def test_a_search_without_a_failure_ends_after_its_time(tmp_path: Path) -> None:
    code, said = search(tmp_path, SLEEPS)
    assert code == 0, said
    assert said.endswith("\n1 of 1 property tests passed, 0 failed\n")


def test_a_test_that_does_not_end_fails_the_search(tmp_path: Path) -> None:
    code, said = search(tmp_path, GOOD + HANGS, grace_s=2)
    assert code == 1, said
    assert "\nFAILED: test_some.py::test_hangs\n    not done " in said


def test_a_search_that_cannot_begin_or_is_interrupted_is_no_success(tmp_path: Path) -> None:
    assert search(tmp_path, "import absent\n" + GOOD)[0] == 2
    assert search(tmp_path, GOOD, minutes=10, ends_at="round 2")[0] == 2
    assert search(tmp_path, "")[0] == 2
