"""The chart and the kustomization are equivalent: Helm renders the objects that kustomize builds."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import re
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from nodeagent import __version__
from nodeagent.agent_config import Config
from nodeagent.agent_config import load as load_agent
from nodeagent.commands.config import default_file
from nodeagent.controller_config import FabricConfig, load_fabric
from tests.kubelet.test_kubelet_folders import check as check_folders
from tests.support import manifests as kustomize
from tests.support.admin_access import administered
from tests.support.kubernetes_schemas import NEWEST, complaints
from tests.support.manifests import (
    DAEMONSET,
    OWN_NODE,
    ROOT,
    Manifest,
    built,
    by_key,
    configurations,
    key,
    named,
    of_kind,
    parsed,
    rendered,
)
from tests.support.needs import need, which

sys.path.insert(0, str(ROOT / "hack"))
import chart

from hack.docs import chart_readme
from tests.support import golden
from tests.support.findings import one_item

CHART = DAEMONSET / "chart"
CHECKSUM = "checksum/start-settings"
pytestmark = pytest.mark.needs("kubectl", "helm_python")


def render(values: dict[str, Any] | None = None, namespace: str = "nodeagent") -> list[Manifest]:
    """The objects of the release, without those of `helm test`."""
    return [one for one in render_all(values, namespace) if not hook(one)]


def hook(manifest: Manifest) -> str | None:
    found: str | None = manifest["metadata"].get("annotations", {}).get("helm.sh/hook")
    return found


def render_all(values: dict[str, Any] | None = None, namespace: str = "nodeagent") -> list[Manifest]:
    need("helm_python")
    import helm_python as helm

    with helm.Chart.load(str(CHART)) as loaded:
        files = loaded.render(
            {"namespace": {"create": True}, **(values or {})}, name="nodeagent", namespace=namespace
        )
    return [one for name, text in files.items() if name.endswith(".yaml") for one in parsed(text)]


@pytest.mark.slow
@pytest.mark.golden("daemonset/chart/templates/*", "daemonset/chart/files/*", "daemonset/chart/README.md")
def test_the_templates_are_generated_from_the_kustomization() -> None:
    made = chart.templates(which("kubectl"))
    for name, text in made.items():
        golden.same(CHART / name, text)
    there = {
        str(path.relative_to(CHART))
        for folder in ("templates", "files")
        for path in (CHART / folder).rglob("*.*")
        if path.name != "NOTES.txt"
    }
    there.add("README.md")
    assert there == set(made)


def text(path: str) -> str:
    return (DAEMONSET / path).read_text()


ON: dict[str, Any] = {"enabled": True}
VALUES: dict[str, dict[str, Any]] = {
    "": {},
    "overlays/observe": {"observe": ON, "config": text("overlays/observe/nodeagent.yaml")},
    "overlays/controller": {"controller": ON},
    "components/attach": {"attach": ON},
    "components/attach-ipam": {"attach": ON, "attachIpam": ON},
    "components/dra": {"dra": ON},
    "components/evictions": {"evictions": ON, "nodeConditions": ON},
    "components/gpu-labels": {"gpuLabels": ON},
    "components/gpu-memory-limits": {"gpuMemoryLimits": ON},
    "components/gpu-mps": {"mps": ON},
    "components/gpu-processes": {"gpuProcesses": ON},
    "components/infiniband": {"infiniband": ON},
    "components/jobs": {"controller": ON, "jobs": ON},
    "components/kueue": {"controller": ON, "kueue": ON},
    "components/labels": {"controller": ON | {"fabric": text("components/labels/fabric.yaml")}},
    "components/marks": {"controller": ON, "marks": ON},
    "components/mig": {"mig": ON},
    "components/mig-claims": {"dra": ON, "migClaims": ON},
    "components/node-conditions": {"nodeConditions": ON},
    "components/node-feature-groups": {"controller": ON, "nodeFeatureGroups": ON},
    "components/nvsentinel": {"nvSentinel": ON},
    "components/optics": {"optics": ON},
    "components/prometheus-operator": {"monitoring": ON},
    "components/rails": {"controller": ON, "rails": ON},
    "components/slurm": {"controller": ON, "slurm": ON},
    "components/startup-taint": {"controller": ON, "startupTaint": ON},
    "components/volcano-deviceshare": {"nodeConditions": ON, "volcanoDeviceshare": ON},
    "examples/cluster": dict.fromkeys(("controller", "rails", "dra", "monitoring", "nodeConditions"), ON),
    "examples/node-pool": {
        "pools": {
            name: {
                "nodeSelector": {"nodeagent.io/pool": name},
                "config": text(f"examples/node-pool/{name}/nodeagent.yaml"),
            }
            for name in ("dgx-a100", "dgx-h100")
        }
    },
}
"""The values of the chart for each installation."""
MARKS_NODES = ("components/evictions", "components/volcano-deviceshare")
"""Components with the rights of node-conditions under names of their own; the chart wants its value instead."""


def checksums(manifests: list[Manifest]) -> dict[str, str]:
    """Remove and return the checksum of each DaemonSet, which only Helm makes."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"].pop(CHECKSUM)
        for one in of_kind(manifests, "DaemonSet")
        if one["metadata"]["name"] not in kustomize.BESIDE  # they have no configuration
    }


def sorted_mounts(manifests: list[Manifest]) -> list[Manifest]:
    """The objects with volumes and variables in one order, which has no effect: runtimes mount by depth of the path,
    and no variable names another."""
    manifests = copy.deepcopy(manifests)
    for daemonset in of_kind(manifests, "DaemonSet"):
        pod = daemonset["spec"]["template"]["spec"]
        pod["volumes"].sort(key=itemgetter("name"))
        for container in pod["containers"]:
            container["volumeMounts"].sort(key=itemgetter("mountPath"))
            container.get("env", []).sort(key=itemgetter("name"))
    return manifests


def test_the_chart_has_values_for_each_installation() -> None:
    missing = {*kustomize.INSTALLATIONS} - VALUES.keys() - {"overlays/kind"}
    assert not missing, f"enter its values of the chart in VALUES: {sorted(missing)}"


