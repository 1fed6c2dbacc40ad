"""Ask the agent that serves the machine under --root, or return why none answers.

The agent's socket is in its state directory below the root. So a verb in the agent's pod, on the host or in a debug pod
finds the same agent, and a capture or the disk of another machine has none. Of a root without that socket only
``/`` is also asked at the address of the web server: in the agent's container the state directory is not below ``/``.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.memory_file import MemoryFile
from nodeagent.base.regular_file import read_regular
from nodeagent.config.formats import host_port
from nodeagent.host.sysfs import Tree
from nodeagent.web import local_socket

T = TypeVar("T")
Fetch = Callable[[], tuple[T | None, str]]
"""Ask the agent: return its answer and its place, or ``None`` and why none answers. Raises ``AgentQueryError``."""

FETCH_S = 5.0
ASK_AGAIN_S = 1.0
"""Between two questions of a verb that watches or waits."""
_FILE_MAX = 1 << 20


class AgentQueryError(Exception):
    """An agent is there, and its answer cannot be used; the message contains the reason and the remedy."""


class AgentAnswer(NamedTuple):
    """``body`` is ``None`` if no agent serves this machine. ``source``: the socket or the address of the agent, or why
    none was found."""

    body: bytes | None
    source: str


def ask(page: str, config: Config, root: Path, timeout_s: float = FETCH_S) -> AgentAnswer:
    """Ask at the socket below the root. Raises ``AgentQueryError``."""
    folder = Tree(root).path(config.health.state_directory)
    place = str(folder / local_socket.SOCKET_NAME)
    try:
        return AgentAnswer(local_socket.fetch(folder, page, timeout_s), place)
    except (FileNotFoundError, NotADirectoryError):
        return AgentAnswer(None, f"{place} does not exist")
    except ConnectionRefusedError:
        return AgentAnswer(None, f"the agent of {place} has ended")
    except PermissionError:
        return AgentAnswer(None, f"{place} may be opened by root only")
    except OSError as error:
        raise AgentQueryError(f"the agent at {place} does not answer: {error.strerror or error}") from error


def ask_for(
    decoder: msgspec.json.Decoder[T], page: str, config: Config, root: Path, timeout_s: float = FETCH_S
) -> tuple[T | None, str]:
    """Return the decoded answer and the place of the agent; or ``None``, and why none answers.

    Raises ``AgentQueryError``, also for an answer of an agent of another version.
    """
    answer = ask(page, config, root, timeout_s)
    if answer.body is None:
        return None, answer.source
    try:
        return decoder.decode(answer.body), answer.source
    except msgspec.MsgspecError as error:
        raise AgentQueryError(f"the agent at {answer.source} is not of this version: {error}") from error


def origin(answer: object, source: str, otherwise: str) -> str:
    """Which answer a verb shows. ``otherwise``: what it shows where no agent answers, for the reason ``source``."""
    return (
        f"no agent runs here ({source}); {otherwise}" if answer is None else f"the agent at {source} answers"
    )


async def follow_agent(
    answer: T,
    fetch: Fetch[T],
    same: Callable[[T, T], bool] = lambda _before, _now: False,
    every_s: float | None = None,
) -> AsyncIterator[T]:
    """Yield the answer of the agent now, and each ``every_s`` one that is not the ``same`` as the last.

    Raises ``AgentQueryError`` when the agent ends."""
    every_s = ASK_AGAIN_S if every_s is None else every_s
    while True:
        yield answer
        before, answer = answer, await _again(fetch, every_s)
        while same(before, answer):
            answer = await _again(fetch, every_s)


async def wait_for(answer: T, fetch: Fetch[T], wait_s: float, waits: Callable[[T], object]) -> T:
    """Ask the agent again while the answer ``waits``, for ``wait_s`` at most. Raises ``AgentQueryError``."""
    now = asyncio.get_running_loop().time
    end = now() + wait_s
    while now() < end and waits(answer):
        answer = await _again(fetch, min(ASK_AGAIN_S, end - now()))
    return answer


async def _again(fetch: Fetch[T], after_s: float) -> T:
    await asyncio.sleep(max(after_s, 0.0))
    answer, _ = await in_thread(fetch)
    if answer is None:
        raise AgentQueryError("the agent has ended")
    return answer


def ask_address(page: str, config: Config, listen: str | None) -> AgentAnswer:
    """Ask at the address of the web server. Raises ``AgentQueryError``."""
    address = listen or config.listen
    if address is None:
        return AgentAnswer(None, "no address is configured")
    host, port = host_port(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    place = f"{host}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=FETCH_S)
    if config.web.certificate_file is not None:
        # The agent runs on this host, and its certificate is for another name than 127.0.0.1.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.web.client_ca_file is not None:
            # The certificate of the agent; its authority decides whether it serves as a client certificate too.
            _present(context, config.web.certificate_file, config.web.key_file)
        connection = http.client.HTTPSConnection(host, port, timeout=FETCH_S, context=context)
    remedy = "give its own configuration with --config, or its address with --agent"
    if config.web.client_ca_file is not None:
        remedy += "; it requires a client certificate of its clientCaFile"
    try:
        return AgentAnswer(_get(connection, page, _token(config), place, remedy), place)
    except ConnectionRefusedError:
        return AgentAnswer(None, f"nothing listens at {place}")
    except (OSError, http.client.HTTPException) as error:
        raise AgentQueryError(
            f"the agent at {place} does not answer: {error}; if it uses TLS, give its own configuration with --config"
        ) from error
    finally:
        connection.close()


def fetch_page(page: str, config: Config, root: Path, listen: str | None) -> AgentAnswer:
    """Return a page of the agent that serves this root. Raises ``AgentQueryError``."""
    answer = AgentAnswer(None, "") if listen else ask(page, config, root)
    if answer.body is None and (listen or root == Path("/")):
        other = ask_address(page, config, listen)
        reasons = "; ".join(filter(None, (answer.source, other.source)))
        answer = other if other.body is not None else AgentAnswer(None, reasons)
    return answer


def _get(
    connection: http.client.HTTPConnection, page: str, headers: dict[str, str], place: str, remedy: str
) -> bytes:
    connection.request("GET", page, headers=headers)
    answer = connection.getresponse()
    body = answer.read(local_socket.BODY_MAX)
    if answer.status != 200:
        raise AgentQueryError(f"the agent at {place} answers {answer.status} {answer.reason}; {remedy}")
    return body


def _present(context: ssl.SSLContext, certificate_file: str, key_file: str | None) -> None:
    files = certificate_file, key_file or certificate_file
    try:
        certificate, key = (read_regular(file, _FILE_MAX) for file in files)
        with MemoryFile(certificate) as first, MemoryFile(key) as second:
            context.load_cert_chain(first.path, second.path, password="")
    except OSError as error:  # ssl.SSLError is one
        file = error.filename or " and ".join(dict.fromkeys(files))
        raise AgentQueryError(
            f"{file} cannot be used as client certificate: {error.strerror or error}; give the agent's own "
            "configuration with --config"
        ) from error


def _token(config: Config) -> dict[str, str]:
    if config.web.token_file is None:
        return {}
    lines = read_regular(config.web.token_file, _FILE_MAX).decode("latin-1").split()
    return {"Authorization": f"Bearer {lines[0]}"} if lines else {}
