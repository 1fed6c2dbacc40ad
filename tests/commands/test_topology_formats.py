"""topology.conf as its documentation describes it, read by a small reader of its own."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.cli import main
from nodeagent.fabric.node_lists import block_sizes, hostlist
from tests.commands.test_plan import BISECTION, objects
from tests.support.examples import examples
from tests.support.fabrics import End, rails


def expand(text: str) -> Iterator[str]:
    """Slurm's hostlist: ``tux[0-3,12,18-20],login``; the width of the first number pads the others."""
    for entry in filter(None, re.findall(r"[^,\[\]]*(?:\[[^\]]*\])?", text)):
        stem, bracket, inner = entry.partition("[")
        if not bracket:
            yield entry
            continue
        for span in inner.rstrip("]").split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{stem}{number:0{len(first)}}"


def read_topology_conf(text: str) -> dict[str, tuple[str, list[str]]]:
    """Lines of ``Name=value`` without quotes, names in any case, and comments after ``#``."""
    switches: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        fields = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        assert len(fields) == len(words)
        name = fields.pop("switchname")
        assert 0 < len(name) <= 64
        assert name not in switches
        ((kind, value),) = fields.items()
        assert kind in ("nodes", "switches")
        switches[name] = (kind, list(expand(value)))
    return switches


def leaf_groups(switches: dict[str, tuple[str, list[str]]]) -> set[frozenset[str]]:
    return {frozenset(names) for kind, names in switches.values() if kind == "nodes"}


@pytest.fixture
def reports(tmp_path: Path) -> tuple[str, str]:
    cables = rails(3, 12)
    file, fabric = tmp_path / "links.json", tmp_path / "fabric.yaml"
    file.write_text(json.dumps({"kind": "List", "items": objects(cables)}))
    fabric.write_text(BISECTION)
    return str(file), str(fabric)


def topology(capsys: pytest.CaptureFixture[str], reports: tuple[str, str], form: str, *more: str) -> str:
    assert main(["topology", "--from", reports[0], "--fabric", reports[1], "--format", form, *more]) == 0
    return capsys.readouterr().out


