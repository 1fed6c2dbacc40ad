"""Random changes of a Node and random Events, sent with the token of an agent or of the controller. A change that the
policies accept touches nothing but the marks of that account. No Event of another component or node is accepted.

Hypothesis makes the changes: it removes fields, replaces them by values of any type, and adds entries to lists and
maps, at any depth. A comparison in Python, written without the policies, decides which changes are harmless.
"""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.cluster.node_marks import OWN_MARKS
from nodeagent.commands.feature_table import WITH_CONTROLLER
from tests.daemonset.test_admission import (
    AGENT,
    CONTROLLER,
    CORE_EVENT,
    TOKEN,
    as_new_form,
    condition,
    event,
    node,
)
from tests.support.admission import Request, refusals
from tests.support.manifests import Manifest, combined

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

Json = Any

OWN: dict[str, dict[str, tuple[str, ...]]] = {
    AGENT: {
        f"{kind}s": tuple(mark.key for mark in OWN_MARKS if (mark.writer, mark.kind) == ("agent", kind))
        for kind in ("label", "taint", "condition")
    },
    CONTROLLER: {
        "labels": ("topology.nodeagent.io/tier-1", "topology.nodeagent.io/x"),
        "taints": ("nodeagent.io/links-below-minimum",),
        "conditions": ("nodeagent.io/FabricLinks",),
    },
}
EVERY_MARK = {
    kind: tuple(name for owned in OWN.values() for name in owned[kind])
    for kind in ("labels", "taints", "conditions")
}
FIELDS = (
    "labels", "annotations", "finalizers", "ownerReferences", "taints", "unschedulable", "providerID", "podCIDRs",
    "conditions", "capacity", "allocatable", "images", "nodeInfo", "later", *EVERY_MARK["labels"],
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["", "x", "NoExecute", "Ready"])
)
TAINTS = st.builds(
    lambda key, effect: {"key": key, "effect": effect},
    st.sampled_from(["maintenance", *EVERY_MARK["taints"]]),
    st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
)
CONDITIONS = st.builds(
    lambda type_, status: condition(type_, status=status),
    st.sampled_from(["Ready", "nodeagent.io/Other", *EVERY_MARK["conditions"]]),
    st.sampled_from(["True", "False"]),
)
VALUES = st.one_of(
    SCALARS, TAINTS, CONDITIONS, st.lists(TAINTS, max_size=3), st.lists(CONDITIONS, max_size=3)
)


@st.composite
def changes(draw: st.DrawFn, start: Json) -> Json:
    """The object after one to four changes, each at a random place."""
    made = copy.deepcopy(start)
    for _ in range(draw(st.integers(1, 4))):
        holder = made
        while True:
            inner = [one for one in _children(holder) if isinstance(one, dict | list)]
            if not inner or (holder is not made and draw(st.booleans())):
                break
            holder = draw(st.sampled_from(inner))
        if isinstance(holder, list):
            if holder and draw(st.booleans()):
                del holder[draw(st.integers(0, len(holder) - 1))]
            else:
                holder.append(draw(VALUES))
        elif holder and draw(st.booleans()):
            del holder[draw(st.sampled_from(sorted(holder)))]
        else:
            holder[draw(st.sampled_from([*sorted(holder), *FIELDS]))] = draw(VALUES)
    return made


def _children(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def foreign(made: Json, user: str) -> Json:
    """The Node without the marks of the account, and without differences between absent and empty."""
    own = OWN[user]
    labels = {
        name: value
        for name, value in (made["metadata"].get("labels") or {}).items()
        if name not in own["labels"]
        and not (user == CONTROLLER and name.startswith("topology.nodeagent.io/"))
    }
    spec, status = dict(made.get("spec") or {}), dict(made.get("status") or {})
    taints = [one for one in spec.pop("taints", None) or []
              if one["key"] not in own["taints"] or one["effect"] == "NoExecute"]  # fmt: skip
    conditions = [one for one in status.pop("conditions", None) or [] if one["type"] not in own["conditions"]]
    rest = [made["metadata"].get(name) or None for name in ("annotations", "ownerReferences", "finalizers")]
    parts = [labels, spec, status, rest]
    return [*(json.dumps(part, sort_keys=True) for part in parts), _unordered(taints), _unordered(conditions)]


def _unordered(entries: list[Json]) -> set[str]:
    return {json.dumps(one, sort_keys=True) for one in entries}


@functools.cache
def policies() -> list[Manifest]:
    return combined("node-conditions", base=WITH_CONTROLLER)


def full_node() -> Json:
    """A Node with marks of both accounts, beside those of others."""

    def mark(made: Json) -> None:
        made["metadata"]["labels"] |= dict.fromkeys(EVERY_MARK["labels"], "1")
        made["metadata"]["finalizers"] = ["x.io/stay"]
        made["spec"]["taints"] += [{"key": key, "effect": "NoSchedule"} for key in EVERY_MARK["taints"]]
        made["status"]["conditions"] += [condition(type_) for type_ in EVERY_MARK["conditions"]]

    return node(mark)


@pytest.mark.parametrize("user", [AGENT, CONTROLLER])
@pytest.mark.parametrize("part", ["nodes", "nodes/status"])
@settings(deadline=None)
@given(data=st.data())
def test_an_accepted_change_of_a_node_touches_only_own_marks(
    user: str, part: str, data: st.DataObject
) -> None:
    before = full_node()
    after = data.draw(changes(before))
    extra = TOKEN if user == AGENT else {}
    request = Request("UPDATE", f":{part}", "dgx-001", user, extra, after, before)
    if refusals(policies(), request) == []:
        assert foreign(after, user) == foreign(before, user)


EVENT_AUTHORS = st.sampled_from(
    ["nodeagent", "nodeagent-controller", "kubelet", "", None, "dgx-001", "dgx-002"]
)


@st.composite
def events(draw: st.DrawFn) -> Json:
    """An Event with any author and target."""
    made = copy.deepcopy(CORE_EVENT)
    if draw(st.booleans()):
        return made
    for name in ("reportingComponent", "reportingInstance"):
        made[name] = draw(EVENT_AUTHORS)
    made["source"] = {"component": draw(EVENT_AUTHORS), "host": draw(EVENT_AUTHORS)}
    made["involvedObject"] = {
        "kind": draw(st.sampled_from(["Node", "Pod", "Secret"])),
        "name": draw(EVENT_AUTHORS),
    }
    made["source"] = {name: value for name, value in made["source"].items() if value is not None}
    return {name: value for name, value in made.items() if value is not None}


def is_of_the_agent(one: Json) -> bool:
    target, source = one["involvedObject"], one.get("source", {})
    return (
        one.get("reportingComponent") == "nodeagent"
        and one.get("reportingInstance") == "dgx-001"
        and source.get("component", "nodeagent") == "nodeagent"
        and source.get("host", "dgx-001") == "dgx-001"
        and (target["kind"] == "Pod" or (target["kind"], target.get("name")) == ("Node", "dgx-001"))
    )


@settings(deadline=None)
@given(before=st.none() | events(), after=events())
def test_an_event_is_accepted_exactly_if_it_is_and_was_of_this_agent(before: Json, after: Json) -> None:
    request = Request(
        "UPDATE" if before else "CREATE", ":events", "x", AGENT, event().extra, after, before, "default"
    )
    harmless = is_of_the_agent(after) and (before is None or is_of_the_agent(before))
    for form in (request, as_new_form(request)):
        assert (refusals(policies(), form) == []) is harmless
