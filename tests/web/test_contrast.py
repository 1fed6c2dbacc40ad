"""Text of both pages can be read: each has a contrast of at least 4.5 with what is behind it (WCAG 2.2, 1.4.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chromium import Browser, Tab
from tests.web.fabric_page import MapPage
from tests.web.pages_of_samples import map_file, node_file

pytestmark = pytest.mark.needs("chromium")

FAINT = """((least) => {
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const over = ([r, g, b, a = 1], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
    const behind = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) layers.push(numbers(getComputedStyle(at).backgroundColor));
        const seen = layers.reverse().filter((layer) => layer[3] !== 0);
        return seen.reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const light = (color) => {
        const [r, g, b] = color.map((part) => ((part / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => {
        const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
        return (high + 0.05) / (low + 0.05);
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = {};
    let count = 0;
    while (texts.nextNode()) {
        const { parentElement: element, data } = texts.currentNode;
        if (!data.trim() || !element.checkVisibility() || element.closest("svg, script, noscript")) continue;
        count += 1;
        const below = behind(element);
        const ratio = contrast(over(numbers(getComputedStyle(element).color), below), below);
        const name = `${element.className || element.tagName}: ${data.trim().slice(0, 30)}`;
        if (ratio < least) found[name] = ratio.toFixed(2);
    }
    const root = getComputedStyle(document.documentElement), probe = document.createElement("i");
    document.body.append(probe);
    const color = (name) => { probe.style.color = `var(${name})`; return numbers(getComputedStyle(probe).color); };
    for (const text of ["--ink", "--quiet"]) for (const ground of ["--paper", "--block", "--frame", "--panel"]) {
        const ratio = contrast(color(text), color(ground));
        if (ratio < least) found[`${text} on ${ground}`] = ratio.toFixed(2);
    }
    probe.remove();
    return [count, found];
})(4.5)"""


def readable(tab: Tab) -> None:
    for theme in ("light", "dark"):
        tab.emulate(prefers_color_scheme=theme)
        count, faint = tab.value(FAINT)
        assert count > 40
        assert faint == {}, theme


def test_every_text_of_the_map_and_its_panel_can_be_read(browser: Browser, tmp_path: Path):
    page = MapPage(browser.tab(f"file://{map_file(tmp_path)}#at=link:gpu-032/nic3"))
    page.tab.shows("#detail", "Speed")
    readable(page.tab)
    page.tab.value("document.querySelector('.entry h4').style.color = 'var(--unused)'")
    assert page.tab.value(FAINT)[1], "the test sees a faint text"
    page.tab.close()


def test_every_text_of_the_node_page_can_be_read(browser: Browser, tmp_path: Path):
    tab = browser.tab(f"file://{node_file(tmp_path)}")
    tab.until("document.querySelectorAll('#nics .tile').length === 13")
    tab.value("for (const part of document.querySelectorAll('details')) part.open = true")
    readable(tab)
    tab.close()
