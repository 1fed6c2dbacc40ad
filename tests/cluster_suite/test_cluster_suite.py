"""The suite itself, with a stand-in API server: it sees a broken promise, and it removes what it made."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent_lab.sim.apiserver import ApiServer
from tests.cluster_suite import __main__ as main
from tests.cluster_suite.__main__ import CHECKS, ON_REQUEST, chosen, options, show
from tests.cluster_suite.cluster_api import BrokenError, RefusedError
from tests.cluster_suite.fabric_checks import TIER, agreement
from tests.cluster_suite.installation import Agent, quantity
from tests.cluster_suite.policy_checks import Attempt
from tests.cluster_suite.suite import Suite
from tests.support.admin_access import administered
from tests.support.manifests import ROOT, Manifest, built, named
from tests.support.waiting import LIMIT_S, until

pytestmark = pytest.mark.needs("openssl")

LABELS = {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "agent"}
OFFERED = {f"gpu.example.com/nic{rail}": "8" for rail in range(2)} | {"gpu.example.com/gpu-mem": "8k"}
QUICK = "agents,resources,reports,labels,hypernodes"
Cluster = tuple[ApiServer, Path]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster with one agent and a controller, as the API server shows them, and no kubelet behind them."""
    async with administered(tmp_path) as (server, kubeconfig):
        server.put(named(built(), "CustomResourceDefinition", "nodelinks.nodeagent.io"))
        server.put(hypernode_definition())
        for space in ("nodeagent", "default"):
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        status = {"desiredNumberScheduled": 1, "numberReady": 1}
        server.put(thing("apps/v1", "DaemonSet", "nodeagent", labels=LABELS, status=status))
        settings = (
            "resourcePrefix: gpu.example.com\nresources:\n- {kind: vf, name: 'nic{rail}'}\n- kind: gpu-mem\n"
        )
        server.put(thing("v1", "ConfigMap", "nodeagent", data={"nodeagent.yaml": settings}))
        server.put(agent_pod())
        server.put(agent_pod(name="nodeagent-controller", component="controller"))
        server.put(node(OFFERED))
        uid = server.find("nodes", "gpu-0")["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0", "uid": uid}
        links = [
            {"name": f"nic{rail}", "rail": rail, "state": "healthy", "neighbor": NEIGHBOR}
            for rail in range(2)
        ]
        server.put(
            thing(
                "nodeagent.io/v1alpha1", "NodeLinks", "gpu-0", owners=[owner], nodeName="gpu-0", links=links
            )
        )
        server.put(hypernode("leaf-0", 1, Node="gpu-0"))
        yield server, kubeconfig


NEIGHBOR = {
    "chassisID": {"subtype": "mac", "value": "02:00:00:00:00:01"},
    "portID": {"subtype": "local", "value": "1"},
}


