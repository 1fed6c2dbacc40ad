"""Other device plugins, each with rights of its own, write to the kubelet's folders. A link there must not lead the
agent to another file."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from nodeagent.kubelet.node_lock import LOCK, node_lock
from nodeagent.kubelet.unix_server import BindError, UnixServer
from tests.support.waiting import until


@pytest.mark.parametrize("hard", [False, True])
async def test_a_link_in_the_place_of_the_lock_destroys_no_file(tmp_path: Path, *, hard: bool) -> None:
    folder, victim = tmp_path / "device-plugins", tmp_path / "rails.json"
    folder.mkdir()
    victim.write_text("precious")
    victim.chmod(0o644)
    (folder / LOCK).hardlink_to(victim) if hard else (folder / LOCK).symlink_to(victim)
    blocked: list[str] = []

    async def lock() -> None:
        async with node_lock(folder, lambda _: None, blocked.append):
            pass

    task = asyncio.create_task(lock())
    await until(lambda: blocked or task.done())
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o644)
    assert LOCK in blocked[0]
    (folder / LOCK).unlink()
    await asyncio.wait_for(task, 30)


async def test_a_link_in_the_place_of_a_socket_keeps_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put there after the socket was bound and before its mode is set."""
    path, victim = tmp_path / "nodeagent.sock", tmp_path / "victim"
    victim.touch()
    victim.chmod(0o644)

    made = grpc.aio.server

    def swapped(**options: object) -> grpc.aio.Server:
        server = made(**options)
        start = server.start

        async def start_and_swap() -> None:
            await start()
            path.unlink()
            path.symlink_to(victim)

        server.start = start_and_swap
        return server

    monkeypatch.setattr(grpc.aio, "server", swapped)
    server = UnixServer()
    with suppress(BindError):
        await server.start(path, ())
    await server.stop()
    assert victim.stat().st_mode & 0o777 == 0o644
