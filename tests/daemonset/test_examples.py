"""The examples use registered resources and written labels, and match the schemas of their owners."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.docs.metrics import CATALOG
from nodeagent.agent_config import load
from nodeagent.cluster.node_marks import BLOCK_LABEL
from nodeagent.commands.scan import listing
from nodeagent.facts.allocation import Allocation
from nodeagent.kinds.vf import VfPool
from nodeagent.offering.offer import Offer
from nodeagent_lab.sim.machine import Machine
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST, complaints
from tests.support.manifests import DAEMONSET, Manifest, built, files, of_kind, parsed, pod_specs, rendered

EXAMPLES = DAEMONSET / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
PLAIN = ("node-group-tags.yaml",)  # files for other programs than kubectl
FILES = [path for folder in FOLDERS for path in files(folder) if path.name not in PLAIN]
A100 = {"nvidia-dgx-a100/gpu-mem"} | {f"nvidia-dgx-a100/nic{rail}" for rail in range(8)}
TOPOLOGY = {f"topology.nodeagent.io/tier-{tier}" for tier in (1, 2, 3)}


@cache
def manifests() -> tuple[tuple[Path, Manifest], ...]:
    return tuple((path, one) for path in FILES for one in parsed(path.read_text()))


def ids(found: tuple[Path, Manifest] | Path) -> str:
    if isinstance(found, Path):
        return str(found.relative_to(EXAMPLES))
    return f"{found[0].relative_to(EXAMPLES)}:{found[1]['kind']}/{found[1]['metadata']['name']}"


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Resources of the default configuration on a DGX H100: name → number of devices."""
    root = tmp_path_factory.mktemp("dgx")
    Machine.load("dgx-h100").write(root)
    seen = asyncio.run(
        listing.scan_machine(load((DAEMONSET / "base/node/nodeagent.yaml").read_text(), name="base"), root)
    )
    return {name: sum(len(one.ids) for one in devices) for name, devices in seen.resources}


def test_every_supported_system_has_an_example() -> None:
    assert [folder.name for folder in FOLDERS] == [
        "autoscaling",
        "cluster",
        "dra",
        "gpu-memory",
        "gpu-service",
        "grove",
        "kai",
        "katib",
        "kube-scheduler",
        "kuberay",
        "kueue",
        "large-clusters",
        "lws",
        "mpi-operator",
        "multus-sriov",
        "node-pool",
        "node-problem-detector",
        "training-operator",
        "volcano",
        "volcano-deviceshare",
        "volcano-global",
    ]


def test_the_page_of_the_deployment_names_every_example() -> None:
    text = (DAEMONSET / "README.md").read_text()
    unnamed = [folder.name for folder in FOLDERS if f"examples/{folder.name}" not in text]
    assert unnamed == []


