"""Features combine: each component with its settings, rights and policy, every pair of them, and all together.

The matrix is ``make features``.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.features import BASES
from nodeagent.agent_config import Config, load
from nodeagent.cli import main
from nodeagent.commands.feature_table import FEATURES, WITH_CONTROLLER, Feature, reason_apart
from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import FabricConfig, load_fabric
from tests.daemonset import test_chart as chart
from tests.daemonset.test_admission import AGENT, FORGED, event, report, write
from tests.support.admission import refusals
from tests.support.kubernetes_schemas import NEWEST, complaints
from tests.support.manifests import (
    DAEMONSET,
    OVERLAYS,
    ROOT,
    Manifest,
    by_key,
    configurations,
    named,
    parsed,
    pod_specs,
)
from tests.support.manifests import rendered as folder_rendered
from tests.support.needs import which

pytestmark = [
    pytest.mark.needs("kubectl", "kubernetes_validate", "cel_expr_python"),
    pytest.mark.slow,
]

COMPONENTS = sorted(path.name for path in (DAEMONSET / "components").iterdir())
ROWS = {row.name: row for row in FEATURES}
WITHOUT_CLAIMS, CLAIMS = ("volcano-deviceshare", "mig"), ("dra", "gpu-mps", "mig-claims")
EVERY = {
    "with claims": [one for one in COMPONENTS if one not in WITHOUT_CLAIMS],
    "without claims": [one for one in COMPONENTS if one not in CLAIMS],
}
"""Sets in which no feature can be added."""


def test_each_component_is_a_row_of_the_table_and_a_file_by_its_own_name() -> None:
    assert sorted(ROWS) == COMPONENTS
    for path in (DAEMONSET / "components").glob("*/kustomization.yaml"):
        written = yaml.safe_load(path.read_text())
        assert written["kind"] == "Component"
        files = [file for one in written.get("configMapGenerator", ()) for file in one["files"]]
        assert {file.partition("=")[0] for file in files} <= {f"{path.parent.name}.yaml"}
        assert len(files) == len([*path.parent.glob("nodeagent.yaml"), *path.parent.glob("fabric.yaml")])


def rendered(names: Iterable[str], base: str = WITH_CONTROLLER) -> list[Manifest]:
    from hack.features import render

    return parsed(render(names, which("kubectl") or "kubectl", base))


@pytest.fixture(scope="module")
def plain() -> list[Manifest]:
    return rendered(())


def test_without_a_component_no_feature_is_on(plain: list[Manifest]) -> None:
    agent, controller = configurations(plain)
    assert not any(row.agent(agent) for row in FEATURES if row.agent)
    assert not any(row.controller(controller) for row in FEATURES if row.controller)


def check(
    names: Iterable[str],
    manifests: list[Manifest],
    known: set[str],
    read: Callable[[list[Manifest]], tuple[Config, FabricConfig]] = configurations,
) -> None:
    """Schemas, configurations and policies of what is rendered. ``known``: objects that were valid before."""
    by_key(manifests)  # no two objects of one name
    for one in manifests:
        # An API server refuses to change the role of a binding, so another component must not rename it.
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert one["roleRef"]["name"] == one["metadata"]["name"]
        if one["kind"] == "ValidatingAdmissionPolicyBinding":
            assert one["spec"]["policyName"] == one["metadata"]["name"]
    for one in manifests:
        text = yaml.dump(one, Dumper=yaml.CSafeDumper)
        if text not in known:
            assert complaints(one, NEWEST) == [], f"{one['kind']} {one['metadata']['name']}"
            known.add(text)
    agent, controller = read(manifests)
    for row in map(ROWS.__getitem__, names):
        assert row.agent is None or row.agent(agent), f"the agent has {row.name} off"
        assert row.controller is None or row.controller(controller), f"the controller has {row.name} off"
    assert refusals(manifests, write(report())) == []
    assert refusals(manifests, event()) == []
    forged, message = FORGED["another node"] if "another node" in FORGED else next(iter(FORGED.values()))
    assert any(message in one for one in refusals(manifests, forged))
    assert forged.user == AGENT


@pytest.fixture(scope="module")
def known() -> set[str]:
    return set()


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_pair_of_features_is_on_or_names_why_it_cannot_be(name: str, known: set[str]) -> None:
    for other in COMPONENTS[COMPONENTS.index(name) :]:
        names = sorted({name, other})
        reason = reason_apart(name, other)
        manifests = rendered(names)
        if reason:
            with pytest.raises(ConfigError, match=r"set twice|Volcano|volcano"):
                configurations(manifests)
        else:
            check(names, manifests, known)


@pytest.mark.parametrize("names", EVERY.values(), ids=EVERY)
def test_all_features_together_in_any_order(names: list[str], known: set[str]) -> None:
    first = rendered(names)
    check(names, first, known)
    again = rendered(reversed(names))
    assert configurations(again) == configurations(first)
    assert by_key(again).keys() == by_key(first).keys()
    (pod,), (turned,) = (pod_specs(named(one, "DaemonSet", "nodeagent")) for one in (first, again))
    assert as_sets(pod) == as_sets(turned)


def as_sets(value: Any) -> Any:
    """Lists in one order; what stands twice counts once."""
    if isinstance(value, dict):
        return {key: as_sets(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted({repr(as_sets(item)) for item in value})
    return value


@pytest.mark.parametrize(
    "row", [row for row in FEATURES if not row.beside.startswith("overlays")], ids=lambda row: row.name
)
def test_a_feature_of_the_agents_needs_no_controller(row: Feature, known: set[str]) -> None:
    manifests = rendered([row.name], "base")
    assert not [one for one in manifests if one["kind"] == "Deployment"]
    check([row.name], manifests, known)


@pytest.mark.parametrize("row", [row for row in FEATURES if row.controller], ids=lambda row: row.name)
def test_a_feature_of_the_controller_is_refused_without_one(row: Feature) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered([row.name], "base")
    assert "nodeagent-controller" in refused.value.stderr


ENDED = {
    path.parent.name: path
    for path in sorted((DAEMONSET / "overlays").glob("*/kustomization.yaml"))
    if f"overlays/{path.parent.name}" not in OVERLAYS
}
"""The names of overlays that have ended."""


NEVER_OVERLAYS = {"attach-ipam", "gpu-labels"}


def test_three_overlays_remain_beside_the_base() -> None:
    assert {*COMPONENTS, "node-pool"} - NEVER_OVERLAYS == ENDED.keys()
    for path in ENDED.values():
        assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("name", ENDED)
@pytest.mark.parametrize("nested", [False, True], ids=["applied", "in a kustomization"])
def test_the_name_of_an_overlay_that_has_ended_fails_with_what_takes_its_place(
    name: str, nested: bool, tmp_path: Path
) -> None:
    """The error of kustomize is the sentence, and the table of the page has the same parts."""
    folder = ENDED[name].parent
    if nested:
        overlay = os.path.relpath(folder, tmp_path.resolve())
        (tmp_path / "kustomization.yaml").write_text(f"resources: [{overlay}]\n")
        folder = tmp_path
    done = subprocess.run(
        [which("kubectl") or "", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = re.findall(r'unknown field "(overlays/[^"]+)"$', done.stderr.strip())
    page = (ROOT / "docs/upgrade.md").read_text()
    ((base, parts),) = re.findall(rf"^\| `overlays/{name}` \| (.*?) \| (.*?) ?\|$", page, re.M)
    if name == "node-pool":
        assert (base, parts) == ("`examples/node-pool`, copied", "")
        assert sentence == "overlays/node-pool has ended: copy examples/node-pool, as docs/upgrade.md shows"
        return
    named_there = re.findall(r"`([^`]+)`", parts)
    assert sentence == (
        f"overlays/{name} has ended: put {' and '.join(named_there)} on {base.strip('`')}, as docs/upgrade.md shows"
    )
    rendered([one.removeprefix("components/") for one in named_there], base.strip("`"))
    beside = ROWS[name].beside
    assert [f"components/{name}", *(one for one in [beside] if one.startswith("components"))] == named_there[
        ::-1
    ]
    assert beside != WITH_CONTROLLER or base == f"`{WITH_CONTROLLER}`"


def test_the_features_of_a_configuration_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = rendered(["rails", "optics", "mig"])
    agent, controller = BASES
    for file, folder in (agent, controller):
        data = named(manifests, "ConfigMap", folder)["data"]
        place = (tmp_path / file).with_suffix(".d")
        place.mkdir()
        for key, text in data.items():
            (place / key).write_text(text)
        main_map = folder.removesuffix("-features")
        (tmp_path / file).write_text(named(manifests, "ConfigMap", main_map)["data"][file])
    words = ["config", "features", "--config", str(tmp_path / "nodeagent.yaml")]
    assert main([*words, "--fabric", str(tmp_path / "fabric.yaml")]) == 0
    lines = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert lines["rails"] == ["on", "on"]
    assert lines["mig"] == ["on", "-"]
    assert lines["optics"] == ["-", "-"]
    assert lines["dra"] == ["off", "-"]
    assert lines["slurm"] == ["-", "off"]
    assert main(words) == 0
    assert "slurm                -      -" in capsys.readouterr().out


def test_the_page_installs_components_by_six_lines_and_replaces_a_file_of_one(tmp_path: Path) -> None:
    """The kustomizations of the pages, with the paths of this repository in place of those of a release."""
    page = (DAEMONSET / "README.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (whole,) = (one for one in blocks if one.startswith("kind: Kustomization"))
    assert len(whole.splitlines()) == 6
    bare = re.sub(" +#.*", "", whole)
    assert bare in (ROOT / "docs/install.md").read_text(), "one example on both pages"
    (patch,) = (one for one in blocks if "nodeagent-features" in one and one.startswith("patches"))
    whole = whole.replace(
        "components:\n", "components:\n- https://github.com/OWNER/nodeagent//daemonset/components/evictions\n"
    )
    place = os.path.relpath(DAEMONSET, tmp_path.resolve())
    here = re.sub(
        r"https://github.com/OWNER/nodeagent//daemonset", place, re.sub(r"\?ref=v[\d.]+", "", whole)
    )
    (tmp_path / "kustomization.yaml").write_text(here + patch)
    found = parsed(folder_rendered(tmp_path))
    agent, controller = configurations(found)
    assert agent.cluster.evict.after_seconds == 60
    assert agent.rails.probe
    assert controller.rails.probe
    (spec,) = pod_specs(named(found, "DaemonSet", "nodeagent"))
    assert spec["containers"][0]["image"].startswith("REGISTRY/nodeagent:")


def pairs() -> Iterator[tuple[str, str]]:
    yield from itertools.combinations(COMPONENTS, 2)


def test_few_pairs_are_apart_and_each_has_its_reason() -> None:
    assert [pair for pair in pairs() if reason_apart(*pair)] == [
        ("dra", "volcano-deviceshare"),
        ("gpu-mps", "volcano-deviceshare"),
        ("mig", "mig-claims"),
    ]


def test_the_page_names_the_pairs_that_do_not_combine() -> None:
    page = " ".join((DAEMONSET / "README.md").read_text().split())
    (text,) = re.findall(r"`make features` prints which pairs combine: all but ([^.]*)\.", page)
    assert re.findall(r"`([a-z-]+)` with `([a-z-]+)`", text) == [one for one in pairs() if reason_apart(*one)]


def test_the_page_names_the_namespaces_that_must_exist(plain: list[Manifest]) -> None:
    """kubectl refuses an object whose namespace nobody has made."""
    made = {one["metadata"]["name"] for one in plain if one["kind"] == "Namespace"}
    for line in (DAEMONSET / "README.md").read_text().splitlines():
        name, needs = [*line.split("|"), "", "", ""][1:3]
        if name.strip(" `") in COMPONENTS:
            found = {one["metadata"].get("namespace", "nodeagent") for one in rendered([name.strip(" `")])}
            missing = {namespace for namespace in found - made if f"the namespace `{namespace}`" not in needs}
            assert not missing, f"{name}: {missing}"


# The chart

SWITCHES = {
    "gpuProcesses": "gpu-processes",
    "gpuMemoryLimits": "gpu-memory-limits",
    "mps": "gpu-mps",
    "nvSentinel": "nvsentinel",
    "monitoring": "prometheus-operator",
    **{
        value: re.sub("[A-Z]", lambda upper: f"-{upper[0].lower()}", value)
        for value in (
            *(
                "attach",
                "attachIpam",
                "dra",
                "evictions",
                "gpuLabels",
                "infiniband",
                "jobs",
                "kueue",
                "marks",
                "mig",
                "migClaims",
            ),
            *(
                "nodeConditions",
                "nodeFeatureGroups",
                "optics",
                "rails",
                "slurm",
                "startupTaint",
                "volcanoDeviceshare",
            ),
        )
    },
}
"""The values of the chart, each with its component."""
BESIDE = {"volcanoDeviceshare": "nodeConditions", "migClaims": "dra", "attachIpam": "attach"}
"""Values that need another one."""


def test_each_value_of_the_chart_has_a_component() -> None:
    """The chart's policy follows the labels of `controller.fabric` by itself."""
    assert set(COMPONENTS) - set(SWITCHES.values()) == {"labels"}


