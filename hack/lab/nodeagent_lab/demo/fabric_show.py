"""The demo of a fabric: cables, switches and nodes change, and the real controller reacts.

Each step changes one thing in the simulated fabric, waits until the agents have reported it and the controller has
planned, and prints the writes from the API server's log. A statement that the log contradicts ends the demo. To show
that nothing is written, the demo waits for longer than a move needs.
"""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent_lab.demo.control_plane import EVICT_S, LEASE_S, DemoCluster
from nodeagent_lab.demo.demo_steps import DemoError, DemoSteps
from nodeagent_lab.demo.fabric_faults import run_jobs, show_fabric_page
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_fabric import Fabric

NODES_MIN, NODES_MAX = 4, 2048
"""At least two units of two nodes. At most as many as the controller labels in about two minutes."""
WIDTH, LINES = 108, 20
GANG = 4
MOVE_S, DEBOUNCE_S = 0.5, 0.3
"""Shorter than the defaults of 60 s and 10 s."""
STANDS_S = MOVE_S + 2 * DEBOUNCE_S
"""Long enough for the controller to write, if it has something to write."""
_CONFIG = f"""\
apiVersion: nodeagent.io/v1alpha1
kind: FabricConfig
tiers:
  namePatterns: ["(?P<tier2>hall[0-9]+)-su"]
hysteresis: {{moveSeconds: {MOVE_S:g}, settleSeconds: {MOVE_S:g}, debounceSeconds: {DEBOUNCE_S:g}}}
"""
_ABOUT = f"""\
Simulated: the nodes, their NICs, the switches, the cables and the LLDP neighbors. The API server is a stand-in; it
refuses any write that puts a node into two HyperNodes. Real: the agents' code that reports, taints and evicts,
in tasks, and two replicas of the controller as processes. Shortened: a node moves after {MOVE_S:g} s of evidence (60 s
by default), the controller plans after {DEBOUNCE_S:g} s without changes (10 s), a pod is evicted {EVICT_S:g} s after
its device has failed (300 s), and a dead leader is replaced after {LEASE_S:g} s (15 s)."""
_PLANS = "nodeagent_fabric_plans_total"
_FOREIGN = 'nodeagent_fabric_anomalies{kind="foreign-leaf"}'
_LEADER = "nodeagent_controller_leader"


def fault_of(nodes: int) -> str | None:
    """Return why a fabric of this number of nodes makes no demo, or ``None``."""
    if NODES_MIN <= nodes <= NODES_MAX:
        return None
    return f"{nodes} nodes are too few or too many for the demo: give --nodes {NODES_MIN} to {NODES_MAX}"


def fabric_of(machine: str, nodes: int) -> Fabric:
    """A fabric of ``nodes`` such machines. Raises ``DemoError`` for a number or a machine that makes no demo."""
    if fault := fault_of(nodes):
        raise DemoError(fault)
    fabric = Fabric(nodes, model := Machine.load(machine))
    if len(fabric.rails) < 2:
        raise DemoError(f"{model.model.name} has fewer than two NICs with VFs")
    return fabric


