"""Golden files: each test compares one with what the code makes now, and `make golden` writes it, for review.

The test declares the file, as a path from the top folder in which ``*`` stands for the name of an example::

    @pytest.mark.golden("docs/reference/doctor.md")

`hack/golden.py` finds the tests by these marks. A test that compares a file which it does not declare fails.
``NODEAGENT_GOLDEN=write`` asks a run of the tests to write.
"""

from __future__ import annotations

import difflib
import fcntl
import fnmatch
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHOWN = 40
"""Lines of a difference."""

_DECLARED: list[str] = []
"""The paths of the running test."""


class GoldenDiffersError(AssertionError):
    """The file is not what the code makes. `hack/run_tests.py` does not run the test again: it is no chance."""


def pytest_runtest_setup(item: Any) -> None:
    _DECLARED[:] = [path for mark in item.iter_markers("golden") for path in mark.args]


def written(path: Path) -> bool:
    """Whether this run writes the file."""
    name = path.relative_to(ROOT).as_posix()
    declared = any(fnmatch.fnmatchcase(name, pattern) for pattern in _DECLARED)
    assert declared, f'the test needs @pytest.mark.golden("{name}")'
    return os.environ.get("NODEAGENT_GOLDEN") == "write"


def update(path: Path, edit: Callable[[str], str]) -> None:
    """Compare the file with ``edit`` of its text, or write that. Tests that write parts of one file take turns."""
    if written(path):
        with _one_at_a_time():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(edit(path.read_text() if path.exists() else ""))
    found = path.read_text()
    if (made := edit(found)) != found:
        name = path.relative_to(ROOT).as_posix()
        lines = difflib.unified_diff(found.splitlines(), made.splitlines(), name, "made now", lineterm="")
        shown = "\n".join(islice(lines, SHOWN))
        raise GoldenDiffersError(f"{name} differs: make golden ROOM={name}, and read the difference\n{shown}")


def same(path: Path, text: str) -> None:
    """Compare the whole file with the text, or write it."""
    update(path, lambda _: text)


def same_between(path: Path, begin: str, end: str, text: str) -> None:
    """Compare the part of a page from the end of the mark ``begin`` to the next ``end`` with the text, or write it."""

    def edit(page: str) -> str:
        head, found, rest = page.partition(begin)
        _, ended, tail = rest.partition(end)
        assert found, f"{path.name} has no {begin!r}"
        assert ended, f"{path.name} has no {end!r} after {begin!r}"
        return f"{head}{begin}{text}{end}{tail}"

    update(path, edit)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
