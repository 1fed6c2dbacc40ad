"""The probes over the rails as a feature of the agent: what it gives back, and its pages for the verb `rails`."""

from __future__ import annotations

import json

import pytest

from nodeagent.cluster import partner_list
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.features.rail_probing import rail_probes, rail_watch
from nodeagent.features.rail_probing.probe_task import RAIL_CHECK, start_probes
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_views import BurstResult
from nodeagent.features.seam import AgentPart
from nodeagent.web.server import Page, PageRequest
from tests.support.agent_and_server import kubeconfig, server
from tests.support.agent_core import agent_core
from tests.support.running_agent import node, shorten

__all__ = ["kubeconfig", "server"]


async def asked(part: AgentPart, path: str) -> Page:
    return await part.folders[RAIL_CHECK](PageRequest("GET", path, {}, keep_alive=True))


async def test_while_the_probes_are_off_the_verb_is_told_so_and_nothing_runs() -> None:
    part = start_probes(agent_core(), RailsSettings())
    assert part.pages["/rails"]("").body == b'{"probes":false}'
    answer = json.loads((await asked(part, "/rails/check/gpu-1/gpu-2/5")).body)
    assert answer == {"to": "gpu-2", "why": "this agent does not probe: set rails.probe"}
    assert not part.tasks
    assert not part.writers
    assert not [*part.samples()]


async def test_without_an_api_server_the_probes_wait_and_the_check_says_why() -> None:
    part = start_probes(agent_core(), RailsSettings(probe=True))
    assert [*part.writers] == ["rail-probes"]
    assert json.loads(part.pages["/rails"]("").body)["probes"]
    answer = json.loads((await asked(part, "/rails/check/gpu-1/gpu-2/5")).body)
    assert answer["why"].endswith("set rails.probe, and give it an API server")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/rails/check/gpu-1/gpu-2/5", 200, {"to": "gpu-2", "why": "from gpu-1 for 5.0 s"}),
        ("/rails/check/gpu-1/gpu-2", 404, None),
        ("/rails/check/gpu-1//5", 404, None),
        ("/rails/check/gpu-1/gpu-2/-5", 404, None),
        ("/rails/check", 404, None),
    ],
)
@pytest.mark.parametrize("probe", [True, False])
async def test_a_check_of_the_rails_names_two_nodes_and_seconds(
    path: str, status: int, said: object, probe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(_: object, node: str, to: str, seconds: float) -> BurstResult:
        return BurstResult(to, f"from {node} for {seconds} s")

    monkeypatch.setattr(rail_watch.RailWatch, "check", check)
    page = await asked(start_probes(agent_core(), RailsSettings(probe=probe)), path)
    assert page.status == status
    assert said is None or not probe or json.loads(page.body) == said


async def test_an_agent_with_probes_says_in_its_report_why_a_rail_cannot_be_checked(
    server, kubeconfig, monkeypatch
):
    """The netdevs of a simulated machine are not in this network namespace."""
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0)
    monkeypatch.setattr(rail_probes, "TICK_S", 0.02)
    monkeypatch.setattr(rail_probes, "SLOT_S", 0.02)
    monkeypatch.setattr(partner_list, "FIRST_S", 0.0)
    async with node() as n:
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\nrails: {{probe: true}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.until(lambda: n.agent.inventory.snapshot.rail_checks)
        await server.until(lambda: checked(server) == ["no-netdev", "no-netdev"])
        view = json.loads(n.agent.features["rails"].pages["/rails"]("").body)
        assert view["probes"]
        assert [rail["checked"] for rail in view["rails"]] == ["no-netdev", "no-netdev"]
        assert "nodeagent_rail_checkable{" in (await n.get("/metrics"))[1]


def checked(server):
    report = server.find("nodelinks", "gpu-0", "nodeagent") or {"links": []}
    return [link["railChecked"] for link in report["links"] if "railChecked" in link]
