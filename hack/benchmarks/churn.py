"""A node and its cluster in accelerated churn: everything that may change on a node changes every second.

Real are the agent and the controller, each a process. Stand-ins are the machine, the kubelet, the API server and, for
root, the switches: frames come over veth pairs in network namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.claims import claim_of
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim, SandboxError
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.kernel import MachineError
from nodeagent_lab.sim.netns import Netns, veth
from nodeagent_lab.sim.simulated_switches import SwitchPort

COUNTED = (sys.executable, str(Path(__file__).with_name("counted.py")))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "NODE_NAME": "gpu-0",
    "GRPC_VERBOSITY": "ERROR",
}
PODS_MAX, CLAIMS_MAX = 12, 4
SETTLE_S = 120.0
RESET_S = 3.0
"""Long enough for the agent to read the driver during the reset; a real one takes longer."""
FLOOD_FRAMES = 2000
HOLDS = "  - {rule: carrier_down, clearForSeconds: 0}\n  - {rule: device_missing, clearForSeconds: 0}\n"
AGENT = (
    """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
cluster: {access: kubeconfig, kubeconfig: KUBECONFIG, conditions: true, label: true}
log: {level: LEVEL}
links: {select: {netdevs: NETDEVS}}
resources:
- {kind: vf, name: "nic{rail}", mode: MODE}
- {kind: gpu-mem}
health:
  rules:
  - {rule: flapping, enabled: false}
