"""The labels that the controller is configured to write, and the policy of the chart and of each overlay.

Configured, rendered, evaluated: the requests are those of the controller.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import pytest

from nodeagent.commands.feature_table import FEATURES
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric.fabric_settings import OWN_LABELS, LabelPreset, preset_keys
from tests.daemonset import test_rbac as rights
from tests.daemonset.test_chart import render
from tests.support.admission import Request, refusals
from tests.support.label_prefixes import label_prefixes
from tests.support.manifests import ROOT, Manifest, built, configurations, named

pytestmark = pytest.mark.needs("kubectl", "helm_python", "cel_expr_python")

POLICY = "nodeagent-controller-nodes"
HEAD = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "FabricConfig"}
OWN_KEY = "example.com/rack-{tierName}"
PRESETS: tuple[LabelPreset, ...] = get_args(LabelPreset)


def rendered(labels: dict[str, Any] | None) -> tuple[list[Manifest], FabricConfig]:
    """The chart with these labels, and the configuration that its controller reads."""
    fabric = {**HEAD, **({"labels": labels} if labels else {})}
    manifests = render({"controller": {"enabled": True, "fabric": fabric}})
    return manifests, configured(manifests)


def configured(manifests: list[Manifest]) -> FabricConfig:
    return configurations(manifests)[1]


def prefixes(manifests: list[Manifest]) -> list[str]:
    policy = named(manifests, "ValidatingAdmissionPolicy", POLICY)
    (found,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "prefixes")
    made: list[str] = json.loads(found)
    return made


def labelled(*keys: str) -> Request:
    """The controller sets these labels of a Node, which has others."""
    others = {"kubernetes.io/hostname": "gpu-0"}
    before, after = (
        {"metadata": {"name": "gpu-0", "labels": labels}}
        for labels in (others, others | dict.fromkeys(keys, "a"))
    )
    return Request("UPDATE", ":nodes", "gpu-0", rights.CONTROLLER, {}, after, before)


CONFIGURED = [
    None,
    *({"presets": [preset]} for preset in PRESETS),
    {"presets": list(PRESETS)},
    {"keys": [OWN_KEY]},
    {"keys": ["topology.nodeagent.io/tier-{tier}", OWN_KEY, "rack-{tier}"], "presets": list(PRESETS)},
]


@pytest.mark.parametrize("labels", CONFIGURED, ids=str)
def test_the_policy_of_the_chart_allows_the_labels_of_its_controller_and_no_other(
    labels: dict[str, Any] | None,
) -> None:
    manifests, config = rendered(labels)
    assert prefixes(manifests) == list(label_prefixes(config))
    assert refusals(manifests, labelled(*config.label_keys)) == []
    others = [key.partition("{")[0] + "x" for preset in PRESETS for key in preset_keys(preset)]
    for key in (*others, "kubernetes.io/role", "nvidia.com/gpu.present"):
        allowed = key.startswith(label_prefixes(config))
        assert (refusals(manifests, labelled(key)) == []) is allowed, key


def test_a_key_that_no_policy_can_limit_is_refused() -> None:
    with pytest.raises(Exception, match="begins with a field"):
        rendered({"keys": ["{tierName}"]})


@pytest.mark.parametrize(
    "installation",
    ["overlays/controller", *(f"components/{row.name}" for row in FEATURES if row.controller)],
)
def test_the_policy_of_each_installation_allows_the_labels_of_its_controller(installation: str) -> None:
    manifests = built(installation)
    assert prefixes(manifests) == list(label_prefixes(configured(manifests)))


def test_the_pages_name_each_preset_with_its_keys() -> None:
    page = (ROOT / "docs" / "schedulers.md").read_text()
    for preset in PRESETS:
        assert f"labels.presets: [{preset}]" in page, f"{preset}: a row in docs/schedulers.md"
        for key in preset_keys(preset):
            assert key.partition("{")[0] in page


async def test_the_patch_with_all_labels_of_a_node_passes() -> None:
    manifests, config = rendered(
        {"keys": ["topology.nodeagent.io/tier-{tier}", OWN_KEY], "presets": list(PRESETS)}
    )
    admitted: list[Request] = []
    async with asyncio.timeout(rights.PATIENCE_S), rights.cluster(manifests, admitted) as server:
        await rights.controller_at_work(server, config.labels)
    written = {
        key
        for one in admitted
        if one.resource == ":nodes" and one.object is not None
        for key in one.object["metadata"].get("labels") or ()
    }
    assert {key.partition("{")[0] for key in (OWN_LABELS, OWN_KEY, "fabric.topograph.run/tier-")} <= {
        start for start in label_prefixes(config) if any(key.startswith(start) for key in written)
    }
    assert [why for one in admitted if (why := refusals(manifests, one))] == []
    default = built("overlays/controller")
    assert any(
        "labels that begin as this policy says" in line for one in admitted for line in refusals(default, one)
    )
