"""Print the matrix of features: which components of daemonset/components combine.

    python hack/features.py [KUBECTL]

Each pair is rendered on ``overlays/controller``, and both configurations are read as the agent and the controller read
them. + means that both features are on, and a letter the reason why they cannot be.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from nodeagent.agent_config import Config, load
from nodeagent.commands.feature_table import FEATURES, WITH_CONTROLLER, reason_apart
from nodeagent.config.config_files import read_config_files
from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import FabricConfig, load_fabric

DAEMONSET = Path(__file__).resolve().parents[1] / "daemonset"
BASES = (("nodeagent.yaml", "nodeagent-features"), ("fabric.yaml", "nodeagent-controller-features"))
"""The main file of each program, and the ConfigMap of its fragments."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def render(names: Iterable[str], kubectl: str = "kubectl", base: str = WITH_CONTROLLER) -> str:
    """The manifests of a base with components, as YAML. Raises ``CalledProcessError``."""
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.relpath(DAEMONSET, Path(folder).resolve())
        wanted = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{place}/{base}"],
            "components": [f"{place}/components/{name}" for name in names],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    return done.stdout


def together(manifests: list[dict[str, Any]], folder: Path) -> tuple[Config, FabricConfig]:
    """The configurations of agent and controller in these objects, written to a folder as the kubelet does and read as
    the programs do; a missing one is the default. Raises ``ConfigError``."""
    maps = {one["metadata"]["name"]: one.get("data") or {} for one in manifests if one["kind"] == "ConfigMap"}
    for main, fragments in BASES:
        held = maps.get(fragments.removesuffix("-features"))
        if held is None:
            continue
        (folder / main).write_text(held[main])
        (folder / main).with_suffix(".d").mkdir()
        for key, text in maps[fragments].items():
            ((folder / main).with_suffix(".d") / key).write_text(text)
    agent, controller = (folder / main for main, _ in BASES)
    fabric = (
        load_fabric(read_config_files(controller), name="fabric") if controller.exists() else FabricConfig()
    )
    return load(read_config_files(agent), name="agent"), fabric


def combine(names: Iterable[str], kubectl: str = "kubectl") -> str:
    """Why these features are not all on; empty if they are."""
    names = sorted(names)
    manifests = [one for one in yaml.load_all(render(names, kubectl), _LOADER) if one]
    with tempfile.TemporaryDirectory() as folder:
        try:
            agent, controller = together(manifests, Path(folder))
        except ConfigError as error:
            return str(error).replace(f"{folder}/", "")
    off = [
        row.name
        for row in FEATURES
        if row.name in names
        if (row.agent and not row.agent(agent)) or (row.controller and not row.controller(controller))
    ]
    return f"off: {', '.join(off)}" if off else ""


def matrix(kubectl: str = "kubectl") -> Iterator[str]:
    """The lines of the matrix, and the reasons below it."""
    names = [row.name for row in FEATURES]
    found = {pair: combine(pair, kubectl) for pair in itertools.combinations(names, 2)}
    faults = {pair: why for pair, why in found.items() if why}
    letters = {pair: chr(ord("a") + i) for i, pair in enumerate(faults)}
    width = max(map(len, names))
    for i, name in enumerate(names):
        cells = " ".join(letters.get((other, name), "+") for other in names[:i])
        yield f"{name:{width}} {cells}".rstrip()
    yield f"{len(found)} pairs, {len(found) - len(faults)} combine"
    for pair, why in faults.items():
        yield f"{letters[pair]}: {pair[0]}, {pair[1]}: {reason_apart(*pair) or 'UNEXPECTED'}: {why}"


def main() -> int:
    """Print the matrix. The exit code is 1 if a pair fails without a reason in the table."""
    lines = list(matrix(*sys.argv[1:2]))
    print("\n".join(lines))
    return int(any("UNEXPECTED" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