def thing(
    version: str, kind: str, name: str, *, labels: Any = None, owners: Any = (), **fields: Any
) -> Manifest:
    meta = {"name": name, "namespace": "nodeagent", "labels": labels or {}, "ownerReferences": list(owners)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def agent_pod(name: str = "nodeagent-a", component: str = "agent") -> Manifest:
    spec = {
        "nodeName": "gpu-0",
        "serviceAccountName": "nodeagent",
        "volumes": [{"name": "config", "configMap": {"name": "nodeagent"}}],
        "containers": [{"name": "nodeagent", "image": "nodeagent:0.2.0"}],
    }
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {**LABELS, "app.kubernetes.io/component": component}
    return thing("v1", "Pod", name, labels=labels, spec=spec, status=status)


def node(offered: dict[str, str], group: str = "leaf-0") -> Manifest:
    meta = {"name": "gpu-0", "labels": {f"{TIER}1": group}}
    status = {
        "allocatable": offered,
        "capacity": offered,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


def hypernode(name: str, tier: int, **members: str) -> Manifest:
    labels = {"volcano.sh/network-topology-source": "nodeagent"}
    spec = {
        "tier": tier,
        "members": [{"type": kind, "selector": {"exactMatch": {"name": of}}} for kind, of in members.items()],
    }
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": meta, "spec": spec}


def hypernode_definition() -> Manifest:
    names = {"kind": "HyperNode", "listKind": "HyperNodeList", "plural": "hypernodes"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}]
    spec = {"group": "topology.volcano.sh", "scope": "Cluster", "versions": versions, "names": names}
    meta = {"name": "hypernodes.topology.volcano.sh"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": meta,
        "spec": spec,
    }


async def start(kubeconfig: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.cluster_suite", "--kubeconfig", str(kubeconfig), *arguments,
        cwd=ROOT, env=os.environ | {"HOME": str(kubeconfig.parent)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def run(kubeconfig: Path, *arguments: str) -> tuple[int | None, str]:
    process = await start(kubeconfig, *arguments)
    output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode, output.decode()


async def test_an_installation_as_promised_passes(cluster: Cluster) -> None:
    code, output = await run(cluster[1], "--only", QUICK)
    assert code == 0, output
    assert "5 passed, 0 failed, 0 skipped" in output
    assert "8000 gpu-mem, 8 nic0, 8 nic1" in output


async def test_a_cluster_without_agents_is_told_to_install_first(tmp_path: Path) -> None:
    async with administered(tmp_path) as (_, kubeconfig):
        code, output = await run(kubeconfig)
        assert (code, output.count("\n")) == (2, 1)
        assert "Install it first: docs/install.md" in output


def not_ready(server: ApiServer) -> None:
    status = {"desiredNumberScheduled": 1, "numberReady": 0}
    server.put(thing("apps/v1", "DaemonSet", "nodeagent", labels=LABELS, status=status))


def nothing_offered(server: ApiServer) -> None:
    server.put(node(dict.fromkeys(OFFERED, "0")))


def foreign_report(server: ApiServer) -> None:
    report = server.find("nodelinks", "gpu-0", "nodeagent")
    server.put(report | {"nodeName": "gpu-1"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "broken", "words"),
    [
        ("agents", not_ready, "0 of 1 agents are Ready"),
        ("resources", nothing_offered, "gpu-0: no vf nic{rail} is allocatable"),
        ("reports", foreign_report, "NodeLinks gpu-0 is not about its Node"),
    ],
)
async def test_a_broken_promise_fails(cluster: Cluster, check: str, broken: Any, words: str) -> None:
    server, kubeconfig = cluster
    broken(server)
    code, output = await run(kubeconfig, "--only", check)
    assert code == 1, output
    assert words in output


async def test_a_report_that_has_its_links_later_is_awaited(cluster: Cluster) -> None:
    """An agent is Ready before its first report has the rails."""
    server, kubeconfig = cluster
    report = server.find("nodelinks", "gpu-0", "nodeagent")
    server.put(report | {"links": []})
    process = await start(kubeconfig, "--only", "reports")
    await until(lambda: any(one.resource == "nodelinks" for one in server.requests))
    server.put(report)
    output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, output.decode()


async def test_an_interrupted_run_leaves_no_namespace(cluster: Cluster) -> None:
    """No kubelet runs the pods, so the check of pods waits until the run is interrupted."""
    server, kubeconfig = cluster
    before = {one["metadata"]["name"] for one in server.objects("namespaces")}

    def made() -> set[str]:
        return {one["metadata"]["name"] for one in server.objects("namespaces")} - before

    process = await start(kubeconfig, "--only", "pods")
    try:
        await until(lambda: bool(made()))
        (space,) = made()
        server.put(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": space},
            }
        )
        await until(lambda: len(server.objects("pods")) > 2)
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 1
    assert f"Removing the namespace {space}" in output.decode()
    assert made() == set()


class Used:
    """A namespace that was made."""

    namespace = "nodeagent-suite-0"
    removed = False

    def remove(self) -> None:
        self.removed = True


class Disturbed(Used):
    """Each removal is met by the signals of a person who has lost patience."""

    def remove(self) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        super().remove()


@pytest.fixture
def armed() -> Iterator[None]:
    """The handlers of a run, which set others at the first signal."""
    before = {number: signal.signal(number, main.interrupted) for number in main.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("armed")
def test_a_signal_during_the_removal_ends_the_run_after_it() -> None:
    used = Disturbed()
    with pytest.raises(KeyboardInterrupt):
        main.run(Suite(None, None, used), [])  # type: ignore[arg-type]
    assert used.removed


@pytest.mark.usefixtures("armed")
def test_a_second_signal_does_not_end_the_removal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(suite: Suite) -> str:
        """The first signal."""
        signal.raise_signal(signal.SIGTERM)
        return ""

    monkeypatch.setitem(main.CHECKS, "agents", check)
    used = Disturbed()
    with pytest.raises(KeyboardInterrupt):
        main.run(Suite(None, None, used), ["agents"])  # type: ignore[arg-type]
    assert used.removed
    assert "Removing the namespace nodeagent-suite-0" in capsys.readouterr().out


class Closed:
    """A terminal that is gone, as in ``make test-cluster | head``."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        pass


def test_the_namespace_goes_where_nobody_reads_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    used = Used()
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        main.run(Suite(None, None, used), ["agents"])  # type: ignore[arg-type]
    assert used.removed


def test_the_namespace_goes_where_a_fault_cannot_be_taken_back() -> None:
    def refused() -> None:
        raise RefusedError(500, "no")

    used = Used()
    with pytest.raises(RefusedError):
        Suite(None, None, used, undo=[refused]).clean()  # type: ignore[arg-type]
    assert used.removed


class Tree:
    """An API server with HyperNodes and one Node."""

    def __init__(self, group: str, *hypernodes: Manifest) -> None:
        self.api, self._node, self._hypernodes = self, node(OFFERED, group), hypernodes

    def items(self, path: str, **query: Any) -> list[Manifest]:
        return [self._node] if path.endswith("/nodes") else list(self._hypernodes)


LEAF, SPINE = hypernode("leaf-0", 1, Node="gpu-0"), hypernode("spine-0", 2, HyperNode="leaf-0")


@pytest.mark.parametrize(
    ("group", "hypernodes", "words"),
    [
        ("leaf-0", (), "no HyperNode"),
        ("leaf-0", (LEAF, SPINE, hypernode("spine-1", 2, HyperNode="leaf-0")), "two parents: leaf-0"),
        ("leaf-0", (LEAF, hypernode("leaf-1", 1, Node="gpu-0")), "Nodes in two HyperNodes: gpu-0"),
        ("leaf-0", (SPINE,), "do not exist: leaf-0"),
        ("leaf-1", (LEAF,), "gpu-0 is a member of leaf-0"),
        ("leaf-0", (hypernode("leaf-0", 1, Node="gpu-9"),), "without a HyperNode: gpu-0"),
    ],
)
def test_what_is_no_tree_fails(group: str, hypernodes: tuple[Manifest, ...], words: str) -> None:
    with pytest.raises(BrokenError, match=words):
        agreement(Tree(group, *hypernodes))  # type: ignore[arg-type]


def test_a_tree_that_agrees_with_the_labels_passes() -> None:
    assert agreement(Tree("leaf-0", LEAF, SPINE)) == "2 HyperNodes with 1 nodes"  # type: ignore[arg-type]


class Answering:
    """An API server that gives one answer."""

    def __init__(self, status: int) -> None:
        self.status, self.asked = status, {}

    def call(self, method: str, path: str, body: Any, **query: Any) -> None:
        self.asked = query
        if self.status >= 400:
            raise RefusedError(self.status, "no")


@pytest.mark.parametrize(
    ("promised", "status", "found"),
    [
        (True, 200, None),
        (True, 403, "refused: a write (403: no)"),
        (False, 403, None),
        (False, 422, None),
        (False, 200, "allowed: a write"),
        (False, 401, "unclear: a write (401: no)"),
        (False, 404, "unclear: a write (404: no)"),
    ],
)
def test_only_a_denial_counts_as_denied(promised: bool, status: int, found: str | None) -> None:
    api = Answering(status)
    assert Attempt("a write", promised, "POST", "/x", {}).wrong(api) == found  # type: ignore[arg-type]
    assert api.asked["dryRun"] == "All"


def test_checks_that_change_the_cluster_run_on_request_alone() -> None:
    assert set(CHECKS) - set(chosen(options([]))) == set(ON_REQUEST)
    everything = options(["--restart", "--evictions", "--uninstall", "daemonset/overlays/kind"])
    assert chosen(everything) == list(CHECKS)


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("eviction", "eviction (it makes an agent evict a pod: --evictions)"),
        ("pods,restart", "restart (it deletes the pod of one agent: --restart)"),
        ("", "an empty name (no check)"),
        ("pods,", "an empty name (no check)"),
    ],
)
def test_a_check_that_would_not_run_is_refused(
    only: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options(["--only", only])
    assert f"--only: nothing would run for {said}\n" in capsys.readouterr().err
    assert chosen(options(["--only", "eviction", "--evictions"])) == ["eviction"]


def test_the_table_names_what_was_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert show([], ["uninstall"]) == 1, "a run without a passed check shows nothing"
    assert "it removes nodeagent: --uninstall OVERLAY" in capsys.readouterr().out


def test_names_of_resources_follow_the_configuration() -> None:
    entries = [{"kind": "vf", "name": "nic{rail}"}, {"kind": "gpu-mem", "name": "mem", "mode": "dra"}]
    agent = Agent({}, {}, {"resourcePrefix": "auto", "resources": entries})
    allocatable = {"dgx/nic3": "8", "dgx/nicer.x": "1", "dgx/mem": "79", "cpu": "2", "dgx/nic4": "0"}
    assert agent.offered({"status": {"allocatable": allocatable}}) == {"dgx/nic3": 8}
    assert [quantity(text) for text in ("8", "8k", "1Gi", "500m")] == [8, 8000, 0, 0]
