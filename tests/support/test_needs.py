"""A missing tool causes a skip that names it, or a failure if the tool is required."""

import pytest

from tests.support.needs import missing, need, pytest_runtest_setup

NOWHERE = "no-such-program"


def test_a_skip_names_the_missing_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODEAGENT_TESTS_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"needs {NOWHERE}"):
        need("sh", NOWHERE)


@pytest.mark.parametrize("listed", [NOWHERE, f"sh {NOWHERE}", f"sh,{NOWHERE}"])
def test_a_missing_tool_that_is_required_is_a_failure(monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    monkeypatch.setenv("NODEAGENT_TESTS_REQUIRE", listed)
    with pytest.raises(pytest.fail.Exception, match=f"NODEAGENT_TESTS_REQUIRE lists {NOWHERE}"):
        need(NOWHERE)


def test_a_present_tool_gives_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_TESTS_REQUIRE", "sh")
    need("sh")


def test_a_python_module_counts_as_a_tool() -> None:
    assert missing("pynvml") is None


def test_the_needs_mark_skips_the_test(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.needs("sh", NOWHERE))
    with pytest.raises(pytest.skip.Exception, match=f"needs {NOWHERE}"):
        pytest_runtest_setup(request.node)
