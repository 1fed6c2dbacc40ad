"""CHANGELOG.md is what a user must know: short, highlights first, nothing twice."""

from __future__ import annotations

import re

import pytest

from nodeagent import __version__
from tests.support.manifests import ROOT

SECTIONS = ("Highlights", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""In this order; all but the first are those of Keep a Changelog 1.1.0."""
LINES_MAX, BULLET_LINES_MAX = 60, 3
TEXT = (ROOT / "CHANGELOG.md").read_text()
VERSIONS = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))


def bullets(text: str) -> list[str]:
    found = re.findall(r"^- (.*?)(?=^- |^#|^$|\Z)", text, re.M | re.S)
    return [bullet.rstrip("\n") for bullet in found]


def test_it_has_this_version_and_the_next_one() -> None:
    assert next(iter(VERSIONS)) == "Unreleased"
    assert __version__ in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_short_and_has_each_section_once_with_highlights_first(version: str) -> None:
    text = VERSIONS[version]
    assert len(text.splitlines()) <= LINES_MAX, "say what a user must know; the commits have the rest"
    sections = re.findall(r"^### (.+)$", text, re.M)
    assert sections == [one for one in SECTIONS if one in sections]
    assert sections[:1] in ([], ["Highlights"]), "nothing is new yet, or the highlights come first"
    long = [one for one in bullets(text) if one.count("\n") >= BULLET_LINES_MAX]
    assert not long, f"at most {BULLET_LINES_MAX} lines: {long}"


def test_no_bullet_stands_there_twice() -> None:
    begins = [" ".join(bullet.split())[:40] for bullet in bullets(TEXT)]
    assert len(begins) > 40
    assert len(set(begins)) == len(begins)
