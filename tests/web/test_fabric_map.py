"""The fabric map in Debian's Chromium: every function of the page is used with real clicks and keys."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import urllib3.util  # noqa: F401 - loaded here: Python 3.11 may fail to import in two threads at once (gh-106176)
from msgspec import structs

from nodeagent.base.change_log import Change
from nodeagent.fabric import FabricRules, HyperNode, Planner
from nodeagent.fabric.away_nodes import AwayNode
from nodeagent.fabric.fabric_settings import IMMEDIATE
from nodeagent.fabric.fabric_view import ViewReport, fabric_view
from nodeagent.fabric.nodelinks import HeldVf, RailLeg, ReportedGpu, VfHolder
from nodeagent.fabric.outcome import WriteRecord
from nodeagent.web import live_document
from nodeagent.web.ui_files import self_contained
from nodeagent_lab.demo.sample_reports import FILE, write_reports
from nodeagent_lab.sim.apiserver.http import stop_listening
from tests.controller.test_controller import RULES, cluster, groups, leaves, nodelinks, running
from tests.fabric.test_fabric_view import published, view_of
from tests.support import fabrics, job_pods
from tests.support.chromium import Browser, Tab
from tests.support.chromium import until as wait_until
from tests.support.fabrics import End
from tests.support.waiting import until
from tests.web.fabric_page import MapPage

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the demo's reports: 64 nodes in two units, with one wrong cable."""
    from nodeagent.cli import main

    folder = tmp_path_factory.mktemp("demo")
    write_reports("dgx-h100", folder, 64)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", printed)
        assert main(["topology", "--from", str(folder / FILE), "--format", "html"]) == 0
    page = folder / "map.html"
    page.write_text(printed.getvalue())
    return page


@pytest.fixture
def demo(browser: Browser, demo_file: Path) -> Iterator[MapPage]:
    tab = browser.tab(f"file://{demo_file}")
    page = MapPage(tab)
    yield page
    assert page.complaints() == []
    tab.close()


def opened(browser: Browser, folder: Path, cables: fabrics.Cables, **more: object) -> MapPage:
    """The page of these cables, from a file."""
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    file = folder / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    return MapPage(browser.tab(f"file://{file}"))


def test_the_time_line_has_the_newest_change_first(browser: Browser, tmp_path: Path) -> None:
    changes = [
        Change(1.8e9 + 200 * i, "nic", f"nic{i}", "healthy", "down", ("no <b>carrier</b>",), node="gpu-1")
        for i in range(20)
    ]
    planner = Planner(FabricRules())
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0, changes=changes)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    tab = browser.tab(f"file://{file}")
    shown = tab.shows("#history", "gpu-1 nic19 healthy → down")
    assert shown.index("nic19") < shown.index("nic18")
    assert "no <b>carrier</b>" in shown
    assert "8 older" in shown
    tab.close()


def with_changes(browser: Browser, folder: Path, changes: list[Change]) -> MapPage:
    """The page of eight nodes at su000-leaf-r0 and others, on which this has changed."""
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in fabrics.rails(1, 8).items():
        planner.report(node, fabrics.links(node, row))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0, changes=changes)
    file = folder / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    return MapPage(browser.tab(f"file://{file}"))


def test_what_one_switch_did_to_many_nodes_is_one_line_with_the_list_below(
    browser: Browser, tmp_path: Path
) -> None:
    """Also if a node changed at the same time by another cause, and the same again much later."""
    leaf = "su000-leaf-r0"
    names = ("nic0", "enp24s0np0")  # the names that all nodes share are no cause

    def down(i: int, at: float, *more: str) -> Change:
        return Change(1.8e9 + at, "nic", "rail0", "healthy", "down", (), (*names, *more), f"su000-n00{i}")

    other = [Change(1.8e9 + 4, "nic", f"rail{i}", "healthy", "down", node="su000-n007") for i in range(1, 4)]
    changes = [
        *(down(i, i, leaf) for i in range(7)),
        *other,
        down(3, 500, leaf),
        down(4, 500, leaf),
        down(5, 501),
    ]
    page = with_changes(browser, tmp_path, sorted(changes, key=lambda change: change.at))
    shown = page.tab.shows("#history", f"{leaf}: 7 links of 7 nodes → down")
    assert "su000-n007: 3 changes → down" in shown
    lines = page.tab.value(
        "[...document.querySelectorAll('#history > div > ol > li')].map((li) => li.innerText.split('\\n')[0])"
    )
    assert [line.partition("Z ")[2].rpartition("Z ")[2] or line for line in lines][:3] == [
        "su000-n005 rail0 healthy → down", "su000-n004 rail0 healthy → down", "su000-n003 rail0 healthy → down",
    ]  # fmt: skip
    assert len(lines) == 5
    hidden = page.tab.value("document.querySelectorAll('#history > div > ol > li li').length")
    assert hidden == 7 + 3
    assert page.complaints() == []


def test_the_slider_goes_back_by_its_keys_and_the_list_stays_there(browser: Browser, tmp_path: Path) -> None:
    """In a file, whose last hours end when it was made."""
    taken = 1_767_225_600.0
    changes = [
        Change(taken - 60 * age, "nic", f"nic{age}", "healthy", "down", node="gpu-1")
        for age in (700, 8, 3, 1)
    ]
    page = with_changes(browser, tmp_path, changes)
    tab = page.tab
    tab.shows("#history", "up to now")
    assert "gpu-1 nic1 " in tab.text("#history")
    tab.value("document.querySelector('#history input').focus()")
    tab.key("ArrowLeft")
    said = tab.shows("#history", "up to 2025-12-31 23:55:00Z, 5 min ago")
    assert "gpu-1 nic8 " in said
    assert "gpu-1 nic3 " not in said
    tab.key("Home")
    assert "Nothing that is known up to then." in tab.shows("#history", "12 h ago")
    tab.key("End")
    assert "gpu-1 nic1 " in tab.shows("#history", "up to now")
    slider = "document.querySelector('#history input')"
    assert tab.value(f"{slider} === document.activeElement") is True
    assert tab.value(f"{slider}.getAttribute('aria-valuetext')") == "up to now"
    assert page.complaints() == []
    tab.close()


