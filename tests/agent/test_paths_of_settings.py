"""Each path in the settings: on whose file system it is, who writes it, and where a relative one begins.

The pod of the agent has the host's files below ``--root`` and its own root read-only. A path that the agent writes on
its own root keeps nothing, so each path has its place here.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
import yaml
from msgspec import inspect

from nodeagent.agent import Agent, AgentOptions
from nodeagent.agent_config import Config, load
from nodeagent.base import kept_changes
from nodeagent.config.file_errors import ConfigError
from nodeagent.config.reference import entry_types, meaning
from nodeagent.config.setting import Settings
from nodeagent.config.validate import bare, struct_type
from nodeagent.controller_config import FabricConfig
from nodeagent.web.web_settings import OWN_NAMES
from nodeagent_lab.sim.machine import Machine
from tests.agent.test_stored_files import FORMS
from tests.daemonset.test_manifests import CONFIGS
from tests.support.manifests import built, named, pod_specs
from tests.support.running_agent import HEAD, SMALL, node
from tests.support.setting_leaves import changed
from tests.support.waiting import until

HOST, OWN, STATE, BESIDE = "below --root", "as it is", "in the state folder", "beside the file"


class Place(NamedTuple):
    """``absolute``: where an absolute path is. ``relative``: where another one begins; ``None``: it is refused."""

    absolute: str
    relative: str | None = None
    written: bool = False


AGENT = {
    "cdi.directory": Place(HOST, written=True),
    "cluster.kubeconfig": Place(OWN),
    "gpu.accounting.podLogs": Place(HOST),
    "gpu.driverRoot": Place(HOST),
    "health.cablingPlan": Place(OWN),
    "health.stateDirectory": Place(HOST, written=True),
    "history.file": Place(OWN, STATE, written=True),
    "infiniband.nodeNames": Place(OWN),
    "nvSentinel.socket": Place(HOST),
    "nvSentinel.tokenFile": Place(OWN),
    "web.certificateFile": Place(OWN),
    "web.clientCaFile": Place(OWN),
    "web.keyFile": Place(OWN),
    "web.tokenFile": Place(OWN),
}
CONTROLLER = {
    "history.file": Place(OWN, written=True),
    "infinibandCables": Place(OWN, BESIDE),
    "switches.credentials": Place(OWN),
    "topology": Place(OWN, BESIDE),
    "web.certificateFile": Place(OWN),
    "web.clientCaFile": Place(OWN),
    "web.keyFile": Place(OWN),
    "web.tokenFile": Place(OWN),
}


WORDS = {
    HOST: "of the host",
    OWN: "container",
    STATE: "health.stateDirectory",
    BESIDE: "relative to this file",
}
"""How the text of a setting says it."""


def paths(type_: inspect.StructType, above: str = "") -> Iterator[tuple[str, inspect.Field]]:
    """The settings whose format is a path."""
    for field in type_.fields:
        inner, _ = bare(field.type)
        key = above + field.encode_name
        if isinstance(inner, inspect.StructType):
            yield from paths(inner, f"{key}.")
        elif isinstance(inner, inspect.VarTupleType) and (entries := entry_types(inner)):
            for entry in entries.values():
                yield from paths(entry, f"{key}[{entry.tag or ''}].")
        elif re.search(r"'meaning': '[^']* path'", repr(field.type)):
            yield key, field


@pytest.mark.parametrize(
    ("declared", "table"), [(Config, AGENT), (FabricConfig, CONTROLLER)], ids=["agent", "controller"]
)
def test_each_path_has_its_place_and_its_text_says_it(
    declared: type[Settings], table: dict[str, Place]
) -> None:
    found = dict(paths(struct_type(declared)))
    assert sorted(found) == sorted(table)
    for key, place in table.items():
        text = meaning(found[key])
        for where in {place.absolute, place.relative} - {None}:
            if place.relative != BESIDE or where == BESIDE:
                assert WORDS[where] in text, f"{key}: {text}"


@pytest.mark.parametrize("key", AGENT)
def test_a_relative_path_is_taken_only_where_it_has_a_place(key: str) -> None:
    text: dict[str, Any] = {
        "cluster": {"access": "none"}, "web": {"certificateFile": "/none"}, "nvSentinel": {"socket": "/none"},
    }  # fmt: skip
    if AGENT[key].relative is not None:
        load(HEAD + yaml.safe_dump(changed(text, key, "name.json")), name="x")
        return
    with pytest.raises(ConfigError, match="is not an absolute path"):
        load(HEAD + yaml.safe_dump(changed(text, key, "name.json")), name="x")


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", ".hidden", "-", ""])
def test_a_name_stays_in_the_state_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=r"history\.file: .* is not a name such as history\.json"):
        load(f"{HEAD}history: {{file: '{name}'}}\n", name="x")


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize("folder", ["", "/var/lib/nodeagent/", "/host/var/lib/nodeagent/"])
def test_the_history_replaces_no_other_file_of_the_agent(folder: str, name: str) -> None:
    with pytest.raises(ConfigError, match="the agent has another file of this name"):
        load(f"{HEAD}history: {{file: {folder}{name}}}\n", name="x")
    load(f"{HEAD}history: {{file: /srv/{name}}}\n", name="x")


def test_the_other_files_of_the_agent_are_those_of_its_forms() -> None:
    forms = {name.partition("/")[0] for name in FORMS} - {"history.json"}
    assert set(OWN_NAMES) == forms | {"agent.sock", "cordons.json.broken", "mps", "tell.sh"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_configuration_keeps_its_history_in_the_state_folder_or_nowhere(name: str) -> None:
    assert "/" not in (load(CONFIGS[name].read_text(), name=name).history.file or "")


OLDER = {
    "version": 1,
    "changes": [{"at": 1.0, "what": "nic", "where": "nic0", "before": "up", "after": "down"}],
}


@pytest.mark.parametrize("absolute", [False, True], ids=["name", "absolute path"])
async def test_a_name_lies_in_the_state_folder_and_an_absolute_path_stays_what_it_is(absolute: bool) -> None:
    async with node() as n:
        place = n.folder / "elsewhere/kept.json" if absolute else n.root / "srv/state/kept.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(OLDER))
        file = place if absolute else "kept.json"
        text = f"{HEAD}health: {{stateDirectory: /srv/state}}\nhistory: {{file: {file}}}\n"
        await n.start_agent(load(text, name="x"))
        await n.until(lambda: n.agent.changes.changes[0].at == 1.0)
        assert "history.file" not in (await n.get("/readyz"))[1]
        await n.stop_agent()
        kept = json.loads(place.read_text())["changes"]
        assert {"nic", "agent"} <= {change["what"] for change in kept}


async def test_readyz_names_what_to_write_in_place_of_a_path_that_keeps_nothing() -> None:
    async with node() as n:
        (n.folder / "file").touch()
        await n.start_agent(load(f"{HEAD}history: {{file: {n.folder}/file/kept.json}}\n", name="x"))
        await n.until(lambda: n.agent.history.remark() is not None)
        assert (
            f"history.file: {n.folder}/file/kept.json: {n.folder}/file is not a directory, so changes before a restart "
            "are forgotten; write `history: {file: history.json}`, a name in health.stateDirectory"
        ) in (await n.get("/readyz"))[1]


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("key", AGENT)
def test_the_shipped_pod_may_write_what_is_written_and_nothing_else_that_a_setting_names(key: str) -> None:
    """A name without a folder is below the state folder; the others are where their table says."""
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    value: Any = Config()
    for field in key.split("."):
        value = getattr(value, re.sub(r"([A-Z])", lambda it: f"_{it[1].lower()}", field))
    place = AGENT[key]
    folder = Config().health.state_directory
    if place.relative == STATE:
        value, place = f"{folder}/history.json", place._replace(absolute=HOST)
    path = PurePosixPath(f"/host{value}" if place.absolute == HOST else value or "/etc/nodeagent/x")
    mounts = [it for it in container["volumeMounts"] if path.is_relative_to(it["mountPath"])]
    writable = [it["mountPath"] for it in mounts if not it.get("readOnly")]
    assert bool(writable) is place.written, path


@pytest.mark.parametrize("recorded", [False, True])
async def test_an_agent_in_a_pod_names_a_path_that_ends_with_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """With a machine below --root the agent's own root is that of a container; a simulated machine has none."""
    (tmp_path / "mounts").write_text("1 0 0:1 / / rw - overlay overlay rw\n")
    monkeypatch.setattr(kept_changes, "_MOUNTS", tmp_path / "mounts")
    Machine.load(SMALL).write(tmp_path / "host")
    if not recorded:
        shutil.rmtree(tmp_path / "host/.nodeagent")
    config = load(f"{HEAD}history: {{file: {tmp_path}/own/kept.json}}\n", name="x")
    agent = Agent(config, AgentOptions(tmp_path / "host", tmp_path / "kubelet"))
    assert agent.history is not None
    (tmp_path / "own").mkdir()
    (tmp_path / "own/kept.json").write_text(json.dumps(OLDER))
    keeping = asyncio.create_task(agent.history.keep(agent.changes))
    await until(lambda: agent.changes.changes[0].at == 1.0)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    said = agent.history.remark()
    if recorded:
        assert said is None
    else:
        assert said is not None
        assert "its folder is on no volume of the pod, so changes before a restart are forgotten" in said
