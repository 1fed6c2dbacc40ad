"""Check the MPS daemons of GPUs that a resource with ``enforcement: mps`` shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count
from nodeagent.doctor.reads import Target
from nodeagent.kinds.mps_clients import MPS_FOLDER
from nodeagent.kinds.resource_settings import (
    memory_entries,
)
from nodeagent.sharing.mps_files import MpsFiles
from nodeagent.sharing.mps_watch import MPS_NOT_YET

MPS_TOPIC = Topic(
    "mps",
    "MPS",
    {
        "mps": FACT,
        "mps_not_running": Advice(
            "Only `nodeagent mps` starts the daemons. Without it all slices of these GPUs are Unhealthy.",
            "add daemonset/components/gpu-mps or set mps.enabled of the chart, and see why its pod does not run: "
            "kubectl -n nodeagent describe pods -l app.kubernetes.io/component=mps",
        ),
        "mps_not_asked": Advice(
            "The agent writes which GPUs need a daemon. It writes nothing before the driver has listed the GPUs.",
            "run the agent with this configuration; with MIG mode or without GPUs no daemon is needed",
        ),
        "mps_daemon": Advice(
            "Programs reach the GPU only through its daemon, so the slices of the GPU are Unhealthy.",
            "read the log of the DaemonSet nodeagent-mps, and control.log and server.log in the GPU's folder below "
            "`mps` in `health.stateDirectory`",
        ),
        "mps_unreadable": Advice(
            "The state of the daemons is known only from their files.",
            "run the doctor as root, with the --root of the agent",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class MpsFacts:
    """``runs``: whether ``nodeagent mps`` runs; ``None`` where no resource needs it, or on a captured machine.
    ``gpus``: the obstacle of each GPU that the agent has named, by UUID; empty where programs can use it.
    ``error``: why the files cannot be read."""

    runs: bool | None = None
    gpus: tuple[tuple[str, str], ...] = ()
    error: str = ""


def read_mps(target: Target) -> MpsFacts:
    config = target.config
    shared = any(entry.enforcement == "mps" for entry in memory_entries(config.resources))
    if not shared or target.recorded:
        return MpsFacts()
    files = MpsFiles(target.tree.path(config.health.state_directory) / MPS_FOLDER)
    try:
        runs, wanted = files.is_locked(), files.read_wanted().gpus if files.has_wanted() else ()
        states = {state.uuid: state for state in files.read_states().daemons}
    except (OSError, ValueError) as error:
        return MpsFacts(runs=False, error=str(error))
    obstacles = []
    for uuid in wanted:
        state = states.get(uuid)
        ready = state is not None and state.pid is not None
        obstacles.append(
            (uuid, (state.obstacle if state is not None else "") or ("" if ready else MPS_NOT_YET))
        )
    return MpsFacts(runs, tuple(obstacles))


def mps_findings(facts: MpsFacts) -> Iterator[Finding]:
    if facts.runs is None:
        return
    if facts.error:
        yield MPS_TOPIC.note("mps_unreadable", facts.error)
    elif not facts.runs:
        yield MPS_TOPIC.fix("mps_not_running", "`nodeagent mps` does not run on this node")
    elif not facts.gpus:
        yield MPS_TOPIC.warn("mps_not_asked", "no agent has named a GPU that needs an MPS daemon")
    else:
        sick = [(uuid, obstacle) for uuid, obstacle in facts.gpus if obstacle]
        for uuid, obstacle in sick:
            yield MPS_TOPIC.fix("mps_daemon", f"{uuid}: {obstacle}")
        if not sick:
            yield MPS_TOPIC.ok("mps", f"the MPS daemons of {count(len(facts.gpus), 'GPU')} are ready")