def test_the_keys_of_the_page_are_shown_by_one_of_them(demo: MapPage) -> None:
    demo.tab.value("document.body.focus()")
    demo.tab.key("?", "?", shift=True)
    assert "search a node" in demo.tab.shows("#keys", "Keys")
    demo.tab.press("Escape")
    demo.tab.until("!document.getElementById('keys').open")
    demo.tab.click_on("#controls button", "Keys")
    demo.tab.until("document.getElementById('keys').open")
    demo.tab.click_on("#keys-close")
    demo.tab.until("!document.getElementById('keys').open")


def test_the_legend_covers_no_row_and_the_search_names_what_it_finds(demo: MapPage) -> None:
    boxes = demo.tab.value(
        """(() => {
            const box = (id) => document.getElementById(id).getBoundingClientRect();
            const search = document.getElementById("search");
            const ink = document.createElement("canvas").getContext("2d");
            ink.font = getComputedStyle(search).font;
            const text = ink.measureText(search.placeholder).width;
            return [box("map").bottom, box("legend").top, text, search.clientWidth - 20];
        })()"""
    )
    bottom, top, text, room = boxes
    assert bottom <= top + 1
    assert text <= room


def test_a_link_under_maintenance_is_hatched_and_says_why(browser: Browser, tmp_path: Path) -> None:
    cables = fabrics.rails(1, 4, 4)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))
    until_later = {"until": "2027-01-01T00:00:00Z", "reason": "<b>optics</b>", "author": "ann"}
    first, second, *_ = cables
    for node, entry in ((first, {"link": "rail1", **until_later}), (second, until_later)):
        planner.inputs.maintenance.take(node, json.dumps([entry]))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    hatched = {
        (node, link) for node in cables for link in ("rail0", "rail1", "rail2") if page.is_hatched(node, link)
    }
    assert hatched == {(first, "rail1"), *((second, f"rail{n}") for n in range(3))}
    assert "under maintenance" in page.tab.text("#legend")
    said = "maintenance until 2027-01-01T00:00:00Z by ann: <b>optics</b>"
    page.click_cell(first, "rail1")
    assert said in page.detail()
    page.search(second)
    page.tab.key("Enter")
    wait_until(lambda: said in page.detail(), what="the panel of the node")
    assert page.detail().count("healthy, under maintenance") == 4
    page.search("su000-leaf-r1")
    page.tab.key("Enter")
    wait_until(lambda: page.detail().count("under maintenance") == 2, what="the panel of the switch")
    assert page.complaints() == []
    page.tab.close()


def test_a_gpu_in_trouble_marks_its_node_and_leads_to_its_page(browser: Browser, tmp_path: Path) -> None:
    cables = fabrics.rails(2, 4, 2)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    first, second, *_ = cables
    fell = ReportedGpu(
        index=3, pci_address="0000:5e:00.0", state="unhealthy", reasons=("xid_79",),
        reason_details=("XID 79: <b>fell</b> off the bus.",), since="2026-01-01T00:00:00Z", pods=("ml/train-0",),
    )  # fmt: skip
    details = {}
    for node, row in cables.items():
        report = structs.replace(fabrics.links(node, row), gpus=(fell,) if node == first else ())
        planner.report(node, report)
        details[node] = ViewReport(report.links, {}, (), report.gpus)
    view = fabric_view(
        planner.prepare(0.0)(), 0.0, 1_767_225_600.0, details=details, node_page="https://{node}.example/ui/"
    )
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    marked = (
        "(({ model }) => model.content.nodes.filter((name, i) => model.hasTrouble(i)))"
        "(document.getElementById('map').fabricMap)"
    )
    assert page.tab.value(marked) == [first]
    listed = page.tab.text("#list")
    for said in (
        f"{first} GPU 3",
        "unhealthy",
        "XID 79: <b>fell</b> off the bus.",
        "ml/train-0",
        f"Page of {first}",
    ):
        assert said in listed
    page.search(first)
    page.tab.key("Enter")
    wait_until(lambda: "GPUS IN TROUBLE" in page.detail(), what="the GPUs of the node")
    assert "0000:5e:00.0" in page.detail()
    assert f"Page of {first}" in page.detail()
    page.search(second)
    page.tab.key("Enter")
    wait_until(lambda: f"Page of {second}" in page.detail(), what="the panel of the other node")
    assert "GPU 3" not in page.detail()
    assert page.complaints() == []
    page.tab.close()


def test_the_cells_of_a_node_that_is_away_are_grey_frames_and_its_panel_says_why(
    browser: Browser, tmp_path: Path
) -> None:
    cables = fabrics.rails(2, 4, 2)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))
    first, *_, last = cables
    rack = [node for node in cables if node.startswith("su001")]
    for node in (first, *rack):
        planner.inputs.take_away(
            node, AwayNode("unreachable", 1_767_225_000.0, "its <b>kubelet</b> does not answer")
        )
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    drawn = (
        "(({ model }) => model.content.nodes.map((name, i) => [name, model.cell(i, 0, 'health').symbol.color]))"
        "(document.getElementById('map').fabricMap)"
    )
    grey = {name for name, color in page.tab.value(drawn) if color == "--unused"}
    assert grey == {first, *rack}
    assert "its node is away" in page.tab.text("#legend")
    assert "5 nodes away" in page.tab.text("#summary")
    listed = page.tab.text("#list")
    assert "4 nodes went away at once" in listed
    assert "su001-n[000-003]" in listed
    page.click_cell(last, "rail1")
    assert "its node is away: as last reported" in page.detail()
    page.search(last)
    page.tab.key("Enter")
    wait_until(lambda: "its <b>kubelet</b> does not answer" in page.detail(), what="the panel of the node")
    assert "4 nodes went away at once" in page.detail()
    assert page.complaints() == []
    page.tab.close()


