"""Names that a person may have meant: the same number, the same parts, or the same letters.

Names of nodes and switches differ by their numbers alone, and edit distance sees no number: ``gpu-32`` is as near to
``gpu-432`` as to ``gpu-032``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

SIMILAR_MAX = 4
_COMPARED_MAX = 100
"""Characters of a name that are compared, and names by their letters times 1,000."""
_PARTS = re.compile(r"[0-9]+|[a-z]+")

Parts = tuple[str | int, ...]


def similar_names(name: str, known: Collection[str], limit: int = SIMILAR_MAX) -> list[str]:
    """At most ``limit`` of ``known``, the likeliest first: those that are the same but for signs and zeros, those that
    end with or contain the parts of ``name``, those with its numbers and similar letters, then those with similar ones.
    """
    if len(name) > _COMPARED_MAX:
        return []
    wanted = _parts(name)
    parts = {one: _parts(one) for one in sorted(known) if one != name}
    ranked = sorted(
        (rank, len(having), one)
        for one, having in parts.items()
        if (rank := _rank(wanted, having)) is not None
    )
    found = [one for _, _, one in ranked]
    if not found:
        numbers = [part for part in wanted if isinstance(part, int)]
        alike = [
            one for one, having in parts.items() if [it for it in having if isinstance(it, int)] == numbers
        ]
        found = get_close_matches(name, alike, limit) if numbers else []
    if not found and len(parts) <= 1000 * _COMPARED_MAX:
        found = get_close_matches(name, list(parts), limit)
    return found[:limit]


def _parts(name: str) -> Parts:
    """The words and numbers of a name.

    >>> _parts("hall1-su01-leaf3")
    ('hall', 1, 'su', 1, 'leaf', 3)
    """
    return tuple(int(part) if part.isdecimal() else part for part in _PARTS.findall(name.lower()))


def _rank(wanted: Parts, having: Parts) -> int | None:
    """0: the same; 1: it ends so; 2: it contains this; ``None``: none of them."""
    if not wanted or len(wanted) > len(having):
        return None
    if wanted == having:
        return 0
    size = len(wanted)
    if having[-size:] == wanted:
        return 1
    return 2 if any(having[i : i + size] == wanted for i in range(len(having) - size)) else None
