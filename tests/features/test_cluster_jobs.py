"""The jobs of the cluster in the controller, against the stand-in API server: metrics, bound, moves, the map."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import structs

from nodeagent.controller import Controller
from nodeagent.features import cluster_jobs
from nodeagent.features.cluster_jobs import JOBS_MAX
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import RULES, cluster, groups, leaves, nodelinks, running
from tests.support import job_pods
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

WITH_JOBS = structs.replace(RULES, jobs=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_jobs, "EVERY_S", 0.05)


def holding(node: str, unit: int, *pods: dict[str, Any], state: str = "healthy") -> dict[str, Any]:
    """The report of a node on which these pods hold a VF of the first link."""
    vfs = [{"link": "nic0", "pciAddress": "0000:18:00.1"}]
    holders = [
        {
            "namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"], "vfs": vfs,
            "since": job_pods.STARTED,
        }
        for pod in pods
    ]  # fmt: skip
    return nodelinks(node, leaves(unit), state=state) | {"holders": holders}


def put(server: ApiServer, *pods: dict[str, Any]) -> None:
    for pod in pods:
        server.put(pod)


def series(controller: Controller) -> dict[str, float]:
    """The series of jobs on the metrics page."""
    page = controller.pages.metrics("text/plain").body.decode()
    return {
        line.rpartition(" ")[0].removeprefix("nodeagent_job_"): float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("nodeagent_job_")
    }


def of(job: str) -> str:
    namespace, kind, name = job.split("/")
    return f'{{kind="{kind}",name="{name}",namespace="{namespace}"}}'


async def asked(controller: Controller, text: str) -> tuple[int, Any]:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", await controller.port)
        writer.write(
            f"GET /ui/jobs.json?text={text} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status = int(head.split()[1])
        return status, json.loads(body) if status == 200 else body.decode()


async def test_the_links_and_leaf_groups_of_a_job_follow_its_pods() -> None:
    async with cluster() as server, running(server, WITH_JOBS) as controller:
        first, second = (job_pods.of_jobset("llama", n, node=f"node-{n}0") for n in range(2))
        web = job_pods.of_job("cron", node="node-01")
        put(server, first, second, web)
        server.put(holding("node-00", 0, first))
        server.put(holding("node-10", 1, second, state="down"))
        degraded, used, gpus = (
            f"{noun}{of('ml/JobSet/llama')}" for noun in ("links_degraded", "leaf_groups", "gpus_degraded")
        )
        # A job without a VF is left out.
        await until(lambda: series(controller) == {degraded: 1, used: 2, gpus: 0})
        fell = {"index": 3, "state": "unhealthy", "pods": [f"ml/{second['metadata']['name']}"]}
        server.put(
            holding("node-10", 1, second, state="down") | {"gpus": [fell, {"index": 4, "state": "degraded"}]}
        )
        await until(lambda: series(controller) == {degraded: 1, used: 2, gpus: 1})
        moved = job_pods.of_jobset("llama", 1, node="node-03")
        server.remove("pods", second["metadata"]["name"], "ml")
        server.put(moved)
        server.put(holding("node-03", 0, moved))
        await until(lambda: series(controller) == {degraded: 0, used: 1, gpus: 0})
        for pod in (first, moved):
            server.put(pod | {"status": {"phase": "Succeeded"}})
        await until(lambda: series(controller) == {})


async def test_each_group_of_inference_has_its_series_and_pods_that_need_not_run_together_have_none() -> None:
    async with cluster() as server, running(server, WITH_JOBS) as controller:
        pods = [
            job_pods.of_leaderworkerset("llama", 0, 0, node="node-00"),
            job_pods.of_leaderworkerset("llama", 0, 1, node="node-10"),
            job_pods.of_deployment("web", node="node-01"),
            job_pods.of_statefulset("cache", node="node-02"),
            job_pods.of_workflow("train", node="node-03"),
        ]
        put(server, *pods)
        for pod in pods:
            node = pod["spec"]["nodeName"]
            server.put(holding(node, int(node[5]), pod))
        names = [
            f"{noun}{of(f'ml/LeaderWorkerSet/llama-{n}')}"
            for noun in ("links_degraded", "gpus_degraded", "leaf_groups")
            for n in (0, 1)
        ]
        await until(lambda: series(controller) == dict(zip(names, (0, 0, 0, 0, 1, 1), strict=True)))


async def test_the_question_of_the_map_finds_jobs_by_a_part_of_their_name() -> None:
    async with cluster() as server, running(server, WITH_JOBS) as controller:
        put(
            server,
            *(job_pods.of_mpijob("bert", n, node=f"node-0{n}") for n in range(2)),
            job_pods.of_job("bert-2", namespace="b", node="node-10"),
            job_pods.of_deployment("bert", node="node-11"),
        )
        jobs = controller.fabric.parts.features["jobs"].shown
        await until(lambda: len(jobs.pods.objects) == 4)
        bert = {"job": "MPIJob ml/bert", "nodes": ["node-00", "node-01"]}
        others = [
            {"job": "Deployment ml/bert", "nodes": ["node-11"]},
            {"job": "Job b/bert-2", "nodes": ["node-10"]},
        ]
        assert await asked(controller, "BERT") == (200, [*others, bert])
        assert await asked(controller, "mpijob%20ml/bert") == (200, [bert])
        assert await asked(controller, "zzz") == (200, [])
        assert (await asked(controller, "x" * 400))[0] == 400
    off = structs.replace(RULES, watch_agents=False)  # it reads the agents' pods
    async with cluster() as server, running(server, off) as controller:
        assert await asked(controller, "bert") == (
            404,
            "set jobs: true in the configuration of the controller\n",
        )
        await until(lambda: len(groups(server)) == 2)
        assert {seen.resource for seen in server.requests}.isdisjoint({"pods"})


async def test_a_missing_right_delays_neither_the_tree_nor_readiness(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster() as server:
        server.fail("403", resource="pods", times=None)
        async with running(server, WITH_JOBS) as controller:
            await until(lambda: len(groups(server)) == 2)
            assert controller.pages._readyz("").status == 200
            await until(lambda: any("resource=pods" in line for line in caplog.messages))
            assert series(controller) == {}
            server.heal()
            pod = job_pods.of_job("late", node="node-00")
            server.put(pod)
            server.put(holding("node-00", 0, pod))
            await until(lambda: f"leaf_groups{of('ml/Job/late')}" in series(controller))


async def test_a_replica_that_follows_has_no_series_of_jobs() -> None:
    async with cluster() as server, running(server, WITH_JOBS) as controller:
        pod = job_pods.of_job("one", node="node-00")
        server.put(pod)
        server.put(holding("node-00", 0, pod))
        await until(lambda: series(controller))
        async with running(server, WITH_JOBS, "b") as other:
            jobs = other.fabric.parts.features["jobs"].shown
            await until(lambda: jobs.pods.objects)
            assert series(other) == {}


async def test_ten_thousand_jobs_make_two_hundred_series_of_each_family() -> None:
    """Without an API server: the copy and the last plan are given."""
    async with cluster(units=1) as server, running(server, WITH_JOBS) as controller:
        parts = controller.fabric.parts
        jobs = parts.features["jobs"].shown
        await until(jobs.pods.synced.is_set)
        await parts.mirror.synced()  # a report that comes later takes the place of what is given here
        for number in range(10_000):
            pod = jobs.pods._take(job_read(f"j{number:05}", f"node-0{number % 4}"))
            jobs.pods.objects[f"ml/{number}"] = pod
        held = "\n".join(f"ml/j{number:05}-0-x7k2p\tnic0" for number in range(10_000))
        parts.mirror.pods._pods.update({f"node-0{n}": held for n in range(4)})
        await until(lambda: len(series(controller)) == 3 * JOBS_MAX)
        server.put(nodelinks("node-03", leaves(0), state="down") | {"holders": []})
        await until(lambda: not parts.mirror.pods.held("node-03"))
        parts.mirror.pods._pods["node-03"] = held
        await until(lambda: sum(series(controller).values()) == 2 * JOBS_MAX)
        shown = {name for name, count in series(controller).items() if name.startswith("links_degraded")}
        assert f"links_degraded{of('ml/Job/j00003')}" in shown
        assert f"links_degraded{of('ml/Job/j00000')}" not in shown, (
            "its series is gone: the others are in trouble"
        )


def job_read(name: str, node: str) -> Any:
    from msgspec import convert

    from nodeagent.fabric.jobs import ListedPod

    return convert(job_pods.of_job(name, node=node), ListedPod)


async def test_a_stalled_job_and_rails_below_their_peers_have_series() -> None:
    async with cluster() as server, running(server, WITH_JOBS) as controller:
        pods = [job_pods.of_jobset("llama", n, node=f"node-0{n}") for n in range(2)]
        other = job_pods.of_job("eval", node="node-10")
        put(server, *pods, other)
        stalled, below = (
            f"{noun}{of('ml/JobSet/llama')}" for noun in ("stalled_seconds", "rails_below_peers")
        )

        def level(pod: dict[str, Any], word: str, **more: Any) -> dict[str, Any]:
            return {"traffic": [{"namespace": "ml", "pod": pod["metadata"]["name"], "level": word, **more}]}

        server.put(holding("node-10", 1, other))
        for number, pod in enumerate(pods):
            rails = [{"link": "nic0", "pciAddress": "0000:18:00.1", "level": "below"}] * number
            server.put(holding(f"node-0{number}", 0, pod) | level(pod, "moving", rails=rails))
        await until(lambda: series(controller).get(below) == 1)
        assert series(controller)[stalled] == 0
        assert f"stalled_seconds{of('ml/Job/eval')}" not in series(controller), "its agent does not judge"
        since = {"since": "2026-01-15T05:00:00Z", "gpus": "waiting", "longestPauseSeconds": 60}
        for number, pod in enumerate(pods):
            server.put(holding(f"node-0{number}", 0, pod) | level(pod, "silent", **since))
        await until(lambda: series(controller).get(stalled, 0) > 300)
        server.put(holding("node-00", 0, pods[0]) | level(pods[0], "moving"))
        await until(lambda: series(controller).get(stalled) == 0)
        server.put(holding("node-00", 0, pods[0]) | {"traffic": [{"level": 3}]})
        server.put(holding("node-01", 0, pods[1]))
        await until(lambda: stalled not in series(controller))