def test_legs_that_lose_packets_are_lines_between_their_links(browser: Browser, tmp_path: Path) -> None:
    cables = fabrics.rails(2, 4, 2)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    first, second, third, *_, last = cables
    legs = {
        first: (RailLeg(node=second, nic="rail0", level=100), RailLeg(node=last, nic="rail0", level=10)),
        third: (
            RailLeg(node=last, nic="rail0", level=100, large=True),
            RailLeg(node="gone", nic="x", level=1),
        ),
    }
    legs[second] = (RailLeg(node=first, nic="rail0", level=50),)  # the other end's word of the same pair
    for node, row in cables.items():
        planner.report(node, fabrics.with_legs(fabrics.links(node, row), legs.get(node, ())))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    assert "3 pairs of links with lost probes" in page.tab.text("#summary")
    assert "loses packets between two links" in page.tab.text("#legend")
    assert page.lines() == [
        [first, second, "--down", False],
        [first, last, "--degraded", False],
        [third, last, "--down", True],
    ]
    page.click_cell(first, "rail0")
    assert f"all to and from {second} rail0; about 10 % to and from {last} rail0" in page.detail()
    assert page.lines() == [[first, second, "--down", False], [first, last, "--degraded", False]]
    page.click_cell(last, "rail0")
    assert (
        f"about 10 % to and from {first} rail0; those of the full MTU to and from {third} rail0"
        in page.detail()
    )
    page.click_cell(second, "rail1")
    assert page.lines() == []
    page.catch_downloads()
    page.tab.click_on("#controls button", "SVG")
    picture = page.downloaded("svg")
    assert (picture.count('stroke-width="1.5"'), picture.count("stroke-dasharray")) == (3, 1)
    assert page.complaints() == []
    page.tab.close()


# --- the demo's fabric --------------------------------------------------------------------------------


def test_the_map_shows_each_link_and_lists_the_wrong_cable_with_its_remedy(demo: MapPage):
    assert "64 nodes · 2 leaf groups · 832 healthy · 1 anomaly" in demo.tab.text("#summary")
    healthy = demo.pixels("--healthy")
    assert healthy > 100_000, "the map is blank"
    assert 20 < demo.pixels("--miscabled") < healthy / 100, "one cell is a diamond"
    demo.tab.click_on("#list .link", "gpu-032")
    detail = demo.detail()
    for text in ("gpu-032 · nic3", "hall1-su2-leaf3", "miscabled", "move this cable to hall1-su1-leaf3"):
        assert text in detail
    assert "400 Gbit/s" in detail
    assert "Since" in detail
    assert demo.hash()["at"] == "link:gpu-032/nic3"


def test_a_click_on_a_cell_selects_the_link_and_a_link_to_the_view_selects_it_again(demo: MapPage):
    demo.click_cell("gpu-040", "nic5")
    assert "gpu-040 · nic5" in demo.detail()
    assert "hall1-su2-leaf5" in demo.detail()
    demo.tab.click_on("#detail .link", "hall1-su2-leaf5")
    assert "Links" in demo.detail()
    assert demo.hash()["at"] == "switch:hall1-su2-leaf5"
    assert demo.tab.value("document.getElementById('map').fabricMap.marked.length") == 32
    address = demo.tab.value("location.href")
    demo.tab.open("about:blank")
    demo.tab.open(address)
    assert MapPage(demo.tab).detail().startswith("hall1-su2-leaf5")


def test_search_finds_nodes_switches_ports_and_hypernodes(demo: MapPage):
    assert "gpu-017" in demo.search("pu-017")
    demo.tab.key("Enter")
    assert demo.detail().startswith("gpu-017")
    assert "hall1-su1-leaf6" in demo.search("su1-leaf6")
    found = demo.search("nodeagent-t1")
    assert found.count("HyperNode") == 2
    port = demo.search("hall1-su1-leaf2 swp9")
    assert "hall1-su1-leaf2 swp9" in port
    demo.tab.click_on("#found button", "swp9")
    assert "swp9" in demo.detail()


def test_a_hypernode_says_how_many_of_its_nodes_are_in_trouble_and_why(demo: MapPage):
    """One of the two leaf groups has the node with the wrong cable."""
    said = []
    for found in range(2):
        demo.search("nodeagent-t1")
        demo.tab.value(f"document.querySelectorAll('#found button')[{found}].click()")
        wait_until(lambda: demo.detail().startswith("nodeagent-t1"), what="the panel of the group")
        said.append(demo.detail())
    (trouble,) = [text for text in said if "In trouble" in text]
    assert "1 of 32 nodes: 1 foreign-leaf" in trouble


def test_the_filters_show_only_trouble_one_rail_or_one_fabric(demo: MapPage):
    assert demo.rows() == 64
    demo.tab.click_on("#controls button", "only trouble")
    assert demo.rows() == 1
    assert demo.hash()["only"] == "trouble"
    demo.tab.click_on("#controls button", "only trouble")
    demo.choose("Rail", "3")
    assert demo.columns() == ["rail 3"]
    demo.tab.value("history.back()")
    wait_until(lambda: demo.columns() != ["rail 3"], what="the page follows the address")
    assert "rail" not in demo.hash()
    demo.choose("Fabric", "other")
    assert demo.columns() == [f"other {i}" for i in range(1, 6)]


