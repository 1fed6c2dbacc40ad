"""hack/house.py counts names, circles and questions on kinds of a small package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hack import house

ROOT = Path(__file__).parents[2]
FILES = {
    "__init__.py": "",
    "kinds/__init__.py": "class DeviceKind: ...\n",
    "kinds/vf.py": "from nodeagent.kinds import DeviceKind\n\nSIZE: int = 1\n\nclass VfPool(DeviceKind): ...\n"
    "class VfEntry(Settings, tag_field='kind'): ...\n",
    "agent.py": "from nodeagent import kinds\nfrom nodeagent.kinds.vf import VfEntry, VfPool\n\nlog = 1\nSIZE = 2\n"
    "def run(x): return isinstance(x, VfPool | kinds.vf.VfEntry) or isinstance(x, (int, Function, PfDevice))\n",
    "claims.py": "log = 1\nclass DraDevice: ...\nclass PfDevice(DraDevice): ...\n_SIZE = 3\n\n"
    "async def ask():\n    from nodeagent.records import keep\n",
    "records.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from nodeagent.claims import ask\n"
    "\ndef keep(): isinstance(1, str)\n",
    "made_pb2.py": "SIZE = 4\nimport nodeagent.agent\n",
}


def package(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / "nodeagent" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "nodeagent"


def test_a_small_package_is_counted(tmp_path: Path) -> None:
    modules = house.trees(package(tmp_path))
    graph = house.imports(modules)
    assert house.repeated_names(modules) == {"SIZE": ["nodeagent.agent", "nodeagent.kinds.vf"]}
    assert house.circles(graph) == [["nodeagent.claims", "nodeagent.records"]]
    assert house.questions_on_kinds(modules) == {"nodeagent.agent": 2}
    assert house.loaded("nodeagent.agent", graph) == {
        "nodeagent.agent",
        "nodeagent.kinds",
        "nodeagent.kinds.vf",
    }


def test_rows_tell_the_kinds_apart() -> None:
    """Differences between kinds of devices are asked of the device, of its entry, or of a table."""
    assert house.questions_on_kinds(house.trees()) == {}


def test_it_prints_the_counts_of_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "hack/house.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    heads = [line.partition(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == [
        "public names defined more than once",
        "import circles",
        "isinstance on a kind outside nodeagent.kinds",
        "modules that nodeagent.agent may load",
        "modules that nodeagent.controller may load",
    ]
