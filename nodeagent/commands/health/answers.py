"""Fetch the health page of the agent on this machine, or read the machine for a moment."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.bounded_calls import in_thread
from nodeagent.config.formats import host_port
from nodeagent.health.explain import DeviceView
from nodeagent.inventory import Inventory
from nodeagent.regular_file import read_regular
from nodeagent.sources.gpu_publisher import GpuPublisher

FETCH_S = 5.0
TOKEN_MAX = 1 << 20
READ_S = 2.0
"""Long enough for every source to publish once."""
Views = Callable[[], tuple[DeviceView, ...]]
_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class HealthQueryError(Exception):
    """The agent does not answer; the message contains the reason and the remedy."""


def fetch(config: Config, listen: str | None) -> tuple[DeviceView, ...] | None:
    """Return the answer of the running agent; ``None`` when none runs. Raises ``HealthQueryError``."""
    address = listen or config.listen
    if address is None:
        return None
    host, port = host_port(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    connection = http.client.HTTPConnection(host, port, timeout=FETCH_S)
    if config.web.certificate_file is not None:
        # The agent runs on this host, and its certificate is for another name than 127.0.0.1.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.web.client_ca_file is not None:
            # The certificate of the agent; its authority decides whether it serves as a client certificate too.
            context.load_cert_chain(config.web.certificate_file, config.web.key_file)
        connection = http.client.HTTPSConnection(host, port, timeout=FETCH_S, context=context)
    try:
        connection.request("GET", "/health", headers=_token(config))
        answer = connection.getresponse()
        body = answer.read()
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException) as error:
        raise HealthQueryError(
            f"the agent at {host}:{port} does not answer: {error}; if it uses TLS, give its own configuration "
            "with --config"
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise HealthQueryError(
            f"the agent at {host}:{port} answers {answer.status} {answer.reason}; give its own configuration with "
            "--config, or its address with --listen"
            + (
                ""
                if config.web.client_ca_file is None
                else "; it requires a client certificate of its clientCaFile"
            )
        )
    try:
        return _VIEWS.decode(body)
    except msgspec.MsgspecError as error:
        raise HealthQueryError(
            f"the server at {host}:{port} is not a nodeagent of this version: {error}"
        ) from error


def _token(config: Config) -> dict[str, str]:
    if config.web.token_file is None:
        return {}
    lines = read_regular(config.web.token_file, TOKEN_MAX).decode("latin-1").split()
    return {"Authorization": f"Bearer {lines[0]}"} if lines else {}


async def read_machine(config: Config, root: Path) -> tuple[DeviceView, ...]:
    """Read the machine for ``READ_S``, without the state file."""
    async with _RunningSources(config, root) as views:
        return views()


@dataclass(slots=True)
class _RunningSources:
    """All sources of the machine. They run inside the ``async with`` block."""

    config: Config
    root: Path
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Views:
        gpu_publisher = GpuPublisher(discovery.health_service(self.config))
        quiet = msgspec.structs.replace(self.config.lldp, transmit=False)
        config = msgspec.structs.replace(self.config, lldp=quiet)
        sources = discovery.Discovery(
            Inventory(), config, self.root, gpu_publisher=gpu_publisher, sampled=True
        )
        watching = asyncio.create_task(sources.run())
        self._tasks.append(watching)
        await asyncio.wait((watching,), timeout=READ_S)
        if watching.done():
            await watching
        return lambda: _VIEWS.decode(gpu_publisher.health.explain_json())

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def watch(
    config: Config, root: Path, listen: str | None, *, here: bool = True
) -> AsyncIterator[tuple[DeviceView, ...]]:
    """Yield the health once a second: from the agent, or from the machine if no agent answers or not ``here``."""
    if here and (views := await in_thread(partial(fetch, config, listen))) is not None:
        while True:
            yield views or ()
            await asyncio.sleep(1.0)
            views = await in_thread(partial(fetch, config, listen))
            if views is None:
                raise HealthQueryError("the agent has ended")
    async with _RunningSources(config, root) as views_now:
        while True:
            yield views_now()
            await asyncio.sleep(1.0)


def find(views: Sequence[DeviceView], name: str) -> DeviceView:
    """Find a device by PCI address, netdev, UUID or name (GPU0). Raises ``HealthQueryError``."""
    for view in views:
        if name in (view.device, view.name):
            return view
    known = ", ".join(view.name for view in views) or "none"
    raise HealthQueryError(f"no device is called {name!r} here; there are: {known}")
