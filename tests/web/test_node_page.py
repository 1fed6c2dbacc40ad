"""The node page in Debian's Chromium: of a running agent, and as a file of a machine without one."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from nodeagent.facts.model import PodNetdev
from nodeagent.measurements.sample import Sample, Source
from nodeagent.web.ui_files import self_contained
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.support.chromium import Browser
from tests.support.running_agent import node
from tests.web.pages_of_samples import node_document

pytestmark = pytest.mark.needs("chromium")


@pytest.mark.slow
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
            await asyncio.to_thread(tab.shows, "body", text)
        await asyncio.to_thread(tab.click_on, "#gpus .tile > summary", "trainer")
        await asyncio.to_thread(tab.shows, "#gpus", "granted")
        await asyncio.to_thread(tab.click_on, "#nics .tile > summary", "1 of")
        await asyncio.to_thread(tab.click_on, "#nics .vfs summary", "1 held")
        assert "Healthy" in await asyncio.to_thread(tab.shows, "#nics", "/trainer/")
        assert machine.agent is not None
        holdings = machine.agent.inventory.snapshot.holdings or ()
        (vf,) = (one for held in holdings if held.resource == nic for one in held.device_ids)
        told = PodNetdev(vf, "default", "trainer", "rail0", ("10.100.16.7/16",))
        machine.agent.inventory.publish("attach", pod_netdevs=(told,))
        await asyncio.to_thread(tab.shows, "#nics", "/trainer/main as rail0, 10.100.16.7/16")
        pf = machine.machine.pfs[1 + int(nic[-1])].address
        for at in (10.0, 25.0, 40.0):
            sample = Sample(at, pf, Source.MODULE, {"module_celsius": 30.0 + at, "rx_power_watts/1": 1e-3})
            machine.agent.pages._history.take([sample], at)
        machine.machine.set_link(pf, up=False)
        await asyncio.to_thread(tab.shows, "#trouble", "carrier_down")
        assert " healthy → down (carrier_down)" in await asyncio.to_thread(
            tab.shows, "#history", "carrier_down"
        )
        curves = await asyncio.to_thread(tab.text, "#nics .tile[open] .curves")
        assert "70 °C module temperature" in curves
        assert "0.0 dBm received light" in curves
        assert "at the top" in await asyncio.to_thread(tab.text, "#health")
        trouble = await asyncio.to_thread(tab.text, "#trouble")
        for text in (
            nic.rpartition("/")[2],
            "down",
            "for ",
            "no carrier",
            "threshold",
            "trainer",
            "check cable",
            "withdrawn",
        ):
            assert text in trouble
        assert await asyncio.to_thread(tab.text, "#strip .bad") == nic[-1]
        top = "document.querySelector('#trouble .entry').getBoundingClientRect().bottom < innerHeight / 2"
        assert await asyncio.to_thread(tab.value, top), "it comes first"
        assert "1 in trouble" in await asyncio.to_thread(tab.text, "#summary")
        opened = await asyncio.to_thread(tab.value, "document.querySelectorAll('#nics details[open]').length")
        assert opened == 2, "a new document leaves an open tile and its table open"
        await asyncio.to_thread(tab.click_on, "#search")
        await asyncio.to_thread(tab.type, "trainer")
        tiles = "[...document.querySelectorAll('.tile')].filter((tile) => !tile.hidden).length"
        assert await asyncio.to_thread(tab.value, tiles) == 2, "one GPU and one NIC"
        assert await asyncio.to_thread(tab.complaints) == []
        await asyncio.to_thread(tab.close)


@pytest.mark.slow
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
    tab.shows("#summary", "8 GPUs · 13 NICs")
    assert tab.value("document.querySelectorAll('#gpus .tile').length") == 8
    assert tab.value("document.querySelectorAll('#nics .tile').length") == 13
    assert tab.value("document.querySelectorAll('#affinity .numa').length") == 2
    assert "PXB" in tab.text("#affinity") or "PIX" in tab.text("#affinity")
    tab.emulate(prefers_color_scheme="dark")
    assert tab.value("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(22, 28, 34)"
    assert tab.complaints() == []
    tab.close()


@pytest.mark.slow
def test_what_is_not_known_is_neither_none_nor_free_nor_healthy(browser: Browser, tmp_path: Path):
    document = json.loads(node_document(tmp_path))
    for resource in document["resources"]:
        resource["held"] = None
    page = tmp_path / "page.html"
    page.write_text(self_contained("node", json.dumps(document).encode()))
    tab = browser.tab(f"file://{page}")
    tab.shows("#summary", "all healthy")
    assert "held" not in tab.text("#summary")
    assert "held" not in tab.text("#nics")
    assert "free" not in tab.text("#nics")
    tab.close()
    document["stale"] = dict.fromkeys(("pci", "gpus"), "it did not answer within 10 s")
    document["gpus"]["gpus"] = document["nics"] = document["places"] = document["resources"] = []
    page.write_text(self_contained("node", json.dumps(document).encode()))
    tab = browser.tab(f"file://{page}")
    tab.shows("#summary", "GPUs not known · NICs not known")
    assert "health not known" in tab.text("#summary")
    assert "healthy" not in tab.text("#summary")
    assert "pci: it did not answer within 10 s" in tab.text("#notices")
    assert "not known" in tab.text("#kubelet")
    assert tab.complaints() == []
    tab.close()


def test_every_name_of_a_link_finds_it_and_the_table_joins_them(browser: Browser, tmp_path: Path):
    document = json.loads(node_document(tmp_path))
    nic = next(nic for nic in document["nics"] if nic["name"] == "nic7")
    page = tmp_path / "page.html"
    page.write_text(self_contained("node", json.dumps(document).encode()))
    for name in ("nic7", nic["netdev"], nic["address"], nic["rdma"]):
        tab = browser.tab(f"file://{page}#at={name}")
        tab.shows("#summary", "all healthy")
        shown = tab.value(
            "[...document.querySelectorAll('#nics .tile:not([hidden])')].map((tile) => tile.dataset.name)"
        )
        assert shown == ["nic7"], name
        assert tab.value("document.querySelector('#nics .tile:not([hidden])').open"), (
            "one that is meant is open"
        )
        row = tab.text("#links tbody tr:not([hidden])")
        for text in ("nic7", nic["netdev"], nic["address"], nic["rdma"], "7 (PIX)"):
            assert text in row
        tab.close()
    tab = browser.tab(f"file://{page}#at=nobody")
    tab.shows("#nothing", "Nothing on this node")
    tab.close()


def test_a_healthy_node_fits_on_two_screens_and_names_its_model_once(browser: Browser, tmp_path: Path):
    document = json.loads(node_document(tmp_path))
    page = tmp_path / "page.html"
    page.write_text(self_contained("node", json.dumps(document).encode()))
    tab = browser.tab(f"file://{page}", 1280, 800)
    tab.shows("#summary", "all healthy")
    assert tab.text("main").count(document["places"][0]["name"]) == 1
    assert document["places"][0]["uuid"] not in tab.text("main"), "until its tile is opened"
    assert tab.value("document.querySelectorAll('#strip button').length") == 21
    assert tab.value("document.querySelector('#nics').getBoundingClientRect().bottom") < 1600
    tab.click_on("#strip button", "3")
    assert tab.value("document.querySelector('.tile[open]').dataset.name") == "nic3"
    tab.close()


HOSTILE = '</script><img src=x onerror="globalThis.pwned=1">'
LONG = "W" * 4096


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [HOSTILE, "ab\u202edc\u2066\u200f", LONG, "\u0000\n\t\x1b[31m", "=1+1"])
def test_hostile_names_on_the_node_page_stay_text_in_their_place(
    browser: Browser, tmp_path: Path, hostile: str
):
    document = json.loads(node_document(tmp_path))
    document["node"] = document["product"] = document["gpuDriver"] = hostile
    document["troubles"], document["stale"] = [hostile], {hostile: hostile}
    gpu = document["gpus"]["gpus"][0]
    pod = {
        "namespace": hostile, "pod": hostile, "granted_bytes": 1 << 33, "used_bytes": 1 << 32, "slices": 8,
    }  # fmt: skip
    gpu["pods"] = [pod]
    gpu["outside"] = [{"pid": 7, "name": hostile, "memory_bytes": 1 << 30}]
    document["places"][0]["name"] = hostile
    document["holders"] = [
        {"namespace": hostile, "pod": hostile, "container": hostile, "resource": hostile, "device_ids": ["a"]}
    ]
    nic = next(nic for nic in document["nics"] if nic["vfs"])
    nic |= {"name": hostile, "netdev": hostile, "driver": hostile, "rdma": hostile, "remedy": hostile}
    nic["reasons"] = [{"key": hostile, "detail": hostile, "warning": False}]
    nic["neighbors"] = [
        {
            "link": hostile, "chassis_id": {"subtype": "mac", "value": hostile}, "stale": True,
            "port_id": {"subtype": "ifname", "value": hostile}, "system_name": hostile,
            "port_description": hostile,
        }
    ]  # fmt: skip
    nic["remarks"] = [{"link": hostile, "key": hostile, "detail": hostile}]
    nic["vfs"][0]["holder"] = hostile
    nic["vfs"][0]["podNetdev"] = hostile
    nic["pods"] = document["places"][0]["pods"] = [hostile]
    document["resources"] = [
        {
            "name": hostile, "devices": 1, "healthy": 1, "held": 1, "registered": False, "reason": hostile,
            "level": None,
        }
    ]  # fmt: skip
    page = tmp_path / "hostile.html"
    page.write_text(self_contained("node", json.dumps(document).encode()))
    tab = browser.tab(f"file://{page}")
    tab.until("document.querySelectorAll('#nics .tile').length === 13")
    tab.value("for (const part of document.querySelectorAll('details')) part.open = true")
    shown = tab.value("document.body.textContent")
    assert not set(shown) & set("\u202e\u2066\u200f\u0000\x1b"), "a character that does not print is escaped"
    for part in (
        "#title",
        "#summary",
        "#notices",
        "#strip",
        "#trouble",
        "#links",
        "#gpus",
        "#nics",
        "#kubelet",
    ):
        escaped = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in hostile)
        assert escaped in tab.value(f"document.querySelector('{part}').textContent"), part
    assert tab.value("[globalThis.pwned ?? 0, document.images.length]") == [0, 0]
    assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is outside of the window"
    tab.click_on("#search")
    tab.type(hostile[:20])
    assert tab.complaints() == []
    tab.close()


async def test_the_configuration_can_switch_the_page_off():
    async with node() as machine:
        await machine.kubelet.start()
        await machine.start_agent(machine.configure("web: {ui: false}\n"))
        for path, status in (("/ui/", 404), ("/ui/document.json", 404), ("/ui", 404), ("/metrics", 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", machine.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            assert int((await reader.read()).split()[1]) == status, path
            writer.close()
        assert machine.agent is not None
        assert not any("_record" in str(task) for task in asyncio.all_tasks()), "no curve is recorded"


RECORDINGS = Path(__file__).parents[1] / "recordings"


def printed(*command: str) -> str:
    from nodeagent.cli import main

    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", text)
        assert main(list(command)) == 0
    return text.getvalue()


@pytest.mark.parametrize("name", ["flaps", "nvlink-errors", "removed-pf"])
def test_the_page_of_recorded_samples_has_the_health_at_their_end(
    browser: Browser, tmp_path: Path, name: str
):
    recording = RECORDINGS / f"{name}.jsonl"
    replayed = [
        json.loads(line) for line in printed("health", "--json", "replay", str(recording)).splitlines()
    ]
    last = {entry["device"]: entry for entry in replayed}
    page = tmp_path / "node.html"
    page.write_text(printed("health", "--html", "replay", str(recording)))
    tab = browser.tab(f"file://{page}")
    tab.shows("#summary", "recorded samples")
    document = json.loads(tab.value("document.getElementById('document').textContent"))
    shown = {nic["address"]: [reason["key"] for reason in nic["reasons"]] for nic in document["nics"]}
    shown |= {gpu["uuid"]: [reason["key"] for reason in gpu["reasons"]] for gpu in document["places"]}
    for device, entry in last.items():
        assert shown[device] == [reason["key"] for reason in entry["after"]["reasons"]]
        for key in shown[device]:
            assert key in tab.text("main")
    assert recording.name in tab.text("#title")
    assert tab.complaints() == []
    tab.close()


def test_the_page_of_recorded_samples_has_curves_and_refuses_what_is_no_recording(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from nodeagent.cli import main

    page = tmp_path / "node.html"
    page.write_text(printed("health", "--html", "replay", str(RECORDINGS / "pauses.jsonl")))
    tab = browser.tab(f"file://{page}")
    tab.until("document.querySelectorAll('#nics .curve').length > 0")
    tab.click_on("#nics .tile > summary")
    assert "paus" in tab.text("#nics .curves")
    tab.close()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no samples\n")
    assert main(["health", "--html", "replay", str(broken)]) != 0
    assert "broken.jsonl" in capsys.readouterr().err
