"""plan, explain and topology: whole answers, the same for any order of the input, and input that is none."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from nodeagent.cli import main
from nodeagent.fabric.nodelinks import HeldVf, NodeLink, VfHolder
from nodeagent.facts.remedies import remedy_of
from tests.commands.test_cabling import hall, write
from tests.commands.test_trouble import down
from tests.support import golden
from tests.support.fabrics import Cables, End, links, rails, single

GOLDEN = Path(__file__).parents[1] / "golden"
BISECTION = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntiers: {assumeFullBisection: true}\n"


def objects(cables: Cables) -> list[dict[str, Any]]:
    return [
        json.loads(
            msgspec.json.encode(links(node, row, api_version="nodeagent.io/v1alpha1", kind="NodeLinks"))
        )
        for node, row in cables.items()
    ]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Two scalable units of four nodes, one wrong cable, one link without a neighbor."""
    cables = rails(2, 4)
    cables["su000-n000"] = (End("su001-leaf-r0", "swp60"), *cables["su000-n000"][1:])
    cables["su001-n003"] = (*cables["su001-n003"][:7], None)
    file = tmp_path / "links.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(cables)}))
    return file


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    file = tmp_path / "fabric.yaml"
    file.write_text(BISECTION)
    return file


def says(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(one) for one in arguments]) == 0
    return timeless(capsys.readouterr().out)


def timeless(text: str) -> str:
    """The same without the time and the source of a document."""
    return re.sub(r'^  "(time|source)": "(.*)",$', r'  "\1": "…",', text, flags=re.MULTILINE)


