"""Calls to the API server that fail: logged once, retried later each time."""

from __future__ import annotations

from nodeagent.cluster.retry import ApiRetry
from nodeagent.kube.failure import ApiError


def test_the_first_failure_is_logged_and_each_wait_is_longer(caplog):
    retry = ApiRetry("It does not work")
    error = ApiError("patch", "/x", 500, "InternalError", "no")
    waits = [retry.failed(error, 0) for _ in range(8)]
    assert max(waits) <= 180
    assert waits[-1] > waits[0]
    assert retry.wait_s(0) == waits[-1]
    assert retry.failed(ApiError("patch", "/x", 403, "Forbidden", "no"), 0) == 600
    retry.succeeded()
    assert (retry.wait_s(0), retry.reason) == (0, None)
    assert len(caplog.records) == 1
