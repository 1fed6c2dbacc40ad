"""A small hall with real processes: an agent on each node, in a network namespace with its rails, and the controller.

Real are the daemons, their sockets, the netdevs and the switches' LLDP frames; the machines are simulated. The API
server is that of ``access``, at ``API_SERVER`` of a management network that all namespaces share. Each node has two
rails, a /31 to the leaf switch of each. So that a test takes a minute, these periods are short: an agent reads its list
every ``READ_S``, reports at once, and asks an address that has never answered each second; the controller keeps lists
and judges each second. What makes a leg dead and good again has the usual times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nodeagent_lab.demo.demo_steps import command, environment, running, tail
from nodeagent_lab.demo.simulated_node import SimulatedNode
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.netns import Netns, veth
from nodeagent_lab.sim.simulated_switches import SwitchPort
from tests.support.rail_rig import iptables, set_kernel

NETDEVS = ("enp24s0np0", "enp154s0np0")
API_SERVER = "10.250.0.1"
READ_S = 2.0
PORT, CONTROLLER_PORT = 9808, 9809
_FAST_AGENT = f"""
import sys
from nodeagent.cli import main
from nodeagent.cluster import node_report, partner_list
from nodeagent.features.rail_probing import probe_caps
partner_list.FIRST_S, partner_list.RAIL_READ_S, probe_caps.UNANSWERED_S = 1.0, {READ_S}, 1.0
node_report.NodeReporter.__init__.__kwdefaults__.update(jitter_s=0.0, gather_s=0.2, gap_s=0.5)
sys.exit(main(sys.argv[1:]))
"""
_FAST_CONTROLLER = """
import sys
from nodeagent.cli import main
from nodeagent.features.rail_probing import rail_keeper
rail_keeper.JUDGE_S = 1.0
sys.exit(main(sys.argv[1:]))
"""
_AGENT = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources: [{{kind: vf}}]
links: {{select: {{netdevs: [{netdevs}]}}}}
cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}
rails: {{probe: true, networks: [10.0.0.0/8]}}
"""
_FABRIC = """\
apiVersion: nodeagent.io/v1alpha1
kind: FabricConfig
outputs: [labels]
hysteresis: {moveSeconds: 0, settleSeconds: 0, debounceSeconds: 0.5}
rails: {probe: true, perSecond: 1.3}
"""


