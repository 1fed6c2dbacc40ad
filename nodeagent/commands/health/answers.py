"""The agent that runs here is asked, or the machine is looked at for a moment."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.config.formats import host_port
from nodeagent.health.explain import DeviceView
from nodeagent.inventory import Inventory
from nodeagent.sources.nic_health_service import Verdicts

ASK_S = 5.0
LOOK_S = 2.0
"""Of our own: long enough for every source to have spoken once."""
Views = Callable[[], tuple[DeviceView, ...]]
_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class CheckupError(Exception):
    """The agent cannot be asked; the message says why and what would help."""


def ask(config: Config, listen: str | None) -> tuple[DeviceView, ...] | None:
    """What the running agent says; ``None`` when none is there. Raises ``CheckupError``."""
    address = listen or config.listen
    if address is None:
        return None
    host, port = host_port(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    if config.web.certificate_file is not None:
        # Our own agent on this host: the certificate is for the name that others know it by.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.web.client_ca_file is not None:
            # The one certificate that is at hand; whether it is good for this too, its authority has decided.
            context.load_cert_chain(config.web.certificate_file, config.web.key_file)
        connection = http.client.HTTPSConnection(host, port, timeout=ASK_S, context=context)
    try:
        connection.request("GET", "/health", headers=_token(config))
        answer = connection.getresponse()
        body = answer.read()
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException) as error:
        raise CheckupError(
            f"the agent at {host}:{port} does not answer: {error}; where it speaks TLS, give its own configuration "
            "with --config"
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise CheckupError(
            f"the agent at {host}:{port} answers {answer.status} {answer.reason}; give its own configuration with "
            "--config, or its address with --listen"
            + (
                ""
                if config.web.client_ca_file is None
                else "; it wants a client certificate of its clientCaFile"
            )
        )
    try:
        return _VIEWS.decode(body)
    except msgspec.MsgspecError as error:
        raise CheckupError(
            f"what answers at {host}:{port} is no nodeagent of this version: {error}"
        ) from error


def _token(config: Config) -> dict[str, str]:
    if config.web.token_file is None:
        return {}
    lines = Path(config.web.token_file).read_text().split()
    return {"Authorization": f"Bearer {lines[0]}"} if lines else {}


async def look(config: Config, root: Path) -> tuple[DeviceView, ...]:
    """A short look of our own, without memory of what was."""
    async with _Looking(config, root) as views:
        return views()


@dataclass(slots=True)
class _Looking:
    """Everything that states facts, for as long as it is open."""

    config: Config
    root: Path
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Views:
        inventory, judge = Inventory(), Verdicts(discovery.nic_terms(self.config.health))
        ledger = discovery.gpus_ledger(self.config)
        quiet = msgspec.structs.replace(self.config.lldp, transmit=False)
        config = msgspec.structs.replace(self.config, lldp=quiet)
        sources = discovery.Discovery(
            inventory,
            config,
            self.root,
            nic_health=judge,
            gpu_health=ledger,
            sampled=True,
        )
        watching = asyncio.create_task(sources.run())
        self._tasks.append(watching)
        await asyncio.wait((watching,), timeout=LOOK_S)
        if watching.done():
            await watching
        return lambda: _VIEWS.decode(discovery.explained(judge, ledger))

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def watch(
    config: Config, root: Path, listen: str | None, *, here: bool = True
) -> AsyncIterator[tuple[DeviceView, ...]]:
    """What the agent says (asked only where it is ``here``), or else what is seen, once a second."""
    if here and (views := await asyncio.to_thread(ask, config, listen)) is not None:
        while True:
            yield views or ()
            await asyncio.sleep(1.0)
            views = await asyncio.to_thread(ask, config, listen)
            if views is None:
                raise CheckupError("the agent has ended")
    async with _Looking(config, root) as seen:
        while True:
            yield seen()
            await asyncio.sleep(1.0)


def find(views: Sequence[DeviceView], name: str) -> DeviceView:
    """By PCI address, netdev, UUID or GPU0. Raises ``CheckupError``."""
    for view in views:
        if name in (view.device, view.name):
            return view
    known = ", ".join(view.name for view in views) or "none"
    raise CheckupError(f"no device is called {name!r} here; there are: {known}")
