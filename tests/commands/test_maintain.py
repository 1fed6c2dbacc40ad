"""`nodeagent maintain` against an API server: who gets which annotation, what ends, and what a person is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodeagent.cli import main
from nodeagent.commands.plan.maintain import TRIES
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL, Maintenance, read_maintenance
from nodeagent_lab.sim.apiserver import ApiServer
from tests.commands.test_plan_live import kubeconfig
from tests.controller.test_controller import populate

Verb = Callable[..., Any]
EXPIRED = '[{"until":"2020-01-01T00:00:00Z","link":"nic0"}]'


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[ApiServer, Verb]]:
    """Two units of four nodes, whose links nic0 and nic1 go to two leaf switches each; and the verb, for a user."""
    server = await ApiServer().start()
    try:
        populate(server)
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu-1"}})
        file = kubeconfig(server, folder / "kubeconfig")

        async def verb(*words: str) -> int:
            return await asyncio.to_thread(main, ["maintain", *words, "--kubeconfig", str(file)])

        yield server, verb
    finally:
        await server.stop()


def work(server: ApiServer, *, of_report: bool = False) -> dict[str, tuple[Maintenance, ...]]:
    kind = ("nodelinks", "nodeagent") if of_report else ("nodes", None)
    found = {}
    for name in [f"node-{unit}{number}" for unit in range(2) for number in range(4)] + ["cpu-1"]:
        obj = server.find(kind[0], name, kind[1]) or {"metadata": {}}
        entries, fault = read_maintenance((obj["metadata"].get("annotations") or {}).get(MAINTENANCE_LABEL))
        assert fault == ""
        if entries:
            found[name] = entries
    return found


async def test_a_link_a_node_and_a_switch_are_maintained_listed_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        assert (
            await verb("node-01/NIC1", "--until", "2h", "--reason", "optics\x1b[2J", "--author", "ann") == 0
        )
        assert "node-01/nic1 is under maintenance until" in capsys.readouterr().out
        ((entry,),) = work(server).values()
        assert (entry.link, entry.switch, entry.author) == ("nic1", "", "ann")
        assert entry.reason == "optics\\x1b[2J"
        assert 7190 < entry.end - entry.begin <= 7200
        assert await verb("su1-leaf0", "cpu-1", "--until", "2100-01-01T00:00:00+01:00") == 0
        found = work(server)
        assert {(it.link, it.switch) for it in found["node-12"]} == {("nic0", "su1-leaf0")}
        assert [(it.link, it.sentence[:37]) for it in found["cpu-1"]] == [
            ("", "maintenance until 2099-12-31T23:00:00")
        ]
        assert found.keys() == {"node-01", "node-10", "node-11", "node-12", "node-13", "cpu-1"}
        assert work(server, of_report=True) == {name: it for name, it in found.items() if name != "cpu-1"}
        capsys.readouterr()
        assert await verb("--json") == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["cluster"], made["time"][-1], made["source"]) == (server.url, "Z", "cluster")
        listed = made["maintenance"]
        assert {(it["node"], it.get("link"), it.get("switch")) for it in listed} >= {
            ("node-12", "nic0", "su1-leaf0")
        }
        assert await verb() == 0
        assert "su1-leaf0" in capsys.readouterr().out
        assert await verb("su1-leaf0", "node-01/nic1", "--end") == 0
        assert "node-13/nic0 is no longer under maintenance" in capsys.readouterr().out
        assert work(server).keys() == {"cpu-1"}
        node = server.find("nodes", "node-01")
        assert node is not None
        assert MAINTENANCE_LABEL not in node["metadata"].get("annotations", {})
        assert await verb("cpu-1", "--end") == 0
        capsys.readouterr()
        assert await verb() == 0
        assert capsys.readouterr().out == "Nothing is under maintenance.\n"


async def test_what_is_named_again_is_replaced_and_what_is_over_goes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, verb):
        server.put({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": "node-00", "annotations": {
                        MAINTENANCE_LABEL: EXPIRED, "a": "b"}}})  # fmt: skip
        for until in ("2h", "3h"):
            assert await verb("node-00/nic1", "--until", until) == 0
        assert await verb("node-00", "--until", "1h") == 0
        entries = work(server)["node-00"]
        assert [it.link for it in entries] == ["nic1", ""]
        assert entries[0].end - entries[0].begin > 7200
        node = server.find("nodes", "node-00")
        assert node is not None
        assert node["metadata"]["annotations"]["a"] == "b"


@pytest.mark.parametrize(("times", "code"), [(TRIES - 1, 0), (TRIES, 1)])
async def test_a_node_that_another_client_changes_is_read_again(
    times: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        server.fail("409", verb="patch", resource="nodes", name="node-00", times=times)
        assert await verb("node-00", "node-01", "--until", "1h") == code
        assert ("node-00" in work(server)) is (code == 0)
        assert "node-01" in work(server), "a failure stops no other node"
        assert ("node-00: patch" in capsys.readouterr().err) is (code == 1)
        asked = ("get", "nodes", "node-00")
        gets = [seen for seen in server.requests if (seen.verb, seen.resource, seen.name) == asked]
        assert len(gets) == TRIES + (code == 0), "once more for the copy in the report"


async def test_a_missing_right_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path) as (server, verb):
        server.fail("deny", verb="patch", resource="nodelinks", times=None)
        assert await verb("su0-leaf0", "--until", "1h") == 0
        assert capsys.readouterr().err.count("the agents do not learn of it and count flaps: patch") == 1
        assert (len(work(server)), work(server, of_report=True)) == (4, {})
        server.heal()
        server.fail("403", verb="patch", resource="nodes", times=None)
        assert await verb("su1-leaf0", "--until", "1h") == 1
        assert capsys.readouterr().err.count("patch /api/v1/nodes/") == 1
        assert len(work(server)) == 4


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["node-00"], 2, "give --until with a time that is still to come, or --end"),
        (["node-00", "--until", "2020-01-01T00:00:00Z"], 2, "give --until with a time that is still to come"),
        (["node-00", "--until", "soon"], 2, "'soon' is no time: give a duration"),
        (["--until", "2h"], 2, "name a link (gpu-17/nic3), a node or a switch"),
        (["node-99", "--until", "2h"], 2, "node-99: no node, NODE/nic3 or switch is called so"),
        (["nic0", "--until", "2h"], 2, "nic0: no node, NODE/nic3 or switch is called so"),
        (["node-00/nic7", "--until", "2h"], 2, "is called so; similar are node-00/nic"),
        (
            ["leaf1", "--until", "2h"],
            2,
            "leaf1: no node, NODE/nic3 or switch is called so; similar are su0-leaf1, su1-leaf1",
        ),
        (["node-1", "--until", "2h"], 2, "similar are "),
        (["node-00", "--end"], 2, "node-00: it is not under maintenance; `nodeagent maintain` lists what is"),
    ],
)
async def test_a_wrong_input_names_the_remedy_and_writes_nothing(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        assert await verb(*words) == code
        assert message in capsys.readouterr().err
        assert work(server) == {}


async def test_on_the_node_itself_a_link_needs_no_other_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-02")
    async with cluster(tmp_path) as (server, verb):
        assert await verb("nic0", "--until", "30min") == 0
        assert work(server).keys() == {"node-02"}


async def test_a_wrong_annotation_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path) as (server, verb):
        server.put({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": "node-00", "annotations": {
                        MAINTENANCE_LABEL: '[{"until":"x"}]'}}})  # fmt: skip
        assert await verb() == 0
        assert "of the Node node-00 is wrong and partly ignored: entry 1" in capsys.readouterr().err


def annotated(node: str, text: str) -> dict[str, Any]:
    metadata = {"name": node, "annotations": {MAINTENANCE_LABEL: text}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


async def test_what_cannot_be_read_stays_and_what_would_not_count_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        wrong = '[{"until":"x"}]'
        server.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "node-00", "annotations": {MAINTENANCE_LABEL: wrong}},
            }
        )
        assert await verb("node-00/nic0", "--until", "2h") == 1
        assert (
            "nothing was changed; mend it, or remove it: kubectl annotate node node-00"
            in capsys.readouterr().err
        )
        assert server.find("nodes", "node-00", None)["metadata"]["annotations"][MAINTENANCE_LABEL] == wrong
        full = json.dumps([{"until": "2099-01-01T00:00:00Z", "link": f"nic{n}"} for n in range(100, 164)])
        server.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "node-00", "annotations": {MAINTENANCE_LABEL: full}},
            }
        )
        assert await verb("node-00/nic0", "--until", "2h") == 1
        said = capsys.readouterr()
        assert "it would have 65 entries, at most 64 count; name the whole node" in said.err
        assert "is under maintenance" not in said.out


async def test_of_two_people_at_once_the_report_has_the_work_of_both(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, verb):
        for _ in range(5):
            names = ("node-00/nic0", "node-00/nic1")
            assert await asyncio.gather(*(verb(name, "--until", "2h") for name in names)) == [0, 0]
            assert work(server, of_report=True)["node-00"] == work(server)["node-00"]
            assert len(work(server)["node-00"]) == 2
            assert await verb(*names, "--end") == 0


async def test_views_of_the_desk_say_what_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        report = server.find("nodelinks", "node-12", "nodeagent")
        assert report is not None
        report["links"][0] |= {"state": "down", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        server.put(report)
        assert await verb("su1-leaf0", "--until", "2h", "--reason", "upgrade", "--author", "ann") == 0
        access = ["--kubeconfig", str(tmp_path / "kubeconfig")]
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["trouble", *access]) == 1, "listed, and not good"
        assert "planned: maintenance of su1-leaf0 until" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["trouble", "--json", *access]) == 1
        assert "by ann: upgrade" in json.loads(capsys.readouterr().out)["troubles"][0]["maintenance"]
        assert await asyncio.to_thread(main, ["topology", *access]) == 0
        assert "planned: node-10 nic0: maintenance of su1-leaf0 until" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["explain", "node-10", *access]) == 0
        assert "Planned work on nic0: maintenance of su1-leaf0" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["explain", "su1-leaf0", *access]) == 0
        assert "Planned work on 4 links, such as node-10 nic0" in capsys.readouterr().out


async def test_a_file_with_nodes_has_the_planned_work_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, _):
        report = server.find("nodelinks", "node-12", "nodeagent")
    entry = {"until": "2100-01-01T00:00:00Z", "link": "nic0"}
    node = {
        "kind": "Node",
        "metadata": {"name": "node-12", "annotations": {MAINTENANCE_LABEL: json.dumps([entry, {}])}},
    }
    file = tmp_path / "objects.json"
    file.write_bytes(msgspec.json.encode([report, node]))
    assert main(["topology", "--from", str(file), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["maintenance"] == [
        {"node": "node-12", "link": "nic0", "text": "maintenance until 2100-01-01T00:00:00Z"}
    ]
    assert "of the Node node-12 is wrong: entry 2" in err


def test_without_a_cluster_the_remedy_is_an_option_of_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for verb, sentence in (
        ("maintain", "with --kubeconfig FILE\n"),
        ("trouble", "or read reports with --from FILE"),
    ):
        assert main([verb]) != 0
        said = capsys.readouterr().err
        assert sentence in said
        assert ("--from" in said) is (verb == "trouble")


def given(server: ApiServer, file: Path) -> Path:
    """The Nodes and reports of the cluster, one object in each line, as `kubectl nodeagent` pipes them."""
    objects = [
        {"kind": kind, **found}
        for kind, plural, space in (("NodeLinks", "nodelinks", "nodeagent"), ("Node", "nodes", None))
        for name in [f"node-{unit}{number}" for unit in range(2) for number in range(4)] + ["cpu-1"]
        if (found := server.find(plural, name, space)) is not None
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return file


async def test_patches_for_objects_of_a_file_are_what_the_verb_would_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        words = ["maintain", "su1-leaf0", "cpu-1", "--until", "2100-01-01T00:00:00Z", "--author", "ann"]
        file = str(given(server, tmp_path / "objects"))
        seen = len(server.requests)
        assert await asyncio.to_thread(main, [*words, "--from", file]) == 0
        assert len(server.requests) == seen, "it asks no server"
        lines = capsys.readouterr().out.splitlines()
        patches = [line.split("\t") for line in lines if line.startswith("patch\t")]
        said = lines[len(patches) :]
        assert await verb(*words[1:]) == 0
        assert said == capsys.readouterr().out.splitlines()
        assert {(kind, space, name) for _, kind, space, name, *_ in patches} == {
            ("nodes", "-", "cpu-1"),
            *(("nodes", "-", f"node-1{i}") for i in range(4)),
            *(("nodelinks", "nodeagent", f"node-1{i}") for i in range(4)),
        }  # fmt: skip
        for _, kind, space, name, patch, before in patches:
            made = json.loads(patch)["metadata"]
            assert made.keys() == {"resourceVersion", "annotations"}
            written = server.find(kind, name, None if space == "-" else space)
            assert written is not None
            now, stored = (
                read_maintenance(one["annotations"][MAINTENANCE_LABEL])[0]
                for one in (made, written["metadata"])
            )
            assert [(it.link, it.switch, it.until) for it in now] == [
                (it.link, it.switch, it.until) for it in stored
            ]
            assert json.loads(before) == ""
        again = str(given(server, tmp_path / "again"))
        assert await asyncio.to_thread(main, ["maintain", "--json", "--from", again]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert (listed["cluster"], listed["source"], len(listed["maintenance"])) == (None, again, 5)
        assert await asyncio.to_thread(main, ["maintain", "cpu-1", "--end", "--from", again]) == 0
        (patch, _) = capsys.readouterr().out.splitlines()
        *_, text, before = patch.split("\t")
        assert json.loads(text)["metadata"]["annotations"] == {MAINTENANCE_LABEL: None}
        assert read_maintenance(json.loads(before))[0][0].author == "ann"


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "Node"}\n{"kind": "Node", "metadata": {"name": 3}}\n',
        '{"kind": "Node", "metadata": {"name": "a", "annotations": null}}\n',
        '{"kind": "NodeLinks", "metadata": {"name": "a"}, "nodeName": "a", "links": []}\n',
    ],
)
def test_objects_that_say_nothing_are_under_no_maintenance(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "objects"
    file.write_text(text)
    assert main(["maintain", "--from", str(file)]) == 0
    assert capsys.readouterr().out == "Nothing is under maintenance.\n"
    assert main(["maintain", "b", "--until", "1h", "--from", str(file)]) == 2
    assert main(["maintain", "b", "--until", "1h", "--from", str(tmp_path / "none")]) == 2
