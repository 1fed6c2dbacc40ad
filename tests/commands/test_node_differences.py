"""diff, trouble and explain of nodes that differ from their peers, from reports as the cluster has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli import main
from nodeagent.fabric.node_values import values_text
from nodeagent_lab.sim.machine import Machine
from tests.commands import test_cabling

USUAL = ["model=DGX H100", "NIC firmware=28.43.2026", "MTU=9000", "kernel=6.8.0"]
ODD = ["model=DGX H100", "NIC firmware=28.43.2026; nic3: 28.39.1002", "MTU=1500", "FEC=RS"]


def hall(folder: Path, odd: dict[int, list[str] | None], more: str = "") -> list[str]:
    """The options that read a hall of 16 nodes, of which some have other values; ``None``: it reports none."""
    file = folder / "reports.json"
    document: dict[str, Any] = json.loads(test_cabling.write(file, test_cabling.hall().reports()).read_text())
    for number, item in enumerate(document["items"]):
        if (values := odd.get(number, USUAL)) is not None:
            named = dict(value.split("=", 1) for value in values)
            item["compared"] = {"values": values_text(named), "since": "2026-01-01T00:00:00Z"}
    file.write_text(json.dumps(document))
    fabric = folder / "fabric.yaml"
    fabric.write_text(f"apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n{more}")
    return ["--from", str(file), "--fabric", str(fabric)]


def names(options: list[str]) -> list[str]:
    return [one["nodeName"] for one in json.loads(Path(options[1]).read_text())["items"]]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([*words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_trouble_names_the_odd_node_once_with_all_of_its_values(tmp_path, capsys):
    options = hall(tmp_path, {3: ODD})
    node, peer = names(options)[3], sorted(names(options))[0]
    code, out, _ = run(capsys, "trouble", *options)
    assert code == 1
    assert out.count(f"{node}: 1 of 16 nodes: 2 values are not the usual ones") == 1
    assert "1 node of 16 has MTU 1500, the others 9000" in out
    assert f"do: nodeagent diff {node} {peer}" in out
    assert "1 trouble in 16 nodes" in out


def test_trouble_of_one_value_is_one_line(tmp_path, capsys):
    options = hall(tmp_path, {3: ["model=DGX H100", "MTU=1500"], 5: ["model=DGX H100", "MTU=1500"]})
    _, out, _ = run(capsys, "trouble", *options)
    assert "2 nodes of 16 have MTU 1500, the others 9000" in out


def test_a_rail_that_differs_in_all_nodes_has_a_remedy_of_its_own(tmp_path, capsys):
    values = ["model=DGX H100", "MTU=9000; nic3: 1500"]
    options = hall(tmp_path, dict.fromkeys(range(16), values))
    _, out, _ = run(capsys, "trouble", *options)
    assert "nic3 of 16 nodes has MTU 1500, the others of the same node 9000" in out
    assert 'do: make the rails equal, or enter MTU with like: "*" under `expectedValues`' in out
    more = 'expectedValues: [{value: MTU, like: "*"}]\n'
    code, out, _ = run(capsys, "trouble", *hall(tmp_path, dict.fromkeys(range(16), values), more))
    assert code == 0


def test_a_hall_of_equal_nodes_has_no_trouble(tmp_path, capsys):
    code, out, _ = run(capsys, "trouble", *hall(tmp_path, {}))
    assert (code, out) == (0, "No trouble in 16 nodes with 64 links.\n")


def test_expected_values_of_the_settings_are_named(tmp_path, capsys):
    more = 'expectedValues: [{value: kernel, like: "6.14.*"}]\n'
    _, out, _ = run(capsys, "trouble", *hall(tmp_path, {}, more))
    assert "16 nodes have kernel 6.8.0, and the settings expect 6.14.*" in out


def test_explain_says_in_what_a_node_is_odd(tmp_path, capsys):
    options = hall(tmp_path, {3: ODD})
    _, out, _ = run(capsys, "explain", names(options)[3], *options)
    assert "It is odd: 1 node of 16 has MTU 1500, the others 9000." in out
    _, out, _ = run(capsys, "explain", names(options)[4], *options)
    assert "odd" not in out


def test_diff_compares_a_node_with_most_of_its_model(tmp_path, capsys):
    options = hall(tmp_path, {3: ODD, 4: ["model=DGX H100", "MTU=9000"]})
    node = names(options)[3]
    code, out, _ = run(capsys, "diff", node, *options)
    assert code == 1
    lines = [line.split() for line in out.splitlines()]
    assert ["MTU", "1500", "9000", "15", "of", "16"] in lines
    assert out.endswith(f"2 values of {node} differ from most others of its model.\n")
    assert "FEC" not in out
    _, out, _ = run(capsys, "diff", node, "--all", *options)
    assert ["kernel", "-", "6.8.0", "14", "of", "14"] in [line.split() for line in out.splitlines()]


def test_diff_of_two_nodes_names_their_models_too(tmp_path, capsys):
    options = hall(tmp_path, {3: ["model=GB200", "MTU=1500"]})
    one, other = names(options)[3], names(options)[4]
    code, out, _ = run(capsys, "diff", one, other, *options)
    assert code == 1
    assert out.splitlines()[0].split() == ["VALUE", one, other]
    assert "GB200" in out
    code, out, _ = run(capsys, "diff", other, names(options)[5], *options)
    assert (code, out) == (0, f"No value of {other} differs from {names(options)[5]}.\n")


def test_diff_for_programs(tmp_path, capsys):
    options = hall(tmp_path, {3: ODD})
    _, out, _ = run(capsys, "diff", names(options)[3], "--json", *options)
    document = json.loads(out)
    assert {"cluster", "time", "source"} <= document.keys()
    assert document["node"] == names(options)[3]
    assert {"value": "MTU", "here": "1500", "other": "9000", "nodes": 15, "peers": 16} in document["values"]


def test_diff_says_why_it_cannot_compare(tmp_path, capsys):
    options = hall(tmp_path, {3: None, 4: ["model=alone", "MTU=1"]})
    found = names(options)
    code, _, error = run(capsys, "diff", found[3], *options)
    assert code == 2
    assert "reports no values: set peers.compare" in error
    code, _, error = run(capsys, "diff", found[4], *options)
    assert code == 2
    assert "name a second node" in error
    code, _, error = run(capsys, "diff", "gpu-nobody", *options)
    assert code == 2
    assert "no report is of gpu-nobody" in error


def test_values_of_a_stranger_are_one_line_and_break_nothing(tmp_path, capsys):
    odd = ["model=DGX H100", "MTU=1\n\x1b[31mred", "=", "kernel=", "unknown=1"]
    options = hall(tmp_path, {3: odd})
    _, out, _ = run(capsys, "trouble", *options)
    assert "\x1b" not in out
    assert "has MTU 1\\n\\x1b[31mred" in out


# --- captures -----------------------------------------------------------------------------------------------


def captured(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A capture of a simulated node whose kernel has answered about its NICs."""
    machine = folder.parent / f"{folder.name}-machine"
    Machine.load("two-gpu-two-nic").write(machine)
    for path, text in {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz iommu=pt quiet\n",
        ".nodeagent/nic_settings.json": '{"0000:18:00.0": {"pfc": [3], "rings": "rx 8192 tx 8192"}}',
    }.items():
        (machine / path).parent.mkdir(parents=True, exist_ok=True)
        (machine / path).write_text(text)
    assert run(capsys, "capture", "--root", str(machine), str(folder))[0] == 0
    return str(folder)


