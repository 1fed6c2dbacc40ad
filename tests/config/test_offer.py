"""`offer`: what entries of `resources` have that do not say it themselves."""

from __future__ import annotations

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import load_fabric
from nodeagent.kinds.resource_settings import GpuMemResource, GpuResource, MigResource, VfResource

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def read(text: str) -> Config:
    return load(HEAD + text, name="x")


def test_entries_without_a_word_of_their_own_take_it() -> None:
    config = read(
        "offer: {mode: dra, enforcement: env}\n"
        "resources: [{kind: vf}, {kind: gpu-mem, enforcement: none, select: {indexes: ['0']}},"
        " {kind: gpu, select: {indexes: ['1']}}]\n"
    )
    vf, memory, whole = config.resources
    assert isinstance(vf, VfResource)
    assert isinstance(memory, GpuMemResource)
    assert isinstance(whole, GpuResource)
    assert (vf.mode, memory.mode, memory.enforcement) == ("dra", "dra", "none")


def test_an_entry_that_says_another_word_keeps_it() -> None:
    config = read("offer: {mode: dra}\nresources: [{kind: vf, mode: devicePlugin}, {kind: gpu-mem}]\n")
    assert [entry.by_claim for entry in config.resources] == [False, True]


def test_the_default_entries_take_it_too() -> None:
    assert read("").resources == Config().resources
    assert [entry.by_claim for entry in read("offer: {mode: dra}\n").resources] == [True, True, False]
    assert [entry.by_claim for entry in read("offer: {mig: dra}\n").resources] == [False, False, True]


@pytest.mark.parametrize("mode", ["devicePlugin", "dra"])
def test_mig_devices_are_offered_beside_other_entries(mode: str) -> None:
    config = read(f"offer: {{mig: {mode}}}\nresources: [{{kind: vf}}]\n")
    assert config.resources == (VfResource(), MigResource(mode=mode))  # type: ignore[arg-type]
    own = read(f"offer: {{mig: {mode}}}\nresources: [{{kind: mig, name: 'x-{{profile}}'}}]\n")
    assert own.resources == (MigResource(name="x-{profile}", mode=mode),)  # type: ignore[arg-type]
    assert read(f"offer: {{mig: {mode}}}\nresources: []\n").resources == ()


def test_a_conflict_stands_at_the_entry() -> None:
    with pytest.raises(
        ConfigError, match=r"^x:4:13: resources\[0\]\.volcano: Volcano's deviceshare needs mode"
    ):
        read("offer: {mode: dra, volcano: true}\nresources: [{kind: gpu-mem}]\n")


@pytest.mark.parametrize(
    "text",
    ["offer: {mode: maybe}\n", "offer: []\n", "offer: {mig: true}\n", "offer: {volcano: 1}\nresources: 3\n",
     "offer: {mode: dra}\nresources: [3, {kind: none}, {kind: vf, mode: 1}]\n"],
)  # fmt: skip
def test_a_wrong_word_is_an_error_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x:[34]:"):
        read(text)


def test_outputs_that_are_enabled_are_in_outputs() -> None:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
    config = load_fabric(head + "slurm: {enabled: true}\nnodeFeatureGroups: {enabled: true}\n", name="x")
    assert config.outputs == ("hypernodes", "labels", "slurm", "nodefeaturegroups")
    twice = load_fabric(head + "outputs: [slurm]\nslurm: {enabled: true}\n", name="x")
    assert twice.outputs == ("slurm",)
