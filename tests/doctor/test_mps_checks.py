"""The MPS daemons: not configured, not running, not asked for, sick, ready, and files that cannot be read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.agent_config import load
from nodeagent.doctor import mps_checks
from nodeagent.doctor.reads import Target
from nodeagent.host.sysfs import Tree
from nodeagent.sharing.mps_files import DaemonState, DaemonStates, MpsFiles, WantedDaemons
from nodeagent.sharing.mps_watch import NOT_YET

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
SHARED = f"{HEAD}resources: [{{kind: gpu-mem, enforcement: mps}}]"


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(Tree(tmp_path), load(SHARED, name="x"), False, None, 0.0, 5.0)


@pytest.fixture
def files(tmp_path: Path) -> MpsFiles:
    files = MpsFiles(tmp_path / "var/lib/nodeagent/mps")
    files.folder.mkdir(parents=True)
    return files


def found(target: Target) -> list[str]:
    return [f"{one.key} {one.what}" for one in mps_checks.findings(mps_checks.read(target))]


def test_each_state_of_the_daemons_is_a_finding(target: Target, files: MpsFiles) -> None:
    assert found(target) == ["mps_not_running `nodeagent mps` does not run on this node"]
    lock = files.take_lock()
    assert lock is not None
    assert found(target) == ["mps_not_asked no agent has named a GPU that needs an MPS daemon"]
    files.write_wanted(WantedDaemons(("GPU-0", "GPU-1")))
    assert found(target) == [f"mps_daemon GPU-0: {NOT_YET}", f"mps_daemon GPU-1: {NOT_YET}"]
    sick = DaemonState("GPU-1", obstacle="the MPS daemon has ended (signal 11) and is started again")
    files.write_states(DaemonStates((DaemonState("GPU-0", pid=7), sick)))
    assert found(target) == ["mps_daemon GPU-1: the MPS daemon has ended (signal 11) and is started again"]
    files.write_states(DaemonStates((DaemonState("GPU-0", pid=7), DaemonState("GPU-1", pid=8))))
    assert found(target) == ["mps the MPS daemons of 2 GPUs are ready"]
    os.close(lock)
    assert found(target)[0].startswith("mps_not_running"), (
        "states of a process that has ended count for nothing"
    )


def test_files_that_cannot_be_read_are_named(target: Target, files: MpsFiles) -> None:
    (files.folder / "lock").mkdir()
    (files.folder / "wanted.json").write_text("{")
    assert found(target)[0].startswith("mps_unreadable ")


def test_there_is_no_finding_without_the_level_or_of_a_captured_machine(target: Target) -> None:
    assert found(replace(target, config=load(HEAD, name="x"))) == []
    assert found(replace(target, recorded=True)) == []