def test_slurm_reads_the_tree_that_volcano_gets(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_topology_conf(topology(capsys, reports, "slurm"))
    assert main(["plan", "--json", "--from", reports[0], "--fabric", reports[1]]) == 0
    expected = {
        hypernode["metadata"]["name"]: sorted(
            member["selector"]["exactMatch"]["name"] for member in hypernode["spec"]["members"]
        )
        for hypernode in json.loads(capsys.readouterr().out)["hypernodes"]
    }
    assert {name: sorted(members) for name, (_, members) in found.items()} == expected
    assert len(expected) == 4
    leaves = {name for name, (kind, _) in found.items() if kind == "nodes"}
    (top,) = found.keys() - leaves
    assert set(found[top][1]) == leaves
    nodes = [node for leaf in leaves for node in found[leaf][1]]
    assert len(nodes) == len(set(nodes)) == 36


def test_slurm_gets_the_nodes_of_nvlink_domains_in_their_leaf_group(
    reports: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm would take a domain for a switch. Two nodes of the first leaf group are in none."""
    cluster = "9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa"
    cables = rails(3, 12)
    items = objects(cables)
    for number, item in enumerate(items[2:]):
        item["nvlinkDomains"] = [{"clusterUUID": cluster, "cliqueID": number // 5}]
    file, fabric = tmp_path / "racks.json", tmp_path / "racks.yaml"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    fabric.write_text(BISECTION.replace("{", "{nvlink: auto, "))
    racks, plain = (
        read_topology_conf(topology(capsys, source, "slurm"))
        for source in ((str(file), str(fabric)), reports)
    )
    assert len(racks) == len(plain) == 4
    assert leaf_groups(racks) == leaf_groups(plain)


@pytest.fixture
def racks(tmp_path: Path) -> tuple[str, str]:
    """Three leaf groups of twelve nodes in NVLink domains of four; the last domain has lost one node."""
    items = objects(rails(3, 12))
    for number, item in enumerate(items[:-1]):
        uuid = f"9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5{number // 4:02x}"
        item["nvlinkDomains"] = [{"clusterUUID": uuid, "cliqueID": 0}]
    file, fabric = tmp_path / "racks.json", tmp_path / "racks.yaml"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    fabric.write_text(BISECTION.replace("{", "{nvlink: auto, "))
    return str(file), str(fabric)


def read_blocks(text: str) -> tuple[dict[str, list[str]], list[int]]:
    """Blocks and sizes of a topology.conf for topology/block."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    *blocks, (sizes,) = rows
    pairs = [[word.partition("=")[::2] for word in row] for row in blocks]
    assert all([key for key, _ in row] == ["BlockName", "Nodes"] for row in pairs)
    return {row[0][1]: list(expand(row[1][1])) for row in pairs}, [
        int(one) for one in sizes.partition("=")[2].split(",")
    ]


def test_the_blocks_are_the_nvlink_domains(
    racks: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    blocks, sizes = read_blocks(topology(capsys, racks, "slurm-block"))
    assert sorted(map(len, blocks.values())) == [3, *[4] * 8]
    assert sizes == [4, 8, 16, 32]
    nodes = [node for block in blocks.values() for node in block]
    # Slurm joins consecutive blocks to larger ones, so those of a leaf group stand behind each other.
    assert [node.partition("-")[0] for node in nodes] == ["su000"] * 12 + ["su001"] * 12 + ["su002"] * 11
    assert len(set(nodes)) == 35


def test_topology_yaml_has_the_tree_and_the_blocks(
    racks: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tree, nvlink = yaml.safe_load(topology(capsys, racks, "slurm-yaml"))
    conf = read_topology_conf(topology(capsys, racks, "slurm"))
    words = {"nodes": "nodes", "children": "switches"}
    found = {}
    for switch in tree["tree"]["switches"]:
        name = switch.pop("switch")
        ((kind, names),) = switch.items()
        found[name] = (words[kind], list(expand(names)))
    assert found == conf
    assert tree["cluster_default"] is True
    blocks, sizes = read_blocks(topology(capsys, racks, "slurm-block"))
    assert nvlink["block"]["block_sizes"] == sizes
    assert {one["block"]: list(expand(one["nodes"])) for one in nvlink["block"]["blocks"]} == blocks


def test_without_domains_there_are_no_blocks(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--from", reports[0], "--format", "slurm-block"]) == 2
    assert "tiers.nvlink: auto" in capsys.readouterr().err
    assert len(yaml.safe_load(topology(capsys, reports, "slurm-yaml"))) == 1


def test_only_the_nodes_that_are_given_are_in_a_list(
    racks: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "su002-n001,su000-n003 su000-n000"
    assert topology(capsys, racks, "hostfile", "--nodes", given).split() == [
        "su000-n000",
        "su000-n003",
        "su002-n001",
    ]
    assert sorted(
        node
        for group in leaf_groups(read_topology_conf(topology(capsys, racks, "slurm", "--nodes", given)))
        for node in group
    ) == ["su000-n000", "su000-n003", "su002-n001"]
    blocks, _ = read_blocks(topology(capsys, racks, "slurm-block", "--nodes", given))
    assert sorted(map(len, blocks.values())) == [1, 2]
    monkeypatch.setattr("sys.stdin", io.StringIO("su001-n002\nother\n"))
    assert (
        main(["topology", "--from", racks[0], "--fabric", racks[1], "--format", "hostfile", "--nodes", "-"])
        == 2
    )
    out, err = capsys.readouterr()
    assert out == "su001-n002\n"
    assert "not in the tree: other" in err
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert (
        main(["topology", "--from", racks[0], "--fabric", racks[1], "--format", "slurm", "--nodes", "-"]) == 2
    )
    assert "--nodes: there is no name" in capsys.readouterr().err
    assert topology(capsys, racks, "hostfile", "--nodes", "su001-n002,") == "su001-n002\n"
    assert main(["topology", "--from", racks[0], "--nodes", "su001-n002"]) == 2
    assert "--format slurm" in capsys.readouterr().err


def test_ranks_are_consecutive_under_each_leaf_group_and_domain(
    racks: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line.split("\t") for line in topology(capsys, racks, "ranks").splitlines()]
    assert [int(rank) for rank, _, _ in rows] == list(range(36))
    groups = [group for _, _, group in rows]
    assert len([1 for one, following in pairwise(groups) if one != following]) == 2
    place = {node: rank for rank, (_, node, _) in enumerate(rows)}
    blocks, _ = read_blocks(topology(capsys, racks, "slurm-block"))
    for nodes in blocks.values():
        ranks = sorted(place[node] for node in nodes)
        assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=70))
def test_each_block_size_is_twice_the_one_before_and_fits(sizes: list[int]) -> None:
    found = block_sizes({str(i): ["n"] * size for i, size in enumerate(sizes)})
    assert found[0] in sizes
    assert all(sizes.count(found[0]) >= sizes.count(one) for one in sizes)
    assert all(following == 2 * one for one, following in pairwise(found))
    assert found[-1] <= found[0] * len(sizes) < 2 * found[-1]


def test_nodes_without_a_place_are_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "links.json"
    lonely = {"kind": "NodeLinks", "metadata": {"name": "lonely"}, "nodeName": "lonely", "links": []}
    file.write_text(json.dumps({"kind": "List", "items": [*objects(rails(1, 2)), lonely]}))
    assert main(["topology", "--format", "slurm", "--from", str(file)]) == 0
    out = capsys.readouterr().out
    assert "# not in the tree: lonely: it reports no link" in out
    assert "lonely" not in json.dumps(read_topology_conf(out))


@given(
    st.lists(
        st.from_regex(r"[a-z]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)
        | st.builds(lambda number, width: f"gpu-{number:0{width}}", st.integers(0, 40), st.integers(1, 3)),
        min_size=1,
        unique=True,
    )
)
def test_a_hostlist_has_the_names(names: list[str]) -> None:
    assert sorted(expand(hostlist(names))) == sorted(names)


NOT_TEXT = (
    "yes", "no", "on", "off", "y", "n", "true", "null", "nan", "7", "08", "0x1f", "0o7", "0b1", "1.5", "1e3", "1.e3",
    "12e03", "2026-11-27", "1-2",
)  # fmt: skip
"""Names of nodes that YAML takes for something else without quotes."""
SYNTAX = (
    "a: b", "#x", "- x", "? y", "{a}", "&a", "*a", "!t", "%x", "|", "'", '"', "\\", "ü", "漢", "😀", "\u2028", " ",
)  # fmt: skip


@settings(max_examples=examples(50))
@given(
    nodes=st.lists(
        st.sampled_from(NOT_TEXT) | st.from_regex(r"[a-z0-9]([-a-z0-9]{0,6}[a-z0-9])?", fullmatch=True),
        min_size=2,
        max_size=8,
        unique=True,
    ),
    switches=st.lists(
        st.sampled_from(NOT_TEXT + SYNTAX) | st.text(max_size=20), min_size=1, max_size=3, unique=True
    ),
    fabric=st.sampled_from([name for name in NOT_TEXT if "." not in name]),
    racks=st.booleans(),
)
def test_yaml_has_each_name_as_text(nodes: list[str], switches: list[str], fabric: str, racks: bool) -> None:
    """Read by both readers of PyYAML; one of them is libyaml, with which Slurm reads its topology.yaml."""
    items = objects({node: (End(switches[i % len(switches)], f"swp{i}"),) for i, node in enumerate(nodes)})
    for item in items:
        item["links"][0]["fabric"] = fabric
        if racks:
            item["nvlinkDomains"] = [{"clusterUUID": "9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa", "cliqueID": 1}]
    with TemporaryDirectory() as folder:
        file, rules = Path(folder, "links.json"), Path(folder, "fabric.yaml")
        file.write_text(json.dumps({"kind": "List", "items": items}))
        rules.write_text(
            f"{BISECTION}fabric: {json.dumps(fabric)}\n".replace("{assume", "{nvlink: auto, assume")
        )
        common = ("--from", str(file), "--fabric", str(rules))
        texts = {}
        for verb in (("plan", "--json"), ("plan", "--yaml"), ("topology", "--format", "slurm-yaml")):
            with redirect_stdout(io.StringIO()) as out:
                assert main([*verb, *common]) in (0, 1)
            texts[verb[-1]] = out.getvalue()
    hypernodes = json.loads(texts["--json"])["hypernodes"]
    placed = {
        member["selector"]["exactMatch"]["name"]
        for one in hypernodes
        for member in one["spec"]["members"]
        if member["type"] == "Node"
    }
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert list(yaml.load_all(texts["--yaml"], loader)) == hypernodes
        tree, *nvlink = yaml.load(texts["slurm-yaml"], loader)
        assert tree["topology"] == fabric
        found = tree["tree"]["switches"] or ()  # without a switch where each has the name of a node
        assert {name for one in found for name in expand(one.get("nodes", ""))} == (
            placed if found else set()
        )
        names = {one["metadata"]["name"] for one in hypernodes}
        assert {one["switch"] for one in found} <= names
        for block in [block for entry in nvlink for block in entry["block"]["blocks"]]:
            assert block["block"] in names
            assert {*expand(block["nodes"])} <= placed


def test_a_hostlist_is_short() -> None:
    names = [f"gpu-{number:03}" for number in (*range(32), 40)]
    assert hostlist([*names, "login"]) == "gpu-[000-031,040],login"


def test_the_tree_folds_nodes_unless_the_whole_is_asked_for(
    reports: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folded, whole = topology(capsys, reports, "tree"), topology(capsys, reports, "tree", "--whole")
    assert "(12 nodes)" in folded
    assert len(folded.splitlines()) < 10
    assert len(whole.splitlines()) == len(folded.splitlines()) + 3 * 11
