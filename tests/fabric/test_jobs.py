"""Jobs in the fabric: whose pods are whose, leaf groups against the fewest possible, links, and the first of many."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.fabric import IMMEDIATE, FabricRules, Planner
from nodeagent.fabric.jobs import (
    ALIASES,
    KINDS,
    FabricOfJobs,
    JobFabric,
    JobKey,
    JobPod,
    ListedPod,
    by_job,
    held_links,
    in_trouble_first,
    job_pod,
)
from nodeagent.fabric.nodelinks import HeldVf, ReportedGpu, VfHolder
from nodeagent.fabric.planner import Plan
from tests.support import job_pods
from tests.support.halls import Hall

Make = Callable[..., dict[str, Any]]


def read(document: dict[str, Any]) -> JobPod | None:
    return job_pod(msgspec.json.decode(msgspec.json.encode(document), type=ListedPod))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (job_pods.of_job, "Job"),
        (job_pods.of_jobset, "JobSet"),
        (job_pods.of_mpijob, "MPIJob"),
        (job_pods.launcher_of_mpijob, "MPIJob"),
        (job_pods.of_pytorchjob, "PyTorchJob"),
        (job_pods.of_raycluster, "RayCluster"),
        (job_pods.of_volcano_job, "VolcanoJob"),
        (job_pods.of_kueue_group, "KueueGroup"),
        (job_pods.of_volcano_group, "VolcanoGroup"),
        (job_pods.of_trial, "Trial"),
        (job_pods.of_workflow, "Workflow"),
        (job_pods.of_statefulset, "StatefulSet"),
        (job_pods.of_deployment, "Deployment"),
    ],
)
def test_a_pod_of_each_controller_names_its_job(make: Make, kind: str) -> None:
    made = read(make("llama", node="n0"))
    assert made is not None
    assert (made.job, made.node, made.since) == (JobKey("ml", kind, "llama"), "n0", job_pods.STARTED)
    assert kind in KINDS
    ended = [read(make("llama", node="n0", phase=phase)) for phase in ("Succeeded", "Failed")]
    assert ended == [None, None]
    waiting = read(make("llama", phase="Pending"))
    assert waiting is not None
    assert (waiting.node, waiting.since) == ("", job_pods.STARTED)


RECORDED = sorted((Path(__file__).parent / "recorded_pods").glob("*.jsonl"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_pods_that_a_real_controller_made_name_their_job_and_role(file: Path) -> None:
    """Recorded from the recipes on an API server; docs/reference/verified.md has versions and dates."""
    recorded = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(recorded) > 1
    for one in recorded:
        made = read(one["pod"])
        if one["job"] is None:
            assert made is None
            continue
        assert made is not None
        assert (made.job, made.role) == (JobKey(*one["job"]), one["role"]), made.name
        assert made.node == one["pod"]["spec"].get("nodeName", "")


def test_a_pod_of_no_job_is_left_out() -> None:
    assert read(job_pods.of_daemonset("exporter", node="n0")) is None
    assert read({"metadata": {"name": "bare"}}) is None
    assert read(job_pods.submitter_of_rayjob("llama", node="n0")) is None
    owned = job_pods.of_job("x")
    owned["metadata"]["ownerReferences"][0]["controller"] = False
    assert read(owned) is None
    unknown = job_pods.of_pytorchjob("x")
    unknown["metadata"]["labels"]["training.kubeflow.org/operator-name"] = "other"
    assert read(unknown) is None
    assert {*ALIASES.values()} <= {*KINDS}
    assert len({*KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("made", "job", "role"),
    [
        (job_pods.of_leaderworkerset("llama", 0, 3), "LeaderWorkerSet ml/llama-3", "leader"),
        (job_pods.of_leaderworkerset("llama", 1, 3), "LeaderWorkerSet ml/llama-3", "worker"),
        (job_pods.of_leaderworkerset("llama", 12), "LeaderWorkerSet ml/llama-0", "worker"),
        (job_pods.of_disaggregatedset("llama", "decode", 1, 2), "DisaggregatedSet ml/llama-2", "decode"),
        (job_pods.of_disaggregatedset("llama", "prefill"), "DisaggregatedSet ml/llama-0", "prefill"),
        (job_pods.of_podcliqueset("llama", "prefill", replica=1), "PodCliqueSet ml/llama-1", "prefill"),
        (job_pods.of_podcliqueset("llama", "p-leader", group="sg"), "PodCliqueSet ml/llama-0", "p-leader"),
        (job_pods.of_mpijob("llama"), "MPIJob ml/llama", "worker"),
        (job_pods.launcher_of_mpijob("llama"), "MPIJob ml/llama", "launcher"),
        (job_pods.of_pytorchjob("llama"), "PyTorchJob ml/llama", "worker"),
        (job_pods.of_jobset("llama"), "JobSet ml/llama", "node"),
        (job_pods.of_raycluster("llama"), "RayCluster ml/llama", "worker"),
        (job_pods.of_volcano_job("llama"), "VolcanoJob ml/llama", "worker"),
        (job_pods.of_deployment("llama"), "Deployment ml/llama", ""),
    ],
)
def test_a_group_of_a_set_is_a_job_and_a_pod_has_its_role(made: dict[str, Any], job: str, role: str) -> None:
    found = read(made)
    assert found is not None
    assert (str(found.job), found.role) == (job, role)


def test_a_set_of_an_older_version_without_slices_is_slice_zero() -> None:
    made = job_pods.of_disaggregatedset("llama")
    del made["metadata"]["labels"]["disaggregatedset.x-k8s.io/slice"]
    found = read(made)
    assert found is not None
    assert found.job.name == "llama-0"


def test_a_part_of_some_other_application_is_no_clique() -> None:
    made = job_pods.of_deployment("web")
    made["metadata"]["labels"] |= {"app.kubernetes.io/part-of": "shop"}
    found = read(made)
    assert found is not None
    assert str(found.job) == "Deployment ml/web"


# --- the fabric of a job --------------------------------------------------------------------------------


def plan_of(hall: Hall, down: frozenset[tuple[str, str]] = frozenset()) -> Plan:
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for report in hall.reports():
        links = tuple(
            structs.replace(link, state="down") if (report.node_name, link.name) in down else link
            for link in report.links
        )
        planner.report(report.node_name, structs.replace(report, links=links))
    return planner.prepare(0.0)()


def hall(units: int = 3, size: int = 4) -> Hall:
    return Hall([[f"su{unit}-leaf{rail}" for rail in range(2)] for unit in range(units)], size)


JOB = JobKey("ml", "JobSet", "llama")


def pods(*nodes: str) -> list[JobPod]:
    return [JobPod(JOB, f"w-{n}", node, job_pods.STARTED) for n, node in enumerate(nodes)]


def holds(pod: str, *links: str) -> VfHolder:
    vfs = tuple(HeldVf(link=link, pci_address="0000:18:00.2") for link in links)
    return VfHolder(namespace="ml", pod=pod, vfs=vfs, since="2027-01-15T06:00:00Z")


def test_the_links_of_a_job_are_those_of_the_vfs_that_its_pods_hold() -> None:
    plan = plan_of(hall(), frozenset({("su0-n01", "rail1"), ("su1-n00", "rail0")}))
    held = {
        "su0-n00": held_links((holds("w-0", "rail0", "rail1", "rail1"), holds("other", "rail0"))),
        "su0-n01": held_links((holds("w-1", "rail1"),)),
        "su1-n00": held_links((holds("w-2", "rail1"),)),
    }
    made = FabricOfJobs(plan, held).of(JOB, pods("su0-n00", "su0-n01", "su1-n00", ""))
    assert made.links == (
        ("su0-n00", "rail0"),
        ("su0-n00", "rail1"),
        ("su0-n01", "rail1"),
        ("su1-n00", "rail1"),
    )
    assert made.faulty == (("su0-n01", "rail1"),)
    assert sorted(made.groups.values()) == [("su0-n00", "su0-n01"), ("su1-n00",)]
    assert (made.leaf_groups, made.fewest) == (2, 1)


def test_a_report_that_still_names_a_pod_on_its_former_node_does_not_count() -> None:
    held = {"su0-n00": held_links((holds("w-0", "rail0"),)), "su1-n00": held_links((holds("w-0", "rail1"),))}
    made = FabricOfJobs(plan_of(hall()), held).of(JOB, pods("su1-n00"))
    assert made.links == (("su1-n00", "rail1"),)


def test_the_gpus_of_a_job_are_those_in_trouble_that_its_pods_hold_on_their_present_nodes() -> None:
    planner = Planner(FabricRules(hysteresis=IMMEDIATE))
    for report in hall().reports():
        gpus = tuple(
            ReportedGpu(index=n, state="unhealthy", pods=pods)
            for n, pods in enumerate((("ml/w-0", "ml/x"), ("other/w-0",), ()))
        )
        planner.report(report.node_name, structs.replace(report, gpus=gpus))
    made = FabricOfJobs(planner.prepare(0.0)(), {}).of(JOB, pods("su0-n00", "su0-n01"))
    assert made.gpus == (("su0-n00", "GPU 0"),)
    assert in_trouble_first([made._replace(gpus=()), made], 1) == [made]


def test_a_pod_without_holders_gives_its_node_and_no_link() -> None:
    made = FabricOfJobs(plan_of(hall()), {}).of(JOB, pods("su0-n00", "gone"))
    assert (made.links, made.faulty, made.leaf_groups, made.fewest) == ((), (), 1, 1)
    assert made.groups[""] == ("gone",)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), data=st.data())
def test_fewer_leaf_groups_than_the_fewest_cannot_hold_the_nodes(
    sizes: list[int], data: st.DataObject
) -> None:
    place = {f"g{unit}-{n}": f"g{unit}" for unit, size in enumerate(sizes) for n in range(size)}
    nodes = data.draw(st.lists(st.sampled_from(sorted(place)), unique=True, min_size=1))
    plan = plan_of(hall(1, 1))
    placed = replace(plan, nodes=replace(plan.nodes, place=place))
    made = FabricOfJobs(placed, {}).of(JOB, pods(*nodes))
    assert sum(sorted(sizes, reverse=True)[: made.fewest]) >= len(nodes)
    assert sum(sorted(sizes, reverse=True)[: made.fewest - 1]) < len(nodes)
    assert made.fewest <= made.leaf_groups


# --- the first of many ----------------------------------------------------------------------------------


def test_of_ten_thousand_jobs_two_hundred_are_shown_those_in_trouble_first() -> None:
    def made(number: int) -> JobFabric:
        links = (("n", "l"),) * (number % 10_000 >= 9_990)
        groups = {f"g{i}": ("n",) for i in range(2 if number == 7 else 1)}
        return JobFabric(JobKey("ml", "Job", f"j{number:05}"), groups, 1, links, links)

    shown = in_trouble_first(map(made, range(10_000)), 200)
    names = [one.job.name for one in shown]
    assert names[:10] == [f"j{number:05}" for number in range(9_990, 10_000)]
    assert names[10] == "j00007", "more leaf groups than the fewest"
    assert names[11:14] == ["j00000", "j00001", "j00002"]
    assert len(names) == 200


def test_pods_are_grouped_by_job_and_those_of_none_are_left_out() -> None:
    several = by_job([*pods("a", "b"), None, JobPod(JOB._replace(namespace="b"), "w-0", "c", "")])
    assert {str(job): len(found) for job, found in several.items()} == {
        "JobSet ml/llama": 2,
        "JobSet b/llama": 1,
    }
