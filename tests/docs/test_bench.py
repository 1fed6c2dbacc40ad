"""The benchmark runs, and its probes fit the agent."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
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


def test_the_search_for_failing_frames_runs() -> None:
    done = subprocess.run(
        [sys.executable, "hack/fuzz_lldp.py", "1"], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_ratios_are_taken_to_the_bare_plugin_of_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "hack"))
    from benchmarks.figures import Figure
    from benchmarks.ratios import ratio_table, ratios

    start = Figure("agent", "start", "ms", [150.0, 160.0, 200.0], key="agent start")
    rest = Figure("agent", "share of a core", "%", [0.25], key="agent cpu")
    assert "`--only bare`" in ratio_table(ratios([start, rest]))
    floors = [
        Figure("bare", "start", "ms", [90.0, 100.0, 120.0], key="bare start"),
        Figure("bare", "share of a core", "%", [0.20], key="bare cpu"),
    ]
    found = {one.goal.name: (round(one.value, 3), one.met()) for one in ratios([*floors, start, rest])}
    assert found == {
        "start, all 9 registered": (1.6, True),
        "CPU at rest, without simulated files": (0.05, True),
    }
    slow = Figure("agent", "start", "ms", [161.0], key="agent start")
    assert "1 of 1 fall short" in ratio_table(ratios([*floors, slow]))


def test_a_measurement_gets_folders_that_no_other_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that one had left prepared withheld the GPUs of the next one's agent."""
    monkeypatch.syspath_prepend(str(ROOT / "hack"))
    import bench
    from benchmarks.figures import Figure
    from benchmarks.stage import Stage

    async def leave_a_claim(on: Stage, *, quick: bool) -> AsyncIterator[Figure]:
        claims = on.root / "var/lib/nodeagent/claims"
        claims.mkdir(parents=True)
        yield Figure("claims", "left", "", [1.0])

    monkeypatch.setitem(bench.MEASUREMENTS, "start", leave_a_claim)
    for _ in range(2):
        assert len(asyncio.run(bench.measure("start", quick=True))) == 1


THREADS = """
import threading, time
def work():
    until = time.thread_time() + 0.002
    while time.thread_time() < until: pass
print("begins", flush=True)
while True:
    some = [threading.Thread(target=work) for _ in range(4)]
    for one in some: one.start()
    for one in some: one.join()
"""


def test_the_cpu_time_of_a_process_counts_threads_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "hack"))
    from benchmarks.cpu_time import cpu_ns

    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = [cpu_ns(process.pid)]
        while found[-1] < found[0] + 200_000_000:
            found.append(cpu_ns(process.pid))
        process.kill()
    assert found == sorted(found)
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_ns(process.pid)
