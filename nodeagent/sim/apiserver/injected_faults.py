"""What goes wrong on demand: one rule for each fault, used up as it is met."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.sim.apiserver.request_target import Target

HOW = ("hang", "drip", "half", "close", "lost", "deny", "webhook")


@dataclass
class Fault:
    """``how`` is a status or one of ``HOW``; ``times`` ``None`` is for ever. ``None`` matches everything."""

    how: str
    verb: str | None = None
    resource: str | None = None
    name: str | None = None
    times: int | None = 1
    retry_after_s: int | None = None
    message: str | None = None
    skip: int = 0

    def __post_init__(self) -> None:
        if self.how not in HOW and not (self.how.isdigit() and 400 <= int(self.how) < 600):
            raise ValueError(f"{self.how!r} is no status and none of {', '.join(HOW)}")

    def meets(self, target: Target) -> bool:
        return (
            self.verb in (None, target.verb)
            and self.resource in (None, target.resource)
            and self.name in (None, target.name)
        )


class Faults:
    def __init__(self) -> None:
        self.rules: list[Fault] = []

    def due(self, target: Target) -> Fault | None:
        """The first fault that this request meets; it is then used up by one."""
        for fault in self.rules:
            if not fault.meets(target):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self.rules.remove(fault)
            return fault
        return None