CONFIG_MAPS = ("nodeagent", "nodeagent-features", "nodeagent-controller", "nodeagent-controller-features")


def settings(manifests: list[Manifest]) -> tuple[Config, FabricConfig]:
    """The configurations. The chart leaves the addresses of ``attach`` to ``config``, and names an output in place of
    the setting that switches it on."""
    agent, fabric = configurations(manifests)
    slurm, groups = (replace(one, enabled=False) for one in (fabric.slurm, fabric.node_feature_groups))
    return (
        replace(agent, attach=replace(agent.attach, addresses=None)),
        replace(fabric, slurm=slurm, node_feature_groups=groups),
    )


@one_item("installation", VALUES)
def test_helm_renders_the_objects_that_kustomize_builds(installation: str) -> None:
    """The chart has the settings of a component in the main file, and kustomize beside it."""
    made, wanted = render(VALUES[installation]), built(installation)
    if installation in MARKS_NODES:
        wanted = [one for one in wanted if not OWN_NODE.search(key(one)[3])]
        made = [one for one in made if "node-conditions" not in key(one)[3]]
    elif installation.startswith("components"):
        assert settings(made) == settings(wanted)
    if installation.startswith(("components", "examples/cluster")):
        made, wanted = (
            [one for one in every if one["kind"] != "ConfigMap" or key(one)[3] not in CONFIG_MAPS]
            for every in (made, wanted)
        )
    assert all(checksums(made).values())
    assert by_key(sorted_mounts(made)) == by_key(sorted_mounts(wanted))


def test_all_further_rights_together_mount_nothing_twice() -> None:
    parts = (
        "gpuProcesses",
        "gpuMemoryLimits",
        "mig",
        "migClaims",
        "optics",
        "nvSentinel",
        "gpuLabels",
        "infiniband",
    )
    values = {part: {"enabled": True} for part in (*parts, "dra")}
    values["config"] = HEADER | {"resources": [{"kind": "mig", "mode": "dra"}]}
    (daemonset,) = of_kind(render(values), "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    capabilities = container["securityContext"]["capabilities"]["add"]
    assert sorted(capabilities) == ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]
    for names in (
        [volume["name"] for volume in pod["volumes"]],
        [mount["mountPath"] for mount in container["volumeMounts"]],
        [variable["name"] for variable in container["env"]],
    ):
        assert len(set(names)) == len(names)
    assert {mount["name"] for mount in container["volumeMounts"]} <= {one["name"] for one in pod["volumes"]}


