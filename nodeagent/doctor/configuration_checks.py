"""The configuration: its faults, and what this machine cannot give of what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.agent_config import Config, load
from nodeagent.config.faults import ConfigError
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count
from nodeagent.model import Snapshot
from nodeagent.offer import Offer

TOPIC = Topic(
    "configuration",
    "CONFIGURATION",
    {
        "config": FACT,
        "config_unreadable": Entry(
            "The agent does not start without its configuration; everything below is judged by the default one.",
            "name the right file with --config, or mount it",
        ),
        "config_fault": Entry(
            "The agent refuses the file as a whole; everything below is judged by the default configuration.",
            "mend that setting; `nodeagent config check FILE` says when it is good",
        ),
        "config_unfit": Entry(
            "The agent does not start: it would offer something that cannot be handed out.",
            "change that entry of `resources`; `nodeagent scan` shows what there is to select",
        ),
        "config_idle": Entry(
            "An entry that selects nothing is no resource: pods that ask for it stay Pending.",
            "mend its `select`, or leave the entry out on nodes of this kind; `nodeagent scan` shows what there is",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """``config`` is the default where the file was of no use."""

    name: str
    config: Config
    faults: tuple[str, ...] = ()
    unreadable: str | None = None


def look(path: Path | None) -> Configuration:
    if path is None:
        return Configuration("the default configuration", Config())
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        return Configuration(str(path), Config(), unreadable=error.strerror or str(error))
    try:
        return Configuration(str(path), load(text, name=str(path)))
    except ConfigError as error:
        return Configuration(str(path), Config(), faults=tuple(str(error).splitlines()))


def judge(seen: Configuration, snapshot: Snapshot | None) -> Iterator[Finding]:
    """``snapshot`` is ``None`` where the machine's devices are not known."""
    if seen.unreadable is not None:
        yield TOPIC.fix("config_unreadable", f"{seen.name}: {seen.unreadable}")
        return
    if seen.faults:
        for fault in seen.faults:
            yield TOPIC.fix("config_fault", fault)
        return
    entries = count(len(seen.config.resources), "entry", "entries")
    yield TOPIC.ok("config", f"{seen.name}: {entries} of resources, {len(seen.config.vfs)} of vfs")
    for trouble in Offer(seen.config).troubles(snapshot) if snapshot is not None else ():
        if trouble.fatal:
            yield TOPIC.fix("config_unfit", trouble.message)
        else:
            yield TOPIC.note("config_idle", trouble.message)
