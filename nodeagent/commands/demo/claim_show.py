"""The demo of claims: a simulated machine, a stand-in API server, and the real agent as a process.

Real are ``nodeagent run``, its ResourceSlices and the templates of ``nodeagent claim``. Simulated are the machine's
files, the GPU driver, the API server, the part of the scheduler that allocates claims, and the kubelet's restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from nodeagent.commands.claim.claim_template import ClaimRequest, text
from nodeagent.commands.demo.demo_steps import DemoError, DemoSteps, command, printed, running, tail
from nodeagent.dra import DRIVER
from nodeagent.sim.apiserver import ApiServer
from nodeagent.sim.claim_allocator import AllocationError, allocate
from nodeagent.sim.kubelet import Kubelet
from nodeagent.sim.machine import Machine

NODE = "dgx-demo"
START_S = 60.0
"""The timeout of each wait, for a slow machine."""
SHARE_GIB = 40
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
SLICES = "resourceslices"
_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {{kind: vf, mode: dra}}
- {{kind: gpu-mem, mode: dra}}
cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, report: false, events: false}}
listen: null
"""
_CLASSES = {"gpu-share": "gpu", "nic": "nic"}
"""The DeviceClasses without a rail, as ``daemonset/dra`` has them, and the kind that each selects."""

Json = dict[str, Any]


