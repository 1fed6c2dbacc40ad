"""A verb that follows the agent, or waits for it, asks once a second and ends with it."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from nodeagent.console.agent_query import AgentQueryError, follow, origin, wait_for

pytestmark = pytest.mark.usefixtures("virtual_time")


class Agent:
    """Gives the answers one after the other, with the times of the questions, and then none."""

    def __init__(self, *answers: int) -> None:
        self.answers = [*answers]
        self.asked: list[float] = []

    def __call__(self) -> tuple[int | None, str]:
        self.asked.append(len(self.asked) + 1.0)
        return (self.answers.pop(0), "socket") if self.answers else (None, "gone")


async def shown(answers: AsyncIterator[int]) -> list[tuple[int, int]]:
    """Each answer with the seconds since the first one, until the agent has ended."""
    seen: list[tuple[int, int]] = []
    start = asyncio.get_running_loop().time()
    with suppress(AgentQueryError):
        async for answer in answers:
            seen.append((answer, round(asyncio.get_running_loop().time() - start)))  # noqa: PERF401 - it ends early
    return seen


async def test_each_answer_is_shown_until_the_agent_ends() -> None:
    assert await shown(follow(1, Agent(1, 2))) == [(1, 0), (1, 1), (2, 2)]


async def test_an_answer_that_is_the_same_is_not_shown_again() -> None:
    assert await shown(follow(1, Agent(1, 1, 2, 2, 1), operator.eq)) == [(1, 0), (2, 3), (1, 5)]


async def test_waiting_ends_when_the_answer_does_not_wait() -> None:
    agent = Agent(1, 2, 3)
    assert await wait_for(0, agent, 60.0, lambda answer: answer < 2) == 2
    assert len(agent.asked) == 2


async def test_waiting_ends_after_its_time() -> None:
    loop = asyncio.get_running_loop()
    agent, start = Agent(*range(1, 9)), loop.time()
    assert await wait_for(0, agent, 2.5, lambda _: True) == 3
    assert loop.time() - start == pytest.approx(2.5, abs=0.01)
    assert await wait_for(7, agent, 0.0, lambda _: True) == 7


async def test_waiting_fails_when_the_agent_ends() -> None:
    with pytest.raises(AgentQueryError, match="the agent has ended"):
        await wait_for(0, Agent(), 5.0, lambda _: True)


def test_the_origin_names_the_agent_or_why_none_answers() -> None:
    assert origin(0, "/run/a.sock", "alone") == "the agent at /run/a.sock answers"
    assert origin(None, "no socket", "alone") == "no agent runs here (no socket); alone"
