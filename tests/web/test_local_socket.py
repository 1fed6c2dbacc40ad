"""The socket for the verbs, in a folder that others clean up while the agent runs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.web import local_socket
from nodeagent.web.server import Page

PAGES = {"/health": lambda _accept: Page(200, b"fine\n")}


def move(socket: Path) -> None:
    socket.rename(socket.with_name("moved"))


def overwrite(socket: Path) -> None:
    socket.unlink()
    socket.write_text("")


def clean(socket: Path) -> None:
    shutil.rmtree(socket.parent)


@pytest.mark.parametrize("harm", [Path.unlink, move, overwrite, clean])
async def test_a_socket_that_was_removed_or_replaced_is_bound_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(local_socket, "AGAIN_S", 0.01)
    folder = tmp_path / "state"
    serving = asyncio.create_task(local_socket.serve(folder, PAGES))

    async def answer() -> bytes:
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    return await asyncio.to_thread(local_socket.fetch, folder, "/health", 5.0)
                await asyncio.sleep(0.01)

    assert await answer() == b"fine\n"
    harm(folder / local_socket.SOCKET_NAME)
    assert await answer() == b"fine\n"
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
