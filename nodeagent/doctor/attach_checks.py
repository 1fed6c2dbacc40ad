"""Check `nodeagent attach`, which moves the netdevs of VFs into pods: without it, containers with a VF do not start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.attach.attach_files import AttachFiles, AttachState
from nodeagent.attach.plan_file import read_attach_plan
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count
from nodeagent.doctor.reads import Target
from nodeagent.host.rdma_mode import rdma_exclusive

ATTACH_TOPIC = Topic(
    "attach",
    "Netdevs in pods",
    {
        "attach": FACT,
        "attach_not_running": Advice(
            "Only `nodeagent attach` moves netdevs. Without it a container with such a device is refused: "
            "`unresolvable CDI devices nodeagent.io/attached=…`.",
            "add daemonset/components/attach or set attach.enabled of the chart, and see why its pod does not run: "
            "kubectl -n nodeagent describe pods -l app.kubernetes.io/component=attach",
        ),
        "attach_runtime": Advice(
            "The container runtime names new pods over its NRI socket. containerd has it on from 2.0, CRI-O from 1.30.",
            "enable NRI in the configuration of the runtime and restart it: docs/attach.md has the lines",
        ),
        "attach_address": Advice(
            "A pod that gets such a device does not start: it would be without the address that the settings promise.",
            "give the PF, or the NIC itself, its address in the prefix of its rail, or correct `attach.addresses`",
        ),
        "attach_rdma_exclusive": Advice(
            "In this mode a program opens only the RDMA devices of its own network namespace, so `nodeagent attach` "
            "moves the RDMA device with the netdev. This was tried without hardware only.",
            "nothing, if programs in pods find their RDMA devices. Otherwise options ib_core netns_mode=1 in "
            "/etc/modprobe.d, and reboot the node: `rdma system set netns shared` ends with EBUSY while pods have "
            "network namespaces",
        ),
        "attach_pod": Advice(
            "Its containers that hold such a device wait. It is tried again every ten seconds.",
            "remove the obstacle that the message names",
        ),
        "attach_unreadable": Advice(
            "The state is known only from files.",
            "run the doctor as root, with the --root of the agent",
        ),
    },
)
_SHOWN = 4
_NO_STATE = AttachState()


@dataclass(frozen=True, slots=True)
class AttachFacts:
    """``runs``: whether ``nodeagent attach`` runs; ``None`` where the settings do not ask for it, or on a captured
    machine. ``refusals``: why planned VFs have no address, by PCI address. ``error``: why the files cannot be read.
    ``rdma_exclusive``: the kernel is in the exclusive RDMA mode."""

    runs: bool | None = None
    state: AttachState = _NO_STATE
    vfs: int = 0
    refusals: tuple[tuple[str, str], ...] = ()
    error: str = ""
    rdma_exclusive: bool = False


def read_attach(target: Target) -> AttachFacts:
    if target.config.attach.interface is None or target.recorded:
        return AttachFacts()
    folder = target.tree.path(target.config.health.state_directory)
    files = AttachFiles(folder)
    try:
        runs, state, plan = files.is_locked(), files.read_state(), read_attach_plan(folder)
    except (OSError, ValueError) as error:
        return AttachFacts(runs=False, error=str(error))
    vfs = {} if plan is None else plan.vfs
    refusals = tuple((device, vf.refusal) for device, vf in sorted(vfs.items()) if vf.refusal)
    return AttachFacts(runs, state, len(vfs), refusals, rdma_exclusive=rdma_exclusive(target.tree))


def attach_findings(facts: AttachFacts) -> Iterator[Finding]:
    if facts.runs is None:
        return
    if facts.error:
        yield ATTACH_TOPIC.note("attach_unreadable", facts.error)
        return
    if not facts.runs:
        yield ATTACH_TOPIC.fix("attach_not_running", "`nodeagent attach` does not run on this node")
    elif not facts.state.runtime:
        yield ATTACH_TOPIC.fix("attach_runtime", facts.state.obstacle or "no runtime is connected yet")
    else:
        yield ATTACH_TOPIC.ok(
            "attach",
            f"{facts.state.runtime} names pods; {count(facts.state.pods, 'pod')} of them with netdevs, and "
            f"{count(facts.vfs, 'device')} planned",
        )
        for waiting in facts.state.waiting[:_SHOWN]:
            yield ATTACH_TOPIC.fix("attach_pod", f"{waiting.pod}: {waiting.reason}")
    if facts.rdma_exclusive:
        yield ATTACH_TOPIC.note(
            "attach_rdma_exclusive",
            "the kernel is in the exclusive RDMA mode: RDMA devices move into pods with their netdevs",
        )
    reasons: dict[str, list[str]] = {}
    for device, refusal in facts.refusals:
        reasons.setdefault(refusal, []).append(device)
    for refusal, devices in list(reasons.items())[:_SHOWN]:
        yield ATTACH_TOPIC.fix(
            "attach_address", f"{count(len(devices), 'device')} from {devices[0]} on: {refusal}"
        )
