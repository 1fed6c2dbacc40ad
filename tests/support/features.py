"""Tests of the core that run with all features, and again without any."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["features", "core alone"])
def with_and_without_features(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons have all features, then none."""
    from nodeagent import agent_features, controller_features

    if request.param == "core alone":
        monkeypatch.setattr(agent_features, "AGENT", ())
        monkeypatch.setattr(controller_features, "CONTROLLER", ())
