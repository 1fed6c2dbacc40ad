"""The cluster of the fabric demo: a stand-in API server, the agents' reports, and replicas of the real controller.

Of each agent only the reporting part runs, as a task: ``cluster.node_report.NodeReporter`` with an inventory of its
own. The simulated fabric provides the facts in the inventory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.base.backoff import RateLimit
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.base.supervise import end_tasks
from nodeagent.cluster.cluster_settings import ClusterSettings, EvictSettings
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.evictions import Causes, Evictions, EvictionTaint, failed_device_causes
from nodeagent.cluster.held_pods import HeldPods
from nodeagent.cluster.node_report import NodeReporter, RailByAddress
from nodeagent.fabric.agent_pods import AGENT_LABELS
from nodeagent.facts.allocation import Devices
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kube.access import Access, NodeClaim
from nodeagent.kube.client import ApiClient
from nodeagent_lab.demo.demo_steps import DemoError, command, free_port, printed, running, tail
from nodeagent_lab.sim.apiserver import ApiServer, RequestRecord
from nodeagent_lab.sim.apiserver.tls import Certificates
from nodeagent_lab.sim.simulated_fabric import Fabric

EVICT_S = 1.0
"""A device may fail for 300 s before its pods are evicted; in the demo for a second."""
WRITES = ("create", "update", "patch", "delete")
SHOWN = 3


@dataclass(frozen=True, slots=True)
class UserWrites:
    """The successful writes in their order, and the ``refused`` ones."""

    done: tuple[RequestRecord, ...]
    refused: tuple[RequestRecord, ...]

    def names(self, verb: str, resource: str) -> list[str]:
        return [
            request.name or ""
            for request in self.done
            if (request.verb, request.resource) == (verb, resource)
        ]

    @property
    def kinds(self) -> dict[tuple[str, str], int]:
        """The number of writes by verb and resource."""
        counts: dict[tuple[str, str], int] = {}
        for request in self.done:
            key = request.verb, request.resource
            counts[key] = counts.get(key, 0) + 1
        return counts

    def lines(self) -> list[str]:
        """One line for each verb and resource: the count, and the names if they are few."""
        lines = []
        for (verb, resource), count in self.kinds.items():
            names = sorted(set(self.names(verb, resource)) - {""})
            few = f": {', '.join(names)}" if 0 < len(names) <= SHOWN else ""
            lines.append(f"{count} {verb} {resource}{few}")
        lines += [
            f"refused with {request.status}: {request.verb} {request.resource} {request.name}"
            for request in self.refused
        ]
        return lines or ["nothing"]


class RequestLog:
    """The API server's log of requests: the writes of a user since ``mark``."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._mark = 0

    def mark(self) -> None:
        """Start a step: ``written`` returns the requests from now on."""
        self._mark = len(self._server.requests)

    def written(self, user: str) -> UserWrites:
        """The writes of this user since the mark, except those of Leases."""
        writes = [
            request for request in self._since() if request.user == user and request.resource != "leases"
        ]
        return UserWrites(
            tuple(request for request in writes if 200 <= request.status < 300),
            tuple(request for request in writes if not 200 <= request.status < 300),
        )

    def _since(self) -> Iterable[RequestRecord]:
        requests: Sequence[RequestRecord] = self._server.requests
        return (request for request in requests[self._mark :] if request.verb in WRITES)


NAMESPACE = "nodeagent"
AGENT = f"system:serviceaccount:{NAMESPACE}:nodeagent"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:nodeagent-controller"
GATHER_S = 0.1
"""An agent gathers changes for 2 s and waits 10 s between two reports; the demo is faster."""
JOBS = "research"
"""The namespace of the jobs."""
LEASE_S = 5.0
PATIENCE_S = 60.0
"""The timeout of each wait, for a slow machine; usually a wait takes a second or two."""
LABEL_S = 0.1
"""Added to the timeout for each Node that is labelled."""

Json = dict[str, Any]


