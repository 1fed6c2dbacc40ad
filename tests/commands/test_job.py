"""job: the fabric of each kind of job, from files and from a cluster; names that collide, or that no job has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nodeagent.cli import main
from nodeagent.commands.plan import job, trouble
from nodeagent.commands.plan.objects import store_object
from nodeagent.commands.plan.preview import Preview, make_objects, make_preview
from nodeagent.console.terminal import Screen
from nodeagent.fabric import NodeLinks
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.jobs import JobKey, JobPod, by_job, job_pod
from nodeagent.fabric.nodelinks import HeldVf, NodeLink, ReportedGpu, VfHolder
from tests.commands.test_cabling import write
from tests.commands.test_plan_live import kubeconfig, serving
from tests.commands.test_trouble import NOW, down
from tests.features.test_silent_agents import agent_pod
from tests.support import golden, job_pods
from tests.support.halls import Hall

GOLDEN = Path(__file__).parents[1] / "golden" / "fabric-job.txt"
Pods = list[dict[str, Any]]


def held(report: NodeLinks, pods: Iterable[tuple[str, str]], rails: range = range(4)) -> NodeLinks:
    """The report with these pods (namespace, name) as holders of a VF on each rail."""
    vfs = tuple(HeldVf(link=f"rail{rail}", pci_address=f"0000:{rail:02x}:00.2") for rail in rails)
    holders = tuple(
        VfHolder(namespace=space, pod=pod, vfs=vfs, since=job_pods.STARTED) for space, pod in pods
    )
    return structs.replace(report, holders=holders)


def scene() -> tuple[list[NodeLinks], Pods]:
    """Three units of four nodes. ``llama`` has six nodes in three of them, and others share these units."""
    hall = Hall([[f"su{unit}-leaf{rail}" for rail in range(4)] for unit in range(3)], 4)
    nodes = ["su0-n00", "su0-n01", "su0-n02", "su1-n00", "su1-n01", "su2-n03"]
    pods = [job_pods.of_jobset("llama", index, node=node) for index, node in enumerate(nodes)]
    pods += [
        job_pods.launcher_of_mpijob("bert", node="su0-n03"),
        job_pods.of_deployment("web", node="su0-n03"),
    ]
    pods += [job_pods.of_mpijob("bert", n, node=node) for n, node in enumerate(("su1-n02", "su1-n03"))]
    pods += [job_pods.of_job("eval", node="su2-n02", namespace="b")]
    of_node: dict[str, list[tuple[str, str]]] = {}
    for one in pods:
        if "launcher" not in one["metadata"]["name"] and "web" not in one["metadata"]["name"]:
            of_node.setdefault(one["spec"]["nodeName"], []).append(
                (one["metadata"]["namespace"], one["metadata"]["name"])
            )
    of_node["su2-n01"] = [("b", "notebook")]
    reports = [held(report, of_node.get(report.node_name, ())) for report in hall.reports()]
    return reports, pods


def changed(
    reports: list[NodeLinks], node: str, name: str, change: Callable[[NodeLink], NodeLink]
) -> list[NodeLinks]:
    return [
        structs.replace(
            report,
            links=tuple(
                change(link) if (report.node_name, link.name) == (node, name) else link
                for link in report.links
            ),
        )
        for report in reports
    ]


def troubled() -> tuple[list[NodeLinks], Pods]:
    """A link of the job is down, one is slow, one was down since the job began, and another job has a fault too."""
    reports, pods = scene()
    reports = changed(reports, "su0-n01", "rail2", down)
    reports = changed(reports, "su1-n03", "rail0", down)
    reports = changed(reports, "su1-n00", "rail3", lambda link: structs.replace(link, speed_mbps=200_000))
    recovered = "2027-01-15T07:00:00Z"
    reports = changed(
        reports, "su2-n03", "rail1", lambda link: structs.replace(link, last_transition_time=recovered)
    )
    before = "2027-01-15T05:00:00Z"
    reports = changed(
        reports, "su0-n00", "rail0", lambda link: structs.replace(link, last_transition_time=before)
    )
    return reports, pods


def preview(reports: list[NodeLinks], pods: Pods, folder: Path) -> Preview:
    read = make_objects(FabricRules())
    read.reports, read.pods = {}, []
    for item in json.loads(write(folder / "reports.json", reports).read_text())["items"]:
        assert store_object(item, read)
    for one in pods:
        assert store_object(one, read)
    return make_preview(read)


def file(reports: list[NodeLinks], pods: Pods, folder: Path) -> str:
    """A folder with the two files that a user makes with kubectl."""
    write(folder / "nodelinks.json", reports)
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": pods}))
    return str(folder)


def lines(made: Preview, name: str, width: int | None = None) -> list[str]:
    jobs = by_job(map(job_pod, made.pods))
    return [*job.as_lines(*job.described_job(made, jobs, job.chosen(jobs, name, None)), NOW, Screen(width))]


@pytest.mark.golden("tests/golden/fabric-job.txt")
def test_the_page_of_a_job_fits_80_columns_and_is_as_before(tmp_path: Path) -> None:
    shown = lines(preview(*troubled(), tmp_path), "llama", 80)
    assert [line for line in shown if len(line) > 80] == []
    golden.same(GOLDEN, "\n".join(shown) + "\n")


def test_a_dead_node_of_the_job_is_its_trouble(tmp_path: Path) -> None:
    reports, pods = scene()
    away = ("su1-n00", "su1-n03")
    nodes = [node_that_is(one.node_name, "Unknown" if one.node_name in away else "True") for one in reports]
    made = preview(reports, [*pods, *nodes], tmp_path)
    found = "\n".join(lines(made, "llama"))
    assert "su1-n00: unreachable, for 5 min 17 s\n  its kubelet does not answer\n" in found
    assert "  pods: ml/llama-node-3-0-abcde\n" in found
    assert "su1-n03" not in found, "another job's"
    assert found.endswith("1 trouble.")


def test_a_node_of_the_job_without_its_agent_is_its_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports, pods = scene()
    without = ("su1-n00", "su1-n03")
    agents = [agent_pod(one.node_name) for one in reports if one.node_name not in without]
    assert main(["job", "llama", "--from", file(reports, [*pods, *agents], tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "su1-n00: no agent\n  no agent runs there\n" in out
    assert "su1-n03" not in out, "another job's"


def test_a_gpu_of_the_job_is_its_trouble_and_that_of_another_pod_is_not(tmp_path: Path) -> None:
    reports, pods = scene()
    fell = ReportedGpu(index=3, state="unhealthy", reasons=("xid_79",), since="2027-01-15T07:54:43Z")
    held = {"su1-n00": ("ml/llama-node-3-0-abcde",), "su0-n00": ("b/other",), "su1-n03": ()}
    reports = [
        structs.replace(one, gpus=(structs.replace(fell, pods=held[one.node_name]),))
        if one.node_name in held
        else one
        for one in reports
    ]
    made = preview(reports, pods, tmp_path)
    found = "\n".join(lines(made, "llama"))
    assert "su1-n00 GPU 3: unhealthy, for 5 min 17 s\n  xid_79\n  pods: ml/llama-node-3-0-abcde\n" in found
    assert "su0-n00 GPU" not in found, "another pod has it"
    assert "su1-n03" not in found, "another job's node"
    assert found.endswith("1 trouble.")


def node_that_is(name: str, ready: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2027-01-15T07:54:43Z"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": [condition]},
    }


def test_a_job_without_a_fault_has_no_trouble_though_another_has(tmp_path: Path) -> None:
    shown = lines(preview(*troubled(), tmp_path), "eval")
    assert shown[0] == "Job b/eval: 1 pod on 1 node, the oldest for 2 h"
    assert shown[-1] == "No trouble with its links."
    assert "links: 4, 0 with a fault" in shown
    assert "speeds, the slowest first: 4 at 400 Gbit/s" in shown


def test_a_pod_without_a_vf_gives_no_link_and_is_named(tmp_path: Path) -> None:
    shown = lines(preview(*troubled(), tmp_path), "MPIJob/bert")
    assert "pods without a VF: bert-launcher-q5z8w" in shown
    assert "links: 8, 1 with a fault" in shown
    assert any(line.startswith("su1-n03 rail0 to su1-leaf0 ") for line in shown)


def test_without_holders_all_links_of_the_nodes_count_and_the_setting_is_named(tmp_path: Path) -> None:
    reports, pods = troubled()
    made = preview([structs.replace(report, holders=()) for report in reports], pods, tmp_path)
    shown = lines(made, "llama")
    assert any("cluster.reportHolders" in line for line in shown)
    assert "links: 24, 1 with a fault" in shown
    assert not any("VF:" in line for line in shown)


def test_a_job_whose_pods_all_wait_blames_no_setting_and_calls_no_link_good(tmp_path: Path) -> None:
    """As the leader of a LeaderWorkerSet does that found no leaf group for itself."""
    reports, pods = scene()
    waiting = job_pods.of_leaderworkerset("llama", group=2, phase="Pending")
    printed = lines(preview(reports, [*pods, waiting], tmp_path), "llama-2")
    assert "pods without a node: llama-2" in printed
    assert "cluster.reportHolders" not in " ".join(printed)
    assert printed[-1] == "None of its pods has a node yet, so it has no links."
    assert not any(line.startswith("links:") for line in printed)


def test_a_job_whose_pods_moved_has_its_present_nodes_alone(tmp_path: Path) -> None:
    """The old pods have failed, and the old node still reports a VF of a pod that has the name of a new one."""
    reports, _ = scene()
    old = [job_pods.of_mpijob("bert", 0, node="su0-n00", phase="Failed")]
    now = [
        job_pods.of_mpijob("bert", 1, node="su1-n00", started="2027-01-15T07:59:00Z"),
        job_pods.of_mpijob("bert", 2, phase="Pending"),
    ]
    reports = [
        held(report, [("ml", "bert-worker-1")] * (report.node_name in ("su0-n00", "su1-n00")))
        for report in reports
    ]
    reports = changed(reports, "su0-n00", "rail1", down)
    shown = lines(preview(reports, [*old, *now], tmp_path), "bert")
    assert shown[0] == "MPIJob ml/bert: 2 pods on 1 node, the oldest for 2 h"
    assert "pods without a node: bert-worker-2" in shown
    assert "links: 4, 0 with a fault" in shown
    assert not any("su0-n00" in line for line in shown)


def test_a_node_without_a_place_is_a_trouble_of_the_job(tmp_path: Path) -> None:
    reports, pods = scene()
    reports = [
        structs.replace(report, links=tuple(structs.replace(link, neighbor=None) for link in report.links))
        if report.node_name == "su2-n03"
        else report
        for report in reports
    ]
    shown = lines(preview(reports, pods, tmp_path), "llama")
    assert "  in no leaf group: su2-n03" in shown
    assert "su2-n03: not placed" in shown
    assert "leaf groups: 2; fewest possible: 2 (the largest filled first)" in shown


def test_a_node_without_a_report_is_named_and_not_taken_for_good(tmp_path: Path) -> None:
    reports, pods = scene()
    seen = preview([it for it in reports if it.node_name != "su0-n01"], pods, tmp_path)
    jobs = by_job(map(job_pod, seen.pods))
    made, found = job.described_job(seen, jobs, JobKey("ml", "JobSet", "llama"))
    lines = [*job.as_lines(made, found, NOW)]
    assert made["unreportedNodes"] == ["su0-n01"]
    assert "no NodeLinks report of: su0-n01; nothing is known of their links" in lines
    assert lines[-1] == "No trouble with its links of which a report is here."


def test_a_joint_trouble_of_a_switch_is_shown_once(tmp_path: Path) -> None:
    reports, pods = scene()
    for node in ("su0-n00", "su0-n01", "su0-n02", "su0-n03"):
        reports = changed(reports, node, "rail0", down)
    shown = lines(preview(reports, pods, tmp_path), "llama")
    assert "su0-leaf0: 4 links of 4 nodes went down at once, for 5 min 17 s" in shown
    assert shown[-1] == "1 trouble."


# --- names ----------------------------------------------------------------------------------------------


def known(*jobs: str) -> dict[JobKey, list[JobPod]]:
    """By ``NAMESPACE/KIND/NAME``."""
    return {JobKey(*one.split("/")): [] for one in jobs}


SEVERAL = known("a/Job/x", "a/JobSet/x", "b/JobSet/x", "b/JobSet/trainer", "b/RayCluster/llama-7gx2k")


@pytest.mark.parametrize(
    ("name", "namespace", "found"),
    [
        ("trainer", None, "b/JobSet/trainer"),
        ("x", "b", "b/JobSet/x"),
        ("job/x", None, "a/Job/x"),
        ("JobSet/x", "a", "a/JobSet/x"),
        ("TrainJob/trainer", None, "b/JobSet/trainer"),
        ("llama", None, "b/RayCluster/llama-7gx2k"),
        ("RayJob/llama", "b", "b/RayCluster/llama-7gx2k"),
    ],
)
def test_a_name_a_kind_and_a_namespace_choose_a_job(name: str, namespace: str | None, found: str) -> None:
    assert job.chosen(SEVERAL, name, namespace) == JobKey(*found.split("/"))


@pytest.mark.parametrize(
    ("name", "namespace", "said"),
    [
        (
            "x",
            None,
            "3 jobs are called x: nodeagent job -n a Job/x; nodeagent job -n a JobSet/x; nodeagent job -n b JobSet/x",
        ),
        ("jobset/x", None, "2 jobs are called x: nodeagent job -n a JobSet/x; nodeagent job -n b JobSet/x"),
        ("trianer", None, "no job with pods that run is called trianer; there is JobSet b/trainer"),
        ("llam", None, "no job with pods that run is called llam; there is RayCluster b/llama-7gx2k"),
        ("trainer", "a", "no job with pods that run is called trainer; there is Job a/x, JobSet a/x"),
        ("zzz", "nowhere", "no job with pods that run is called zzz; there is Job a/x, JobSet a/x,"),
        ("JobsSet/x", None, "JobsSet is no kind of job; did you mean JobSet?"),
    ],
)
def test_a_name_of_several_or_of_no_job_is_refused_with_the_candidates(
    name: str, namespace: str | None, said: str
) -> None:
    with pytest.raises(job.JobNameError) as raised:
        job.chosen(SEVERAL, name, namespace)
    assert str(raised.value).startswith(said)


GROUPS = known(
    *(f"a/LeaderWorkerSet/llama-{n}" for n in range(8)),
    "a/PodCliqueSet/one-0",
    "a/Job/batch-0",
    "b/Deployment/x-1",
    "b/RayCluster/ray-world",
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-3", "a/LeaderWorkerSet/llama-3"),
        ("lws/llama-3", "a/LeaderWorkerSet/llama-3"),
        ("one", "a/PodCliqueSet/one-0"),
        ("PodCliqueSet/one", "a/PodCliqueSet/one-0"),
        ("deploy/x-1", "b/Deployment/x-1"),
    ],
)
def test_a_group_has_a_name_and_the_only_one_of_a_set_has_its_name_too(name: str, found: str) -> None:
    assert job.chosen(GROUPS, name, None) == JobKey(*found.split("/"))


def test_a_set_with_several_groups_names_them_and_a_number_at_the_end_makes_no_set_of_a_job() -> None:
    with pytest.raises(job.JobNameError, match="no job with pods that run is called ray"):
        job.chosen(GROUPS, "ray", None)
    with pytest.raises(job.JobNameError) as raised:
        job.chosen(GROUPS, "llama", None)
    assert str(raised.value) == (
        "llama has 8 groups, each a job: "
        + "; ".join(f"nodeagent job -n a LeaderWorkerSet/llama-{n}" for n in range(6))
        + "; 2 more"
    )
    for name in ("batch", "x", "one-"):
        with pytest.raises(job.JobNameError, match="no job with pods that run is called"):
            job.chosen(GROUPS, name, None)


def test_roles_are_shown_with_their_leaf_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = (("prefill", "su0-n00"), ("prefill", "su0-n01"), ("decode", "su1-n00"), ("router", ""))
    pods = [job_pods.of_podcliqueset("llama", role, n, node=node) for n, (role, node) in enumerate(places)]
    source = file(scene()[0], pods, tmp_path)
    assert main(["job", "llama", "--from", source]) == 0
    shown = capsys.readouterr().out
    assert "PodCliqueSet ml/llama-0: 4 pods on 3 nodes" in shown
    assert re.search(
        r"^roles: decode \(1 pod in \S+\), prefill \(2 pods in \S+\), router \(1 pod\)$", shown, re.MULTILINE
    )
    assert main(["job", "llama", "--json", "--from", source]) == 0
    made = json.loads(capsys.readouterr().out)["job"]
    assert [pod["role"] for pod in made["pods"]] == [role for role, _ in places]


def test_an_input_with_pods_of_no_job_is_not_told_that_pods_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [
        job_pods.of_daemonset("exporter", node="su0-n00"),
        job_pods.of_job("eval", node="su0-n00", phase="Succeeded"),
    ]
    source = file(scene()[0], pods, tmp_path)
    assert main(["job", "llama", "--from", source]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "of the 2 pods here none is of a job and has not ended; jobs are Job, " in error
    assert "LeaderWorkerSet" in error
    assert "a file needs" not in error


def test_an_input_without_pods_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(write(tmp_path / "x.json", scene()[0]))
    assert main(["job", "llama", "--from", source]) == 2
    assert "kubectl get pods -A -o yaml" in capsys.readouterr().err


async def test_a_cluster_where_a_job_has_no_pods_yet_is_told_so_and_hears_of_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kueue holds the job: it is suspended, and has no pods."""
    async with serving() as server:
        config = kubeconfig(server, tmp_path / "kubeconfig")
        assert await asyncio.to_thread(main, ["job", "llama", "--kubeconfig", str(config)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "no pod of a job in this cluster: a job that waits has no pods yet" in error
    assert "kubectl get workloads -A" in error
    assert "a file needs" not in error


def test_a_job_of_a_cluster_that_waits_beside_others_is_told_so() -> None:
    with pytest.raises(job.JobNameError) as raised:
        job.chosen(SEVERAL, "llam", None, live=True)
    assert str(raised.value).startswith(
        "no job with pods that run is called llam; there is RayCluster b/llama-7gx2k. "
        "A job that waits has no pods yet"
    )


# --- the verb -------------------------------------------------------------------------------------------


def test_the_verb_fails_if_something_is_wrong_with_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file(*troubled(), tmp_path)
    assert main(["job", "llama", "--from", source]) == 1
    assert "su0-n01 rail2 to su0-leaf2" in capsys.readouterr().out
    assert main(["job", "eval", "-n", "b", "--from", source]) == 0
    capsys.readouterr()
    assert main(["job", "lama", "--from", source]) == 2
    assert "there is JobSet ml/llama" in capsys.readouterr().err
    (tmp_path / "pods.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x, labels: [1]}\n")
    assert main(["job", "eval", "--from", source]) == 0
    assert "Pod x is ignored" in capsys.readouterr().err


def test_the_document_has_the_envelope_of_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = file(*troubled(), tmp_path)
    assert main(["trouble", "--json", "--from", source]) == 1
    envelope = json.loads(capsys.readouterr().out)
    assert main(["job", "JobSet/llama", "--json", "--from", source]) == 1
    made = json.loads(capsys.readouterr().out)
    assert {*made} == {*envelope, "job"}
    (one,) = made["troubles"]
    assert one in envelope["troubles"]
    assert one["pods"] == ["ml/llama-node-1-0-abcde"]
    found = made["job"]
    assert [found[key] for key in ("namespace", "kind", "name", "since", "linksOf", "fewestLeafGroups")] == [
        "ml", "JobSet", "llama", job_pods.STARTED, "vfs", 2,
    ]  # fmt: skip
    assert sorted(found["leafGroups"].values()) == [
        ["su0-n00", "su0-n01", "su0-n02"],
        ["su1-n00", "su1-n01"],
        ["su2-n03"],
    ]
    assert [(link["node"], link["link"]) for link in found["links"] if link["state"] == "down"] == [
        ("su0-n01", "rail2")
    ]
    assert found["sharers"] == {"MPIJob ml/bert": 3, "Job b/eval": 1, "pod b/notebook": 1}
    assert found["pods"][0] == {
        "name": "llama-node-0-0-abcde",
        "node": "su0-n00",
        "role": "node",
        "links": ["rail0", "rail1", "rail2", "rail3"],
    }


@pytest.mark.parametrize("with_vfs", [True, False])
def test_a_deployment_shares_leaf_groups_only_with_vfs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, with_vfs: bool
) -> None:
    reports, pods = scene()
    web = job_pods.of_deployment("web", node="su0-n03")["metadata"]["name"]
    reports = [
        held(report, [("ml", web)] if with_vfs else []) if report.node_name == "su0-n03" else report
        for report in reports
    ]
    assert main(["job", "JobSet/llama", "--json", "--from", file(reports, pods, tmp_path)]) == 0
    sharers = json.loads(capsys.readouterr().out)["job"]["sharers"]
    assert ("Deployment ml/web" in sharers) is with_vfs
    assert "MPIJob ml/bert" in sharers


async def test_the_pods_of_a_cluster_are_read_with_the_rights_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports, pods = troubled()
    async with serving() as server:
        for item in json.loads(write(tmp_path / "reports.json", reports).read_text())["items"]:
            item["metadata"]["namespace"] = "nodeagent"
            server.put(item)
        for one in pods:
            server.put(one)
        way = ["--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))]
        assert await asyncio.to_thread(main, ["job", "llama", *way]) == 1
        shown = capsys.readouterr().out
        assert "MPIJob ml/bert (3 nodes)" in shown
        assert await asyncio.to_thread(main, ["job", "llama", "-n", "ml", *way]) == 1
        shown = capsys.readouterr().out
        assert "pod b/eval-0-x7k2p (1 node)" in shown, "of other namespaces only the holders of VFs are known"
        assert {seen.verb for seen in server.requests} == {"list"}
        server.fail("403", verb="list", resource="pods")
        assert await asyncio.to_thread(main, ["job", "llama", *way]) == 2
        assert "-n NAMESPACE reads the pods of one namespace" in capsys.readouterr().err


def test_watching_goes_on_when_the_job_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file(*troubled(), tmp_path)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            (tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": []}))
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(trouble.time, "sleep", wait)
    assert main(["job", "llama", "--watch", "5", "--from", source]) == 130
    printed = capsys.readouterr()
    assert "1 trouble." in printed.out
    assert "no pods in this input" in printed.err
    assert waits == [5, 5]