def test_the_colors_show_health_anomalies_or_roles(demo: MapPage):
    demo.tab.click_on("#controls button", "role")
    demo.tab.shows("#legend", "compute")
    assert demo.pixels("--role-a") > demo.pixels("--role-b") > 10_000
    demo.tab.click_on("#controls button", "anomaly")
    demo.tab.shows("#legend", "cable missing")
    assert demo.pixels("--healthy") == 0
    assert demo.pixels("--miscabled") > 20


def test_the_keyboard_walks_over_the_links_zooms_and_clears(demo: MapPage):
    demo.tab.value("document.getElementById('map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        demo.tab.key(key)
    assert demo.hash()["at"] == "link:gpu-002/nic1"
    assert "gpu-002 nic1: healthy, to hall1-su1-leaf1" in demo.tab.text("#spoken")
    before = demo.view()["scale"]
    demo.tab.key("+", "+")
    assert demo.view()["scale"] > before
    demo.tab.key("0", "0")
    assert demo.view()["scale"] == pytest.approx(before)
    demo.tab.press("Escape")
    assert demo.detail() == ""
    demo.tab.key("/", "/")
    assert demo.tab.value("document.activeElement.id") == "search"


def test_a_drag_pans_the_wheel_zooms_at_the_pointer_and_the_view_is_in_the_address(demo: MapPage):
    x, y = demo.cell("gpu-010", "nic0")
    demo.tab.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-400)
    demo.tab.until("document.getElementById('map').fabricMap.view.scale > 3")
    assert demo.cell("gpu-010", "nic0") == pytest.approx((x, y), abs=1.5)
    demo.tab.drag(400, 400, 120, 80)
    assert demo.cell("gpu-010", "nic0") == pytest.approx((x + 120, y + 80), abs=3)
    demo.tab.until("location.hash.includes('view=')")
    assert demo.detail() == "", "a drag selects nothing"


def test_the_exports_have_every_link(demo: MapPage):
    demo.catch_downloads()
    demo.tab.click_on("#controls button", "CSV")
    rows = list(csv.DictReader(io.StringIO(demo.downloaded("csv"))))
    assert len(rows) == 64 * 13
    assert [row["anomalies"] for row in rows if row["node"] == "gpu-032"].count("foreign-leaf") == 1
    demo.tab.click_on("#controls button", "SVG")
    picture = ElementTree.fromstring(demo.downloaded("svg"))
    names = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"gpu-{n:03}" for n in range(1, 65)} <= set(names)


def test_the_page_follows_the_dark_mode_and_is_readable_on_paper(demo: MapPage):
    light = demo.color("--paper")
    demo.tab.emulate(prefers_color_scheme="dark")
    demo.tab.until("getComputedStyle(document.body).backgroundColor === 'rgb(17, 22, 27)'")
    assert demo.color("--paper") != light
    wait_until(lambda: demo.pixels("--healthy") > 100_000, what="the map is dark")
    demo.tab.emulate(media="print")
    assert demo.tab.value("getComputedStyle(document.getElementById('controls')).display") == "none"
    assert "is cabled to hall1-su2-leaf3" in demo.tab.text("#lists")


def test_a_search_without_a_hit_says_so(demo: MapPage):
    assert "Nothing has this in its name" in demo.search("no-such-thing")
    assert demo.tab.value("document.querySelectorAll('#found button').length") == 0


def test_a_link_is_found_by_each_of_its_names(demo: MapPage):
    report = demo.tab.value(
        "document.getElementById('map').fabricMap.model.content.details['gpu-040'].links"
        ".find((link) => link.name === 'nic2')"
    )
    for name in (report["netdev"], report["pciAddress"], report["mac"]):
        demo.tab.value(f"location.hash = 'at=link:gpu-040/{name}'")
        wait_until(lambda: demo.hash().get("at") == "link:gpu-040/nic2", what=name)
        assert "gpu-040 · nic2" in demo.detail()
    demo.search(f"gpu-041 {report['netdev']}")
    demo.tab.key("Enter")
    wait_until(lambda: demo.hash().get("at") == "link:gpu-041/nic2", what="the search")
    demo.tab.value("location.hash = 'at=link:gpu-040/none'")
    demo.tab.shows("#detail", "gpu-040 reports no link that is called none")


def test_a_block_has_one_title_at_each_zoom_and_it_is_what_its_switches_share(demo: MapPage):
    for scale in (0.3, 0.5, 0.6, 0.64, 0.65, 1.0):
        drawn = demo.tab.value(
            f"""(() => {{
                const map = document.getElementById("map").fabricMap, drawn = [];
                const draw = CanvasRenderingContext2D.prototype.fillText;
                CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {{
                    drawn.push(text);
                    return draw.call(this, text, ...more);
                }};
                map.bitmaps.clear();
                map.painted = false;  // as the first time: all blocks in one frame, however slow the machine
                map.moveTo({{ ...map.view, scale: {scale} }});
                map.drawNow();
                CanvasRenderingContext2D.prototype.fillText = draw;
                return drawn;
            }})()"""
        )
        assert [drawn.count(title) for title in ("hall1-su1", "hall1-su2")] == [1, 1], scale
    assert "hall1-su1" in demo.search("hall1-su1")
    demo.tab.key("Enter")
    assert "nodeagent-t1-hall1-su1" in demo.detail()


