"""Jobs in the fabric: which pods are one job, and its nodes, leaf groups, links and GPUs in trouble. Pure.

A pod names its job: by a label that the controller of the job sets, else by its owner, else by the annotation of a
gang. The outermost job counts: the pods of a JobSet are those of a Job too. Of a set whose groups run independently,
such as a LeaderWorkerSet, each group is a job, named as the set with its index. docs/reference/verified.md has the
source of each name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from nodeagent.base.plain_text import one_line
from nodeagent.fabric.nodelinks import VfHolder, Wire
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.reports import STATE_LETTERS, CompactReport

_KUBEFLOW = "training.kubeflow.org"
_OPERATORS = {
    "mpi-operator": "MPIJob",
    "mpijob-controller": "MPIJob",
    "pytorchjob-controller": "PyTorchJob",
    "tfjob-controller": "TFJob",
    "jaxjob-controller": "JAXJob",
    "paddlejob-controller": "PaddleJob",
    "xgboostjob-controller": "XGBoostJob",
}
"""The kind by the label ``operator-name``: the launcher of an MPIJob has a Job as its owner."""
_TRIAL = "katib.kubeflow.org/trial"
_CLIQUE, _CLIQUE_SET = "grove.io/podclique", "app.kubernetes.io/part-of"
_LWS, _DISAGGREGATED = "leaderworkerset.sigs.k8s.io", "disaggregatedset.x-k8s.io"
_GROUPS = (
    ("PodCliqueSet", _CLIQUE, _CLIQUE_SET, "grove.io/podcliqueset-replica-index"),
    ("DisaggregatedSet", f"{_DISAGGREGATED}/name", f"{_DISAGGREGATED}/name", f"{_DISAGGREGATED}/slice"),
    ("LeaderWorkerSet", f"{_LWS}/name", f"{_LWS}/name", f"{_LWS}/group-index"),
)
"""A set of groups: the label that its pods have, those with its name and with the index of the group."""
_LABELS = (
    ("RayCluster", "ray.io/cluster"),
    ("JobSet", "jobset.sigs.k8s.io/jobset-name"),
    ("VolcanoJob", "volcano.sh/job-name"),
    ("KueueGroup", "kueue.x-k8s.io/pod-group-name"),
)
_SUBMITTED = "ray.io/originated-from-crd"
"""The Job by which a RayJob hands its program to the RayCluster has this label: not the job, though it has its name."""
_WORKFLOW = "workflows.argoproj.io/workflow"
_GANG = "scheduling.k8s.io/group-name"
_GENERATED = "podgroup-"
"""Volcano makes a PodGroup of this name for each pod, or owner of pods, that has none."""
GROUPED = tuple(kind for kind, *_ in _GROUPS)
"""The kinds of which each group is a job."""
APART = ("Workflow", "StatefulSet", "Deployment")
"""The kinds whose pods need not run at the same time: jobs on request, and none of the jobs that alerts are about."""
KINDS = (
    "Job",
    *(kind for kind, _ in _LABELS),
    *dict.fromkeys(_OPERATORS.values()),
    "VolcanoGroup",
    "Trial",
    *GROUPED,
    *APART,
)
ALIASES = {
    "trainjob": "JobSet", "vcjob": "VolcanoJob", "lws": "LeaderWorkerSet", "pcs": "PodCliqueSet",
    "sts": "StatefulSet", "deploy": "Deployment", "rayjob": "RayCluster",
}  # fmt: skip
"""A TrainJob is a JobSet of its name, and nothing in its pods names it. A RayJob makes a RayCluster of its name with an
ending."""
_ROLES = (
    f"{_DISAGGREGATED}/role",
    f"{_KUBEFLOW}/replica-type",
    f"{_KUBEFLOW}/job-role",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "ray.io/node-type",
    "volcano.sh/task-spec",
)
"""The first label that a pod has counts. Training Operator gives worker 0 of a job without a master the ``job-role``
master, though its type is worker; the MPI Operator sets ``job-role`` alone."""
_NAME_MAX = 253
_ENDED = frozenset(("Succeeded", "Failed"))
_SOUND = frozenset((STATE_LETTERS["healthy"], STATE_LETTERS["unused"]))


class OwnerReference(Wire, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class PodMetadata(Wire, frozen=True, kw_only=True):
    name: str = ""
    namespace: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class PodPlace(Wire, frozen=True, kw_only=True):
    node_name: str | None = None


class PodState(Wire, frozen=True, kw_only=True):
    phase: str | None = None
    start_time: str | None = None


class ListedPod(Wire, frozen=True, kw_only=True):
    """The used fields of a Pod."""

    metadata: PodMetadata
    spec: PodPlace = PodPlace()
    status: PodState = PodState()


class JobKey(NamedTuple):
    """A job, ordered by its name. ``kind`` is one of ``KINDS``."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class JobPod(NamedTuple):
    """A pod that has not ended. ``node`` is empty until it has one; ``since``: its start, or its creation. ``role`` is
    the word of the job's controller for what it does there, such as leader or prefill; empty: it has none."""

    job: JobKey
    name: str
    node: str
    since: str
    role: str = ""


