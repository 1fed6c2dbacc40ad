"""The pictures of README.md, made from the real pages: a fabric with a dead switch, and a node with a pulled cable.

`make golden ROOM=docs/pictures` makes them again; look at them. Otherwise the pages still look like their pictures.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.cli import main
from nodeagent_lab.demo.sample_reports import FILE, write_reports
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support import golden
from tests.support.chromium import Browser, Tab
from tests.support.running_agent import node
from tests.web.test_screens import GROSS, difference, grid

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.slow]

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = 1280, 720


def agrees(browser: Browser, tab: Tab, name: str) -> None:
    file, made = PICTURES / f"{name}.png", tab.screenshot()
    if golden.written(file):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(made)
    assert difference(grid(browser, made), grid(browser, file.read_bytes())) < GROSS


def with_faults(report: dict[str, Any], since: str) -> dict[str, Any]:
    """One leaf switch has no power, and one module is dirty."""
    name, number = report["nodeName"], int(report["nodeName"].partition("-")[2])
    pod = f"llama-{number // 8}-worker-{number % 8}"
    held = {"link": "nic5", "pciAddress": "0000:c0:00.1"}
    report["holders"] = [{"namespace": "research", "pod": pod, "since": since, "vfs": [held]}]
    for link in report["links"]:
        if link.get("neighbor", {}).get("systemName") == "hall1-su1-leaf5":
            link |= {"state": "down", "reasons": ["carrier_down"], "reasonDetails": ["no carrier"]}
        elif (name, link["name"]) == ("gpu-040", "nic2"):
            detail = "received light -9.1 dBm, limit -8.2 dBm"
            link |= {"state": "degraded", "reasons": ["optics_rx_power"], "reasonDetails": [detail]}
        else:
            continue
        link["lastTransitionTime"] = since
    return report


@pytest.mark.golden("docs/pictures/map.png")
def test_the_picture_of_the_map(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_reports("dgx-h100", tmp_path, 64)
    listed = yaml.load((tmp_path / FILE).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    since = rfc3339(time.time() - 317)
    listed["items"] = [with_faults(item, since) if "links" in item else item for item in listed["items"]]
    faulty = tmp_path / "faulty.json"
    faulty.write_text(json.dumps(listed))
    capsys.readouterr()
    assert main(["topology", "--from", str(faulty), "--format", "html"]) == 0
    page = tmp_path / "map.html"
    page.write_text(capsys.readouterr().out)
    tab = browser.tab(f"file://{page}", *SIZE)
    tab.shows("#lists", "32 links of 32 nodes went down at once")
    assert tab.text("#list .entry").splitlines()[0] == "32 links of 32 nodes went down at once"
    tab.until("!document.getElementById('map').fabricMap.waiting")
    agrees(browser, tab, "map")
    tab.close()


@pytest.mark.golden("docs/pictures/node.png")
async def test_the_picture_of_a_node_with_a_pulled_cable(browser: Browser):
    async with node("dgx-h100") as machine:
        await machine.kubelet.start()
        await machine.start_agent(node_name="gpu-017")
        await machine.kubelet.until(lambda: len(machine.kubelet.allocatable()) == 9, 20)
        resources = machine.kubelet.capacity()
        nic7 = next(name for name in resources if name.endswith("/nic7"))
        memory = next(name for name in resources if name.endswith("/gpu-mem"))
        pod = PodSpec.single("llama-2-worker-1", {nic7: 1, memory: 48})
        assert (await machine.kubelet.admit(pod)).admitted
        machine.machine.set_link("0000:dc:00.0", up=False)
        tab = await asyncio.to_thread(browser.tab, f"http://127.0.0.1:{machine.port}/ui/", *SIZE)
        trouble = await asyncio.to_thread(tab.shows, "#trouble", "llama-2-worker-1")
        assert trouble.startswith("nic7 (enp220s0np0): down")
        await asyncio.to_thread(agrees, browser, tab, "node")
        await asyncio.to_thread(tab.close)
