"""Every mark of Nodes has its row, its right, its policy and its place in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cluster.cluster_settings import ClusterSettings
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.node_marks import LEAF_GROUP_LABEL, OWN_MARKS, OwnMark
from nodeagent.doctor.rbac import ACCOUNTS
from nodeagent.facts.inventory import Inventory
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient

ROOT = Path(__file__).parents[2]
KEY = re.compile(r"(?:topology\.)?nodeagent\.io/[A-Za-z-]+(?:-[0-9])?")
OTHER_KEYS = {"nodeagent.io/v1alpha1", "nodeagent.io/trouble"}
"""Strings of this form that are no marks of a Node: a version, and an annotation of HyperNodes."""


def manifests(name: str) -> Iterator[dict[str, Any]]:
    for path in sorted((ROOT / "daemonset").glob(f"*/**/{name}.yaml")):
        if "chart" not in path.parts:
            yield from yaml.safe_load_all(path.read_text())


def grants(account: str) -> Iterator[tuple[str, str]]:
    """The verbs and resources of the roles that are bound to this service account."""
    objects = list(manifests("rbac"))
    bound = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"].endswith("RoleBinding") and any(who["name"] == account for who in one["subjects"])
    }
    for role in objects:
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] in bound:
            for rule in role["rules"]:
                yield from ((verb, resource) for verb in rule["verbs"] for resource in rule["resources"])


def test_each_key_of_a_mark_in_the_code_has_a_row() -> None:
    found = {
        node.value: path.relative_to(ROOT).as_posix()
        for room in ("cluster", "topology")
        for path in (ROOT / "nodeagent" / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value)
    }
    assert LEAF_GROUP_LABEL in found
    missing = found.keys() - {mark.key for mark in OWN_MARKS} - OTHER_KEYS
    assert not missing, f"enter it in OWN_MARKS: {[(key, found[key]) for key in sorted(missing)]}"


@pytest.mark.parametrize("mark", OWN_MARKS, ids=lambda mark: f"{mark.kind} {mark.key}")
def test_each_mark_has_a_right_a_policy_and_a_place_in_the_documentation(mark: OwnMark) -> None:
    account = ACCOUNTS[mark.writer]
    assert ("patch", mark.resource) in set(grants(account)), f"grant {account} patch on {mark.resource}"
    key = mark.key.removesuffix("tier-1")
    policies = [str(one) for one in manifests("admission") if one["kind"] == "ValidatingAdmissionPolicy"]
    assert any(key in one for one in policies), f"no admission policy names {key}"
    name = key if key != mark.key else f"{key.partition('/')[2]}`"
    assert name in (ROOT / "docs/security.md").read_text(), f"docs/security.md does not name {mark.key}"
    script = (ROOT / "daemonset/uninstall.sh").read_text()
    assert key.partition("/")[2] in script, f"daemonset/uninstall.sh does not remove {mark.key}"
    if mark.writer == "agent":
        assert mark.key in (ROOT / "docs/cluster.md").read_text(), (
            f"docs/cluster.md needs a row of {mark.key}"
        )


def test_each_mark_of_the_agent_has_a_setting_and_a_row_of_the_marker() -> None:
    access = Access("http://127.0.0.1:1", token="t")
    marker = DeviceMarker(ApiClient(access), Inventory(), "gpu-0", ClusterSettings())
    settings = {name.replace("_", "-") for name in ClusterSettings().marks}
    assert settings == marker._marks.keys(), (
        "a setting in ClusterSettings.marks for each row of DeviceMarker._table, and the reverse"
    )
    rows = [mark for mark in OWN_MARKS if mark.writer == "agent"]
    assert len(rows) == len(marker._marks) + 1, (
        "enter the mark in OWN_MARKS for each row of DeviceMarker._table (`conditions` has two), and the reverse"
    )