def test_one_long_name_leaves_room_for_the_other_columns(browser: Browser, tmp_path: Path):
    cables = fabrics.rails(2, 4, 2)
    node, *_ = cables
    cables[node] = (End("W" * 200, "swp1"), cables[node][1])
    page = opened(browser, tmp_path, cables)
    page.search(node)
    page.tab.key("Enter")
    widths = page.tab.value(
        "[...document.querySelectorAll('#detail thead th')].map((head) => head.getBoundingClientRect().width)"
    )
    assert min(widths) > 40, widths
    page.tab.close()


def test_a_dead_switch_is_the_first_trouble_with_its_pods_time_and_remedy(browser: Browser, tmp_path: Path):
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for number, (node, row) in enumerate(fabrics.rails(2, 4, 2).items()):
        report = fabrics.links(node, row)
        broken = msgspec.structs.replace(
            report.links[0], state="down", reasons=("carrier_down",), reason_details=("no carrier",),
            last_transition_time="2026-01-01T00:00:00Z",
        )  # fmt: skip
        held = VfHolder(
            namespace="team", pod=f"p{number}", vfs=(HeldVf(link="rail0", pci_address="a"),), since=""
        )
        if node.startswith("su000") or node == "su001-n002":
            report = msgspec.structs.replace(report, links=(broken, *report.links[1:]), holders=(held,))
        planner.report(node, report)
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    first, second = page.tab.value(
        "[...document.querySelectorAll('#list .entry')].map((entry) => entry.innerText)"
    )
    for text in (
        "4 links of 4 nodes went down at once",
        "for ",
        "su000-leaf-r0",
        "team/p0",
        "check the switch",
    ):
        assert text in first
    for text in ("down", "su001-n002 rail0 to su001-leaf-r0", "no carrier", "do check cable"):
        assert text in second
    page.tab.click_on("#list .link", "su000-leaf-r0")
    assert page.hash()["at"] == "switch:su000-leaf-r0"
    assert "check the switch" in page.detail()
    page.tab.click_on(".tabs button", "Pods")
    pods = page.tab.value("[...document.querySelectorAll('#list .entry h4')].map((head) => head.innerText)")
    assert len(pods) == 5
    page.tab.click_on("#list .link", "su001-n002")
    assert page.hash()["at"] == "link:su001-n002/rail0"
    assert page.complaints() == []
    page.tab.close()


# --- larger and worse -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_nodes_are_painted_and_one_bad_link_is_seen_in_the_whole(browser: Browser, tmp_path: Path):
    cables = fabrics.rails(32, 32)
    row = cables["su017-n005"]
    cables["su017-n005"] = (*row[:4], None, *row[5:])
    page = opened(browser, tmp_path, cables)
    assert "1024 nodes · 32 leaf groups" in page.tab.text("#summary")
    assert page.pixels("--healthy") > 50_000
    assert page.pixels("--down") >= 9, "a bad link is enlarged"
    page.search("su017-n005")
    page.tab.key("Enter")
    assert page.view()["scale"] > 0.5, "a selected node is brought near"
    assert "reports no link" in page.detail()
    assert page.complaints() == []
    page.tab.close()


def test_a_hostile_switch_name_stays_text(browser: Browser, tmp_path: Path):
    hostile = '</script><img src=x onerror="globalThis.pwned=1">'
    cables = fabrics.rails(2, 4, 2)
    node, other, *_ = cables
    cables[node] = (End(hostile, '=cmd|"/C calc"!A0<b>'), cables[node][1])
    cables[other] = (cables[other][0], End(cables[other][1].switch, hostile + "\u2028"))
    page = opened(browser, tmp_path, cables)
    assert "img" in page.search("onerror"), "the key of the switch is percent-encoded"
    page.click_cell(node, "rail0")
    assert '=cmd|"/C calc"!A0<b>' in page.detail()
    page.click_cell(other, "rail1")
    assert hostile + "\\u2028" in page.detail()
    page.catch_downloads()
    page.tab.click_on("#controls button", "SVG")
    assert "<img" not in page.downloaded("svg")
    ElementTree.fromstring(page.downloaded("svg"))
    page.tab.click_on("#controls button", "CSV")
    rows = list(csv.DictReader(io.StringIO(page.downloaded("csv"))))
    assert any(row["port"].startswith("'=cmd") for row in rows), "a spreadsheet takes it for text"
    assert page.tab.value("[globalThis.pwned ?? 0, document.images.length]") == [0, 0]
    assert page.complaints() == []
    page.tab.close()


def test_the_lists_show_waiting_moves_writes_foreign_hypernodes_and_obstacles(
    browser: Browser, tmp_path: Path
):
    planner, cables = published()
    planner.report("su000-n000", fabrics.links("su000-n000", cables["su001-n000"]))
    planner.hypernode("theirs", HyperNode(name="theirs", tier=1, nodes=("su001-n001",), source="other"))
    now = time.time() - 1_767_225_600.0
    writes = [WriteRecord(time.time() - 90, "create", "HyperNode a", "is new", "409 conflict")]
    view = view_of(planner, now, writes=writes)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    assert "theirs of other holds su001-n001" in page.tab.text("#lists .banner")
    page.tab.click_on(".tabs button", "Moves")
    moves = page.tab.text("#list")
    assert "must stay the same for 60 s" in moves
    assert "at 20" in moves, "when it is due"
    page.tab.click_on("#list .link", "su000-n000")
    assert page.detail().startswith("su000-n000")
    page.tab.click_on(".tabs button", "Writes")
    writes_text = page.tab.text("#list")
    assert "create HyperNode a" in writes_text
    assert "s ago" in writes_text
    assert "409 conflict" in writes_text
    page.tab.click_on(".tabs button", "Foreign")
    assert "which nodeagent places too" in page.tab.text("#list")
    assert page.hash()["list"] == "foreign"
    assert page.complaints() == []
    page.tab.close()


