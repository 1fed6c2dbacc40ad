"""Show what a job has of the fabric: nodes, leaf groups and links, what is wrong with them, and who shares them.

Each number can be counted by hand: in the list of its pods, in the NodeLinks reports of their nodes, in the tree.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nodeagent.base.duration import duration
from nodeagent.base.plain_text import few
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.plan import trouble
from nodeagent.commands.plan.job_rails import job_levels, rails_document, rails_lines
from nodeagent.commands.plan.preview import Preview, SourceError, read_preview
from nodeagent.config.file_errors import did_you_mean
from nodeagent.console.options import FAILED, GOOD
from nodeagent.console.similar_names import similar_names
from nodeagent.console.terminal import PLAIN, Screen, screen, wrapped
from nodeagent.fabric.job_traffic import job_pause
from nodeagent.fabric.jobs import (
    ALIASES,
    APART,
    GROUPED,
    KINDS,
    FabricOfJobs,
    JobKey,
    JobPod,
    by_job,
    held_links,
    job_pod,
)
from nodeagent.fabric.link_faults import FAULTS, unix
from nodeagent.fabric.node_lists import hostlist
from nodeagent.fabric.nodelinks import NOT_UP
from nodeagent.fabric.troubles import FabricTrouble, troubles

CANDIDATES_MAX = 6
NO_PODS = "no pods in this input; a file needs those of `kubectl get pods -A -o yaml` too"
WAITS = "a job that waits has no pods yet; `kubectl get workloads -A` lists those that Kueue holds"
_RANDOM = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
"""The ending that KubeRay adds: ``rand.String(5)`` of k8s.io/apimachinery, without vowels and 0, 1 and 3."""
Jobs = Mapping[JobKey, Sequence[JobPod]]


class JobNameError(SourceError):
    """The name is that of no job, or of several. The message shows which there are."""


def show_job(options: argparse.Namespace, now: Callable[[], float] = time.time) -> int:
    """Print the job once, or with ``--watch`` until it is ended. Return the exit code."""

    def look() -> tuple[str, int]:
        preview = read_preview(options, whole_reports=True, with_pods=True, with_agents=True)
        jobs = by_job(map(job_pod, preview.pods))
        name = chosen(
            jobs, options.name, options.namespace, live=options.source is None, pods=len(preview.pods)
        )
        if options.nodes_alone:
            return "\n".join(sorted({pod.node for pod in jobs[name]} - {""})), GOOD
        if options.rails:
            return _rails(preview, name, jobs[name])
        job, found = described_job(preview, jobs, name)
        pause = job_pause(job_levels(preview, name, jobs[name]), now())
        job["stalledSeconds"] = round(pause.seconds) if pause.stalled else None
        code = FAILED if found or pause.stalled else GOOD
        if options.json:
            envelope = trouble.trouble_document(preview, found, options.source, now())
            return json.dumps({**envelope, "job": job}, indent=2), code
        return "\n".join(as_lines(job, found, now(), screen())), code

    def _rails(preview: Preview, name: JobKey, pods: Sequence[JobPod]) -> tuple[str, int]:
        rails = rails_document(preview, name, pods, now())
        code = FAILED if rails["odd"] else GOOD
        if options.json:
            return json.dumps({**preview.origin(options.source, now()), "job": rails}, indent=2), code
        return "\n".join(rails_lines(rails, screen())), code

    return trouble.repeated(options, look)


def chosen(jobs: Jobs, name: str, namespace: str | None, *, live: bool = False, pods: int = 0) -> JobKey:
    """The job that ``NAME`` or ``KIND/NAME`` names, among those of a cluster (``live``) or of a file. ``pods`` are in
    the input, of jobs or not. The name of a set with one group names this group.

    Raises ``JobNameError``.
    """
    kind, _, name = name.rpartition("/")
    wanted = ALIASES.get(kind.lower(), kind).lower()
    if wanted and wanted not in map(str.lower, KINDS):
        raise JobNameError(
            f"{kind} is no kind of job{did_you_mean(kind, KINDS)}: there is {', '.join(KINDS)}"
        )
    if not jobs:
        if not pods:
            raise JobNameError(f"no pod of a job in this cluster: {WAITS}" if live else NO_PODS)
        none = f"of the {_count(pods, 'pod')} here none is of a job and has not ended; jobs are {', '.join(KINDS)}"
        raise JobNameError(f"{none}. {WAITS[0].upper()}{WAITS[1:]}" if live else none)
    fit = sorted(
        job for job in jobs if wanted in ("", job.kind.lower()) and namespace in (None, job.namespace)
    )
    found = [job for job in fit if job.name == name] or [job for job in fit if _set_of(job) == name]
    if len(found) > 1:
        ways = [f"nodeagent job -n {job.namespace} {job.kind}/{job.name}" for job in found[:CANDIDATES_MAX]]
        ways += [f"{len(found) - CANDIDATES_MAX} more"] if len(found) > CANDIDATES_MAX else []
        if found[0].name != name:
            raise JobNameError(f"{name} has {len(found)} groups, each a job: {'; '.join(ways)}")
        raise JobNameError(f"{len(found)} jobs are called {name}: {'; '.join(ways)}")
    if not found:
        similar = similar_names(name, {job.name for job in fit}, CANDIDATES_MAX)
        shown = [job for job in fit if job.name in similar or name in job.name] or fit or sorted(jobs)
        names = ", ".join(map(str, shown[:CANDIDATES_MAX]))
        waits = f". {WAITS[0].upper()}{WAITS[1:]}" if live else ""
        raise JobNameError(f"no job with pods that run is called {name}; there is {names}{waits}")
    return found[0]


def _set_of(job: JobKey) -> str | None:
    """The name of the set of which the job is a group, or of the RayJob that made the RayCluster."""
    name, _, ending = job.name.rpartition("-")
    if job.kind == "RayCluster":
        return name if _RANDOM.fullmatch(ending) else None
    return name if job.kind in GROUPED and ending.isdecimal() else None


def described_job(preview: Preview, jobs: Jobs, job: JobKey) -> tuple[dict[str, Any], list[FabricTrouble]]:
    """The job for programs, and what is wrong with its links and nodes.

    ``linksOf: nodes``: no VF of its pods is known, so all links of its nodes in the fabric count.
    """
    held = {node: held_links(report.holders) for node, report in preview.reports.items()}
    fabrics, pods, reports = FabricOfJobs(preview.plan, held), jobs[job], preview.plan.levels.reports
    fabric = fabrics.of(job, pods)
    nodes = {node for group in fabric.groups.values() for node in group}
    own = {*fabric.links} or {
        (node, slot.link) for node in nodes & reports.keys() for slot in reports[node].shape
    }
    own_pods = {f"{job.namespace}/{pod.name}" for pod in pods}
    of_pods = {f"{one.namespace}/{pod.name}": str(one) for one, those in jobs.items() for pod in those}
    found = [
        one
        for one in troubles(preview.plan, 0.0, time.time(), preview.held, lambda pod: of_pods.get(pod, ""))
        if own.intersection(one.links)
        or (not nodes.isdisjoint(one.nodes) and not (one.gpus and one.pods and own_pods.isdisjoint(one.pods)))
        or (not one.links and one.where in nodes and not one.gpus)
    ]
    starts = [at for pod in pods if (at := unix(pod.since)) is not None]
    made = {
        **job._asdict(),
        "since": rfc3339(min(starts)) if starts else None,
        "pods": [
            {"name": pod.name, "node": pod.node, "role": pod.role, "links": fabrics.links_of(pod)}
            for pod in pods
        ],
        "leafGroups": {name: group for name, group in fabric.groups.items() if name},
        "fewestLeafGroups": fabric.fewest,
        "unplacedNodes": fabric.groups.get("", ()),
        "unreportedNodes": sorted(nodes - preview.reports.keys()),
        "linksOf": "vfs" if fabric.links else "nodes",
        "links": [
            {
                "node": node,
                "link": link.name,
                "state": link.state,
                "since": link.last_transition_time,
                "speedMbps": link.speed_mbps,
            }
            for node in sorted(nodes & preview.reports.keys())
            for link in preview.reports[node].links
            if (node, link.name) in own
        ],
        "gpus": [{"node": node, "gpu": gpu} for node, gpu in fabric.gpus],
        "sharers": _sharers(preview, jobs, job, held, {*fabric.groups} - {""}),
    }
    return made, found


def _sharers(
    preview: Preview,
    jobs: Jobs,
    job: JobKey,
    held: Mapping[str, Mapping[str, object]],
    groups: set[str],
) -> dict[str, int]:
    """The other jobs, and the pods of no job with VFs, by their number of nodes in these leaf groups; most first. Of a
    job whose pods need not run together only those with VFs count: most Deployments use no fabric."""
    there = {node for node, group in preview.plan.nodes.place.items() if group in groups}
    of_jobs = {f"{one.namespace}/{pod.name}" for one, pods in jobs.items() for pod in pods}
    users = [
        (str(one), pod.node)
        for one, pods in jobs.items()
        if one != job
        for pod in pods
        if one.kind not in APART or f"{one.namespace}/{pod.name}" in held.get(pod.node, ())
    ]
    users += [(f"pod {pod}", node) for node in there & held.keys() for pod in held[node].keys() - of_jobs]
    counts = Counter(name for name, node in sorted({*users}) if node in there)
    return dict(counts.most_common())


def as_lines(
    job: Mapping[str, Any], found: Sequence[FabricTrouble], now: float, on: Screen = PLAIN
) -> Iterator[str]:
    """Sentences about the job, then a block for each trouble."""
    sentences = [*_of_pods(job, now), *(_of_links(job, now) if _nodes(job) else ())]
    for sentence in sentences:
        yield from wrapped(sentence.lstrip(), on, "  " if sentence.startswith(" ") else "")
    yield ""
    own = str(JobKey(job["namespace"], job["kind"], job["name"]))
    others = [one._replace(jobs=tuple(name for name in one.jobs if name != own)) for one in found]
    yield from trouble.blocks(others, now, on)
    known = " of which a report is here" if job["unreportedNodes"] else ""
    if found:
        yield f"{_count(len(found), 'trouble')}."
    elif not _nodes(job):
        yield "None of its pods has a node yet, so it has no links."
    else:
        yield f"No trouble with its links{known}."


def _of_pods(job: Mapping[str, Any], now: float) -> Iterator[str]:
    pods, began = job["pods"], unix(job["since"])
    nodes = _nodes(job)
    since = "" if began is None else f", the oldest for {duration(now - began)}"
    title = JobKey(job["namespace"], job["kind"], job["name"])
    yield f"{title}: {_count(len(pods), 'pod')} on {_count(len(nodes), 'node')}{since}"
    groups = job["leafGroups"]
    if groups:
        yield f"leaf groups: {len(groups)}; fewest possible: {job['fewestLeafGroups']} (the largest filled first)"
    yield from (
        f"  {group}: {_count(len(there), 'node')}, {hostlist(there)}" for group, there in groups.items()
    )
    if job["unplacedNodes"]:
        yield f"  in no leaf group: {hostlist(job['unplacedNodes'])}"
    if job["unreportedNodes"]:
        yield f"no NodeLinks report of: {hostlist(job['unreportedNodes'])}; nothing is known of their links"
    roles = _roles(job)
    if len(roles) > 1:
        yield f"roles: {', '.join(f'{role} ({_of_role(*there)})' for role, there in sorted(roles.items()))}"
    if without := [pod["name"] for pod in pods if not pod["node"]]:
        yield f"pods without a node: {', '.join(few(without))}"


def _of_links(job: Mapping[str, Any], now: float) -> Iterator[str]:
    pods, links, began = job["pods"], job["links"], unix(job["since"])
    if job["linksOf"] == "nodes":
        yield "no VF of its pods is known (cluster.reportHolders): all fabric links of its nodes count"
    elif without := [pod["name"] for pod in pods if pod["node"] and not pod["links"]]:
        yield f"pods without a VF: {', '.join(few(without))}"
    if stalled_s := job.get("stalledSeconds"):
        yield (
            f"stalled: its rails are silent and its GPUs wait for {duration(stalled_s)}; --rails says who did not "
            "arrive, as far as it is seen"
        )
    yield f"links: {len(links)}, {sum(link['state'] in FAULTS for link in links)} with a fault"
    changed = [
        f"{link['node']} {link['link']} ({link['state']} for {duration(now - at)})"
        for link in links
        if began is not None and (at := unix(link["since"])) is not None and at > began
    ]
    if changed:
        yield f"changed since its oldest pod began: {', '.join(few(changed))}"
    speeds: dict[int, list[str]] = {}
    for link in links:
        if link["speedMbps"] and link["state"] not in NOT_UP:
            speeds.setdefault(link["speedMbps"], []).append(f"{link['node']} {link['link']}")
    if speeds:
        slowest = f" ({', '.join(few(speeds[min(speeds)]))})" if len(speeds) > 1 else ""
        counts = [f"{len(speeds[mbps])} at {mbps / 1000:g} Gbit/s" for mbps in sorted(speeds)]
        yield f"speeds, the slowest first: {counts[0]}{slowest}{''.join(f', {one}' for one in counts[1:])}"
    if job["sharers"]:
        users = [f"{name} ({_count(nodes, 'node')})" for name, nodes in job["sharers"].items()]
        yield f"shares its leaf groups with: {', '.join(few(users))}"


def _nodes(job: Mapping[str, Any]) -> set[str]:
    return {pod["node"] for pod in job["pods"]} - {""}


def _roles(job: Mapping[str, Any]) -> dict[str, tuple[int, list[str]]]:
    """The number of pods of each role, and the leaf groups of their nodes."""
    of = {node: group for group, nodes in job["leafGroups"].items() for node in nodes}
    pods: dict[str, list[str]] = {}
    for pod in job["pods"]:
        if pod["role"]:
            pods.setdefault(pod["role"], []).append(of.get(pod["node"], ""))
    return {role: (len(groups), sorted({*groups} - {""})) for role, groups in pods.items()}


def _of_role(pods: int, groups: Sequence[str]) -> str:
    return f"{_count(pods, 'pod')} in {', '.join(few(groups))}" if groups else _count(pods, "pod")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
