"""The jobs of the cluster, for metrics and for the filter of the map: a copy of the pods, joined with the last plan.

* The copy keeps five texts of a pod that belongs to a job and runs, and nothing of any other.
* Jobs whose pods need not run together, such as Deployments, are found by name and have no metric.
* Only the right to list and watch pods is needed. Without it nothing else of the controller waits: the tree, and being
  ready, do not depend on pods.
* A pod that starts or ends makes no plan. The leader computes all jobs anew at most once in ``EVERY_S``, in a thread,
  and keeps ``JOBS_MAX`` of them: those in trouble first, so that the number of series is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.fabric import jobs as fabric_jobs
from nodeagent.fabric.job_traffic import job_pause, rails_below
from nodeagent.fabric.jobs import APART, FabricOfJobs, HeldLinks, JobFabric, JobPod, ListedPod, by_job
from nodeagent.fabric.nodelinks import TrafficLevel
from nodeagent.fabric.planner import Plan
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import PODS
from nodeagent.metrics.computed_family import ComputedFamily, computed
from nodeagent.topology.mirrors import NAME_MAX
from nodeagent.topology.parts import ControllerCore, ControllerPart
from nodeagent.web.live_document import JSON_TYPE
from nodeagent.web.server import Page

JOBS_MAX = 200
EVERY_S = 15.0
FOUND_MAX = 12
"""Results of a search, as many as the page shows."""


class FoundJob(msgspec.Struct, frozen=True):
    """``job`` is its kind, namespace and name."""

    job: str
    nodes: tuple[str, ...]


class ClusterJobs:
    """``shown`` are the jobs of the last computation, of the leader alone."""

    def __init__(self, core: ControllerCore) -> None:
        self.pods: Reflector[JobPod | None] = Reflector(
            core.reader, PODS.typed(ListedPod), take=fabric_jobs.job_pod
        )
        self.shown: list[JobFabric] = []
        self._plans, self._holders = core.plans, core.mirror.pods

    async def lead(self) -> None:
        """Keep ``shown`` up to date until cancelled, then forget it: a second replica would double each sum."""
        try:
            while True:
                if (plan := self._plans.last) is not None and self.pods.synced.is_set():
                    pods, held = tuple(self.pods.objects.values()), self._holders.held_now()
                    levels, now = self._holders.traffic_now(), time.time()
                    self.shown = await in_thread(partial(_first, plan, pods, held, levels, now))
                await asyncio.sleep(EVERY_S)
        finally:
            self.shown = []

    def job_of(self, pod: str) -> str:
        """The job of ``namespace/pod``; empty: it is of none."""
        found = self.pods.objects.get(pod)
        return "" if found is None else str(found.job)

    async def find(self, text: str, limit: int) -> list[FoundJob]:
        """At most ``limit`` jobs whose name contains ``text``; the one that is called so comes first."""
        pods, wanted = tuple(self.pods.objects.values()), text.lower()

        def search() -> list[FoundJob]:
            jobs = {str(job): found for job, found in by_job(pods).items()}
            names = sorted(
                (name for name in jobs if wanted in name.lower()),
                key=lambda name: (name.lower() != wanted, name),
            )
            return [
                FoundJob(name, tuple(sorted({pod.node for pod in jobs[name]} - {""})))
                for name in names[:limit]
            ]

        return await in_thread(search)

    async def page(self, parameters: Mapping[str, str]) -> Page:
        """The jobs whose kind, namespace and name contain a text, with their nodes."""
        text = parameters.get("text", "").strip()
        if len(text) > NAME_MAX:
            return Page(400, b"give a part of the name\n")
        return Page(200, msgspec.json.encode(await self.find(text, FOUND_MAX)), JSON_TYPE)


JOB_FAMILIES: tuple[ComputedFamily[ClusterJobs], ...] = (
    computed("job_links_degraded", "namespace,kind,name",
        "Links of the job's VFs that are neither healthy nor unused.",
        lambda jobs: ((one.job, len(one.faulty)) for one in jobs.shown)),
    computed("job_gpus_degraded", "namespace,kind,name", "GPUs in trouble that the job's pods hold.",
        lambda jobs: ((one.job, len(one.gpus)) for one in jobs.shown)),
    computed("job_leaf_groups", "namespace,kind,name", "Leaf groups with nodes of the job.",
        lambda jobs: ((one.job, one.leaf_groups) for one in jobs.shown)),
    computed("job_stalled_seconds", "namespace,kind,name",
        "Time since all rails of the job are silent while its GPUs wait; 0 while it is not stalled.",
        lambda jobs: ((one.job, one.stalled_s) for one in jobs.shown if one.stalled_s is not None)),
    computed("job_rails_below_peers", "namespace,kind,name",
        "Rails of the job's pods that are silent or below the others of their pod, while the pod moves.",
        lambda jobs: ((one.job, one.rails_below) for one in jobs.shown if one.rails_below is not None)),
)  # fmt: skip


def start_jobs(core: ControllerCore, *, wanted: bool) -> ControllerPart:
    """The feature of the controller."""
    if not wanted:
        return ControllerPart(pages={"jobs.json": _off}, state={"jobs": False})
    jobs = ClusterJobs(core)
    core.mirror.pods.job_of = jobs.job_of
    return ControllerPart(
        {"jobs": jobs.lead},
        mirrors={"pods": jobs.pods},
        pages={"jobs.json": jobs.page},
        state={"jobs": True},
        shown=jobs,
    )


async def _off(_parameters: Mapping[str, str]) -> Page:
    return Page(404, b"set jobs: true in the configuration of the controller\n")


def _first(
    plan: Plan,
    pods: Iterable[JobPod | None],
    held: Callable[[], HeldLinks],
    traffic: Callable[[], Mapping[tuple[str, str], TrafficLevel]] = dict,
    now: float = 0.0,
) -> list[JobFabric]:
    """A job without a VF is left out, unless a GPU of it is in trouble: its links are not known, and most Jobs of a
    cluster use no fabric. So is one whose pods need not run together: leaf groups above the fewest are no fault of
    it."""
    fabrics = FabricOfJobs(plan, held())
    levels = traffic()
    made = (
        _with_traffic(fabrics.of(job, found), found, levels, now)
        for job, found in by_job(pods).items()
        if job.kind not in APART
    )
    return fabric_jobs.in_trouble_first((one for one in made if one.links or one.gpus), JOBS_MAX)


def _with_traffic(
    job: JobFabric, pods: Iterable[JobPod], levels: Mapping[tuple[str, str], TrafficLevel], now: float
) -> JobFabric:
    """The job with what its rails carry, by the levels of its pods on their present nodes."""
    names = ((pod.node, f"{pod.job.namespace}/{pod.name}") for pod in pods)
    own = [levels[name] for name in names if name in levels]
    if not own:
        return job
    pause = job_pause(own, now)
    return job._replace(stalled_s=round(pause.seconds) if pause.stalled else 0, rails_below=rails_below(own))
