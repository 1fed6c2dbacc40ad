"""The jobs of the cluster, for metrics and for the filter of the map: a copy of the pods, joined with the last plan.

* The copy keeps four texts of a pod that belongs to a job and runs, and nothing of any other.
* Only the right to list and watch pods is needed. Without it nothing else of the controller waits: the tree, and being
  ready, do not depend on pods.
* A pod that starts or ends makes no plan. The leader computes all jobs anew at most once in ``EVERY_S``, in a thread,
  and keeps ``JOBS_MAX`` of them: those in trouble first, so that the number of series is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.fabric import jobs as fabric_jobs
from nodeagent.fabric.jobs import FabricOfJobs, HeldLinks, JobFabric, JobPod, ListedPod, by_job
from nodeagent.fabric.planner import Plan
from nodeagent.kube.client import ApiClient
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import PODS
from nodeagent.topology.mirrors import PodIndex

JOBS_MAX = 200
EVERY_S = 15.0


class FoundJob(msgspec.Struct, frozen=True):
    """``job`` is its kind, namespace and name."""

    job: str
    nodes: tuple[str, ...]


class ClusterJobs:
    """``shown`` are the jobs of the last computation, of the leader alone. ``plan`` is its last plan."""

    def __init__(self, client: ApiClient, holders: PodIndex) -> None:
        self.pods: Reflector[JobPod | None] = Reflector(
            client, PODS.typed(ListedPod), take=fabric_jobs.job_pod
        )
        self.shown: list[JobFabric] = []
        self.plan: Plan | None = None
        self._holders = holders

    async def lead(self) -> None:
        """Keep ``shown`` up to date until cancelled, then forget it: a second replica would double each sum."""
        try:
            while True:
                if self.plan is not None and self.pods.synced.is_set():
                    pods, held = tuple(self.pods.objects.values()), dict(self._holders.links)
                    self.shown = await in_thread(partial(_first, self.plan, pods, held))
                await asyncio.sleep(EVERY_S)
        finally:
            self.shown, self.plan = [], None

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


def _first(plan: Plan, pods: Iterable[JobPod | None], held: HeldLinks) -> list[JobFabric]:
    """A job without a VF is left out: its links are not known, and most Jobs of a cluster use no fabric."""
    fabrics = FabricOfJobs(plan, held)
    made = (fabrics.of(job, found) for job, found in by_job(pods).items())
    return fabric_jobs.in_trouble_first((one for one in made if one.links), JOBS_MAX)
