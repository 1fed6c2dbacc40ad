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
