"""The files of the pages: what is served, with which headers, and how they become one file."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from nodeagent.web.live_document import VIEWERS_MAX, LiveDocument
from nodeagent.web.server import PageRequest
from nodeagent.web.ui_files import FOLDER, UiFiles, self_contained
from nodeagent.web.ui_pages import UiPages
from tests.support.findings import one_item

MODULES = sorted(FOLDER.glob("*.js"))
_TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.M)


def reached(main: str) -> list[Path]:
    """The modules that a page loads."""
    found, todo = [], [FOLDER / main]
    while todo:
        module = todo.pop()
        if module not in found:
            found.append(module)
            todo += [FOLDER / f"{name}.js" for name in re.findall(r'from "\./(\w+)\.js"', module.read_text())]
    return found


@pytest.mark.parametrize("page", ["fabric", "node"])
def test_the_modules_of_a_page_share_no_name_because_the_file_joins_them(page: str):
    names = [name for module in reached(f"{page}.js") for name in _TOP_LEVEL.findall(module.read_text())]
    assert len(names) > 20
    assert len(names) == len(set(names))


@one_item("module", MODULES, ids=lambda path: path.name)
def test_a_module_never_parses_markup_and_loads_nothing_from_elsewhere(module: Path):
    text = module.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert module in reached("fabric.js") + reached("node.js"), "no page needs it"


@pytest.mark.parametrize("page", ["fabric", "node"])
def test_the_file_needs_nothing_else_and_its_document_cannot_end_its_element(page: str):
    document = json.dumps({"name": "</script><b>\u2028\u2029&<!--"}, ensure_ascii=False).encode()
    html = self_contained(page, document)
    assert not re.search(r'\b(?:src|href)="(?!data:|#)', html)
    assert "\nimport " not in html
    assert "\nexport " not in html
    stored = html.partition('id="document">')[2].partition("</script>")[0]
    assert json.loads(stored)["name"] == "</script><b>\u2028\u2029&<!--"
    assert "\u2028" not in html


@pytest.mark.parametrize("name", ["fabric.js", "style.css", "icon.svg", ""])
async def test_files_are_served_with_a_policy_that_refuses_others(name: str):
    page = await UiFiles("fabric").page(name)
    assert page.status == 200
    headers = "\n".join(page.headers)
    assert "default-src 'none'; script-src 'self'" in headers
    assert "require-trusted-types-for 'script'" in headers
    assert "nosniff" in headers


@pytest.mark.parametrize(
    "name", ["../server.py", "..%2fserver.py", "no.js", "style.css/", "/etc/passwd", "A.js", "fabric.py"]
)
async def test_nothing_else_is_served(name: str):
    assert (await UiFiles("fabric").page(name)).status == 404


def request(path: str) -> PageRequest:
    name, _, query = path.partition("?")
    return PageRequest("GET", name, {}, True, query)


async def test_viewers_share_one_document_and_beyond_the_bound_they_are_refused():
    made = []

    async def make() -> bytes:
        made.append(1)
        return b'{"a":1}'

    live = LiveDocument(make, lambda: asyncio.Event().wait())
    pages = UiPages("fabric", live)
    streams = []
    for _ in range(VIEWERS_MAX):
        page = await pages.answer(request("/ui/events"))
        assert page.stream is not None
        streams.append(page.stream)
        await anext(page.stream)
    assert (await pages.answer(request("/ui/events"))).status == 503
    documents = [await pages.answer(request("/ui/document.json")) for _ in range(10)]
    assert len({document.body for document in documents}) <= 2
    await anext(streams[0])
    assert len(made) <= 2, "one for the viewers, one for who came before it was ready"
    for stream in streams:
        await stream.aclose()
    assert live.viewers == 0
    assert live._document is None
    assert (await pages.answer(request("/ui"))).status == 301


async def test_viewers_that_ask_at_the_same_time_do_not_exceed_the_bound():
    async def make() -> bytes:
        return b'{"a":1}'

    live = LiveDocument(make, lambda: asyncio.Event().wait())
    pages = [live.events() for _ in range(2 * VIEWERS_MAX)]
    streams = [page.stream for page in pages if page.stream is not None]
    received = [await anext(stream, None) for stream in streams]
    assert live.viewers == VIEWERS_MAX
    assert received.count(None) == VIEWERS_MAX, "the others end and ask again"
    for stream in streams:
        await stream.aclose()
    assert live.viewers == 0
