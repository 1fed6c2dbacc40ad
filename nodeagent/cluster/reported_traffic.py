"""The levels of traffic in this node's report, and what an earlier agent of this node has found. Pure.

A judge that begins knows neither the longest pause of a job nor that its rails moved before. So the longest pause of
the last report counts too, and a pod that had moved is silent, not unused, if it was there when the agent began.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.fabric.nodelinks import NodeLinks, RailLevel, TrafficLevel
from nodeagent.facts.model import PodTraffic, Snapshot

TRAFFIC_MAX = 128
"""Pods of a report, as in its definition; so many VFs of a pod may differ from it."""
SILENT_LEAST_S = 120.0


def reported_traffic(
    snapshot: Snapshot, names: Mapping[str, str], before: NodeLinks | None, now: float, *, patient: bool
) -> tuple[TrafficLevel, ...]:
    """The levels of this moment. ``names``: the names of the links by the address of the PF. ``now`` is Unix time.
    After a start the last ones stand until the judge says something."""
    last = {} if before is None else {(one.namespace, one.pod): one for one in before.traffic}
    if not snapshot.pod_traffic:
        return tuple(last.values()) if patient else ()
    return tuple(
        _level(pod, names, last.get((pod.namespace, pod.pod)), now)
        for pod in snapshot.pod_traffic[:TRAFFIC_MAX]
    )


def _level(pod: PodTraffic, names: Mapping[str, str], last: TrafficLevel | None, now: float) -> TrafficLevel:
    longest = max(pod.longest_pause, 0 if last is None else last.longest_pause_seconds)
    level, since = pod.level, None if pod.since is None else rfc3339(pod.since)
    gpus, idle = pod.gpus, pod.idle_gpus
    if level == "unused" and pod.at_start and last is not None and last.level in ("moving", "silent"):
        quiet_s = now - (now if pod.since is None else pod.since)
        if last.level == "silent":
            level, since = "silent", last.since
            if not gpus:  # not read often enough yet
                gpus, idle = last.gpus or "", last.idle_gpus
        elif quiet_s > max(SILENT_LEAST_S, longest):
            level = "silent"
        else:
            level, since = "moving", None
    if level != "silent":
        gpus, idle = "", ()
    return TrafficLevel(
        namespace=pod.namespace,
        pod=pod.pod,
        level=level,
        since=since,
        longest_pause_seconds=longest,
        gpus=gpus or None,
        idle_gpus=idle,
        rails=tuple(
            RailLevel(
                link=names[rail.pf],
                pci_address=rail.vf,
                level=rail.level,
                since=None if rail.since is None else rfc3339(rail.since),
            )
            for rail in pod.rails[:TRAFFIC_MAX]
            if rail.pf in names
        ),
    )
