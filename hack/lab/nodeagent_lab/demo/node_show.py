"""The demo of one node: a simulated machine, a stand-in kubelet, and the real agent as a process.

Real are ``nodeagent run``, its sockets, its gRPC messages and the files that it reads and writes. Simulated are the
machine's files, the GPU driver and the kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import textwrap
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.base.supervise import beside
from nodeagent.commands.scan.listing import machine_table, scan_machine
from nodeagent.console.running_sources import sentences, unanswered
from nodeagent.facts.allocation import Devices
from nodeagent_lab.demo.demo_steps import DemoError, DemoSteps, command, free_port, printed, running, tail
from nodeagent_lab.demo.machine_load import MachineLoad
from nodeagent_lab.demo.node_faults import node_faults, show_node_page
from nodeagent_lab.sim.kubelet import Admission, Kubelet, PodSpec
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.netns import Netns
from nodeagent_lab.sim.simulated_subnet import SimulatedSubnet, one_leaf_for_each
from nodeagent_lab.sim.simulated_switches import SwitchesError, rails, sending

START_S = 30.0
"""The timeout for a slow machine; usually a start takes a fraction of a second."""
RESET_S = 0.5
"""Long enough for the agent to read the driver in between. A real GPU needs seconds."""
HOLD_S = 2.0
"""Shorter than the default of 60 s."""
_CONFIG = f"""\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
health:
  rules:
  - {{rule: carrier_down, clearForSeconds: {HOLD_S:g}}}
