"""The port of the web server is in use when the agent or the controller starts.

The process must end with exit code 1 and one line that names the address, the owner of the port and the settings. It
must not restart its web server without end: the kubelet would see no probe and no reason.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from nodeagent_lab.sim.machine import Machine

AGENT = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\ncluster: {access: none}\n"


def test_the_agent_ends_with_the_address_and_the_owner_of_the_port(tmp_path: Path) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path / "root")
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "config.yaml").write_text(AGENT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nodeagent", "run", "--root", str(tmp_path / "root")),
                *("--kubelet-dir", str(tmp_path / "kubelet"), "--config", str(tmp_path / "config.yaml")),
                *("--listen", f"127.0.0.1:{port}"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"nodeagent: cannot listen on 127.0.0.1:{port}: ")
    assert f"Process {os.getpid()} (" in last
    assert "--listen or `listen:`" in last
    assert "ExceptionGroup" not in done.stderr
