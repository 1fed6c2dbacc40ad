"""Quantities as Kubernetes writes them (``k8s.io/apimachinery/pkg/api/resource``). Pure.

The API server stores the shortest form: ``8000`` of a manifest is read back as ``8k``, ``1024Mi`` as ``1Gi``. So no
amount of an object is compared as text. The values are exact.
"""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))(?:[eE]([+-]?[0-9]{1,2})|(|[numkMGTPE]|[KMGTPE]i))"
)
_SCALES = {
    **{letter: Fraction(1000) ** power for power, letter in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}


def quantity(text: str | float) -> Fraction | None:
    """Return the number of a quantity; ``None`` if it is none.

    >>> [str(quantity(text)) for text in ("40Gi", "1500m", "8k", "2e3", "1E", "0.5Ki", 3)]
    ['42949672960', '3/2', '8000', '2000', '1000000000000000000', '512', '3']
    >>> quantity("forty")
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    digits, exponent, suffix = match.groups()
    scale = _SCALES[suffix] if exponent is None else Fraction(10) ** int(exponent)
    return Fraction(digits.removesuffix(".")) * scale


def whole_quantity(text: str | float) -> int | None:
    """Return the number of a quantity; ``None`` if it is none, or has a fraction.

    >>> [whole_quantity(text) for text in ("8k", "1500m", "0")]
    [8000, None, 0]
    """
    number = quantity(text)
    return int(number) if number is not None and number.denominator == 1 else None
