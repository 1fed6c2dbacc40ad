"""The files of the pages, and a page as one self-contained file.

A page is one HTML file, a style sheet and JavaScript modules in the folder ``ui`` beside this module, served as they
are. The self-contained form has the same modules in one script: modules import each other by name in statements that
start a line, so that leaving out these statements and the word ``export`` joins them.

The policy of both forms lets a page load nothing from elsewhere and run no script but its own. It also forbids the
functions that parse text as markup (Trusted Types), so that a name from the wire can only become text.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.web.server import Page

FOLDER = Path(__file__).parent / "ui"
_READ_S = 3.0
PageName = Literal["fabric", "node"]
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILE = re.compile(r"[a-z_]+\.(html|css|js|svg)")
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|class|const)", re.MULTILINE)
_CHARSET = '<meta charset="utf-8">'
_NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    f"form-action 'none'; frame-ancestors 'self'; {_NO_MARKUP}"
)
_HEADERS = (
    f"Content-Security-Policy: {POLICY}",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-cache",
)


class UiFiles:
    """Serves the files of one page: ``index`` is the answer for the folder itself. Nothing is kept in memory."""

    def __init__(self, index: PageName) -> None:
        self._index = f"{index}.html"
        self._reads = BoundedCalls("files of the page", _READ_S)

    async def page(self, name: str) -> Page:
        """The file with this name, or 404. Raises ``OSError`` if it cannot be read."""
        file = FOLDER / (name or self._index)
        if not _FILE.fullmatch(file.name) or not name.isascii() or "/" in name:
            return Page(404, b"no such file\n")
        try:
            body = await self._reads.run(file.read_bytes)
        except FileNotFoundError:
            return Page(404, b"no such file\n")
        return Page(200, body, _TYPES[file.suffix], headers=_HEADERS)


def self_contained(page: PageName, document: bytes) -> str:
    """One HTML file with the page and its document (JSON). It needs no other file and no network."""
    script = _joined(f"{page}.js")
    style = (FOLDER / "style.css").read_text()
    icon = (FOLDER / "icon.svg").read_text().strip()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'; {_NO_MARKUP}"
    )
    html = (FOLDER / f"{page}.html").read_text()
    parts = {
        _CHARSET: f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="icon" href="icon.svg">': f'<link rel="icon" href="data:image/svg+xml,{quote(icon)}">',
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        f'<script type="module" src="{page}.js"></script>': (
            f'<script type="application/json" id="document">{_in_script(document)}</script>\n'
            f'<script type="module">{script}</script>'
        ),
    }
    for before, after in parts.items():
        assert html.count(before) == 1, before
        html = html.replace(before, after)
    return html


def _joined(main: str) -> str:
    """The modules that ``main`` needs, each after those that it imports, as one script."""
    joined: dict[str, str] = {}

    def join(name: str) -> None:
        text = (FOLDER / name).read_text()
        for imported in _IMPORT.findall(text):
            if imported not in joined:
                join(imported)
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    join(main)
    return "\n".join(joined.values())


def _in_script(document: bytes) -> str:
    """JSON that cannot end the element that it stands in."""
    text = document.decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()
