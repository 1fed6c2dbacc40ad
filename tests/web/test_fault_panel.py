"""The buttons of the demo when a fault fails or hangs, or the demo has ended: a message, and buttons that work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nodeagent_lab.demo import fault_panel
from nodeagent_lab.demo.fault_panel import DemoFault, FaultPanel, Streams
from tests.support.chromium import Browser, Tab

pytestmark = pytest.mark.needs("chromium")


async def no_daemon() -> Streams:
    raise ConnectionRefusedError("no daemon")


async def press(tab: Tab, title: str, says: str) -> None:
    await asyncio.to_thread(tab.click_on, "#faults button", title)
    await asyncio.to_thread(tab.until, f"document.getElementById('done').textContent.includes({says!r})")


async def test_a_fault_that_fails_shows_why_and_every_button_still_works(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(fault_panel, "PRESS_S", 0.2)
    made: list[str] = []
    works = asyncio.Event()

    async def fail() -> None:
        if not works.is_set():
            raise KeyError("no such <b>link</b>")
        made.append("failed before")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def good() -> None:
        made.append("good")

    faults = [
        DemoFault("fails", "pull a cable", fail, good),
        DemoFault("hangs", "wait", hang),
        DemoFault("works", "add a node", good),
    ]
    with caplog.at_level(logging.ERROR):
        async with FaultPanel(faults, no_daemon).serving() as panel:
            tab = await asyncio.to_thread(browser.tab, panel.url)
            await press(tab, "pull a cable", "failed: pull a cable: 'no such <b>link</b>'")
            await press(tab, "wait", "not done within 0.2 s: wait")
            await press(tab, "add a node", "done: add a node")
            pressed = "document.querySelector('#faults button').getAttribute('aria-pressed')"
            assert await asyncio.to_thread(tab.value, pressed) == "false", "a fault that failed is not active"
            works.set()
            await press(tab, "pull a cable", "done: pull a cable")
            assert made == ["good", "failed before"]
        await press(tab, "add a node", "no answer: add a node")
        disabled = "document.querySelectorAll('#faults button:disabled').length"
        await asyncio.to_thread(tab.until, f"{disabled} === 0")
        await asyncio.to_thread(tab.close)
    assert not caplog.records, "no exception is lost in a task"