class JobFabric(NamedTuple):
    """The nodes, leaf groups and links of a job.

    ``groups`` are the nodes by leaf group; an empty name: those in none. ``fewest`` leaf groups would do: the largest
    ones, filled one after the other. ``links`` are those of the VFs that the pods hold. ``faulty`` are those of them
    whose state is neither healthy nor unused. ``gpus`` are those in trouble that its pods hold, each with its node.
    ``stalled_s``: for so long its rails are silent and its GPUs wait; 0: it is not stalled. ``rails_below`` are those
    that are silent or below their peers while the others move. Both are ``None`` if no agent of it judges traffic.
    """

    job: JobKey
    groups: Mapping[str, tuple[str, ...]]
    fewest: int
    links: tuple[tuple[str, str], ...]
    faulty: tuple[tuple[str, str], ...]
    gpus: tuple[tuple[str, str], ...] = ()
    stalled_s: float | None = None
    rails_below: int | None = None

    @property
    def leaf_groups(self) -> int:
        return len(self.groups.keys() - {""})


HeldLinks = Mapping[str, Mapping[str, tuple[str, ...]]]
"""The links of a pod's VFs by node and ``namespace/pod``."""


def held_links(holders: Iterable[VfHolder]) -> dict[str, tuple[str, ...]]:
    """The links of each pod in a report."""
    held: dict[str, set[str]] = {}
    for holder in holders:
        held.setdefault(f"{holder.namespace}/{holder.pod}", set()).update(vf.link for vf in holder.vfs)
    return {pod: tuple(sorted(links)) for pod, links in held.items()}


def job_pod(pod: ListedPod) -> JobPod | None:
    """The pod as a part of its job; ``None``: it has ended, or is of no job."""
    meta = pod.metadata
    if pod.status.phase in _ENDED or (named := _job_of(meta)) is None:
        return None
    since = pod.status.start_time or meta.creation_timestamp or ""
    kind, name = named
    job = JobKey(meta.namespace or "", kind, one_line(name, _NAME_MAX, ascii_only=True))
    role = one_line(_role_of(meta.labels or {}), _NAME_MAX, ascii_only=True)
    return JobPod(job, meta.name, pod.spec.node_name or "", since, role)


def _job_of(meta: PodMetadata) -> tuple[str, str] | None:
    labels, annotations = meta.labels or {}, meta.annotations or {}
    if name := labels.get(_TRIAL):
        return "Trial", name
    operated = _OPERATORS.get(labels.get(f"{_KUBEFLOW}/operator-name", ""))
    if operated and (name := labels.get(f"{_KUBEFLOW}/job-name")):
        return operated, name
    for kind, own, of_set, index in _GROUPS:
        if own in labels and (name := labels.get(of_set)):
            return kind, f"{name}-{labels.get(index) or 0}"
    for kind, label in _LABELS:
        if name := labels.get(label):
            return kind, name
    if name := labels.get(_WORKFLOW):
        return "Workflow", name
    if _SUBMITTED in labels:
        return None
    owner = next((owner for owner in meta.owner_references or () if owner.controller), OwnerReference())
    if owner.api_version.startswith("batch/") and owner.kind == "Job":
        return owner.kind, owner.name
    gang = annotations.get(_GANG, "")
    if gang and not gang.startswith(_GENERATED):
        return "VolcanoGroup", gang
    if owner.api_version.startswith("apps/") and owner.kind == "StatefulSet":
        return owner.kind, owner.name
    if owner.api_version.startswith("apps/") and owner.kind == "ReplicaSet":
        ending = f"-{labels.get('pod-template-hash', '')}"
        return "Deployment", owner.name.removesuffix(ending)
    return None


