"""The node page of the demo, with buttons for the faults of the simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.host.sysfs import Tree
from nodeagent.web import local_socket
from nodeagent_lab.demo.fault_panel import DemoFault, FaultPanel, Streams, connect_to_socket
from nodeagent_lab.demo.machine_load import MachineLoad
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine

CONNECT_S = 2.0
FULL_WATTS = 0.001
_BIT_ERRORS = "gpu_nvlink_bit_error_ratio/effective"


def node_faults(machine: Machine, kubelet: Kubelet, pfs: Sequence[str], load: MachineLoad) -> list[DemoFault]:
    """The faults that this machine can have. ``pfs``: the PCI addresses of its offered NICs."""
    faults: list[DemoFault] = []
    if pfs:
        last, first = pfs[-1], pfs[0]
        faults += [
            DemoFault(
                "cable",
                "pull the cable of the last NIC",
                _call(lambda: machine.set_link(last, up=False)),
                _call(lambda: machine.set_link(last, up=True)),
            ),
            DemoFault("flap", "nic0 flaps three times", _call(lambda: machine.flap(first, 3))),
            DemoFault(
                "light",
                "nic0 loses its light slowly",
                _call(lambda: load.dimming.update({first: FULL_WATTS})),
                _call(load.dimming.clear),
            ),
            DemoFault(
                "pcie",
                "PCIe of nic0 trains to 8 lanes",
                _call(lambda: machine.downtrain(first, width=8)),
                _call(lambda: machine.downtrain(first)),
            ),
            DemoFault(
                "pauses", "a pause storm at nic0", _call(lambda: machine.count(first, "pause_storm_errors"))
            ),
            DemoFault(
                "dead",
                "nic0 is up and does not send",
                _call(lambda: machine.count(first, "kernel_events/transmit_timeout", 3)),
            ),
        ]
    if machine.gpus:
        gpu = len(machine.gpus) - 1

        def fall() -> None:
            machine.raise_xid(gpu, 79)
            machine.lose_gpu(gpu)
            machine.set_recovery_action(gpu, "gpu_reset")

        def reset() -> None:
            machine.find_gpu(gpu)
            machine.set_recovery_action(gpu, "none")

        def bit_errors(ratio: float) -> Callable[[], Awaitable[object]]:
            return _call(lambda: machine.measure(gpu, **{_BIT_ERRORS: ratio}))

        faults += [
            DemoFault("gpu", f"GPU {gpu} falls off the bus", _call(fall), _call(reset)),
            DemoFault("nvlink", f"GPU {gpu} has NVLink bit errors", bit_errors(4e-11), bit_errors(0)),
        ]
    faults.append(DemoFault("kubelet", "kill the kubelet", kubelet.kill, kubelet.start))
    return faults


async def show_node_page(faults: Sequence[DemoFault], root: Path, *, once: bool) -> None:
    """Serve the page until cancelled; with ``once``, end when the agent has answered it."""
    folder = Tree(root).path(Config().health.state_directory)

    async def connect() -> Streams:
        return await connect_to_socket(await asyncio.to_thread(local_socket.connect, folder, CONNECT_S))

    async with FaultPanel(faults, connect).serving() as panel:
        await show_panel(panel, connect, once=once)


async def show_panel(panel: FaultPanel, connect: Callable[[], Awaitable[Streams]], *, once: bool) -> None:
    """Print the address and stay."""
    _, writer = await connect()
    writer.close()
    print(f"\nOpen {panel.url} in a browser. The demo stays up until you press Ctrl-C.", flush=True)
    if not once:
        await asyncio.Event().wait()


def _call(change: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def make() -> None:
        change()

    return make
