"""The removal of nodeagent by the commands of docs/upgrade.md, and what is left afterwards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster_suite.cluster_api import BrokenError, SkippedError, until
from tests.cluster_suite.suite import Suite

ROOT = Path(__file__).parents[2]
OF_PEOPLE = ("nodeagent.io/agent", "nodeagent.io/pool")
PART = "app.kubernetes.io/part-of=nodeagent"
KINDS = (
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/api/v1/configmaps",
    "/api/v1/serviceaccounts",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/resource.k8s.io/v1/deviceclasses",
)
COMMAND_S = 300


def uninstall(suite: Suite) -> str:
    """nodeagent is removed: no object, mark, HyperNode or device of it is left."""
    if suite.overlay is None:
        raise SkippedError("only with --uninstall")
    agents = suite.installation.agents()
    program = shutil.which("kubectl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SkippedError("no kubectl: make test-cluster has one, or install it")
    path = f"{Path(program).parent}:{os.environ['PATH']}"
    suite.workspace.remove()
    namespace = suite.installation.namespace
    run(
        path,
        "kubectl",
        "delete",
        "--kustomize",
        suite.overlay,
        "--ignore-not-found",
        "--wait",
        "--timeout=200s",
    )
    run(path, str(ROOT / "daemonset/uninstall.sh"), namespace)
    until(60, "nothing is left", lambda: nothing_left(suite))
    for agent in agents:
        until(
            60,
            f"{agent.node_name} offers no device of nodeagent",
            lambda agent=agent: not agent.offered(suite.installation.node(agent.node_name)),
        )
    return f"{suite.overlay} and uninstall.sh; {len(agents)} nodes"


def run(path: str, *command: str) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode:
        raise BrokenError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-400:]}")


def nothing_left(suite: Suite) -> bool:
    """Broken with the traces of nodeagent that the cluster still has."""
    found = [
        f"{kind.rpartition('/')[2]} {one['metadata']['name']}"
        for kind in KINDS
        for one in suite.api.items(kind, labelSelector=PART)
    ]
    for node in suite.api.items("/api/v1/nodes"):
        name = node["metadata"]["name"]
        keys = [
            *node["metadata"].get("labels", {}),
            *(one["key"] for one in node["spec"].get("taints", ())),
            *(one["type"] for one in node["status"].get("conditions", ())),
        ]
        found += [
            f"{key} of {name}"
            for key in keys
            if re.match(r"(topology\.)?nodeagent\.io/", key) and key not in OF_PEOPLE
        ]
    tree = suite.api.items(
        "/apis/topology.volcano.sh/v1alpha1/hypernodes",
        labelSelector="volcano.sh/network-topology-source=nodeagent",
    )
    slices = suite.api.items(
        "/apis/resource.k8s.io/v1/resourceslices", fieldSelector="spec.driver=nodeagent.io"
    )
    found += [f"HyperNode {one['metadata']['name']}" for one in tree]
    found += [f"ResourceSlice {one['metadata']['name']}" for one in slices]
    if suite.api.find("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodelinks.nodeagent.io"):
        found.append("the definition of NodeLinks")
    if found:
        raise BrokenError(", ".join(found[:10]))
    return True
