"""One leads: election by a Lease, in which a leader that cannot renew stops before another may start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nodeagent.kube.client import Client


class NotLeading(Exception):  # noqa: N818 - a state, and no mistake of anybody
    """The lease is not held (any more), so nothing may be written."""


class Lease:
    """A candidate. ``leading`` says whether it holds the lease at this very moment, by its own clock.

    ``check`` raises ``NotLeading`` where it does not: hand it to ``Client(guard=...)``.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float = 15.0,
        renew_s: float = 10.0,
        retry_s: float = 2.0,
    ) -> None:
        raise NotImplementedError

    @property
    def leading(self) -> bool:
        raise NotImplementedError

    @property
    def holder(self) -> str | None:
        """Who leads, as last seen."""
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError


async def lead(lease: Lease, work: Callable[[], Awaitable[object]]) -> None:
    """Wait for the lease, run ``work`` while it is held, and so on for ever.

    ``work`` is cancelled when the lease is lost; its exceptions end ``lead``. When cancelled, the lease is
    released once ``work`` has ended.
    """
    raise NotImplementedError
