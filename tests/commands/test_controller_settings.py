"""The verbs of a fabric read the controller's own configuration; without it they give up nothing that is published."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from nodeagent.cli import main
from nodeagent.commands.plan.controller_settings import KEY, LABELS
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.fabric.topology_file import load_topology
from nodeagent_lab.sim.apiserver import ApiServer
from tests.commands.test_plan_live import kubeconfig
from tests.controller.test_controller import QUICK, cluster, labels, leaves, nodelinks, running, tree
from tests.support.manifests import INSTALLATIONS, Manifest, built, named, of_kind
from tests.support.waiting import until

BISECTION = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntiers: {assumeFullBisection: true}\n"
PRESET = BISECTION + "labels: {presets: [topograph]}\n"
SPINES = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\nswitches:\n- {name: spine}\n" + "".join(
    f"- {{name: su{unit}-leaf{rail}, uplinks: [spine]}}\n" for unit in range(2) for rail in range(2)
)
VERBS = (
    ["plan"], ["plan", "--diff"], ["plan", "--json"], ["topology"], ["trouble"], ["explain", "node-00"], ["cabling"],
)  # fmt: skip


def config_map(text: str, namespace: str = "nodeagent", **more: str) -> Manifest:
    meta = {"name": "nodeagent-controller", "namespace": namespace, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: text, **more}}


def config(text: str) -> FabricConfig:
    return structs.replace(load_fabric(text, name="fabric.yaml"), hysteresis=QUICK)


@asynccontextmanager
async def led(text: str, *found: Manifest, upper: bool = True, **more: Any) -> AsyncIterator[ApiServer]:
    """Two units, published by the controller with this configuration; it has ended, and all is as it wants it."""
    async with cluster() as server:
        for one in found:
            server.put(one)
        async with running(server, config(text), **more):
            nodes = [one["metadata"]["name"] for one in server.objects("nodes")]
            await until(lambda: len(tree(server)) == (3 if upper else 2))
            await until(lambda: all(len(labels(server, node)) > 2 for node in nodes))
        yield server


async def said(
    server: ApiServer, folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """The exit code and what a verb prints. It runs in a thread, beside the server."""
    file = kubeconfig(server, folder / "kubeconfig")
    capsys.readouterr()  # what the controller has logged
    code = await asyncio.to_thread(main, [*words, "--kubeconfig", str(file)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("overlay", [one for one in INSTALLATIONS if one])
def test_the_manifests_label_the_file_as_it_is_looked_for(overlay: str) -> None:
    every = built(overlay)
    if not [one for one in of_kind(every, "Deployment") if one["metadata"]["name"] == "nodeagent-controller"]:
        return
    found = named(every, "ConfigMap", "nodeagent-controller")
    deployment = named(every, "Deployment", "nodeagent-controller")
    assert LABELS.items() <= found["metadata"]["labels"].items()
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    file = Path(container["args"][container["args"].index("--fabric") + 1])
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == str(file.parent))
    (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
    assert volume["configMap"]["name"] == found["metadata"]["name"]
    assert file.name == KEY
    assert KEY in found["data"]


@pytest.mark.parametrize("text", [BISECTION, PRESET], ids=["bisection", "presets"])
async def test_what_the_controller_leaves_alone_is_an_empty_plan(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with led(text, config_map(text)) as server:
        code, out, err = await said(server, tmp_path, capsys, "plan")
        assert (code, err) == (0, "")
        assert "Nothing to write." in out
        assert await said(server, tmp_path, capsys, "plan", "--diff") == (0, "", "")
        _, out, _ = await said(server, tmp_path, capsys, "plan", "--json")
        own = {one["metadata"]["name"]: one["metadata"]["labels"] for one in server.objects("nodes")}
        assert {node: {**own[node], **wanted} for node, wanted in json.loads(out)["labels"].items()} == own
        _, out, _ = await said(server, tmp_path, capsys, "topology")
        assert "spine" in out


async def test_a_file_that_the_configuration_names_is_read_from_the_same_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BISECTION.replace("tiers: {assumeFullBisection: true}", "topology: topology.yaml")
    topology = load_topology(SPINES, name="topology.yaml")
    async with led(text, config_map(text, **{"topology.yaml": SPINES}), topology=topology) as server:
        code, out, err = await said(server, tmp_path, capsys, "plan")
        assert (code, err) == (0, "")
        assert "Nothing to write." in out
        server.put(config_map(text))
        _, out, err = await said(server, tmp_path, capsys, "plan")
        assert "Nothing to write." in out
        assert "topology.yaml is not among its files (fabric.yaml)" in err


@pytest.mark.parametrize("why", ["none", "forbidden", "broken", "several", "other key"])
async def test_without_it_one_line_says_why_and_nothing_published_is_given_up(
    why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, says = {
        "none": ([], "the cluster has no ConfigMap of the controller"),
        "forbidden": ([config_map(PRESET)], "the controller's configuration may not be read (list"),
        "broken": ([config_map("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ntires: {}\n")], ":3:1: tires"),
        "several": ([config_map(PRESET, "a"), config_map(BISECTION, "b")], "which differ (a/nodeagent-controller, b"),
        "other key": ([{**config_map(PRESET), "data": {"other": PRESET}}], "the cluster has no ConfigMap of the"),
    }[why]  # fmt: skip
    async with led(PRESET, *found) as server:
        if why == "forbidden":
            server.fail("403", verb="list", resource="configmaps", times=None)
        spine = next(name for name, members in tree(server).items() if members[0] == "2")
        own = {one["metadata"]["name"]: one["metadata"]["labels"] for one in server.objects("nodes")}
        for words in VERBS:
            _, out, err = await said(server, tmp_path, capsys, *words)
            (line,) = err.splitlines()
            assert says in line, words
            assert "--fabric" in line, words
            match words:
                case ["plan", "--diff"]:
                    assert out == ""
                case ["plan", "--json"]:
                    plan = json.loads(out)
                    assert plan["writes"] == []
                    assert spine in [one["metadata"]["name"] for one in plan["hypernodes"]]
                    assert all(
                        {**own[node], **wanted} == own[node] for node, wanted in plan["labels"].items()
                    )
                case ["plan"]:
                    assert "Nothing to write." in out
                case ["topology"] | ["explain", _]:
                    assert spine in out


async def test_a_map_in_the_namespace_of_the_reports_is_read_where_others_are_forbidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with led(BISECTION, config_map(BISECTION)) as server:
        server.fail("403", verb="list", resource="configmaps", times=1)
        code, out, err = await said(server, tmp_path, capsys, "plan")
        assert (code, err) == (0, "")
        assert "Nothing to write." in out


async def test_of_two_controllers_the_one_beside_the_reports_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with led(BISECTION, config_map(BISECTION), config_map(PRESET, "former")) as server:
        code, out, err = await said(server, tmp_path, capsys, "plan")
        assert (code, err) == (0, "")
        assert "Nothing to write." in out


async def test_the_fragments_of_components_count_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BISECTION.replace("tiers: {assumeFullBisection: true}\n", "")
    fragments = config_map("", rails="not read")
    fragments["metadata"]["name"] += "-features"
    fragments["data"] = {"kueue.yaml": BISECTION, "notes": "not: [read"}
    async with led(BISECTION, config_map(text), fragments) as server:
        code, out, err = await said(server, tmp_path, capsys, "plan")
        assert (code, err) == (0, "")
        assert "Nothing to write." in out
        kinds = ("nodelinks", "nodes", "hypernodes", "configmaps")
        piped = tmp_path / "objects.json"
        piped.write_text("\n".join(json.dumps(one) for kind in kinds for one in server.objects(kind)))
        assert await asyncio.to_thread(main, ["plan", "--from", str(piped)]) == 0
        out, err = capsys.readouterr()
        assert (err, "Nothing to write." in out) == ("", True), "as `kubectl nodeagent plan` pipes them"
        fragments["data"]["more.yaml"] = BISECTION
        server.put(fragments)
        _, _, err = await said(server, tmp_path, capsys, "plan")
        assert (
            "tiers.assumeFullBisection: is set twice, in ConfigMap nodeagent/nodeagent-controller-features kueue"
            in err
        )


async def test_a_file_in_fabric_counts_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fabric.yaml").write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n")
    async with led(BISECTION, config_map(BISECTION)) as server:
        words = ("plan", "--fabric", str(tmp_path / "fabric.yaml"))
        _, out, err = await said(server, tmp_path, capsys, *words)
        assert err == ""
        assert "has no members left" in out
        assert "configmaps" not in {resource for _, resource in server.counts}


async def test_new_nodes_are_planned_without_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node and a unit that are new join the tree; a node that has moved stays where it is published."""
    async with led(BISECTION) as server:
        for node, unit in (("node-04", 0), ("node-20", 2), ("node-21", 2)):
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
            server.put(nodelinks(node, leaves(unit)))
        server.put(nodelinks("node-13", leaves(0)))
        _, out, _ = await said(server, tmp_path, capsys, "plan", "--json")
        plan = json.loads(out)
        assert [one["verb"] for one in plan["writes"]] == ["update", "create"]
        members = {
            one["metadata"]["name"]: {it["selector"]["exactMatch"]["name"] for it in one["spec"]["members"]}
            for one in plan["hypernodes"]
        }
        for name, (_, *before) in tree(server).items():
            assert set(before) <= members[name]
        every = [member for each in members.values() for member in each]
        assert len(every) == len(set(every)), "no member has two parents"
        assert {"node-04", "node-20"} <= set(every)


