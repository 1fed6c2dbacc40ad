"""An item for all cases of a kind: no finding hides another, and no cases are a failure."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.support.findings import one_item


def test_each_finding_is_shown_with_its_case() -> None:
    seen = []

    @one_item("number", range(4), ids=lambda number: f"case {number}")
    def check(number: int) -> None:
        seen.append(number)
        assert number != 1
        if number == 2:
            raise KeyError("port")
        if number == 3:
            pytest.fail("three lines")

    with pytest.raises(pytest.fail.Exception) as failed:
        check()
    assert seen == [0, 1, 2, 3]
    text = str(failed.value)
    assert "3 of 4 cases" in text
    assert "case 0" not in text
    for part in (
        "case 1: line ",
        "assert 1 != 1",
        "case 2: line ",
        "KeyError: 'port'",
        "case 3: line ",
        "three lines",
    ):
        assert part in text, text


def test_cases_without_a_finding_pass_and_share_the_fixtures(tmp_path: Path) -> None:
    @one_item("name, count", lambda: [("a", 1), ("b", 2)])
    def check(tmp_path: Path, name: str, count: int) -> None:
        (tmp_path / name).write_text(str(count))

    assert [*inspect.signature(check).parameters] == ["tmp_path"]
    check(tmp_path=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1", "b": "2"}


def test_no_case_is_a_failure() -> None:
    @one_item("page", [])
    def check(page: str) -> None:
        raise AssertionError(page)

    with pytest.raises(AssertionError, match="no case"):
        check()
