"""The machine to check, and reads of it that run side by side, each with its own time limit.

A call into a driver that never answers cannot be ended from outside. So each read has a daemon thread with its own
event loop, and ``run`` does not wait for threads that are late. An exception of a read is its outcome.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.host.sysfs import SysfsScan, Tree


@dataclass(frozen=True, slots=True)
class Target:
    """The machine to check, and the time limits.

    ``recorded``: a captured or simulated machine, of which only files are known. ``kubelet_dir``: ``None`` where the
    machine has no kubelet. ``device_plugins_dir``: the folder of kubelet.sock if it is not in ``kubelet_dir``.
    ``wait_s``: seconds for which LLDP is received.
    """

    tree: Tree
    config: Config
    recorded: bool
    kubelet_dir: Path | None
    wait_s: float = 0.0
    timeout_s: float = 10.0
    device_plugins_dir: Path | None = None


def text(tree: Tree, path: str) -> str | None:
    """The content of a small file without the space around it; ``None`` if it is absent, empty or cannot be read."""
    return (SysfsScan(tree).read(tree.text, path) or "").strip() or None


def is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def version(text: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version: ``v1.31.2`` is ``(1, 31)``."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", text or "")
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A read: a function or a coroutine function without arguments, and its time limit."""

    read: Callable[[], Any]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """A value, an exception, or ``hung_s`` where neither came within the time limit."""

    value: Any = None
    error: BaseException | None = None
    hung_s: float | None = None


def run(tasks: Mapping[str, ReadTask]) -> dict[str, ReadOutcome]:
    """All outcomes, in the order of the tasks."""
    done: queue.SimpleQueue[tuple[str, ReadOutcome]] = queue.SimpleQueue()
    began = time.monotonic()
    for name, task in tasks.items():

        def work(name: str = name, task: ReadTask = task) -> None:
            done.put((name, _outcome(task)))

        threading.Thread(target=work, name=f"doctor-{name}", daemon=True).start()
    outcomes: dict[str, ReadOutcome] = {}
    while waiting := [name for name in tasks if name not in outcomes]:
        first = min(waiting, key=lambda name: tasks[name].timeout_s)
        left = began + tasks[first].timeout_s - time.monotonic()
        try:
            name, outcome = done.get(timeout=max(0.0, left))
        except queue.Empty:
            outcomes[first] = ReadOutcome(hung_s=tasks[first].timeout_s)
        else:
            outcomes.setdefault(name, outcome)
    return {name: outcomes[name] for name in tasks}


def _outcome(task: ReadTask) -> ReadOutcome:
    async def read() -> Any:
        answer = task.read()
        return await answer if inspect.isawaitable(answer) else answer

    async def gathered() -> ReadOutcome:
        answers: Sequence[Any] = await asyncio.gather(read(), return_exceptions=True)
        answer = answers[0]
        return ReadOutcome(error=answer) if isinstance(answer, BaseException) else ReadOutcome(answer)

    return asyncio.run(gathered())
