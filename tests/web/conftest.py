"""One browser for all tests of the pages: its start takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chromium import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(autouse=True)
def _tabs_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a failed test left open: its connection would fail a later test of the worker."""
    if "browser" not in request.fixturenames:
        yield
        return
    browser: Browser = request.getfixturevalue("browser")
    before = len(browser.tabs)
    yield
    for tab in browser.tabs[before:]:
        tab.close()
    del browser.tabs[before:]
