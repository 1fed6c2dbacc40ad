"""Boot the guest once for all tests of this folder and load its results.

``make test-vm`` runs them; ``make test`` leaves them out (marker ``vm``).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.vm import record

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "hack/vm"))

BOOT_S = 3600
"""The first test builds the machine if it must, and boots it, without KVM too."""

STEPS = (
    "facts", "bare", "apply", "compared", "late", "agree", "pod", "vfio", "namespace", "attached", "held", "cable",
    "administered", "removed", "unplugged", "unbound",
    "lldp", "metrics", "doctor", "restart", "bereft", "stop", "whole", "whole_pods",
    "rail_netem", "rail_rxe", "rail_vrf", "rail_bond",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """``step`` returns the results of a step, or fails with the traceback of the step."""

    machine: dict[str, Any]
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
    def nic(self) -> dict[str, Any]:
        return self.machine["nic"]

    @property
    def pfs(self) -> list[str]:
        return self.step("bare")["pfs"]

    def resource(self, rail: int) -> str:
        return f"nodeagent.io/nic{rail}"


@pytest.fixture(scope="session")
def run() -> Run:
    import boot
    import build
    import stage

    wanted = build.machine()
    plan = {**wanted["nic"], "switch_mac": boot.SWITCH_MAC, "steps": STEPS}
    # Kept until the next run, for inspection; hard links need the same file system as the cache.
    last = build.CACHE / "last"
    shutil.rmtree(last, ignore_errors=True)
    share, out = last / "share", last / "out"
    stage.stage(Path(__file__).parent / "guest", json.dumps(plan), share)
    ran = boot.boot(share, out)
    return Run(
        machine=wanted,
        manifest=json.loads((ran.built / "manifest.json").read_text()),
        results=json.loads((out / "results.json").read_text()),
        log=(out / "agent.log").read_text(),
        seconds=ran.seconds,
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(BOOT_S))


class Record:
    """Write a section of ``docs/reference/verified.md`` after a complete and successful run, if
    ``NODEAGENT_GOLDEN=write`` asks for it."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        from tests.vm import test_vm

        written = {name for name in vars(test_vm) if name.startswith("test_")}
        passed = {name.rpartition("::")[2].partition("[")[0] for name in self.passed}
        if self.run and passed >= written and os.environ.get("NODEAGENT_GOLDEN") == "write":
            path = REPOSITORY / "docs/reference/verified.md"
            before = path.read_text(encoding="utf-8")
            path.write_text(record.page(before, self.run, self.passed), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Record(), "vm-record")


@pytest.fixture(autouse=True)
def _recorded(run: Run, request: pytest.FixtureRequest) -> None:
    request.config.pluginmanager.get_plugin("vm-record").run = run