def test_diff_of_two_captures_needs_no_cluster(tmp_path, capsys, monkeypatch):
    one, other = captured(tmp_path / "one", capsys), captured(tmp_path / "other", capsys)
    assert run(capsys, "diff", one, other)[:2] == (0, f"No value of {one} differs from {other}.\n")
    (Path(other) / ".nodeagent/nic_settings.json").write_text(
        '{"0000:18:00.0": {"pfc": [3], "rings": "rx 512 tx 512"}}'
    )
    (Path(other) / "proc/cmdline").write_text("BOOT_IMAGE=/vmlinuz quiet\n")
    gpus = Path(other) / ".nodeagent/gpus.json"
    document = json.loads(gpus.read_text())
    document["gpus"][1]["values"]["gpu_ecc_mode"] = 0
    gpus.write_text(json.dumps(document))
    code, out, error = run(capsys, "diff", one, other)
    assert (code, error) == (1, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "GPU ECC mode on gpu0: on; gpu1: off" in lines
    assert "rings rx 8192 tx 8192 rx 512 tx 512" in lines
    assert "boot parameters iommu=pt none" in lines
    assert lines[-1] == f"3 values of {one} differ from {other}."
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "diff", "./one", "./other/", "--json")
    document = json.loads(out)
    assert (document["cluster"], document["source"]) == (None, "captures")
    assert [value["value"] for value in document["values"]] == ["GPU ECC mode", "rings", "boot parameters"]


def test_diff_compares_a_capture_with_a_node_and_with_most_of_its_model(tmp_path, capsys):
    place = captured(tmp_path / "one", capsys)
    _, out, _ = run(capsys, "diff", place, place, "--all", "--json")
    model = json.loads(out)["values"][0]["here"]
    options = hall(tmp_path, {key: [f"model={model}", "rings=rx 512 tx 512"] for key in range(16)})
    for words in ((place,), (place, names(options)[0]), (names(options)[0], place)):
        code, out, _ = run(capsys, "diff", *words, *options)
        assert code == 1
        assert "rx 8192 tx 8192" in out
        assert "rx 512 tx 512" in out


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (".nodeagent/gpus.json", None, "it holds no captured machine"),
        (".nodeagent/gpus.json", "{", "it cannot be read"),
        (".nodeagent/gpus.json", '{"failure": {"call": "vitals", "error": "lost"}}', "it cannot be read"),
        (".nodeagent/nic_settings.json", '{"0000:18:00.0": 7}', "has no settings of NICs"),
        (".nodeagent/samples.json", "[7]", "is not a list of samples"),
    ],
)
def test_a_folder_that_is_no_capture_is_named_with_the_remedy(tmp_path, capsys, file, content, said):
    place = captured(tmp_path / "one", capsys)
    (Path(place) / file).unlink()
    if content is not None:
        (Path(place) / file).write_text(content)
    code, _, error = run(capsys, "diff", place, place)
    assert code == 2
    assert said in " ".join(error.split())
    assert "expected a folder that `nodeagent capture` has written" in " ".join(error.split())


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    code, _, error = run(capsys, "diff", str(tmp_path / "nowhere"), "./neither")
    assert code == 2
    assert "nowhere" in error


def test_a_capture_of_an_earlier_version_has_less_and_no_difference(tmp_path, capsys):
    one, other = captured(tmp_path / "one", capsys), captured(tmp_path / "other", capsys)
    (Path(other) / ".nodeagent/nic_settings.json").unlink()
    (Path(other) / "proc/cmdline").unlink()
    assert run(capsys, "diff", one, other)[0] == 0


def test_the_name_of_a_folder_is_shown_as_plain_text(tmp_path, capsys):
    one, other = captured(tmp_path / "o\x1b[31mne", capsys), captured(tmp_path / "other", capsys)
    (Path(other) / "proc/cmdline").write_text("quiet\n")
    code, out, _ = run(capsys, "diff", one, other)
    assert code == 1
    assert "\x1b" not in out
