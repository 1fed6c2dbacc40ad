"""Each program that runs until a signal ends at SIGTERM and SIGINT; a SIGINT that its parent ignores stays ignored.

The daemons are real processes: the agent on a simulated machine without a kubelet, the controller without an API
server.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent_lab.sim.machine import Machine
from tests.support.default_signals import DEFAULT_SIGNALS, IGNORING

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""
READY_LINES = {"run": "waiting for it", "controller": "Serving metrics"}
PATIENT = (
    "import sys, nodeagent.base.ending; nodeagent.base.ending.ORDERLY_S = 60.0;"
    "from nodeagent.cli import main; sys.exit(main())"
)
"""The program, with time for its orderly end on a machine that is busy with other tests."""


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, list[str]]:
    root = tmp_path / "root"
    Machine.load("two-gpu-two-nic").write(root)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    agent = ["run", "--root", root, "--kubelet-dir", tmp_path / "kubelet", "--listen", "127.0.0.1:0"]
    controller = ["controller", "--kubeconfig", tmp_path / "kubeconfig", "--listen", "127.0.0.1:0"]
    return {
        "run": [*map(str, agent)],
        "controller": [*map(str, controller), "--namespace", "n"],
    }


@contextmanager
def started(prefix: tuple[str, ...], arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [*prefix, sys.executable, "-c", PATIENT, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if READY_LINES[arguments[0]] in line:
                    break
            assert process.poll() is None, lines
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("verb", ["run", "controller"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_ends_at_sigterm_and_at_sigint(
    verb: str, number: signal.Signals, commands: dict[str, list[str]]
) -> None:
    with started(DEFAULT_SIGNALS, commands[verb]) as process:
        process.send_signal(number)
        _, rest = process.communicate(timeout=120)
        assert (process.returncode, "Stopped." in rest) == (0, True)


@pytest.mark.parametrize("verb", ["run", "controller"])
def test_a_daemon_in_the_background_ends_at_sigterm_alone(verb: str, commands: dict[str, list[str]]) -> None:
    with started(IGNORING, commands[verb]) as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        (ignored,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
        assert ignored >> (signal.SIGINT - 1) & 1, "the setting of the parent stands"
        process.terminate()
        _, rest = process.communicate(timeout=120)
        assert (process.returncode, "Stopped." in rest) == (0, True)
