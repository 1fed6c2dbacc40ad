"""Write golden files and the generated parts of pages, for review.

    python hack/golden.py [ROOM | PAGE]...

ROOM is a folder or file of tests, or a path of the table "Which tests" in CONTRIBUTING.md, whose tests write then. PAGE
is a file that a test writes, or a folder of them. Without an argument all are written. Only tests with the mark
`golden` run. The last lines name the files that changed.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from quick import ROOT, tests_of_rooms

WORKERS = "2"


def pages() -> dict[str, set[str]]:
    """The files of tests which write each page, by the pattern of its mark."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.golden(" in (text := path.read_text(encoding="utf-8")):
            name = path.relative_to(ROOT).as_posix()
            for pattern in _marks(ast.parse(text)):
                found.setdefault(pattern, set()).add(name)
    return found


def _marks(tree: ast.Module) -> Iterable[str]:
    for function in tree.body:
        for call in getattr(function, "decorator_list", ()):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.golden":
                yield from map(ast.literal_eval, call.args)


def writers(name: str, found: dict[str, set[str]], rooms: dict[str, list[str]]) -> set[str]:
    """The files of tests that write for a room or page. A page comes first: it may be in the table of rooms too."""
    name = name.rstrip("/")
    if page := {test for pattern in found if fnmatch.fnmatchcase(name, pattern) for test in found[pattern]}:
        return page
    below = {test for pattern in found if pattern.startswith(f"{name}/") for test in found[pattern]}
    folders = rooms.get(name, [name])
    every = set().union(*found.values())
    return below | {test for test in every if any(f"{test}/".startswith(f"{one}/") for one in folders)}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    found, rooms = pages(), tests_of_rooms()
    chosen: set[str] = set()
    for name in arguments or ["tests"]:
        if not (more := writers(name, found, rooms)):
            print(
                f"golden: no test writes a golden file of {name}. Golden files:", *sorted(found), sep="\n  "
            )
            return 2
        chosen |= more
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", WORKERS, "--dist", "loadfile", "-m", "golden", *sorted(chosen)],
        cwd=ROOT, env=os.environ | {"NODEAGENT_GOLDEN": "write"}, check=False,
    )  # fmt: skip
    subprocess.run(
        ["git", "diff", "--stat", "--", *(f":(glob){one}" for one in sorted(found))], cwd=ROOT, check=False
    )
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
