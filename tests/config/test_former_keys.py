"""Keys of earlier versions: each is read with a warning, and none goes without a row in the table and on the page.

``golden/settings-ever.txt`` has every key that a version had. ``NODEAGENT_GOLDEN=write`` adds the new ones.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack.docs.settings import settings_table
from nodeagent.agent_config import Config, check, load
from nodeagent.commands.file_checks import check_file
from nodeagent.config.faults import ConfigError
from nodeagent.config.former_keys import FORMER_KEYS, FormerKey
from nodeagent.config.setting import Settings
from nodeagent.config.settings_file import read_settings
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric.topology_file import FabricTopology
from nodeagent.kinds.resource_settings import GpuMemResource
from tests.support import golden
from tests.support.findings import one_item

ROOT = Path(__file__).parents[2]
EVER = ROOT / "tests/golden/settings-ever.txt"
FILES: dict[str, type[Settings]] = {
    "NodeAgentConfig": Config,
    "FabricConfig": FabricConfig,
    "FabricTopology": FabricTopology,
}
AGENT = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
FABRIC = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"


def present(kind: str) -> set[str]:
    return {f"{kind} {path}" for path in re.findall(r"^\| `([^`]+)`", settings_table(FILES[kind]), re.M)}


@pytest.mark.golden("tests/golden/settings-ever.txt")
def test_every_key_that_ever_was_is_a_setting_or_has_a_row() -> None:
    now = set().union(*map(present, FILES))

    def with_new(text: str) -> str:
        return "".join(f"{line}\n" for line in sorted({*text.splitlines()} | now))

    golden.update(EVER, with_new)
    ever = {*EVER.read_text().splitlines()}
    rows = {f"{kind} {path}" for kind, keys in FORMER_KEYS.items() for path in keys}
    gone = ever - now
    assert gone == rows, "give a key that went a row in nodeagent/config/former_keys.py"


def test_the_page_of_upgrades_lists_every_row() -> None:
    page = (ROOT / "docs/upgrade.md").read_text()
    for keys in FORMER_KEYS.values():
        for path, row in keys.items():
            (line,) = [line for line in page.splitlines() if line.startswith(f"| `{path}` |")]
            assert row.now is None or f"`{row.now}" in line


def test_the_value_of_a_former_key_takes_effect() -> None:
    for stated, expected in (("false", "none"), ("No", "none"), ("true", "auto")):
        remarks: list[str] = []
        text = f"{AGENT}resources:\n- kind: vf\n- kind: gpu-mem\n  memoryLimits: {stated}\n"
        read = load(text, name="f", remark=remarks.append)
        memory = read.resources[1]
        assert isinstance(memory, GpuMemResource)
        assert memory.enforcement == expected
        assert remarks == [
            "resources[1].memoryLimits (line 6) is a key of an earlier version, which the next release refuses: "
            "write enforcement: none instead of memoryLimits: false, and remove memoryLimits: true."
        ]


def test_a_former_key_without_effect_is_read() -> None:
    remarks: list[str] = []
    text = f"{AGENT}stateDirectory: /var/lib/nodeagent\nkubelet: {{registration: anything}}\n"
    assert check(text, name="f", remark=remarks.append) == Config()
    assert [remark.partition(" ")[0] for remark in remarks] == ["stateDirectory", "kubelet.registration"]


def test_the_present_key_wins_over_the_former_one() -> None:
    text = f"{AGENT}resources:\n- {{kind: gpu-mem, memoryLimits: true, enforcement: none}}\n"
    (memory,) = load(text, name="f").resources
    assert isinstance(memory, GpuMemResource)
    assert memory.enforcement == "none"


@pytest.mark.parametrize("stated", ["mps", "auto", "none", "perhaps", '"true"', "1", "", "[true]"])
@pytest.mark.parametrize("beside", ["", "  enforcement: none\n"])
def test_a_value_that_the_former_key_never_had_is_refused_with_its_place_and_the_remedy(
    stated: str, beside: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{AGENT}resources:\n- kind: gpu-mem\n{beside}  memoryLimits: {stated}\n", name="f")
    (fault,) = caught.value.faults
    assert fault.path == "resources[0].memoryLimits"
    assert fault.line == (6 if beside else 5)
    assert "must be one of true, yes, on, false, no, off" in fault.message
    assert "write enforcement: none instead of memoryLimits: false" in fault.message


@one_item(
    "text",
    [
        "resources:\n- {kind: gpu-mem, memoryLimits: perhaps}\n",
        "resources:\n- {kind: vf, memoryLimits: false}\n",
        "memoryLimits: false\n",
        "kubelet: {stateDirectory: /var/lib/nodeagent}\n",
    ],
)
def test_a_former_key_at_another_place_or_with_a_wrong_value_is_a_fault(text: str) -> None:
    remarks: list[str] = []
    with pytest.raises(ConfigError):
        load(AGENT + text, name="f", remark=remarks.append)
    assert remarks == []


def test_a_former_key_within_entries_is_found_by_the_kinds_of_the_entries() -> None:
    former = {"fabrics[].speedMbps": FormerKey("minSpeedMbps", "write minSpeedMbps")}
    remarks: list[str] = []
    config, _ = read_settings(
        f"{FABRIC}fabrics:\n- {{fabric: storage, speedMbps: 200000}}\n",
        FabricConfig,
        name="f",
        former=former,
        remark=remarks.append,
    )
    assert config.fabrics[0].min_speed_mbps == 200000
    assert remarks == [
        "fabrics[0].speedMbps (line 4) is a key of an earlier version, which the next release refuses: write "
        "minSpeedMbps."
    ]


def test_config_check_prints_a_note_on_each_former_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{AGENT}stateDirectory: /x\n")
    (note, *_) = check_file(file, None).notes
    assert note.startswith("stateDirectory (line 3) is a key of an earlier version")
