"""Wait for a file descriptor on the running event loop, without a thread."""

from __future__ import annotations

import asyncio


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
