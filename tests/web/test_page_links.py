"""From the map to the page of a node, and from a reason to the runbook, in Debian's Chromium."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec import structs

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import load_fabric
from nodeagent.facts.remedies import section_of
from nodeagent.web.web_settings import MapSettings
from tests.controller.test_controller import RULES, cluster, groups, leaves, nodelinks, running
from tests.support.chromium import Browser, Tab
from tests.support.manifests import ROOT
from tests.support.running_agent import HEAD, PROMPT, node
from tests.support.waiting import until

RUNBOOK = "https://git.example/nodeagent/blob/v1/docs/runbook.md"


def address(tab: Tab, selector: str) -> str:
    """Where a link leads. It opens beside the page, which cannot be reached from there."""
    found: list[str] = tab.until(
        f"((a) => a && [a.href, a.target, a.rel])(document.querySelector({selector!r}))"
    )
    assert found[1:] == ["_blank", "noopener noreferrer"]
    return found[0]


@pytest.mark.slow
@pytest.mark.needs("chromium")
async def test_the_map_leads_to_the_page_of_the_node_and_both_to_the_runbook(browser: Browser) -> None:
    async with node() as machine, cluster() as server:
        await machine.kubelet.start()
        await machine.start_agent(
            load(f"{HEAD}{PROMPT}web: {{runbook: '{RUNBOOK}'}}\n", name="x"), node_name="node-00"
        )
        web = MapSettings(runbook=RUNBOOK, node_page=f"http://127.0.0.1:{machine.port}/ui/?from={{node}}")
        async with running(server, structs.replace(RULES, web=web)) as controller:
            await until(lambda: len(groups(server)) == 2)
            report = nodelinks("node-00", leaves(0), state="down")
            report["links"][0] |= {"reasons": ["carrier_down"], "reasonDetails": ["no carrier"]}
            server.put(report)
            front = f"http://127.0.0.1:{await controller.port}/ui/#at=node:node-00"
            tab = await asyncio.to_thread(browser.tab, front)
            await asyncio.to_thread(tab.shows, "#detail", "Page of node-00")
            there = await asyncio.to_thread(address, tab, "#detail > p > a")
            assert there == f"http://127.0.0.1:{machine.port}/ui/?from=node-00"
            section = f"{RUNBOOK}#nodelinkdown"
            assert await asyncio.to_thread(address, tab, "#detail .reason a") == section
            assert await asyncio.to_thread(address, tab, "#lists .entry a") == section
            assert await asyncio.to_thread(tab.complaints) == []
            await asyncio.to_thread(tab.close)
        machine.machine.set_link(machine.machine.pfs[1].address, up=False)
        tab = await asyncio.to_thread(browser.tab, there)
        await asyncio.to_thread(tab.shows, "#trouble", "carrier_down")
        assert await asyncio.to_thread(address, tab, "#trouble .reason a") == section
        assert await asyncio.to_thread(tab.complaints) == []
        await asyncio.to_thread(tab.close)


@pytest.mark.slow
@pytest.mark.needs("chromium")
async def test_without_addresses_the_map_shows_a_command(browser: Browser) -> None:
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        front = f"http://127.0.0.1:{await controller.port}/ui/#at=node:node-00"
        tab = await asyncio.to_thread(browser.tab, front)
        await asyncio.to_thread(tab.shows, "#detail", "kubectl nodeagent health node-00")
        assert await asyncio.to_thread(tab.value, "document.querySelectorAll('#side a').length") == 0
        await asyncio.to_thread(tab.close)


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("nodePage: 'https://x/ui/'", "must contain {node}"),
        ("nodePage: 'javascript:alert({node})'", "begins with https:// or http://"),
        ("runbook: docs/runbook.md", "begins with https:// or http://"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_fault_of_the_file(setting: str, fault: str) -> None:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load_fabric(f"{head}web: {{{setting}}}\n", name="fabric.yaml")


def test_each_reason_leads_to_the_section_that_the_runbook_names() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text.partition("## Reasons")[2].partition("\n## ")[0], re.M)
    assert len(rows) > 35
    for reasons, remedy in rows:
        named = re.search(r"\]\(#(\w+)\)", remedy)
        for reason in re.findall(r"`([a-z_]+)\*?`", reasons):
            assert section_of(reason) == (named[1] if named else "reasons"), reason
