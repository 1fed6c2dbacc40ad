"""Check an installation of nodeagent on a cluster.

    make test-cluster KUBECONFIG=FILE [ARGS="OPTION ..."]
    python -m tests.cluster_suite --kubeconfig FILE [OPTION ...]

It needs Python, the package `kubernetes` and a kubeconfig with the rights of a cluster administrator. The pods of the
checks are in a namespace of their own, with the agents' image, and are deleted at the end, also after an error or
Ctrl-C; a second Ctrl-C changes nothing. Requests about rights and policies are dry runs. On a simulated machine
(overlays/kind) it also sets the annotation for faults on the pod of one agent, and takes it away again. It changes
nothing else without an option.
Exit status: 0 if no check failed, 1 if one failed, 2 if the cluster or the installation was not found.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import urllib3
from kubernetes.config import ConfigException

from tests.cluster_suite import device_checks, fabric_checks, fault_checks, policy_checks, removal_checks
from tests.cluster_suite.cluster_api import BrokenError, ClusterApi, RefusedError, SkippedError
from tests.cluster_suite.installation import Installation
from tests.cluster_suite.suite import Suite
from tests.cluster_suite.workspace import Workspace

Check = Callable[[Suite], str]

CHECKS: dict[str, Check] = {
    "agents": device_checks.agents,
    "resources": device_checks.resources,
    "reports": device_checks.reports,
    "pods": device_checks.pods,
    "claim": device_checks.claim,
    "agent-policies": policy_checks.agent_policies,
    "controller-policies": policy_checks.controller_policies,
    "lease": fabric_checks.lease,
    "labels": fabric_checks.labels,
    "hypernodes": fabric_checks.hypernodes,
    "fault": fault_checks.fault,
    "restart": device_checks.restart,
    "eviction": fault_checks.eviction,
    "uninstall": removal_checks.uninstall,
}
ENDING = (signal.SIGINT, signal.SIGTERM)
ON_REQUEST = {
    "restart": "it deletes the pod of one agent: --restart",
    "eviction": "it makes an agent evict a pod: --evictions",
    "uninstall": "it removes nodeagent: --uninstall OVERLAY",
}


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str
    seconds: float
    words: str


def attempt(name: str, suite: Suite) -> Result:
    start = time.monotonic()
    try:
        outcome, words = "passed", CHECKS[name](suite)
    except SkippedError as skipped:
        outcome, words = "skipped", str(skipped)
    except (BrokenError, RefusedError, urllib3.exceptions.HTTPError) as broken:
        outcome, words = "FAILED", str(broken)
    return Result(name, outcome, time.monotonic() - start, words)


def chosen(options: argparse.Namespace) -> list[str]:
    names = list(CHECKS) if options.only is None else list(filter(None, options.only.split(",")))
    asked = {"restart": options.restart, "eviction": options.evictions, "uninstall": options.uninstall}
    return [name for name in names if name not in asked or asked[name]]


def run(suite: Suite, names: list[str]) -> list[Result]:
    """Run the checks, and remove whatever they made."""
    results = []
    try:
        for count, name in enumerate(names, 1):
            print(f"[{count}/{len(names)}] {name}: {CHECKS[name].__doc__}", flush=True)
            results.append(attempt(name, suite))
            print(
                f"      {results[-1].outcome} in {results[-1].seconds:.1f} s: {results[-1].words}", flush=True
            )
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until all is removed
            print(f"Removing the namespace {suite.workspace.namespace} and the simulated faults", flush=True)
        finally:
            results += cleaned(suite)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return results


def cleaned(suite: Suite) -> list[Result]:
    """One result if something could not be removed."""
    start = time.monotonic()
    try:
        suite.clean()
    except (BrokenError, RefusedError, urllib3.exceptions.HTTPError) as error:
        words = f"{error}. Remove it: kubectl delete namespace {suite.workspace.namespace}"
        return [Result("cleaning up", "FAILED", time.monotonic() - start, words)]
    return []


def show(results: list[Result], left_out: list[str]) -> int:
    rows = [(one.name, one.outcome, f"{one.seconds:.1f} s", one.words) for one in results]
    rows += [(name, "not asked", "", ON_REQUEST.get(name, "left out by --only")) for name in left_out]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3], sep="  "
        )
    count = {word: sum(one.outcome == word for one in results) for word in ("passed", "FAILED", "skipped")}
    print(f"\n{count['passed']} passed, {count['FAILED']} failed, {count['skipped']} skipped")
    return 1 if count["FAILED"] or not count["passed"] else 0


def options(arguments: list[str]) -> argparse.Namespace:
    checks = "\n".join(f"  {name:<20} {check.__doc__}" for name, check in CHECKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster_suite",
        description=__doc__,
        epilog=f"checks:\n{checks}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    parser.add_argument(
        "--context", metavar="NAME", help="a context of the kubeconfig; default: its current one"
    )
    parser.add_argument("--namespace", metavar="NAME", help="of the agents, if several namespaces have some")
    parser.add_argument("--node", metavar="NAME", help="the only node for pods and faults of the checks")
    parser.add_argument(
        "--image", metavar="NAME", help="for the pods, with sh; default: the image of the agents"
    )
    parser.add_argument("--only", metavar="CHECK,...", help="run these checks alone, in this order")
    parser.add_argument(
        "--restart", action="store_true", help="also delete the pod of an agent while pods hold devices"
    )
    parser.add_argument(
        "--evictions",
        action="store_true",
        help="also let an agent evict a pod of the checks (simulated machine)",
    )
    parser.add_argument(
        "--uninstall", metavar="OVERLAY",
        help="at last remove nodeagent: kubectl delete -k OVERLAY, then daemonset/uninstall.sh",
    )  # fmt: skip
    found = parser.parse_args(arguments)
    if unknown := set(filter(None, (found.only or "").split(","))) - CHECKS.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))}: no such check; there are {', '.join(CHECKS)}")
    if found.only is not None and (unasked := set(found.only.split(",")) - {*chosen(found)}):
        words = (
            f"{name or 'an empty name'} ({ON_REQUEST.get(name, 'no check')})" for name in sorted(unasked)
        )
        parser.error(f"--only: nothing would run for {', '.join(words)}")
    if found.uninstall and found.context:
        parser.error("--uninstall uses the current context of the kubeconfig; leave out --context")
    return found


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """End the run. A second signal would end the removal of what it made."""
    for number in ENDING:
        signal.signal(number, lambda _number, _frame: None)
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    for number in ENDING:
        signal.signal(number, interrupted)
    if asked.kubeconfig:
        os.environ["KUBECONFIG"] = asked.kubeconfig  # for kubectl, which --uninstall runs
    try:
        api = ClusterApi.from_kubeconfig(asked.kubeconfig, asked.context)
        version = api.get("/version")["gitVersion"]
        installation = Installation.find(api, asked.namespace)
    except (ConfigException, BrokenError, RefusedError, OSError, urllib3.exceptions.HTTPError) as error:
        print(f"Nothing was checked: {error}", file=sys.stderr)
        return 2
    suite = Suite(api, installation, Workspace(api, asked.image), asked.node, asked.uninstall)
    print(f"Kubernetes {version} at {api.host}, nodeagent in the namespace {installation.namespace}")
    names = chosen(asked)
    return show(run(suite, names), [name for name in CHECKS if name not in names])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