@one_item("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_has_a_readme_with_a_check(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert len(text.splitlines()) < 80
    assert "works if" in text
    for path in files(folder):
        assert path.name in text, f"{path.name} is not mentioned"
    # Every path in a README exists.
    for name in re.findall(r"`((?:\.\./|overlays/|components/|examples/)[\w/.-]+)`", text):
        assert ((folder if name.startswith("..") else DAEMONSET) / name).exists(), name


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@one_item("found", manifests, ids=ids)
@pytest.mark.needs("kubernetes_validate")
def test_the_schemas_accept_each_example(found: tuple[Path, Manifest], version: str) -> None:
    if found[0].parent.name == "kube-scheduler" and version == OLDEST:
        return  # PodGroups are of Kubernetes 1.37
    assert complaints(found[1], version) == []


def named_resources(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each of our resource names in an object, at any depth, with its amount."""
    if isinstance(value, dict):
        if str(value.get("name", "")).startswith("nvidia-dgx-") and "/" in value["name"]:
            yield value["name"], value.get("nominalQuota")
        for key, one in value.items():
            if key.startswith("nvidia-dgx-") and "/" in key:
                yield key, one
            if isinstance(one, str) and one.startswith("nvidia-dgx-") and "/" in one and key != "name":
                yield one, None
            yield from named_resources(one)
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, str) and one.startswith("nvidia-dgx-"):
                yield one, None
            yield from named_resources(one)


@one_item("found", manifests, ids=ids)
def test_the_examples_request_only_registered_resources(
    found: tuple[Path, Manifest], registered: dict[str, int]
) -> None:
    for name, _ in named_resources(found[1]):
        assert name in registered or name in A100


@one_item("found", lambda: [one for one in manifests() if pod_specs(one[1])], ids=ids)
def test_one_node_can_satisfy_each_pod(found: tuple[Path, Manifest], registered: dict[str, int]) -> None:
    per_gpu = registered["nvidia-dgx-h100/gpu-mem"] // 8
    for spec in pod_specs(found[1]):
        for container in spec["containers"]:
            resources = container["resources"]
            if "claims" in resources:
                continue  # tests/daemonset/test_dra_manifests.py allocates them
            for name, amount in resources["limits"].items():
                if name in registered:
                    assert 0 < amount <= registered[name]
                    # Requests and limits of an extended resource are equal.
                    assert resources.get("requests", {}).get(name, amount) == amount
                if name.endswith("/gpu-mem"):
                    # Allocate grants slices of one GPU, or all slices of several.
                    assert amount <= per_gpu or amount % per_gpu == 0
            assert {"cpu", "memory"} <= resources["requests"].keys()


# Multus reads the VF of a claim from the attributes of its device, which is a PF (docs/dra.md).
def by_plugin() -> list[tuple[Path, Manifest]]:
    return [one for one in manifests() if pod_specs(one[1]) and one[0].parent.name != "dra"]


@one_item("found", by_plugin, ids=ids)
def test_a_pod_has_one_network_for_each_rail_that_it_requests(found: tuple[Path, Manifest]) -> None:
    networks = {
        one["metadata"]["name"]: one["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"]
        for path, one in manifests()
        if one["kind"] == "NetworkAttachmentDefinition"
    }

    def look(value: Any) -> Iterator[tuple[Manifest, Manifest]]:
        if isinstance(value, dict):
            if isinstance(value.get("spec"), dict) and isinstance(value["spec"].get("containers"), list):
                yield value.get("metadata", {}), value["spec"]
            for one in value.values():
                yield from look(one)
        elif isinstance(value, list):
            for one in value:
                yield from look(one)

    for meta, spec in look(found[1]):
        asked = [name for c in spec["containers"] for name in c["resources"]["limits"] if "/nic" in name]
        text = meta.get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
        # The networks are in the namespace default; a pod in another namespace must name it.
        head = "default/" if found[1]["metadata"].get("namespace") else ""
        plugged = [name for name in text.split(", ") if name]
        assert all(name.startswith(head) for name in plugged)
        assert [networks[name.removeprefix(head)] for name in plugged] == asked


def test_a_network_gives_the_pod_a_vf_of_its_rail() -> None:
    definitions = [one for _, one in manifests() if one["kind"] == "NetworkAttachmentDefinition"]
    assert len(definitions) == 8
    ranges = set()
    for rail, one in enumerate(definitions):
        annotations = one["metadata"]["annotations"]
        assert annotations["k8s.v1.cni.cncf.io/resourceName"] == f"nvidia-dgx-h100/nic{rail}"
        config = json.loads(one["spec"]["config"])
        assert config["name"] == one["metadata"]["name"] == f"rail{rail}"
        assert [plugin["type"] for plugin in config["plugins"]] == ["sriov", "tuning", "rdma"]
        ranges.add(config["plugins"][0]["ipam"]["range"])
    assert len(ranges) == 8


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the variables of a container with one of each resource."""
    root = tmp_path_factory.mktemp("env")
    Machine.load("dgx-h100").write(root)
    config = load((DAEMONSET / "base/node/nodeagent.yaml").read_text(), name="base")
    seen = asyncio.run(listing.scan_machine(config, root))
    names: set[str] = set()
    for kind in Offer(config).kinds(seen.snapshot):
        (first, *_) = [one.ids[0] for one in kind.devices(seen.snapshot)]
        given: Allocation = kind.allocate(seen.snapshot, (first,))
        names |= {name for name, _ in given.env}
        assert isinstance(kind, VfPool) or given.cdi_devices
    return names


def test_the_variables_in_the_examples_are_those_that_allocate_sets(environment: set[str]) -> None:
    spoken = set()
    for path in [*EXAMPLES.rglob("*.yaml"), *EXAMPLES.rglob("*.md")]:
        spoken |= set(re.findall(r"\b(?:PCIDEVICE_|NODEAGENT_)[A-Z0-9_]*[A-Z0-9]\b", path.read_text()))
    assert spoken
    assert spoken <= environment


def test_the_labels_in_the_examples_are_those_that_the_controller_writes() -> None:
    spoken = set()
    for path in [*EXAMPLES.rglob("*.yaml"), *EXAMPLES.rglob("*.md")]:
        spoken |= set(re.findall(r"topology\.nodeagent\.io/[\w-]+", path.read_text()))
    assert spoken <= TOPOLOGY


def test_the_affinity_of_an_example_is_by_the_label_of_the_agent_and_fits_the_request() -> None:
    seen = 0
    for path, one in manifests():
        for spec in pod_specs(one) if path.parent.name == "gpu-memory" else ():
            for term in (
                spec.get("affinity", {})
                .get("nodeAffinity", {})
                .get("requiredDuringSchedulingIgnoredDuringExecution", {})
                .get("nodeSelectorTerms", ())
            ):
                (expression,) = term["matchExpressions"]
                limits = spec["containers"][0]["resources"]["limits"]
                assert expression["key"] == BLOCK_LABEL
                assert expression["operator"] == "Gt"
                assert int(expression["values"][0]) == limits["nvidia-dgx-h100/gpu-mem"] - 1
                seen += 1
    assert seen


# Kueue


def test_each_flavor_lists_the_covered_resources_in_order() -> None:
    flavors = {one["metadata"]["name"] for one in of_kind(built("components/kueue"), "ResourceFlavor")}
    for queue in (one for _, one in manifests() if one["kind"] == "ClusterQueue"):
        # Kueue places by topology only if all resources, CPU included, come from one flavor.
        (group,) = queue["spec"]["resourceGroups"]
        assert {"cpu", "memory"} <= set(group["coveredResources"])
        for flavor in group["flavors"]:
            assert flavor["name"] in flavors
            assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]


def test_quotas_add_up_to_whole_nodes(registered: dict[str, int]) -> None:
    totals: dict[str, int] = {}
    queues = (
        one for path, one in manifests() if path.parent.name == "kueue" and one["kind"] == "ClusterQueue"
    )
    for queue in queues:
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]:
            for one in flavor["resources"]:
                if one["name"] in registered:
                    assert one["nominalQuota"] % registered[one["name"]] == 0
                    totals[one["name"]] = totals.get(one["name"], 0) + one["nominalQuota"]
    assert totals == {name: 32 * count for name, count in registered.items()}