def test_the_affinity_of_the_controller_can_be_replaced() -> None:
    (standard,) = of_kind(render({"controller": {"enabled": True}}), "Deployment")
    assert standard["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "control-plane", "operator": "Exists"}]}]}}}  # fmt: skip
    values = {"controller": {"enabled": True, "affinity": {"podAntiAffinity": None, **own}}}
    (placed,) = of_kind(render(values), "Deployment")
    terms = placed["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert (
        terms["requiredDuringSchedulingIgnoredDuringExecution"]
        == own["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    )


# helm test


def doctor_pods(**values: Any) -> list[Manifest]:
    return [one for one in render_all(values) if hook(one) == "test"]


def test_the_test_runs_the_doctor_with_the_folders_and_rights_of_the_agent() -> None:
    parts = {"gpuProcesses": {"enabled": True}, "optics": {"enabled": True}}
    values: dict[str, Any] = {
        **parts,
        "agent": {"webSecret": "web-tls", "extraEnv": [{"name": "A", "value": "b"}]},
        "imagePullSecrets": [{"name": "pull"}],
        "image": {"repository": "registry.example/nodeagent", "digest": f"sha256:{'a' * 64}"},
    }
    (pod,) = doctor_pods(**values)
    (daemonset,) = of_kind(render(values), "DaemonSet")
    agent, spec = daemonset["spec"]["template"]["spec"], pod["spec"]
    (container,), (daemon,) = spec["containers"], agent["containers"]
    assert container["args"] == ["doctor"]
    left_out = {"startupProbe", "livenessProbe", "readinessProbe", "ports"}
    assert container == {key: one for key, one in daemon.items() if key not in left_out} | {
        "name": "doctor",
        "args": ["doctor"],
    }
    assert spec["restartPolicy"] == "Never"
    assert {key: one for key, one in spec.items() if key not in ("containers", "restartPolicy")} == {
        key: one for key, one in agent.items() if key not in ("containers", "initContainers")
    }
    assert not complaints(pod, NEWEST)


def test_the_daemonset_does_not_adopt_the_pod_of_the_test() -> None:
    pools = {name: {"nodeSelector": {"pool": name}, "config": HEADER} for name in ("a", "b")}
    for values in ({}, {"pools": pools}):
        selectors = [one["spec"]["selector"]["matchLabels"] for one in of_kind(render(values), "DaemonSet")]
        pods = doctor_pods(**values)
        assert len(pods) == len(selectors)
        for pod in pods:
            assert not [one for one in selectors if one.items() <= pod["metadata"]["labels"].items()]


def test_each_pool_has_a_test_on_its_nodes_with_its_configuration() -> None:
    pools = {name: {"nodeSelector": {"pool": name}, "config": HEADER} for name in ("a", "b")}
    found = {one["metadata"]["name"]: one["spec"] for one in doctor_pods(pools=pools)}
    assert found.keys() == {"nodeagent-doctor-a", "nodeagent-doctor-b"}
    for name in pools:
        spec = found[f"nodeagent-doctor-{name}"]
        assert spec["nodeSelector"]["pool"] == name
        assert {"name": "config", "configMap": {"name": f"nodeagent-{name}"}} in spec["volumes"]


# The README and Chart.yaml


def test_the_readme_has_a_meaning_for_each_value() -> None:
    listed = list(chart_readme.rows((CHART / "values.yaml").read_text()))
    assert {"`image.digest`", "`nvSentinel.audience`", "`agent.affinity`"} <= {name for name, _, _ in listed}
    without = [name for name, _, text in listed if not text and not name.endswith("enabled`")]
    assert not without, "write a comment above each of these values"


def test_a_comment_belongs_to_the_key_below_it_and_examples_stay_in_the_file() -> None:
    part = "# A part:\n#   x: 1\n# with a | in it.\npart:\n"
    text = f"# Of all.\n\n{part}  # On.\n  used: true\n  affinity: {{a: {{b: c}}}}\n"
    assert list(chart_readme.rows(text)) == [
        ("`part`", "", "A part: (see values.yaml) with a \\| in it."),
        ("`part.used`", "`true`", "On."),
        ("`part.affinity`", '`{"a": {"b": "c"}}`', ""),
    ]


def test_the_chart_describes_itself() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["keywords"]
    assert about["maintainers"]
    kind, _, data = about["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")
    notes = about["annotations"]
    assert all(isinstance(text, str) for text in notes.values())
    (crd,) = yaml.safe_load(notes["artifacthub.io/crds"])
    definition = named(built(), "CustomResourceDefinition", crd["name"])["spec"]
    assert crd["kind"] == definition["names"]["kind"]
    assert crd["version"] in {one["name"] for one in definition["versions"]}


# What a changed configuration restarts

HEADER = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig"}
VFS = {"vfs": [{"select": {"pciAddresses": ["0000:18:00.0"]}, "count": 8}]}


def checksum(**values: Any) -> str:
    return checksums(render(values))["nodeagent"]


@pytest.mark.parametrize(
    "setting",
    [
        VFS,
        {"listen": ":9999"},
        {"cluster": {"conditions": True}},
        {"health": {"stateDirectory": "/srv/state"}},
    ],
)
def test_a_setting_that_pods_read_at_their_start_restarts_them(setting: dict[str, Any]) -> None:
    assert checksum(config=HEADER | setting) != checksum(config=HEADER)


@pytest.mark.parametrize(
    "setting",
    [
        {"resourcePrefix": "x"},
        {"resources": [{"kind": "gpu", "select": {"indexes": [0]}}]},
        {"health": {"unused": ["eth0"]}},
        {"log": {"level": "debug"}},
    ],
)
def test_a_setting_that_running_agents_apply_restarts_none(setting: dict[str, Any]) -> None:
    assert checksum(config=HEADER | VFS | setting) == checksum(config=HEADER | VFS)
    assert checksum(config=HEADER, controller={"enabled": True}) == checksum(config=HEADER)


def test_text_and_map_of_one_configuration_have_one_checksum() -> None:
    assert checksum(config="# a comment\n" + yaml.safe_dump(HEADER | VFS)) == checksum(config=HEADER | VFS)
    assert checksum() == checksum(config=text("base/node/nodeagent.yaml"))


def test_each_pool_has_its_own_checksum() -> None:
    pools = {
        name: {"nodeSelector": {"pool": name}, "config": HEADER | more}
        for name, more in (("plain", {}), ("vfs", VFS))
    }
    found = checksums(render({"pools": pools}))
    assert found["nodeagent-plain"] == checksum(config=HEADER) != found["nodeagent-vfs"]


def test_a_configuration_that_is_no_yaml_is_refused_before_it_restarts_an_agent() -> None:
    import helm_python as helm

    with pytest.raises(helm.HelmError, match="the configuration of the agents is no YAML"):
        render({"config": "vfs: [}"})


@pytest.mark.parametrize(
    "config",
    [
        "apiVersion: nonsense",
        {"apiVersion": "nodeagent.io/v2"},
        "kind: NodeAgentConfig",
        HEADER | {"kind": "FabricConfig"},
    ],
)
def test_a_configuration_of_another_kind_or_version_is_refused_before_it_restarts_an_agent(
    config: Any,
) -> None:
    import helm_python as helm

    pool = {"nodeSelector": {"pool": "a"}, "config": config}
    for values in ({"config": config}, {"pools": {"a": pool}}):
        with pytest.raises(
            helm.HelmError,
            match=r"the configuration of the agents has (apiVersion|kind): .*, it must be |/config/(apiVersion|kind)'",
        ):
            render(values)


@pytest.mark.parametrize("fabric", ["apiVersion: nonsense", HEADER, "minLinks: [}"])
def test_a_configuration_of_another_kind_is_refused_before_it_restarts_a_controller(fabric: Any) -> None:
    import helm_python as helm

    with pytest.raises(
        helm.HelmError, match=r"the configuration of the controller (has|is no YAML)|/fabric/kind"
    ):
        render({"controller": {"enabled": True, "fabric": fabric}})
    render({"controller": {"enabled": False, "fabric": fabric}})


# Values


def test_a_map_for_a_configuration_causes_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """Helm warns if a value and its default are a map and something else."""
    fabric = HEADER | {"kind": "FabricConfig"}
    for values, of_controller in (
        ({"config": HEADER}, fabric),
        ({"config": yaml.safe_dump(HEADER)}, yaml.safe_dump(fabric)),
        ({}, None),
    ):
        render({**values, "controller": {"enabled": True, "fabric": of_controller}})
    assert capfd.readouterr().err == ""


def refused(values: dict[str, Any]) -> str:
    """Helm's message."""
    import helm_python as helm

    with helm.Chart.load(str(CHART)) as loaded, pytest.raises(helm.HelmError) as error:
        loaded.validate_schema(values)
    return str(error.value)


@pytest.mark.golden("daemonset/chart/values.schema.json")
def test_the_schema_has_the_definitions_of_the_configurations() -> None:
    golden.update(CHART / "values.schema.json", chart.values_schema)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"config": {"resourcPrefix": "x"}}, "resourcPrefix"),
        ({"config": {"rails": {"prob": True}}}, "prob"),
        ({"config": {"health": {"guard": {"share": "much"}}}}, "share"),
        ({"pools": {"a": {"nodeSelector": {"a": "b"}, "config": {"resourcPrefix": "x"}}}}, "resourcPrefix"),
        ({"config": {"resources": [{"kind": "vf", "select": {"vendors": [0o403]}}]}}, "vendors"),
        ({"controller": {"enabled": True, "fabric": {"label": {}}}}, "label"),
    ],
)
def test_a_setting_that_no_agent_knows_is_refused_with_its_name(values: dict[str, Any], names: str) -> None:
    assert names in refused(values)


