"""trouble: links of one cause are one trouble, pods and remedies, the order, the forms, and the exit code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nodeagent.cli import main
from nodeagent.commands.plan import trouble
from nodeagent.commands.plan.objects import store_object
from nodeagent.commands.plan.preview import Preview, make_objects, make_preview
from nodeagent.fabric import NodeLinks
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.link_faults import LinkFault
from nodeagent.fabric.nodelinks import HeldVf, NodeLink, VfHolder
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.fabric.troubles import _TREE_ALONE, FabricTrouble, _one_cause, troubles
from nodeagent.facts.remedies import remedy_of
from nodeagent.health.rules.links import LINK_RULES
from tests.commands.test_cabling import hall, write
from tests.commands.test_plan_live import fill, kubeconfig, serving
from tests.features.test_silent_agents import CRASHES, agent_pod
from tests.support import job_pods
from tests.support.halls import Hall
from tests.support.manifests import ROOT

NOW = 1_800_000_000.0
AT = "2027-01-15T07:54:43Z"
"""317 s before ``NOW``."""


def at_once(second: int) -> str:
    return f"2027-01-15T07:54:{43 + second}Z"


def changed(made: Hall, fault: Callable[[str, NodeLink], NodeLink]) -> list[NodeLinks]:
    return [
        structs.replace(report, links=tuple(fault(report.node_name, link) for link in report.links))
        for report in made.reports()
    ]


def preview(reports: list[NodeLinks], folder: Path) -> Preview:
    read = make_objects(FabricRules())
    read.reports = {}
    for item in json.loads(write(folder / "reports.json", reports).read_text())["items"]:
        assert store_object(item, read)
    return make_preview(read)


def found(reports: list[NodeLinks], folder: Path) -> list[FabricTrouble]:
    return troubles(preview(reports, folder).plan)


def down(link: NodeLink, at: str = AT) -> NodeLink:
    neighbor = None if link.neighbor is None else structs.replace(link.neighbor, stale=True)
    return structs.replace(
        link,
        state="down",
        reasons=("carrier_down",),
        reason_details=("no carrier",),
        last_transition_time=at,
        neighbor=neighbor,
    )


def test_a_hall_without_faults_has_no_trouble(tmp_path: Path) -> None:
    made = preview(hall().reports(), tmp_path)
    assert troubles(made.plan) == []
    assert trouble.as_text(made, [], NOW) == "No trouble in 16 nodes with 64 links."


def test_the_links_of_a_dead_switch_are_one_trouble(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link, at_once(int(node[-1]) % 2)) if dead else link

    (one,) = found(changed(hall(), fault), tmp_path)
    assert (one.where, one.what) == ("su0-leaf2", "8 links of 8 nodes went down at once")
    assert len(one.links) == 8
    assert one.reasons == ("carrier_down",)
    assert "check the switch su0-leaf2" in one.remedy


def test_a_dead_switch_is_one_trouble_although_the_clocks_of_its_nodes_differ(tmp_path: Path) -> None:
    def fault(alive: str, node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2" and node != alive
        return down(link, f"2027-01-15T07:00:{7 * int(node[-1]):02}Z") if dead else link

    (one,) = found(changed(hall(), partial(fault, "")), tmp_path)
    assert (one.where, one.what) == ("su0-leaf2", "8 links of 8 nodes went down at once")
    several = found(changed(hall(), partial(fault, "su0-n03")), tmp_path)
    assert len(several) == 7, "a switch with a link that is up is not dead: the times decide"


def test_links_of_a_switch_that_went_down_one_by_one_are_troubles_of_their_own(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link, f"2027-01-15T0{int(node[-1])}:00:00Z") if dead else link

    assert len(found(changed(hall(), fault), tmp_path)) == 8


def test_the_links_of_a_node_that_went_down_at_once_are_one_trouble(tmp_path: Path) -> None:
    reports = changed(hall(), lambda node, link: down(link) if node == "su1-n03" else link)
    (one,) = found(reports, tmp_path)
    assert (one.where, one.what, one.details) == (
        "su1-n03",
        "4 links went down at once",
        ("rail0", "rail1", "rail2", "rail3"),
    )


def test_a_dead_switch_takes_its_link_from_a_node_and_leaves_the_others(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        dead = link.neighbor is not None and link.neighbor.system_name == "su0-leaf2"
        return down(link) if dead or node == "su0-n01" else link

    switch, node = found(changed(hall(), fault), tmp_path)
    assert (switch.where, len(switch.links)) == ("su0-leaf2", 8)
    assert (node.where, node.details) == ("su0-n01", ("rail0", "rail1", "rail3"))


def test_what_concerns_most_pods_comes_first_with_its_remedy(tmp_path: Path) -> None:
    def fault(node: str, link: NodeLink) -> NodeLink:
        if (node, link.name) == ("su0-n00", "rail1"):
            return down(link, "2027-01-15T07:00:00Z")
        if (node, link.name) == ("su0-n05", "rail3"):
            return structs.replace(
                link,
                netdev="enp220s0np0",
                state="degraded",
                reasons=("flapping",),
                reason_details=("3 losses in 10 min",),
                last_transition_time=AT,
            )
        return link

    reports = changed(hall(), fault)
    held = tuple(
        VfHolder(
            namespace="team-a",
            pod=f"train-{n}",
            vfs=(HeldVf(link="rail3", pci_address=f"0000:1b:00.{n}"),),
            since="2027-01-15T07:00:00Z",
        )
        for n in range(10)
    )
    reports = [
        structs.replace(report, holders=held) if report.node_name == "su0-n05" else report
        for report in reports
    ]
    made = preview(reports, tmp_path)
    first, second = troubles(made.plan)
    assert first.pods[:2] == ("team-a/train-0", "team-a/train-1")
    assert second.where == "su0-n00 rail1 to su0-leaf1 Eth1/1"
    assert trouble.as_text(made, [first], NOW).splitlines() == [
        "su0-n05 rail3 (enp220s0np0) to su0-leaf3 Eth1/6: degraded, for 5 min 17 s",
        "  3 losses in 10 min",
        "  pods: " + ", ".join(f"team-a/train-{n}" for n in range(8)) + ", and 2 more",
        "  do: reseat or replace cable and optics",
        "",
        "1 trouble in 16 nodes with 64 links.",
    ]


def with_pod(report: NodeLinks, pod: str, *links: str) -> NodeLinks:
    vfs = tuple(HeldVf(link=link, pci_address="0000:1b:00.1") for link in links)
    holder = VfHolder(namespace="ml", pod=pod, vfs=vfs, since="2027-01-15T07:00:00Z")
    return structs.replace(report, holders=(*report.holders, holder))


def test_wrong_cables_have_the_pods_of_their_links_and_are_sorted_by_them(tmp_path: Path) -> None:
    made = hall()
    made.cables["su0-n00", 2] = "su1-leaf2"
    made.cables["su0-n05", 1] = "su1-leaf1"
    pods = {"train-0": "rail1", "train-1": "rail1", "beside": "rail0"}
    reports = [
        reduce(lambda had, pod: with_pod(had, *pod), pods.items(), report)
        if report.node_name == "su0-n05"
        else report
        for report in made.reports()
    ]
    first, second = read_troubles(preview(reports, tmp_path))
    assert (first.where, first.pods) == ("su0-n05 rail1", ("ml/train-0", "ml/train-1"))
    assert (second.where, second.pods) == ("su0-n00 rail2", ())


def read_troubles(made: Preview) -> list[FabricTrouble]:
    return troubles(made.plan, held=made.held)


def test_an_anomaly_of_nodes_has_the_pods_of_these_nodes(tmp_path: Path) -> None:
    made = hall()
    for rail in range(4):
        made.cables["su0-n03", rail] = f"su0-leaf{(rail + 1) % 4}"
    reports = [with_pod(report, f"on-{report.node_name}", "rail0", "rail3") for report in made.reports()]
    (one,) = read_troubles(preview(reports, tmp_path))
    assert (one.what, one.nodes, one.pods) == ("rail-shift", ("su0-n03",), ("ml/on-su0-n03",))


def test_an_anomaly_that_makes_the_tree_wrong_alone_concerns_no_pod(tmp_path: Path) -> None:
    """Else what nobody has to hurry with would be first, with the pods of a whole hall."""
    made = hall()
    reports = [with_pod(report, f"on-{report.node_name}", "rail0") for report in made.reports()]
    for kind in AnomalyKind:
        anomaly = Anomaly(kind, "", "", "su0-leaf0", "said", tuple(report.node_name for report in reports))
        view = preview(reports, tmp_path)
        plan = replace(view.plan, outcome=replace(view.plan.outcome, anomalies=(anomaly,)))
        (one,) = troubles(plan, held=view.held)
        assert bool(one.pods) == (kind not in _TREE_ALONE), kind
        assert bool(one.pods) == bool(one.nodes), kind


def test_the_pods_of_a_file_name_their_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hall()
    made.cables["su0-n05", 1] = "su1-leaf1"
    reports = [
        with_pod(report, "llm-0-x7k2p", "rail1") if report.node_name == "su0-n05" else report
        for report in made.reports()
    ]
    write(tmp_path / "reports.json", reports)
    pod = job_pods.of_job("llm", node="su0-n05")
    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == ("ml", "llm-0-x7k2p")
    (tmp_path / "pods.json").write_text(json.dumps(pod))
    assert main(["trouble", "--from", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "  pods: ml/llm-0-x7k2p\n  jobs: Job ml/llm\n" in out
    assert "other kinds" not in err
    assert main(["trouble", "--from", str(tmp_path), "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["troubles"]
    assert (one["pods"], one["jobs"]) == (["ml/llm-0-x7k2p"], ["Job ml/llm"])


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "yesterday"])
def test_a_time_that_no_clock_shows_stops_no_list(at: str, tmp_path: Path) -> None:
    """One node writes it, and everybody reads the list."""
    made = preview(
        changed(hall(), lambda node, link: down(link, at) if node == "su0-n00" else link), tmp_path
    )
    found = troubles(made.plan)
    (since,) = {one["since"] for one in trouble.trouble_document(made, found, "x", NOW)["troubles"]}
    assert since is None
    assert len([one for one in found if one.what == "down"]) == 4


def test_a_hall_without_power_is_listed_in_the_time_of_its_links() -> None:
    """Each fault is compared a few times, however many switches and nodes there are."""
    compared = 0

    class Counted(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    faults = [
        LinkFault(Counted(f"n{n}"), f"rail{rail}", "", "down", f"leaf{n // 4}-{rail}", "", NOW, (), (), ())
        for n in range(100)
        for rail in range(4)
    ]
    assert len(list(_one_cause(faults, ()))) == 100
    assert compared < 10 * len(faults)


def test_a_wrong_cable_is_told_once(tmp_path: Path) -> None:
    made = hall()
    made.cables["su0-n00", 2] = "su1-leaf2"
    (one,) = found(made.reports(), tmp_path)
    assert (one.what, one.where, one.remedy) == (
        "miscabled",
        "su0-n00 rail2",
        "move the cable to su0-leaf2",
    )
    assert one.details[0].startswith(
        "rail2 of su0-n00 is cabled to su1-leaf2, a switch of another leaf group"
    )
    miscabled = changed(
        made,
        lambda node, link: (
            structs.replace(link, state="miscabled", reasons=("miscabled",))
            if (node, link.name) == ("su0-n00", "rail2")
            else link
        ),
    )
    assert len(found(miscabled, tmp_path)) == 1


@pytest.mark.parametrize(("form", "expected"), [([], "1 trouble in 16"), (["--json"], '"troubles": [')])
def test_the_verb_fails_if_anything_is_wrong(
    form: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = changed(
        hall(), lambda node, link: down(link) if (node, link.name) == ("su0-n00", "rail1") else link
    )
    source = str(write(tmp_path / "bad.json", bad))
    assert main(["trouble", "--from", source, *form]) == 1
    printed = capsys.readouterr().out
    assert expected in printed
    if form:
        document = json.loads(printed)
        assert {*document} == {"cluster", "fabric", "time", "source", "nodes", "links", "troubles"}
        assert document["source"] == source
        (one,) = document["troubles"]
        assert one["since"] == AT
        assert one["links"] == [{"node": "su0-n00", "link": "rail1"}]
    none = str(write(tmp_path / "none.json", []))
    assert main(["trouble", "--from", none, *form]) == 2
    good = str(write(tmp_path / "good.json", hall().reports()))
    assert main(["trouble", "--from", good, *form]) == 0


def test_each_fault_of_a_link_by_facts_has_a_remedy() -> None:
    assert [rule.key for rule in LINK_RULES if remedy_of(rule.key) is None] == []


@pytest.mark.parametrize("may", [True, False])
async def test_the_jobs_of_a_cluster_are_named_where_its_pods_may_be_read(
    may: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the namespaces of these pods alone."""
    async with serving() as server:
        fill(server)
        pod = job_pods.of_job("llm", node="su000-n000")
        server.put(pod)
        server.put(job_pods.of_job("other", node="su000-n001", namespace="elsewhere"))
        report = server.find("nodelinks", "su000-n000", "nodeagent")
        assert report is not None
        report["links"][0] |= {"state": "down", "reasons": ["carrier_down"]}
        vfs = [{"link": report["links"][0]["name"], "pciAddress": "0000:18:00.1"}]
        holder = {"namespace": "ml", "pod": pod["metadata"]["name"], "vfs": vfs, "since": AT}
        server.put(report | {"holders": [holder]})
        if not may:
            server.fail("403", resource="pods", times=None)
        way = ["--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))]
        assert await asyncio.to_thread(main, ["trouble", *way]) == 1
        asked = {(seen.verb, seen.namespace) for seen in server.requests if seen.resource == "pods"}
    out, err = capsys.readouterr()
    assert "  pods: ml/llm-0-x7k2p\n" in out
    assert ("  jobs: Job ml/llm\n" in out) == may
    assert ("the jobs of the pods are not known" in err) == (not may)
    assert ("on which nodes no agent runs is not known" in err) == (not may)
    assert asked == {("list", "ml"), ("list", "nodeagent")}


OLD = "2026-01-01T00:00:00Z"


def pods_of_agents(*nodes: str) -> list[dict[str, Any]]:
    return [agent_pod(node) for node in nodes]


def stopped_for_long(node: str) -> dict[str, Any]:
    pod = agent_pod(node, state=CRASHES)
    pod["metadata"]["creationTimestamp"] = OLD
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": OLD}]
    return pod


async def test_a_node_of_the_cluster_without_its_agent_is_a_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving() as server:
        fill(server)
        nodes = [report["metadata"]["name"] for report in server.objects("nodelinks")]
        gone, crashed, *others = nodes
        for pod in (*pods_of_agents(*others), stopped_for_long(crashed)):
            server.put(pod)
        way = ["--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))]
        assert await asyncio.to_thread(main, ["trouble", *way, "--json"]) == 1
        found = {one["where"]: one for one in json.loads(capsys.readouterr().out)["troubles"]}
        assert {one["where"] for one in found.values() if one["what"] == "no agent"} == {gone, crashed}
        assert found[gone]["what"] == found[crashed]["what"] == "no agent"
        assert (found[gone]["since"], found[crashed]["since"]) == (None, OLD)
        assert found[crashed]["details"][0] == "its agent does not run: CrashLoopBackOff"
        assert await asyncio.to_thread(main, ["explain", gone, *way]) == 0
        said = capsys.readouterr().out
        assert "It is without an agent: no agent runs there. Its links are as last reported." in " ".join(
            said.split()
        )
        assert await asyncio.to_thread(main, ["topology", "--format", "html", *way]) == 0
        assert f'"{gone}":{{"what":"no agent"' in capsys.readouterr().out
        asked = {(seen.verb, seen.namespace) for seen in server.requests if seen.resource == "pods"}
        assert asked == {("list", "nodeagent")}


@pytest.mark.parametrize("twice", [False, True])
def test_a_file_with_the_pods_of_the_agents_knows_which_node_has_none(
    twice: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whatever order they come, and each twice: `kubectl nodeagent` pipes all pods, then those of the agents."""
    reports = hall().reports()
    names = [report.node_name for report in reports]
    write(tmp_path / "reports.json", reports)
    pods = [*pods_of_agents(*names[2:]), stopped_for_long(names[1])]
    short = [{**pod, "status": {"phase": "Running"}} for pod in pods]
    (tmp_path / "a-pods.json").write_text(json.dumps({"kind": "PodList", "items": [*short * twice, *pods]}))
    assert main(["trouble", "--from", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["troubles"]
    assert {one["where"]: one["what"] for one in found} == {names[0]: "no agent", names[1]: "no agent"}
    assert main(["explain", names[1], "--from", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "It is without an agent for " in out
    assert "left out" not in err


def test_a_file_without_those_pods_says_nothing_of_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "reports.json", hall().reports())
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [job_pods.of_job("a")]}))
    assert main(["trouble", "--from", str(tmp_path)]) == 0
    assert main(["explain", "su0-n00", "--from", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "without an agent" not in out
    assert "left out" not in err


def test_a_broken_pod_of_an_agent_is_left_out_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = hall().reports()
    names = [report.node_name for report in reports]
    write(tmp_path / "reports.json", reports)
    broken = {**agent_pod(names[0]), "status": {"phase": 7}}
    items = [broken, *pods_of_agents(*names[1:])]
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": items}))
    assert main(["trouble", "--from", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert f"{names[0]}: no agent" in out
    assert f"Pod nodeagent-{names[0]} is ignored" in err


def test_a_namespace_has_the_troubles_of_its_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hall()
    made.cables["su0-n00", 2] = "su1-leaf2"
    made.cables["su0-n05", 1] = "su1-leaf1"
    reports = [
        with_pod(report, "train-0", "rail1") if report.node_name == "su0-n05" else report
        for report in made.reports()
    ]
    write(tmp_path / "reports.json", reports)
    for namespace, nodes in (("ml", ["su0-n05"]), ("m", []), ("", [])):
        code = main(["trouble", "-n", namespace, "--from", str(tmp_path), "--json"])
        found = json.loads(capsys.readouterr().out)["troubles"]
        assert [one["links"][0]["node"] for one in found] == nodes
        assert code == bool(nodes)


def test_a_watch_prints_whole_documents_too() -> None:
    words = ["trouble", "--watch", "1", "-o", "json", "--from", str(ROOT / "docs/samples/nodelinks.yaml")]
    with subprocess.Popen(
        [sys.executable, "-m", "nodeagent", *words], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        for _ in range(2):
            text = ""
            while not text.endswith("\n}\n"):
                text += program.stdout.readline()
            assert json.loads(text)["nodes"] > 0
        program.stdout.close()
        assert program.wait(60) == 0


def test_watching_ends_with_the_reader_of_its_pipe() -> None:
    words = ["trouble", "--watch", "1", "--from", str(ROOT / "docs/samples/nodelinks.yaml")]
    with subprocess.Popen([sys.executable, "-m", "nodeagent", *words], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.wait(60) == 0
