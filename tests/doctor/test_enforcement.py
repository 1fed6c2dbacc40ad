"""The doctor and `config check` evaluate a level of enforcement by the driver and the cgroups of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.host.recorded_gpus import PATH
from nodeagent_lab.sim.machine import Machine

CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources: [{kind: gpu-mem, enforcement: env}]
"""


@pytest.mark.parametrize(("version", "possible"), [("615.71.09", True), ("580.95.05", False)])
def test_hard_limits_are_possible_only_with_their_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, possible: bool
) -> None:
    root, config = tmp_path / "root", tmp_path / "nodeagent.yaml"
    config.write_text(CONFIG)
    Machine.load("two-gpu-two-nic").write(root)
    path = root / PATH.lstrip("/")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"driver_version": version}))
    main(["doctor", "--root", str(root), "--config", str(config), "--json"])
    sentence = "enforcement env is not possible on this node: driver 580.95.05 is older than 615"
    assert (sentence in capsys.readouterr().out) is not possible
    code = main(["config", "check", "--root", str(root), str(config)])
    assert (code == 0) is possible
    shown = capsys.readouterr()
    assert (sentence in shown.out + shown.err) is not possible
