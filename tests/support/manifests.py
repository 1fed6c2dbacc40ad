"""Build the manifests with the real kubectl, as ``kubectl apply -k`` does, and parse them."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.needs import need, which

ROOT = Path(__file__).parents[2]
DAEMONSET = ROOT / "daemonset"
OVERLAYS = ("", *sorted(f"overlays/{path.name}" for path in (DAEMONSET / "overlays").iterdir()))
"""Every kustomization that a user can apply; the first is daemonset/ itself."""
BESIDE = ("nodeagent-mps", "nodeagent-attach")
"""DaemonSets beside that of the agents, without a configuration and without a token."""

Manifest = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def rendered(folder: Path) -> str:
    """Return the output of ``kubectl kustomize``; skip the running test if kubectl is missing."""
    need("kubectl")
    done = subprocess.run(
        [which("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return done.stdout


def built(overlay: str = "") -> list[Manifest]:
    return parsed(rendered(DAEMONSET / overlay))


def parsed(text: str) -> list[Manifest]:
    return [one for one in yaml.load_all(text, _LOADER) if one is not None]


def files(folder: Path) -> list[Path]:
    """Return the manifests of a folder of examples, without files for other programs."""
    return sorted(
        path for path in folder.rglob("*.yaml") if path.name not in ("kustomization.yaml", "values.yaml")
    )


def key(manifest: Manifest) -> tuple[str, str, str, str]:
    """Return the identity of an object: unique in a cluster."""
    meta = manifest["metadata"]
    group = manifest["apiVersion"].rpartition("/")[0]
    return group, manifest["kind"], meta.get("namespace", ""), meta["name"]


def by_key(manifests: list[Manifest]) -> dict[tuple[str, str, str, str], Manifest]:
    found = {key(one): one for one in manifests}
    assert len(found) == len(manifests), "two objects of one name"
    return found


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (one,) = (one for one in of_kind(manifests, kind) if one["metadata"]["name"] == name)
    return one


def pod_specs(manifest: Manifest) -> list[Manifest]:
    """Yield the specs of the pods that an object creates, at any depth."""
    found: list[Manifest] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                found.append(value)
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(manifest)
    return found