class ClaimShow(DemoSteps):
    def __init__(self, machine: str, folder: Path) -> None:
        super().__init__()
        self._machine = Machine.load(machine)
        self._root, self._folder = folder / "root", folder
        self._log = folder / "agent.log"
        self._server, self._kubelet = ApiServer(seed=7), Kubelet(folder / "kubelet", seed=7)
        self._claims: list[Json] = []

    async def run(self, *, once: bool) -> None:
        print(
            f"nodeagent demo. Simulated: the machine ({self._machine.model.name}), its drivers, the kubelet, the API "
            "server and\nthe scheduler's allocation of claims. Real: the agent, which publishes ResourceSlices.\n"
        )
        if not self._machine.gpus or not self._machine.pfs:
            raise DemoError(f"the machine {self._machine.model.name} has no GPU or no NIC; claims need both")
        self._machine.write(self._root)
        await self._server.start()
        await self._kubelet.start()
        try:
            self._fill_cluster()
            async with self._agent():
                await self._show_slices()
                self._show_claims()
                await self._show_fault()
                await self._show_wipe()
                if not once:
                    self.step("The demo stays up until you press Ctrl-C")
                    self.say(f"curl {self._server.url}/apis/resource.k8s.io/v1/{SLICES}", f"tail {self._log}")
                    await asyncio.Event().wait()
        finally:
            await self._kubelet.stop()
            await self._server.stop()
        print("The demo is over. It leaves nothing on this machine.")

    # --- the steps -------------------------------------------------------------------------------------

    async def _show_slices(self) -> None:
        self.step("The agent publishes its devices as ResourceSlices")
        config = self._folder / "nodeagent.yaml"
        scan = await printed(command("scan", "--root", str(self._root), "--config", str(config)))
        lines = scan.partition("ALLOCATED BY CLAIMS\n")[2].partition("\n\n")[0].splitlines()
        self.say(*lines, "")
        await self._until(lambda: len(self._server.objects(SLICES)) == 2, "two ResourceSlices exist")
        for obj in self._server.objects(SLICES):
            size = len(json.dumps(obj, separators=(",", ":")))
            spec = obj["spec"]
            self.say(f"pool {spec['pool']['name']}: {len(spec['devices'])} devices, {size / 1000:.1f} kB")
        self.say("")

    def _show_claims(self) -> None:
        self.step(f"Claims for {SHARE_GIB} GiB of a GPU and a VF beside it (`nodeagent claim`)")
        request = ClaimRequest.checked(str(SHARE_GIB), 1, near=True, near_rail=None, name="near-pair")
        template = text(request).partition("---\n")[0]
        self.say(*template.splitlines(), "")
        for name in ("trainer-a", "trainer-b"):
            self._allocate(name, template)
        self.say(
            "The scheduler takes the first pair that fits; the second claim needs another GPU, so it gets another NIC.",
            "",
        )

    async def _show_fault(self) -> None:
        gpu = 2
        self.step(f"GPU {gpu} is lost; a new claim avoids it; it comes back")
        request = ClaimRequest.checked(str(SHARE_GIB), 1, near=True, near_rail=None, name="near-pair")
        template = text(request).partition("---\n")[0]
        began = time.monotonic()
        self._machine.lose_gpu(gpu)
        await self._until(lambda: list(self._taints()), "the GPU has a taint")
        for device, taint in self._taints():
            self.say(f"{1000 * (time.monotonic() - began):.0f} ms later: {device} has the taint {taint}")
        self._allocate("trainer-c", template)
        self._machine.find_gpu(gpu)
        began = time.monotonic()
        await self._until(lambda: not list(self._taints()), "the taint is gone")
        self.say(f"back: {time.monotonic() - began:.2f} s later no device has a taint", "")
        self._allocate("trainer-d", template)

    async def _show_wipe(self) -> None:
        self.step("The kubelet restarts: it deletes all ResourceSlices of its node")
        began = time.monotonic()
        for obj in self._server.objects(SLICES):
            self._server.remove(SLICES, obj["metadata"]["name"])
        await self._until(lambda: len(self._server.objects(SLICES)) == 2, "the slices are back")
        generations = [obj["spec"]["pool"]["generation"] for obj in self._server.objects(SLICES)]
        took = 1000 * (time.monotonic() - began)
        self.say(f"both are back {took:.0f} ms later, with the generations {generations}", "")

    # --- cluster and agent ------------------------------------------------------------------------------

    def _fill_cluster(self) -> None:
        self._server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        for name, kind in _CLASSES.items():
            expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{kind}"'
            self._server.put(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceClass",
                    "metadata": {"name": name},
                    "spec": {"selectors": [{"cel": {"expression": expression}}]},
                }
            )
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "demo",
                    "clusters": [{"name": "demo", "cluster": {"server": self._server.url}}],
                    "users": [{"name": "demo", "user": {"token": self._server.token()}}],
                    "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
                }
            )
        )
        (self._folder / "nodeagent.yaml").write_text(_CONFIG.format(kubeconfig=kubeconfig))

    def _agent(self) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        argv = command(
            "run", "--root", str(self._root), "--kubelet-dir", str(self._kubelet.directory),
            "--config", str(self._folder / "nodeagent.yaml"),
        )  # fmt: skip
        return running(argv, self._log, {"NODE_NAME": NODE})

    def _allocate(self, name: str, template: str) -> None:
        """Allocate a claim as the scheduler does, and print its devices with their PCIe roots."""
        claim = {"metadata": {"name": name}, "spec": yaml.safe_load(template)["spec"]["spec"]}
        slices, classes = self._server.objects(SLICES), self._server.objects("deviceclasses")
        try:
            _, allocation = allocate(claim, slices, classes, self._claims)
        except AllocationError as error:
            raise DemoError(f"the claim {name} is not allocated: {error}") from error
        self._claims.append({**claim, "status": {"allocation": allocation}})
        self.say(f"claim {name}:")
        roots = set()
        for result in allocation["devices"]["results"]:
            device = self._device(result["device"])
            root = device["attributes"][PCIE_ROOT]["string"]
            roots.add(root)
            amounts = ", ".join(f"{key} {amount}" for key, amount in result["consumedCapacity"].items())
            self.say(f"    {result['request']}: {result['device']}, {amounts}, below {root}")
        if len(roots) != 1:
            raise DemoError(f"the claim {name} has devices below {sorted(roots)}")
        self.say("")

    def _device(self, name: str) -> Json:
        devices = (one for obj in self._server.objects(SLICES) for one in obj["spec"]["devices"])
        return next(device for device in devices if device["name"] == name)

    def _taints(self) -> Iterator[tuple[str, str]]:
        for obj in self._server.objects(SLICES):
            for device in obj["spec"]["devices"]:
                for taint in device.get("taints") or ():
                    yield device["name"], f"{taint['key']}={taint['value']}:{taint['effect']}"

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(START_S):
                await self._server.until(condition)
        except TimeoutError as error:
            raise DemoError(
                f"waited {START_S:g} s until {what}; the end of the agent's log:\n{tail(self._log)}"
            ) from error
