"""Calls to the API server that fail: one log line, and waits that grow."""

from __future__ import annotations

from nodeagent.cluster.retry import ApiRetry, FailureLog
from nodeagent.kube.failure import ApiError


def test_the_first_failure_is_logged_and_the_waits_grow(caplog):
    retry = ApiRetry("It does not work")
    error = ApiError("patch", "/x", 500, "InternalError", "no")
    waits = [retry.failed(error, 0) for _ in range(8)]
    assert max(waits) <= 180
    assert waits[-1] > waits[0]
    assert retry.wait_s(0) == waits[-1]
    retry.succeeded()
    assert (retry.wait_s(0), retry.reason) == (0, None)
    assert len(caplog.records) == 1


def test_a_missing_right_is_tried_again_after_seconds_and_then_slower_up_to_ten_minutes():
    retry = ApiRetry("It does not work")
    waits = [retry.failed(ApiError("patch", "/x", 403, "Forbidden", "no"), 0) for _ in range(12)]
    assert waits[0] <= 5
    assert all(wait <= 600 for wait in waits)
    assert min(waits[-3:]) >= 300
    retry.succeeded()
    assert retry.failed(ApiError("patch", "/x", 403, "Forbidden", "no"), 0) <= 5


def test_a_failure_is_logged_again_when_its_reason_changes_or_after_a_success(caplog):
    failures = FailureLog("It does not work")
    unreachable = ApiError("patch", "/x", None, "Unreachable", "no")
    for error in (unreachable, unreachable, ApiError("patch", "/x", 403, "Forbidden", "no")):
        failures.failed(error, node="n")
    assert len(caplog.records) == 2
    failures.succeeded()
    failures.failed(ApiError("patch", "/x", 403, "Forbidden", "no"), node="n")
    assert len(caplog.records) == 3
    assert caplog.records[0].getMessage() == "It does not work. node=n reason='patch /x: Unreachable: no'"
