"""The socket of NVSentinel's connector: not configured, absent, dead, served, and on a captured machine."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from nodeagent.agent_config import load
from nodeagent.doctor import nvsentinel_checks
from nodeagent.doctor.reads import Target
from nodeagent.host.sysfs import Tree

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


@pytest.fixture
def target(tmp_path):
    config = load(f"{HEAD}nvSentinel: {{socket: /run/nvs.sock}}", name="x")
    (tmp_path / "run").mkdir()
    return Target(Tree(tmp_path), config, False, None, 0.0, 5.0)


def found(target):
    return [
        (finding.key, finding.what) for finding in nvsentinel_checks.findings(nvsentinel_checks.read(target))
    ]


def test_a_socket_is_looked_for_below_the_root(target, tmp_path):
    path = tmp_path / "run" / "nvs.sock"
    assert found(target) == [("nvsentinel_absent", f"{path}: it does not exist")]
    with socket.socket(socket.AF_UNIX) as connector:
        connector.bind(str(path))
        assert found(target) == [("nvsentinel_absent", f"{path}: no process listens on it")]
        connector.listen()
        assert found(target) == [("nvsentinel", f"a platform connector listens on {path}")]


def test_there_is_no_finding_without_the_setting_or_of_a_captured_machine(target):
    assert found(replace(target, config=load(HEAD, name="x"))) == []
    assert found(replace(target, recorded=True)) == []
