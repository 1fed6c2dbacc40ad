"""The table of recorded incidents in ``docs/reference/nic-rules.md``, made by replaying the recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hack.docs.markdown import table
from hack.incidents import BEGIN_S, INCIDENTS, Incident
from nodeagent.commands.health.replay import Transition, replay
from nodeagent.facts.model import HEALTHY
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.recording import decode
from nodeagent.health.rule import gravest


class Period(NamedTuple):
    """A time in which a device was not healthy, and its devices were the same for the kubelet. ``until_s`` is ``None``
    if it lasts until the end of the recording. Seconds since the start of the incident."""

    name: str
    from_s: float
    until_s: float | None
    state: str
    allocatable: bool
    reasons: tuple[str, ...]


def periods(transitions: Iterable[Transition]) -> tuple[Period, ...]:
    """Join the transitions of each device. The state of a period is the gravest in it."""
    ended: list[Period] = []
    running: dict[str, Period] = {}
    for change in transitions:
        at, health = round(change.at - BEGIN_S, 1), change.after
        before = running.pop(change.name, None)
        keys = tuple(reason.key for reason in health.reasons)
        now = Period(change.name, at, None, health.state.value, health.allocatable, keys)
        if before is not None and health != HEALTHY and before.allocatable == health.allocatable:
            state = gravest((type(health.state)(before.state), health.state)).value
            reasons = tuple(dict.fromkeys((*before.reasons, *keys)))
            now = before._replace(state=state, reasons=reasons)
        elif before is not None:
            ended.append(before._replace(until_s=at))
        if health != HEALTHY:
            running[change.name] = now
    return tuple(sorted((*ended, *running.values()), key=lambda period: period.from_s))


def replayed(file: Path) -> tuple[Period, ...]:
    with file.open("rb") as lines:
        header, samples = decode(lines)
        return periods(replay(header, samples, HealthSettings()))


def incidents_table(folder: Path) -> str:
    heads = ("recording", "incident", "device", "from", "until", "state", "kubelet", "reasons")
    return table(
        heads, (row for incident in INCIDENTS for row in _rows(incident, replayed(_file(folder, incident))))
    )


def _file(folder: Path, incident: Incident) -> Path:
    return folder / f"{incident.name}.jsonl"


def _rows(incident: Incident, found: tuple[Period, ...]) -> Iterator[tuple[str, ...]]:
    """The name and the meaning stand in the first row only."""
    head = f"`{incident.name}`", incident.meaning
    if not found:
        yield (*head, "all", "-", "-", "healthy", "Healthy", "-")
    for period in found:
        yield (
            *head,
            f"`{period.name}`",
            _clock(period.from_s),
            "the end" if period.until_s is None else _clock(period.until_s),
            period.state if period.state != HEALTHY.state.value else "healthy, with a warning",
            "Healthy" if period.allocatable else "Unhealthy",
            ", ".join(f"`{reason}`" for reason in period.reasons),
        )
        head = "", ""


def _clock(seconds: float) -> str:
    if seconds < 0:
        return "the start"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
