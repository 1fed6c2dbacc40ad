"""Foreign text becomes one printable line of limited length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.plain_text import one_line


@given(st.text(st.characters()), st.one_of(st.none(), st.integers(1, 40)), st.booleans())
def test_the_result_is_printable_and_not_longer_than_its_limit(text, limit, ascii_only):
    line = one_line(text, limit, ascii_only=ascii_only)
    assert line.isprintable()
    assert limit is None or len(line) <= limit
    assert not ascii_only or line.rstrip("…").isascii()


def test_control_characters_are_escaped_and_letters_stay():
    assert one_line("Zürich\n\x1b[2J") == "Zürich\\n\\x1b[2J"
    assert one_line("Zürich", ascii_only=True) == "Z\\xfcrich"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"
