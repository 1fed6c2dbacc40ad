"""A round of `make search` in each worker (``hack/search.py``): new examples, another order, and an end by the clock.

Load it with ``-p tests.support.search_round``. After ``--search-until`` tests are skipped, and those before that would
end after ``--search-end``. No test has a limit of its own, because it tries many times the usual examples:
``hack/search.py`` ends all.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

PROFILE = "search"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("search")
    group.addoption("--search-examples", type=int, required=True, help="examples of a test that asks for 100")
    group.addoption("--search-until", type=float, required=True, help="seconds since 1970")
    group.addoption("--search-end", type=float, required=True, help="seconds since 1970")
    group.addoption("--search-order", type=int, required=True, help="seed of the order")
    group.addoption("--search-seconds", type=Path, required=True, help="JSON: seconds per example, by test")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        PROFILE, settings.get_profile(PROFILE), max_examples=config.option.search_examples
    )
    settings.load_profile(PROFILE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All workers have the same order."""
    items.sort(key=lambda item: item.nodeid)
    random.Random(config.option.search_order).shuffle(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    option = item.config.option
    seconds = json.loads(option.search_seconds.read_text()).get(item.nodeid, 0.0) * option.search_examples
    if time.time() >= option.search_until or time.time() + seconds > option.search_end:
        pytest.skip("the time is over")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    return True