"""


class NodeShow(DemoSteps):
    def __init__(self, machine: str, folder: Path) -> None:
        super().__init__()
        self._machine = Machine.load(machine)
        self._root = folder / "root"
        self._kubelet = Kubelet(folder / "kubelet", seed=7)
        self._log = folder / "agent.log"
        self._pods: list[PodSpec] = []
        self._offered: dict[str, tuple[Devices, ...]] = {}
        self._netdevs: dict[str, str] = {}
        self._config = folder / "nodeagent.yaml"
        self._node: Netns | None = None

    async def run(self, *, once: bool, ui: bool = False) -> None:
        print(
            f"nodeagent demo. Simulated: the machine ({self._machine.model.name}), its drivers, the kubelet and the "
            "pods.\nReal: the agent, a process that uses real sockets.\n"
        )
        self._machine.write(self._root)
        self._config.write_text(_CONFIG)
        await self._show_machine()
        async with contextlib.AsyncExitStack() as stack:
            await self._plug_in(stack)
            await self._run_agent(once=once, ui=ui)
        print("The demo is over. It leaves nothing on this machine.")

    async def _run_agent(self, *, once: bool, ui: bool) -> None:
        await self._kubelet.start()
        port = free_port()
        try:
            async with self._agent(port) as agent:
                await self._show_registration()
                await self._show_pods()
                if ui:
                    pfs = [self._offered[nic][0].parent for nic in self._named("/nic")]
                    load = MachineLoad(self._machine, pfs)
                    faults = node_faults(self._machine, self._kubelet, pfs, load)
                    async with beside(load.run(), show_node_page(faults, self._root, once=once)):
                        return
                await self._show_gpu_fault()
                await self._show_link_fault()
                await self._show_kubelet_restart()
                if not once:
                    prefix = f"nsenter --net=/proc/{agent.pid}/ns/net " if self._node else ""
                    self.step("The demo stays up until you press Ctrl-C")
                    self.say(
                        *(f"{prefix}curl http://127.0.0.1:{port}/{page}" for page in ("readyz", "metrics"))
                    )
                    self.say(f"nodeagent scan --root {self._root}", f"tail {self._log}")
                    await asyncio.Event().wait()
        finally:
            await self._kubelet.stop()

    # --- the steps -------------------------------------------------------------------------------------

    async def _show_machine(self) -> None:
        self.step("What the agent finds (`nodeagent scan`)")
        scan = await scan_machine(Config(), self._root)
        if missing := unanswered(scan.snapshot.stale_sources):
            why = "; ".join(sentences(missing))
            raise DemoError(
                f"the simulated machine cannot be read: {why}; try again when this host is less busy"
            )
        self._offered = {resource: devices for resource, devices in scan.resources if devices}
        self._netdevs = {link.pci_address: link.netdev for link in scan.snapshot.links}
        self.say(*machine_table(scan).splitlines(), "")

    async def _plug_in(self, stack: contextlib.AsyncExitStack) -> None:
        """Connect the NICs to simulated switches, if namespaces are allowed. The agent then runs in one."""
        names = {
            rail: self._netdevs[self._offered[nic][0].parent] for rail, nic in enumerate(self._named("/nic"))
        }
        if not names:
            return
        if umads := self._umads():
            self.step("The switches of the InfiniBand ports (`nodeagent neighbors`)")
            one_leaf_for_each(stack.enter_context(SimulatedSubnet()), umads)
            with self._config.open("a") as config:
                config.write("infiniband: {query: auto}\n")
            self.say(*(await self._nodeagent("neighbors")).splitlines(), "")
            return
        self.step("The LLDP neighbors (`nodeagent neighbors`)")
        try:
            self._node = await stack.enter_async_context(
                sending(rails(names), lambda link: self._machine.nic(link).cable)
            )
        except SwitchesError as error:
            self.say(f"skipped: this {error}", "")
            return
        with self._config.open("a") as config:
            config.write(f"links: {{select: {{netdevs: [{', '.join(names.values())}]}}}}\n")
        self.say(*(await self._nodeagent("neighbors")).splitlines(), "")

    def _umads(self) -> list[Path]:
        """The places of the umad devices of the InfiniBand NICs."""
        return [
            self._root / "dev/infiniband" / f"umad{pf.rdma.mad}"
            for pf in self._machine.pfs
            if pf.rdma is not None and pf.nic is not None and pf.nic.link_type == "infiniband"
        ]

    async def _nodeagent(self, *arguments: str) -> str:
        """The output of a verb that runs in the agent's namespace."""
        return await printed(self._command(*arguments))

    def _command(self, *arguments: str) -> list[str]:
        argv = command(*arguments, "--root", str(self._root))
        argv += ["--config", str(self._config)] if arguments[0] in ("run", "neighbors") else []
        return argv if self._node is None else self._node.command(*argv)

    async def _show_registration(self) -> None:
        self.step("The agent registers with the kubelet")
        began = time.monotonic()
        await self._until(self._all_allocatable, START_S)
        self.say(f"{len(self._offered)} resources, {time.monotonic() - began:.2f} s after the agent's start")
        for title, counts in (
            ("Capacity", self._kubelet.capacity()),
            ("Allocatable", self._kubelet.allocatable()),
        ):
            self.say("", f"{title}:")
            width = max(map(len, counts)) + 1
            for resource, count in sorted(counts.items()):
                self.say(f"  {resource + ':':<{width}}  {count}")
        self.say("")

    async def _show_pods(self) -> None:
        self.step("Pods request devices")
        nics = dict.fromkeys(self._named("/nic"), 1)
        memory = self._first("gpu-mem")
        if memory is None:
            await self._admit(PodSpec.single("trainer", nics))
            return
        whole = len(self._offered[memory][0].ids)
        await self._admit(PodSpec.single("trainer", {**nics, memory: min(40, whole)}))
        await self._admit(PodSpec.single("inference-a", {memory: min(16, whole // 4)}))
        await self._admit(PodSpec.single("inference-b", {memory: min(16, whole // 4)}))
        await self._admit(PodSpec.single("too-big", {memory: whole + 1}))
        used = {id_.partition("::")[0] for pod in self._pods for id_ in self._held(pod, memory)}
        self.say(
            f"{len(self._pods)} pods use {len(used)} of {len(self._machine.gpus)} GPUs, each with its own memory. "
            "The first request of a size",
            "goes to the emptiest GPU, a later one to the fullest GPU with room.",
            "",
        )

    def _held(self, pod: PodSpec, resource: str) -> frozenset[str]:
        return frozenset().union(*(held.get(resource, ()) for held in self._kubelet.held(pod).values()))

    async def _show_gpu_fault(self) -> None:
        memory = self._first("gpu-mem")
        if memory is None:
            return
        gpu = len(self._machine.gpus) - 1
        self.step(f"GPU {gpu} falls off the bus and is reset {RESET_S:g} s later")

        def fall() -> None:
            self._machine.raise_xid(gpu, 79)
            self._machine.lose_gpu(gpu)
            self._machine.set_recovery_action(gpu, "gpu_reset")

        def reset() -> None:
            self._machine.find_gpu(gpu)
            self._machine.set_recovery_action(gpu, "none")

        await self._change(memory, fall, "XID 79", down=True)
        await asyncio.sleep(RESET_S)
        await self._change(memory, reset, "reset; the driver requests no other", down=False)
        self.say("")

    async def _show_link_fault(self) -> None:
        nics = self._named("/nic")
        if not nics:
            return
        nic = nics[-1]
        pf = self._offered[nic][0].parent
        self.step(f"The cable of {nic.rpartition('/')[2]} is pulled and plugged in again")
        await self._change(nic, lambda: self._machine.set_link(pf, up=False), "carrier lost", down=True)
        self._machine.set_link(pf, up=True)
        self.say(
            f"carrier back: the link counts as healthy after {HOLD_S:g} s (60 s by default), so that a flapping link"
        )
        self.say("does not change at every flap")
        await self._change(nic, lambda: None, f"{HOLD_S:g} s with carrier", down=False)
        self.say("")

    async def _show_kubelet_restart(self) -> None:
        self.step("The kubelet is killed and comes back")
        await self._kubelet.kill()
        self.say("killed: connections are broken, and its sockets remain")
        began = time.monotonic()
        await self._kubelet.start()
        await self._until(self._all_allocatable)
        took = 1000 * (time.monotonic() - began)
        self.say(f"{len(self._offered)} resources registered again {took:.0f} ms after the kubelet started")
        for pod in self._pods:
            count = sum(len(ids) for held in self._kubelet.held(pod).values() for ids in held.values())
            self.say(f"pod {pod.name} keeps its {count} devices")
        self.say("")

    # --- agent and kubelet ----------------------------------------------------------------------------------

    def _agent(self, port: int) -> AbstractAsyncContextManager[Process]:
        """Run ``nodeagent run`` as a user does, with its log in a file."""
        directory = str(self._kubelet.directory)
        argv = self._command("run", "--kubelet-dir", directory, "--listen", f"127.0.0.1:{port}")
        return running(argv, self._log)

    async def _admit(self, pod: PodSpec) -> None:
        wanted = _wanted(pod)
        admission = await self._kubelet.admit(pod)
        if not admission.admitted:
            self.say(f"pod {pod.name} ({wanted})  {admission.phase}: {admission.reason}")
            self.say(*(f"    {line}" for line in textwrap.wrap(admission.message, 100)), "")
            return
        self._pods.append(pod)
        self.say(
            f"pod {pod.name} ({wanted})  {admission.phase}",
            *(f"    {line}" for line in _given(admission)),
            "",
        )

    async def _change(self, resource: str, change: Callable[[], None], event: str, *, down: bool) -> None:
        """Change the machine and print the effect on the kubelet's allocatable devices."""
        before = self._kubelet.allocatable()[resource]
        began = time.monotonic()
        change()
        await self._until(
            lambda: (now := self._kubelet.allocatable()[resource]) != before and (now < before) is down
        )
        took = 1000 * (time.monotonic() - began)
        now = self._kubelet.allocatable()[resource]
        moved = "falls" if now < before else "rises"
        self.say(f"{event}: after {took:.0f} ms allocatable {resource} {moved} from {before} to {now}")

    async def _until(self, predicate: Callable[[], bool], timeout_s: float = 10.0) -> None:
        try:
            await self._kubelet.until(predicate, timeout_s)
        except TimeoutError as error:
            raise DemoError(
                f"the expected change did not happen within {timeout_s:g} s; "
                f"the end of the agent's log:\n{tail(self._log)}"
            ) from error

    def _first(self, name: str) -> str | None:
        return next((resource for resource in self._offered if resource.endswith(f"/{name}")), None)

    def _named(self, part: str) -> list[str]:
        return [resource for resource in self._offered if part in resource]

    def _all_allocatable(self) -> bool:
        allocatable = self._kubelet.allocatable()
        return all(allocatable.get(resource) for resource in self._offered)


def _wanted(pod: PodSpec) -> str:
    """``1 each of nic0 … nic7, 40 gpu-mem``."""
    names: dict[int, list[str]] = {}
    for name, count in pod.requests().items():
        names.setdefault(count, []).append(name.rpartition("/")[2])
    return ", ".join(
        f"{count} each of {same[0]} … {same[-1]}" if len(same) > 1 else f"{count} {same[0]}"
        for count, same in names.items()
    )


def _given(admission: Admission) -> Iterator[str]:
    """A summary of the devices that the container received."""
    for given in admission.given.values():
        env = dict(given.env)
        if uuid := env.get("NODEAGENT_GPU_UUID"):
            yield f"{env['NODEAGENT_GPU_MEM_MIB']} MiB on {uuid}, by CDI: {', '.join(given.cdi_devices)}"
        vfs = [
            f"{name.removeprefix('PCIDEVICE_').rpartition('_')[2].lower()} {value}"
            for name, value in sorted(env.items())
            if name.startswith("PCIDEVICE_") and "-" in name and not name.endswith("_INFO")
        ]
        for i in range(0, len(vfs), 4):
            yield "VFs  " + "  ".join(vfs[i : i + 4])
        nodes = [node.container_path for node in given.device_nodes]
        if nodes:
            yield f"{len(nodes)} device nodes: {nodes[0]} … {nodes[-1]}"
