"""The table of features: each feature has a row, and one that is off costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.controller import Controller
from nodeagent.feature_tables import CONTROLLER
from tests.controller.test_controller import cluster, groups, running
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LOADED = {
    "cluster_jobs", "min_links_marks", "other_programs", "other_programs.keeping", "other_programs.kept_settings",
    "rail_probing", "rail_probing.rail_keeping", "rail_probing.rail_keeping_settings", "seam", "startup_taint",
    "switches", "switches.switch_asking", "switches.switch_settings",
}  # fmt: skip
"""Of features that are off: their settings and what their rows name."""
START = """
import asyncio, sys
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.kube.access import Access
async def start():
    return Controller(FabricConfig(), Access("http://127.0.0.1:1"), ReplicaSettings("nodeagent", "a", None))
kept = asyncio.run(start())
print(*(one for one in sys.modules if one.startswith("nodeagent.features.")))
"""


def test_of_a_feature_that_is_off_its_settings_and_its_row_are_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert {one.removeprefix("nodeagent.features.") for one in done.stdout.split()} == LOADED


def test_each_feature_has_one_row() -> None:
    modules = {
        name for row in CONTROLLER for name in row.start.__code__.co_names if name.startswith("start_")
    }
    assert len(modules) == len(CONTROLLER) == len({row.name for row in CONTROLLER})


def lines(controller: Controller) -> set[str]:
    page = controller.pages.metrics("").body.decode()
    return {
        line.partition("{")[0].partition(" ")[0] for line in page.splitlines() if not line.startswith("#")
    }


@pytest.mark.usefixtures("virtual_time")
async def test_features_that_are_off_have_no_task_and_no_series() -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        parts = controller.fabric.parts.features
        assert parts.keys() == {row.name for row in CONTROLLER}
        assert [name for name, part in parts.items() if part.lead or part.mirrors or part.stays] == []
        shown = {one.family.name for row in CONTROLLER for one in row.families}
        assert len(shown) == 9
        assert not shown & lines(controller)
