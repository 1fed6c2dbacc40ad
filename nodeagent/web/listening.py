"""The listening sockets of a web server: every address of a host, or the reason with its remedy. Linux only."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.base.supervise import Fatal

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_PROCESSES_MAX = 20_000


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


def port_owner(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return ``PID (NAME)`` of the process that listens on a TCP port.

    ``None`` if it is in another PID namespace, or may not be seen.
    """
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(proc / "net" / name, port)}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    pids = [entry.name for entry in os.scandir(proc) if entry.name.isdecimal()]
    for pid in pids[:_PROCESSES_MAX]:
        if _holds(proc / pid / "fd", wanted):
            return f"{pid} ({_name(proc / pid)})"
    return None


def _listening(table: Path, port: int) -> list[str]:
    """The inodes of the sockets that listen on this port."""
    try:
        rows = table.read_text("ascii").splitlines()[1:]
    except (OSError, UnicodeDecodeError):
        return []
    columns = (row.split() for row in rows)
    return [
        row[9] for row in columns if len(row) > 9 and row[3] == _LISTEN and row[1].endswith(f":{port:04X}")
    ]


def _holds(descriptors: Path, wanted: set[str]) -> bool:
    try:
        numbers = os.listdir(descriptors)
    except OSError:
        return False  # it has ended, or belongs to another user
    for number in numbers:
        with suppress(OSError):  # closed in the meantime
            if os.readlink(descriptors / number) in wanted:
                return True
    return False


def _name(process: Path) -> str:
    try:
        return re.sub(r"[^\x21-\x7e]", "?", (process / "comm").read_text("utf-8", "replace").strip())
    except OSError:
        return "?"
