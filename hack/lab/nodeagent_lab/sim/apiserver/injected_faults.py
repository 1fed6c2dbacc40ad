"""Faults that a test injects: one rule for each, with a number of uses."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent_lab.sim.apiserver.request_target import RequestTarget

HOW = ("hang", "drip", "half", "close", "lost", "deny", "webhook")


@dataclass
class InjectedFault:
    """``how`` is a status or one of ``HOW``. ``times`` ``None``: no limit. A filter ``None`` matches all."""

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

    def matches(self, target: RequestTarget) -> bool:
        return (
            self.verb in (None, target.verb)
            and self.resource in (None, target.resource)
            and self.name in (None, target.name)
        )


class InjectedFaults:
    def __init__(self) -> None:
        self.rules: list[InjectedFault] = []

    def due(self, target: RequestTarget) -> InjectedFault | None:
        """The first fault that matches this request; uses it once."""
        for fault in self.rules:
            if not fault.matches(target):
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
