"""The benchmark runs, and its probes fit the agent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_of_the_calls_gives_figures(tmp_path: Path) -> None:
    """``calls`` starts the agent and the single plugin. The measured times are not checked."""
    found = tmp_path / "bench.json"
    command = [sys.executable, "hack/bench.py", "--quick", "--only", "calls", "--json", str(found)]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(found.read_text())["figures"]
    assert next(figure["name"] for figure in figures if "80,000" in figure["group"]).startswith("Allocate")
    assert all(figure["n"] and figure["p50"] > 0 for figure in figures)
    assert all(figure["name"][:30] in done.stdout for figure in figures)


@pytest.mark.parametrize(
    "command", [["hack/fuzz_lldp.py", "1"], ["hack/bench_lldp.py"]], ids=lambda parts: parts[0]
)
def test_a_tool_for_lldp_runs(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