def test_queued_jobs_name_existing_queues_and_priorities() -> None:
    objects = [one for _, one in manifests()]
    queues = {
        (one["metadata"]["namespace"], one["metadata"]["name"]) for one in of_kind(objects, "LocalQueue")
    }
    priorities = {one["metadata"]["name"] for one in of_kind(objects, "WorkloadPriorityClass")}
    queued = 0
    for one in objects:
        labels = one["metadata"].get("labels", {})
        if name := labels.get("kueue.x-k8s.io/queue-name"):
            queued += 1
            assert (one["metadata"]["namespace"], name) in queues
            assert labels["kueue.x-k8s.io/priority-class"] in priorities
            spec = one["spec"]
            assert spec.get("runPolicy", spec)["suspend"] is True
    assert queued == 4
    levels = {
        level["nodeLabel"]
        for one in of_kind(built("components/kueue"), "Topology")
        for level in one["spec"]["levels"]
    }
    wanted = set(re.findall(r"podset-\w+-topology: (\S+)", "".join(path.read_text() for path in FILES)))
    assert wanted
    assert wanted <= levels


# Volcano


def test_a_volcano_job_is_a_gang_in_an_existing_queue() -> None:
    objects = [one for _, one in manifests()]
    queues = {one["metadata"]["name"] for one in of_kind(objects, "Queue")}
    jobs = [one for one in of_kind(objects, "Job") if one["apiVersion"].startswith("batch.volcano")]
    assert {one["spec"]["networkTopology"]["mode"] for one in jobs} == {"hard", "soft"}
    for one in jobs:
        spec = one["spec"]
        assert spec["queue"] in queues
        assert spec["minAvailable"] == sum(task["replicas"] for task in spec["tasks"])
        name = one["metadata"]["name"]
        (container,) = spec["tasks"][0]["template"]["spec"]["containers"]
        assert container["args"][0] == f"--rdzv-endpoint={name}-worker-0.{name}:29500"


# Autoscaling


