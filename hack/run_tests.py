"""Run the tests with pytest, say how far they are, and run those that failed again, alone.

    python hack/run_tests.py [OPTION OF PYTEST | FILE | TEST]...

A failure is printed when it happens; a line each 20 seconds says how many tests ran, and which run now. A test that
failed runs again alone, up to twice. If it passes then, it is named as flaky, and the run passes: its first failure
came from the load or the order, and is a defect of the test all the same. A golden file that differs is no chance, and
is not compared again. The run fails if a test fails three times, if a golden file differs, if more than 10 tests fail,
or if pytest itself ends with an error. The last lines name each test that was skipped and why,
and each that failed; the very last one counts passed, failed and skipped tests.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

EACH_S = 20.0
SLOW_S = 2.0
"""A test that takes longer by nature has the mark ``slow``, and `make quick` leaves it out."""
SHOWN = 10
AGAIN_MAX = 2
GOLDEN = "GoldenDiffersError"
"""The error of a golden file that differs (tests/support/golden.py)."""
BY_CHANCE_MAX = 10
"""More failures than this are no chance, and would take too long one by one."""


class Progress:
    """Print what happens in a run with several workers, and keep its result."""

    def __init__(self) -> None:
        self.began = self.shown = time.monotonic()
        self.again: list[str] = []
        """The command that runs one test."""
        self.total = 0
        self.running: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        """The outcome of each test: passed, failed or skipped."""
        self.differ: set[str] = set()
        """The failed tests whose golden file differs."""
        self.skips: dict[str, list[str]] = {}
        """The skipped tests of each reason."""
        self.unmarked: dict[str, float] = {}
        """The seconds of tests that are slow and have no mark."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        self.again = [sys.executable, "-m", "pytest", "-q", f"--rootdir={config.rootpath}", "-c", str(config.inipath),
                      "-m", config.option.markexpr]  # fmt: skip
        self.root = config.rootpath

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = max(self.total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = time.monotonic()
        self.line_now_and_then()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letters: the lines of this class take their place."""
        if hasattr(report, "wasxfail") or (report.passed and report.when != "call"):
            return None
        category = "error" if report.failed and report.when != "call" else report.outcome
        return category, "", category.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.duration > SLOW_S and "slow" not in report.keywords:
            self.unmarked[report.nodeid] = report.duration
        before = self.outcomes.get(report.nodeid)
        if report.failed:
            self.running.pop(report.nodeid, None)  # a worker that crashed does not finish its test
            self.outcomes[report.nodeid] = "failed"
            if GOLDEN in reason(report):
                self.differ.add(report.nodeid)
            if before != "failed":
                self.line(f"FAILED {report.nodeid}: {reason(report)}")
        elif before is None and (report.when == "call" or report.skipped):
            self.outcomes[report.nodeid] = report.outcome
            if report.skipped:
                self.skips.setdefault(reason(report), []).append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"

    def line_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.shown >= EACH_S:
            self.shown = now
            longest = sorted(self.running, key=self.running.__getitem__)
            self.line(f"{len(self.failed)} failed; running: {', '.join(longest)}")

    def line(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        print(f"{minutes}:{seconds:02} {len(self.outcomes)} of {self.total}: {text}", flush=True)

    @property
    def failed(self) -> list[str]:
        return [nodeid for nodeid, outcome in self.outcomes.items() if outcome == "failed"]

    def count(self, outcome: str) -> int:
        return sum(1 for one in self.outcomes.values() if one == outcome)


def reason(report: pytest.TestReport) -> str:
    """The first line of the error, or why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return (text.strip().splitlines() or [""])[0]


def passes_alone(nodeid: str, progress: Progress) -> bool:
    for attempt in range(1, AGAIN_MAX + 1):
        print(f"again, alone ({attempt} of {AGAIN_MAX}): {nodeid}", flush=True)
        # The name of a test starts at the folder of the configuration, not at the current one.
        test = str(progress.root / nodeid)
        if subprocess.run([*progress.again, test], check=False).returncode == 0:
            return True
    return False


def main(arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    progress = Progress()
    status = pytest.main(["-q", "-o", "console_output_style=classic", *arguments], plugins=[progress])
    failed = progress.failed
    flaky: list[str] = []
    if status == pytest.ExitCode.TESTS_FAILED and 0 < len(failed) <= BY_CHANCE_MAX:
        flaky = [
            nodeid for nodeid in failed if nodeid not in progress.differ and passes_alone(nodeid, progress)
        ]
        if flaky == failed:
            status = pytest.ExitCode.OK
    for nodeid, seconds in sorted(progress.unmarked.items(), key=lambda item: -item[1])[:SHOWN]:
        print(f"slow without the mark: {nodeid} ({seconds:.1f} s)")
    for why, tests in sorted(progress.skips.items()):
        more = f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
        print(f"skipped: {why}: {', '.join(sorted(tests)[:SHOWN])}{more}")
    for nodeid in failed:
        print(f"{'flaky' if nodeid in flaky else 'FAILED'}: {nodeid}")
    passed = progress.count("passed") + len(flaky)
    print(f"{passed} passed, {len(failed) - len(flaky)} failed, {progress.count('skipped')} skipped")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
