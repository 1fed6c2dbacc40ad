"""Settings of the agent's writes to the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import SECONDS_MAX, AbsolutePath, Settings, setting

Rails = Annotated[int, msgspec.Meta(ge=1, le=64)]
Wait = Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)]


class TaintSettings(Settings, frozen=True, kw_only=True):
    """The taint nodeagent.io/links-down:NoSchedule on this Node."""

    enabled: Annotated[
        bool, setting("Set it while so many rails are down, and take it away again after.")
    ] = False
    rails_down: Annotated[
        Rails,
        setting(
            "How many rails must have been down for 30 s. A leaf switch that restarts takes a rail from each of its "
            "nodes: 1 would keep pods from all of them."
        ),
    ] = 2


class EvictSettings(Settings, frozen=True, kw_only=True):
    """Eviction of pods that hold a failed device."""

    enabled: Annotated[
        bool,
        setting(
            "Evict them, as far as their disruption budgets allow. The agent must be granted that right."
        ),
    ] = False
    after_seconds: Annotated[
        Wait, setting("How long the device must have been Unhealthy: a link that returns costs no pod.")
    ] = 300.0


class ClusterSettings(Settings, frozen=True, kw_only=True):
    """What the agent tells the API server, where there is one; a node without a cluster misses nothing."""

    access: Annotated[
        Literal["auto", "in-cluster", "kubeconfig", "none"],
        setting(
            "How the API server is reached. auto: by the pod's service account where it has one, else not at all; "
            "in-cluster: that, and its absence is an error; kubeconfig: as the file below says; none: not at all."
        ),
    ] = "auto"
    kubeconfig: Annotated[
        AbsolutePath | None, setting("The kubeconfig to use with access: kubeconfig; null: $KUBECONFIG.")
    ] = None
    report: Annotated[
        bool, setting("Keep this node's NodeLinks true, of which the controller makes the fabric's tree.")
    ] = True
    events: Annotated[
        bool, setting("Tell of faults by Events, on the Node and on the pods whose device has failed.")
    ] = True
    conditions: Annotated[
        bool,
        setting(
            "Keep the conditions nodeagent.io/LinkHealthy and nodeagent.io/GpuHealthy of this Node. The agent must "
            "be granted that right."
        ),
    ] = False
    label: Annotated[
        bool,
        setting(
            "Keep the label nodeagent.io/link-degraded: how many links are degraded, miscabled or down; none, and "
            "it is not there. The agent must be granted that right."
        ),
    ] = False
    taint: Annotated[TaintSettings, setting("A taint for a node that has lost its rails.")] = TaintSettings()
    evict: Annotated[EvictSettings, setting("Eviction of pods that hold a failed device.")] = EvictSettings()


def cluster_conflicts(cluster: ClusterSettings) -> Iterator[Conflict]:
    """Settings that have no effect without another one."""
    if cluster.kubeconfig is not None and cluster.access != "kubeconfig":
        message = "needs access: kubeconfig; a pod's service account is not read from there"
        yield Conflict((("kubeconfig",), ("access",)), message)
    if cluster.access == "none":
        enabled = {"conditions": cluster.conditions, "label": cluster.label}
        enabled |= {"taint": cluster.taint.enabled, "evict": cluster.evict.enabled}
        for key in (key for key, on in enabled.items() if on):
            yield Conflict(((key,), ("access",)), "needs an API server, and access is none")
