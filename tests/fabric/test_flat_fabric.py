"""A fabric without units that is larger than one object: the rest is named, and the remedy in the message works."""

from __future__ import annotations

import msgspec
import yaml

from nodeagent.fabric import IMMEDIATE, FabricRules, Planner, compute
from nodeagent.fabric.hypernode import render
from nodeagent.fabric.topology_file import StaticGroup, Topology
from tests.support.fabrics import links, single

NODES = 26_000
ETCD_MAX = 1_572_864
"""Bytes of a request to etcd by default, --max-request-bytes."""


def test_a_leaf_group_that_no_object_can_hold_is_one_anomaly_with_a_remedy_that_works() -> None:
    reports = [links(node, row) for node, row in single(1, NODES).items()]
    rules = FabricRules(hysteresis=IMMEDIATE)
    outcome = compute(reports, rules=rules)
    (hypernode,), (odd,) = outcome.hypernodes, outcome.anomalies
    assert len(msgspec.json.encode(render(hypernode))) < ETCD_MAX
    unplaced = [each.node for each in outcome.unplaced]
    assert len(hypernode.nodes) + len(unplaced) == NODES
    assert (str(odd.kind), odd.switch) == ("oversized", hypernode.name)
    assert odd.message.startswith(f"{len(unplaced)} nodes of ")
    # Published nodes stay, also when a node whose name comes first is added.
    planner = Planner(rules)
    planner.hypernode(hypernode.name, hypernode)
    for report in (links("a-new-node", next(iter(single(1, 1).values()))), *reports):
        planner.report(report.node_name, report)
    assert planner.plan(0.0).hypernodes[0].nodes == hypernode.nodes
    # Labels have no limit: all nodes get them, and the plan shows what the controller writes.
    for report in reports:
        planner.node(report.node_name, {})
    outcome = planner.plan(0.0)
    assert {*unplaced} <= {each.node for each in outcome.unplaced}
    assert dict(outcome.relabel[unplaced[0]]) == dict(outcome.labels[unplaced[0]]) != {}
    assert {*outcome.labels} == {*outcome.relabel} >= {report.node_name for report in reports}
    # The entry of the message, with all nodes that have no place.
    entry = yaml.safe_load(odd.message[odd.message.index("{") :].replace(", …", ""))
    assert entry["nodes"] == unplaced[:1]
    planner = Planner(rules, Topology(groups=(StaticGroup(entry["name"], nodes=tuple(unplaced)),)))
    for report in reports:
        planner.report(report.node_name, report)
    outcome = planner.plan(0.0)
    assert not outcome.unplaced
    assert not outcome.anomalies
    assert {frozenset(each.nodes) for each in outcome.hypernodes} == {
        frozenset(hypernode.nodes),
        frozenset(unplaced),
    }
