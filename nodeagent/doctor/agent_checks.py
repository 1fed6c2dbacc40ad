"""Ask the agent that serves this machine for the devices that it withdraws.

The other checks look once. The agent keeps faults that have passed, such as an XID or the hold after a lost carrier,
so only its answer shows every device that new pods do not get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, shortened_list
from nodeagent.doctor.reads import Target
from nodeagent.health.explain import DeviceView
from nodeagent.health.rules import NIC_RULES
from nodeagent.web import local_socket

AGENT_TOPIC = Topic(
    "agent",
    "AGENT",
    {
        "agent_answers": FACT,
        "agent_not_asked": Advice(
            "The checks look once. A fault that an agent keeps after it has passed is not among the findings.",
            "nothing if no agent runs; otherwise run the doctor as root, with the --root of the agent",
        ),
        "agent_waits": Advice(
            "The agent goes on with the old value of a setting that was changed in its file.",
            "restart the agent: `kubectl -n nodeagent rollout restart daemonset/nodeagent`",
        ),
        "agent_withdraws": Advice(
            "The agent withholds these devices from new pods, also while a fault that has passed is not cleared.",
            "`nodeagent health DEVICE` shows what clears the fault; docs/runbook.md lists the reasons",
        ),
        "rules_blind": Advice(
            "Nothing of these NICs gives the counters that these rules read, so such a fault is not seen: the rules "
            "are unknown, which is not quiet.",
            "a newer kernel, driver or firmware may give them (docs/install.md); an InfiniBand counter at its end "
            "needs `perfquery -R`; otherwise watch the port of the switch",
        ),
    },
)

_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class _Configuration(msgspec.Struct):
    waiting: tuple[str, ...]


_CONFIGURATION = msgspec.json.Decoder(_Configuration)


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """``views`` is ``None`` without an answer, for the reason ``error``. ``place``: the agent's socket. ``waiting``:
    the settings whose change takes effect at its restart."""

    place: str
    views: tuple[DeviceView, ...] | None = None
    error: str = ""
    waiting: tuple[str, ...] = ()


def read_agent(target: Target) -> AgentFacts:
    folder = target.tree.path(target.config.health.state_directory)
    place = str(folder / local_socket.SOCKET_NAME)
    fetch = partial(local_socket.fetch, folder, timeout_s=target.timeout_s / 3)
    try:
        waiting = _CONFIGURATION.decode(fetch("/configuration")).waiting
    except (OSError, msgspec.MsgspecError):  # an agent of an earlier version
        waiting = ()
    try:
        return AgentFacts(place, _VIEWS.decode(fetch("/health")), waiting=waiting)
    except OSError as error:
        return AgentFacts(place, error=error.strerror or str(error))
    except msgspec.MsgspecError as error:
        return AgentFacts(place, error=f"the agent is not of this version: {error}")


def agent_findings(facts: AgentFacts, *, recorded: bool) -> Iterator[Finding]:
    """Of a captured or simulated machine, an absent agent is no finding."""
    if facts.views is None:
        if not recorded:
            yield AGENT_TOPIC.note("agent_not_asked", f"no agent answers at {facts.place}: {facts.error}")
        return
    withdrawn = [view for view in facts.views if not view.allocatable]
    count = f"{len(withdrawn)} of {len(facts.views)} devices"
    yield AGENT_TOPIC.ok("agent_answers", f"the agent at {facts.place} withdraws {count}")
    if facts.waiting:
        names = ", ".join(facts.waiting)
        yield AGENT_TOPIC.warn(
            "agent_waits", f"changed in the file, and not in force before a restart: {names}"
        )
    for view in withdrawn:
        reasons = shortened_list([f"{reason.key}: {reason.detail}" for reason in view.reasons])
        yield AGENT_TOPIC.warn("agent_withdraws", f"{view.label} is {view.state}: {reasons}")
    yield from _blind(facts.views)


def _blind(views: Iterable[DeviceView]) -> Iterator[Finding]:
    """One finding for the NICs that lack the same counters for the same rules."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for view in views:
        unknown = {rule.rule for rule in view.rules if rule.phase == "unknown"}
        blind = [
            rule.key for rule in NIC_RULES if rule.key in unknown and {*rule.counters} & {*view.not_given}
        ]
        if blind and view.watched:
            alike.setdefault((view.not_given, tuple(blind)), []).append(view.label)
    for (counters, rules), names in alike.items():
        yield AGENT_TOPIC.note(
            "rules_blind", f"{shortened_list(names)}: no {', '.join(counters)}; unknown: {', '.join(rules)}"
        )
