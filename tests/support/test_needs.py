"""A missing tool is a skip that names it, and a failure where the tool is required."""

import pytest

from tests.support.needs import missing, need, pytest_runtest_setup

NOWHERE = "no-such-program"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODEAGENT_TESTS_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"needs {NOWHERE}"):
        need("sh", NOWHERE)


@pytest.mark.parametrize("listed", [NOWHERE, f"sh {NOWHERE}", f"sh,{NOWHERE}"])
def test_what_is_missing_and_required_fails(monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    monkeypatch.setenv("NODEAGENT_TESTS_REQUIRE", listed)
    with pytest.raises(pytest.fail.Exception, match=f"NODEAGENT_TESTS_REQUIRE lists {NOWHERE}"):
        need(NOWHERE)


def test_what_is_there_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_TESTS_REQUIRE", "sh")
    need("sh")


def test_a_module_of_python_is_looked_for_as_such() -> None:
    assert missing("pynvml") is None


def test_a_mark_is_obeyed(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.needs("sh", NOWHERE))
    with pytest.raises(pytest.skip.Exception, match=f"needs {NOWHERE}"):
        pytest_runtest_setup(request.node)
