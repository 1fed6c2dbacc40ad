"""``hack/run_tests.py`` names failures at once, runs them again alone, and passes only if each one passes then."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

FLAKY = """
import pathlib

def test_flaky():
    runs = pathlib.Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) > FAILURES

def test_good():
    pass
"""


def run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, ROOT / "hack/run_tests.py", "-n", "2", "-c", folder / "pytest.ini", folder],
        cwd=folder, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("failures", [1, 2])
def test_a_test_that_passes_alone_is_named_as_flaky_and_the_run_passes(tmp_path: Path, failures: int) -> None:
    done = run(tmp_path, FLAKY.replace("FAILURES", str(failures)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 2: FAILED test_some.py::test_flaky: assert 1 >" in done.stdout.replace("AssertionError: ", "")
    assert done.stdout.count("again, alone") == failures
    assert done.stdout.endswith("flaky: test_some.py::test_flaky\n2 passed, 0 failed, 0 skipped\n")


def test_a_test_that_fails_three_times_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, FLAKY.replace("FAILURES", "3"))
    assert done.returncode == 1
    assert done.stdout.endswith("FAILED: test_some.py::test_flaky\n1 passed, 1 failed, 0 skipped\n")


def test_a_golden_file_that_differs_is_not_compared_again(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "class GoldenDiffersError(AssertionError): pass\n"
        "def test_golden(): raise GoldenDiffersError('page.md differs')\n" + FLAKY.replace("FAILURES", "1"),
    )
    assert done.returncode == 1
    assert done.stdout.count("again, alone") == 1
    *_, first, second, last = done.stdout.splitlines()
    # Two workers: whichever test ended first is told first.
    assert {first, second} == {"FAILED: test_some.py::test_golden", "flaky: test_some.py::test_flaky"}, (
        done.stdout
    )
    assert last == "2 passed, 1 failed, 0 skipped"


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    done = run(tmp_path, "".join(f"def test_{number}(): assert 0\n" for number in range(11)))
    assert done.returncode == 1
    assert "again, alone" not in done.stdout
    assert done.stdout.endswith("0 passed, 11 failed, 0 skipped\n")


def test_a_file_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "import absent_module\n")
    assert done.returncode == 1
    assert "FAILED: test_some.py\n" in done.stdout


def test_a_worker_that_dies_is_a_failure_with_its_test(tmp_path: Path) -> None:
    done = run(tmp_path, "import os\ndef test_dies(): os._exit(3)\ndef test_good(): pass\n")
    assert done.returncode == 1
    assert done.stdout.endswith("FAILED: test_some.py::test_dies\n1 passed, 1 failed, 0 skipped\n")


def test_the_last_lines_name_each_skipped_test_with_its_reason(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import pytest\n"
        "def test_shell(): pytest.skip('needs zsh')\n"
        "@pytest.mark.skip(reason='needs zsh')\ndef test_marked(): pass\n"
        "def test_index(): pytest.skip('needs a package index')\n",
    )
    assert done.returncode == 0
    assert done.stdout.endswith(
        "skipped: needs a package index: test_some.py::test_index\n"
        "skipped: needs zsh: test_some.py::test_marked, test_some.py::test_shell\n"
        "0 passed, 0 failed, 3 skipped\n"
    ), done.stdout


MAKE = """#!/bin/sh
case "$*" in
"--silent bench ARGS=--quick") echo "a benchmark hangs"; exit 7 ;;
"--silent test "*) ;;
*) exit 0 ;;
esac
echo 'skipped: needs zsh: test_some.py::test_shell'
[ -z "$GOOD" ] || { echo '2 passed, 0 failed, 1 skipped'; exit 0; }
echo 'FAILED: test_some.py::test_bad'
echo '1 passed, 1 failed, 1 skipped'
echo 'make: *** [Makefile:21: test] Error 1' >&2
exit 2
"""


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    (tools := tmp_path / "bin").mkdir()
    for name, text in {
        "make": MAKE,
        "dpkg-query": "#!/bin/sh\n",
        "nvidia-cuda-mps-control": "#!/bin/sh\n",
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run_gate(**more: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "NODEAGENT_CI_VM": "no"} | more
        return subprocess.run(
            [tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, timeout=30, check=False
        )

    return run_gate


def test_the_last_lines_of_the_gate_name_what_was_skipped_and_what_failed_and_count_the_tests(
    gate: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """make itself prints a line after those of the tests."""
    done = gate(GOOD="")
    assert done.returncode == 2, done.stderr
    assert done.stdout.endswith(
        "skipped: needs zsh: test_some.py::test_shell\n"
        "FAILED: test_some.py::test_bad\n1 passed, 1 failed, 1 skipped\n"
    ), done.stdout


def test_a_benchmark_that_does_not_finish_fails_the_gate(
    gate: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = gate(GOOD="yes")
    assert done.returncode == 7, done.stderr
    assert "a benchmark hangs\nmake bench ARGS=--quick failed.\n" in done.stdout
    assert done.stdout.endswith(
        "skipped: needs zsh: test_some.py::test_shell\n2 passed, 0 failed, 1 skipped\n"
    )
