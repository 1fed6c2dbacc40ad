"""The verbs of a fabric: trouble, job, plan (the HyperNodes that would be written), explain, topology, cabling
and maintain.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, USAGE, Add, cluster_options, json_option, watch_option
from nodeagent.console.terminal import note, screen
from nodeagent.console.user_files import UserFileError

if TYPE_CHECKING:
    from nodeagent.commands.plan.preview import Preview

LISTS = ("slurm", "slurm-block", "slurm-yaml", "hostfile", "ranks")
"""Forms of `topology` that are lists of nodes (`node_lists`)."""


def add_trouble(add: Add) -> None:
    parser = add(
        "trouble",
        _trouble,
        "what is wrong in the fabric, since when, which pods it concerns, and what to do",
        "Links with a fault, wrong cables and nodes without a place, what concerns most pods first. Links of a switch\n"
        "or of a node that went down at once are one trouble. Pods are known where nodes report them\n"
        "(cluster.reportHolders), nodes without an agent where you may list the agents' pods. The result is 0 if\n"
        "nothing is wrong, 1 if something is, and 2 if there is no report or the input cannot be read.",
    )
    namespace_option(parser, "show what concerns pods of this namespace alone")
    source_options(parser)
    json_option(parser)
    watch_option(parser)


def add_job(add: Add) -> None:
    parser = add(
        "job",
        _job,
        "the fabric of a job: its nodes, leaf groups and links, what is wrong with them, and who shares them",
        "A Job, JobSet, TrainJob, MPIJob, PyTorchJob, RayCluster, job of Volcano, gang of Volcano or Kueue, trial of\n"
        "Katib, run of Kubeflow Pipelines, group of a LeaderWorkerSet or of Grove, StatefulSet or Deployment. Its\n"
        "links are those of the VFs that its pods hold, where nodes report them (cluster.reportHolders), else all\n"
        "fabric links of its nodes. The result is 0 if nothing is wrong with them, 1 if something is, and 2 if the\n"
        "name is that of no job or of several, or the input cannot be read.",
    )
    parser.add_argument("name", metavar="NAME|KIND/NAME")
    parser.add_argument(
        "--rails",
        action="store_true",
        help="what each pod carries on each rail, and what is odd in it; kubectl nodeagent asks the agents for Gbit/s",
    )
    parser.add_argument("--nodes-alone", action="store_true", help=argparse.SUPPRESS)
    namespace_option(parser, "read the pods of this namespace alone")
    source_options(parser)
    json_option(parser)
    watch_option(parser)


def add_plan(add: Add) -> None:
    parser = add(
        "plan",
        _plan,
        "show the HyperNodes and labels that NodeLinks reports lead to, and the writes for them",
        "Reads NodeLinks, and HyperNodes and Nodes if given, as YAML or JSON; writes nothing. Without --from it reads\n"
        "the cluster. Moves are shown at once; the controller lets them wait for the times of its configuration.",
    )
    source_options(parser, current=True)
    form = parser.add_mutually_exclusive_group()
    json_option(form)
    form.add_argument("--yaml", action="store_true", help="print the HyperNodes, for kubectl apply")
    form.add_argument("--diff", action="store_true", help="print the changes of the published HyperNodes")


def add_explain(add: Add) -> None:
    parser = add(
        "explain",
        _explain,
        "explain the place of a node, a switch or a HyperNode in the fabric",
        "Shows the links that decide the place, and which switches are joined and by how many nodes. Of a switch it\n"
        "shows the links, nodes and pods that it carries (pods, where the agents report holders), of a HyperNode the\n"
        "nodes in trouble.",
    )
    source_options(parser, current=True)
    json_option(parser)
    parser.add_argument("name", metavar="NODE|SWITCH|HYPERNODE")


def add_diff(add: Add) -> None:
    parser = add(
        "diff",
        _diff,
        "the values in which a node differs from most nodes of its model, or from another node or capture",
        "Where agents compare values (peers.compare): drivers, firmware, settings of GPUs and links, kernel and boot\n"
        "parameters. A value of several devices names those that differ: 28.43.2026; nic3: 28.39.1002. One that is\n"
        "too long is a digest, #5f3a90c1. A name with a slash is the folder of a capture (`nodeagent capture`), and\n"
        "two of them need no cluster. The result is 0 if none differs, 1 if one does, and 2 if nothing could be\n"
        "compared.",
    )
    parser.add_argument("node", metavar="NODE|CAPTURE", help="the node, or the folder of its capture")
    parser.add_argument(
        "other", nargs="?", metavar="NODE|CAPTURE", help="another one (default: most nodes of its model)"
    )
    parser.add_argument("--all", action="store_true", help="show the values that are equal too")
    source_options(parser)
    json_option(parser)


def add_topology(add: Add) -> None:
    parser = add(
        "topology",
        _topology,
        "draw the fabric: leaf groups, their switches and nodes, and every cable; or write it for Slurm and MPI",
        "The lists of nodes: slurm is a topology.conf for topology/tree, slurm-block one for topology/block with\n"
        "the NVLink domains, slurm-yaml a topology.yaml (Slurm 25.05) with both. hostfile has the nodes, those under\n"
        "the same switches behind each other; ranks adds their numbers and leaf groups, separated by tabs.",
    )
    source_options(parser, current=True)
    form = parser.add_mutually_exclusive_group()
    json_option(form)
    form.add_argument(
        "--format",
        metavar="FORM",
        choices=("tree", "json", "html", *LISTS),
        default="tree",
        help="tree shows anomalies; json every cable; html is the fabric map as one file for a browser; "
        f"lists of nodes: {', '.join(LISTS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--nodes",
        metavar="NAMES|-",
        help="only these nodes in a list: separated by commas or spaces, - reads them from the standard input, as "
        "`sinfo -hN -o %%N` prints them",
    )
    parser.add_argument(
        "--whole", action="store_true", help="show each node of the tree on a line of its own"
    )


def add_cabling(add: Add) -> None:
    parser = add(
        "cabling",
        _cabling,
        "compare every link of the hall with a cabling plan: planned, miscabled, missing, without LLDP or slow",
        "Without --plan, links are compared with the leaf groups that the reports lead to. The result is 0 if every\n"
        "link is as planned, 1 if one is not, and 2 if none could be compared or the input cannot be read.",
    )
    source_options(parser)
    plan = parser.add_mutually_exclusive_group()
    plan.add_argument(
        "--plan",
        metavar="FILE",
        help="the cabling plan: YAML, .csv (also NetBox's) or .dot (docs/cabling.md); with "
        "--from, - is the ConfigMap cabling-plan among its objects",
    )
    plan.add_argument(
        "--order",
        action="store_true",
        help="compare the ports without a plan: a node sits at the same port of each leaf switch, where its leaf group "
        "has such an order",
    )
    form = parser.add_mutually_exclusive_group()
    json_option(form)
    form.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    watch_option(parser, "print each link that changed")
    parser.add_argument("--all", action="store_true", help="list links that are as planned too")


def add_maintain(add: Add) -> None:
    parser = add(
        "maintain",
        _maintain,
        "planned work: silence the alerts of a link, a node or a switch until a time; without a name, list it",
        "  nodeagent maintain                                         what is under maintenance, until when, by whom\n"
        "  nodeagent maintain gpu-17/nic3 --until 2h --reason optics  a link; nic3 alone is that of this node\n"
        "  nodeagent maintain gpu-17 --until 18:00                    everything on a node\n"
        "  nodeagent maintain leaf2 --until 2026-12-01T06:00+01:00    the links of all nodes to this switch\n"
        "  nodeagent maintain leaf2 --end                             it is over\n\n"
        "It is written into an annotation of the Nodes (nodeagent.io/maintenance) with the rights of your kubeconfig:\n"
        "list, get and patch of nodes, and of nodelinks so that agents count no flaps. Alerts are silent and views\n"
        "mark it while it lasts. No fault is hidden, and new pods still come: see `nodeagent cordon` and `kubectl\n"
        "cordon`. docs/planned-work.md has the limits.",
    )
    json_option(parser)
    parser.add_argument("target", nargs="*", metavar="NODE/NIC|NODE|SWITCH", help="what is worked on")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--until", metavar="TIME", help="30min, 2h, 18:00, or a date and time (RFC 3339)")
    when.add_argument("--end", action="store_true", help="end it now")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the next person who looks")
    parser.add_argument(
        "--author",
        metavar="NAME",
        default=os.environ.get("NODEAGENT_AUTHOR") or os.environ.get("SUDO_USER"),
        help="who (default: NODEAGENT_AUTHOR, or the user of this shell)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE|DIR|-",
        help="read Nodes and NodeLinks there (default: the cluster), and print the patches in place of writing them",
    )
    cluster_options(parser)


def namespace_option(parser: argparse.ArgumentParser, what: str) -> None:
    """``options.namespace`` is ``None`` without it."""
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help=f"{what} (default: of all)")


def source_options(parser: argparse.ArgumentParser, *, current: bool = False) -> None:
    """The input of ``preview.read_preview``. ``current``: with the option for the published HyperNodes."""
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE|DIR|-",
        help="read NodeLinks from a file, a directory or the standard input (default: the cluster); one object in each "
        "line needs the least memory, a list of 100,000 reports some 2 GiB",
    )
    parser.add_argument(
        "--fabric",
        type=Path,
        metavar="FILE",
        help="the controller's configuration (default: its ConfigMap in the cluster, or among the objects of --from; "
        "without one the plan gives up nothing that is published)",
    )
    cluster_options(parser)
    parser.set_defaults(current=None)
    if current:
        parser.add_argument(
            "--current", metavar="FILE", help="the published HyperNodes: a file, a directory, or -"
        )


def _maintain(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import maintain

    log_to_stderr(options.log_level or "error")
    return maintain.run_maintain(options)


def _trouble(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import trouble

    log_to_stderr(options.log_level or "warning")
    return trouble.show_trouble(options)


def _job(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import job

    log_to_stderr(options.log_level or "warning")
    return job.show_job(options)


def _plan(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import render
    from nodeagent.commands.plan.preview import read_preview

    log_to_stderr(options.log_level or "warning")
    preview = read_preview(options)
    for overlap in preview.outcome.overlaps if options.json or options.yaml or options.diff else ():
        note(f"nothing is written: {render.overlap_sentence(overlap)}")
    if options.json:
        _print_json(preview, options, render.outcome_document(preview.outcome))
    elif options.yaml:
        print(render.as_yaml(preview.outcome.hypernodes), end="")
    elif options.diff:
        print(render.as_diff(preview.published, preview.outcome), end="")
    else:
        print(render.outcome_table(preview.outcome, screen()), end="")
    return GOOD


def _explain(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import explanations
    from nodeagent.commands.plan.preview import read_preview

    log_to_stderr(options.log_level or "warning")
    preview = read_preview(options, with_holders=True, with_agents=True)
    try:
        explanation = explanations.explain(preview, options.name)
    except explanations.UnknownNameError as error:
        note(str(error))
        return USAGE
    if options.json:
        _print_json(preview, options, explanation.as_document())
    else:
        print(explanation.as_text(screen()))
    return GOOD


def _diff(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import node_differences

    log_to_stderr(options.log_level or "warning")
    return node_differences.show_differences(options)


def _topology(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import topology_picture
    from nodeagent.commands.plan.preview import read_preview

    log_to_stderr(options.log_level or "warning")
    if options.json:
        options.format = "json"
    preview = read_preview(
        options, whole_reports=options.format == "html", with_agents=options.format == "html"
    )
    if options.format in LISTS:
        return _node_list(preview, options)
    if options.nodes is not None:
        raise UserFileError("--nodes", "it chooses the nodes of a list", f"--format {', '.join(LISTS)}")
    if options.format == "json":
        _print_json(preview, options, topology_picture.picture_document(preview))
        return GOOD
    drawing = topology_picture.draw(preview, options.format, whole=options.whole)
    print(topology_picture.wrap(drawing, screen().width) if options.format == "tree" else drawing)
    return GOOD


def _node_list(preview: Preview, options: argparse.Namespace) -> int:
    from nodeagent.fabric.node_lists import NodeLists, NoDomainsError

    names = sys.stdin.read() if options.nodes == "-" else options.nodes
    only = None if names is None else frozenset(re.split(r"[\s,]+", names)) - {""}
    if only is not None and not only:
        raise UserFileError("--nodes", "there is no name", "names of Nodes, separated by commas or spaces")
    lists = NodeLists(preview.outcome, preview.plan.rules.fabric, only)
    try:
        print(lists.written(options.format))
    except NoDomainsError:
        raise UserFileError(
            "--format slurm-block",
            "no NVLink domain of two nodes or more is known",
            "tiers.nvlink: auto in the file of --fabric, or --format slurm",
        ) from None
    if unknown := lists.unknown():
        note(
            f"not in the tree: {', '.join(unknown[:10])}{f' and {len(unknown) - 10} more' if unknown[10:] else ''}"
        )
        return USAGE
    return GOOD


def _print_json(preview: Preview, options: argparse.Namespace, document: dict[str, Any]) -> None:
    print(json.dumps(preview.origin(options.source, time.time()) | document, indent=2))


def _cabling(options: argparse.Namespace) -> int:
    from nodeagent.commands.plan import hall_report

    log_to_stderr("warning")
    return hall_report.show_hall_report(options)
