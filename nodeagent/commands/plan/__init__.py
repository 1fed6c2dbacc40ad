"""The fabric: what HyperNodes would be written, why, and what it looks like."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.commands.options import FAILED, GOOD, Add, log_to_stderr

if TYPE_CHECKING:
    from nodeagent.commands.plan.preview import Look


def add_plan(add: Add) -> None:
    parser = add(
        "plan",
        _plan,
        "the HyperNodes and labels that NodeLinks reports make, and the writes that lead there",
        "Reads NodeLinks (and HyperNodes and Nodes, where there are some) as YAML or JSON and writes nothing.\n"
        "Without --from it reads the cluster. Moves are shown at once; the controller waits for its times.",
    )
    _options(parser)
    parser.add_argument(
        "--current", metavar="FILE", help="the HyperNodes that are published: a file, a folder, or -"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the whole plan, for programs")
    form.add_argument("--yaml", action="store_true", help="the HyperNodes, for kubectl apply")
    form.add_argument("--diff", action="store_true", help="what would become of the published HyperNodes")


def add_explain(add: Add) -> None:
    parser = add(
        "explain",
        _explain,
        "why a node, a switch or a HyperNode is where it is in the fabric",
        "The evidence in sentences: which links spoke, which switches are joined and by how many nodes.",
    )
    _options(parser)
    parser.add_argument(
        "--current", metavar="FILE", help="the HyperNodes that are published: a file, a folder, or -"
    )
    parser.add_argument("name", metavar="NODE|SWITCH|HYPERNODE")


def add_topology(add: Add) -> None:
    parser = add(
        "topology", _topology, "the fabric as a picture: groups, their switches and nodes, every cable"
    )
    _options(parser)
    parser.add_argument(
        "--current", metavar="FILE", help="the HyperNodes that are published: a file, a folder, or -"
    )
    parser.add_argument(
        "--format",
        choices=("tree", "dot", "mermaid", "json"),
        default="tree",
        help="tree shows what is odd, the others every cable (default: %(default)s)",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE|DIR|-",
        help="NodeLinks from a file, a folder of files or the standard input (default: the cluster)",
    )
    parser.add_argument(
        "--fabric", type=Path, metavar="FILE", help="the controller's configuration (docs/topology.md)"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how the cluster is reached (default: as kubectl does)",
    )


def _look(options: argparse.Namespace) -> Look:
    from nodeagent.commands.plan import objects, preview

    log_to_stderr("warning")
    _, rules = preview.load(options.fabric)
    if options.source is None:
        from nodeagent.commands.plan import cluster_reading

        parts = [asyncio.run(cluster_reading.read(cluster_reading.access(options.kubeconfig)))]
    else:
        parts = [objects.read(options.source)]
    if options.current is not None:
        if options.current == options.source == "-":
            raise preview.SourceError("the standard input can be read once: give --from or --current a file")
        parts.append(objects.read(options.current))
    look = preview.look(parts, rules)
    for note in look.notes:
        print(f"nodeagent: {note}", file=sys.stderr)
    return look


def _plan(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import render

    look = _look(options)
    for overlap in look.outcome.overlaps if options.json or options.yaml or options.diff else ():
        print(f"nodeagent: nothing is written: {render.overlap_sentence(overlap)}", file=sys.stderr)
    if options.json:
        print(render.as_json(look.outcome))
    elif options.yaml:
        print(render.as_yaml(look.outcome.hypernodes), end="")
    elif options.diff:
        print(render.as_diff(look.published, look.outcome), end="")
    else:
        print(render.as_table(look.outcome), end="")
    return GOOD


def _explain(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import explanations

    try:
        print(explanations.explain(_look(options), options.name))
    except explanations.UnknownError as error:
        print(f"nodeagent: {error}", file=sys.stderr)
        return FAILED
    return GOOD


def _topology(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import topology_picture

    print(topology_picture.picture(_look(options), options.format))
    return GOOD
