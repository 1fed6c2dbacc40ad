"""The default file, the JSON schema and the table agree with the structs that they are generated from."""

from __future__ import annotations

import re
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
import yaml

from hack.docs.settings import settings_table
from nodeagent.agent_config import Config, load
from nodeagent.commands.config import default_file, json_schema
from nodeagent.config.file_errors import ConfigError
from nodeagent.config.setting import Settings
from nodeagent.kinds import resource_settings
from nodeagent.kinds.resource_settings import GpuResource
from tests.support.findings import one_item

HEAD = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig"}


def plain(value: msgspec.Struct) -> Any:
    """The value as a JSON or YAML reader returns it: lists, no tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def problems(value: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(json_schema())
    return [error.message for error in validator.iter_errors(value)]


def loads(value: Any) -> bool:
    try:
        load(msgspec.json.encode(value).decode(), name="file")
    except ConfigError:
        return False
    return True


def test_the_default_file_reads_back_as_the_default() -> None:
    assert load(default_file(), name="default") == Config()


def test_the_default_file_shows_every_setting_at_its_default() -> None:
    """An ordinary YAML reader finds every setting in it."""
    assert yaml.safe_load(default_file()) == plain(Config())


@pytest.mark.parametrize("key", ["resources", "vfs"])
def test_the_examples_in_the_default_file_are_valid(key: str) -> None:
    """Without the comment signs, each example is an entry with every setting."""
    section = re.search(rf"^{key}:.*?(?=\n\n# [^\n]*\n[a-z])", default_file(), re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = section[0].splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("# - "))
    text = "\n".join(line.removeprefix("# ").removeprefix("#") for line in lines[start:])
    (entry,) = yaml.safe_load(text)
    assert problems({**HEAD, key: [entry]}) == []
    read = getattr(load(msgspec.json.encode({**HEAD, key: [entry]}).decode(), name="file"), key)[0]
    assert plain(read) == entry
    assert isinstance(read, GpuResource) or read.count == 8


def test_every_line_of_the_default_file_fits_a_terminal() -> None:
    assert max(len(line) for line in default_file().splitlines()) <= 110
    assert all(line == line.rstrip() for line in default_file().splitlines())


def test_each_kind_of_resource_can_be_configured() -> None:
    structs = [
        one for one in vars(resource_settings).values() if isinstance(one, type) and issubclass(one, Settings)
    ]
    kinds = {one for one in structs if one.__struct_config__.tag_field == "kind"}
    assert kinds == {*get_args(resource_settings.ResourceSettings)}, "add it to the union ResourceSettings"


def test_the_schema_is_valid_and_accepts_the_default() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert problems(yaml.safe_load(default_file())) == []
    assert problems(HEAD) == []


@one_item(
    "change",
    [
        {"apiVersion": "v1"},
        {"resurces": []},
        {"scanSeconds": 0},
        {"scanSeconds": "30"},
        {"listen": "9808"},
        {"listen": ""},
        {"kubelet": "socket"},
        {"kubelet": None},
        {"kubelet": {"podResources": "socket"}},
        {"resourcePrefix": "NVIDIA"},
        {"resourcePrefix": "a" * 245},
        {"gpu": {"ignoreXids": [13, 13]}},
        {"gpu": {"ignoreXids": [0]}},
        {"gpu": {"ignoreXids": list(range(1, 300))}},
        {"cdi": {"directory": "var"}},
        {"lldp": {"command": []}},
        {"resources": [{"kind": "vff"}]},
        {"resources": [{"name": "a"}]},
        {"resources": [{"kind": "gpu"}]},
        {"resources": [{"kind": "gpu", "select": {}}]},
        {"resources": [{"kind": "gpu-mem", "sliceMiB": 0}]},
        {"resources": [{"kind": "gpu-mem", "sliceMiB": 1.5}]},
        {"resources": [{"kind": "gpu-mem", "name": "a{rail}"}]},
        {"resources": [{"kind": "vf", "name": "nic{rial}"}]},
        {"resources": [{"kind": "vf", "name": "-{rail}"}]},
        {"resources": [{"kind": "vf", "select": {"vendors": ["0x15b3"]}}]},
        {"resources": [{"kind": "vf", "select": {"pciAddresses": ["1a:00.0"]}}]},
        {"resources": [{"kind": "vf", "select": {"vfIndexes": ["0-"]}}]},
        {"vfs": [{"count": 8}]},
        {"vfs": [{"select": {"vendors": ["15b3"]}}]},
        {"vfs": [{"select": {"vendors": ["15b3"]}, "count": 8, "linkState": "up"}]},
        {"vfs": [{"select": {"vendors": ["15b3"]}, "count": 8, "mtu": 10}]},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    assert not loads({**HEAD, **change})
    assert problems({**HEAD, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"resources": [{"kind": "vf", "select": {"vendors": [8086], "vfIndexes": [7]}}]},
        {
            "resources": [
                {"kind": "vf", "name": "{netdev}"},
                {"kind": "vf", "name": "a-{rail}", "vfDriver": "rdma"},
            ]
        },
        {"listen": None},
        {"listen": "[::1]:80"},
        {"gpu": {"xidClearSeconds": None, "timeoutSeconds": 1}},
    ],
    ids=str,
)
def test_the_schema_accepts_what_the_loader_accepts(change: dict[str, Any]) -> None:
    assert problems({**HEAD, **change}) == []
    if "resources" not in change or len(change["resources"]) == 1:
        assert loads({**HEAD, **change})


def test_the_schema_requires_what_the_loader_requires() -> None:
    for key in HEAD:
        partial = {k: v for k, v in HEAD.items() if k != key}
        assert not loads(partial)
        assert problems(partial) == [f"{key!r} is a required property"]


def objects(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in objects(value))]
    return [found for value in node for found in objects(value)] if isinstance(node, list) else []


def test_every_setting_of_the_schema_is_described_and_no_object_takes_other_keys() -> None:
    definitions = json_schema()["$defs"].values()
    for definition in definitions:
        assert definition["additionalProperties"] is False
        assert definition["description"]
        for key, value in definition["properties"].items():
            assert value.get("description") or (key == "kind" and value.get("enum")), key
    assert not [found for found in objects(json_schema()) if "x-digits" in found]


def leaves(node: Any, path: str = "") -> set[str]:
    """Paths of all settings, as the table writes them."""
    found: set[str] = set()
    for key, value in node.items():
        inner = [value, *value] if isinstance(value, list) else [value]
        entries = [one for one in inner if isinstance(one, dict)]
        if not isinstance(value, dict):
            found.add(path + key)
        for entry in entries:
            brackets = f"[{entry.get('kind', '')}]" if isinstance(value, list) else ""
            found |= {
                leaf for leaf in leaves(entry, f"{path}{key}{brackets}.") if not leaf.endswith("].kind")
            }
    return found


def test_the_table_has_a_row_for_every_setting() -> None:
    rows = [re.split(r"(?<!\\)\|", line) for line in settings_table(Config).splitlines()[2:]]
    assert {len(row) for row in rows} == {7}
    shown = [row[1].strip().strip("`") for row in rows]
    assert len(shown) == len(set(shown))
    default = plain(Config())
    assert leaves(default) <= set(shown)
    others = set(shown) - leaves(default)
    assert {path.split(".")[0] for path in others if "." in path} >= {"resources[gpu]", "vfs[]", "health"}
    assert all(row[4].strip() for row in rows)