class Replica:
    """A ``nodeagent controller`` process."""

    def __init__(self, name: str, process: Process, port: int, log: Path) -> None:
        self.name, self.process, self.port, self.log = name, process, port, log

    async def metrics(self) -> dict[str, float]:
        """The values of its metrics page by series; empty while it does not answer."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            _, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
        except OSError:
            return {}
        lines = (line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in lines}


_UNREACHABLE = "node.kubernetes.io/unreachable"


class DemoCluster:
    """``folder`` receives certificates, kubeconfigs and logs. Leaving the context ends everything."""

    def __init__(self, folder: Path, fabric: Fabric, rails: RailByAddress) -> None:
        self.fabric = fabric
        self._folder, self._rails = folder, rails
        self._patience_s = PATIENCE_S + len(fabric.nodes) * LABEL_S
        self._stack = contextlib.AsyncExitStack()
        self._reports: dict[str, tuple[asyncio.Task[None], Inventory]] = {}
        self.kubeconfig = folder / "kubeconfig"
        self.fabric_file = folder / "fabric.yaml"
        self.secure = shutil.which("openssl") is not None
        """Without TLS, kubectl sends no token."""
        self.replicas: list[Replica] = []

    async def __aenter__(self) -> DemoCluster:
        self._certificates = await asyncio.to_thread(Certificates, self._folder) if self.secure else None
        self.server = ApiServer(tls=self._certificates, seed=7)
        self.request_log = RequestLog(self.server)
        self.server.admit.append(self._refuse_overlap)
        await self.server.start()
        self._stack.push_async_callback(self.server.stop)
        self._write_kubeconfig(self.kubeconfig, "admin")
        self._write_kubeconfig(self._folder / "controller.kubeconfig", CONTROLLER)
        access = Access(self.server.url, ca=self._ca(), token=self.server.token(AGENT))
        self._client = ApiClient(access, manager="nodeagent")
        self._stack.push_async_callback(self._client.close)
        self._stack.push_async_callback(self._end_reports)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _refuse_overlap(
        self, _user: str, verb: str, plural: str, _was: Json | None, new: Json | None
    ) -> str | None:
        """Refuse a write that puts a node into two HyperNodes. Volcano would accept it and use either."""
        if plural != "hypernodes" or new is None or verb == "delete":
            return None
        nodes = set(_nodes(new))
        for other in self.server.objects("hypernodes"):
            if other["metadata"]["name"] != new["metadata"]["name"] and (both := nodes & set(_nodes(other))):
                return f"{', '.join(sorted(both))} would be in {other['metadata']['name']} too"
        return None

    def _ca(self) -> str | None:
        return self._certificates.ca.read_text() if self._certificates is not None else None

    def _write_kubeconfig(self, path: Path, user: str) -> None:
        cluster: Json = {"server": self.server.url}
        if self._certificates is not None:
            cluster["certificate-authority"] = str(self._certificates.ca)
        path.touch(mode=0o600)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "demo",
            "clusters": [{"name": "demo", "cluster": cluster}],
            "users": [{"name": "demo", "user": {"token": self.server.token(user)}}],
            "contexts": [
                {"name": "demo", "context": {"cluster": "demo", "user": "demo", "namespace": NAMESPACE}}
            ],
        }
        path.write_text(json.dumps(content, indent=2) + "\n")

    # --- the agents -----------------------------------------------------------------------------------

    def join(self, node: str) -> None:
        """Create a Node and start its agent."""
        self.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {
            "kubernetes.io/hostname": node, "kubernetes.io/os": "linux",
        }}})  # fmt: skip
        self.server.put(agent_pod(node, time.time()))
        self.boot(node)

    def boot(self, node: str) -> None:
        """Start the node's agent, unless it runs."""
        if node in self._reports:
            return
        inventory = Inventory()
        report = NodeReporter(
            self._client, inventory, node, NAMESPACE, lambda: self._rails,
            owner=NodeClaim(node, f"nodes-{node}"),
            jitter_s=0.0, gather_s=GATHER_S, gap_s=GATHER_S, patience_s=0.0, with_holders=True,
        )  # fmt: skip
        self._publish(node, inventory)
        self._reports[node] = asyncio.create_task(report.run(), name=f"report {node}"), inventory

    def _publish(self, node: str, inventory: Inventory) -> None:
        inventory.publish("pci", **self.fabric.facts(node))
        if gpus := self.fabric.gpus(node):
            inventory.publish("gpus", gpus=gpus)
        if held := self.fabric.held(node):
            every = tuple(gpu.uuid for gpu in gpus)  # the pods of a node share its GPUs, as slices
            inventory.publish("pods", holdings=tuple(
                Holding(space, name, "main", resource, devices)
                for pod, vfs in held.items()
                for space, _, name in (pod.partition("/"),)
                for resource, devices in (("nic", vfs), ("gpu", every))
            ))  # fmt: skip

    def run_job(self, name: str, nodes: Sequence[str], since: float) -> None:
        """Let a Job run since then (Unix time): a pod on each node, with a VF of each rail. The agents report them."""
        started = rfc3339(since)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": f"job-{name}",
            "controller": True,
        }
        for number, node in enumerate(nodes):
            pod = f"{name}-{number}"
            self.server.put({
                "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node},
                "metadata": {"name": pod, "namespace": JOBS, "ownerReferences": [owner], "creationTimestamp": started},
                "status": {"phase": "Running", "startTime": started},
            })  # fmt: skip
            self.fabric.hold(node, f"{JOBS}/{pod}", len(self.fabric.rails))
        self.rescan(nodes)

    @contextlib.asynccontextmanager
    async def evicting(self, node: str, pod: str, address: str) -> AsyncIterator[Callable[[], object]]:
        """Let the node's agent taint its Node and evict the pod when the device ``address`` fails, which it holds. Call
        the yielded function when the pod is gone."""
        logging.getLogger(Evictions.__module__).setLevel(logging.ERROR)  # the demo prints it itself
        inventory, taint = self._reports[node][1], EvictionTaint()
        inventory.publish("gpus", gpus=())
        inventory.publish("pods", holdings=(Holding("default", pod, "main", "nic", (address,)),))
        settings = ClusterSettings(evict=EvictSettings(enabled=True, after_seconds=EVICT_S, taint=True))

        def causes(snapshot: Snapshot) -> Causes:
            pfs = snapshot.functions
            devices = [Devices(pf.pci_address, (pf.pci_address,), (), pf.health) for pf in pfs]
            return failed_device_causes(snapshot, [("nic", devices)], lambda _: None, time.monotonic())

        async def held() -> tuple[Holding, ...]:
            return inventory.snapshot.holdings or ()

        marker = DeviceMarker(
            self._client, inventory, node, settings, evict_taint=taint, rate=RateLimit(1, 10.0), jitter_s=0.0
        )
        pods = HeldPods(self._client, node, held)
        evictions = Evictions(self._client, inventory, causes, EVICT_S, node=node, pods=pods, taint=taint)
        tasks = [asyncio.create_task(part.run()) for part in (marker, evictions)]
        try:
            yield partial(inventory.publish, "pods", holdings=())
        finally:
            await end_tasks(tasks)

    async def power_off(self, node: str) -> None:
        """Stop the node's agent, if it runs; its report stays."""
        if (agent := self._reports.pop(node, None)) is not None:
            await end_tasks(agent[:1])

    def rescan(self, nodes: Iterable[str]) -> None:
        """Let the agents of these nodes read the present facts; one without power reads nothing."""
        for node in nodes:
            if (running := self._reports.get(node)) is not None:
                self._publish(node, running[1])

    async def cut_power(self, nodes: Iterable[str]) -> None:
        """End the agents of these nodes, and let the cluster find that their kubelets are silent."""
        since = rfc3339(time.time())
        for node in nodes:
            if node in self._reports:
                await self.power_off(node)
                self._set_ready(node, "Unknown", since, _UNREACHABLE)

    def give_power(self, nodes: Iterable[str]) -> None:
        """Start those of these nodes that have none."""
        since = rfc3339(time.time())
        for node in nodes:
            if node not in self._reports:
                self._set_ready(node, "True", since)
                self.boot(node)

    def _set_ready(self, node: str, status: str, since: str, *taints: str) -> None:
        known = self.server.find("nodes", node)
        assert known is not None
        ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
        others = [one for one in known.get("spec", {}).get("taints", ()) if one["key"] != _UNREACHABLE]
        taint = [*others, *({"key": key, "effect": "NoExecute"} for key in taints)]
        self.server.put(known | {"spec": {"taints": taint}, "status": {"conditions": [ready]}})

    async def _end_reports(self) -> None:
        await end_tasks(task for task, _ in self._reports.values())

    # --- the controller -------------------------------------------------------------------------------

    async def start(self, name: str) -> Replica:
        port, log = free_port(), self._folder / f"{name}.log"
        argv = command(
            "controller", "--kubeconfig", str(self._folder / "controller.kubeconfig"),
            "--fabric", str(self.fabric_file), "--listen", f"127.0.0.1:{port}", "--lease", f"{LEASE_S:g}",
        )  # fmt: skip
        process = await self._stack.enter_async_context(running(argv, log, {"POD_NAME": name}))
        replica = Replica(name, process, port, log)
        self.replicas.append(replica)
        return replica

    async def kill(self, replica: Replica) -> None:
        """Kill the replica; its Lease is not released."""
        replica.process.kill()
        # No second signal: it would reap the process before asyncio does, which then warns.
        await replica.process.wait()

    def leader(self) -> str:
        """The pod name in the Lease, without the random suffix of the process."""
        lease = self.server.find("leases", "nodeagent-controller", NAMESPACE)
        holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        return str(holder).rpartition("_")[0]

    # --- observations ---------------------------------------------------------------------------------

    def by_agents(self) -> UserWrites:
        return self.request_log.written(AGENT)

    def by_controller(self) -> UserWrites:
        return self.request_log.written(CONTROLLER)

    def versions(self) -> dict[str, str]:
        """The resource version of each HyperNode; each write changes it."""
        return {
            hypernode["metadata"]["name"]: hypernode["metadata"]["resourceVersion"]
            for hypernode in self.server.objects("hypernodes")
        }

    def members(self) -> dict[str, list[str]]:
        """The nodes of each HyperNode that contains nodes."""
        members = {
            hypernode["metadata"]["name"]: [*_nodes(hypernode)]
            for hypernode in self.server.objects("hypernodes")
        }
        return {name: nodes for name, nodes in members.items() if nodes}

    def labels(self, node: str) -> Json:
        stored = self.server.find("nodes", node)
        labels: Json = (stored or {})["metadata"].get("labels", {})
        return {key: value for key, value in labels.items() if "/tier-" in key}

    def taints(self, node: str) -> list[str]:
        found = (self.server.find("nodes", node) or {}).get("spec", {}).get("taints") or ()
        return [f"{taint['key']}:{taint['effect']}" for taint in found]

    async def until(self, condition: Callable[[], object], description: str) -> None:
        """Wait until the condition is true; it is checked after each request to the API server."""
        try:
            await self.server.until(condition, self._patience_s)
        except TimeoutError as error:
            raise self.error(
                f"waited {self._patience_s:g} s until {description}, which did not happen"
            ) from error

    async def until_metrics(
        self, replica: Replica, condition: Callable[[dict[str, float]], bool], description: str
    ) -> None:
        """Wait until the metrics of a replica fulfil the condition."""
        try:
            async with asyncio.timeout(self._patience_s):
                while not ((metrics := await replica.metrics()) and condition(metrics)):
                    if replica.process.returncode is not None:
                        raise self.error(f"{replica.name} has ended with {replica.process.returncode}")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise self.error(
                f"waited {self._patience_s:g} s until {description}, which did not happen"
            ) from error

    def error(self, problem: str) -> DemoError:
        ends = "\n".join(f"{replica.name}:\n{tail(replica.log)}" for replica in self.replicas)
        return DemoError(f"{problem}; the end of the controllers' logs:\n{ends}")

    async def ask(self, verb: str, *arguments: str) -> str:
        """The output of a verb for this cluster."""
        argv = command(verb, "--kubeconfig", str(self.kubeconfig), "--fabric", str(self.fabric_file))
        return await printed([*argv, *arguments])


def agent_pod(node: str, since: float, waits: str = "") -> Json:
    """The pod of the node's agent. ``since`` (Unix time) it runs, or ``waits`` for this reason."""
    state: Json = {"waiting": {"reason": waits}} if waits else {"running": {"startedAt": rfc3339(since)}}
    ready = {"type": "Ready", "status": "False" if waits else "True", "lastTransitionTime": rfc3339(since)}
    return {
        "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node},
        "metadata": {
            "name": f"nodeagent-{node}", "namespace": NAMESPACE, "labels": dict(AGENT_LABELS),
            "creationTimestamp": rfc3339(since),
        },
        "status": {
            "phase": "Running", "startTime": rfc3339(since), "conditions": [ready],
            "containerStatuses": [{"name": "nodeagent", "state": state}],
        },
    }  # fmt: skip


def _nodes(hypernode: Json) -> Iterator[str]:
    for member in hypernode["spec"].get("members") or ():
        if member["type"] == "Node":
            yield member["selector"]["exactMatch"]["name"]
