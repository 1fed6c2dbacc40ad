"""The leader's plans: the last one, and waking at the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nodeagent.fabric.outcome import PlanOutcome
from nodeagent.fabric.planner import Plan


@dataclass(slots=True)
class Progress:
    """The leader's progress, for metrics and probes. ``plans`` counts those of this replica."""

    outcome: PlanOutcome | None = None
    plans: int = 0
    plan_s: float = 0.0
    suppressed: int = 0
    held: bool = False


class Plans:
    """``last`` is the last plan of this replica while it leads, ``outcome`` what is shown of it."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.last: Plan | None = None
        self._made = asyncio.Event()

    @property
    def outcome(self) -> PlanOutcome | None:
        return self.progress.outcome

    def add(self, plan: Plan, plan_s: float) -> None:
        """Take the next plan, which was computed in ``plan_s``, and wake who waits for it."""
        outcome, progress = plan.outcome, self.progress
        progress.plan_s = plan_s
        progress.plans += 1
        progress.suppressed += len(outcome.hypernodes) - len({write.object.name for write in outcome.writes})
        self.last, progress.outcome = plan, outcome
        made, self._made = self._made, asyncio.Event()
        made.set()

    def show(self, outcome: PlanOutcome) -> None:
        """Show the last plan with other anomalies: no plan was made."""
        self.progress.outcome = outcome

    def forget(self) -> None:
        """Only the leader shows the tree: a second replica would double every sum over the replicas."""
        self.last = None
        self.progress.outcome, self.progress.held = None, False

    async def first(self) -> None:
        """Return when there is a plan of the present leader."""
        while self.last is None:
            await self._made.wait()

    async def after(self, plans: int) -> None:
        """Return when more than so many plans have been made (``progress.plans``)."""
        while self.progress.plans <= plans:
            await self._made.wait()
