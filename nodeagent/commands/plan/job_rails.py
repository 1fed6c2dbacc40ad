"""`nodeagent job NAME --rails`: the matrix of pods and rails as a table, with the odd ones in words.

Without figures of the agents it shows the levels of the reports, which change seldom. `kubectl nodeagent job NAME
--rails` asks the agents of the job's nodes with the rights of its user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeagent.base.duration import duration
from nodeagent.commands.plan.preview import Preview
from nodeagent.console.terminal import PLAIN, Screen, remarks, screen_section
from nodeagent.fabric.job_traffic import (
    RankTraffic,
    job_pause,
    odd_ones,
    rails_of_job,
    rank_traffic,
)
from nodeagent.fabric.jobs import JobKey, JobPod
from nodeagent.fabric.nodelinks import TrafficLevel

PODS_SHOWN_MAX = 24
"""Rows of the table: those with something odd first. `--json` has all."""
_WORDS = {"moves": "ok", "silent": "0", "below": "low", "unmeasured": "?", "unused": "new", "": "-"}
_LEGEND = {
    "ok": "ok: carries traffic",
    "low": "low: less than half of the other rails of the pod",
    "?": "?: not measured: the driver does not count what a VF carries",
    "new": "new: nothing since the pod began",
    "none": "none: no VF on this rail",
    "-": "-: not known",
}
NO_LEVELS = (
    "no agent of its nodes reports traffic: set traffic.report, and apply the definition of NodeLinks of this "
    "version"
)
NO_FIGURES = "levels of the reports; kubectl nodeagent asks the agents for Gbit/s"


def ranks_of(preview: Preview, job: JobKey, pods: Sequence[JobPod], now: float) -> list[RankTraffic]:
    """The pods of the job that have a node, in the order of their names."""
    made = []
    for pod in sorted((pod for pod in pods if pod.node), key=lambda pod: pod.name):
        report = preview.reports.get(pod.node)
        own = (job.namespace, pod.name)
        holders = {(one.namespace, one.pod): one for one in (report.holders if report else ())}
        levels = {(one.namespace, one.pod): one for one in (report.traffic if report else ())}
        figures = preview.figures.get((pod.node, *own))
        made.append(rank_traffic(pod.name, pod.node, holders.get(own), levels.get(own), figures, now))
    return made


def job_levels(preview: Preview, job: JobKey, pods: Sequence[JobPod]) -> list[TrafficLevel]:
    """The level of each pod in the report of its present node; a former node may still report it."""
    return [
        level
        for pod in pods
        if pod.node in preview.reports
        for level in preview.reports[pod.node].traffic
        if (level.namespace, level.pod) == (job.namespace, pod.name)
    ]


def rails_document(preview: Preview, job: JobKey, pods: Sequence[JobPod], now: float) -> dict[str, Any]:
    """The matrix for programs. Rates are Gbit/s, packets both ways per second; ``null``: not measured."""
    ranks, levels = ranks_of(preview, job, pods, now), job_levels(preview, job, pods)
    own = {(job.namespace, rank.pod) for rank in ranks}
    pause = job_pause(levels, now)
    return {
        "namespace": job.namespace,
        "kind": job.kind,
        "name": job.name,
        "from": "figures"
        if any(key[1:] in own for key in preview.figures)
        else "levels"
        if levels
        else "nothing",
        "stalled": pause.stalled,
        "silentSeconds": round(pause.seconds),
        "rails": rails_of_job(ranks),
        "pods": [_pod(rank) for rank in ranks],
        "odd": [{"sentence": one.sentence, "pods": one.pods} for one in odd_ones(ranks)],
    }


def _pod(rank: RankTraffic) -> dict[str, Any]:
    return {
        "name": rank.pod,
        "node": rank.node,
        "level": rank.word or None,
        "silentSeconds": None if rank.quiet_s is None else round(rank.quiet_s),
        "longestPauseSeconds": round(rank.longest_pause_s),
        "gpus": {index: round(load, 3) for index, load in rank.gpus.items()},
        "gpuLevel": rank.gpu_word or None,
        "idleGpus": rank.idle_gpus,
        "rails": {
            rail: {
                "vfs": cell.vfs,
                "level": cell.word or None,
                "sentGbps": _rounded(cell.sent),
                "receivedGbps": _rounded(cell.received),
                "packetsPerSecond": None if cell.packets is None else round(cell.packets),
            }
            for rail, cell in rank.rails.items()
        },
    }


def _rounded(gbps: float | None) -> float | None:
    return None if gbps is None else round(gbps, 3)


def rails_lines(document: Mapping[str, Any], on: Screen = PLAIN) -> Iterator[str]:
    """The odd ones, then the table."""
    job = JobKey(document["namespace"], document["kind"], document["name"])
    odd, pods, rails = document["odd"], document["pods"], document["rails"]
    if document["from"] == "nothing":
        yield f"{job}: {NO_LEVELS}"
        return
    named = {pod for one in odd for pod in one["pods"]}
    shown = sorted(pods, key=lambda pod: pod["name"] not in named)[:PODS_SHOWN_MAX]
    prefix = _prefix(rails)
    figures = document["from"] == "figures"
    title = f"{job}: {'Gbit/s sent' if figures else 'levels'} by rail"
    heads = ("POD", *(rail.removeprefix(prefix) for rail in rails), "GPUS", "SILENT", "NODE")
    cells = [[_cell(pod["rails"].get(rail)) for rail in rails] for pod in shown]
    rows = [
        (pod["name"], *row, _gpus(pod), _silent(pod), pod["node"])
        for pod, row in zip(shown, cells, strict=True)
    ]
    if prefix:
        title += f" ({prefix}N)"
    yield remarks("Odd", [one["sentence"] for one in odd], on) or "Nothing is odd.\n"
    yield screen_section(title, heads, rows, on, optional=("NODE", "SILENT"))
    if len(pods) > len(shown):
        yield f"and {len(pods) - len(shown)} pods more: --json has all"
    used = {cell for row in cells for cell in row}
    yield from (text for word, text in _LEGEND.items() if word in used)
    if not figures:
        yield NO_FIGURES


def _prefix(rails: Sequence[str]) -> str:
    """The beginning of the names of all rails before their numbers: ``rail`` of rail0 to rail7."""
    prefixes = {rail.rstrip("0123456789") for rail in rails}
    return prefixes.pop() if len(rails) > 1 and len(prefixes) == 1 and "" not in prefixes else ""


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "none"
    if cell["level"] == "unmeasured" or cell["sentGbps"] is None:
        return _WORDS.get(cell["level"] or "", "-")
    return shown_rate(cell["sentGbps"])


def shown_rate(gbps: float) -> str:
    """Three digits; below 0.01 it is 0.

    >>> [shown_rate(gbps) for gbps in (0.0, 0.004, 0.05, 3.14159, 41.26, 398.2)]
    ['0', '0', '0.05', '3.14', '41.3', '398']
    """
    return "0" if gbps < 0.005 else f"{gbps:.3g}" if gbps >= 1 else f"{gbps:.2f}"


def _gpus(pod: Mapping[str, Any]) -> str:
    loads = list(pod["gpus"].values())
    if loads:
        return f"{100 * sum(loads) / len(loads):.0f} %"
    return str(pod["gpuLevel"] or "-")


def _silent(pod: Mapping[str, Any]) -> str:
    return "-" if pod["silentSeconds"] is None else duration(pod["silentSeconds"])
