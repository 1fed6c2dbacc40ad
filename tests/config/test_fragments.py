"""Several files make one configuration: merged by key in the order of their names, and each fault has its file."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent_config import Config, config_digest, load
from nodeagent.cli import main
from nodeagent.config import config_files
from nodeagent.config.config_files import read_config_files, watched_folders
from nodeagent.config.file_errors import ConfigError
from nodeagent.config.followed_configuration import configuration_files
from nodeagent.config.merged_tree import ConfigFile
from nodeagent.controller_config import read_fabric

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
FABRIC = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"


def folder(place: Path, **files: str) -> Path:
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(text)
    return place


def read(path: Path) -> Config:
    return load(configuration_files(path), name=str(path))


def faults(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(path)
    return [line.replace(f"{path}/", "") for line in str(refused.value).splitlines()]


def test_mappings_are_merged_at_each_depth(tmp_path: Path) -> None:
    place = folder(
        tmp_path / "c",
        a=HEAD + "cluster: {conditions: true}\ngpu: {health: {processes: true}}\n",
        b=HEAD + "cluster: {taint: {enabled: true}}\n",
        c="cluster: {taint: {railsDown: 2}}\nrails: {probe: true}\n",
    )
    config = read(place)
    whole = (
        HEAD + "cluster: {conditions: true, taint: {enabled: true, railsDown: 2}}\n"
        "gpu: {health: {processes: true}}\nrails: {probe: true}\n"
    )
    assert config == load(whole, name="whole")
    assert config_digest(config) == config_digest(load(whole, name="whole"))


def test_the_fragments_of_a_file_are_in_the_folder_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "nodeagent.yaml"
    file.write_text(HEAD + "resources: []\n")
    alone = read(file)
    folder(tmp_path / "nodeagent.d", rails=HEAD + "rails: {probe: true}\n")
    assert not alone.rails.probe
    assert read(file).rails.probe
    assert read(file).resources == ()
    assert list(watched_folders(file)) == [tmp_path, tmp_path / "nodeagent.d"]


def test_what_is_set_twice_is_an_error_with_both_places(tmp_path: Path) -> None:
    place = folder(
        tmp_path / "c",
        a=HEAD + "cluster:\n  conditions: true\nresources: []\n",
        b=HEAD + "resources:\n- {kind: vf}\ncluster: {conditions: true}\n",
        c=HEAD + "cluster: none\n",
    )
    assert faults(place) == [
        "b.yaml:3:1: resources: is set twice, in a.yaml:5 and in b.yaml:3; keep one",
        "b.yaml:5:11: cluster.conditions: is set twice, in a.yaml:4 and in b.yaml:5; keep one",
        "c.yaml:3:1: cluster: is set twice, in a.yaml:3 and in c.yaml:3; keep one",
    ]


def test_each_fault_has_its_file_and_its_line(tmp_path: Path) -> None:
    place = folder(
        tmp_path / "c",
        a=HEAD + "resources:\n- {kind: gpu-mem, sliceMiB: 0}\nrials: {}\n",
        b=HEAD + "\n\ncluster: {cnditions: true, taint: {enabled: maybe}}\n",
        c=HEAD + "vfs:\n- {select: {pciAddresses: ['*'], drivers: [a, a]}, count: 1}\n",
    )
    assert faults(place) == [
        "a.yaml:4:29: resources[0].sliceMiB: must be at least 1, is 0",
        "a.yaml:5:1: rials: unknown key; did you mean rails?",
        "b.yaml:5:11: cluster.cnditions: unknown key; did you mean conditions?",
        'b.yaml:5:45: cluster.taint.enabled: must be true or false, is "maybe"',
        'c.yaml:4:47: vfs[0].select.drivers[1]: "a" is in the list already, in line 4',
    ]


def test_a_conflict_between_two_files_names_the_place_of_each(tmp_path: Path) -> None:
    place = folder(
        tmp_path / "c",
        a=HEAD + "cluster: {evict: {enabled: true}}\n",
        b=HEAD + "kubelet: {podResources: false}\nresources: [{kind: gpu-mem, enforcement: evict}]\n",
    )
    assert {tuple(line.split(":")[:2]) for line in faults(place)} == {("b.yaml", "4")}
    for file, setting in ("a", "rails: {probe: true}"), ("b", "vfs: []\nkubelet: {podResources: false}"):
        (place / f"{file}.yaml").write_text(f"{HEAD}{setting}\n")
    (place / "c.yaml").write_text("resources: [{kind: gpu-mem, enforcement: evict}]\n")
    assert {line.split(":")[0] for line in faults(place)} == {"c.yaml"}


def test_the_files_of_one_configuration_have_one_kind(tmp_path: Path) -> None:
    place = folder(tmp_path / "c", a=HEAD, b=FABRIC)
    assert faults(place) == [
        'b.yaml:2:1: kind: is "FabricConfig", but "NodeAgentConfig" in a.yaml:2; '
        "the files of one configuration have one"
    ]
    (place / "a.yaml").write_text("resources: []\n")
    (place / "b.yaml").unlink()
    assert faults(place)[0].startswith("a.yaml:1:1: apiVersion: is missing")


def test_a_fragment_that_is_no_mapping_is_named(tmp_path: Path) -> None:
    assert faults(folder(tmp_path / "a", a=HEAD, b="- 1\n"))[0].startswith(
        "b.yaml:1:1: the file must hold a mapping"
    )
    assert faults(folder(tmp_path / "b", a="[]", b=HEAD))[0].startswith(
        "a.yaml:1:1: the file must hold a mapping"
    )
    assert faults(folder(tmp_path / "c", a=HEAD, b="x: [\n"))[0].startswith("b.yaml:2:1: not YAML: ")
    assert faults(folder(tmp_path / "d", a=HEAD, b="x: \x07\n"))[0].startswith("b.yaml:1:4: not YAML: ")


def test_a_fragment_without_content_counts_for_nothing_unless_all_are_empty(tmp_path: Path) -> None:
    place = folder(tmp_path / "c", a="# rails: {probe: true}\n", b=HEAD, c="")
    assert read(place) == Config()
    (place / "b.yaml").unlink()
    assert faults(place) == [
        "a.yaml:1:1: the file is empty; `nodeagent config defaults` prints one to start from"
    ]


def test_hidden_files_other_endings_and_folders_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder(tmp_path / "c", a=HEAD)
    for name in (".b.yaml", ".a.yaml.swp", "b.yml", "b.yaml~", "README"):
        (place / name).write_text("not: [read")
    (place / "more.yaml").mkdir()
    assert read(place) == Config()
    assert main(["config", "check", str(place)]) == 0
    printed = capsys.readouterr().out
    for name in ("README", "b.yaml~", "b.yml", "more.yaml"):
        assert f"note: {place / name} is not read: the name of a fragment ends in .yaml" in printed
    assert ".b.yaml" not in printed


def test_a_folder_without_fragments_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", str(tmp_path)]) == 2
    assert f"{tmp_path}: cannot be read: no file in this folder ends in .yaml;" in capsys.readouterr().err
    folder(tmp_path / "nodeagent.d")
    (tmp_path / "nodeagent.yaml").write_text(HEAD)
    assert read(tmp_path / "nodeagent.yaml") == Config()


def test_a_fragment_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path / "c", a=HEAD)
    (place / "b.yaml").symlink_to("nowhere")
    assert faults(place) == ["b.yaml: cannot be read: No such file or directory"]
    (place / "b.yaml").unlink()
    os.mkfifo(place / "b.yaml")
    assert faults(place) == ["b.yaml: cannot be read: it is a named pipe; put a regular file there"]


def test_the_number_and_the_size_of_fragments_are_bounded(tmp_path: Path) -> None:
    place = folder(tmp_path / "c", a=HEAD)
    for i in range(config_files.FRAGMENTS_MAX - 1):
        (place / f"f{i}.yaml").write_text("")
    assert read(place) == Config()
    (place / "one-more.yaml").write_text("")
    assert faults(place)[0].endswith("it has more than 64 files that end in .yaml; put several into one")
    half = "# " + "x" * (1 << 19) + "\n"
    big = folder(tmp_path / "big", a=HEAD + half, b=half)
    assert faults(big)[0].startswith("b.yaml: the file is larger than") or "b.yaml:1:1" in faults(big)[0]
    huge = folder(tmp_path / "huge", a=HEAD)
    for name in ("b", "c"):
        with (huge / f"{name}.yaml").open("w") as file:
            file.truncate(config_files.CONFIG_BYTES_MAX - 1000)
    assert (
        "c.yaml: cannot be read: the files of the configuration have more than 4194304 bytes"
        in faults(huge)[0]
    )


def test_the_values_of_all_fragments_count_together(tmp_path: Path) -> None:
    many = "a: &a [" + "x," * 200 + "]\nb: &b [" + "*a," * 20 + "]\nKEY: [" + "*b," * 8 + "]\n"
    first, second = (ConfigFile(name, many.replace("KEY", name)) for name in ("first", "second"))
    with pytest.raises(ConfigError, match=r"^second:.*expands to more than"):
        load((ConfigFile("head", HEAD), first, second), name="x")


class ConfigMap:
    """A mounted ConfigMap of fragments, which the kubelet replaces by the link ``..data``."""

    def __init__(self, place: Path, **data: str) -> None:
        self.place, self._swaps = place, 0
        place.mkdir()
        self.swap(**data)

    def swap(self, *, tidy: bool = True, **data: str) -> None:
        before = self._swaps
        self._swaps += 1
        version = self.place / f"..{self._swaps}"
        version.mkdir()
        for key, text in data.items():
            (version / f"{key}.yaml").write_text(text)
        (self.place / "..data_tmp").symlink_to(version.name)
        (self.place / "..data_tmp").rename(self.place / "..data")
        if tidy:
            self.tidy(before, {f"{key}.yaml" for key in data})

    def tidy(self, before: int, names: set[str]) -> None:
        for name in names:
            if not (self.place / name).is_symlink():
                (self.place / name).symlink_to(f"..data/{name}")
        for old in self.place.glob("*.yaml"):
            if old.name not in names:
                old.unlink()
        if before:
            for old in (self.place / f"..{before}").iterdir():
                old.unlink()
            (self.place / f"..{before}").rmdir()


def test_the_files_behind_the_link_are_read_also_while_the_kubelet_replaces_them(tmp_path: Path) -> None:
    """Before the end of the update the links to former keys lead nowhere, and new keys have none."""
    files = ConfigMap(tmp_path / "c", a=HEAD, b="rails: {probe: true}\n")
    assert read(files.place).rails.probe
    files.swap(tidy=False, a=HEAD, c="cluster: {conditions: true}\n")
    config = read(files.place)
    assert not config.rails.probe
    assert config.cluster.conditions
    assert [name for name, _ in read_config_files(files.place)] == [
        str(files.place / "a.yaml"),
        str(files.place / "c.yaml"),
    ]


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ConfigMap(tmp_path / "c", a=HEAD, b="rails: {probe: true}\n")
    listed = config_files._fragments

    def replaced_meanwhile(place: Path) -> list[str]:
        names = listed(place)
        monkeypatch.setattr(config_files, "_fragments", listed)
        files.swap(a=HEAD, c="cluster: {conditions: true}\n")
        return names

    monkeypatch.setattr(config_files, "_fragments", replaced_meanwhile)
    config = read(files.place)
    assert (config.rails.probe, config.cluster.conditions) == (False, True)


def test_the_controller_reads_a_folder_and_the_files_that_it_names_in_it(tmp_path: Path) -> None:
    place = folder(tmp_path / "c", a=FABRIC + "minLinks: 2\n", b=FABRIC + "jobs: true\ntopology: known.txt\n")
    (place / "known.txt").write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\nswitches: [{name: leaf-1}]\n"
    )
    config, topology = read_fabric(place)
    assert (config.min_links, config.jobs) == (2, True)
    assert len(topology.uplinks) == 1
    file = tmp_path / "fabric.yaml"
    file.write_text(FABRIC + "minLinks: 3\n")
    folder(tmp_path / "fabric.d", jobs="jobs: true\n")
    assert (read_fabric(file)[0].min_links, read_fabric(file)[0].jobs) == (3, True)
    (tmp_path / "fabric.d" / "more.yaml").write_text("minLinks: 4\n")
    with pytest.raises(
        ConfigError, match=r"minLinks: is set twice, in .*fabric\.yaml:3 and in .*more\.yaml:1"
    ):
        read_fabric(file)


def test_the_check_of_a_folder_says_what_it_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "c", a=HEAD + "resources: []\n", b="rails: {probe: true}\n")
    assert main(["config", "check", str(place)]) == 0
    assert "good, 0 resources configured, 2 files" in capsys.readouterr().out
    fabric = folder(tmp_path / "f", a="jobs: true\n", b=FABRIC)
    assert main(["config", "check", str(fabric)]) == 0
    assert "good, configuration of the controller, 2 files" in capsys.readouterr().out
    (fabric / "b.yaml").write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\n")
    assert main(["config", "check", str(fabric)]) == 1
    assert "b.yaml:2:7: kind: " in capsys.readouterr().err


SETTINGS = (
    "minLinks: 1",
    "jobs: true",
    "rails: {probe: true}",
    "nodes: {startupTaint: true}",
    "nodes: {minLinksCondition: true}",
    "tiers: {assumeFullBisection: true}",
)


@given(st.permutations(range(len(SETTINGS))), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_the_merged_configuration_does_not_depend_on_how_it_is_divided(
    order: list[int], part: list[int]
) -> None:
    from nodeagent.controller_config import load_fabric

    files = [ConfigFile("head", FABRIC)]
    for number, chosen in itertools.groupby(sorted(order, key=lambda i: part[i]), key=lambda i: part[i]):
        lines = [SETTINGS[i] for i in chosen]
        # One mapping of a name in a file: the others go to a file of their own.
        first = {line.split(":")[0]: line for line in reversed(lines)}
        files.append(ConfigFile(f"p{number}", "\n".join(first.values())))
        files += [
            ConfigFile(f"p{number}-{i}", line) for i, line in enumerate(lines) if line not in first.values()
        ]
    whole = FABRIC + "\n".join(
        (*SETTINGS[:3], "nodes: {startupTaint: true, minLinksCondition: true}", SETTINGS[5])
    )
    assert load_fabric(tuple(files), name="x") == load_fabric(whole, name="x")
