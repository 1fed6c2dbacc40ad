"""Check the configuration: its errors, and entries that this machine cannot serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nodeagent.agent_config import Config, load
from nodeagent.config.config_files import read_config_files
from nodeagent.config.file_errors import ConfigError
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count
from nodeagent.facts.model import Snapshot
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.offering.offer import Offer

CONFIGURATION_TOPIC = Topic(
    "configuration",
    "CONFIGURATION",
    {
        "config": FACT,
        "config_unreadable": Advice(
            "The agent does not start without its configuration. The checks below use the default "
            "configuration.",
            "give the right file with --config, or mount it",
        ),
        "config_fault": Advice(
            "The agent refuses the whole file. The checks below use the default configuration.",
            "correct the setting; `nodeagent config check FILE` shows when the file is valid",
        ),
        "config_unfit": Advice(
            "The agent does not start: it would offer devices that it cannot allocate.",
            "change this entry of `resources`; `nodeagent scan` shows the devices that can be selected",
        ),
        "config_short": Advice(
            "The agent's pod is not Ready, which stops a rollout: the node has hardware that is not offered, or less "
            "than `expect` asks for.",
            "follow the message; or change `resources` or `expect` for nodes of this type",
        ),
        "config_slices": Advice(
            "A pod with very many slices has a status that etcd refuses: the pod runs, and the API server keeps its "
            "old status.",
            "set `sliceMiB` to the size in the message, or larger; or let no pod ask for so many slices",
        ),
        "config_idle": Advice(
            "An entry that selects no device makes no resource: pods that request it stay Pending.",
            "correct its `select`, or remove the entry on nodes of this type; `nodeagent scan` shows the "
            "devices",
        ),
        "config_undivided": Advice(
            "Claims for MIG devices of this GPU stay Pending: the driver shows its places only to a program that may "
            "configure MIG.",
            "add `components/mig-claims` (`migClaims.enabled` of the chart), or take the entry of kind mig out",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class ConfigurationFacts:
    """``config`` is the default where the file cannot be used."""

    name: str
    config: Config
    faults: tuple[str, ...] = ()
    unreadable: str | None = None


def read_configuration(path: Path | None) -> ConfigurationFacts:
    if path is None:
        return ConfigurationFacts("the default configuration", Config())
    try:
        text = read_config_files(path)
    except OSError as error:
        name = os.fsdecode(error.filename or path)
        return ConfigurationFacts(name, Config(), unreadable=error.strerror or str(error))
    try:
        return ConfigurationFacts(str(path), load(text, name=str(path)))
    except ConfigError as error:
        return ConfigurationFacts(str(path), Config(), faults=tuple(str(error).splitlines()))


def configuration_findings(
    facts: ConfigurationFacts, snapshot: Snapshot | None, numbering: Numbering = MappingProxyType({})
) -> Iterator[Finding]:
    """``snapshot``: ``None`` where the machine's devices are not known."""
    if facts.unreadable is not None:
        yield CONFIGURATION_TOPIC.fix("config_unreadable", f"{facts.name}: {facts.unreadable}")
        return
    if facts.faults:
        for fault in facts.faults:
            yield CONFIGURATION_TOPIC.fix("config_fault", fault)
        return
    entries = count(len(facts.config.resources), "entry", "entries")
    yield CONFIGURATION_TOPIC.ok(
        "config", f"{facts.name}: {entries} of resources, {len(facts.config.vfs)} of vfs"
    )
    for trouble in Offer(facts.config, numbering).troubles(snapshot) if snapshot is not None else ():
        if trouble.fatal:
            yield CONFIGURATION_TOPIC.fix("config_unfit", trouble.message)
        elif not trouble.ready:
            yield CONFIGURATION_TOPIC.fix("config_short", trouble.message)
        elif trouble.key == "slices":
            yield CONFIGURATION_TOPIC.note("config_slices", trouble.message)
        elif trouble.key == "idle":
            yield CONFIGURATION_TOPIC.note("config_idle", trouble.message)
        elif trouble.key == "undivided":
            yield CONFIGURATION_TOPIC.note("config_undivided", trouble.message)
        # The others are about hardware, and the checks of the NICs find them too.
