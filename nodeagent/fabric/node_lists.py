"""The tree as lists of nodes: the files of Slurm, and the order of ranks.

* ``slurm``: topology.conf for topology/tree. A line for each HyperNode of a switch tier: a leaf group lists its nodes,
  one above it lists HyperNodes below. An NVLink domain is no switch: its nodes are those of its leaf group.
* ``slurm-block``: topology.conf for topology/block. Each NVLink domain is a block. The base size is the most frequent
  number of nodes of a domain, and each larger size twice the one before. A domain with fewer nodes stays a block, which
  Slurm accepts.
* ``slurm-yaml``: topology.yaml of Slurm 25.05 and newer: the tree, and the blocks if there are domains.
* ``hostfile``, ``ranks``: the nodes, those under the same switches behind each other.

Names of nodes are those of Kubernetes. Names with consecutive numbers are written as a hostlist: ``gpu-[001-032]``.
Sources: topology.conf(5) and topology.yaml(5) of Slurm 26.05.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from nodeagent.fabric.hypernode import LEAF, NVLINK, HyperNode, tier_name
from nodeagent.fabric.outcome import PlanOutcome
from nodeagent.fabric.reports import shown
from nodeagent.fabric.switch_keys import digest

_NAME_MAX = 64
"""Characters of SwitchName."""

_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")
_ENTRY = re.compile(r"([^,\[\]\s]+)(?:\[([-0-9,]+)\])?")


@dataclass(frozen=True)
class Switch:
    """A line of a tree: a leaf group with its nodes, or a HyperNode above it with the switches below."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


class NoDomainsError(Exception):
    """The tree has no NVLink domain, so there are no blocks."""


