"""The table of versions in docs/reference/verified.md, which is the matrix of what was tried with what."""

import re

from tests.support.manifests import ROOT

PAGE = (ROOT / "docs" / "reference" / "verified.md").read_text()
TABLE = PAGE.partition("## Versions")[2].partition("\n## ")[0]
ROWS = [re.split(r" \| ", line.strip("| ")) for line in TABLE.splitlines() if line.startswith("| ")][2:]
WITHOUT_VERSION = {"none", "not written down", "its source", "`tests/schemas`"}


def test_each_row_says_how_and_when():
    assert len(ROWS) > 20
    for program, version, how, when in ROWS:
        assert how in ("run", "mock", "definition", "source", "stand-in"), program
        assert (how == "stand-in") == (version == "none"), program
        assert re.fullmatch(r"20\d\d-\d\d-\d\d|each run", when), program


def test_each_version_has_its_evidence_elsewhere_on_the_page():
    """A version here that no row below names was never tried, or its row went."""
    rest = PAGE.replace(TABLE, "")
    versions = [one for row in ROWS if row[1] not in WITHOUT_VERSION for one in row[1].split(", ")]
    schemas = (ROOT / "docs" / "upgrade.md").read_text()
    assert [one for one in versions if one not in rest and f" {one}" not in schemas] == []
