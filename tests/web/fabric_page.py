"""The fabric map in a browser: what a test does with it and reads from it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.chromium import Tab

READY = "performance.getEntriesByName('nodeagent-painted').length > 0"


class MapPage:
    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        tab.until(READY)

    def cell(self, node: str, link: str) -> tuple[float, float]:
        """The point of a link in the window."""
        x, y = self.tab.value(
            f"""(() => {{
                const map = document.getElementById("map").fabricMap;
                const [box] = map.boxesOf(map.model.find({json.dumps(f"link:{node}/{link}")}));
                const {{ left, top, width, height }} = map.canvas.getBoundingClientRect();
                return [left + width / 2 + (box.x + box.width / 2 - map.view.x) * map.view.scale,
                        top + height / 2 + (box.y + box.height / 2 - map.view.y) * map.view.scale];
            }})()"""
        )
        return x, y

    def is_hatched(self, node: str, link: str) -> bool:
        """Whether stripes of the color of the block or paper are over the symbol of a link that fills its cell."""
        x, y = self.cell(node, link)
        colors: int = self.tab.value(
            f"""(() => {{
                const {{ canvas, context, view }} = document.getElementById("map").fabricMap;
                const {{ left, top }} = canvas.getBoundingClientRect();
                const ratio = canvas.width / canvas.clientWidth;
                const side = Math.max(3, Math.round(6 * view.scale * ratio));
                const at = [({x} - left) * ratio - side / 2, ({y} - top) * ratio - side / 2];
                const {{ data }} = context.getImageData(...at, side, side);
                const pixels = Array.from({{ length: data.length / 4 }}, (_, i) => data.slice(4 * i, 4 * i + 3));
                return new Set(pixels.map((pixel) => pixel.join())).size;
            }})()"""
        )
        return colors > 1

    def lines(self) -> list[list[object]]:
        """The legs that are drawn: the nodes of both ends, the color, and whether the line is dashed."""
        found: list[list[object]] = self.tab.value(
            """(() => {
                const { lines, model } = document.getElementById("map").fabricMap;
                const name = (cell) => model.nodeName(cell.node);
                return lines.map((one) => [name(one.from), name(one.to), one.color, one.dashed]);
            })()"""
        )
        return found

    def click_cell(self, node: str, link: str) -> None:
        self.tab.click(*self.cell(node, link))

    def search(self, text: str) -> str:
        """Type into the search box. Returns the results."""
        self.tab.value(
            "document.getElementById('search').value = ''; document.getElementById('search').focus()"
        )
        self.tab.type(text)
        return self.tab.text("#found")

    def choose(self, filter_: str, value: str) -> None:
        """Choose an entry of a filter, as its keyboard does."""
        self.tab.value(
            f"""(() => {{
                const select = document.querySelector("select[aria-label='{filter_}']");
                select.value = {json.dumps(value)};
                select.dispatchEvent(new Event("change", {{ bubbles: true }}));
            }})()"""
        )

    def detail(self) -> str:
        return self.tab.text("#detail")

    def hash(self) -> dict[str, str]:
        found: dict[str, str] = self.tab.value(
            "Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"
        )
        return found

    def rows(self) -> int:
        """The rows of nodes on the map."""
        count: int = self.tab.value(
            "document.getElementById('map').fabricMap.layout.blocks.reduce((sum, block) => sum + block.nodes.length, 0)"
        )
        return count

    def columns(self) -> list[str]:
        found: list[str] = self.tab.value(
            "document.getElementById('map').fabricMap.layout.blocks[0].columns.map((column) => column.title)"
        )
        return found

    def view(self) -> dict[str, float]:
        found: dict[str, float] = self.tab.value("document.getElementById('map').fabricMap.view")
        return found

    def color(self, name: str) -> str:
        """A color of the style sheet as ``r,g,b``."""
        found: str = self.tab.value(
            f"""(() => {{
                const probe = document.createElement("i");
                probe.style.color = "var({name})";
                document.body.append(probe);
                const color = getComputedStyle(probe).color;
                probe.remove();
                return color.match(/\\d+/g).slice(0, 3).join(",");
            }})()"""
        )
        return found

    def pixels(self, name: str) -> int:
        """How many pixels of the map have a color of the style sheet, once a map that is drawn in steps is whole."""
        self.tab.until("document.getElementById('map').fabricMap.waiting === null")
        return self.tab.colors("#map").get(self.color(name), 0)

    def catch_downloads(self) -> None:
        """Keep the text of downloads instead of saving them."""
        self.tab.value(
            """(() => {
                globalThis.caught = {};
                const make = URL.createObjectURL;
                let last = null;
                URL.createObjectURL = (blob) => { last = blob; return make(blob); };
                HTMLAnchorElement.prototype.click = function () {
                    const name = this.download.replace(/.*\\./, "");
                    last.text().then((text) => { globalThis.caught[name] = text; });
                };
            })()"""
        )

    def downloaded(self, kind: str) -> str:
        text: str = self.tab.until(f"globalThis.caught.{kind}")
        return text

    def complaints(self) -> list[Any]:
        return self.tab.complaints()