class NodeLists:
    """The tree of a plan, with the nodes ``only`` alone; ``None``: with all. What has no node is left out."""

    def __init__(self, outcome: PlanOutcome, fabric: str, only: Collection[str] | None = None) -> None:
        self._outcome, self._fabric, self._only = outcome, fabric, only
        self._wanted = {hypernode.name: hypernode for hypernode in outcome.hypernodes}

    @property
    def is_empty(self) -> bool:
        return not self._ordered()

    def written(self, form: str, *, comments: bool = True) -> str:
        """The file of a form that the module's docstring names. ``comments``: with those about nodes without a place.
        Raises ``NoDomainsError`` for blocks without domains."""
        forms = {
            "slurm": self._tree,
            "slurm-block": self._blocks,
            "slurm-yaml": self._yaml,
            "hostfile": self._hostfile,
            "ranks": self._ranks,
        }
        lines = [*forms[form]()]
        if comments and form.startswith("slurm"):
            lines += self._comments()
        return "\n".join(lines)

    def leaves(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each leaf group, those of its NVLink domains included."""
        found = dict[str, tuple[str, ...]]()
        for hypernode in self._outcome.hypernodes:
            if hypernode.tier_name == tier_name(LEAF):
                inside = (node for domain in hypernode.children for node in self._wanted[domain].nodes)
                found[hypernode.name] = tuple(filter(self._has, (*hypernode.nodes, *inside)))
        return found

    def unknown(self) -> list[str]:
        """The nodes of ``only`` that the tree does not have."""
        return sorted(set(self._only or ()) - set(self._ordered()), key=_sort_key)

    def _has(self, node: str) -> bool:
        return self._only is None or node in self._only

    def _switches(self) -> list[Switch]:
        """From the leaves up, in the order of the planner."""
        leaves, found = self.leaves(), dict[str, Switch]()
        for hypernode in self._outcome.hypernodes:
            if hypernode.name in leaves:
                switch = Switch(_switch(hypernode.name), leaves[hypernode.name])
            elif hypernode.tier_name == tier_name(NVLINK):
                continue
            else:
                below = tuple(_switch(child) for child in hypernode.children if child in found)
                switch = Switch(_switch(hypernode.name), switches=below)
            if switch.nodes or switch.switches:
                found[hypernode.name] = switch
        return list(found.values())

    def _domains(self) -> dict[str, list[str]]:
        """The nodes of each NVLink domain, in the order of the tree: Slurm joins consecutive blocks to larger ones."""
        domain = {
            node: hypernode.name
            for hypernode in self._outcome.hypernodes
            if hypernode.tier_name == tier_name(NVLINK)
            for node in hypernode.nodes
        }
        domains: dict[str, list[str]] = {}
        for node in self._ordered():
            if node in domain:
                domains.setdefault(domain[node], []).append(node)
        return domains

    def _tree(self) -> Iterator[str]:
        yield f"# The fabric {self._fabric}, from the LLDP neighbors of its nodes, for TopologyPlugin=topology/tree"
        for switch in self._switches():
            kind, names = ("Nodes", switch.nodes) if switch.nodes else ("Switches", switch.switches)
            yield f"SwitchName={switch.name} {kind}={hostlist(names)}"

    def _blocks(self) -> Iterator[str]:
        domains = self._domains()
        if not domains:
            raise NoDomainsError
        yield "# The NVLink domains of the nodes, for TopologyPlugin=topology/block"
        for name, nodes in domains.items():
            yield f"BlockName={_switch(name)} Nodes={hostlist(nodes)}"
        yield f"BlockSizes={','.join(map(str, block_sizes(domains)))}"

    def _yaml(self) -> Iterator[str]:
        yield f"# The fabric {self._fabric}, from the LLDP neighbors of its nodes, for topology.yaml of Slurm"
        yield from (
            f"- topology: {_quoted(self._fabric)}",
            "  cluster_default: true",
            "  tree:",
            "    switches:",
        )
        for switch in self._switches():
            kind, names = ("nodes", switch.nodes) if switch.nodes else ("children", switch.switches)
            yield from (f"    - switch: {_quoted(switch.name)}", f"      {kind}: {_quoted(hostlist(names))}")
        if domains := self._domains():
            yield from ("- topology: nvlink", "  cluster_default: false", "  block:")
            yield from (f"    block_sizes: [{', '.join(map(str, block_sizes(domains)))}]", "    blocks:")
            for name, nodes in domains.items():
                yield from (
                    f"    - block: {_quoted(_switch(name))}",
                    f"      nodes: {_quoted(hostlist(nodes))}",
                )

    def _comments(self) -> Iterator[str]:
        """The nodes that Slurm knows and the tree does not have: with topology/tree Slurm needs each of them."""
        for unplaced in self._outcome.unplaced:
            if self._has(unplaced.node):
                yield f"# not in the tree: {shown(unplaced.node) or '(no name)'}: {unplaced.reason}"

    def _ordered(self) -> dict[str, str]:
        """The leaf group of each node, in the order of the tree from its top."""
        wanted = self._wanted
        children = {child for hypernode in wanted.values() for child in hypernode.children}
        order = dict[str, str]()

        def visit(hypernode: HyperNode, group: str) -> None:
            group = hypernode.name if hypernode.tier_name == tier_name(LEAF) else group
            for child in sorted(hypernode.children, key=_sort_key):
                if child in wanted:
                    visit(wanted[child], group)
            order.update((node, group) for node in sorted(hypernode.nodes, key=_sort_key) if self._has(node))

        for root in sorted((one for one in wanted if one not in children), key=_sort_key):
            visit(wanted[root], "")
        return order

    def _hostfile(self) -> Iterator[str]:
        yield from self._ordered()

    def _ranks(self) -> Iterator[str]:
        for rank, (node, group) in enumerate(self._ordered().items()):
            yield f"{rank}\t{node}\t{group}"


def block_sizes(domains: dict[str, list[str]]) -> list[int]:
    """BlockSizes of topology/block: the most frequent size, the larger one of equals, then doubled up to the number of
    domains."""
    counted = Counter(len(nodes) for nodes in domains.values())
    base = max(counted, key=lambda size: (counted[size], size))
    return [base << power for power in range(len(domains).bit_length())]


def hostlist(names: Iterable[str]) -> str:
    """The names, separated by commas; those that differ in a number of the same width at the end are one entry."""
    return ",".join(_entries(sorted(names, key=_sort_key)))


def expanded(hostlists: Iterable[str]) -> Iterator[str]:
    """The names of hostlists such as ``gpu-[001-032,040],login``, each with one bracket at most.

    >>> [*expanded(["gpu-[08-10,12],login", "cpu-1"])]
    ['gpu-08', 'gpu-09', 'gpu-10', 'gpu-12', 'login', 'cpu-1']
    """
    for stem, inner in (found for text in hostlists for found in _ENTRY.findall(text)):
        for span in inner.split(","):
            first, _, last = span.partition("-")
            yield from (
                (f"{stem}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1))
                if inner
                else (stem,)
            )


def ranges(hostlist: str) -> Iterator[tuple[int, int]]:
    """The first and the last number of each range in the brackets.

    >>> [*ranges("gpu-[08-10,12],cpu-1-2")]
    [(8, 10), (12, 12)]
    """
    for span in (one for _, inner in _ENTRY.findall(hostlist) if inner for one in inner.split(",")):
        first, _, last = span.partition("-")
        yield int(first), int(last or first)


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


def _quoted(text: str) -> str:
    """A string of YAML: a node may be called 7 or no."""
    return json.dumps(text)


def _switch(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 9]}-{digest(name)}"