def test_each_default_and_each_overlay_fits_the_schema() -> None:
    import helm_python as helm

    with helm.Chart.load(str(CHART)) as loaded:
        for values in (
            {"config": yaml.safe_load(default_file())},
            {"config": {"expect": {}, "resourcePrefix": 100}},
            {"config": {"resources": [{"kind": "vf", "select": {"vendors": ["0403", 8086]}}]}},
            {"controller": {"enabled": True, "fabric": to_builtins(FabricConfig(), str_keys=True)}},
            *VALUES.values(),
        ):
            as_maps = copy.deepcopy(values)
            for part, key in ((as_maps, "config"), (as_maps.get("controller", {}), "fabric")):
                if isinstance(part.get(key), str):
                    part[key] = yaml.safe_load(part[key])
            loaded.validate_schema(as_maps)


def test_a_map_needs_neither_kind_nor_version() -> None:
    pool = {"nodeSelector": {"a": "b"}, "config": {"listen": None}}
    for values, name in (
        ({"config": {"listen": None}}, "nodeagent"),
        ({"pools": {"a": pool}}, "nodeagent-a"),
    ):
        held = named(render(values), "ConfigMap", name)["data"]["nodeagent.yaml"]
        assert yaml.safe_load(held) == HEADER | {"listen": None}
    fabric = {"controller": {"enabled": True, "fabric": {"minLinks": 2}}}
    held = named(render(fabric), "ConfigMap", "nodeagent-controller")["data"]["fabric.yaml"]
    assert yaml.safe_load(held) == HEADER | {"kind": "FabricConfig", "minLinks": 2}