class RailCluster:
    """``async with RailCluster(folder, nodes, access) as hall``. ``access`` writes the kubeconfig of a user, ``gpu-0``
    or ``controller``, into a folder and returns its path."""

    def __init__(self, folder: Path, nodes: int, access: Callable[[str, Path], Path]) -> None:
        self.names = [f"gpu-{number}" for number in range(nodes)]
        self._folder, self._access = folder, access
        self._stack = contextlib.AsyncExitStack()
        self.hosts: dict[str, Netns] = {}
        self.agents: dict[str, Process] = {}
        self._kubelets: dict[str, Kubelet] = {}
        self._ends: dict[str, contextlib.AsyncExitStack] = {}
        self._faults: list[tuple[Netns, str]] = []

    async def __aenter__(self) -> RailCluster:
        enter = self._stack.enter_context
        try:
            self.management, self.leaves = enter(Netns()), [enter(Netns()) for _ in NETDEVS]
            self.management.ip(
                f"link set lo up\nlink add br0 type bridge\nlink set br0 up\naddr add {API_SERVER}/24 dev br0"
            )
            for leaf in self.leaves:
                set_kernel(leaf, "net/ipv4/ip_forward", "1")
            for number, name in enumerate(self.names):
                self.hosts[name] = enter(Netns())
                self._cable(number, self.hosts[name])
            ports = [
                (SwitchPort(netdev, f"leaf{rail:02d}", number), self.leaves[rail].raw(f"h{number}"))
                for number in range(len(self.names))
                for rail, netdev in enumerate(NETDEVS)
            ]
            for _, opened in ports:
                self._stack.callback(opened.close)
            speaking = asyncio.create_task(_speak(ports))
            self._stack.callback(speaking.cancel)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._ends):
            await self.stop(name)
        await self._stack.aclose()

    def _cable(self, number: int, host: Netns) -> None:
        host.ip("link set lo up")
        veth(host, "mgmt0", self.management, f"m{number}")
        self.management.ip(f"link set m{number} master br0")
        host.ip(f"addr add 10.250.0.{10 + number}/24 dev mgmt0")
        for rail, netdev in enumerate(NETDEVS):
            veth(host, netdev, self.leaves[rail], f"h{number}")
            self.leaves[rail].ip(f"addr add 10.{rail + 1}.{number}.0/31 dev h{number}")
            host.ip(
                f"addr add {self.address(number, rail)}/31 dev {netdev}\n"
                f"route add 10.{rail + 1}.0.0/16 via 10.{rail + 1}.{number}.0 dev {netdev}"
            )

    @staticmethod
    def address(number: int, rail: int) -> str:
        return f"10.{rail + 1}.{number}.1"

    # --- the daemons --------------------------------------------------------------------------------------

    def root(self, name: str) -> Path:
        return self._folder / name / "r"

    async def start(self, name: str) -> None:
        """Start the agent of a node, or the ``controller``."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        kubeconfig = self._access(name, folder)
        if name == "controller":
            (folder / "fabric.yaml").write_text(_FABRIC)
            words = [sys.executable, "-c", _FAST_CONTROLLER, "controller", "--kubeconfig", str(kubeconfig)]
            words += ["--namespace", "nodeagent"]
            words += ["--fabric", str(folder / "fabric.yaml"), "--lease", "3"]
            words += ["--listen", f"127.0.0.1:{CONTROLLER_PORT}"]
            ns = self.management
        else:
            if name not in self._kubelets:
                SimulatedNode("two-gpu-two-nic", node=name).write(self.root(name))
                self._kubelets[name] = kubelet = Kubelet(folder / "k", seed=1)
                await kubelet.start()
                self._stack.push_async_callback(kubelet.stop)
            (folder / "nodeagent.yaml").write_text(
                _AGENT.format(kubeconfig=kubeconfig, netdevs=", ".join(NETDEVS))
            )
            words = [sys.executable, "-c", _FAST_AGENT, "run", "--root", str(self.root(name))]
            words += ["--kubelet-dir", str(folder / "k"), "--config", str(folder / "nodeagent.yaml")]
            words += ["--listen", f"127.0.0.1:{PORT}"]
            ns = self.hosts[name]
        self._ends[name] = stack = contextlib.AsyncExitStack()
        log = folder / "log"
        process = await stack.enter_async_context(running(ns.command(*words), log, {"NODE_NAME": name}))
        self.agents[name] = process

    async def stop(self, name: str) -> None:
        await self._ends.pop(name).aclose()
        del self.agents[name]

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """The process of a daemon does not run."""
        os.kill(self.agents[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.agents[name].pid, signal.SIGCONT)

    def log(self, name: str) -> str:
        return tail(self._folder / name / "log")

    # --- faults -------------------------------------------------------------------------------------------

    def fault(self, number: int, rail: int, match: str = "") -> list[tuple[Netns, str]]:
        """Lose what passes the leaf's port of a node, in both directions, with the carrier up."""
        added = [
            (self.leaves[rail], " ".join(f"FORWARD {way} h{number} {match} -j DROP".split()))
            for way in ("-i", "-o")
        ]
        for ns, rule in added:
            iptables(ns, f"-A {rule}")
        self._faults += added
        return added

    def repair(self, faults: list[tuple[Netns, str]] | None = None) -> None:
        """End these faults, or all."""
        for ns, rule in tuple(self._faults if faults is None else faults):
            iptables(ns, f"-D {rule}")
            self._faults.remove((ns, rule))

    # --- what people and programs read ------------------------------------------------------------------------

    async def verb(self, name: str, *words: str) -> tuple[int, str]:
        """Run a verb on a node. Return its exit status and its output."""
        root = "--root", str(self.root(name))
        process = await asyncio.create_subprocess_exec(
            *command(*words, *root),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(),
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    async def rails(self, name: str) -> list[dict[str, Any]]:
        """``nodeagent rails --json``; empty while no agent answers."""
        code, text = await self.verb(name, "rails", "--json")
        return list(json.loads(text)["rails"]) if code < 2 else []

    async def page(self, name: str, path: str) -> str:
        """A page of a daemon; empty while it does not answer."""
        ns = self.management if name == "controller" else self.hosts[name]
        port = CONTROLLER_PORT if name == "controller" else PORT
        with ns.entered():
            opened = socket.socket()
        opened.setblocking(False)
        with opened:
            try:
                await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
            except OSError:
                return ""
            reader, writer = await asyncio.open_connection(sock=opened)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
            except OSError:
                return ""
            finally:
                writer.close()
        return answer.decode().partition("\r\n\r\n")[2]

    async def anomalies(self) -> list[dict[str, Any]] | None:
        """Those on the controller's map; ``None`` while it does not answer."""
        text = await self.page("controller", "/ui/document.json")
        return list(json.loads(text).get("anomalies", ())) if text else None


async def _speak(ports: list[tuple[SwitchPort, socket.socket]]) -> None:
    while True:
        for port, opened in ports:
            with contextlib.suppress(OSError):
                opened.send(port.announcement())
        await asyncio.sleep(1)
