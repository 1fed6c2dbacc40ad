"""The table of versions in ``docs/reference/verified.md``.

Its rows are the marks in the evidence below it, ``**HOW: PROGRAM VERSION, WHEN**``, and the sources of the extracts in
``tests/schemas``, with which each run of the tests compares our objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hack.docs.markdown import table

HOW = ("run", "mock", "definition", "source", "stand-in")
"""The ways to meet a program, the strongest evidence first."""
EACH_RUN = "each run"
HEADING = "## Versions"

MARK = re.compile(
    rf"\*\*(?P<how>{'|'.join(HOW)}): (?P<program>[^*]+?)(?: (?P<version>\d[\w.+-]*|[0-9a-f]{{7,}}|`[^`]+`))?, "
    rf"(?P<when>20\d\d-\d\d-\d\d|{EACH_RUN})\*\*"
)


class Met(NamedTuple):
    """A version of a program that was met."""

    program: str
    version: str
    how: str
    when: str


def marks(text: str) -> Iterator[Met]:
    for found in MARK.finditer(text):
        unknown = "none" if found["how"] == "stand-in" else "not written down"
        yield Met(found["program"], found["version"] or unknown, found["how"], found["when"])


def page(text: str, sources: Iterable[tuple[str, str]]) -> str:
    """The page with its table made anew. ``sources``: repository and commit of each definition in ``tests/schemas``."""
    head, heading, rest = text.partition(HEADING)
    prose, first, old = rest.partition("\n| ")
    lines = f"{first}{old}".lstrip("\n").splitlines(keepends=True)
    evidence = "".join(lines[next(i for i, line in enumerate(lines) if not line.startswith("|")) :])
    met = list(marks(evidence))
    names = {one.version: one.program for one in met}
    met += [Met(names.get(at[:8], name), at[:8], "definition", EACH_RUN) for name, at in sources]
    return (
        f"{head}{heading}{prose}\n{table(('program', 'version', 'how', 'when'), _each_once(met))}{evidence}"
    )


def _each_once(met: Iterable[Met]) -> list[Met]:
    """The strongest evidence of each version, and of equal ones the newest, in the order of ``HOW``, then of names."""
    by_strength = sorted(met, key=lambda one: one.when, reverse=True)  # "each run" comes before all dates
    by_strength.sort(key=lambda one: HOW.index(one.how))
    first = {(one.program, one.version): one for one in reversed(by_strength)}
    return sorted(first.values(), key=lambda one: (HOW.index(one.how), one.program.lower(), one.version))
