"""Read YAML files within bounds: any text gives a document or a ``ValueError``."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.config.bounded_yaml import LimitError, Limits, bounded_events, load_document

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LIMITS = Limits(depth=8, size=100_000, values=1000)
BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 8)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "expands to more than 1000 values"),
        (MERGE_BOMB, "expands to more than 1000 values"),
        ("[" * 100_000, "nested more than 8 deep"),
        ("- " * 50_000, "nested more than 8 deep"),
        ("a: &a [[[[[[1]]]]]]\nb: [[[[*a]]]]\n", "nested more than 8 deep"),
        ("&a [*a]", "no anchor that ends before it"),
        ("a: *b", "no anchor that ends before it"),
        ("a" * 100_001, "larger than 100000"),
        ("--- 1\n--- 2\n", "expected a single document"),
        ("!!bool x", "a tag does not fit"),
        ("!!timestamp x", "a tag does not fit"),
        ("!!python/object:os.system {}", "could not determine a constructor"),
        ("\x00", "special characters are not allowed|control characters"),
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_passes_a_limit_is_refused_at_once(text: str, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=problem):
        load_document(text, LIMITS)
    assert time.process_time() - began < 5.0


def test_aliases_and_merge_keys_within_the_limits_are_read() -> None:
    text = "a: &a {x: 1, y: [on, 2001-01-01]}\nb: {<<: *a, x: 2}\nc: *a\n"
    assert load_document(text, LIMITS) == yaml.safe_load(text)


def test_aliases_can_be_forbidden() -> None:
    with pytest.raises(LimitError) as caught:
        list(bounded_events("a: &a 1\nb: *a\n", Limits(aliases=False)))
    assert (caught.value.problem, caught.value.problem_mark.line) == ("aliases are not read here", 1)


def test_an_anchor_ends_with_its_document() -> None:
    with pytest.raises(yaml.YAMLError, match="no anchor"):
        list(bounded_events("--- &a 1\n--- *a\n", Limits()))


@given(st.text(alphabet="ab:-[]{}&*<!'\"\n ,#|>?0.~", max_size=60))
def test_a_text_is_a_document_or_a_value_error(text: str) -> None:
    try:
        document = load_document(text, LIMITS)
    except ValueError:
        return
    assert repr(document) == repr(yaml.load(text, LOADER))
