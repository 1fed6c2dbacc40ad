"""The table of versions in docs/reference/verified.md, which is the matrix of what was tried with what."""

import re

import pytest

from hack.docs.verified_versions import MARK, Met, marks, page
from tests.schemas.compare import extracts
from tests.support import golden
from tests.support.manifests import ROOT

PATH = ROOT / "docs" / "reference" / "verified.md"
PAGE = """\
## Versions

Prose.

| program | version | how | when |
|---|---|---|---|
| an old row | 1 | run | 2026-01-01 |

## Each counterpart

"""


def counterparts(text: str) -> list[str]:
    section = text.partition("## Each counterpart")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][2:]


def rows(text: str) -> list[str]:
    return [line for line in page(PAGE + text, []).splitlines() if line.startswith("| ")][1:]


@pytest.mark.golden("docs/reference/verified.md")
def test_the_table_is_made_from_the_rows_below_it() -> None:
    sources = {(source.repository, source.commit) for _, source in extracts()}
    golden.update(PATH, lambda text: page(text, sorted(sources)))
    assert sum(line.count(" | ") == 3 for line in PATH.read_text().splitlines()) > 60


def test_each_counterpart_says_which_version_was_met_how_and_when() -> None:
    found = counterparts(PATH.read_text())
    assert len(found) > 20
    without = [line for line in found if not MARK.search(line) and "`tests/schemas`" not in line]
    assert without == [], "write **HOW: PROGRAM VERSION, WHEN** into the row"


def test_no_mark_is_almost_one() -> None:
    """It would be no row of the table, and nobody would see it."""
    text = PATH.read_text()
    almost = re.findall(r"\*\*(?:run|mock|definition|source|stand-in)\b[^*]*\*\*", text)
    assert [one for one in almost if not MARK.fullmatch(one) and one.count(":")] == []


def test_a_mark_has_program_version_kind_and_date() -> None:
    text = (
        "by hand **run: torch with torchrun 2.13, 2026-11-27**, **stand-in: a GPU, ConnectX-7, each run**, "
        "**source: x, 2026-01-02**"
    )
    assert list(marks(text)) == [
        Met("torch with torchrun", "2.13", "run", "2026-11-27"),
        Met("a GPU, ConnectX-7", "none", "stand-in", "each run"),
        Met("x", "not written down", "source", "2026-01-02"),
    ]


def test_the_strongest_and_newest_evidence_of_a_version_counts() -> None:
    text = (
        "**source: a 1.0, each run** **run: a 1.0, 2026-01-01** **run: a 1.0, 2026-02-02** "
        "**run: b 2, each run** **run: b 2, 2026-01-01**"
    )
    assert rows(text) == ["| a | 1.0 | run | 2026-02-02 |", "| b | 2 | run | each run |"]


def test_a_definition_has_the_name_of_the_mark_with_its_commit() -> None:
    text = f"{PAGE}**run: Volcano ed72c7c8, 2026-11-27** **source: MPI Operator caa3c47f, 2026-11-27**\n"
    commits = {
        "volcano-sh/volcano": "ed72c7c8",
        "kubeflow/mpi-operator": "caa3c47f",
        "kubernetes/x": "11111111",
    }
    made = page(text, [(repository, f"{start}{32 * '0'}") for repository, start in commits.items()])
    assert [line for line in made.splitlines() if line.startswith("| ")][1:] == [
        "| Volcano | ed72c7c8 | run | 2026-11-27 |",
        "| kubernetes/x | 11111111 | definition | each run |",
        "| MPI Operator | caa3c47f | definition | each run |",
    ]
