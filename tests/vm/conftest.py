"""One boot for all the tests here: what the guest wrote down, to be judged outside.

``make test-vm`` runs them; an ordinary ``make test`` leaves them out (the marker ``vm``).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.vm import record

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "hack/vm"))

STEPS = (
    "facts", "bare", "apply", "late", "agree", "pod", "vfio", "namespace", "cable", "removed", "unbound",
    "lldp", "metrics", "restart", "bereft", "stop",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """``step`` gives what a step wrote down, or fails with the traceback it ended with."""

    nic: dict[str, Any]
    manifest: dict[str, Any]
    results: dict[str, Any]
    log: str
    seconds: float

    def step(self, name: str) -> Any:
        result = self.results.get(name)
        if result is None:
            pytest.fail(f"the guest ended before it came to the step {name!r}", pytrace=False)
        if "error" in result:
            pytest.fail(f"the step {name!r} failed in the guest:\n{result['error']}", pytrace=False)
        return result["data"]

    @property
    def pfs(self) -> list[str]:
        return self.step("bare")["pfs"]

    def resource(self, rail: int) -> str:
        return f"nodeagent.io/nic{rail}"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    import boot
    import build
    import stage

    wanted = build.machine()
    plan = {**wanted["nic"], "switch_mac": boot.SWITCH_MAC, "steps": STEPS}
    build.CACHE.mkdir(parents=True, exist_ok=True)
    # Beside the cache, for hard links; where a person finds it after a failure.
    share, out = (build.CACHE / name for name in ("share", "out"))
    for folder in (share, out):
        stage.fresh(folder)
    stage.stage(Path(__file__).parent / "guest", json.dumps(plan), share)
    ran = boot.boot(share, out)
    return Run(
        nic=wanted["nic"],
        manifest=json.loads((ran.built / "manifest.json").read_text()),
        results=json.loads((out / "results.json").read_text()),
        log=(out / "agent.log").read_text(),
        seconds=ran.seconds,
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.vm)


_passed: list[str] = []
_failed: list[str] = []
_run: list[Run] = []


@pytest.fixture(autouse=True)
def _remember(run: Run) -> None:
    _run[:] = [run]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/vm/" in report.nodeid and report.failed:
        _failed.append(report.nodeid)
    elif "tests/vm/" in report.nodeid and report.when == "call":
        _passed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The record says what a whole run has shown, so a partial or a failed one does not touch it."""
    whole = all(item.nodeid in _passed for item in session.items) and not session.config.option.keyword
    if _run and whole and not _failed:
        text = record.text(_run[0], _passed)
        (REPOSITORY / "docs/verified.md").write_text(text, encoding="utf-8")
