"""Screenshots of both pages against references: a page that lost its canvas, its style or a part is noticed.

A screenshot is compared as a grid: how bright each field is, and how much its pixels differ from each other, because
letters differ between versions of fonts and browsers, and most of a page is as bright as paper.
`make golden ROOM=tests/web` writes the references; look at the page before.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.chromium import Browser, Tab
from tests.web.pages_of_samples import map_file, node_file

pytestmark = pytest.mark.needs("chromium")

REFERENCES = Path(__file__).parent / "screens"
COLUMNS, ROWS = 28, 18
LEVELS = "0123456789abcdef"
BRIGHTNESS, CONTRAST = 16, 5
"""Gray levels of 256 in one level of the grid: of the mean, and of the standard deviation."""
DIFFERS = 3
"""Levels of 16 by which a field of the grid differs from the reference."""
GROSS = 0.08
"""Share of such fields that is a gross breakage: each one below has at least twice as many."""

BREAKAGES = {
    "map": {
        "a blank canvas": "document.getElementById('map').style.visibility = 'hidden'",
        "no style": "document.querySelector('style').sheet.disabled = true",
        "no lists": "document.getElementById('side').remove()",
        "the wrong colors": "document.documentElement.style.filter = 'invert(1)'",
    },
    "node": {
        "no style": "document.querySelector('style').sheet.disabled = true",
        "no links": "document.getElementById('links').remove()",
        "the wrong colors": "document.documentElement.style.filter = 'invert(1)'",
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "map": map_file(tmp_path_factory.mktemp("map")),
        "node": node_file(tmp_path_factory.mktemp("node")),
    }


@pytest.fixture
def opened(browser: Browser, files: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Tab]:
    page = request.node.callspec.params["page"]
    tab = browser.tab(f"file://{files[page]}")
    tab.until("document.getElementById('summary').textContent.length > 20")
    tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    tab.until("!document.getElementById('map')?.fabricMap?.waiting")
    yield tab
    tab.close()


def grid(browser: Browser, screenshot: bytes) -> list[str]:
    """The screenshot as rows of levels, two for each field: brightness and contrast."""
    picture = "data:image/png;base64," + base64.b64encode(screenshot).decode()
    reader = browser.tab("about:blank")
    levels: list[int] = reader.value(
        f"""(async () => {{
            const image = new Image();
            image.src = {json.dumps(picture)};
            await image.decode();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.width, image.height];
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const {{ data }} = context.getImageData(0, 0, image.width, image.height);
            const [sums, squares, counts] = [0, 0, 0].map(() => new Float64Array({COLUMNS * ROWS}));
            for (let y = 0; y < image.height; y += 1) for (let x = 0; x < image.width; x += 1) {{
                const row = Math.floor(y * {ROWS} / image.height), column = Math.floor(x * {COLUMNS} / image.width);
                const field = row * {COLUMNS} + column;
                const at = 4 * (y * image.width + x);
                const gray = 0.3 * data[at] + 0.59 * data[at + 1] + 0.11 * data[at + 2];
                sums[field] += gray;
                squares[field] += gray * gray;
                counts[field] += 1;
            }}
            return [...sums].flatMap((sum, i) => {{
                const mean = sum / counts[i], spread = Math.sqrt(Math.max(0, squares[i] / counts[i] - mean * mean));
                return [mean / {BRIGHTNESS}, spread / {CONTRAST}].map((level) => Math.min(15, Math.floor(level)));
            }});
        }})()"""
    )
    reader.close()
    text = "".join(LEVELS[level] for level in levels)
    return [text[start : start + 2 * COLUMNS] for start in range(0, len(text), 2 * COLUMNS)]


def difference(found: list[str], reference: list[str]) -> float:
    """The share of fields that differ."""
    levels = [[LEVELS.index(level) for level in "".join(rows)] for rows in (found, reference)]
    differ = [abs(a - b) >= DIFFERS for a, b in zip(*levels, strict=True)]
    return sum(map(any, zip(differ[::2], differ[1::2], strict=True))) / (COLUMNS * ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("page", list(BREAKAGES))
@pytest.mark.golden("tests/web/screens/*.txt")
def test_a_page_looks_like_its_reference(browser: Browser, opened: Tab, page: str):
    found, file = grid(browser, opened.screenshot()), REFERENCES / f"{page}.txt"
    if golden.written(file):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(found) + "\n")
    assert difference(found, file.read_text().split()) < GROSS, "\n".join(found)


@pytest.mark.parametrize(
    ("page", "breakage"), [(page, name) for page, breakages in BREAKAGES.items() for name in breakages]
)
def test_a_gross_breakage_is_noticed(browser: Browser, opened: Tab, page: str, breakage: str):
    opened.value(BREAKAGES[page][breakage])
    opened.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    reference = (REFERENCES / f"{page}.txt").read_text().split()
    found = difference(grid(browser, opened.screenshot()), reference)
    assert found > 2 * GROSS, f"{found:.3f}"
