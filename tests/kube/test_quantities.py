"""Quantities are read as Kubernetes writes them, and its own client reads the same values."""

from __future__ import annotations

import doctest
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from nodeagent.base import quantities
from nodeagent.base.quantities import quantity, whole_quantity

SUFFIXES = ("", *"numkMGTPE", *(f"{letter}i" for letter in "KMGTPE"))


def official(text: str) -> Fraction:
    with localcontext() as context:
        context.prec = 100
        return Fraction(parse_quantity(text))


def test_the_doctests_pass() -> None:
    assert doctest.testmod(quantities).failed == 0


@given(
    sign=st.sampled_from(("", "+", "-")),
    digits=st.integers(0, 2**63 - 1).map(str)
    | st.from_regex(r"[0-9]{1,12}\.[0-9]{0,12}|\.[0-9]{1,9}", fullmatch=True),
    suffix=st.sampled_from(SUFFIXES)
    | st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-18, 18) | st.just("+3")),
)
def test_each_quantity_has_exactly_the_value_that_the_official_client_reads(
    sign: str, digits: str, suffix: str
) -> None:
    text = f"{sign}{digits}{suffix}"
    assert quantity(text) == official(text)
    assert whole_quantity(text) == (int(official(text)) if official(text).denominator == 1 else None)


@given(st.text(max_size=30) | st.text("0123456789.+-eEinumkKMGTP ", max_size=8))
def test_any_other_text_is_no_quantity_or_has_the_official_value(text: str) -> None:
    if (number := quantity(text)) is not None:
        assert number == official(text)


@pytest.mark.parametrize(
    "text", ["", ".", "1ki", "1Mb", "1 k", "0x10", "1e", "e3", "inf", "NaN", "1_000", "\u0661", "1K", "1mi"]
)
def test_these_texts_are_no_quantities_for_kubernetes_either(text: str) -> None:
    assert quantity(text) is whole_quantity(text) is None


def test_numbers_of_json_are_quantities_too() -> None:
    assert [quantity(number) for number in (3, 0.5, 1e21)] == [3, Fraction(1, 2), Decimal("1e21")]
