"""The cast of the fabric's show: a stand-in API server, the agents' reports, and replicas of the real controller.

Of the agents only the part that reports is here, a task for each node: ``sinks/nodelinks.Report`` as the agent
runs it, with an inventory of its own, over the API. What its inventory holds is the simulated fabric's word.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nodeagent.cluster.node_report import NodeReporter, Rails
from nodeagent.commands.demo.request_log import Ledger, Written
from nodeagent.commands.demo.run import DemoError, command, end, free_port, printed, running, tail
from nodeagent.inventory import Inventory
from nodeagent.kube.access import Access, NodeClaim
from nodeagent.kube.client import ApiClient
from nodeagent.sim.apiserver import ApiServer
from nodeagent.sim.apiserver.tls import Certificates
from nodeagent.sim.simulated_fabric import Fabric

NAMESPACE = "nodeagent"
AGENT = f"system:serviceaccount:{NAMESPACE}:nodeagent"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:nodeagent-controller"
GATHER_S = 0.1
"""An agent gathers changes for 2 s, and leaves 10 s between two reports; a show is shorter."""
LEASE_S = 5.0
PATIENCE_S = 60.0
"""With a slow machine; each wait takes a second or two."""
LABEL_S = 0.1
"""The controller labels 20 Nodes in a second."""

Json = dict[str, Any]


class Replica:
    """A ``nodeagent controller``, a process of its own."""

    def __init__(self, name: str, process: Process, port: int, log: Path) -> None:
        self.name, self.process, self.port, self.log = name, process, port, log

    async def metrics(self) -> dict[str, float]:
        """Its page by series; nothing while it does not answer."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            _, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
        except OSError:
            return {}
        lines = (line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in lines}