def _role_of(labels: Mapping[str, str]) -> str:
    """The role of a pod by its labels. Grove names a clique SET-INDEX-ROLE, and one of a scaling group
    GROUP-INDEX-ROLE."""
    if clique := labels.get(_CLIQUE):
        pair = "grove.io/podcliquescalinggroup", "grove.io/podcliquescalinggroup-replica-index"
        if pair[0] not in labels:
            pair = _CLIQUE_SET, "grove.io/podcliqueset-replica-index"
        return clique.removeprefix("".join(f"{labels.get(label, '')}-" for label in pair))
    for label in _ROLES:
        if role := labels.get(label):
            return role
    if index := labels.get(f"{_LWS}/worker-index"):
        return "leader" if index == "0" else "worker"
    return ""


def by_job(pods: Iterable[JobPod | None]) -> dict[JobKey, list[JobPod]]:
    """The pods of each job."""
    jobs: dict[JobKey, list[JobPod]] = {}
    for pod in pods:
        if pod is not None:
            jobs.setdefault(pod.job, []).append(pod)
    return jobs


class FabricOfJobs:
    """The ``JobFabric`` of any job in the fabric of ``plan``."""

    def __init__(self, plan: Plan, held: HeldLinks) -> None:
        self._place, self._held, self._gpus = plan.nodes.place, held, plan.levels.gpu_faults
        sizes = sorted(Counter(self._place.values()).values(), reverse=True)
        self._fitting = list(accumulate(sizes, initial=0))
        """How many nodes fit into the largest leaf groups, by the number of groups."""
        self._faulty = {
            node: {
                name
                for name, letter in zip(_names(report), report.states, strict=True)
                if letter not in _SOUND
            }
            for node, report in plan.levels.reports.items()
            if not _SOUND.issuperset(report.states)
        }

    def of(self, job: JobKey, pods: Iterable[JobPod]) -> JobFabric:
        """The part of the fabric in which these pods of the job are."""
        pods = [pod for pod in pods if pod.node]
        links = sorted({(pod.node, link) for pod in pods for link in self.links_of(pod)})
        groups: dict[str, list[str]] = {}
        for node in sorted({pod.node for pod in pods}):
            groups.setdefault(self._place.get(node, ""), []).append(node)
        placed = sum(len(nodes) for name, nodes in groups.items() if name)
        return JobFabric(
            job,
            {name: tuple(groups[name]) for name in sorted(groups)},
            bisect_left(self._fitting, placed),
            tuple(links),
            tuple(link for link in links if link[1] in self._faulty.get(link[0], ())),
            tuple(sorted({(pod.node, gpu) for pod in pods for gpu in self._gpus_of(pod)})),
        )

    def _gpus_of(self, pod: JobPod) -> tuple[str, ...]:
        """The GPUs in trouble of its present node that it holds."""
        name = f"{pod.job.namespace}/{pod.name}"
        return tuple(fault.gpu for fault in self._gpus.get(pod.node, ()) if name in fault.pods)

    def links_of(self, pod: JobPod) -> tuple[str, ...]:
        """The links of its VFs on its present node. A report that still names it on a former node does not count."""
        return self._held.get(pod.node, {}).get(f"{pod.job.namespace}/{pod.name}", ())


def _names(report: CompactReport) -> list[str]:
    return [slot.link for slot in report.shape] + [other.link for other in report.others]


def in_trouble_first(jobs: Iterable[JobFabric], limit: int) -> list[JobFabric]:
    """At most ``limit`` jobs: first those with most faulty links and GPUs, then those with leaf groups to spare."""

    def order(one: JobFabric) -> tuple[int, int, JobKey]:
        troubled = len(one.faulty) + len(one.gpus) + (one.rails_below or 0) + bool(one.stalled_s)
        return -troubled, one.fewest - one.leaf_groups, one.job

    return sorted(jobs, key=order)[:limit]
