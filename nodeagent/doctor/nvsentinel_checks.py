"""Check the socket of NVSentinel's platform connector, if the configuration has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.doctor.finding import FACT, Advice, Finding, Topic
from nodeagent.doctor.kubelet_checks import has_listener
from nodeagent.doctor.reads import Target

NVSENTINEL_TOPIC = Topic(
    "nvsentinel",
    "NVSENTINEL",
    {
        "nvsentinel": FACT,
        "nvsentinel_absent": Advice(
            "The agent sends the health of the devices to this socket. It tries again until a connector listens, and "
            "then sends the present health.",
            "mount the folder of the socket below --root (components/nvsentinel); check the platform connector on this "
            "node; or remove `nvSentinel.socket`",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class NvSentinelFacts:
    """``socket``: the path that the agent uses; ``None`` where none is configured, or on a captured machine."""

    socket: str | None = None
    exists: bool = False
    listens: bool = False


def read_nvsentinel(target: Target) -> NvSentinelFacts:
    configured = target.config.nv_sentinel.socket
    if configured is None or target.recorded:
        return NvSentinelFacts()
    path = target.tree.path(configured)
    return NvSentinelFacts(str(path), path.exists(), has_listener(path))


def nvsentinel_findings(facts: NvSentinelFacts) -> Iterator[Finding]:
    if facts.socket is None:
        return
    if facts.listens:
        yield NVSENTINEL_TOPIC.ok("nvsentinel", f"a platform connector listens on {facts.socket}")
    else:
        reason = "no process listens on it" if facts.exists else "it does not exist"
        yield NVSENTINEL_TOPIC.warn("nvsentinel_absent", f"{facts.socket}: {reason}")
