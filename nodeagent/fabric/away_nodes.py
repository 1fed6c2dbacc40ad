"""Nodes that are away: their condition Ready is not True, or no agent runs there, so nothing new is known. Pure.

* Of a Node the taints and the condition Ready are read, and nothing is kept of one that is Ready.
* A Node without the condition counts as there: what the cluster does not say is no evidence.
* The last report of an away node stands, and changes no place in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.fabric.link_faults import unix
from nodeagent.fabric.nodelinks import Wire

AWAY_SERIES_MAX = 20_000
_MESSAGE_MAX = 160
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_UNREACHABLE = "node.kubernetes.io/unreachable"
UNREACHABLE, NOT_READY, NO_AGENT = "unreachable", "not_ready", "no_agent"
"""Why a node is away, as a label of a metric: its kubelet is silent, or says that it is not ready; or no agent runs."""


class ReadyCondition(Wire, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    message: str | None = None
    last_transition_time: str | None = None


class ReadyTaint(Wire, frozen=True, kw_only=True):
    key: str = ""


class NodeTaints(Wire, frozen=True, kw_only=True):
    taints: tuple[ReadyTaint, ...] | None = None


class NodeConditions(Wire, frozen=True, kw_only=True):
    conditions: tuple[ReadyCondition, ...] | None = None


class NodeMetadata(Wire, frozen=True, kw_only=True):
    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class WatchedNode(Wire, frozen=True, kw_only=True):
    """The part of a Node that is decoded."""

    metadata: NodeMetadata
    spec: NodeTaints = NodeTaints()
    status: NodeConditions = NodeConditions()


class AwayNode(NamedTuple):
    """``why`` is ``UNREACHABLE``, ``NOT_READY`` or ``NO_AGENT``, ``detail`` a sentence. ``since``: Unix time."""

    why: str
    since: float | None
    detail: str

    @property
    def word(self) -> str:
        return self.why.replace("_", " ")


Away = Mapping[str, AwayNode]
"""The nodes that are away, by name."""


def away_node(spec: NodeTaints, status: NodeConditions) -> AwayNode | None:
    """The state that a Node's taints and conditions say; ``None``: it is there, or the Node does not say."""
    ready = next((one for one in status.conditions or () if one.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return None
    taints = {taint.key for taint in spec.taints or ()}
    silent = ready.status == "Unknown" or _UNREACHABLE in taints
    if silent:
        detail = "its kubelet does not answer"
    else:
        detail = f"its kubelet says: {one_line(ready.message or 'nothing', _MESSAGE_MAX)}"
    if _OUT_OF_SERVICE in taints:
        detail += "; it is marked out of service"
    return AwayNode(UNREACHABLE if silent else NOT_READY, unix(ready.last_transition_time), detail)


def away_of_document(document: Mapping[str, Any], *, lax: bool = False) -> AwayNode | None:
    """``away_node`` of a Node as JSON or YAML; ``lax`` if all its scalars are text. A part that cannot be read says
    nothing."""
    try:
        spec = msgspec.convert(document.get("spec") or {}, NodeTaints, strict=not lax)
        status = msgspec.convert(document.get("status") or {}, NodeConditions, strict=not lax)
    except msgspec.MsgspecError:
        return None
    return away_node(spec, status)


def away_series(away: Away, groups: Mapping[str, str]) -> dict[tuple[str, str, str], float]:
    """Since when each node is away (Unix time, 0 if it is not known), by node, leaf group and why: for metrics, at most
    ``AWAY_SERIES_MAX``. ``groups`` are the leaf groups of nodes."""
    return {
        (node, groups.get(node, ""), one.why): one.since or 0.0
        for node, one in islice(sorted(away.items()), AWAY_SERIES_MAX)
    }
