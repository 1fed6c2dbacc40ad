"""The number of examples of a test that needs more or fewer than others, in each profile of Hypothesis."""

from hypothesis import settings

USUAL = 100
"""The number of examples to which a test's own number refers."""


def examples(number: int) -> int:
    """Return the test's share of the profile's examples, at least two."""
    return max(2, number * settings().max_examples // USUAL)