def test_the_autoscaler_uses_metrics_that_the_adapter_derives_from_recording_rules() -> None:
    folder = EXAMPLES / "autoscaling"
    adapter = yaml.safe_load((folder / "values.yaml").read_text())["rules"]["custom"]
    (rules,) = parsed((folder / "recording-rules.yaml").read_text())
    recorded = {rule["record"] for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert {one["seriesQuery"] for one in adapter} == recorded
    scaler = next(
        one for one in parsed((folder / "hpa.yaml").read_text()) if one["kind"].startswith("Horizontal")
    )
    asked = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert asked == {one["name"]["as"] for one in adapter}


def test_the_recording_rules_use_metrics_of_the_agent() -> None:
    (rules,) = parsed((EXAMPLES / "autoscaling" / "recording-rules.yaml").read_text())
    known = {name: set(family.labels) for name, family in CATALOG.items()}
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        used = set(re.findall(r"\bnodeagent_[a-z0-9_]+", rule["expr"]))
        assert used <= known.keys()
        # Labels in joins and groupings belong to one of the metrics, to Prometheus, or to a label_replace.
        labels = {
            label.strip()
            for group in re.findall(r"(?:by|on|group_left) \(([^)]+)\)", rule["expr"])
            for label in group.split(",")
        }
        made = set(re.findall(r'"(\w+)", "\$1"', rule["expr"]))
        assert labels <= set().union(*(known[name] for name in used)) | made | {"instance"}


def test_an_empty_node_group_advertises_the_resources_of_a_node(registered: dict[str, int]) -> None:
    tags = yaml.safe_load((EXAMPLES / "autoscaling" / PLAIN[0]).read_text())
    head = "k8s.io/cluster-autoscaler/node-template/resources/"
    tagged = {key.removeprefix(head): int(value) for key, value in tags.items() if key.startswith(head)}
    assert tagged == registered


@pytest.mark.needs("kubectl")
def test_the_vertical_autoscaler_targets_the_daemonset() -> None:
    (scaler,) = parsed((EXAMPLES / "autoscaling" / "vpa.yaml").read_text())
    assert scaler["spec"]["updatePolicy"]["updateMode"] == "Off"
    target = scaler["spec"]["targetRef"]
    (daemonset,) = of_kind(built(), target["kind"])
    assert daemonset["metadata"]["name"] == target["name"]
    policy = scaler["spec"]["resourcePolicy"]["containerPolicies"][0]
    container = daemonset["spec"]["template"]["spec"]["containers"][0]
    assert policy["containerName"] == container["name"]
    assert policy["minAllowed"] == container["resources"]["requests"]


# Large clusters

LARGE = EXAMPLES / "large-clusters"


@pytest.mark.needs("kubectl", "kubernetes_validate")
def test_the_large_cluster_example_differs_from_the_base_in_numbers_only() -> None:
    manifests = parsed(rendered(LARGE))
    assert not [faults for one in manifests if (faults := complaints(one, NEWEST))]
    (daemonset,) = of_kind(manifests, "DaemonSet")
    assert daemonset["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "2%"}
    monitor = next(one for one in of_kind(manifests, "PodMonitor") if one["metadata"]["name"] == "nodeagent")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "60s"
    assert int(endpoint["scrapeTimeout"][:-1]) < 60
    accounts = {one["metadata"]["name"] for one in of_kind(manifests, "ServiceAccount")}
    flows = {
        rule["subjects"][0]["serviceAccount"]["name"]
        for one in of_kind(manifests, "FlowSchema")
        for rule in one["spec"]["rules"]
    }
    assert flows == accounts
    shards = parsed((LARGE / "prometheus.yaml").read_text())
    (prometheus,) = of_kind(shards, "Prometheus")
    # Prometheus needs the right to list pods to find the agents.
    (account,), (role,), (binding,) = (
        of_kind(shards, kind) for kind in ("ServiceAccount", "Role", "RoleBinding")
    )
    assert prometheus["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert account["metadata"]["namespace"] == prometheus["metadata"]["namespace"]
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {"nodeagent"}
    assert {verb for rule in role["rules"] if "pods" in rule["resources"] for verb in rule["verbs"]} == {
        "get", "list", "watch",
    }  # fmt: skip
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for selector in ("podMonitorSelector", "ruleSelector"):
        wanted = prometheus["spec"][selector]["matchLabels"].items()
        kind = "PodMonitor" if selector.startswith("pod") else "PrometheusRule"
        assert all(wanted <= one["metadata"]["labels"].items() for one in of_kind(manifests, kind))


def test_the_numbers_of_the_large_cluster_readme_are_right() -> None:
    text = (LARGE / "README.md").read_text()
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    }
    nodes = (1_000, 7_500, 100_000)
    assert rows["writes in a quiet hour (half a link event a node and day)"] == [
        f"{round(0.5 * n / 24):,}" for n in nodes
    ]
    assert rows["HyperNodes of tier 1 (32 nodes each)"] == [f"{-(-n // 32):,}" for n in nodes]
    assert rows["pages of the controller's first list"] == [str(-(-n // 500)) for n in nodes]
    found = re.search(r"([\d,]+) stay", text)
    assert found is not None
    series = int(found[1].replace(",", ""))
    assert rows["samples a second at 60 s"] == [f"{series * n // 60:,}" for n in nodes]
    assert rows["shards of 2.5 M series at most"] == [str(-(-series * n // 2_500_000)) for n in nodes]
    assert rows["series"] == [f"{series * n / 1e6:,.1f} M" for n in nodes]
    (prometheus,) = of_kind(parsed((LARGE / "prometheus.yaml").read_text()), "Prometheus")
    assert str(prometheus["spec"]["shards"]) == rows["shards of 2.5 M series at most"][1]


def test_the_capability_to_lock_memory_has_its_reason_where_it_is_first_asked_for() -> None:
    asking = [path for path in FILES if "IPC_LOCK" in path.read_text()]
    assert len(asking) > 10
    for path in asking:
        before, _, _ = path.read_text().partition("capabilities: {add: [IPC_LOCK]}")
        assert "locked" in " ".join(before.splitlines()[-3:]), path
