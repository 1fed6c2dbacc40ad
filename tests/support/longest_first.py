"""The longest tests begin first in a run with several workers, so that none of them is left for its end alone.

Each worker of ``--dist worksteal`` gets a part of the tests, the parts one after the other and of one size, and runs it
from its front; whoever is done takes from the end of another part. So each part begins with its share of the tests with
the marks ``slow`` and ``timeout``. The tests of one file stay together, because they share fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from tests.support.time_limits import SLOW_S

WORKERS = "PYTEST_XDIST_WORKER_COUNT"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    if (workers := int(os.environ.get(WORKERS, "1"))) > 1:
        items[:] = dealt([(item, item.nodeid.partition("::")[0], weight(item)) for item in items], workers)


def weight(item: Any) -> float:
    """The seconds that a test may take by its marks, 0 without one."""
    mark = item.get_closest_marker("timeout")
    if mark is not None and mark.args:
        return float(mark.args[0])
    return float(SLOW_S) if item.get_closest_marker("slow") is not None else 0.0


def dealt(tests: Sequence[tuple[Any, str, float]], workers: int) -> list[Any]:
    """Return the tests, each given with its file and weight, in the order in which they are cut into parts."""
    files = [[*found] for _, found in groupby((one for one in tests if one[2]), key=lambda one: one[1])]
    hands: list[list[tuple[Any, str, float]]] = [[] for _ in range(workers)]
    for file in sorted(files, key=lambda file: -sum(one[2] for one in file)):
        min(hands, key=lambda hand: sum(one[2] for one in hand)).extend(file)
    quick = [one for one in tests if not one[2]]
    left, order = len(tests), []
    for number, hand in enumerate(hands):
        size = left // (workers - number)
        more = max(0, size - len(hand))
        order += [*hand, *quick[:more]]
        del quick[:more]
        left -= size
    return [one[0] for one in (*order, *quick)]
