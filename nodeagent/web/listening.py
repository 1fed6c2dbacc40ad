"""The listening sockets of a web server: every address of a host, or the reason with its remedy."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

from nodeagent.base.supervise import Fatal
from nodeagent.web.port_owner import port_owner


async def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of the host. Raises ``Fatal`` with the remedy."""
    loop = asyncio.get_running_loop()
    listeners: list[socket.socket] = []
    try:
        addresses = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _name, address in dict.fromkeys(addresses):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a kernel without this family
            if family == socket.AF_INET6 and not host and _no_ipv6():
                listener.close()
                continue
            listeners.append(listener)
            same_port = port or len(listeners) == 1
            _bind(listener, family, address if same_port else (address[0], listeners[0].getsockname()[1]))
    except (socket.gaierror, UnicodeError) as error:
        raise Fatal(
            f"cannot listen on {host}:{port}: the name has no address; give one with --listen or `listen:`"
        ) from error
    except OSError as error:
        for listener in listeners:
            listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        owner = port_owner(port) if error.errno == errno.EADDRINUSE else None
        found = (
            f"Process {owner} listens there" if owner else f"Find its owner with `ss -ltnp 'sport = :{port}'`"
        )
        raise Fatal(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno)}. {found}; end it, or choose another address "
            "with --listen or `listen:`"
        ) from error
    return listeners


def _no_ipv6() -> bool:
    """Whether IPv6 is switched off in the kernel."""
    try:
        return Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() == "1"
    except OSError:
        return False


def _bind(listener: socket.socket, family: int, address: tuple[Any, ...]) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(128)