def of_chart(values: Iterable[str]) -> list[Manifest]:
    on = {"controller", *values}
    on |= {BESIDE[one] for one in on & BESIDE.keys()}
    return chart.render({value: {"enabled": True} for value in sorted(on)})


def held(manifests: list[Manifest]) -> tuple[Config, FabricConfig]:
    agent = named(manifests, "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    fabric = named(manifests, "ConfigMap", "nodeagent-controller")["data"]["fabric.yaml"]
    return load(agent, name="agent"), load_fabric(fabric, name="fabric")


@pytest.mark.needs("helm_python")
@pytest.mark.parametrize("value", SWITCHES)
def test_each_pair_of_values_of_the_chart_is_on_or_names_why_it_cannot_be(
    value: str, known: set[str]
) -> None:
    order = list(SWITCHES)
    for other in order[order.index(value) :]:
        values = {value, other} | {BESIDE[one] for one in {value, other} & BESIDE.keys()}
        names = [SWITCHES[one] for one in sorted(values)]
        reasons = [reason_apart(*pair) for pair in itertools.combinations(names, 2)]
        if {"mig", "migClaims"} <= values:
            continue  # the second counts
        manifests = of_chart(values)
        if any(reasons):
            with pytest.raises(ConfigError, match=r"Volcano|volcano"):
                held(manifests)
        else:
            check(names, manifests, known, held)


@pytest.mark.needs("helm_python")
@pytest.mark.parametrize("names", EVERY.values(), ids=EVERY)
def test_all_values_of_the_chart_together(names: list[str], known: set[str]) -> None:
    values = [value for value, component in SWITCHES.items() if component in names]
    check([SWITCHES[value] for value in values], of_chart(values), known, held)
