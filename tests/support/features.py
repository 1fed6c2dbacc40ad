"""Tests of the core that run with all features, and again without any."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["features", "core alone"])
def with_and_without_features(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has all features, then none."""
    from nodeagent import feature_tables

    if request.param == "core alone":
        monkeypatch.setattr(feature_tables, "CONTROLLER", ())
