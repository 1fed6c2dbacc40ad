"""Every kind of anomaly has a remedy that says what to do."""

from __future__ import annotations

from nodeagent.fabric import troubles
from nodeagent.fabric.outcome import AnomalyKind


def test_every_kind_of_anomaly_has_a_remedy_and_no_page_in_place_of_one() -> None:
    assert troubles._REMEDIES.keys() == {*AnomalyKind}
    assert not [text for text in troubles._REMEDIES.values() if "docs/" in text]