def test_the_configuration_may_be_a_map() -> None:
    config = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig", "listen": None}
    held = named(render({"config": config}), "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    assert yaml.safe_load(held) == config


def test_a_value_changes_its_field_and_nothing_else() -> None:
    values = {
        "image": {"repository": "registry.example/nodeagent", "tag": "9", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "agent": {
            "runtimeClassName": None,
            "podAnnotations": {"a": "b"},
            "maxUnavailable": 3,
            "affinity": None,
            "resources": {"limits": {"memory": "1Gi"}},
        },
        "controller": {"enabled": True, "replicas": 3, "metricsFrom": [], "tolerations": [{"key": "x"}]},
    }
    manifests = render(values)
    spec = named(manifests, "DaemonSet", "nodeagent")["spec"]
    pod = spec["template"]["spec"]
    assert {one["image"] for one in (*pod["initContainers"], *pod["containers"])} == {
        "registry.example/nodeagent:9"
    }
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert "runtimeClassName" not in pod
    assert "affinity" not in pod
    assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 3
    assert spec["template"]["metadata"]["annotations"]["a"] == "b"
    assert named(manifests, "Deployment", "nodeagent-controller")["spec"]["replicas"] == 3
    assert not [one for one in manifests if complaints(one, NEWEST)]
    changed = {"DaemonSet", "Deployment", "NetworkPolicy"}
    rest = [one for one in manifests if one["kind"] not in changed]
    assert by_key(rest) == by_key([one for one in built("overlays/controller") if one["kind"] not in changed])


@pytest.mark.parametrize(
    "part", ["jobs", "rails", "kueue", "marks", "startupTaint", "slurm", "nodeFeatureGroups"]
)
def test_a_part_of_the_controller_is_refused_without_the_controller(part: str) -> None:
    import helm_python as helm

    with pytest.raises(helm.HelmError, match=rf"{part}\.enabled needs the controller"):
        render({part: {"enabled": True}})
    assert render({part: {"enabled": True}, "controller": {"enabled": True, "fabric": MARKING}} | HOLDERS)


FABRIC = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "FabricConfig"}
PROBE = {"rails": {"probe": True}}
MARKING = FABRIC | PROBE | {"minLinks": 1, "nodes": {"minLinksTaint": True}}
HOLDERS = {"config": HEADER | PROBE | {"cluster": {"reportHolders": True}}}


def fabric_of(values: dict[str, Any], fabric: Any = None) -> FabricConfig:
    """The configuration that the controller of a release reads."""
    controller = {"controller": {"enabled": True, "fabric": fabric}}
    held = named(render(values | controller), "ConfigMap", "nodeagent-controller")["data"]["fabric.yaml"]
    return load_fabric(held, name="fabric.yaml")


@pytest.mark.parametrize("fabric", [None, FABRIC, yaml.safe_dump(FABRIC)])
def test_one_value_enables_a_part_of_the_controller(fabric: Any) -> None:
    slurm = fabric_of({"slurm": {"enabled": True}}, fabric)
    assert (slurm.outputs, slurm.slurm.namespace) == (("hypernodes", "labels", "slurm"), "slurm")
    groups = fabric_of({"nodeFeatureGroups": {"enabled": True, "namespace": "nfd"}}, fabric)
    assert groups.outputs == ("hypernodes", "labels", "nodefeaturegroups")
    assert groups.node_feature_groups.namespace == "nfd"
    assert fabric_of({"jobs": {"enabled": True}, **HOLDERS}, fabric).jobs
    assert fabric_of({"startupTaint": {"enabled": True}}, fabric).nodes.startup_taint
    every = {part: {"enabled": True} for part in ("slurm", "nodeFeatureGroups", "jobs", "startupTaint")}
    both = fabric_of(every | HOLDERS, fabric)
    assert both.outputs == ("hypernodes", "labels", "slurm", "nodefeaturegroups")
    assert (both.jobs, both.nodes.startup_taint) == (True, True)


def test_what_the_configuration_says_stays_beside_what_a_part_adds() -> None:
    own = FABRIC | {
        "outputs": ["labels"],
        "slurm": {"format": "block"},
        "nodes": {"taintPercent": 7},
        "fabric": "x",
    }
    made = fabric_of({"slurm": {"enabled": True, "namespace": "hpc"}, "startupTaint": {"enabled": True}}, own)
    assert made.outputs == ("labels", "slurm")
    assert (made.slurm.format, made.slurm.namespace) == ("block", "hpc")
    assert (made.nodes.taint_percent, made.nodes.startup_taint, made.fabric) == (7, True, "x")
    assert fabric_of({"slurm": {"enabled": True}}, FABRIC | {"outputs": []}).outputs == ("slurm",)


def test_a_configuration_that_has_its_line_is_written_as_it_is() -> None:
    text = "# ours\n" + yaml.safe_dump(FABRIC | {"outputs": ["slurm"], "slurm": {"namespace": "hpc"}})
    values = {"controller": {"enabled": True, "fabric": text}, "slurm": {"enabled": True, "namespace": "hpc"}}
    held = named(render(values), "ConfigMap", "nodeagent-controller")["data"]["fabric.yaml"]
    assert held.rstrip() == text.rstrip()


@pytest.mark.parametrize(
    ("values", "fabric", "words"),
    [
        ({"slurm": {"enabled": True}}, {"slurm": {"namespace": "hpc"}},
         ('slurm.namespace is "slurm"', '"hpc"', "leave it out")),
        ({"nodeFeatureGroups": {"enabled": True, "namespace": "a"}}, {"nodeFeatureGroups": {"namespace": "b"}},
         ('nodeFeatureGroups.namespace is "a"', '"b"')),
        ({"jobs": {"enabled": True}, **HOLDERS}, {"jobs": False},
         ("jobs.enabled is true", "jobs: false")),
        ({"startupTaint": {"enabled": True}}, {"nodes": {"startupTaint": False}}, ("nodes.startupTaint: false",)),
        ({"marks": {"enabled": True}}, {"nodes": {"minLinksCondition": False, "minLinksTaint": False}},
         ("marks.enabled needs minLinks",)),
        ({"jobs": {"enabled": True}, "config": HEADER | {"cluster": {"reportHolders": False}}}, {},
         ("jobs.enabled needs cluster.reportHolders: true",)),
        ({"rails": {"enabled": True}, "config": HEADER | {"rails": {"probe": False}}}, PROBE,
         ("rails.enabled needs rails.probe: true in config",)),
        ({"rails": {"enabled": True}, "config": HEADER | PROBE}, {"rails": {"probe": False}},
         ("rails.enabled needs rails.probe: true in controller.fabric",)),
        ({"kueue": {"enabled": True}}, {"labels": {"keys": ["example.com/rack-{tier}"]}},
         ("kueue.enabled needs the label key topology.nodeagent.io/tier-{tier}", "labels.keys")),
        ({"kueue": {"enabled": True}}, {"outputs": ["hypernodes"]}, ("kueue.enabled needs labels in outputs",)),
        ({"jobs": {"enabled": True}, "pools": {"a": {"nodeSelector": {"a": "b"},
          "config": HEADER | {"cluster": {"reportHolders": False}}}}}, {},
         ("jobs.enabled needs cluster.reportHolders: true",)),
    ],
)  # fmt: skip
def test_a_part_that_would_do_nothing_is_refused_with_the_remedy(
    values: dict[str, Any], fabric: dict[str, Any], words: tuple[str, ...]
) -> None:
    import helm_python as helm

    with pytest.raises(helm.HelmError) as refused:
        fabric_of(values, FABRIC | fabric)
    assert [word for word in words if word not in str(refused.value)] == []


def resource(**settings: Any) -> dict[str, Any]:
    return {"resources": [{"kind": "vf"}, {"kind": "gpu-mem", **settings}]}


USING = [
    ("nodeConditions", {"cluster": {"conditions": True}}),
    ("nodeConditions", {"cluster": {"label": True}}),
    ("nodeConditions", {"cluster": {"gpuMemEnforcement": True}}),
    ("nodeConditions", {"cluster": {"taint": {"enabled": True}}}),
    ("nodeConditions", {"cluster": {"gpuMemLargest": {"enabled": True}}}),
    ("nodeConditions", {"cluster": {"evict": {"enabled": True, "taint": True}}}),
    ("nodeConditions", resource(volcano=True)),
    ("evictions", {"cluster": {"evict": {"enabled": True}}}),
    ("evictions", resource(enforcement="evict")),
    ("dra", resource(mode="dra")),
    ("mps", resource(enforcement="mps")),
    ("attach", {"attach": {"interface": "rail{rail}"}}),
    ("migClaims", {"resources": [{"kind": "mig", "mode": "dra"}]}),
    ("volcanoDeviceshare", resource(volcano=True)),
]


@pytest.mark.parametrize(("value", "settings"), USING)
def test_a_part_that_only_the_configuration_of_agents_uses_brings_its_settings(
    value: str, settings: dict[str, Any]
) -> None:
    """Where no configuration uses it. One that does stays as it is, and so do those of other pools then."""
    needed = {"nodeConditions": "volcanoDeviceshare", "dra": "migClaims"}
    on = {part: {"enabled": value == user} for part, user in needed.items()} | {value: {"enabled": True}}
    pool = {"nodeSelector": {"a": "b"}}
    unused = HEADER | resource() | {"cluster": {"evict": {"taint": False}, "taint": {"railsDown": 3}}}
    own = (CHART / "files" / "nodeagent.yaml").read_text()
    for name, text, values in (
        ("", own, {}),
        ("", yaml.safe_dump(unused), {"config": unused}),
        ("", yaml.safe_dump(unused), {"config": yaml.safe_dump(unused)}),
        ("-a", yaml.safe_dump(unused),
         {"config": HEADER | settings, "pools": {"a": pool | {"config": unused}}}),
    ):  # fmt: skip
        held = named(render(on | values), "ConfigMap", f"nodeagent{name}")["data"]["nodeagent.yaml"]
        before, after = load_agent(text, name="given"), load_agent(held, name="chart")
        assert before != after
        assert (after.cluster.taint.rails_down == 3) is bool(values)
    config = HEADER | settings
    both = {"a": pool | {"config": unused}, "b": pool | {"config": config}}
    if on.keys() & needed.keys() and any(on[part]["enabled"] for part in on.keys() & needed.keys() - {value}):
        return  # the other part brings its own
    for values in ({"config": config}, {"config": yaml.safe_dump(config)}, {"pools": both}):
        made = render(on | values)
        for name, given in {"-a": unused, "-b": config}.items() if "pools" in values else (("", config),):
            held = named(made, "ConfigMap", f"nodeagent{name}")["data"]["nodeagent.yaml"]
            assert yaml.safe_load(held) == given


def test_what_a_configuration_says_stays_beside_what_a_part_brings() -> None:
    given = HEADER | {"cluster": {"taint": {"railsDown": 4}}, "gpu": {"mps": {"clients": 2}}}
    on = {"nodeConditions": {"enabled": True}, "mps": {"enabled": True}, "observe": {"enabled": False}}
    held = named(render(on | {"config": given}), "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    config = load_agent(held, name="chart")
    assert (config.cluster.taint.enabled, config.cluster.taint.rails_down) == (True, 4)
    assert (config.offer.enforcement, config.gpu.mps.clients) == ("mps", 2)


def test_evictions_mark_no_node_without_the_right() -> None:
    def evict(**on: Any) -> Any:
        text = named(render({"evictions": {"enabled": True}, **on}), "ConfigMap", "nodeagent")["data"]
        return load_agent(text["nodeagent.yaml"], name="chart").cluster.evict

    assert (evict().enabled, evict().taint) == (True, False)
    assert evict(nodeConditions={"enabled": True}).taint


def test_agents_that_only_observe_offer_nothing_unless_a_configuration_says_so() -> None:
    on = {"observe": {"enabled": True}}
    text = named(render(on), "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    assert load_agent(text, name="chart").resources == ()
    text = named(render(on | {"config": HEADER}), "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    assert load_agent(text, name="chart").resources


def test_the_holders_of_one_pool_are_enough_for_jobs() -> None:
    pools = {
        "a": {"nodeSelector": {"p": "a"}, "config": HEADER},
        "b": {"nodeSelector": {"p": "b"}, **HOLDERS},
    }
    assert fabric_of({"jobs": {"enabled": True}, "pools": pools}).jobs


@pytest.mark.parametrize("name", ["theirs", "0123", "yes"])
def test_the_objects_of_other_programs_are_in_the_namespaces_of_the_values(name: str) -> None:
    on = {part: {"enabled": True, "namespace": name} for part in ("slurm", "nodeFeatureGroups")}
    manifests = render({"controller": {"enabled": True}, **on})
    theirs = [one for one in manifests if one["metadata"].get("namespace") == name]
    assert sorted(one["kind"] for one in theirs) == ["Role", "Role", "RoleBinding", "RoleBinding"]


def test_pods_get_the_labels_environment_and_volumes_of_the_values() -> None:
    digest = f"sha256:{'a' * 64}"
    extra = {
        "podLabels": {"team": "hpc"},
        "nodeSelector": {"zone": "a"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    }
    plain = render({"controller": {"enabled": True}})
    changed = render({"agent": extra, "controller": {"enabled": True, **extra}, "image": {"digest": digest}})
    for kind, name in (("DaemonSet", "nodeagent"), ("Deployment", "nodeagent-controller")):
        before = named(plain, kind, name)["spec"]["template"]
        after = named(changed, kind, name)["spec"]["template"]
        assert after["metadata"]["labels"] == {**before["metadata"]["labels"], "team": "hpc"}
        assert after["spec"]["nodeSelector"] == {**before["spec"].get("nodeSelector", {}), "zone": "a"}
        assert after["spec"]["volumes"] == [*before["spec"].get("volumes", []), *extra["extraVolumes"]]
        (old,), (new,) = before["spec"]["containers"], after["spec"]["containers"]
        assert new["env"] == [*old.get("env", []), *extra["extraEnv"]]
        assert new["volumeMounts"] == [*old.get("volumeMounts", []), *extra["extraVolumeMounts"]]
        assert new["image"] == f"nodeagent@{digest}"
    assert not [manifest for manifest in changed if complaints(manifest, NEWEST)]


@pytest.mark.parametrize(
    ("root", "mounted"),
    [
        ("/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/nvidia"),
        ("/opt/nvidia/", "/opt/nvidia"),
        ("/usr/local/glibc", None),
        ("/run/nvidia/driver", None),
        ("/usrlocal", "/usrlocal"),
        (None, None),
    ],
)
def test_the_folder_of_the_driver_in_the_configuration_is_mounted(
    root: str | None, mounted: str | None
) -> None:
    """Below ``/host``, where the agent looks, unless a folder above is mounted. As a map, as text, and of a pool."""
    settings = {"gpu": {"driverRoot": root}} if root else {}
    written = yaml.safe_dump({"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig", **settings})
    for values in (
        {"config": settings},
        {"config": written},
        {"pools": {"gke": {"nodeSelector": {"a": "b"}, "config": settings}}},
    ):
        found = render_all(values)
        agents = [one for one in found if one["kind"] == "DaemonSet"]
        doctors = [one for one in found if hook(one) and one["kind"] == "Pod"]
        assert agents
        assert doctors
        for pod in (*(one["spec"]["template"]["spec"] for one in agents), *(one["spec"] for one in doctors)):
            volumes = {one["name"]: one.get("hostPath") for one in pod["volumes"]}
            (container,) = pod["containers"]
            mounts = {one["name"]: one for one in container["volumeMounts"]}
            assert ("driver-root" in volumes) is ("driver-root" in mounts) is (mounted is not None)
            if mounted is not None:
                assert volumes["driver-root"] == {"path": mounted, "type": "Directory"}
                assert mounts["driver-root"]["mountPath"] == f"/host{mounted}"
                assert mounts["driver-root"]["readOnly"] is True


def test_the_links_of_alerts_lead_to_the_runbook_of_the_values() -> None:
    address = "https://git.example/nodeagent/blob/v0.2.0/docs/runbook.md"
    manifests = render(
        {"monitoring": {"enabled": True, "runbookUrl": address, "mapUrl": "https://map.example/"}}
    )
    links = re.findall(r'"runbook_url": "([^"]+)"', json.dumps(manifests))
    assert len(links) > 20
    assert all(link.startswith(f"{address}#node") for link in links)
    places = set(re.findall(r'"map_url": "([^"]+)"', json.dumps(manifests)))
    assert places == {
        "https://map.example/ui/#at=node:{{ $labels.instance }}",
        "https://map.example/ui/#at=hypernode:{{ $labels.hypernode }}",
    }


def test_without_addresses_no_annotation_looks_like_a_link() -> None:
    manifests = render({"monitoring": {"enabled": True}})
    for rule in (one for part in of_kind(manifests, "PrometheusRule") for one in alerts(part)):
        assert {*rule["annotations"]} - {"map"} == {"summary", "description", "runbook"}
    plain = yaml.safe_load((DAEMONSET / "monitoring" / "prometheusrule.yaml").read_text())
    assert not {key for rule in alerts(plain) for key in rule["annotations"] if key.endswith("_url")}


def alerts(rule: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]


def test_the_objects_of_monitoring_are_where_a_prometheus_looks_for_them_and_find_the_pods() -> None:
    values = {"enabled": True, "labels": {"release": "kps"}, "namespace": "monitoring"}
    manifests = render({"controller": {"enabled": True}, "monitoring": values}, "gpu-system")
    found = of_kind(manifests, "PodMonitor") + of_kind(manifests, "PrometheusRule")
    assert len(found) == 3
    for one in found:
        assert one["metadata"]["namespace"] == "monitoring"
        assert one["metadata"]["labels"]["release"] == "kps"
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "nodeagent"
    for one in of_kind(manifests, "PodMonitor"):
        assert one["spec"]["namespaceSelector"] == {"matchNames": ["gpu-system"]}
    (default,) = of_kind(render({"monitoring": {"enabled": True}}, "gpu-system"), "PrometheusRule")
    assert default["metadata"]["namespace"] == "gpu-system"
    assert "release" not in default["metadata"]["labels"]


@pytest.mark.parametrize(
    "wrong", [{"runbookUrl": "docs/runbook.md"}, {"mapUrl": "map"}, {"namespace": "A b"}, {"runbook": "x"}]
)
def test_a_value_of_monitoring_that_cannot_work_is_refused(wrong: dict[str, str]) -> None:
    import helm_python as helm

    with pytest.raises(helm.HelmError, match=f"/monitoring|{next(iter(wrong))}"):
        render({"monitoring": {"enabled": True, **wrong}})


def test_another_namespace_is_used_in_every_object() -> None:
    on = ("nodeConditions", "marks", "startupTaint", "jobs", "slurm", "nodeFeatureGroups")
    parts = {one: {"enabled": True} for one in on}
    config = {"config": HEADER | {"cluster": {"reportHolders": True, "conditions": True}}}
    manifests = render(parts | config | {"controller": {"enabled": True, "fabric": MARKING}}, "gpu-system")
    text = json.dumps(manifests)
    assert '"namespace": "nodeagent"' not in text
    assert "serviceaccount:nodeagent:" not in text
    (one,) = of_kind(manifests, "Namespace")
    assert one["metadata"]["name"] == "gpu-system"
    subjects = [
        subject["namespace"]
        for one in manifests
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in one["subjects"]
    ]
    assert set(subjects) == {"gpu-system"}


def test_the_kustomization_for_another_namespace_equals_the_chart(tmp_path: Path) -> None:
    """The page of the manifests shows what a kustomization needs for it."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DAEMONSET / "README.md").read_text(), re.S)
    (block,) = (one for one in blocks if "replacements:" in one)
    place = os.path.relpath(DAEMONSET, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{place}/overlays/controller]\ncomponents: [{place}/components/node-conditions]\n{block}"
    )
    values = VALUES["overlays/controller"] | VALUES["components/node-conditions"]
    made = render(values, yaml.safe_load(block)["namespace"])
    checksums(made)
    found = parsed(rendered(tmp_path))
    for one in (*found, *made):
        if one["kind"].startswith("ValidatingAdmissionPolicy"):
            # kustomize gives them a namespace although they have none; the API server drops it.
            one["metadata"].pop("namespace", None)
    found, made = ([one for one in every if one["kind"] != "ConfigMap"] for every in (found, made))
    assert by_key(found) == by_key(made)


def test_a_kubelet_with_another_root_has_its_folders_in_each_pod() -> None:
    root, plugins = "/var/lib/k0s/kubelet", "/var/lib/kubelet/device-plugins"
    values: dict[str, Any] = {"kubelet": {"rootDir": root}, "mig": {"enabled": True}}
    (daemonset,) = of_kind(render(values), "DaemonSet")
    check_folders(daemonset, root)
    (pod,) = doctor_pods(**values)
    text = json.dumps(pod)
    assert text.count(f'"{root}/pod-resources"') == 2, "host and container"
    assert text.count(f'"{plugins}"') == 3, "and the environment"


@pytest.mark.parametrize(
    "values",
    [
        {"imgae": {}},
        {"agent": {"runtimeClass": "nvidia"}},
        {"pools": {"Big": {"nodeSelector": {"a": "b"}, "config": ""}}},
        {"pools": {"big": {"config": ""}}},
        {"slurm": {"enabled": True, "namespace": "A b"}},
        {"slurm": {"enabled": True, "namespace": None}},
        {"nodeFeatureGroups": {"enabled": True, "namespace": "a: b"}},
    ],
)
def test_an_unknown_value_is_refused(values: dict[str, Any]) -> None:
    import helm_python as helm

    with helm.Chart.load(str(CHART)) as loaded, pytest.raises(helm.HelmError):
        loaded.validate_schema(values)


# The definition of NodeLinks


async def rendered_with_cluster(kubeconfig: Path, **values: Any) -> dict[str, str]:
    """Render as `helm install nodeagent` does, with the objects of the cluster."""
    import helm_python as helm

    def work() -> dict[str, str]:
        with helm.Chart.load(str(CHART)) as loaded, helm.Config(kubeconfig_path=kubeconfig) as access:
            return access.render(loaded, values, name="nodeagent", namespace="nodeagent")

    return await asyncio.to_thread(work)


def definition(**annotations: str) -> Manifest:
    found = copy.deepcopy(named(built(), "CustomResourceDefinition", "nodelinks.nodeagent.io"))
    found["metadata"]["annotations"] = annotations
    return found


OF_THE_RELEASE = {"meta.helm.sh/release-name": "nodeagent", "meta.helm.sh/release-namespace": "nodeagent"}


@pytest.mark.parametrize("owner", [{}, OF_THE_RELEASE | {"meta.helm.sh/release-name": "other"}])
async def test_a_definition_of_another_owner_is_refused_with_the_remedy(
    owner: dict[str, str], tmp_path: Path
) -> None:
    import helm_python as helm

    async with administered(tmp_path) as (server, kubeconfig):
        server.put(definition(**owner))
        with pytest.raises(helm.HelmError, match="belongs to another release or to none") as refused:
            await rendered_with_cluster(kubeconfig)
        for remedy in (
            "crds.install=false",
            "release-name=nodeagent meta.helm.sh/release-namespace=nodeagent",
        ):
            assert remedy in str(refused.value)
        await rendered_with_cluster(kubeconfig, crds={"install": False})


@pytest.mark.parametrize("there", [False, True])
async def test_the_definition_of_this_release_is_installed_and_upgraded(there: bool, tmp_path: Path) -> None:
    async with administered(tmp_path) as (server, kubeconfig):
        if there:
            server.put(definition(**OF_THE_RELEASE))
        made = await rendered_with_cluster(kubeconfig)
    assert "name: nodelinks.nodeagent.io" in made["nodeagent/templates/crd.yaml"]


def test_helm_lint_reports_nothing() -> None:
    import helm_python as helm

    assert helm.lint(str(CHART))["errors"] == []


def test_the_chart_has_the_version_of_the_package() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__


def test_the_chart_packs_into_an_archive_for_a_registry(tmp_path: Path) -> None:
    import helm_python as helm

    helm.package(str(CHART), destination=str(tmp_path))
    (archive,) = tmp_path.iterdir()
    assert archive.name == f"nodeagent-{__version__}.tgz"
    assert archive.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("part", "kind", "name"),
    [("agent", "DaemonSet", "nodeagent"), ("controller", "Deployment", "nodeagent-controller")],
)
def test_a_secret_for_the_web_server_is_mounted_and_the_probes_use_tls(
    part: str, kind: str, name: str
) -> None:
    plain = render({"controller": {"enabled": True}})
    values: dict[str, dict[str, Any]] = {"controller": {"enabled": True}}
    values.setdefault(part, {})["webSecret"] = "web-tls"
    secured = render(values)
    before, pod = (named(made, kind, name)["spec"]["template"]["spec"] for made in (plain, secured))
    (added,) = [volume for volume in pod["volumes"] if volume not in before["volumes"]]
    assert added == {"name": "web", "secret": {"defaultMode": 0o440, "secretName": "web-tls"}}
    (old,), (new,) = before["containers"], pod["containers"]
    (mount,) = [mount for mount in new["volumeMounts"] if mount not in old["volumeMounts"]]
    assert mount == {"mountPath": "/etc/nodeagent-web", "name": "web", "readOnly": True}
    probes = [key for key in new if key.endswith("Probe")]
    assert len(probes) >= 2
    for probe in probes:
        assert new[probe]["httpGet"] == old[probe]["httpGet"] | {"scheme": "HTTPS"}
    others = [one for one in secured if one["kind"] != kind]
    assert by_key(others) == by_key([one for one in plain if one["kind"] != kind])
    assert not [one for one in secured if complaints(one, NEWEST)]


@pytest.mark.parametrize(("part", "name"), [("agent", "nodeagent"), ("controller", "nodeagent-controller")])
def test_a_port_with_a_certificate_is_scraped_by_https(part: str, name: str) -> None:
    """By HTTP each scrape fails, and NodeAgentDown fires for every node."""
    (text,) = re.findall(r"#   agentEndpoint:\n((?:  #     .*\n)+)", (CHART / "values.yaml").read_text())
    more = yaml.safe_load(text.replace("  #     ", ""))
    assert more.keys() == {"tlsConfig", "authorization"}
    values: dict[str, dict[str, Any]] = {"controller": {"enabled": True}, "monitoring": {"enabled": True}}
    (plain,) = named(render(values), "PodMonitor", name)["spec"]["podMetricsEndpoints"]
    assert "scheme" not in plain
    values.setdefault(part, {})["webSecret"] = "web-tls"
    values["monitoring"][f"{part}Endpoint"] = more
    secured = render(values)
    (endpoint,) = named(secured, "PodMonitor", name)["spec"]["podMetricsEndpoints"]
    assert endpoint == plain | {"scheme": "https"} | more
    others = [one for one in secured if one["kind"] == "PodMonitor" and one["metadata"]["name"] != name]
    assert [one["spec"]["podMetricsEndpoints"][0].get("scheme") for one in others] == [None]


@pytest.mark.parametrize(("part", "name"), [("agent", "nodeagent"), ("controller", "nodeagent-controller")])
def test_a_field_of_an_endpoint_that_the_chart_writes_is_refused(part: str, name: str) -> None:
    """The PodMonitor would have it twice, and which of both counts depends on the reader."""
    import helm_python as helm

    values: dict[str, dict[str, Any]] = {"controller": {"enabled": True}, "monitoring": {"enabled": True}}
    values.setdefault(part, {})["webSecret"] = "web-tls"
    (endpoint,) = named(render(values), "PodMonitor", name)["spec"]["podMetricsEndpoints"]
    for field, value in endpoint.items():
        values["monitoring"][f"{part}Endpoint"] = {field: value}
        with pytest.raises(helm.HelmError, match=rf"at '/monitoring/{part}Endpoint/{field}': "):
            render(values)


def test_the_web_of_the_values_is_a_configuration_that_both_accept() -> None:
    """The comment on `webSecret` shows what the configurations must have."""
    shown = re.findall(r"#\s+(web: \{certificateFile: .*\})", (CHART / "values.yaml").read_text())
    (web,) = shown
    agent = load_agent(f"apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n{web}\n", name="values")
    assert agent.web.certificate_file == "/etc/nodeagent-web/tls.crt"
    fabric = load_fabric(f"apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n{web}\n", name="values")
    assert fabric.web.key_file == "/etc/nodeagent-web/tls.key"
