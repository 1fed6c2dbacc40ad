"""The fabric: from what nodes hear of their switches to the tree of HyperNodes that schedulers use. Pure.

One entry, ``Planner``. It is told levels, in any order and as often as one likes, and asked for a plan:

    planner = Planner(rules)
    planner.report("gpu-0", links)            # a NodeLinks by its object's name; None: the object is gone
    planner.refuse("gpu-1", "not JSON: …")    # an object that could not be decoded
    planner.node("gpu-0", {"…": "…"})         # a Node with its labels; None: deleted
    planner.hypernode("leaf-a", hypernode)    # a HyperNode of any owner; None: deleted
    planner.uplinks({"leaf01": ("spine01",)}) # what leaf switches hear above them; all that is known
    outcome = planner.plan(now)               # now: seconds, monotonic

``plan`` works on what has changed since it was asked last; ``plan(now, full=True)`` does everything again and
answers the same. Nothing is written by asking: the writes become true only when the API server's answer comes
back through ``hypernode`` (and ``node`` for labels), and until then each plan says them again. ``compute`` is
all of that in one call, for a look without a memory.

How the rooms of this house hang together, each of them pure:

    nodelinks  the report on the wire            switches  which announcements are one switch
    reports    a report made small, or refused   groups    which switches make one leaf group
    hypernode  Volcano's object                  tiers     what is above the leaves
    rules      what we are told                  names     which group is which published object
    outcome    the answer                        settle    when a move is believed
    anomalies  what is odd                       writes    in which order it is safe
    uplinks    what is above a switch, of what it hears itself
"""

from __future__ import annotations

from nodeagent.fabric.compute import compute
from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Anomaly, Breaker, Kind, Outcome, Overlap, Unplaced, Write, obstacles
from nodeagent.fabric.planner import Planner
from nodeagent.fabric.rules import IMMEDIATE, Hysteresis, Rules

__all__ = [
    "IMMEDIATE",
    "Anomaly",
    "Breaker",
    "HyperNode",
    "Hysteresis",
    "Kind",
    "NodeLinks",
    "Outcome",
    "Overlap",
    "Planner",
    "Rules",
    "Unplaced",
    "Write",
    "compute",
    "obstacles",
]
