"""Print the tree as Slurm's topology.conf, for the plugin topology/tree.

The file has a line for each HyperNode of a switch tier: a leaf group lists its nodes, one above it lists HyperNodes
below. An NVLink domain is no switch: its nodes are those of its leaf group. Names of nodes
are those of Kubernetes, and names with consecutive numbers are written as a hostlist: ``gpu-[001-032]``. Slurm starts
only if each node of slurm.conf is in the file, so nodes without a place are comments.
Source: topology.conf(5) of Slurm 26.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from nodeagent.commands.plan.preview import Preview
from nodeagent.fabric.hypernode import LEAF, NVLINK, tier_name
from nodeagent.fabric.reports import shown
from nodeagent.fabric.switch_keys import digest

NAME_MAX = 64
"""Characters of SwitchName."""

_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")


def topology_conf(preview: Preview) -> str:
    fabric = preview.plan.rules.fabric
    lines = [f"# The fabric {fabric}, from the LLDP neighbors of its nodes, for TopologyPlugin=topology/tree"]
    wanted = preview.wanted
    for hypernode in preview.outcome.hypernodes:
        if hypernode.tier_name == tier_name(NVLINK):
            continue
        kind, names = "Switches", hypernode.children
        if hypernode.tier_name == tier_name(LEAF):
            inside = (node for domain in hypernode.children for node in wanted[domain].nodes)
            kind, names = "Nodes", (*hypernode.nodes, *inside)
        lines.append(f"SwitchName={_switch(hypernode.name)} {kind}={hostlist(map(_switch, names))}")
    lines += (
        f"# not in the tree: {shown(unplaced.node) or '(no name)'}: {unplaced.reason}"
        for unplaced in preview.outcome.unplaced
    )
    return "\n".join(lines)


def hostlist(names: Iterable[str]) -> str:
    """The names, separated by commas; those that differ in a number of the same width at the end are one entry."""
    return ",".join(_entries(sorted(names, key=_sort_key)))


def _sort_key(name: str) -> tuple[str, int, int]:
    numbered = _NUMBERED.fullmatch(name)
    return (name, 0, 0) if numbered is None else (numbered[1], len(numbered[2]), int(numbered[2]))


def _entries(names: Iterable[str]) -> Iterator[str]:
    for (stem, width), group in groupby(names, key=lambda name: _sort_key(name)[:2]):
        numbers = [int(name[len(stem) :]) for name in group] if width else []
        if len(numbers) < 2:
            yield f"{stem}{numbers[0]:0{width}}" if numbers else stem
            continue
        runs: list[list[int]] = []
        for number in numbers:
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        ranges = (f"{run[0]:0{width}}" + (f"-{run[-1]:0{width}}" if len(run) > 1 else "") for run in runs)
        yield f"{stem}[{','.join(ranges)}]"


def _switch(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 9]}-{digest(name)}"
