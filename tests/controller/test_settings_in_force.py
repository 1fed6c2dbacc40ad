"""Each setting of a running controller is in force after a change of its file, or the log names it as waiting for a
restart.

The settings are read from the structs: one that is neither seen nor named fails.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.kube.access import Access
from nodeagent.topology.parts import FabricParts
from nodeagent_lab.sim.apiserver import ApiServer
from tests.infiniband.test_ib_fabric import DISCOVERED
from tests.support.kept_sections import kept_beside
from tests.support.setting_leaves import another, changed, leaves
from tests.support.waiting import until

WAITS = "A changed setting takes effect when the controller is restarted. setting="
STARTED: dict[str, Any] = {
    "apiVersion": "nodeagent.io/v1alpha1",
    "kind": "FabricConfig",
    "outputs": ["hypernodes", "labels", "slurm", "nodefeaturegroups"],
    "minLinks": 2,
    "fabrics": [{"fabric": "compute", "nodes": ["gpu-*"]}],
    "expectedValues": [{"value": "MTU", "like": "9000"}],
    "switches": {"addresses": [{"switch": "leaf-1", "address": "10.0.0.1"}]},
}
OTHER: dict[str, Any] = {
    "fabrics[].pciAddresses": ["0000:1a:00.0"],
    "history.file": "/run/history.json",
    "infinibandCables": "cables.txt",
    "labels.keys": ["example.com/{tier}"],
    "switches.addresses[].address": "10.0.0.2",
    "switches.networks": ["10.0.0.0/8"],
    "tiers.namePatterns": ["(?P<tier2>pod[0-9]+)-leaf"],
    "topology": "topology.yaml",
    "web.nodePage": "http://{node}:9808/ui/",
    "web.probeListen": "127.0.0.1:2",
    "web.runbook": "https://example.com/runbook",
}
"""Another value of the settings for which ``another`` finds none."""
TOGETHER: dict[str, tuple[str, ...]] = {
    "web.keyFile": ("web.certificateFile",),
    "web.clientCaFile": ("web.certificateFile",),
    "web.tokenFile": ("web.certificateFile",),
}
"""Settings that need others beside them."""


class Recording(Controller):
    """A controller that notes the configurations that its parts are made from."""

    def _make_parts(self, config: FabricConfig, topology: Topology) -> FabricParts:
        self.made = config
        return super()._make_parts(config, topology)


def with_change(path: str) -> dict[str, Any]:
    text = STARTED
    for one in (path, *TOGETHER.get(path, ())):
        text = changed(text, one, OTHER.get(one) or another(FabricConfig, one, STARTED))
    return text


def named(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {line.removeprefix(WAITS) for line in caplog.messages if line.startswith(WAITS)}


def in_force_alone(controller: Controller) -> bool:
    """Whether no part, and no task of the parts that were replaced, keeps a section that is not in force."""
    assert controller.fabric.file is not None
    read, _topology = controller.fabric.file._in_force
    return not kept_beside((controller.fabric._config, read), controller)


async def test_each_setting_is_in_force_in_the_running_controller_or_named_as_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "topology.yaml").write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\n")
    (tmp_path / "cables.txt").write_text(DISCOVERED)
    file = tmp_path / "fabric.yaml"

    def write(text: dict[str, Any]) -> FabricConfig:
        temporary = file.with_suffix(".tmp")
        temporary.write_text(yaml.safe_dump(text))
        temporary.replace(file)
        return load_fabric(file.read_text(), name=str(file))

    def counts(before: FabricParts, config: FabricConfig) -> bool:
        return controller.fabric.parts is not before and controller.made == config

    server = await ApiServer().start()
    begun = write(STARTED)
    controller = Recording(
        begun, Access(server.url, token=server.token()), ReplicaSettings("nodeagent", "a", None), NO_TOPOLOGY
    )
    controller.fabric.follow(file)
    running, searched = asyncio.create_task(controller.run()), set[str]()
    try:
        await until(lambda: controller.lease.leading)
        for path, restart in leaves(FabricConfig).items():
            caplog.clear()
            before = controller.fabric.parts
            config = write(with_change(path))
            assert config != begun, f"{path} has another value"
            if restart:
                await until(partial(named, caplog), f"{path} is named")
                assert named(caplog) == {path, *TOGETHER.get(path, ())} == set(controller.fabric.file.waiting)
                assert ", ".join(controller.fabric.file.waiting) in controller.pages._readyz("").body.decode()
                assert controller.made == begun
            else:
                await until(partial(counts, before, config), f"{path} is in force")
                assert not named(caplog)
                assert controller.fabric.debounce_s == config.hysteresis.debounce_seconds
                if (section := path.rpartition(".")[0]) not in searched:
                    await until(partial(in_force_alone, controller), f"no part keeps what {path} had")
                    searched.add(section)
        caplog.clear()
        write(STARTED)
        await until(lambda: controller.made == begun)
        assert not named(caplog), "the file is that of the start again"
        assert not controller.fabric.error
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await server.stop()
