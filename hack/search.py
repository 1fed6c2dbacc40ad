"""Search for examples that fail a property test, for some minutes.

    python hack/search.py [--minutes N] [OPTION OF PYTEST | FILE | FOLDER]...

Rounds: each one tries the property tests in another order with new examples, first 50 of a usual test, then more. A
test that fails is left out of the later rounds, and the search goes on. A test that runs at the end has five minutes to
end, since the smallest example takes time to find; it may hang, so it counts as failed. The last lines are the failed
tests with the smallest example of each. `.hypothesis` keeps these examples: the next search tries them first.

Exit codes: 0 nothing failed, 1 something did, 2 the search ended before its time or tried nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from run_tests import Progress, reason

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

EXAMPLES = (50, 200, 800, 2000)
"""Of each round, and of all that follow."""
GOES_ON = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
GRACE_S = 300
"""Hypothesis makes a failing example smaller for up to five minutes."""


class Search(Progress):
    """The failing tests of all rounds, each with its smallest example."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, str] = {}
        self.passed: set[str] = set()
        self.seconds: dict[str, float] = {}
        """The time of one example."""
        self.tests: set[str] = set()
        self.count = 0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tests.add(nodeid)
        super().pytest_runtest_logstart(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        super().pytest_runtest_logreport(report)
        if report.failed:
            self.examples[report.nodeid] = f"{reason(report)}\n{example(report)}".strip()
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
            self.seconds[report.nodeid] = report.duration / self.count

    def begin(self, count: int) -> None:
        """Forget the outcomes of the round before, except for failures."""
        self.count = count
        self.outcomes.clear()
        self.running.clear()


def example(report: pytest.TestReport) -> str:
    """The smallest example, as Hypothesis shows it, or the end of the error of a test that died."""
    said = [text for name, text in report.sections if name == "Hypothesis"]
    return "\n".join(said).strip() or "\n".join(report.longreprtext.splitlines()[-20:])


def property_tests(names: list[str]) -> list[str]:
    """The files below these names that use Hypothesis: the others need not be imported."""
    found = []
    for name in names:
        path = Path(name.partition("::")[0])
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        using = [str(file) for file in files if "hypothesis" in file.read_text(encoding="utf-8")]
        found += [name] if using == [str(path)] else using
    return found


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def rounds(search: Search, until: float, arguments: list[str]) -> int:
    """Run rounds until the time is over or one cannot run. Return the exit code of the last."""
    for number in itertools.count():
        count, order = EXAMPLES[min(number, len(EXAMPLES) - 1)], random.randrange(10**6)
        print(f"round {number + 1}: {count} examples of a usual test, order {order}", flush=True)
        search.begin(count)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as seconds:
            seconds.write(json.dumps(search.seconds))
            seconds.flush()
            status = pytest.main(
                ["-q", "-o", "console_output_style=classic", "-p", "tests.support.search_round", "-m",
                 "hypothesis and not vm", f"--search-examples={count}", f"--search-until={until}",
                 f"--search-end={until + GRACE_S / 2}", f"--search-order={order}", f"--search-seconds={seconds.name}",
                 *(f"--deselect={nodeid}" for nodeid in search.examples), *arguments],
                plugins=[search],
            )  # fmt: skip
        if time.time() >= until or status not in GOES_ON:
            break
    return status


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    options, others = parser.parse_known_args(arguments)
    named = [word for word in others if Path(word.partition("::")[0]).exists()]
    rest = [word for word in others if word not in named]
    tests = property_tests(named or [str(ROOT / "tests")])
    if not tests:
        parser.error("no property tests there")
    search = Search()
    status: int = pytest.ExitCode.INTERRUPTED
    until = time.time() + options.minutes * 60
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, options.minutes * 60 + GRACE_S)
    with suppress(KeyboardInterrupt):
        status = rounds(search, until, [*rest, *tests])
    signal.setitimer(signal.ITIMER_REAL, 0)
    over = time.time() >= until
    for nodeid in search.running if over else ():
        search.examples.setdefault(nodeid, f"not done {GRACE_S} s after the end of the search")
    for nodeid, text in sorted(search.examples.items()):
        print(f"\nFAILED: {nodeid}")
        print("\n".join(f"    {line}" for line in text.splitlines()))
    passed = len(search.passed - set(search.examples))
    print(f"\n{passed} of {len(search.tests)} property tests passed, {len(search.examples)} failed")
    if search.examples:
        return 1
    return 0 if over and passed and status in GOES_ON else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
