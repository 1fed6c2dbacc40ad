"""Both pages with the keyboard alone: Tab, the arrow keys, Enter and Escape reach all that a mouse does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from nodeagent.fabric import IMMEDIATE, FabricRules, Planner
from nodeagent.fabric.fabric_view import fabric_view
from nodeagent.web.ui_files import self_contained
from tests.support import fabrics
from tests.support.chromium import Browser, Tab
from tests.web.fabric_page import MapPage
from tests.web.pages_of_samples import map_file, node_file

pytestmark = pytest.mark.needs("chromium")

STOPS_MAX = 200
FOCUSED = """(() => {
    const { activeElement: element } = document;
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    return {
        tag: element.tagName.toLowerCase(), id: element.id,
        text: (element.getAttribute("aria-label") ?? element.textContent).trim(),
        outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
        inside: box.width > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth,
    };
})()"""


def stops(tab: Tab, good: Callable[[dict[str, str]], object]) -> list[dict[str, str]]:
    """Press Tab until the focus is on a good element. Each element on the way shows that it has the focus."""
    passed = []
    for _ in range(STOPS_MAX):
        tab.press("Tab")
        at = tab.value(FOCUSED)
        if at["tag"] == "body":
            continue  # the end of the page
        passed.append(at)
        assert at["outlined"], f"the focus is not seen on {at}"
        assert at["inside"], f"the focus is outside of the window on {at}"
        if good(at):
            return passed
    pytest.fail(f"Tab never comes there: {passed}")


def to(tab: Tab, text: str, tag: str = "") -> None:
    stops(tab, lambda at: text in at["text"] and tag in ("", at["tag"]))


def test_the_map_can_be_used_without_a_mouse(browser: Browser, tmp_path: Path):
    tab = browser.tab(f"file://{map_file(tmp_path)}")
    page = MapPage(tab)

    stops(tab, lambda at: at["id"] == "search")
    tab.type("gpu-01")
    assert tab.text("#found").count("gpu-01") == 10
    tab.press("ArrowDown")
    tab.press("ArrowDown")
    tab.press("Enter")
    assert page.detail().startswith("gpu-012"), "the third result"
    to(tab, "nodeagent-t1", "button")
    tab.press("Enter")
    assert page.hash()["at"].startswith("hypernode:"), (
        "the leaf group, as by a click on the title of its block"
    )
    stops(tab, lambda at: at["id"] == "search")
    tab.type("2")
    assert "gpu-012" in tab.text("#found")
    to(tab, "health", "button")
    assert tab.value("document.getElementById('found').hidden"), "the results do not stay open over the map"
    to(tab, "role", "button")
    tab.press("Enter")
    assert page.hash()["color"] == "role"
    to(tab, "only trouble", "button")
    tab.press("Enter")
    assert page.rows() == 1
    tab.press("Enter")
    to(tab, "Rail", "select")
    tab.press("ArrowDown")
    assert page.hash()["rail"] == "0"
    tab.press("ArrowUp")
    assert "rail" not in page.hash()
    scale = page.view()["scale"]
    to(tab, "+", "button")
    tab.press("Enter")
    assert page.view()["scale"] > scale
    page.catch_downloads()
    to(tab, "CSV", "button")
    tab.press("Enter")
    assert "foreign-leaf" in page.downloaded("csv")

    stops(tab, lambda at: at["id"] == "map")
    tab.press("Escape")
    assert page.detail() == ""
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        tab.press(key)
    at = page.hash()["at"]
    assert page.detail().strip().startswith(at.removeprefix("link:").replace("/", " · "))
    before = page.view()
    tab.press("ArrowRight", shift=True)
    assert page.view()["x"] != before["x"], "Shift and an arrow key pan"
    assert page.hash()["at"] == at
    to(tab, "Close", "button")
    tab.press("Enter")
    assert page.detail() == ""
    to(tab, "gpu-032", "button")
    tab.press("Enter")
    assert "is cabled to hall1-su2-leaf3" in page.detail(), "an anomaly of the list"
    to(tab, "Writes", "button")
    tab.press("Enter")
    assert page.hash()["list"] == "writes"
    assert page.complaints() == []
    tab.close()


def test_a_hypernode_above_the_leaf_groups_is_reached_from_its_members(browser: Browser, tmp_path: Path):
    cables = fabrics.rails(2, 4, 2)
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in cables.items():
        planner.report(node, fabrics.links(node, row))
    leaves = {end.switch for row in cables.values() for end in row if end is not None}
    planner.uplinks(dict.fromkeys(leaves, ("spine-1", "spine-2")))
    view = fabric_view(planner.prepare(0.0)(), 0.0, 1_767_225_600.0)
    assert any(hypernode.tier == 2 for hypernode in view.hypernodes)
    file = tmp_path / "map.html"
    file.write_text(self_contained("fabric", msgspec.json.encode(view)))
    tab = browser.tab(f"file://{file}")
    page = MapPage(tab)
    stops(tab, lambda at: at["id"] == "map")
    tab.press("ArrowDown")
    for tier in (1, 2):
        name = next(h.name for h in view.hypernodes if h.tier == tier and h.name in page.detail())
        to(tab, name, "button")
        tab.press("Enter")
        assert page.hash()["at"] == f"hypernode:{name}"
    assert "Contains" in page.detail()
    tab.close()


@pytest.mark.slow
def test_the_skip_link_leads_from_the_map_to_the_lists(browser: Browser, tmp_path: Path):
    tab = browser.tab(f"file://{map_file(tmp_path)}")
    MapPage(tab)
    tab.press("Tab")
    assert tab.value(FOCUSED)["text"] == "Skip the map"
    tab.press("Enter")
    assert tab.value("document.activeElement.id") == "lists"
    tab.press("Tab")
    assert tab.value("document.getElementById('lists').contains(document.activeElement)")
    tab.close()


@pytest.mark.slow
def test_the_node_page_can_be_used_without_a_mouse(browser: Browser, tmp_path: Path):
    tab = browser.tab(f"file://{node_file(tmp_path)}")
    tab.until("document.querySelectorAll('#nics .tile').length === 13")
    stops(tab, lambda at: at["id"] == "search")
    tab.type("gpu 3")
    shown = "[...document.querySelectorAll('#gpus .tile')].filter((tile) => !tile.hidden).length"
    assert tab.value(shown) == 1
    tab.press("Escape")
    assert tab.value(shown) == 8, "Escape clears the search"
    to(tab, "nic7: healthy", "button")
    tab.press("Enter")
    assert tab.value("document.activeElement.closest('.tile').dataset.name") == "nic7", (
        "a cell leads to its tile"
    )
    to(tab, "VFs", "summary")
    stops(tab, lambda at: at["text"] == "All rules")
    tab.press("Enter")
    assert tab.value("document.querySelector('#health details').open")
    assert tab.complaints() == []
    tab.close()