class Cluster:
    """``folder`` is for certificates, kubeconfigs and logs. Ends with the exit stack that it is entered on."""

    def __init__(self, folder: Path, fabric: Fabric, rails: Rails) -> None:
        self.fabric = fabric
        self._folder, self._rails = folder, rails
        self._patience_s = PATIENCE_S + len(fabric.nodes) * LABEL_S
        self._stack = contextlib.AsyncExitStack()
        self._reports: dict[str, tuple[asyncio.Task[None], Inventory]] = {}
        self.kubeconfig = folder / "kubeconfig"
        self.fabric_file = folder / "fabric.yaml"
        self.secure = shutil.which("openssl") is not None
        """kubectl sends no token where there is no TLS."""
        self.replicas: list[Replica] = []

    async def __aenter__(self) -> Cluster:
        self._certificates = await asyncio.to_thread(Certificates, self._folder) if self.secure else None
        self.server = ApiServer(tls=self._certificates, seed=7)
        self.ledger = Ledger(self.server)
        self.server.admit.append(self._strict)
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

    def _strict(self, _user: str, verb: str, plural: str, _was: Json | None, new: Json | None) -> str | None:
        """Volcano lets a node stand in two HyperNodes and then takes either; here such a write is refused."""
        if plural != "hypernodes" or new is None or verb == "delete":
            return None
        mine = set(_nodes(new))
        for other in self.server.objects("hypernodes"):
            if other["metadata"]["name"] != new["metadata"]["name"] and (both := mine & set(_nodes(other))):
                return f"{', '.join(sorted(both))} would stand in {other['metadata']['name']} too"
        return None

    def _ca(self) -> str | None:
        return self._certificates.ca.read_text() if self._certificates is not None else None

    def _write_kubeconfig(self, path: Path, user: str) -> None:
        cluster: Json = {"server": self.server.url}
        if self._certificates is not None:
            cluster["certificate-authority"] = str(self._certificates.ca)
        path.touch(mode=0o600)
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "demo",
            "clusters": [{"name": "demo", "cluster": cluster}],
            "users": [{"name": "demo", "user": {"token": self.server.token(user)}}],
            "contexts": [
                {"name": "demo", "context": {"cluster": "demo", "user": "demo", "namespace": NAMESPACE}}
            ],
        }
        path.write_text(json.dumps(made, indent=2) + "\n")

    # --- the agents -----------------------------------------------------------------------------------

    def join(self, node: str) -> None:
        """A Node, and its agent's start."""
        self.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {
            "kubernetes.io/hostname": node, "kubernetes.io/os": "linux",
        }}})  # fmt: skip
        self.boot(node)

    def boot(self, node: str) -> None:
        inventory = Inventory()
        report = NodeReporter(
            self._client, inventory, node, NAMESPACE, lambda: self._rails,
            owner=NodeClaim(node, f"nodes-{node}"),
            jitter_s=0.0, gather_s=GATHER_S, gap_s=GATHER_S, patience_s=0.0,
        )  # fmt: skip
        inventory.state("pci", **self.fabric.facts(node))
        self._reports[node] = asyncio.create_task(report.run(), name=f"report {node}"), inventory

    async def power_off(self, node: str) -> None:
        """Its agent is gone, its report stays."""
        task, _ = self._reports.pop(node)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def look(self, nodes: Iterable[str]) -> None:
        """The agents of these nodes see what is so now."""
        for node in nodes:
            self._reports[node][1].state("pci", **self.fabric.facts(node))

    async def _end_reports(self) -> None:
        tasks = [task for task, _ in self._reports.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        """No farewell: its Lease is not released."""
        replica.process.kill()
        await end(replica.process)

    def leader(self) -> str:
        """Whom the Lease names: the pod's name, less what makes each life of a process another."""
        lease = self.server.one("leases", "nodeagent-controller", NAMESPACE)
        holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        return str(holder).rpartition("_")[0]

    # --- what is seen ---------------------------------------------------------------------------------

    def by_agents(self) -> Written:
        return self.ledger.written(AGENT)

    def by_controller(self) -> Written:
        return self.ledger.written(CONTROLLER)

    def versions(self) -> dict[str, str]:
        """The HyperNodes as written: another version is another write."""
        return {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in self.server.objects("hypernodes")
        }

    def members(self) -> dict[str, list[str]]:
        """The nodes of each HyperNode that has some."""
        found = {one["metadata"]["name"]: [*_nodes(one)] for one in self.server.objects("hypernodes")}
        return {name: nodes for name, nodes in found.items() if nodes}

    def labels(self, node: str) -> Json:
        found = self.server.one("nodes", node)
        labels: Json = (found or {})["metadata"].get("labels", {})
        return {key: value for key, value in labels.items() if "/tier-" in key}

    async def until(self, true: Callable[[], object], what: str) -> None:
        """Wait for what the API server sees."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self.server.until(true)
        except TimeoutError as error:
            raise self.error(f"waited {self._patience_s:g} s in vain until {what}") from error

    async def until_says(self, replica: Replica, true: Callable[[dict[str, float]], bool], what: str) -> None:
        """Wait for what a replica says of itself."""
        try:
            async with asyncio.timeout(self._patience_s):
                while not ((told := await replica.metrics()) and true(told)):
                    if replica.process.returncode is not None:
                        raise self.error(f"{replica.name} has ended with {replica.process.returncode}")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise self.error(f"waited {self._patience_s:g} s in vain until {what}") from error

    def error(self, what: str) -> DemoError:
        ends = "\n".join(f"{one.name}:\n{tail(one.log)}" for one in self.replicas)
        return DemoError(f"{what}; the end of the controllers' logs:\n{ends}")

    async def ask(self, verb: str, *arguments: str) -> str:
        """What a verb says of this cluster."""
        argv = command(verb, "--kubeconfig", str(self.kubeconfig), "--fabric", str(self.fabric_file))
        return await printed([*argv, *arguments])


def _nodes(hypernode: Json) -> Iterator[str]:
    for member in hypernode["spec"].get("members") or ():
        if member["type"] == "Node":
            yield member["selector"]["exactMatch"]["name"]
