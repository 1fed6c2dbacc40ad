"""What is wrong with this node, why it matters and what to do: looked at, judged, never changed.

Each part of the machine has a file: ``look`` takes facts from the machine and ``judge``, which is pure, makes
findings of them. The looks run side by side, each with its own time (``work``): one that hangs, fails or crashes
is a finding, and keeps no other from being told.

Of a captured or simulated machine only files are known: what only a running machine tells is said to be unknown,
which is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.doctor import (
    api_server,
    capabilities,
    cluster_checks,
    configuration_checks,
    gpu_checks,
    kubelet_checks,
    lldp_checks,
    machine_checks,
    nic_checks,
    runtime_checks,
    timeouts,
)
from nodeagent.doctor.api_server import Where
from nodeagent.doctor.configuration_checks import Configuration
from nodeagent.doctor.finding import Entry, Finding, Level, Topic
from nodeagent.doctor.report import as_json, as_markdown, as_table
from nodeagent.doctor.target import Subject
from nodeagent.doctor.timeouts import Outcome, Task
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.model import Snapshot
from nodeagent.sources import host_paths
from nodeagent.sources.machine_access import is_recorded

__all__ = [
    "TIMEOUT_S",
    "TOPICS",
    "Finding",
    "Level",
    "Place",
    "Report",
    "Where",
    "as_json",
    "as_markdown",
    "as_table",
    "examine",
]

TIMEOUT_S = 15.0
"""A driver without persistence loads all its GPUs at the first question, which takes seconds."""
KUBELET_DIR = "/var/lib/kubelet"

DOCTOR = Topic(
    "doctor",
    "DOCTOR",
    {
        "check_hung": Entry(
            "What does not answer the doctor does not answer the agent: a driver, a disk or a socket hangs.",
            "look at the kernel's log (hung tasks, XIDs, I/O errors); --timeout gives it longer",
        ),
        "check_failed": Entry(
            "That part of the machine could not be looked at, so nothing is said of it.",
            "the sentence names the file or socket; run as root on the host, or mount what is missing",
        ),
        "not_known": Entry(
            "Only files were captured: what is asked of a running kernel, driver or kubelet is not among them.",
            "run the doctor on the machine itself",
        ),
    },
)

TOPICS = (
    configuration_checks.TOPIC,
    machine_checks.TOPIC,
    nic_checks.TOPIC,
    lldp_checks.TOPIC,
    gpu_checks.TOPIC,
    runtime_checks.TOPIC,
    kubelet_checks.TOPIC,
    capabilities.TOPIC,
    cluster_checks.TOPIC,
    DOCTOR,
)
"""In the order of the report."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: what the command line says. ``kubelet_dir``: ``None`` takes the usual one."""

    root: Path = Path("/")
    config_file: Path | None = None
    kubelet_dir: Path | None = None
    wait_s: float = 0.0
    timeout_s: float = TIMEOUT_S
    where: Where = field(default_factory=Where)


@dataclass(frozen=True, slots=True)
class Report:
    """``hung``: something still waits, in threads that cannot be ended; whoever exits should not wait for them."""

    findings: tuple[Finding, ...]
    hung: bool = False

    @property
    def good(self) -> bool:
        return not any(finding.level is Level.FIX for finding in self.findings)


def examine(place: Place) -> Report:
    """Look at everything and judge it. Raises ``SysfsError`` only where there is no machine under the root."""
    tree = Tree(place.root)
    if not tree.exists("/sys"):
        raise SysfsError(
            f"{place.root} has no /sys: --root takes the root of a machine, a capture or a simulation"
        )
    first = timeouts.run(
        {"configuration": Task(lambda: configuration_checks.look(place.config_file), place.timeout_s)}
    )
    configured = first["configuration"].value or Configuration("the default configuration", Config())
    recorded = is_recorded(tree)
    subject = Subject(
        tree,
        configured.config,
        recorded,
        place.kubelet_dir or _kubelet_dir(tree, recorded),
        place.wait_s,
        place.timeout_s,
    )
    seen = first | timeouts.run(_tasks(subject, place.where))
    findings = tuple(_findings(seen, subject))
    return Report(findings, any(outcome.hung_s is not None for outcome in seen.values()))