async def test_a_controller_that_writes_labels_alone_has_no_writes_of_the_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BISECTION + "outputs: [labels]\n"
    async with cluster() as server:
        server.put(config_map(text))
        _, out, err = await said(server, tmp_path, capsys, "plan")
        assert "Nothing to write." in out
        assert "`outputs` of the controller's configuration has no hypernodes" in err


def dumped(server: ApiServer, *plurals: str) -> dict[str, Any]:
    """The output of ``kubectl get … -A -o yaml`` prints."""
    items = [one for plural in plurals for one in server.objects(plural)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


@pytest.mark.parametrize("form", ["yaml", "json", "lines", "folder", "stdin"])
async def test_a_map_among_the_objects_of_a_file_is_used(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**config_map("no: configuration"), "metadata": {"name": "kube-root-ca.crt", "namespace": "a"}}
    async with led(PRESET, config_map(PRESET), other) as server:
        whole = dumped(server, "nodes", "nodelinks", "hypernodes", "configmaps")
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "objects.yaml"
    match form:
        case "yaml":
            file.write_text(yaml.safe_dump(whole))
        case "lines":
            file.write_text("\n".join(map(json.dumps, whole["items"])))
        case "folder":
            for i, one in enumerate(whole["items"]):
                (file.parent / f"{i}.json").write_text(json.dumps(one, indent=1))
        case _:
            file.write_text(json.dumps(whole))
    source = {"folder": file.parent, "stdin": "-"}.get(form, file)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "nodeagent", "plan", "--from", str(source)],
        input=file.read_bytes() if form == "stdin" else b"",
        capture_output=True,
        check=False,
    )
    (line,) = done.stderr.decode().splitlines()
    assert "objects of other kinds are left out" in line
    assert "Nothing to write." in done.stdout.decode()


async def test_a_file_without_one_gives_up_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with led(PRESET) as server:
        whole = dumped(server, "nodes", "nodelinks")
        current = dumped(server, "hypernodes")
    (tmp_path / "in.json").write_text(json.dumps(whole))
    (tmp_path / "current.json").write_text(json.dumps(current))
    words = ["plan", "--from", str(tmp_path / "in.json"), "--current", str(tmp_path / "current.json")]
    capsys.readouterr()  # what the controller logged
    assert await asyncio.to_thread(main, words) == 0
    out, err = capsys.readouterr()
    assert "Nothing to write." in out
    assert err.startswith(
        f"nodeagent: {tmp_path}/in.json has no ConfigMap of the controller: the plan has the defaults"
    )
    assert len(err.splitlines()) == 1
