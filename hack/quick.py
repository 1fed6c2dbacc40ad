"""Check in a minute what changed since the trunk: format, lint, import contracts, and the quick tests of those rooms.

    python hack/quick.py [COMMIT]

COMMIT is the trunk to compare with; without it, `origin/main`, or the last commit where no such branch is. Files that
git does not track count too. The table "Which tests" of CONTRIBUTING.md says which tests belong to a room. Tests with
the mark `slow` are left out, and Hypothesis tries 10 examples.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOOTS = "tests/vm"
"""Slow as a whole: `make test-vm` runs it."""
NO_TESTS = 5
"""The exit code of pytest when all tests of the rooms are slow."""
ROW = re.compile(r"^\| `([\w./-]+)`(.*?) \| (`tests/.*) \|$", re.M)


def tests_of_rooms() -> dict[str, list[str]]:
    """The folders of tests for each path in the table of CONTRIBUTING.md. A path is a folder, or the start of names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n## Which tests\n")[2].partition("\n## ")[0]
    rooms: dict[str, list[str]] = {}
    for first, others, tests in ROW.findall(table):
        for path in (first, *re.findall(r"`([\w./-]+)`", others)):
            rooms[path] = re.findall(r"`(tests/\w+)`", tests)
    return rooms


def tests_for(changed: Iterable[str], rooms: dict[str, list[str]]) -> tuple[set[str], set[str]]:
    """Return the folders of tests for the changed files, and the files for which the table names no tests."""
    tests, unknown = set(), set()
    for path in changed:
        if (match := re.match(r"(tests/\w+)/", path)) and match[1] not in rooms:
            tests.add(match[1])
        elif rows := [room for room in rooms if path == room or path.startswith(room.rstrip("/") + "/")]:
            tests.update(rooms[max(rows, key=len)])
        else:
            unknown.add(path)
    return tests, unknown


def changed_files(base: str, root: Path = ROOT) -> set[str]:
    """A file that was moved counts in the room that it left too."""
    return {
        *lines("git", "diff", "--no-renames", "--name-only", base, root=root),
        *lines("git", "ls-files", "--others", "--exclude-standard", root=root),
    }


def lines(*command: str, root: Path = ROOT) -> list[str]:
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()


def trunk() -> str:
    known = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "origin/main"], cwd=ROOT, capture_output=True, check=False
    )
    return "origin/main" if known.returncode == 0 else "HEAD"


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    since = arguments[0] if arguments else trunk()
    (base,) = lines("git", "merge-base", since, "HEAD")
    changed = changed_files(base)
    tests, unknown = tests_for(changed, tests_of_rooms())
    tests = {folder for folder in tests - {BOOTS} if (ROOT / folder).is_dir()}
    print(f"{len(changed)} changed files since {since}: {', '.join(sorted(tests)) or 'no room'}", flush=True)
    for path in sorted(unknown):
        print(f"no tests in CONTRIBUTING.md for {path}; make test runs all of them", flush=True)
    scripts = Path(sys.executable).parent
    workers = str((os.cpu_count() or 1) * 2)
    steps = [
        [str(scripts / "ruff"), "format", "--check", "--quiet", "."],
        [str(scripts / "ruff"), "check", "--quiet", "."],
        [str(scripts / "lint-imports"), "--no-logo"],
    ]
    if tests:
        steps.append([sys.executable, "hack/run_tests.py", "-n", workers, "--dist", "worksteal", "-m",
                      "not slow and not vm", "--hypothesis-profile=quick", *sorted(tests)])  # fmt: skip
    for step in steps:
        quiet = step[0].endswith("lint-imports")
        done = subprocess.run(step, cwd=ROOT, check=False, capture_output=quiet, text=True)
        if done.returncode not in (0, NO_TESTS):
            print(done.stdout or "", end="")
            print(f"failed: {shlex.join(step)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