def _kubelet_dir(tree: Tree, recorded: bool) -> Path | None:
    """As `nodeagent run` takes it, or the host's below ``--root``; a recorded machine has no kubelet."""
    if recorded:
        return None
    usual, below = Path(KUBELET_DIR), tree.path(KUBELET_DIR)
    return below if below.is_dir() and not usual.is_dir() else usual


def _tasks(subject: Subject, where: Where) -> dict[str, Task]:
    usual, margin = subject.timeout_s, 2.0
    tasks = {
        "machine": Task(lambda: machine_checks.look(subject), usual),
        "nics": Task(lambda: nic_checks.look(subject), usual),
        # What it starts has the usual time, and must have ended first.
        "gpus": Task(lambda: gpu_checks.look(subject), usual + margin),
        "runtime": Task(lambda: runtime_checks.look(subject), usual),
        "paths": Task(lambda: host_paths.look(subject.tree, subject.config.cdi.directory), usual),
        "kubelet": Task(lambda: kubelet_checks.look(subject), usual),
        "lldp": Task(lambda: lldp_checks.look(subject), usual + subject.wait_s),
    }
    if not subject.recorded:
        tasks["rights"] = Task(lambda: capabilities.look(subject), usual)
    if not subject.recorded or where.kubeconfig is not None:
        tasks["cluster"] = Task(lambda: api_server.look(where), 2 * usual)
    return tasks


def _findings(seen: dict[str, Outcome], subject: Subject) -> Iterator[Finding]:
    config = subject.config
    snapshot = _snapshot(seen)

    def judged(name: str, judge: Callable[[Any], Iterable[Finding]]) -> Iterator[Finding]:
        """What is judged of it; nothing where the look came to none."""
        outcome = seen.get(name)
        if outcome is not None and outcome.value is not None:
            yield from judge(outcome.value)

    counted = snapshot.gpus if snapshot else ()
    yield from judged("configuration", lambda it: configuration_checks.judge(it, snapshot))
    yield from judged("machine", lambda it: machine_checks.judge(it, config))
    spoken = seen["lldp"].value or lldp_checks.Lldp()
    yield from judged("nics", lambda it: nic_checks.judge(it, config, {one.link for one in spoken.neighbors}))
    yield from judged("lldp", lambda it: lldp_checks.judge(it, config))
    yield from judged("gpus", lambda it: gpu_checks.judge(it, config))
    yield from judged("runtime", lambda it: runtime_checks.judge(it, config, counted))
    yield from judged("kubelet", lambda it: kubelet_checks.judge(it, config, snapshot))
    yield from judged("rights", lambda it: capabilities.judge(it, config))
    asked = seen.get("cluster", Outcome(error=LookupError()))
    if asked.error is None and asked.hung_s is None:
        yield from cluster_checks.judge(asked.value, config, snapshot)
    for name, outcome in seen.items():
        if outcome.hung_s is not None:
            yield DOCTOR.fix("check_hung", f"{name}: no answer within {outcome.hung_s:g} s")
        elif outcome.error is not None:
            yield DOCTOR.fix("check_failed", f"{name}: {_said(outcome.error)}")
    if subject.recorded:
        unknown = ["clock", "capabilities", "network namespace", "LLDP"]
        unknown += ["kubelet"] if subject.kubelet_dir is None else []
        yield DOCTOR.note("not_known", f"of a captured or simulated machine: {', '.join(unknown)}")


def _snapshot(seen: dict[str, Outcome]) -> Snapshot | None:
    """The devices of the machine as the agent would know them; ``None`` where a part of them is not known."""
    facts: nic_checks.Nics | None = seen["nics"].value
    found: gpu_checks.Gpus | None = seen["gpus"].value
    there = seen["paths"].value
    if facts is None or found is None or there is None or found.answer is None:
        return None
    return Snapshot(
        product=facts.facts.product,
        functions=facts.facts.functions,
        links=facts.facts.links,
        gpus=found.gpus,
        paths=there,
    )


def _said(error: BaseException) -> str:
    """An error with a sentence of its own says it; another one also what it is."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    ours = type(error).__module__.startswith("nodeagent.")
    return str(error) if ours and str(error) else f"{type(error).__name__}: {error}"
