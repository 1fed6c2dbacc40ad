"""Find the process that listens on a TCP port, for the message of a server that cannot. Linux only."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_PROCESSES_MAX = 20_000


def port_owner(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return ``PID (NAME)``; ``None`` if it is in another PID namespace, or may not be seen."""
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