"""
    + HOLDS
)
FABRIC = """\
apiVersion: nodeagent.io/v1alpha1
kind: FabricConfig
minLinks: MINIMUM
hysteresis: {moveSeconds: 1, settleSeconds: 0, graceSeconds: 2, debounceSeconds: 0.5, holdSeconds: 5}
"""
BROKEN = ("resources: [\n", "kind: Unknown\n", "", "sliceMib: 1\n" * 200)


class SoakError(Exception):
    """The agent or the controller broke a promise under churn."""


class Churn:
    """The stand-ins, the two processes, and the actions on them."""

    def __init__(self, folder: Path, model: str, seed: int, *, claims: bool = False) -> None:
        """``claims``: VFs are given by claims, GPU memory by the device plugin. Else both are by the latter."""
        self.folder = folder
        self.root = folder / "root"
        self.machine = Machine.load(model)
        self.machine.write(self.root)
        self.kubelet = Kubelet(folder / "k", seed=seed, reconcile_s=0.2)
        self.chance = random.Random(seed)
        self.server: ApiServer
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.done: Counter[str] = Counter()
        self.expected: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self.offered: set[tuple[str, str, str]] = set()
        """Driver, pool and device of what claims may get."""
        self._pods: list[PodSpec] = []
        self._with_claims = claims
        self._claims: list[PodClaim] = []
        self._frames: dict[str, socket.socket] = {}
        self._namespace: Netns | None = None
        self._vfs = {pf: pf_device.num_vfs for pf, pf_device in self._pfs().items()}
        self._actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.allocate), (3, self.release), (4, self.scrape), (3, self.link), (2, self.replug),
            (2, self.gpu), (1, self.driver), (2, self.vfs), (1, self.restart_kubelet), (1, self.silence),
            (2, self.reload_agent), (1, self.reload_controller), (2, self.api_fault), (2, self.reports),
            (2, self.flood),
        ]  # fmt: skip
        if claims:
            self._actions += [(5, self.claim), (3, self.end_claim)]

    def _pfs(self) -> dict[str, Any]:
        return {pf.address: pf for pf in self.machine.pfs if pf.num_vfs}

    # --- the processes ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            inside = self._wire(stack)
            with inside.entered() if inside else contextlib.nullcontext():
                self.server = await ApiServer(seed=1).start()
                self.ports = {name: _free_port() for name in ("agent", "controller")}
            stack.push_async_callback(self.server.stop)
            for i in range(8):
                self.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"gpu-{i}"}})
            await self.reports()
            self._write_kubeconfigs()
            self._configure_agent()
            self._configure_controller()
            await self.kubelet.start()
            stack.push_async_callback(self.kubelet.stop)
            try:
                await self._start("agent", "run", "--root", self.root, "--kubelet-dir", self.kubelet.directory,
                                  "--config", self.folder / "agent.yaml")  # fmt: skip
                await self._start("controller", "controller", "--fabric", self.folder / "fabric.yaml",
                                  "--kubeconfig", self.folder / "controller.kubeconfig")  # fmt: skip
                pfs = len(self._vfs)
                plugins, pools = (1, pfs) if self._with_claims else (1 + pfs, 0)
                await self._until(
                    lambda: len(self.kubelet.allocatable()) >= plugins, "the first registration"
                )
                await self._until(
                    lambda: len(self.kubelet.dra.health) >= pools, "the first devices of claims"
                )
                await asyncio.sleep(2)
                self.expected, self.offered = self.kubelet.allocatable(), set(self.kubelet.dra.health)
                yield
            finally:
                for process in self.processes.values():
                    if process.returncode is None:
                        process.terminate()
                        await process.wait()
                for opened in self._frames.values():
                    opened.close()

    def _wire(self, stack: contextlib.AsyncExitStack) -> Netns | None:
        """Connect the NICs with VFs to sockets in another namespace, if this process may make namespaces."""
        try:
            node, fabric = Netns(), Netns()
        except PermissionError:
            return None
        self._namespace = stack.enter_context(node)
        stack.enter_context(fabric)
        node.ip("link set lo up")
        for i, pf in enumerate(self._pfs().values()):
            veth(node, pf.netdev.name, fabric, f"cable{i}")
            self._frames[pf.netdev.name] = fabric.raw(f"cable{i}")
        return node

    async def _start(self, name: str, *arguments: object) -> None:
        command = [*COUNTED, str(self.folder / f"{name}.tasks"), *map(str, arguments)]
        command += ["--listen", f"127.0.0.1:{self.ports[name]}"]
        if self._namespace is not None:
            command = self._namespace.command(*command)
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=ENVIRONMENT
            )

    def check(self) -> None:
        """Raise ``SoakError`` if a process has ended, or if two pods hold one device."""
        for name, process in self.processes.items():
            if process.returncode is not None:
                raise SoakError(
                    f"the {name} ended with exit code {process.returncode}:\n{self.log_tail(name)}"
                )
        holders: dict[str, str] = {}
        for pod in self._pods:
            for resources in self.kubelet.held(pod).values():
                for resource, held in resources.items():
                    for device in held:
                        key = f"{resource}/{device}"
                        if holders.setdefault(key, pod.name) != pod.name:
                            raise SoakError(f"{key} is held by {holders[key]} and by {pod.name}")

    def log_tail(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])

    def figures(self, name: str) -> dict[str, float]:
        """The resident memory, threads, descriptors and tasks of a process now, and of its memory: what is of no
        file, what glibc has given out and what it keeps for later, and the blocks of Python's own allocator."""
        folder = Path(f"/proc/{self.processes[name].pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return {
            "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
            "own_mib": int(status["RssAnon"].split()[0]) / 1024,
            "threads": int(status["Threads"]),
            "files": len(os.listdir(folder / "fd")),
            **json.loads((self.folder / f"{name}.tasks").read_text()),
        }

    async def traced(self, name: str) -> tracemalloc.Snapshot:
        """The objects that the process has now. It was started with ``NODEAGENT_TRACE``."""
        asked = self.folder / f"{name}.asked"
        asked.touch()
        await self._until(lambda: not asked.exists(), f"the memory of the {name}")
        return tracemalloc.Snapshot.load(str(self.folder / f"{name}.memory"))

    # --- actions ----------------------------------------------------------------------------------------

    async def act(self) -> None:
        weights = [weight for weight, _ in self._actions]
        ((_, action),) = self.chance.choices(self._actions, weights)
        self.done[action.__name__] += 1
        with contextlib.suppress(MachineError):  # the machine cannot do it now, such as a second unplug
            await action()

    async def allocate(self) -> None:
        if not self.kubelet.running or len(self._pods) >= PODS_MAX:
            await self.release()
            return
        resource = self.chance.choice(sorted(self.expected))
        count = self.chance.randrange(1, 30) if "gpu-mem" in resource else 1
        pod = PodSpec.single(f"pod-{self.done['allocate']}", {resource: count})
        if self.kubelet.insufficient(pod):
            return
        if (await self.kubelet.admit(pod)).admitted:
            self._pods.append(pod)
        self.kubelet.admissions.pop(pod.uid, None)

    async def release(self) -> None:
        if self._pods:
            self.kubelet.remove(self._pods.pop(self.chance.randrange(len(self._pods))))

    async def claim(self) -> None:
        """A pod with a claim for a VF of one NIC starts. The kubelet may be refused; it has the claim then."""
        if not self.kubelet.running or len(self._claims) >= CLAIMS_MAX:
            await self.end_claim()
            return
        number = self.done["claim"]
        claim = claim_of(self.server, number, {"r": (self.chance.choice(sorted(self.offered)), {"vfs": "1"})})
        self._claims.append(claim)
        with contextlib.suppress(SandboxError):
            await self.kubelet.dra.prepare(claim.uid, [claim])

    async def end_claim(self) -> None:
        if self._claims and self.kubelet.running:
            claim = self.chance.choice(self._claims)
            with contextlib.suppress(SandboxError):
                await self._end(claim)

    async def _end(self, claim: PodClaim) -> None:
        """As the pod ends: the kubelet gives back, then the claim goes. Raises ``SandboxError``."""
        await self.kubelet.dra.unprepare(claim.uid)
        self._claims.remove(claim)
        self.server.remove("resourceclaims", claim.name, claim.namespace)

    async def scrape(self) -> None:
        paths = (
            ("agent", "/metrics"),
            ("agent", "/health"),
            ("agent", "/readyz"),
            ("controller", "/metrics"),
        )
        name, path = self.chance.choice(paths)
        with contextlib.nullcontext() if self._namespace is None else self._namespace.entered():
            sock = socket.socket()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(20):
                await loop.sock_connect(sock, ("127.0.0.1", self.ports[name]))
                await loop.sock_sendall(
                    sock, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                if self.chance.random() < 0.9:  # some clients do not wait for the answer
                    while await loop.sock_recv(sock, 65536):
                        pass
        except (OSError, TimeoutError) as error:
            raise SoakError(f"{path} of the {name}: {error!r}\n{self.log_tail(name)}") from error
        finally:
            sock.close()

    async def link(self) -> None:
        pf = self.chance.choice(sorted(self._vfs))
        await self._change(lambda: self.machine.set_link(pf, up=self.chance.random() < 0.5))

    async def replug(self) -> None:
        pf = self.chance.choice(sorted(self._vfs))
        if self.machine.nic(pf).present:
            await self._change(lambda: self.machine.unplug(pf))
        else:
            await self._change(lambda: self.machine.plug(pf))

    async def gpu(self) -> None:
        gpu = self.chance.choice([gpu.address for gpu in self.machine.gpus])
        faults: list[Callable[[], object]] = [
            lambda: self.machine.raise_xid(gpu, self.chance.choice((13, 31, 48, 79, 94))),
            lambda: self.machine.lose_gpu(gpu),
            lambda: self.machine.find_gpu(gpu),
            lambda: self.machine.set_recovery_action(gpu, "gpu_reset"),
            lambda: self.machine.reset_gpu(gpu),
            lambda: self.machine.ecc(gpu, correctable=self.chance.randrange(9)),
        ]
        await self._change(self.chance.choice(faults))

    async def driver(self) -> None:
        call = self.chance.choice(("init", "wait", "list", "vitals"))
        await self._change(lambda: self.machine.fail_driver(call, "NVML_ERROR_UNKNOWN"))
        await asyncio.sleep(1)
        await self._change(self.machine.heal_driver)

    async def vfs(self) -> None:
        pf = self.chance.choice(sorted(self._vfs))
        if not self._claims and not any("nic" in name for pod in self._pods for name in pod.requests()):
            count = self.chance.randrange(self._vfs[pf] + 1)
            await self._change(lambda: self.machine.set_vfs(pf, count))

    async def restart_kubelet(self) -> None:
        await self.kubelet.kill()
        await asyncio.sleep(self.chance.random())
        await self.kubelet.start(
            listen_delay_s=self.chance.random(), sources_delay_s=self.chance.choice((0.0, 1.0))
        )

    async def silence(self) -> None:
        """The kubelet's podresources API is gone for a second."""
        sock, hidden = self.kubelet.podresources_socket, self.folder / "hidden.sock"
        if sock.exists():
            sock.rename(hidden)
            await asyncio.sleep(1)
            if not sock.exists():
                hidden.rename(sock)

    async def reload_agent(self) -> None:
        await self._reload(self.folder / "agent.yaml", self._configure_agent)

    async def reload_controller(self) -> None:
        await self._reload(self.folder / "fabric.yaml", self._configure_controller)

    async def _reload(self, file: Path, configure: Callable[[], None]) -> None:
        if self.chance.random() < 0.3:
            file.unlink()
        elif self.chance.random() < 0.4:
            _replace(file, self.chance.choice(BROKEN))
        await asyncio.sleep(0.3)
        configure()

    async def api_fault(self) -> None:
        match self.chance.randrange(6):
            case 0:
                self.server.drop()
            case 1:
                self.server.expire()
                self.server.drop()
            case 2:
                self.server.heal()
            case _:
                how = self.chance.choice(("500", "429", "403", "close", "half", "lost", "hang", "drip"))
                self.server.fail(
                    how, times=self.chance.randrange(1, 6), retry_after_s=self.chance.choice((0, 1, None))
                )

    async def reports(self) -> None:
        """Reports of seven other nodes; their cables move."""
        for i in range(1, 8):
            unit = self.chance.randrange(2) if self.chance.random() < 0.2 else i % 2
            links = [
                {
                    "name": f"nic{rail}", "fabric": "compute", "rail": rail, "state": "healthy",
                    "neighbor": {
                        "chassisID": {"subtype": "mac", "value": f"02:00:00:00:{unit:02x}:{rail:02x}"},
                        "portID": {"subtype": "ifname", "value": f"swp{i}"},
                        "systemName": f"su{unit}-leaf{rail}",
                        "stale": self.chance.random() < 0.1,
                    },
                }
                for rail in range(2)
            ]  # fmt: skip
            self.server.put({
                "apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", "nodeName": f"gpu-{i}",
                "metadata": {"name": f"gpu-{i}", "namespace": "nodeagent"}, "links": links,
            })  # fmt: skip

    async def flood(self) -> None:
        """Frames of switches with names that never come again, and noise. Without root there are no wires."""
        for netdev, wire in self._frames.items():
            for number in range(FLOOD_FRAMES // len(self._frames)):
                name = f"hostile-{self.chance.randrange(1 << 40):x}-leaf{number % 200}"
                frame = SwitchPort(netdev, name, number % 256).announcement(
                    ttl=self.chance.choice((0, 1, 120))
                )
                if self.chance.random() < 0.3:
                    frame = frame[:14] + self.chance.randbytes(self.chance.randrange(4, 300))
                with contextlib.suppress(OSError):  # the queue is full
                    wire.send(frame)
                if number % 50 == 0:
                    await asyncio.sleep(0)

    async def _change(self, act: Callable[[], object]) -> None:
        await asyncio.to_thread(act)

    # --- rest -------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Take all faults back and end all pods. Returns when the kubelet has every device again."""
        self.server.heal()
        while self._pods:
            await self.release()
        if not self.kubelet.running:
            await self.kubelet.start()
        self.machine.heal_driver()
        for gpu in self.machine.gpus:
            self.machine.lose_gpu(gpu.address)
            self.machine.set_recovery_action(gpu.address, "gpu_reset")
        await asyncio.sleep(RESET_S)
        for gpu in self.machine.gpus:
            self.machine.reset_gpu(gpu.address)
        for pf, count in self._vfs.items():
            if not self.machine.nic(pf).present:
                self.machine.plug(pf)
            self.machine.set_link(pf, up=True)
            self.machine.set_vfs(pf, count)
        self._configure_agent()
        self._configure_controller()
        await self._until(lambda: self.kubelet.allocatable() == self.expected, "every device healthy again")
        await self._until(
            lambda: set(self.kubelet.dra.health) == self.offered, "every device of claims again"
        )
        await self._end_claims()
        for journal in (
            self.kubelet.updates,
            self.kubelet.calls,
            self.kubelet.registrations,
            self.kubelet.ends,
        ):
            journal.clear()

    async def _end_claims(self) -> None:
        """The kubelet repeats what is refused, until every claim has ended."""
        end = time.monotonic() + SETTLE_S
        while self._claims:
            try:
                await self._end(self._claims[0])
            except SandboxError as error:
                if time.monotonic() > end:
                    raise SoakError(f"a claim does not end: {error}\n{self.log_tail('agent')}") from error
                await asyncio.sleep(1)

    async def _until(self, good: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                while not good():
                    self.check()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise SoakError(
                f"not within {SETTLE_S:g} s: {what}; the kubelet has {self.kubelet.allocatable()}, expected "
                f"{self.expected}:\n{self.log_tail('agent')}"
            ) from None

    # --- files ------------------------------------------------------------------------------------------

    def _configure_agent(self) -> None:
        text = AGENT.replace("KUBECONFIG", str(self.folder / "agent.kubeconfig"))
        text = text.replace("NETDEVS", json.dumps(sorted(self._frames)))
        text = text.replace("MODE", "dra" if self._with_claims else "devicePlugin")
        text = text.replace("LEVEL", self.chance.choice(("info", "warning")))
        _replace(self.folder / "agent.yaml", text)

    def _configure_controller(self) -> None:
        _replace(self.folder / "fabric.yaml", FABRIC.replace("MINIMUM", str(self.chance.randrange(3))))

    def _write_kubeconfigs(self) -> None:
        for name, user in (("agent", "nodeagent"), ("controller", "nodeagent-controller")):
            token = self.server.token(f"system:serviceaccount:nodeagent:{user}")
            document = {
                "current-context": "c",
                "contexts": [
                    {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "nodeagent"}}
                ],
                "clusters": [{"name": "c", "cluster": {"server": self.server.url}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
            (self.folder / f"{name}.kubeconfig").write_text(json.dumps(document))


def _replace(file: Path, text: str) -> None:
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def churning(model: str, seed: int, *, claims: bool = False) -> AsyncIterator[Churn]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="na-soak-", dir=memory))
    try:
        churn = Churn(folder, model, seed, claims=claims)
        async with churn.running():
            yield churn
    finally:
        shutil.rmtree(folder, ignore_errors=True)