FORMS = {
    "plan.txt": ("plan",),
    "plan.json": ("plan", "--json"),
    "plan.yaml": ("plan", "--yaml"),
    "plan.diff": ("plan", "--diff"),
    "explain-node.txt": ("explain", "su000-n000"),
    "explain-switch.txt": ("explain", "su001-leaf-r0"),
    "explain-hypernode.txt": ("explain", "nodeagent-t1-su000-leaf-r0-67333430"),
    "topology.txt": ("topology",),
    "topology-whole.txt": ("topology", "--whole"),
    "topology.conf": ("topology", "--format", "slurm"),
    "topology.json": ("topology", "--format", "json"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.golden("tests/golden/fabric-*")
def test_whole_answers(name: str, reports: Path, fabric: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, *FORMS[name], "--from", reports, "--fabric", fabric)
    golden.same(GOLDEN / f"fabric-{name}", said)


@pytest.mark.parametrize("name", ["single-rail-2leaf-4node", "rail-optimised-2su"])
def test_the_objects_that_a_user_expects(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Published under names given before, the whole objects are as they should be and stay so byte for byte."""
    cables: Cables = {}
    if name.startswith("single"):
        cables = {f"gpu-{i}": (End(f"leaf0{i // 2 + 1}", f"swp{i}"),) for i in range(4)}
    else:
        for i in range(8):
            row = tuple(End(f"su0{i // 4 + 1}-leaf-r{rail}", f"swp{i}") for rail in range(8))
            cables[f"dgx-00{i + 1}"] = row
    (tmp_path / "links.yaml").write_text(yaml.safe_dump_all(objects(cables)))
    (tmp_path / "fabric.yaml").write_text(BISECTION)
    current = GOLDEN / f"hypernodes-{name}.yaml"
    # Only leaf switches report the spine of the second tree, and this input has no reports of switches.
    common = ("--from", tmp_path / "links.yaml", "--fabric", tmp_path / "fabric.yaml")
    plan = json.loads(says(capsys, "plan", "--json", *common, "--current", current))
    assert plan["writes"] == []
    assert plan["anomalies"] == plan["unplaced"] == []
    assert plan["hypernodes"] == list(yaml.safe_load_all(current.read_text()))
    assert says(capsys, "plan", "--diff", *common, "--current", current) == ""
    anew = json.loads(says(capsys, "plan", "--json", *common))
    assert [strip(one) for one in anew["hypernodes"]] == [strip(one) for one in plan["hypernodes"]]
    assert [one["verb"] for one in anew["writes"]] == ["create"] * 3
    assert set(plan["labels"]) == set(cables)


def strip(hypernode: dict[str, Any]) -> str:
    """Without the digests at the end of names."""
    text = json.dumps(hypernode).replace("spine-lldp", "assume-full-bisection")
    for name in {
        hypernode["metadata"]["name"],
        *(m["selector"]["exactMatch"]["name"] for m in hypernode["spec"]["members"]),
    }:
        if name.startswith("nodeagent-"):
            text = text.replace(name, name.rpartition("-")[0])
    return text


def test_the_same_bytes_for_any_order_form_and_hash_seed(reports: Path, tmp_path: Path) -> None:
    items = json.loads(reports.read_text())["items"]
    said = set()
    for seed in range(5):
        random.Random(seed).shuffle(items)
        file = tmp_path / "shuffled.yaml"
        match seed:
            case 0:
                file.write_text(yaml.safe_dump_all(items))
            case 1:
                file.write_text("\n".join(map(json.dumps, items)))
            case 2:
                file.write_text(json.dumps({"kind": "NodeLinksList", "items": items}))
            case 3:
                file.write_text(json.dumps(items, indent=1))
            case _:
                file.write_text("\n" + "\n".join(json.dumps(item, indent=4) for item in items) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent", "plan", "--json", "--from", str(file)],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )
        said.add(timeless(done.stdout.decode()))
    assert len(said) == 1


def test_a_folder_and_the_standard_input(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, one in enumerate(json.loads(reports.read_text())["items"]):
        (folder / f"{i}.yaml").write_text(yaml.safe_dump(one))
    (folder / "notes.txt").write_text("{ this file is not read")
    whole = says(capsys, "plan", "--json", "--from", reports)
    assert says(capsys, "plan", "--json", "--from", folder) == whole
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "plan", "--json", "--from", "-"],
        input=reports.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert timeless(done.stdout.decode()) == whole


def plan(capsys: pytest.CaptureFixture[str], tmp_path: Path, items: list[Any], *more: object) -> Any:
    file = tmp_path / "in.json"
    file.write_text(json.dumps(items))
    return json.loads(says(capsys, "plan", "--json", "--from", file, *more))


def test_bad_reports_are_refused_with_the_reason_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = objects(single(2, 2))
    claimed = objects({"evil": (End("tor001", "x"),)})[0]
    claimed["nodeName"] = "r000-n000"
    many = objects({"many": tuple(End("tor000", f"p{i}") for i in range(1000))})[0]
    future = objects({"future": (End("tor000", "Ethernet77"),)})[0]
    future["links"][0]["lastTransitionTime"] = "2999-01-01T00:00:00Z"
    long = objects({"long": (End("x" * 5000, "1"),)})[0]
    twice = objects({"twice": (End("tor000", "1a"), End("tor000", "1b"))})[0]
    twice["links"][1]["name"] = twice["links"][0]["name"]
    nulls = objects({"nulls": (End("tor000", "1c"),)})[0]
    nulls["links"][0]["reasons"] = None
    bad = [
        claimed,
        many,
        future,
        long,
        twice,
        nulls,
        {"kind": "NodeLinks", "metadata": {"name": "half"}},
        {"kind": "NodeLinks", "metadata": {"name": "wrong"}, "nodeName": "wrong", "links": [{"name": 3}]},
        {"kind": "NodeLinks", "metadata": {"name": "Bad_Name"}, "nodeName": "Bad_Name", "links": []},
        {"kind": "NodeLinks"},
        {"kind": "NodeLinks", "links": 5},
        {"kind": "NodeLink", "metadata": {"name": "mistyped"}, "nodeName": "mistyped", "links": []},
        {"kind": "Pod", "metadata": {"name": "x"}},
    ]
    file = tmp_path / "in.json"
    file.write_text(json.dumps(good + bad))
    assert main(["plan", "--json", "--from", str(file)]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (
        f"objects of other kinds are left out, the first at {file}:1: an object of kind 'NodeLink'"
        in said.err
    )
    reasons = {one["node"]: one["reason"] for one in found["unplaced"]}
    nameless = {"(report 14, without a name)", "(report 15, without a name)"}
    assert set(reasons) == {"evil", "many", "long", "twice", "half", "wrong", "Bad_Name", *nameless}
    assert "names the node r000-n000" in reasons["evil"]
    assert "1000 links" in reasons["many"]
    assert "$.links[0].name" in reasons["wrong"]
    assert set(found["labels"]) == {*single(2, 2), "future", "nulls"}


def test_a_report_of_a_node_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [{"kind": "Node", "metadata": {"name": name, "labels": {}}} for name in list(single(2, 2))[:3]]
    found = plan(capsys, tmp_path, objects(single(2, 2)) + nodes)
    assert found["unplaced"] == [{"node": "r001-n001", "reason": "no Node has this name"}]


def test_the_latest_of_two_reports_counts_in_either_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (objects({"n": (End(switch, "1"),)})[0] for switch in ("b", "a"))
    old["metadata"]["resourceVersion"], new["metadata"]["resourceVersion"] = "9", "10"
    one, two = plan(capsys, tmp_path, [old, new]), plan(capsys, tmp_path, [new, old])
    assert one == two
    assert one["hypernodes"][0]["metadata"]["annotations"]["nodeagent.io/switches"] == "a"


def stranger(*nodes: str, **spec: Any) -> dict[str, Any]:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in nodes]
    labels = {"volcano.sh/network-topology-source": "ufm"}
    return {
        "kind": "HyperNode",
        "metadata": {"name": "theirs", "labels": labels},
        "spec": {"tier": 1, "members": members + spec.get("members", [])},
    }


def test_nothing_is_written_where_others_hold_our_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [*objects(single(2, 2)), stranger("r000-n000", "elsewhere")]
    found = plan(capsys, tmp_path, items)
    assert found["writes"] == []
    assert len(found["hypernodes"]) == 2
    file = tmp_path / "in.json"
    assert main(["plan", "--json", "--from", str(file)]) == 0
    said = capsys.readouterr().err
    assert "theirs (source ufm)" in said
    assert "foreign: yield" in said


@pytest.mark.parametrize(
    "member",
    [
        {"type": "Node", "selector": {"regexMatch": {"pattern": "r000-n00[01]"}}},
        {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"rack": "0"}}}},
        {"type": "Node", "selector": {"regexMatch": {"pattern": "(a+)+$"}}},
    ],
    ids=["a pattern", "labels", "a pattern that costs too much to try"],
)
def test_others_may_select_instead_of_name(
    member: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(capsys, tmp_path, [*objects(single(2, 2)), stranger(members=[member])])["writes"] == []


def test_nodes_of_others_are_left_to_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\nforeign: yield\n")
    items = [*objects(single(2, 2)), stranger("r000-n000")]
    found = plan(capsys, tmp_path, items, "--fabric", fabric)
    assert [one["node"] for one in found["unplaced"]] == ["r000-n000"]
    assert len(found["writes"]) == 2
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\nforeign: own\n")
    assert plan(capsys, tmp_path, items, "--fabric", fabric)["unplaced"] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("a: [", "not YAML"),
        ("[" * 100_000, "nested"),
        ("- " * 100_000, "nested"),
        ("a: &x 1\nb: *x", "aliases are not read"),
        ("\x00", "not YAML"),
    ],
    ids=["half an object", "half a list", "deep", "deep in blocks", "aliases", "no text"],
)
def test_a_file_that_is_none_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.yaml"
    file.write_text(text)
    assert main(["plan", "--from", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(file) in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ('{\n"kind": "NodeLinks",\n"nodeName" "x"\n}', "in.json:7: not JSON: Expecting ':' delimiter"),
        ('{\n"kind": "NodeLinks"\n', "in.json:7: not JSON: Expecting ',' delimiter"),
        ("[" * 100_000, "nested too deep"),
        ('{\n"kind": "Pod"\n}\n"x"', "in.json:8: 'x' is no Kubernetes object"),
        ('{\n"kind": "NodeLinks",\n"apiVersion": "v9"\n}', "in.json:5: NodeLinks of apiVersion 'v9'"),
    ],
    ids=["a fault", "half an object", "deep", "no object", "another version"],
)
def test_a_fault_after_the_first_of_several_json_objects_is_named_with_its_line(
    second: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.json"
    file.write_text(f'\n{{\n"kind": "Node"\n}}\n{second}')
    assert main(["plan", "--from", str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", '{"kind": "List", "items": []}', "kind: NodeLinksList\nitems: []\n"])
def test_an_empty_list_gives_an_empty_plan_with_a_note(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.yaml"
    file.write_text(text)
    assert main(["plan", "--json", "--from", str(file)]) == 0
    out, err = capsys.readouterr()
    empty = {"hypernodes": [], "labels": {}, "anomalies": [], "unplaced": [], "writes": []}
    assert json.loads(out).items() >= empty.items()
    assert "no NodeLinks" in err


def test_explain_names_expired_links_that_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.yaml"
    cables = {"gpu-1": (End("leaf-a", "swp1"), End("leaf-b", "swp1", stale=True))}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(cables)}))
    assert main(["explain", "gpu-1", "--from", str(file)]) == 0
    out = capsys.readouterr().out
    assert "1 link has expired LLDP information" in out
    assert "expired, not counted" in out


@pytest.mark.parametrize("typed", ["su0-leaf2", "SU0-LEAF2", "02:00:00:00:00:02"])
def test_a_switch_that_is_off_is_explained_by_what_was_heard_of_it(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def off(link: NodeLink) -> NodeLink:
        neighbor = link.neighbor
        if neighbor is None or neighbor.system_name != "su0-leaf2":
            return link
        chassis = structs.replace(neighbor.chassis_id, value="02:00:00:00:00:02")
        return down(structs.replace(link, neighbor=structs.replace(neighbor, chassis_id=chassis)))

    made = hall().reports()
    reports = [structs.replace(one, links=tuple(map(off, one.links))) for one in made]
    held = VfHolder(
        namespace="ml",
        pod="train-0",
        since="2027-01-15T07:00:00Z",
        vfs=(HeldVf(link="rail2", pci_address="0000:00:00.1"),),
    )
    reports = [
        structs.replace(one, holders=(held,)) if one.node_name == "su0-n03" else one for one in reports
    ]
    file = write(tmp_path / "in.json", reports)
    (tmp_path / "current").write_text(
        says(capsys, "plan", "--yaml", "--from", write(tmp_path / "a.json", made))
    )
    common = ("--from", file, "--current", tmp_path / "current")
    said = says(capsys, "explain", typed, *common)
    assert f"The switch {typed} is known by expired LLDP information alone" in said
    assert "It carries 8 links of 8 nodes." in said
    assert "1 pod with VFs of these links: ml/train-0 on su0-n03." in said
    assert "8 links of 8 nodes went down at once, for " in said
    assert "do: check the switch su0-leaf2" in said
    rows = [line.split() for line in said.splitlines()[-8:]]
    assert [row[0] for row in rows] == [f"su0-n0{i}" for i in range(8)]
    assert {row[-2:][0] for row in rows} == {"expired"}
    assert {row[-1] for row in rows} == {"down"}
    if typed != "02:00:00:00:00:02":
        assert "lists it; expired information moves no node." in said
    document = json.loads(says(capsys, "explain", "--json", typed, *common))
    assert document["kind"] == "switch"
    assert len(document["links"]) == 8
    said = says(capsys, "explain", "su0-n00", *common)
    assert ["down" in line.split() for line in said.splitlines()[-4:]] == [False, False, True, False]


def test_what_is_similar_to_itself_is_not_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown name resembles other names alone."""
    made = hall().reports()
    file = write(tmp_path / "in.json", made)
    for typed in ("su0-leaf22", "su0-n000", "su0-n00x"):
        assert main(["explain", typed, "--from", str(file)]) != 0
        _, _, similar = capsys.readouterr().err.partition("similar are ")
        assert typed not in similar.partition(";")[0].split(", ")


def test_a_typing_error_gets_the_similar_names(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, meant in (("gpu-04", "gpu-004"), ("hall1-su1-leaf33", "hall1-su1-leaf3")):
        assert main(["explain", typed, "--from", "docs/samples/nodelinks.yaml"]) == 2
        assert f"similar are {meant}" in capsys.readouterr().err


def test_an_unknown_name_or_path_is_named_in_the_error(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "nothing", "--from", str(reports)]) == 2
    assert "nothing is not a node, switch or HyperNode" in capsys.readouterr().err
    assert main(["plan", "--from", "/nowhere/at/all"]) == 2
    assert "/nowhere/at/all" in capsys.readouterr().err


def test_a_topology_file_is_found_beside_the_configuration(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntopology: topology.yaml\n")
    (tmp_path / "topology.yaml").write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\nswitches: [{name: a, uplinks: [b]}]\n"
    )
    assert main(["plan", "--from", str(reports), "--fabric", str(fabric)]) == 2
    assert f"{tmp_path / 'topology.yaml'}:3:32:" in capsys.readouterr().err


def test_explain_lists_what_a_switch_carries_and_who_is_in_trouble(
    tmp_path: Path, fabric: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods, where the agents report holders: those with a VF of a link to this switch."""
    items = objects(rails(2, 4))
    held = [("train-0", "rail0"), ("train-1", "rail1")]
    items[0]["holders"] = [
        {
            "namespace": "ml", "pod": pod, "since": "2026-11-21T12:00:00Z",
            "vfs": [{"link": link, "pciAddress": "0000:18:00.2"}],
        }
        for pod, link in held
    ]  # fmt: skip
    items[0]["links"][3]["state"] = "degraded"
    for item in items[1:3]:
        item["links"][5]["state"] = "down"
    source = tmp_path / "links.json"
    source.write_text(json.dumps(items))
    said = says(capsys, "explain", "su000-leaf-r0", "--from", source)
    assert "It carries 4 links of 4 nodes.\n" in said
    assert "1 pod with VFs of these links: ml/train-0 on su000-n000.\n" in said
    assert "pod" not in says(capsys, "explain", "su000-leaf-r2", "--from", source)
    plan_ = json.loads(says(capsys, "plan", "--json", "--from", source, "--fabric", fabric))
    leaf, _, top = (one["metadata"]["name"] for one in plan_["hypernodes"])
    for name, count in ((leaf, 4), (top, 8)):
        said = says(capsys, "explain", name, "--from", source, "--fabric", fabric)
        trouble = "degraded: 1 (su000-n000); down: 2 (su000-n001, su000-n002)"
        assert f"3 of {count} nodes are in trouble: {trouble}.\n" in said


def test_explain_of_a_spine_shows_what_its_leaf_switches_carry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the switches between, and with the uplinks that are left to each leaf switch."""
    items = objects(rails(2, 4))
    held = [{"link": "rail0", "pciAddress": "0000:18:00.2"}]
    pod = {"namespace": "ml", "pod": "train-0", "since": "2026-11-21T12:00:00Z", "vfs": held}
    items[0]["holders"] = [pod]
    leaves = sorted({link["neighbor"]["systemName"] for one in items for link in one["links"]})
    switches = [{"name": "core1"}, {"name": "spine1", "uplinks": ["core1"]}, {"name": "spine2"}]
    switches += [
        {"name": leaf, "uplinks": ["spine1"] if leaf.startswith("su000") else ["spine1", "spine2"]}
        for leaf in leaves
    ]
    (tmp_path / "topology.yaml").write_text(
        json.dumps({"apiVersion": "nodeagent.io/v1alpha1", "kind": "FabricTopology", "switches": switches})
    )
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntopology: topology.yaml\n")
    source = tmp_path / "links.json"
    source.write_text(json.dumps(items))
    common = ("--from", source, "--fabric", fabric)
    for name in ("spine1", "core1"):
        said = says(capsys, "explain", name, *common)
        assert f"The switch {name} is above {len(leaves)} switches of nodes.\n" in said
        assert f"It carries {4 * len(leaves)} links of 8 nodes.\n" in said
        assert "1 pod with VFs of these links: ml/train-0 on su000-n000.\n" in said
    rows = [line.split() for line in says(capsys, "explain", "spine1", *common).splitlines()]
    assert ["su000-leaf-r0", "4", "4", "0"] in rows
    assert ["su001-leaf-r0", "4", "4", "1"] in rows
    said = says(capsys, "explain", "spine2", *common)
    assert f"It carries {2 * len(leaves)} links of 4 nodes.\n" in said
    assert "pod" not in said
    assert main(["explain", "spine3", *map(str, common)]) == 2


def test_names_of_switches_are_shown_and_found_as_plain_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys in annotations are escaped: they are separated by commas."""
    names = [f"Rack 12, Leaf {rail}" for rail in range(4)]
    cables = {
        f"n{n}": tuple(End(name, f"swp{n}") for name in [*names[:3], names[3 if n else 2]]) for n in range(4)
    }
    source = tmp_path / "links.json"
    source.write_text(json.dumps(objects(cables)))
    (hypernode,) = json.loads(says(capsys, "plan", "--json", "--from", source))["hypernodes"]
    annotation = hypernode["metadata"]["annotations"]["nodeagent.io/switches"]
    assert annotation.split(",") == [f"rack%2012%2c%20leaf%20{rail}" for rail in range(4)]
    assert hypernode["metadata"]["name"].startswith("nodeagent-t1-rack-12-leaf-0-")
    shown = [
        says(capsys, "topology", "--from", source),
        says(capsys, "topology", "--from", source, "--format", "html"),
        says(capsys, "plan", "--from", source),
        says(capsys, "explain", "n0", "--from", source),
        says(capsys, "explain", names[0], "--from", source),
        says(capsys, "explain", names[0].lower(), "--from", source),
        says(capsys, "explain", hypernode["metadata"]["name"], "--from", source),
    ]
    for text in shown:
        assert "rack 12, leaf 0" in text
        assert "leaf%20" not in text
    (odd,) = json.loads(says(capsys, "plan", "--json", "--from", source))["anomalies"]
    assert odd["message"].endswith("which serves rail 2: move it to rack 12, leaf 3")
    (tmp_path / "topology.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "nodeagent.io/v1alpha1",
                "kind": "FabricTopology",
                "switches": [{"name": names[0]}],
                "groups": [{"name": "rack-12", "switches": [names[0].lower()]}],
            }
        )
    )
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntopology: topology.yaml\n")
    assert "rack-12" in says(capsys, "plan", "--from", source, "--fabric", fabric)


def test_explain_names_the_gpus_in_trouble_with_their_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = yaml.safe_load(Path("docs/samples/nodelinks.yaml").read_text())
    first = listed["items"][0]
    first["gpus"] = [
        {"index": 3, "state": "unhealthy", "reasons": ["xid_79"], "reasonDetails": ["XID 79: it fell off the bus."],
         "since": "2026-01-01T00:00:00Z"},
        {"pciAddress": "0000:5e:00.0", "state": "degraded"},
    ]  # fmt: skip
    file = tmp_path / "reports.yaml"
    file.write_text(yaml.safe_dump(listed))
    assert main(["explain", first["nodeName"], "--from", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GPU 3 is unhealthy for " in said
    assert f": XID 79: it fell off the bus; do: {remedy_of('xid_79')}." in said
    assert "GPU at 0000:5e:00.0 is degraded; do: docs/runbook.md#reasons." in said


def test_explain_says_that_a_node_is_away_and_its_links_are_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("docs/samples/nodelinks.yaml").read_text()
    (tmp_path / "reports.yaml").write_text(text)
    name = yaml.safe_load(text)["items"][0]["nodeName"]
    condition = {
        "type": "Ready", "status": "False", "message": "runtime is down",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    node = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]},
        "status": {"conditions": [condition]},
    }  # fmt: skip
    (tmp_path / "node.yaml").write_text(yaml.safe_dump(node))
    assert main(["explain", name, "--from", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "It is not ready for " in said
    assert "its kubelet says: runtime is down. Its links are as last reported." in " ".join(said.split())
    assert "as last reported" in said.partition("LLDP")[2]
    assert "current" not in said.partition("LLDP")[2]
