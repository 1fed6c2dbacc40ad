"""The folder ``/ui/`` of a daemon: the files of its page, its live document, and answers to questions of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from urllib.parse import parse_qs

from nodeagent.web.live_document import LiveDocument
from nodeagent.web.server import Page, PageRequest
from nodeagent.web.ui_files import PageName, UiFiles

UI_PREFIX = "/ui/"
PageQuestion = Callable[[Mapping[str, str]], Awaitable[Page]]
"""Takes the parameters of the address."""


class UiPages:
    """Answers every path below ``UI_PREFIX``: ``questions`` by name, ``events``, ``document.json``, else a file."""

    def __init__(
        self,
        index: PageName,
        live: LiveDocument,
        questions: Mapping[str, PageQuestion] = MappingProxyType({}),
    ) -> None:
        self._files = UiFiles(index)
        self._live = live
        self._questions = questions
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, request: PageRequest) -> Page:
        name = request.path.removeprefix(UI_PREFIX)
        if name == request.path:
            return Page(301, b"", headers=(f"Location: {UI_PREFIX}",))
        if name == "events":
            return self._live.events()
        if name == "document.json":
            return await self._live.document()
        if (question := self._questions.get(name)) is not None:
            parameters = {key: values[0] for key, values in parse_qs(request.query).items()}
            async with self._one_at_a_time:
                return await question(parameters)
        return await self._files.page(name)
