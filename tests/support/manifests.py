"""What ``kubectl apply -k`` would send: the manifests built by the real kubectl, and read back."""

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
"""What a person may apply; the first is daemonset/ itself."""

Manifest = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def rendered(folder: Path) -> str:
    """The output of ``kubectl kustomize``; the running test is skipped where there is no kubectl."""
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
    """The manifests of a folder of examples, without what is read by other programs."""
    return sorted(
        path for path in folder.rglob("*.yaml") if path.name not in ("kustomization.yaml", "values.yaml")
    )


def key(manifest: Manifest) -> tuple[str, str, str, str]:
    """What no two objects of a cluster share."""
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
    """The specs of the pods that an object makes, wherever they stand in it."""
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
