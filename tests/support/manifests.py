"""Build the manifests with the real kubectl, as ``kubectl apply -k`` does, and parse them."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hack.features import render, together
from nodeagent.agent_config import Config
from nodeagent.commands.feature_table import FEATURES, WITH_CONTROLLER
from nodeagent.controller_config import FabricConfig
from tests.support.needs import need, which

ROOT = Path(__file__).parents[2]
DAEMONSET = ROOT / "daemonset"
OVERLAYS = ("overlays/controller", "overlays/kind", "overlays/observe")
INSTALLATIONS = (
    "",
    *OVERLAYS,
    *sorted(f"components/{path.name}" for path in (DAEMONSET / "components").iterdir()),
    "examples/cluster",
    "examples/node-pool",
)
"""The installations of ``built``: daemonset/ itself, the overlays, each component on the base that it needs, and the
two recipes that install the agents."""
OWN_NODE = re.compile("conditions-(?:evictions|deviceshare)$")
"""The ends of the names of the rights on the own Node that a component has beside those of node-conditions."""
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


def built(installation: str = "") -> list[Manifest]:
    """The objects of one of ``INSTALLATIONS`` or of another kustomization in daemonset/."""
    folder, _, name = installation.partition("/")
    return combined(name) if folder == "components" else parsed(rendered(DAEMONSET / installation))


def combined(*names: str, base: str = "base") -> list[Manifest]:
    """The objects of these components, on this base or the one that they need, with the components that they need."""
    return parsed(_combined(names, base))


@functools.cache
def _combined(names: tuple[str, ...], base: str) -> str:
    need("kubectl")
    beside = {row.beside for row in FEATURES if row.name in names} - {""}
    base = WITH_CONTROLLER if WITH_CONTROLLER in beside else base
    needed = sorted(one.removeprefix("components/") for one in beside - {WITH_CONTROLLER})
    return render([*(one for one in needed if one not in names), *names], which("kubectl") or "", base)


def configurations(manifests: Iterable[Manifest]) -> tuple[Config, FabricConfig]:
    """The configurations of agent and controller in these objects, with the settings of the components."""
    with tempfile.TemporaryDirectory() as folder:
        return together(list(manifests), Path(folder))


def parsed(text: str) -> list[Manifest]:
    return [one for one in yaml.load_all(text, _LOADER) if one is not None]


def files(folder: Path) -> list[Path]:
    """Return the manifests of a folder of examples, without files for other programs."""
    others = ("kustomization.yaml", "nodeagent.yaml", "values.yaml")
    return sorted(path for path in folder.rglob("*.yaml") if path.name not in others)


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
