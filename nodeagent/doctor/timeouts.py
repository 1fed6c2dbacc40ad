"""Looks at a machine done side by side, each with its own time, none of them waited for longer.

The law of this file: a look that hangs hangs alone. A read that a driver never answers cannot be ended from
outside, so each look has a daemon thread with an event loop of its own, which hands its outcome over when it is
done; whoever waits goes on without those that are late. What a look raises is its outcome.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReadTask:
    """``look`` is a function or a coroutine function without arguments."""

    read: Callable[[], Any]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """One of the three: ``value``, what was raised, or neither within the time."""

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
