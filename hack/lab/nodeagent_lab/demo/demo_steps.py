"""Shared by both demos: numbered steps, and the start of the real programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

TAIL = 20


class DemoError(Exception):
    """The demo cannot continue, or a statement is not true; the message contains the end of the log."""


class DemoSteps:
    """Print numbered steps."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self, title: str) -> None:
        self._steps += 1
        line = f"{self._steps}. {title}"
        print(f"\033[1m{line}\033[0m\n" if sys.stdout.isatty() else f"{line}\n", flush=True)

    def say(self, *lines: str) -> None:
        for line in lines:
            print(f"   {line}".rstrip(), flush=True)


def command(*arguments: str) -> list[str]:
    """The command line of ``nodeagent``, installed or not."""
    return [sys.executable, "-m", "nodeagent", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])


async def printed(argv: Sequence[str]) -> str:
    """The output of a program."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment()
    )
    try:
        output, _ = await process.communicate()
    finally:
        await end(process)
    return output.decode()


@contextlib.asynccontextmanager
async def running(
    argv: Sequence[str], log: Path, more: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a daemon with its log in a file; end it with SIGTERM."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *argv, stderr=file, stdout=file, env={**environment(), **(more or {})}
        )
    try:
        yield process
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    await process.wait()
