"""Each extract in ``tests/schemas`` names its source, and ``compare.py`` finds where project and extract differ."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schemas import compare
from tests.support.kubernetes_schemas import small_schemas
from tests.support.manifests import ROOT

EXTRACT: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Widget",
    "properties": {"spec": {"properties": {"size": {"type": "integer"}, "mode": {"enum": ["a", "b"]}}}},
}
DEFINITION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"size": {"type": "integer"}, "mode": {"type": "string", "enum": ["a", "b", "c"]}},
        }
    },
}


def test_every_extract_names_its_source() -> None:
    found = list(compare.extracts())
    assert len(found) == len(small_schemas()) > 20
    for extract, source in found:
        assert re.fullmatch(r"[0-9a-f]{40}", source.commit), extract["kind"]
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256), extract["kind"]
        assert source.repository.count("/") == 1


def test_an_extract_that_is_stricter_than_the_project_is_right() -> None:
    assert not list(compare.looser(EXTRACT, DEFINITION))


def test_a_definition_that_takes_any_field_refuses_nothing() -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    (trial,) = (extract for extract, _ in compare.extracts() if extract["kind"] == "Experiment")
    assert not list(compare.looser(trial, anything))
    assert not list(compare.refused(trial, anything))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda spec: spec["properties"].pop("size"), ".spec.size: unknown to the project"),
        (lambda spec: spec.update(required=["size"]), ".spec.size: required by the project"),
        (
            lambda spec: spec["properties"]["mode"]["enum"].remove("b"),
            ".spec.mode: values ['a', 'b'], the project has ['a', 'c']",
        ),
        (
            lambda spec: spec["properties"]["size"].update(type="string"),
            ".spec.size: type ['integer'], the project has ['string']",
        ),
    ],
)
def test_what_the_project_refuses_is_found(change: Any, finding: str) -> None:
    theirs = copy.deepcopy(DEFINITION)
    change(theirs["properties"]["spec"])
    assert list(compare.looser(EXTRACT, theirs)) == [finding]


def test_a_field_with_a_default_is_not_required() -> None:
    theirs = copy.deepcopy(DEFINITION)
    theirs["properties"]["spec"]["required"] = ["size"]
    theirs["properties"]["spec"]["properties"]["size"]["default"] = 1
    assert not list(compare.looser(EXTRACT, theirs))
    assert compare.closed(theirs)["properties"]["spec"]["required"] == []


@pytest.mark.needs("kubectl")
def test_our_own_objects_meet_the_definition(tmp_path: Path) -> None:
    """A bare run over a repository with one definition: TrainJob with a field less."""
    source = next(source for extract, source in compare.extracts() if extract["kind"] == "TrainJob")
    trainer = {
        "type": "object",
        "properties": {
            "numNodes": {"type": "integer"},
            "command": {"type": "array"},
            "args": {"type": "array"},
        },
    }
    spec = {"type": "object", "properties": {"runtimeRef": {"type": "object"}, "trainer": trainer}}
    schema = {
        "type": "object",
        "properties": {"metadata": {"type": "object"}, "spec": spec, "apiVersion": {}, "kind": {}},
    }
    crd = {
        "kind": "CustomResourceDefinition",
        "spec": {
            "group": "trainer.kubeflow.org",
            "names": {"kind": "TrainJob"},
            "versions": [{"name": "v1alpha1", "served": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    file = tmp_path / source.path
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(crd))
    author = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "definition"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.schemas.compare", f"{source.repository}={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"another file than at {source.date}" in done.stdout
    assert (
        "trainjob.yaml: $.spec.trainer: Additional properties are not allowed ('numProcPerNode' was unexpected)"
        in done.stdout
    )
    assert "Queue (scheduling.volcano.sh/v1beta1): no checkout of volcano-sh/volcano" in done.stdout
