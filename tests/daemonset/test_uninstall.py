"""daemonset/uninstall.sh with the real kubectl, on a cluster that agents and a controller have marked.

The cluster has every mark that nodeagent writes, beside marks of people and of other owners. Afterwards no object
contains a trace of nodeagent except labels that people set; the others are as before. A second run changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest

from nodeagent.agent_config import Config
from nodeagent.cluster.node_marks import OWN_MARKS, STARTING_TAINT, NodeCondition, NodeMarks, NodeTaint
from nodeagent.console.json_document import json_document
from nodeagent.controller import LEASE
from nodeagent.fabric.fabric_settings import TIER_LABEL, FabricRules, LabelPreset, LabelSettings
from nodeagent.fabric.hypernode import OURS, OWNER_LABEL, SOURCE_LABEL
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL
from nodeagent.facts.model import PodNetdev
from nodeagent.features.other_programs.kept_objects import SLURM_CONFIG_MAP
from nodeagent.features.volcano_deviceshare import volcano_annotations
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import NODES
from nodeagent.kubelet.cdi_files import FILES
from nodeagent.kubelet.device_info import DEVICE_INFO
from nodeagent.kubelet.node_lock import LOCK
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.admin_access import administered
from tests.support.manifests import DAEMONSET, ROOT, built, named
from tests.support.needs import which
from tests.support.nfd import nfd_definition
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.needs("kubectl", "openssl")

FOREIGN_TAINT = {"key": "maintenance", "effect": "NoSchedule"}
FOREIGN_CONDITION = {"type": "Ready", "status": "True"}
STARTING = {"key": STARTING_TAINT, "effect": "NoSchedule"}
OF_PEOPLE = {"nodeagent.io/agent": "true", "nodeagent.io/pool": "dgx-h100", "zone": "a"}


def hypernode(name: str, source: str) -> dict[str, Any]:
    member = {"type": "Node", "selector": {"exactMatch": {"name": "gpu-0"}}}
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name, "labels": {SOURCE_LABEL: source}},
        "spec": {"tier": 1, "members": [member]},
    }


def populate(server: ApiServer) -> None:
    for one in ("CustomResourceDefinition", "nodelinks.nodeagent.io"), ("Namespace", "nodeagent"):
        server.put(named(built(), *one))
    server.put(named(built("components/rails"), "CustomResourceDefinition", "railpartners.nodeagent.io"))
    hypernodes = {"group": "topology.volcano.sh", "scope": "Cluster", "versions": [
        {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    ], "names": {"kind": "HyperNode", "listKind": "HyperNodeList", "plural": "hypernodes"}}  # fmt: skip
    server.put({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "hypernodes.topology.volcano.sh"}, "spec": hypernodes})  # fmt: skip
    for name in ("gpu-0", "gpu-1"):
        server.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": OF_PEOPLE},
                "spec": {"taints": [FOREIGN_TAINT, STARTING]},
                "status": {"conditions": [FOREIGN_CONDITION]},
            }
        )
    server.put(nfd_definition())
    for name, owner in (("ours", OURS), ("theirs", "topograph")):
        meta = {"name": name, "namespace": "nodeagent", "labels": {OWNER_LABEL: owner}}
        server.put({"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureGroup", "metadata": meta,
                    "spec": {"featureGroupRules": []}})  # fmt: skip
    for name in (SLURM_CONFIG_MAP, "theirs"):
        meta = {"name": name, "namespace": "nodeagent", "labels": {OWNER_LABEL: OURS}}
        server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})
    server.put(hypernode("ours", OURS))
    server.put(hypernode("theirs", "ufm"))
    meta = {"name": LEASE, "namespace": "nodeagent"}
    server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}})


async def mark(server: ApiServer, kubeconfig: Path) -> None:
    """Write every mark with the code of agent and controller."""
    authority = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority"]
    client = ApiClient(Access(server.url, token=server.token("admin"), ca_file=Path(authority)))
    try:
        for writer in ("agent", "controller"):
            marks = NodeMarks(client, writer)
            conditions = [
                NodeCondition(mark.key, "False", "Down", "1 of 8 links is down")
                for mark in OWN_MARKS
                if (mark.writer, mark.kind) == (writer, "condition")
            ]
            await marks.set_conditions("gpu-0", conditions)
        for mark in OWN_MARKS:
            if mark.kind == "taint" and mark.key != STARTING_TAINT:
                await marks.set_taint("gpu-0", NodeTaint(mark.key), on=True)
        labels = {mark.key: "2" for mark in OWN_MARKS if mark.kind == "label"}
        for node in ("gpu-0", "gpu-1"):
            await marks.set_labels(node, labels | {TIER_LABEL.format(tier=2): "su-1"})
            vgpus = {MAINTENANCE_LABEL: "[]", volcano_annotations.REGISTER: "GPU-1,8,81559,NVIDIA,true,hami-core:",
                     volcano_annotations.HANDSHAKE: "Reported_2026.11.23 00:00:00"}  # fmt: skip
            await client.patch(NODES, node, {"metadata": {"annotations": vgpus}})
    finally:
        await client.close()


async def uninstall(kubeconfig: Path, *arguments: str, kubectl: str | None = None) -> tuple[int, str, str]:
    kubectl = kubectl or which("kubectl")
    assert kubectl is not None
    path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        str(DAEMONSET / "uninstall.sh"),
        *arguments,
        env={"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def as_people_see_it(node: Any) -> Any:
    """Labels, taints and conditions of a Node."""
    return (
        node["metadata"]["labels"],
        node["spec"]["taints"],
        [{name: one[name] for name in ("type", "status")} for one in node["status"]["conditions"]],
    )


async def test_nothing_of_nodeagent_is_left_and_everything_else_stays(tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        await mark(server, kubeconfig)
        assert len(as_people_see_it(server.find("nodes", "gpu-0"))[2]) == 1 + sum(
            one.kind == "condition" for one in OWN_MARKS
        )

        code, output, errors = await uninstall(kubeconfig)
        assert (code, errors) == (0, ""), output
        for name in ("gpu-0", "gpu-1"):
            left = as_people_see_it(server.find("nodes", name))
            assert left == (OF_PEOPLE, [FOREIGN_TAINT], [FOREIGN_CONDITION])
        for kind in ("hypernodes", "nodefeaturegroups", "configmaps"):
            assert [one["metadata"]["name"] for one in server.objects(kind)] == ["theirs"]
        assert server.objects("leases") == []
        for plural in ("nodelinks", "railpartners"):
            assert server.find("customresourcedefinitions", f"{plural}.nodeagent.io") is None

        writes = sum(server.counts[verb, resource] for verb, resource in server.counts if verb == "patch")
        assert (await uninstall(kubeconfig))[0] == 0
        again = sum(server.counts[verb, resource] for verb, resource in server.counts if verb == "patch")
        assert again == writes


def resource_slice(driver: str) -> dict[str, Any]:
    pool = {"name": "gpu-0/gpu", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "gpu-0", "pool": pool, "devices": []}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": driver},
        "spec": spec,
    }


def allocated_claim(driver: str) -> dict[str, Any]:
    result = {"request": "gpu", "driver": driver, "pool": "gpu-0/gpu", "device": "gpu-0"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"of-{driver}", "namespace": "ml"},
        "status": {"allocation": {"devices": {"results": [result, result]}}},
    }


def serve_claims(server: ApiServer) -> None:
    names = {"kind": "ResourceClaim", "listKind": "ResourceClaimList", "plural": "resourceclaims"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": True,
    }}}]  # fmt: skip
    server.put({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "resourceclaims.resource.k8s.io"},
                "spec": {"group": "resource.k8s.io", "scope": "Namespaced", "versions": versions,
                         "names": names}})  # fmt: skip


async def test_an_old_cluster_without_claims_is_fine(tmp_path: Path) -> None:
    async with administered(tmp_path, minor=30) as (server, kubeconfig):
        populate(server)
        code, _, errors = await uninstall(kubeconfig)
        assert (code, errors) == (0, "")


async def test_slices_are_removed_and_those_of_another_driver_stay(tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        serve_claims(server)
        for driver in ("nodeagent.io", "gpu.example.com"):
            server.put(resource_slice(driver))
        assert (await uninstall(kubeconfig))[0] == 0
        assert [one["metadata"]["name"] for one in server.objects("resourceslices")] == ["gpu.example.com"]


async def test_nothing_is_removed_while_a_claim_holds_a_device(tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        serve_claims(server)
        server.put(resource_slice("nodeagent.io"))
        for driver in ("nodeagent.io", "gpu.example.com"):
            server.put(allocated_claim(driver))
        code, _, errors = await uninstall(kubeconfig)
        assert code == 1
        assert errors.endswith("Found: ml/of-nodeagent.io\n")
        assert (len(server.objects("leases")), len(server.objects("resourceslices"))) == (1, 1)
        server.remove("resourceclaims", "of-nodeagent.io", "ml")
        assert (await uninstall(kubeconfig))[0] == 0
        assert server.objects("resourceslices") == []


async def test_nothing_is_removed_while_pods_have_netdevs_of_vfs(tmp_path: Path) -> None:
    """The kubectl of this test answers `exec` as the attach pod of each node would."""
    netdevs = [
        PodNetdev("0000:18:00.1", "ml", "worker-0", "rail0", ("10.100.16.7/16",)),
        PodNetdev("0000:18:00.2", "ml", "worker-0", "rail1"),
        PodNetdev("0000:18:00.3", "default", "web", "rail0"),
    ]
    state = tmp_path / "state.json"
    folder = tmp_path / "bin"
    folder.mkdir()
    kubectl = folder / "kubectl"
    lines = f'case $1 in exec) [ "$4" != at-2 ] && cat {state};; *) exec {which("kubectl")} "$@";; esac'
    kubectl.write_text(f"#!/bin/sh\n{lines}\n")
    kubectl.chmod(0o755)
    state.write_text(json_document(netdevs, Path("/"), None))
    labels = {"app.kubernetes.io/part-of": "nodeagent", "app.kubernetes.io/component": "attach"}
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        for pod in ("at-1", "at-2"):
            server.put({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"},
                        "metadata": {"name": pod, "namespace": "gpu", "labels": labels}})  # fmt: skip
        code, _, errors = await uninstall(kubeconfig, kubectl=str(kubectl))
        assert code == 1
        assert errors.endswith("Found: default/web gpu/at-2 (it does not answer) ml/worker-0\n")
        assert len(server.objects("leases")) == 1
        state.write_text(json_document([], Path("/"), None))
        server.remove("pods", "at-2", "gpu")
        code, _, errors = await uninstall(kubeconfig, kubectl=str(kubectl))
        assert (code, errors) == (0, "")
        assert server.objects("leases") == []


def test_the_page_names_every_file_that_the_agent_leaves_on_a_node() -> None:
    page = (ROOT / "docs" / "upgrade.md").read_text()
    config = Config()
    for path in (
        config.health.state_directory,
        *(f"{config.cdi.directory}/{name}" for name in FILES.values()),
        f"/var/lib/kubelet/device-plugins/{LOCK}",
        "/var/lib/kubelet/device-plugins/nodeagent-*.sock",
        "/var/lib/kubelet/plugins_registry/nodeagent-*.sock",
        f"{DEVICE_INFO}/*-device.json",
    ):
        assert path in page


async def test_annotations_of_volcanos_own_device_plugin_stay(tmp_path: Path) -> None:
    vgpus = {volcano_annotations.REGISTER: "GPU-2,8,81559,NVIDIA,true,hami-core:"}
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        await mark(server, kubeconfig)
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-2", "annotations": vgpus}})
        code, output, errors = await uninstall(kubeconfig)
        assert (code, errors) == (0, ""), output
        annotations = {name: server.find("nodes", name)["metadata"].get("annotations") or {}
                       for name in ("gpu-0", "gpu-1", "gpu-2")}  # fmt: skip
        assert annotations == {"gpu-0": {}, "gpu-1": {}, "gpu-2": vgpus}


@pytest.mark.parametrize("option", ["-h", "--help"])
async def test_the_help_is_printed_and_nothing_is_asked(option: str, tmp_path: Path) -> None:
    code, output, errors = await uninstall(tmp_path / "no-such-kubeconfig", option)
    assert (code, errors) == (0, "")
    assert "daemonset/uninstall.sh [NAMESPACE [LABEL-PREFIX …]]" in output
    assert not [line for line in output.splitlines() if line.startswith(("#", "set "))]


@pytest.mark.parametrize("word", ["", "--namespace", "-n", "Nodeagent", "node agent", "a/b", "a\nb", ".*"])
async def test_a_word_that_is_no_namespace_is_refused(word: str, tmp_path: Path) -> None:
    code, _, errors = await uninstall(tmp_path / "no-such-kubeconfig", word)
    assert code == 2
    assert f'"{word}" is no name of a namespace' in errors


@pytest.mark.parametrize(
    "word",
    ["", " ", "/", "a", "example.com", "example.com/a", "example.com/ ", "a b/", ".*/", "a|b/", "[^ ]*", "a\nb/", "-a/",
     "a./", "kubernetes.io/", "node-role.kubernetes.io/"],
)  # fmt: skip
async def test_a_word_that_is_no_prefix_of_ours_removes_nothing(word: str, tmp_path: Path) -> None:
    for words in ((word,), ("example.com/", word)):
        code, _, errors = await uninstall(tmp_path / "no-such-kubeconfig", "nodeagent", *words)
        assert code == 2
        assert f'"{word}" is no prefix of' in errors


@pytest.mark.parametrize("preset", get_args(LabelPreset))
async def test_the_labels_of_presets_and_of_further_keys_are_found_by_their_writer(
    preset: LabelPreset, tmp_path: Path
) -> None:
    """A label of the same key that another program wrote stays."""
    rules = FabricRules(labels=LabelSettings(keys=("example.com/{tierName}",), presets=(preset,)))
    keys = sorted(rules.label_keys)
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        authority = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority"]
        access = Access(server.url, token=server.token("admin"), ca_file=Path(authority))
        client = ApiClient(access, manager="nodeagent-controller")
        body = {"metadata": {"labels": dict.fromkeys(keys, "nodeagent-1")}}
        await client.patch(NODES, "gpu-0", body)
        await client.close()
        theirs = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-2", "labels": body["metadata"]["labels"]},
        }
        server.put(theirs)
        code, output, errors = await uninstall(kubeconfig)
        assert (code, errors) == (0, ""), output
        assert len(keys) > 4
        assert as_people_see_it(server.find("nodes", "gpu-0"))[0] == OF_PEOPLE
        left = server.find("nodes", "gpu-2")
        assert left is not None
        assert sorted(left["metadata"]["labels"]) == keys


@pytest.mark.slow
async def test_a_failure_ends_the_script_and_a_second_run_removes_the_rest(tmp_path: Path) -> None:
    """The reports are removed last, so that they do not hide that marks are left."""
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        await mark(server, kubeconfig)
        for verb, resource, name in (
            ("list", "nodes", None),
            ("patch", "nodes", "gpu-1"),
            ("get", "customresourcedefinitions", "hypernodes.topology.volcano.sh"),
        ):
            server.fail("403", verb=verb, resource=resource, name=name)
            code, _, errors = await uninstall(kubeconfig)
            assert code != 0
            assert "Forbidden" in errors
            assert server.find("customresourcedefinitions", "nodelinks.nodeagent.io") is not None
        assert (await uninstall(kubeconfig))[0] == 0
        for name in ("gpu-0", "gpu-1"):
            left = as_people_see_it(server.find("nodes", name))
            assert left == (OF_PEOPLE, [FOREIGN_TAINT], [FOREIGN_CONDITION])


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment"])
async def test_marks_are_not_removed_while_a_part_still_runs(kind: str, tmp_path: Path) -> None:
    name = {"DaemonSet": "nodeagent", "Deployment": "nodeagent-controller"}[kind]
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        await mark(server, kubeconfig)
        server.put(named(built("overlays/controller"), kind, name))
        for namespace in ((), ("another",)):
            code, _, errors = await uninstall(kubeconfig, *namespace)
            assert code == 1
            assert "nodeagent still runs" in errors
            assert f"Found: nodeagent/{name}" in errors
        assert len(server.objects("leases")) == 1


async def test_labels_of_further_keys_are_removed_if_their_prefix_is_named(tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        populate(server)
        labels = {"network.topology.nvidia.com/leaf": "su-1", "networkXtopology.nvidia.com/leaf": "su-1"}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-2", "labels": labels}})
        assert (await uninstall(kubeconfig, "nodeagent", "network.topology.nvidia.com/"))[0] == 0
        left = server.find("nodes", "gpu-2")
        assert left is not None
        assert list(left["metadata"]["labels"]) == ["networkXtopology.nvidia.com/leaf"]


async def test_a_cluster_without_volcano_and_another_namespace_are_fine(tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-system"}})
        meta = {"name": LEASE, "namespace": "gpu-system"}
        server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}})
        code, _, errors = await uninstall(kubeconfig, "gpu-system")
        assert (code, errors) == (0, "")
        assert server.objects("leases") == []