class FabricShow(DemoSteps):
    def __init__(self, machine: str, folder: Path, nodes: int) -> None:
        super().__init__()
        self._fabric = fabric_of(machine, nodes)
        self._machine = Machine.load(machine)
        self._folder, self._nodes = folder, nodes
        self._versions: dict[str, str] = {}

    async def run(self, *, once: bool, ui: bool = False) -> None:
        fabric = self._fabric
        rails = {address: rail for rail, address in enumerate(fabric.rails)}
        print(
            f"nodeagent demo: a fabric of {self._nodes} nodes ({self._machine.model.name}), {len(rails)} rails, "
            f"{fabric.units} scalable units."
        )
        print(*textwrap.wrap(_ABOUT, WIDTH), "", sep="\n")
        async with DemoCluster(self._folder, fabric, rails) as self._cluster:
            self._cluster.fabric_file.write_text(_CONFIG + ("jobs: true\n" if ui else ""))
            await self._form()
            if ui:
                run_jobs(self._cluster)
                await show_fabric_page(self._cluster, once=once)
                return
            await self._miscable()
            await self._reboot()
            await self._survive()
            await self._exchange()
            await self._rerack()
            await self._succeed()
            if not once:
                self._stay()
                await asyncio.Event().wait()
        print("The demo is over. It leaves nothing on this machine.")

    # --- the steps -------------------------------------------------------------------------------------

    async def _form(self) -> None:
        cluster, fabric = self._cluster, self._fabric
        self._act(f"{self._nodes} agents report, and a controller with two replicas starts")
        for node in fabric.nodes:
            cluster.join(node)
        await cluster.until(
            lambda: cluster.server.counts["patch", "nodelinks"] >= self._nodes, "every agent has reported"
        )
        self._leads = await cluster.start("nodeagent-controller-0")
        await cluster.until(lambda: cluster.leader() == self._leads.name, "a controller leads")
        self._waits = await cluster.start("nodeagent-controller-1")
        await cluster.until(
            lambda: len(cluster.by_controller().names("patch", "nodes")) >= self._nodes,
            "all Nodes are labelled",
        )
        self._written()
        self._claim(
            cluster.by_controller().kinds[("patch", "nodes")] == self._nodes, "each Node was labelled once"
        )
        self.say("")
        await self._tree()
        first, last = fabric.nodes[0], fabric.nodes[-1]
        self.say(*self._labels(first), *self._labels(last), "")
        self._claim(cluster.labels(first) != cluster.labels(last), "the two units have different labels")
        self._keep_versions()

    async def _miscable(self) -> None:
        cluster, fabric = self._cluster, self._fabric
        rail = min(3, len(fabric.rails) - 1)
        node = fabric.at(fabric.leaf(0, 0))[-1]
        wrong = fabric.leaf(1, rail)
        self._act(f"One cable of {node}, rail {rail}, is plugged into {wrong} of the second unit")
        right = fabric.plug(node, rail, wrong)
        await self._report([node])
        await cluster.until_metrics(self._leads, lambda metrics: metrics[_FOREIGN] > 0, "the anomaly is seen")
        await asyncio.sleep(STANDS_S)
        self._written()
        self._unchanged()
        self.say("")
        await self._tree()
        for anomaly in json.loads(await cluster.ask("plan", "--json"))["anomalies"]:
            self.say(*textwrap.wrap(f"{anomaly['kind']}: {anomaly['message']}", WIDTH))
        fabric.plug(node, rail, right)
        await self._report([node])
        await cluster.until_metrics(
            self._leads, lambda metrics: metrics[_FOREIGN] == 0, "the anomaly is gone"
        )
        self._unchanged("The cable is corrected, and the anomaly is gone.")
        self.say("")

    async def _reboot(self) -> None:
        fabric = self._fabric
        leaf = fabric.leaf(0, min(2, len(fabric.rails) - 1))
        nodes = fabric.at(leaf)
        self._act(f"{leaf} reboots: {len(nodes)} links lose carrier and neighbor until it is back")
        fabric.stop_frames(leaf)
        await self._report(nodes)
        await asyncio.sleep(STANDS_S)
        fabric.boot(leaf)
        await self._report(nodes)
        await asyncio.sleep(STANDS_S)
        self._written()
        self._unchanged()
        self.say("")

    async def _survive(self) -> None:
        cluster, fabric = self._cluster, self._fabric
        unit, rail = fabric.at(fabric.leaf(0, 0)), min(3, len(fabric.rails) - 1)
        gang = unit[:-1][:GANG]
        node, name = gang[-1], f"train-{len(gang) - 1}"
        self._act(f"Rail {rail} of {node} dies under a training on {len(gang)} nodes")
        for number, one in enumerate(gang):
            cluster.server.put(_pod(f"train-{number}", one))
        async with cluster.evicting(node, name, fabric.rails[rail]) as release:
            fabric.cut(node, rail)
            await self._report([node])
            await cluster.until(
                lambda: not cluster.server.find("pods", name, "default"), f"{name} is evicted"
            )
            release()
            self._written()
            writes = [(seen.verb, seen.resource) for seen in cluster.by_agents().done]
            tainted = writes.index(("patch", "nodes")) < writes.index(("create", "pods/eviction"))
            self._claim(tainted, "the taint came first")
            self.say("", f"taint of {node}: {', '.join(cluster.taints(node))}")
            # Stands in for the job's controller and the scheduler.
            free = next(one for one in unit if not cluster.taints(one) and one not in gang)
            cluster.server.put(_pod(name, free))
            self._claim(
                cluster.labels(free) == cluster.labels(node), f"{free} is under the same leaf switches"
            )
            self.say(f"{name} is made again on {free}, under the same leaf switches")
            fabric.mend(node, rail)
            await self._report([node])
            await cluster.until(lambda: not cluster.taints(node), f"the taint of {node} is gone")
        self._unchanged(f"The cable is replaced, and {node} has no taint.")
        self.say("")

    async def _exchange(self) -> None:
        fabric = self._fabric
        leaf = fabric.leaf(1, 0)
        nodes = fabric.at(leaf)
        self._act(f"{leaf} is replaced by another switch of the same name, {len(nodes)} cables")
        fabric.stop_frames(leaf)
        await self._report(nodes)
        old, new = fabric.replace(leaf)
        fabric.boot(leaf)
        await self._report(nodes)
        await asyncio.sleep(STANDS_S)
        self.say(f"chassis ID {old} before, {new} now")
        self._written()
        self._unchanged()
        self.say("")

    async def _rerack(self) -> None:
        cluster, fabric = self._cluster, self._fabric
        node, host = fabric.at(fabric.leaf(0, 0))[0], fabric.at(fabric.leaf(1, 0))[0]
        before = cluster.members()
        self._act(f"{node} is powered off, moved to the second unit, and booted there")
        await cluster.power_off(node)
        fabric.rack(node, 1)
        cluster.boot(node)
        await cluster.until(
            lambda: cluster.by_controller().names("patch", "nodes"), f"{node} is labelled again"
        )
        await asyncio.sleep(STANDS_S)
        self._written()
        kinds = cluster.by_controller().kinds
        self._claim(kinds.get(("patch", "nodes")) == 1, "the Node is labelled once")
        self._claim(kinds.get(("patch", "hypernodes")) == 2 and len(kinds) == 2, "one shrink and one grow")
        for name in cluster.by_controller().names("patch", "hypernodes"):
            self.say(f"{name}: {len(before[name])} members before, {len(cluster.members()[name])} now")
        self.say("")
        await self._tree()
        self._claim(cluster.labels(node) == cluster.labels(host), f"{node} is in the second unit")
        self.say(*self._labels(node), "")
        self._keep_versions()

    async def _succeed(self) -> None:
        cluster, fabric = self._cluster, self._fabric
        self._act(f"{self._leads.name} is killed (SIGKILL), so its Lease is not released")
        await cluster.kill(self._leads)
        self._leads, dead = self._waits, self._leads
        await cluster.until(lambda: cluster.leader() == self._leads.name, f"{self._leads.name} leads")
        await cluster.until_metrics(
            self._leads,
            lambda metrics: metrics[_LEADER] > 0 and metrics[_PLANS] > 0,
            f"{self._leads.name} has planned",
        )
        await asyncio.sleep(STANDS_S)
        self.say(f"{self._leads.name} holds the Lease instead of {dead.name} and has planned")
        self._written()
        self._unchanged()
        self.say("")
        node = fabric.add(1)
        self._act(f"{node} is new in the second unit; {self._leads.name} places it")
        cluster.join(node)
        await cluster.until(lambda: cluster.by_controller().names("patch", "nodes"), f"{node} is labelled")
        self._written()
        self.say("")
        await self._tree()

    def _stay(self) -> None:
        cluster = self._cluster
        cluster.server.recording = False
        self.step("The demo stays up until you press Ctrl-C")
        access = f"--kubeconfig {cluster.kubeconfig}"
        for verb in ("topology", "plan", f"explain {self._fabric.nodes[0]}"):
            self.say(f"nodeagent {verb} {access} --fabric {cluster.fabric_file}")
        if cluster.secure:
            self.say(
                *(
                    f"kubectl {access} get {resources}"
                    for resources in ("hypernodes", "nodelinks", "nodes --show-labels")
                )
            )
        self.say(f"curl http://127.0.0.1:{self._leads.port}/metrics", f"tail {self._leads.log}")

    # --- output and checks ------------------------------------------------------------------------------------------

    async def _report(self, nodes: Iterable[str]) -> None:
        """Wait until the agents of these nodes have reported the change and the leader has planned."""
        cluster, nodes = self._cluster, [*nodes]
        plans = (await self._leads.metrics()).get(_PLANS, 0.0)
        before = cluster.server.counts["patch", "nodelinks"]
        cluster.rescan(nodes)
        await cluster.until(
            lambda: cluster.server.counts["patch", "nodelinks"] >= before + len(nodes),
            "the agents have reported",
        )
        await cluster.until_metrics(
            self._leads, lambda metrics: metrics[_PLANS] > plans, "the leader has planned"
        )

    def _act(self, title: str) -> None:
        self.step(title)
        self._cluster.request_log.mark()

    def _written(self) -> None:
        self.say("The API server's log:")
        for user, written in (
            ("agents", self._cluster.by_agents()),
            ("controller", self._cluster.by_controller()),
        ):
            for line in written.lines():
                self.say(f"  {user:<10}  {line}")

    def _unchanged(self, *before: str) -> None:
        """Check that the controller has written nothing and that the HyperNodes are unchanged."""
        self._claim(not self._cluster.by_controller().kinds, "nothing was written")
        self._claim(self._cluster.versions() == self._versions, "the HyperNodes are unchanged")
        count = len(self._versions)
        self.say(*before, f"0 writes: all {count} HyperNodes have the same resourceVersion as before")

    def _keep_versions(self) -> None:
        self._versions = self._cluster.versions()

    async def _tree(self) -> None:
        """Print the output of ``nodeagent topology``.

        All steps concern the first two units, so the others may be cut.
        """
        lines = (await self._cluster.ask("topology")).splitlines()
        if len(lines) > LINES:
            lines[LINES - 1 :] = [f"… {len(lines) - LINES + 1} more lines"]
        self.say(*lines, "")

    def _labels(self, node: str) -> Iterator[str]:
        yield f"labels of {node}:"
        yield from (f"  {key}={value}" for key, value in sorted(self._cluster.labels(node).items()))

    def _claim(self, true: bool, statement: str) -> None:
        if not true:
            raise self._cluster.error(
                f"this is not true: {statement}; written: {self._cluster.by_controller().lines()}"
            )


def _pod(name: str, node: str) -> dict[str, object]:
    meta = {"name": name, "namespace": "default"}
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status}
