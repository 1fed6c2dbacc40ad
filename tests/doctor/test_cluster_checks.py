"""The cluster checks of the doctor: from facts, and against the stand-in API server with the shipped roles."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import doctor
from nodeagent.agent_config import Config
from nodeagent.doctor import cluster_checks
from nodeagent.doctor.cluster_checks import ClusterFacts, ClusterOptions, DeniedVerb, NodeFacts
from nodeagent.doctor.dra_checks import ForeignDevice, PublishedDevice
from nodeagent.doctor.finding import Finding
from nodeagent.doctor.rbac import ACCOUNTS, DRA_RIGHTS, NEEDED_RIGHTS, ROLES, Role
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.machine import Machine
from tests.doctor.test_checks import CLUSTER_CASES, GOOD_CLUSTER, GOOD_NODE, MEMORY, SNAPSHOT, config, levels

Json = dict[str, Any]
MANIFESTS = Path(__file__).parents[2] / "daemonset"
RBAC: dict[Role, Path] = {
    "agent": MANIFESTS / "base/cluster/rbac.yaml",
    "controller": MANIFESTS / "controller/rbac.yaml",
}


def shipped(role: Role) -> list[Json]:
    """The objects as applied, in the namespace of the kustomization."""
    found = []
    for obj in yaml.safe_load_all(RBAC[role].read_text()):
        if not obj["kind"].startswith("Cluster"):
            obj["metadata"].setdefault("namespace", "nodeagent")
        found.append(obj)
    return found


def granted(rules: Iterable[Json]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_needed_rights_are_those_that_the_manifests_grant(role: Role) -> None:
    for kind, own in (("Role", True), ("ClusterRole", False)):
        rules = [rule for obj in shipped(role) if obj["kind"] == kind for rule in obj["rules"]]
        demanded = {
            (one.group, one.resource, verb, one.name)
            for one in NEEDED_RIGHTS[role]
            if one.own_namespace == own
            for verb in one.verbs
        }
        assert demanded == granted(rules)
    accounts = [obj["metadata"]["name"] for obj in shipped(role) if obj["kind"] == "ServiceAccount"]
    assert accounts == [ACCOUNTS[role]]


def kubeconfig(folder: Path, server: str, token: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )
    return path


NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "dgx-1"},
    "status": {
        "nodeInfo": {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.4"},
        "capacity": {"nvidia.com/gpu": "8"},
    },
}


async def asked(
    server: ApiServer, folder: Path, user: str, role: Role | None = None, node: str = "dgx-1"
) -> ClusterFacts:
    path = kubeconfig(folder, server.url, server.token(user))
    found = await cluster_checks.read_cluster_facts(ClusterOptions(path, node, role))
    assert found is not None
    return found


def found(seen: ClusterFacts) -> set[str]:
    return {f"{one.level} {one.key}" for one in cluster_checks.cluster_findings(seen, Config(), None)}


@pytest.mark.parametrize("role", ROLES)
async def test_a_service_account_with_the_shipped_roles_has_all_needed_rights(
    role: Role, tmp_path: Path
) -> None:
    server = await ApiServer(rbac=True).start()
    try:
        for obj in shipped(role):
            server.put(obj)
        server.put(NODE)
        seen = await asked(server, tmp_path, f"system:serviceaccount:nodeagent:{ACCOUNTS[role]}", role)
        assert seen.error is None
        assert seen.checked == (role,)
        assert seen.denied == ()
        assert "ok rights" in found(seen)
    finally:
        await server.stop()


@pytest.mark.parametrize("role", ROLES)
async def test_each_missing_rule_is_named(role: Role, tmp_path: Path) -> None:
    server = await ApiServer(rbac=True).start()
    try:
        for obj in shipped(role):
            server.put(obj)
        for obj in shipped(role):
            for i, rule in enumerate(obj.get("rules", ())):
                server.put({**obj, "rules": [*obj["rules"][:i], *obj["rules"][i + 1 :]]})
                seen = await asked(
                    server, tmp_path, f"system:serviceaccount:nodeagent:{ACCOUNTS[role]}", role
                )
                missing = {(d.right.group, d.right.resource, d.verb, d.right.name) for d in seen.denied}
                assert missing == granted([rule])
                refusals = [
                    one.what
                    for one in cluster_checks.cluster_findings(seen, Config(), None)
                    if one.key == "rights_missing"
                ]
                assert len(refusals) == len(missing)
                assert all(one.startswith(f"{ACCOUNTS[role]} may not ") for one in refusals)
                server.put(obj)
    finally:
        await server.stop()


async def test_objects_that_an_agent_may_not_read_are_no_fault(tmp_path: Path) -> None:
    server = await ApiServer(rbac=True).start()
    try:
        for obj in shipped("agent"):
            server.put(obj)
        server.put(NODE)
        seen = await asked(server, tmp_path, "system:serviceaccount:nodeagent:nodeagent", "agent")
        assert seen.node is None
        assert "the Node dgx-1" in seen.hidden
        assert seen.reported is False
        assert not [one for one in found(seen) if one.startswith("fix")]
    finally:
        await server.stop()


async def test_an_administrator_sees_the_node_the_schedulers_and_foreign_hypernodes(tmp_path: Path) -> None:
    server = await ApiServer(rbac=True, namespaces=("default", "nodeagent", "volcano-system")).start()
    try:
        server.put(NODE)
        server.put(
            {
                "apiVersion": "nodeagent.io/v1alpha1",
                "kind": "NodeLinks",
                "metadata": {"name": "dgx-1", "namespace": "nodeagent"},
            }
        )
        for name, source in (("a", "ufm"), ("b", "nodeagent"), ("c", None)):
            labels = {} if source is None else {cluster_checks.SOURCE_LABEL: source}
            server.put(
                {
                    "apiVersion": "topology.volcano.sh/v1alpha1",
                    "kind": "HyperNode",
                    "metadata": {"name": name, "labels": labels},
                }
            )
        conf = {
            "networkTopologyDiscovery": [
                {"source": "ufm", "enabled": True},
                {"source": "label", "enabled": False},
            ]
        }
        server.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "volcano-controller-configmap", "namespace": "volcano-system"},
                "data": {"volcano-controller.conf": yaml.safe_dump(conf)},
            }
        )
        server.put(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "nodeagent", "namespace": "nodeagent"},
                "spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
            }
        )
        for obj in shipped("agent"):
            server.put(obj)
        seen = await asked(server, tmp_path, "admin")
        assert seen.error is None
        assert seen.checked == ("agent", "controller")
        assert {one.role for one in seen.denied} == {"controller"}, "those roles were not applied"
        assert seen.node == NodeFacts("dgx-1", "v1.36.2", "containerd://2.1.4", {"nvidia.com/gpu": "8"})
        assert seen.reported is True
        assert seen.discoverers == ("ufm",)
        assert seen.foreign == {"ufm": 1, "": 1}
        assert seen.surge == "1"
        assert {
            "fix volcano_discovers",
            "warn hypernodes_foreign",
            "fix surge",
            "ok report",
            "ok crds",
        } <= found(seen)
        assert not [
            one
            for one in server.requests
            if one.group != "authorization.k8s.io" and one.verb not in ("get", "list")
        ]
    finally:
        await server.stop()


async def test_a_definition_that_is_older_than_the_agent_is_found(tmp_path: Path) -> None:
    """The shipped one lacks nothing, so it and the code have the same fields and states."""
    definition = yaml.safe_load((MANIFESTS / "base/cluster/nodelinks.yaml").read_text())
    server = await ApiServer().start()
    try:
        server.put(definition)
        seen = await asked(server, tmp_path, "admin")
        assert (seen.lacking, seen.hidden) == ((), ())
        link = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["links"]["items"]
        link["properties"]["state"]["enum"] = ["healthy", "degraded", "down", "miscabled", "unknown"]
        del link["properties"]["rail"], link["properties"]["neighbor"]["properties"]["stale"]
        server.put(definition)
        seen = await asked(server, tmp_path, "admin")
        assert set(seen.lacking) == {
            "links[].rail",
            "links[].neighbor.stale",
            "links[].state (missing)",
            "links[].state (unused)",
        }
        assert "warn crd_older" in found(seen)
    finally:
        await server.stop()


async def test_an_unreachable_api_server_and_a_refused_token_are_findings(tmp_path: Path) -> None:
    server = await ApiServer(rbac=True).start()
    path = kubeconfig(tmp_path, server.url, "forged")
    try:
        seen = await cluster_checks.read_cluster_facts(ClusterOptions(path))
        assert seen is not None
        assert seen.error is not None
        assert "401" in seen.error
    finally:
        await server.stop()
    seen = await cluster_checks.read_cluster_facts(ClusterOptions(path))
    assert seen is not None
    assert found(seen) == {"fix cluster_unreachable"}
    seen = await cluster_checks.read_cluster_facts(ClusterOptions(tmp_path / "absent"))
    assert seen is not None
    assert str(tmp_path / "absent") in (seen.error or "")


async def test_the_context_chooses_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await ApiServer(rbac=True).start()
    path = kubeconfig(tmp_path, server.url, "forged")
    monkeypatch.setenv("KUBECONFIG", str(path))
    try:
        (context,) = [one["name"] for one in yaml.safe_load(path.read_text())["contexts"]]
        for where in (ClusterOptions(path, context=context), ClusterOptions(context=context)):
            seen = await cluster_checks.read_cluster_facts(where)
            assert seen is not None
            assert "401" in (seen.error or "")
        seen = await cluster_checks.read_cluster_facts(ClusterOptions(path, context="other"))
        assert seen is not None
        assert "other" in (seen.error or "")
    finally:
        await server.stop()


async def test_a_hanging_api_server_costs_its_time_limit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_checks, "_TIMEOUT_S", 0.2)

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    mute = await asyncio.start_server(hang, "127.0.0.1", 0)
    path = kubeconfig(tmp_path, f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}", "t")
    async with asyncio.timeout(10):
        seen = await cluster_checks.read_cluster_facts(ClusterOptions(path))
    assert seen is not None
    assert "no answer of" in (seen.error or "")
    over.set()
    mute.close()
    await mute.wait_closed()


async def test_one_report_covers_node_and_cluster(tmp_path: Path) -> None:
    server = await ApiServer(rbac=True).start()
    try:
        server.put(NODE)
        path = kubeconfig(tmp_path, server.url, server.token("admin"))
        Machine.load("two-gpu-two-nic").write(tmp_path / "r")
        place = doctor.DoctorOptions(tmp_path / "r", where=ClusterOptions(path, "dgx-1"))
        report = await asyncio.to_thread(doctor.examine, place)
    finally:
        await server.stop()
    keys = {f"{one.level} {one.key}" for one in report.findings}
    assert {
        "ok node",
        "fix rights_missing",
        "warn gpus_counted_twice",
        "note kubelet_race",
        "ok sriov",
    } <= keys
    table = doctor.finding_table(doctor.TOPICS, report.findings)
    assert "dgx-1: kubelet v1.36.2, containerd://2.1.4" in table


async def test_without_access_to_a_cluster_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert await cluster_checks.read_cluster_facts(ClusterOptions()) is None
    assert levels(cluster_checks.cluster_findings(None, Config(), None)) == {"ok"}


def test_the_service_account_selects_the_rights_to_check() -> None:
    def token(claims: object) -> str:
        part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"Bearer head.{part}.signature"

    assert cluster_checks.token_subject(
        token({"sub": "system:serviceaccount:nodeagent:nodeagent-controller"})
    ).endswith("-controller")
    for text in (token([]), token({"sub": 7}), "", "Bearer abc", "a.!.c", "a.e30.c", "a.\xff.c"):
        assert cluster_checks.token_subject(text) in ("", "7")


@pytest.mark.parametrize(
    ("conf", "sources"),
    [
        ("", []),
        ("- a\n", []),
        ("networkTopologyDiscovery: 7", []),
        ("networkTopologyDiscovery: [7, {source: label, enabled: true}, {source: ufm}]", ["label"]),
        ("{", []),
    ],
)
def test_any_text_is_accepted_as_volcanos_configuration(conf: str, sources: list[str]) -> None:
    assert cluster_checks.discoverers(conf) == sources


@pytest.mark.parametrize(("expected", "findings"), CLUSTER_CASES, ids=[case[0] for case in CLUSTER_CASES])
def test_cluster_facts_give_the_expected_finding(expected: str, findings: Iterable[Finding]) -> None:
    assert expected in {f"{one.level} {one.key}" for one in findings}


def test_a_good_cluster_gives_ok_findings_only() -> None:
    newest = replace(GOOD_NODE, kubelet="v1.37.1", capacity={"nvidia-dgx-h100/gpu-mem": "79"})
    assert levels(cluster_checks.cluster_findings(replace(GOOD_CLUSTER, node=newest), MEMORY, SNAPSHOT)) == {
        "ok"
    }


def test_the_strategy_envvar_needs_no_cdi() -> None:
    old = replace(GOOD_CLUSTER, node=replace(GOOD_NODE, kubelet="v1.28.0", runtime="containerd://1.6.8"))
    strategy = config("resources: [{kind: gpu-mem, deviceListStrategy: envvar}]\n")
    assert not {one.key for one in cluster_checks.cluster_findings(old, strategy, None)} & {
        "kubelet_without_cdi",
        "runtime_without_cdi",
    }
    assert (
        DeniedVerb("agent", NEEDED_RIGHTS["agent"][0], "get").right.sentence("get")
        == "get nodelinks.nodeagent.io"
    )


async def test_slices_classes_and_the_missing_rights_of_mode_dra_are_read(tmp_path: Path) -> None:
    server = await ApiServer(rbac=True).start()
    try:
        for obj in shipped("agent"):
            server.put(obj)
        server.put({**NODE, "status": {**NODE["status"], "allocatable": {"nvidia-dgx-h100/nic3": "8"}}})
        attributes = {"kind": {"string": "nic"}, "rail": {"int": 3}, "uuid": {"string": "GPU-1"}}
        taint = {"key": "nodeagent.io/unhealthy", "value": "carrier_down", "effect": "NoSchedule"}
        for driver in ("nodeagent.io", "dra.net"):
            pool = {"name": "dgx-1/nic", "generation": 1, "resourceSliceCount": 1}
            devices = [
                {"name": f"of-{driver.partition('.')[0]}", "attributes": attributes, "taints": [taint]}
            ]
            spec = {"driver": driver, "nodeName": "dgx-1", "pool": pool, "devices": devices}
            server.put(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": driver},
                    "spec": spec,
                }
            )
        for name, resource in (("gpu-share", None), ("wrong", "x/gpu-mem")):
            spec = {"extendedResourceName": resource} if resource else {}
            server.put(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceClass",
                    "metadata": {"name": name},
                    "spec": spec,
                }
            )
        path = kubeconfig(tmp_path, server.url, server.token("admin"))
        seen = await cluster_checks.read_cluster_facts(ClusterOptions(path, "dgx-1", dra=True))
        assert seen is not None
        assert seen.dra is not None
        assert seen.node is not None
        assert seen.dra.version == (1, 36)
        assert seen.dra.classes == {"x/gpu-mem": "wrong"}
        assert seen.dra.devices == (PublishedDevice("of-nodeagent", "nic", 3, "carrier_down:NoSchedule"),)
        assert seen.dra.foreign == (ForeignDevice("dra.net", "of-dra", frozenset({"nic", "gpu-1"})),)
        assert seen.node.allocatable == {"nvidia-dgx-h100/nic3": "8"}
        missing = {denial.right.sentence(denial.verb) for denial in seen.denied if denial.role == "agent"}
        assert "create resourceslices.resource.k8s.io" in missing
        assert "get resourceclaims.resource.k8s.io" in missing
    finally:
        await server.stop()


async def test_the_doctor_names_a_gpu_that_another_dra_driver_publishes(tmp_path: Path) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path / "r")
    gpus = json.loads((tmp_path / "r/.nodeagent/gpus.json").read_text())["gpus"]
    server = await ApiServer().start()
    try:
        server.put(NODE)
        server.put(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "dgx-1-gpu.nvidia.com"},
                "spec": {
                    "driver": "gpu.nvidia.com",
                    "nodeName": "dgx-1",
                    "pool": {"name": "dgx-1", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "gpu-1", "attributes": {"uuid": {"string": gpus[1]["uuid"]}}}],
                },
            }
        )
        path = kubeconfig(tmp_path, server.url, server.token("admin"))
        options = doctor.DoctorOptions(tmp_path / "r", where=ClusterOptions(path, "dgx-1"))
        report = await asyncio.to_thread(doctor.examine, options)
        (finding,) = (one for one in report.findings if one.key == "offered_by_other_driver")
        assert finding.what == f"gpu.nvidia.com has GPU 1 ({gpus[1]['uuid']}) as gpu-1"
    finally:
        await server.stop()


def test_the_rights_of_mode_dra_are_those_of_its_manifest() -> None:
    roles = [
        obj
        for obj in yaml.safe_load_all((MANIFESTS / "components/dra/objects/rbac.yaml").read_text())
        if obj["kind"] == "ClusterRole"
    ]
    rights = {(one.group, one.resource, verb, one.name) for one in DRA_RIGHTS for verb in one.verbs}
    # Reading its Node is only for the attribute leafGroup.
    assert granted(rule for role in roles for rule in role["rules"]) == rights | {("", "nodes", "get", "")}
