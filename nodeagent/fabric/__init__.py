"""The fabric: from the neighbors that nodes report to the tree of HyperNodes that schedulers use. Pure.

``Planner`` takes the latest state of each object, in any order, and computes a plan from all of them:

    planner = Planner(rules)
    planner.report("gpu-0", links)            # a NodeLinks by its object's name; None: the object is gone
    planner.refuse("gpu-1", "not JSON: …")    # an object that could not be decoded
    planner.node("gpu-0", {"…": "…"})         # a Node with its labels; None: deleted
    planner.hypernode("leaf-a", hypernode)    # a HyperNode of any owner; None: deleted
    planner.uplinks({"leaf01": ("spine01",)}) # the switches above each leaf switch; all that are known
    outcome = planner.plan(now)               # now: seconds, monotonic

A plan writes nothing. Its writes take effect when the API server's objects come back through ``hypernode`` (and
``node`` for labels); until then each plan lists them again. ``prepare`` and ``accept`` are for a caller that
computes the plan in a thread. ``compute`` is all of that in one call.

A plan goes through these modules, in this order:

    nodelinks, reports    a report as written by a node, and its compact form
    hypernode             Volcano's object
    fabric_settings       the settings; ``topology_file`` has the known cabling
    known_neighbors       neighbors of InfiniBand links from a file of the operator
    inputs                the latest state of all objects
    published, foreign    the published tree; HyperNodes of other owners
    contested           the neighbors of links whose announcements contradict those of other nodes
    switch_keys,
    switch_names          the keys of switches; which announcements come from one switch
    node_peers            which announcements come from nodes, which are no switches
    groups, votes         which switches make one leaf group, and which group a node's links vote for
    naming                the names of HyperNodes: which group is which published object
    desired_places        where each node should be
    placement             when a move takes effect
    anomalies,
    anomaly_texts,
    rail_shifts           what is wrong with the cabling
    leaf_objects, tiers   the HyperNodes of tier 1, and of the tiers above
    writes                the order of writes that keeps the tree valid
    outputs, outcome      the result
    link_faults,
    gpu_troubles,
    troubles              what is wrong, for people: links and GPUs with a fault, wrong cables, nodes without a place

``uplinks`` derives the switches above a switch from the LLDP neighbors of that switch.
"""

from __future__ import annotations

from nodeagent.fabric.fabric_settings import IMMEDIATE, FabricRules, HysteresisSettings
from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import (
    Anomaly,
    AnomalyKind,
    Breaker,
    Overlap,
    PlanOutcome,
    TreeWrite,
    UnplacedNode,
    obstacles,
)
from nodeagent.fabric.planner import Planner, compute

__all__ = [
    "IMMEDIATE",
    "Anomaly",
    "AnomalyKind",
    "Breaker",
    "FabricRules",
    "HyperNode",
    "HysteresisSettings",
    "NodeLinks",
    "Overlap",
    "PlanOutcome",
    "Planner",
    "TreeWrite",
    "UnplacedNode",
    "compute",
    "obstacles",
]