def test_a_node_may_have_the_name_of_a_property_and_text_of_reports_cannot_turn_the_direction(
    browser: Browser, tmp_path: Path
):
    cables = fabrics.rails(2, 4, 2)
    first, *_ = cables
    cables["constructor"] = cables.pop(first)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    details = {}
    for node, row in cables.items():
        planner.report(node, report := fabrics.links(node, row))
        link = report.links[0]
        assert link.neighbor is not None
        neighbor = msgspec.structs.replace(link.neighbor, system_name="ab\u202ecd\u2066")
        details[node] = ViewReport((msgspec.structs.replace(link, neighbor=neighbor),), {})
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0, details=details)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    page = MapPage(browser.tab(f"file://{file}"))
    page.search("constructor")
    page.tab.key("Enter")
    assert "Not placed" not in page.detail()
    page.tab.click_on("#controls button", "only trouble")
    assert page.rows() == 0
    page.tab.value("document.getElementById('map').focus()")
    page.tab.key("Escape")
    page.tab.key("ArrowDown")
    assert "Nothing matches the filters" in page.tab.text("#empty"), "a key on an empty map is no error"
    page.tab.click_on("#controls button", "only trouble")
    page.click_cell("constructor", "rail0")
    assert "ab\\u202ecd\\u2066," in page.tab.shows("#detail", "chassis")
    assert page.complaints() == []
    page.tab.close()


def test_the_keyboard_stays_where_it_was_when_a_list_changes(demo: MapPage):
    demo.tab.value("document.getElementById('tab-moves').focus()")
    demo.tab.key("Enter", "\r")
    assert demo.hash()["list"] == "moves"
    assert demo.tab.value("document.activeElement.id") == "tab-moves"
    demo.tab.value("document.querySelector('.choice button:last-child').focus()")
    demo.tab.key("Enter", "\r")
    assert demo.hash()["color"] == "role"
    assert demo.tab.value("document.activeElement.textContent") == "role"


def test_high_contrast_and_a_narrow_window_keep_what_the_page_shows(demo: MapPage):
    wrong = demo.color("--miscabled")
    demo.tab.size(800, 900)
    box = "document.getElementById('summary')"
    assert demo.tab.value(f"{box}.scrollWidth <= {box}.clientWidth && {box}.clientWidth > 400")
    demo.tab.emulate(forced_colors="active", prefers_reduced_motion="reduce")
    assert demo.tab.value("matchMedia('(forced-colors: active)').matches")
    pressed = "getComputedStyle(document.querySelector('.controls [aria-pressed=true]'))"
    assert demo.tab.value(f"{pressed}.outlineStyle") == "solid", "what is chosen is seen without its color"
    wait_until(lambda: demo.tab.colors("#map").get(wrong, 0) > 20, what="the map keeps its colors")


# --- live -----------------------------------------------------------------------------------------------


class Front:
    """A Service: connections go to the port in ``to``, and break when it changes."""

    def __init__(self) -> None:
        self.to = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Front]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await stop_listening(server)
            self.cut()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._open.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to)
            ends.append(far_writer)
            self._open.add(far_writer)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except OSError:
            pass  # no server
        finally:
            self._open.difference_update(ends)
            for end in ends:
                end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@pytest.mark.slow
async def test_two_viewers_see_a_change_and_a_page_survives_the_end_of_its_controller(browser: Browser):
    async with cluster() as server, running(server, identity="first") as first, Front().serving() as front:
        await until(lambda: len(groups(server)) == 2)
        front.to = await first.port
        address = f"http://127.0.0.1:{front.port}/ui/"
        tabs: list[Tab] = [await asyncio.to_thread(browser.tab, address) for _ in range(2)]
        pages = [await asyncio.to_thread(MapPage, tab) for tab in tabs]
        for tab in tabs:
            await asyncio.to_thread(tab.shows, "#summary", "8 nodes · 2 leaf groups · 16 healthy")
            await asyncio.to_thread(tab.shows, "#state", "first leads")
        assert first.pages.live.viewers == 2
        server.put(nodelinks("node-00", leaves(0), state="down"))
        for page in pages:
            await asyncio.to_thread(page.tab.shows, "#summary", "2 down")
        await asyncio.to_thread(page.click_cell, "node-00", "nic1")
        await asyncio.to_thread(page.tab.shows, "#detail", "su0-leaf1")
        await asyncio.to_thread(tabs[1].close)
        await until(lambda: first.pages.live.viewers == 1)
        async with running(server, identity="second") as second:
            await until(second.cluster.reports.synced.is_set)
            front.to = 1
            front.cut()
            state = "document.getElementById('state')"
            await asyncio.to_thread(
                tabs[0].until,
                f"{state}.className.includes('bad') && {state}.innerText.includes('Connection lost')",
            )
            await until(lambda: first.pages.live.viewers == 0)
            assert first.pages.live._document is None, "without viewers nothing is kept"
            front.to = await second.port
            await asyncio.to_thread(tabs[0].until, f"{state}.innerText.includes('second follows first')")
            server.put(nodelinks("node-00", leaves(0)))
            await asyncio.to_thread(tabs[0].shows, "#summary", "16 healthy")
        assert [text for text in tabs[0].complaints() if "ERR_" not in text] == []
        await asyncio.to_thread(tabs[0].close)


