"""Write the files of a simulated machine, and apply the faults that a file names, as on a node of a kind cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.requested_faults import RequestedFaults
from nodeagent_lab.sim.simulated_leaves import UNIT_NODES, SimulatedLeaves

RESET_S = 2.0
"""The agent reads the GPU in between, as during a real reset, which takes seconds."""


class SimulatedNode:
    """One machine of a fleet. ``node`` is the name of its node: from the name come the UUIDs and MAC addresses of its
    hardware, and the leaf switches of its rails. Without it, all machines are equal and have no neighbors."""

    def __init__(
        self, machine: str, *, rdma: bool = True, node: str | None = None, unit_nodes: int = UNIT_NODES
    ) -> None:
        made = Machine.load(machine)
        made = made if node is None else Machine(replace(made.model, seed=f"{made.model.seed}/{node}"))
        self.machine = made if rdma else made.without_rdma()
        self._node, self._unit_nodes = node, unit_nodes

    def write(self, root: Path) -> str:
        """Write the machine to ``root``. Return a sentence about it.

        An existing machine stays as it is: an init container may run more than once.
        """
        if (root / ".nodeagent").exists():
            return f"{root} already contains a simulated machine; it is not changed"
        self.machine.write(root)
        self._faults()
        count = f"{len(self.machine.gpus)} GPUs, {len(self.machine.pfs)} NICs"
        return f"{root} contains a simulated {self.machine.model.name}: {count}"

    async def follow(self, root: Path, file: Path) -> None:
        """Apply the faults that ``file`` names, now and after each change, until cancelled. The machine under
        ``root`` is healthy at first, whatever an earlier process did to it."""
        self.machine.write(root, again=True)
        faults = self._faults()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.machine.follow())
            group.create_task(_follow_file(faults, file))

    def _faults(self) -> RequestedFaults:
        if self._node is None:
            return RequestedFaults(self.machine)
        netdevs = [pf.netdev.name for pf in self.machine.pfs if pf.num_vfs and pf.netdev is not None]
        return RequestedFaults(self.machine, SimulatedLeaves(self._node, netdevs, self._unit_nodes))


async def _follow_file(faults: RequestedFaults, file: Path) -> None:
    """The kubelet replaces the file of an annotation by a rename in its folder. A missing file is one without
    faults."""
    before: str | None = None
    with FolderWatch() as watch:
        watch.add(file.parent, CONTENT)
        while True:
            try:
                text = file.read_text("utf-8", "backslashreplace")
            except FileNotFoundError:
                text = ""
            if text != before:
                before = text
                for refusal in faults.apply(text):
                    print(f"Fault not applied. {refusal}", flush=True)
                print(f"Faults of this machine: {faults.active() or 'none'}", flush=True)
                if faults.resetting:
                    await asyncio.sleep(RESET_S)
                    faults.end_resets()
            await watch.changes()
