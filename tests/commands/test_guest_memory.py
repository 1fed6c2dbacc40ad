"""A verb in the container of a daemon stops at its own limit, with the remedy, and not at that of the container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from nodeagent.console import guest_memory
made = guest_memory.stay_within
guest_memory.stay_within = lambda: made(Path(sys.argv[1]))
from nodeagent.cli import main
sys.exit(main(["plan", "--json", "--from", "-"]))
"""


def container(folder: Path, most: str, used: str) -> Path:
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    (folder / "sys/fs/cgroup/memory.max").write_text(f"{most}\n")
    (folder / "sys/fs/cgroup/memory.current").write_text(f"{used}\n")
    return folder


def plan(root: Path, reports: int, **environment: str) -> subprocess.CompletedProcess[str]:
    lines = "".join(
        json.dumps({"kind": "Node", "metadata": {"name": f"n{i}", "labels": {"a": "x" * 5000}}}) + "\n"
        for i in range(reports)
    )
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, root], input=lines, capture_output=True, text=True, check=False,
        env=dict(os.environ) | environment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("most", "guest", "code"), [("max", "1", 0), (str(8 << 30), "1", 0), (str(1 << 20), "", 0), ("x", "1", 0)]
)
def test_what_fits_is_answered(most: str, guest: str, code: int, tmp_path: Path) -> None:
    done = plan(container(tmp_path, most, "1000"), 10, NODEAGENT_GUEST=guest)
    assert done.returncode == code, done.stderr


def test_what_does_not_fit_names_the_remedy(tmp_path: Path) -> None:
    done = plan(container(tmp_path, str(100 << 20), str(90 << 20)), 20_000, NODEAGENT_GUEST="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "nodeagent: this container has no memory for so many objects: raise its limit"
    )
    assert "Traceback" not in done.stderr
