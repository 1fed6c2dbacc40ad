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
class Task:
    """``look`` is a function or a coroutine function without arguments."""

    look: Callable[[], Any]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of the three: ``value``, what was raised, or neither within the time."""

    value: Any = None
    error: BaseException | None = None
    hung_s: float | None = None


def run(tasks: Mapping[str, Task]) -> dict[str, Outcome]:
    """All outcomes, in the order of the tasks."""
    done: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
    began = time.monotonic()
    for name, task in tasks.items():

        def work(name: str = name, task: Task = task) -> None:
            done.put((name, _outcome(task)))

        threading.Thread(target=work, name=f"doctor-{name}", daemon=True).start()
    outcomes: dict[str, Outcome] = {}
    while waiting := [name for name in tasks if name not in outcomes]:
        first = min(waiting, key=lambda name: tasks[name].timeout_s)
        left = began + tasks[first].timeout_s - time.monotonic()
        try:
            name, outcome = done.get(timeout=max(0.0, left))
        except queue.Empty:
            outcomes[first] = Outcome(hung_s=tasks[first].timeout_s)
        else:
            outcomes.setdefault(name, outcome)
    return {name: outcomes[name] for name in tasks}


def _outcome(task: Task) -> Outcome:
    async def look() -> Any:
        answer = task.look()
        return await answer if inspect.isawaitable(answer) else answer

    async def gathered() -> Outcome:
        answers: Sequence[Any] = await asyncio.gather(look(), return_exceptions=True)
        answer = answers[0]
        return Outcome(error=answer) if isinstance(answer, BaseException) else Outcome(answer)

    return asyncio.run(gathered())
