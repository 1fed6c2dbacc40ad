"""File descriptors: wait for one on the running event loop, without a thread, and close what has one."""

from __future__ import annotations

import asyncio
from typing import Self


class Closing:
    """A file descriptor that is open until the end of a ``with``."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def wait_readable(fd: int) -> None:
    """Return when ``fd`` is readable. One waiter at a time for each descriptor."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
