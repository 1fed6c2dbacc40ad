"""The node page in Debian's Chromium: of a running agent, and as a file of a machine without one."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from nodeagent.measurements.sample import Sample, Source
from nodeagent.sim.kubelet import PodSpec
from nodeagent.sim.machine import Machine
from tests.support.chromium import Browser
from tests.support.running_agent import node

pytestmark = pytest.mark.needs("chromium")


async def test_the_live_page_shows_holders_faults_curves_and_resources(browser: Browser):
    async with node() as machine:
        await machine.kubelet.start()
        await machine.start_agent(node_name="gpu-17")
        await machine.kubelet.until(lambda: len(machine.kubelet.allocatable()) == 3, 15)
        resources = machine.kubelet.capacity()
        memory = next(name for name in resources if name.endswith("/gpu-mem"))
        nic = next(name for name in resources if "/nic" in name)
        pod = PodSpec.single("trainer", {memory: 4, nic: 1})
        assert (await machine.kubelet.admit(pod)).admitted
        tab = await asyncio.to_thread(browser.tab, f"http://127.0.0.1:{machine.port}/ui/")
        for text in ("trainer", "GPU 0", "PCIe affinity", "NUMA node 0", f"{nic}", "registered"):
            await asyncio.to_thread(tab.until, f"document.body.innerText.includes({text!r})")
        assert "granted" in await asyncio.to_thread(tab.text, "#gpus")
        await asyncio.to_thread(tab.click_on, "#nics summary", "1 held")
        vfs = await asyncio.to_thread(tab.text, "#nics")
        assert "/trainer/" in vfs
        assert "Healthy" in vfs
        assert machine.agent is not None
        pf = machine.machine.pfs[0].address
        for at in (10.0, 25.0, 40.0):
            sample = Sample(at, pf, Source.MODULE, {"module_celsius": 30.0 + at, "rx_power_watts/1": 1e-3})
            machine.agent.pages._history.take([sample], at)
        machine.machine.set_link(pf, up=False)
        await asyncio.to_thread(
            tab.until, "document.getElementById('health').innerText.includes('carrier_down')"
        )
        curves = await asyncio.to_thread(tab.text, "#nics .curves")
        assert "70 °C module temperature" in curves
        assert "0.0 dBm received light" in curves
        health = await asyncio.to_thread(tab.text, "#health")
        assert "threshold" in health
        assert "clears" in health
        assert "1 in trouble" in await asyncio.to_thread(tab.text, "#summary")
        opened = await asyncio.to_thread(tab.value, "document.querySelectorAll('#nics details[open]').length")
        assert opened == 1, "a new document leaves an open table open"
        await asyncio.to_thread(tab.click_on, "#search")
        await asyncio.to_thread(tab.type, "trainer")
        tiles = "[...document.querySelectorAll('.tile')].filter((tile) => !tile.hidden).length"
        assert await asyncio.to_thread(tab.value, tiles) == 2, "one GPU and one NIC"
        assert await asyncio.to_thread(tab.complaints) == []
        await asyncio.to_thread(tab.close)


def test_the_file_of_a_machine_without_an_agent(browser: Browser, tmp_path: Path):
    from nodeagent.cli import main

    Machine.load("dgx-h100").write(tmp_path / "root")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", printed)
        assert main(["health", "--html", "--root", str(tmp_path / "root")]) == 0
    page = tmp_path / "node.html"
    page.write_text(printed.getvalue())
    tab = browser.tab(f"file://{page}")
    tab.until("document.getElementById('summary').innerText.includes('8 GPUs · 13 NICs')")
    assert tab.value("document.querySelectorAll('#gpus .tile').length") == 8
    assert tab.value("document.querySelectorAll('#nics .tile').length") == 13
    assert tab.value("document.querySelectorAll('#affinity .numa').length") == 2
    assert "PXB" in tab.text("#affinity") or "PIX" in tab.text("#affinity")
    tab.emulate(prefers_color_scheme="dark")
    assert tab.value("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(22, 28, 34)"
    assert tab.complaints() == []
    tab.close()