class Refusing:
    """A proxy without a server: it answers 503 to everything, and counts the questions for the events."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[str]()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            method, path, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
            self.asked.put_nowait(f"{method} {path}")
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()


@pytest.mark.slow
async def test_a_page_behind_a_proxy_without_a_server_shows_that_the_connection_is_lost(browser: Browser):
    refusing = Refusing()
    proxy = await asyncio.start_server(refusing.answer, "127.0.0.1", 0)
    async with cluster() as server, running(server) as controller, Front().serving() as front:
        await until(lambda: len(groups(server)) == 2)
        front.to = await controller.port
        tab = await asyncio.to_thread(browser.tab, f"http://127.0.0.1:{front.port}/ui/")
        state = "document.getElementById('state')"
        await asyncio.to_thread(tab.until, f"{state}.innerText.includes('leads')")
        front.to = proxy.sockets[0].getsockname()[1]
        front.cut()
        async with asyncio.timeout(30):
            while await refusing.asked.get() != "GET /ui/document.json":
                pass
            while await refusing.asked.get() != "GET /ui/events":
                pass
        assert "Connection lost" in await asyncio.to_thread(tab.text, "#state")
        front.to = await controller.port
        await asyncio.to_thread(tab.until, f"{state}.innerText.includes('leads')")
        await asyncio.to_thread(tab.close)
    await stop_listening(proxy)


@pytest.mark.slow
async def test_the_viewer_beyond_the_bound_asks_now_and_then_and_shows_it(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live_document, "VIEWERS_MAX", 1)
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        address = f"http://127.0.0.1:{await controller.port}/ui/"
        first = await asyncio.to_thread(browser.tab, address)
        await asyncio.to_thread(first.shows, "#state", "leads")
        second = await asyncio.to_thread(browser.tab, address)
        await asyncio.to_thread(second.shows, "#state", "too many viewers")
        assert "8 nodes" in await asyncio.to_thread(second.text, "#summary")
        assert "live" in await asyncio.to_thread(first.text, "#state")
        for tab in (first, second):
            await asyncio.to_thread(tab.close)


# --- pods and reasons -----------------------------------------------------------------------------------

HELD = {
    "namespace": "team", "pod": "trainer-0", "since": "2026-11-23T10:00:00Z",
    "vfs": [{"link": "nic0", "pciAddress": "0000:18:00.2"}, {"link": "nic1", "pciAddress": "0000:2a:00.2"}],
}  # fmt: skip


async def test_a_pod_is_found_and_a_link_shows_who_holds_its_vfs_since_when_and_why_it_is_degraded(
    browser: Browser,
):
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        report = nodelinks("node-12", leaves(1), state="degraded")
        report["links"][0] |= {
            "reasons": ["pre_fec_ber"],
            "reasonDetails": ["nic0: 3e-4 <b>bit errors</b>, limit 1e-4"],
        }
        server.put(report | {"holders": [HELD, HELD | {"pod": "<img src=x>", "vfs": HELD["vfs"][1:]}]})
        await until(lambda: len(controller.fabric.parts.mirror.pods._pods) == 1)
        tab = await asyncio.to_thread(browser.tab, f"http://127.0.0.1:{await controller.port}/ui/")
        page = await asyncio.to_thread(MapPage, tab)
        await asyncio.to_thread(page.search, "m/Trainer")
        assert "pod on node-12" in await asyncio.to_thread(tab.shows, "#found", "team/trainer-0")
        await asyncio.to_thread(tab.key, "Enter")
        node = await asyncio.to_thread(tab.shows, "#detail", "0000:18:00.2")
        assert node.startswith("node-12")
        assert "team/<img src=x>" in node
        await asyncio.to_thread(page.click_cell, "node-12", "nic0")
        link = await asyncio.to_thread(tab.shows, "#detail", "2026-11-23 10:00")
        assert "3e-4 <b>bit errors</b>, limit 1e-4" in link, "the value beside the threshold"
        assert "Clears: " in link
        assert "0000:2a:00.2" not in link, "a VF of another link"
        assert "ago" in link
        server.put(report | {"holders": []})
        await until(lambda: not controller.fabric.parts.mirror.pods._pods)
        await asyncio.to_thread(page.click_cell, "node-12", "nic1")
        await asyncio.to_thread(tab.shows, "#detail", "cluster.reportHolders")
        assert await asyncio.to_thread(tab.value, "document.images.length") == 0
        assert await asyncio.to_thread(tab.complaints) == []
        await asyncio.to_thread(tab.close)


async def test_the_map_shows_the_nodes_of_a_job_alone_and_follows_its_pods(browser: Browser):
    rules = structs.replace(RULES, jobs=True)
    async with cluster() as server, running(server, rules) as controller:
        for number, node in enumerate(("node-00", "node-12")):
            server.put(job_pods.of_jobset("llama", number, node=node))
        server.put(job_pods.of_job("llama-eval", node="node-01"))
        await until(lambda: len(groups(server)) == 2)
        jobs = controller.fabric.parts.features["jobs"].shown
        await until(lambda: jobs is not None and len(jobs.pods.objects) == 3)
        address = f"http://127.0.0.1:{await controller.port}/ui/"
        tab = await asyncio.to_thread(browser.tab, address)
        page = await asyncio.to_thread(MapPage, tab)
        await asyncio.to_thread(tab.until, "document.querySelector('#job option') !== null")
        offered = "[...document.querySelectorAll('#job option')].map((one) => one.value).sort()"
        assert await asyncio.to_thread(tab.value, offered) == ["Job ml/llama-eval", "JobSet ml/llama"]
        await asyncio.to_thread(tab.value, "document.querySelector('#job input').focus()")
        await asyncio.to_thread(tab.type, "JobSet ml/llama")
        await asyncio.to_thread(tab.key, "Enter")
        rows = "document.getElementById('map').fabricMap.layout.blocks.flatMap((one) => one.nodes).length"
        await asyncio.to_thread(tab.until, f"{rows} === 2")
        assert (await asyncio.to_thread(page.hash))["job"] == "JobSet ml/llama"
        server.put(job_pods.of_jobset("llama", 2, node="node-03"))
        await until(lambda: jobs is not None and len(jobs.pods.objects) == 4)
        server.put(nodelinks("node-03", leaves(0), state="degraded"))
        await asyncio.to_thread(tab.until, f"{rows} === 3")
        await asyncio.to_thread(tab.value, "history.back()")
        await asyncio.to_thread(tab.until, f"{rows} === 8")
        await asyncio.to_thread(tab.close)
        gone = await asyncio.to_thread(browser.tab, f"{address}#job=Job+ml/none")
        await asyncio.to_thread(gone.shows, "#job", "no such job")
        assert await asyncio.to_thread(gone.complaints) == []
        await asyncio.to_thread(gone.close)


HOLD_REPORTS = """{
  const get = window.fetch;
  window.fetch = (url, options) => String(url).startsWith("node.json") ? new Promise(() => {}) : get(url, options);
}"""


async def test_the_report_of_a_node_stays_in_sight_until_the_next_one_arrives(browser: Browser):
    async with cluster() as server, running(server) as controller:
        await until(lambda: len(groups(server)) == 2)
        tab = await asyncio.to_thread(browser.tab, f"http://127.0.0.1:{await controller.port}/ui/")
        page = await asyncio.to_thread(MapPage, tab)
        await asyncio.to_thread(page.click_cell, "node-12", "nic1")
        await asyncio.to_thread(tab.shows, "#detail", "cluster.reportHolders")
        await asyncio.to_thread(tab.value, HOLD_REPORTS)
        server.put(nodelinks("node-00", leaves(0), state="down"))
        await asyncio.to_thread(tab.shows, "#summary", "2 down")
        assert "cluster.reportHolders" in await asyncio.to_thread(page.detail)
        await asyncio.to_thread(page.click_cell, "node-00", "nic1")
        await asyncio.to_thread(tab.shows, "#detail", "Reading the report of the node")
        await asyncio.to_thread(tab.close)


def test_a_file_finds_the_pods_of_the_reports_that_it_has(browser: Browser, tmp_path: Path):
    from nodeagent.cli import main

    reports = [nodelinks(f"node-0{n}", leaves(0)) for n in range(3)]
    reports[1]["holders"] = [HELD]
    source = tmp_path / "links.yaml"
    source.write_text("\n---\n".join(map(json.dumps, reports)))
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", printed)
        assert main(["topology", "--from", str(source), "--format", "html"]) == 0
    file = tmp_path / "map.html"
    file.write_text(printed.getvalue())
    page = MapPage(browser.tab(f"file://{file}"))
    page.search("trainer")
    page.tab.shows("#found", "pod on node-01")
    page.tab.click_on("#found button", "trainer")
    page.tab.shows("#detail", "2026-11-23 10:00:00Z")
    assert page.complaints() == []
    page.tab.close()


# --- titles, paper and addresses ------------------------------------------------------------------------


def test_the_titles_of_leaf_groups_differ_although_their_names_are_long(browser: Browser, tmp_path: Path):
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in fabrics.rails(4, 2, 2).items():
        planner.report(node, fabrics.links(node, row))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    named = tuple(
        msgspec.structs.replace(hypernode, name=f"datacenter-east-hall-7-scalable-unit-{i}")
        for i, hypernode in enumerate(view.hypernodes)
    )
    file = tmp_path / "map.html"
    document = msgspec.json.encode(msgspec.structs.replace(view, hypernodes=named))
    file.write_text(self_contained("fabric", document))
    page = MapPage(browser.tab(f"file://{file}"))
    page.catch_downloads()
    page.tab.click_on("#controls button", "SVG")
    picture = ElementTree.fromstring(page.downloaded("svg"))
    titles = [
        element.text
        for element in picture.iter("{http://www.w3.org/2000/svg}text")
        if element.get("font-weight") == "600"
    ]
    assert len(titles) == len(set(titles)) == 4, titles
    page.tab.close()


def test_a_page_in_dark_mode_is_printed_in_the_colors_of_paper(demo: MapPage):
    light = {name: demo.color(f"--{name}") for name in ("paper", "healthy", "quiet")}
    demo.tab.emulate(prefers_color_scheme="dark")
    wait_until(lambda: demo.tab.colors("#map").get("255,255,255", 0) == 0, what="the map is dark")
    demo.tab.emulate(media="print", prefers_color_scheme="dark")
    assert demo.color("--paper") == "255,255,255"
    assert demo.color("--healthy") == light["healthy"]
    wait_until(lambda: demo.tab.colors("#map").get("255,255,255", 0) > 100_000, what="the map is white")
    demo.tab.emulate(media="", prefers_color_scheme="dark")
    wait_until(lambda: demo.tab.colors("#map").get("255,255,255", 0) == 0, what="the map is dark again")


@pytest.mark.parametrize(
    "state",
    [
        "at=link:__proto__/x&color=constructor&list=__proto__",
        "at=hypernode:toString&rail=999&fabric=%3Cb%3E&only=x",
        "view=1,1,1e9",
        "view=1e308,-1e308,1e-300",
        "view=,,&at=node:",
        "__proto__=1&toString=2&at=%E0%A4%A&color=%00",
    ],
)
def test_a_broken_link_to_a_view_shows_the_map_and_can_be_left(demo: MapPage, demo_file: Path, state: str):
    demo.tab.open("about:blank")
    demo.tab.open(f"file://{demo_file}#{state}")
    page = MapPage(demo.tab)
    assert "64 nodes" in page.tab.text("#summary")
    page.tab.click_on("#controls button", "health")
    page.choose("Rail", "")
    page.choose("Fabric", "")
    page.tab.click_on("#controls button", "Fit")
    if page.hash().get("only"):
        page.tab.click_on("#controls button", "only trouble")
    wait_until(lambda: page.pixels("--healthy") > 100_000, what="the map is drawn")
