"""The fabric map of the demo, with buttons for the faults of the simulated fabric."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from nodeagent.fabric.agent_pods import GONE_AFTER_S
from nodeagent.facts.model import HEALTHY, Health, Reason, State
from nodeagent_lab.demo.control_plane import DemoCluster, agent_pod
from nodeagent_lab.demo.fault_panel import DemoFault, FaultPanel, Streams
from nodeagent_lab.demo.node_faults import show_panel


async def show_fabric_page(cluster: DemoCluster, *, once: bool) -> None:
    """Serve the page until cancelled; with ``once``, end when a replica has answered."""

    async def connect() -> Streams:
        alive = [replica for replica in cluster.replicas if replica.process.returncode is None]
        leader = cluster.leader()
        for replica in sorted(alive, key=lambda replica: replica.name != leader):
            try:
                return await asyncio.open_connection("127.0.0.1", replica.port)
            except OSError:
                continue
        raise ConnectionRefusedError("no replica answers")

    node, file = cluster.fabric.nodes[0], f"--fabric {cluster.fabric_file}"
    print("\nIn another terminal:", f"  export KUBECONFIG={cluster.kubeconfig}", sep="\n")
    for verb in ("trouble --watch", f"job {SLOW}", f"explain {node}", "topology"):
        print(f"  nodeagent {verb} {file}")
    print("  kubectl get nodelinks -A" if cluster.secure else f"  nodeagent cabling --order {file}")
    async with FaultPanel(FabricFaults(cluster).all(), connect).serving() as panel:
        await show_panel(panel, connect, once=once)


def run_jobs(cluster: DemoCluster) -> None:
    """Three jobs: one in a unit, one in two units, and one that is slow, since a NIC of it has half of its lanes."""
    fabric = cluster.fabric
    first, second = (fabric.at(fabric.leaf(unit, 0)) for unit in (0, 1))
    one, other = len(first) // 2, len(second) // 2
    now = time.time()  # their links have been seen since then
    slow = second[other:]
    fabric.wear(slow[-1], len(fabric.rails) - 1, _NARROW)
    for name, nodes in (
        (TOGETHER, first[:one]),
        (SPREAD, [*first[one:][:SPREAD_MAX], *second[:other][:SPREAD_MAX]]),
        (SLOW, slow),
    ):
        cluster.run_job(name, nodes, now)


TOGETHER, SPREAD, SLOW = "llama-70b", "diffusion", "finetune"
SPREAD_MAX = 8
REBOOT_S = 4.0
"""A real switch needs minutes."""
FLAPS, FLAP_S = 5, 1.5
CRASHED_S = GONE_AFTER_S
GPU = 0
_LOST = Health(State.UNHEALTHY, (Reason("xid_79", "the GPU has fallen off the bus"),), allocatable=False)
_NARROW = Health(State.DEGRADED, (Reason("pcie_width", "x8 of x16"),), allocatable=False)
_FLAPPING = Health(
    State.DEGRADED,
    (Reason("flapping", f"{FLAPS} losses of the carrier in {2 * FLAPS * FLAP_S:.0f} s"),),
    allocatable=False,
)
_DIM = Health(
    State.DEGRADED, (Reason("optics_rx_power", "lane 3: -11.2 dBm, 0.8 dB below the limit of -10.4 dBm"),)
)


class FabricFaults:
    """Changes one thing in the fabric for each button. The agents report it at once."""

    def __init__(self, cluster: DemoCluster) -> None:
        self._cluster, self._fabric = cluster, cluster.fabric
        rails = len(self._fabric.rails)
        self._rail = min(3, rails - 1)
        self._leaf = self._fabric.leaf(0, min(2, rails - 1))
        self._replaced = self._fabric.leaf(1, 0)
        self._cabled = self._fabric.at(self._fabric.leaf(0, 0))[-1]
        self._moved = self._fabric.at(self._fabric.leaf(0, 0))[0]
        self._dead = self._fabric.at(self._fabric.leaf(0, 0))[1]
        self._dark = [*self._fabric.at(self._replaced)]
        self._killed = ""

    def all(self) -> list[DemoFault]:
        return [
            DemoFault("cable", "plug a cable into the wrong unit", self._miscable, self._correct),
            DemoFault("pull", f"pull a cable of {self._cabled}", self._pull, self._insert),
            DemoFault("flap", f"a link of {self._cabled} flaps {FLAPS} times", self._flap, self._calm),
            DemoFault(
                "light",
                f"the light of {self._moved} fades",
                self._wear_out(0, _DIM),
                self._wear_out(0, HEALTHY),
            ),
            DemoFault(
                "pcie",
                f"half of the PCIe lanes of {self._moved} fail",
                self._wear_out(self._rail, _NARROW),
                self._wear_out(self._rail, HEALTHY),
            ),
            DemoFault("xid", f"XID 79 on GPU {GPU} of {self._moved}", self._fail_gpu, self._reset_gpu),
            DemoFault("switch", f"switch {self._leaf} off", self._stop_switch, self._start_switch),
            DemoFault("reboot", f"reboot {self._leaf}", self._reboot_switch),
            DemoFault("replace", f"replace {self._replaced}", self._replace_switch),
            DemoFault(
                "move", f"move {self._moved} to another unit", partial(self._rack, 1), partial(self._rack, 0)
            ),
            DemoFault(
                "dead", f"cut the power of {self._dead}", self._cut([self._dead]), self._give([self._dead])
            ),
            DemoFault(
                "agent", f"the agent of {self._cabled} crashes again and again", self._crash, self._recover
            ),
            DemoFault("rack", "cut the power of a whole rack", self._cut(self._dark), self._give(self._dark)),
            DemoFault("node", "add a node", self._add_node),
            DemoFault("leader", "kill the leading controller", self._kill_leader, self._start_killed),
        ]

    async def _rescan(self, nodes: Iterable[str]) -> None:
        self._cluster.rescan(nodes)

    async def _miscable(self) -> None:
        self._fabric.plug(self._cabled, self._rail, self._fabric.leaf(1, self._rail))
        await self._rescan([self._cabled])

    async def _correct(self) -> None:
        self._fabric.plug(self._cabled, self._rail, self._fabric.leaf(0, self._rail))
        await self._rescan([self._cabled])

    async def _pull(self) -> None:
        self._fabric.cut(self._cabled, 0)
        await self._rescan([self._cabled])

    async def _insert(self) -> None:
        self._fabric.mend(self._cabled, 0)
        await self._rescan([self._cabled])

    async def _fail_gpu(self) -> None:
        self._fabric.fail_gpu(self._moved, GPU, _LOST)
        await self._rescan([self._moved])

    async def _reset_gpu(self) -> None:
        self._fabric.fail_gpu(self._moved, GPU)
        await self._rescan([self._moved])

    async def _flap(self) -> None:
        for _ in range(FLAPS):
            await self._pull()
            await asyncio.sleep(FLAP_S)
            await self._insert()
            await asyncio.sleep(FLAP_S)
        self._fabric.wear(self._cabled, 0, _FLAPPING)
        await self._rescan([self._cabled])

    async def _calm(self) -> None:
        self._fabric.wear(self._cabled, 0)
        await self._rescan([self._cabled])

    async def _crash(self) -> None:
        """Until ``CRASHED_S`` have passed the controller takes it for a restart, so it began before."""
        await self._cluster.power_off(self._cabled)
        since = time.time() - CRASHED_S
        self._cluster.server.put(agent_pod(self._cabled, since, "CrashLoopBackOff"))

    async def _recover(self) -> None:
        self._cluster.server.put(agent_pod(self._cabled, time.time()))
        self._cluster.boot(self._cabled)

    def _wear_out(self, rail: int, health: Health) -> Callable[[], Awaitable[None]]:
        async def change() -> None:
            self._fabric.wear(self._moved, rail, health)
            await self._rescan([self._moved])

        return change

    def _cut(self, nodes: Sequence[str]) -> Callable[[], Awaitable[None]]:
        return partial(self._cluster.cut_power, nodes)

    def _give(self, nodes: Sequence[str]) -> Callable[[], Awaitable[None]]:
        async def give() -> None:
            self._cluster.give_power(nodes)

        return give

    async def _stop_switch(self) -> None:
        self._fabric.stop_frames(self._leaf)
        await self._rescan(self._fabric.at(self._leaf))

    async def _start_switch(self) -> None:
        self._fabric.boot(self._leaf)
        await self._rescan(self._fabric.at(self._leaf))

    async def _reboot_switch(self) -> None:
        await self._stop_switch()
        await asyncio.sleep(REBOOT_S)
        await self._start_switch()

    async def _replace_switch(self) -> None:
        self._fabric.replace(self._replaced)
        await self._rescan(self._fabric.at(self._replaced))

    async def _rack(self, unit: int) -> None:
        await self._cluster.power_off(self._moved)
        self._fabric.rack(self._moved, unit)
        self._cluster.boot(self._moved)

    async def _add_node(self) -> None:
        self._cluster.join(self._fabric.add(1))

    async def _kill_leader(self) -> None:
        leader = self._cluster.leader()
        for replica in self._cluster.replicas:
            if replica.name == leader and replica.process.returncode is None:
                self._killed = leader
                await self._cluster.kill(replica)

    async def _start_killed(self) -> None:
        if self._killed:
            await self._cluster.start(self._killed)
