"""The tables of features: each feature has a row, and one that is off costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nodeagent import agent
from nodeagent.agent_config import Config
from nodeagent.agent_features import AGENT
from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.cluster import agent_tasks
from nodeagent.controller import Controller
from nodeagent.controller_features import CONTROLLER
from nodeagent.features.gpu_labels.nfd_settings import NfdSettings
from nodeagent.features.nvsentinel.sentinel_settings import NvSentinelSettings
from nodeagent.features.peer_values.peers_settings import PeersSettings
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent_lab.sim.machine import Machine
from tests.controller.test_controller import RULES, cluster, groups, running
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
OF_AGENT = {
    "gpu_labels", "gpu_labels.labels_task", "gpu_labels.nfd_settings",
    "netdevs_in_pods", "netdevs_in_pods.netdevs_task", "nvsentinel", "nvsentinel.sentinel_settings",
    "nvsentinel.sentinel_task", "peer_values", "peer_values.compare_task", "peer_values.peers_settings",
    "pod_traffic", "pod_traffic.traffic_settings", "pod_traffic.traffic_task",
    "rail_probing", "rail_probing.probe_task", "rail_probing.rail_settings", "seam",
    "volcano_deviceshare", "volcano_deviceshare.deviceshare_task",
}  # fmt: skip
OF_CONTROLLER = {
    "cluster_jobs", "min_links_marks", "other_programs", "other_programs.keeping", "other_programs.kept_settings",
    "rail_probing", "rail_probing.rail_keeping", "rail_probing.rail_keeping_settings", "silent_agents",
    "startup_taint", "switches", "switches.switch_asking", "switches.switch_settings",
}  # fmt: skip
"""Of features that are off: their settings and what their rows name."""
START_AGENT = """
import asyncio, sys
from pathlib import Path
from nodeagent.agent import Agent, AgentOptions
from nodeagent.agent_config import Config
async def start():
    return Agent(Config(), AgentOptions(Path(sys.argv[1]), Path(sys.argv[1])))
kept = asyncio.run(start())
print(*(one for one in sys.modules if one.startswith("nodeagent.features.")))
"""
START_CONTROLLER = """
import asyncio, sys
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.kube.access import Access
async def start():
    return Controller(FabricConfig(), Access("http://127.0.0.1:1"), ReplicaSettings("nodeagent", "a", None))
kept = asyncio.run(start())
print(*(one for one in sys.modules if one.startswith("nodeagent.features.")))
"""


@pytest.mark.parametrize(("start", "loaded"), [(START_AGENT, OF_AGENT), (START_CONTROLLER, OF_CONTROLLER)])
def test_of_a_feature_that_is_off_its_settings_and_its_row_are_loaded(
    start: str, loaded: set[str], tmp_path: Path
) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", start, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert {one.removeprefix("nodeagent.features.") for one in done.stdout.split()} == loaded


@pytest.mark.parametrize("table", [AGENT, CONTROLLER], ids=["agent", "controller"])
def test_each_feature_has_one_row(table: tuple[Any, ...]) -> None:
    modules = {name for row in table for name in row.start.__code__.co_names if name.startswith("start_")}
    assert len(modules) == len(table) == len({row.name for row in table})


async def test_features_of_the_agent_that_are_off_run_nothing_without_an_api_server(tmp_path: Path) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    parts = agent.Agent(Config(), agent.AgentOptions(tmp_path, tmp_path)).features
    assert parts.keys() == {row.name for row in AGENT}
    running = [name for name, part in parts.items() if part.tasks or [*part.samples()]]
    assert running == ["attach", "gpu-labels"], "they remove what an earlier configuration has left"
    assert {name for part in parts.values() for name in part.writers} == {"volcano"}, "its setting may change"


async def test_no_feature_of_the_agent_takes_the_name_of_another_task_or_the_path_of_another_page(
    tmp_path: Path,
) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    config = Config(
        rails=RailsSettings(probe=True),
        nv_sentinel=NvSentinelSettings(socket="/run/nvs.sock"),
        peers=PeersSettings(compare=True),
        attach=AttachSettings(interface="rail{rail}"),
        nfd=NfdSettings(gpu_labels=True),
    )
    whole = agent.Agent(config, agent.AgentOptions(tmp_path, tmp_path))
    parts = whole.features.values()
    assert {name for part in parts for name in part.tasks} == {
        "attach", "gpu-labels", "netdevs", "nvsentinel", "peers",
    }  # fmt: skip
    of_writers = [name for part in parts for name in part.writers]
    assert sorted(of_writers) == ["gfd-object", "rail-probes", "volcano"]
    whole.features = {}
    of_core = [*whole._tasks(None), *(part.name for part in agent_tasks.PARTS)]
    assert not {"attach", "gpu-labels", "netdevs", "nvsentinel", "peers", "traffic", *of_writers} & {*of_core}
    paths = [path for part in parts for path in (*part.pages, *part.folders)]
    assert len(paths) == len({*paths})


def lines(controller: Controller) -> set[str]:
    page = controller.pages.metrics("").body.decode()
    return {
        line.partition("{")[0].partition(" ")[0] for line in page.splitlines() if not line.startswith("#")
    }


@pytest.mark.usefixtures("virtual_time")
async def test_features_that_are_off_have_no_task_and_no_series() -> None:
    off = structs.replace(RULES, watch_agents=False)
    async with cluster() as server, running(server, off) as controller:
        await until(lambda: len(groups(server)) == 2)
        parts = controller.fabric.parts.features
        assert parts.keys() == {row.name for row in CONTROLLER}
        assert [name for name, part in parts.items() if part.lead or part.mirrors or part.stays] == []
        shown = {one.family.name for row in CONTROLLER for one in row.families}
        assert len(shown) == 12
        assert not shown & lines(controller)
