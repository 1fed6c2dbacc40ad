"""The demo of claims: a simulated machine, a stand-in API server, and the real agent as a process.

Real are ``nodeagent run``, its ResourceSlices, the claims that it prepares, and the templates of ``nodeagent claim``.
Simulated are the machine's files, the GPU driver, the API server, the part of the scheduler that allocates claims, and
the kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from nodeagent.commands.claim import NEAR_BY, ClaimRequest, claim_yaml
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_files import SPEC_PREFIX
from nodeagent.kube import access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import RESOURCE_CLAIMS
from nodeagent_lab.demo.demo_steps import DemoError, DemoSteps, command, printed, running, tail
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.claim_allocator import AllocationError, allocate
from nodeagent_lab.sim.kubelet import Container, Kubelet, PodSpec
from nodeagent_lab.sim.kubelet.dra_manager import GivenDevice, PodClaim, SandboxError
from nodeagent_lab.sim.machine import Machine

NODE = "dgx-demo"
START_S = 60.0
"""The timeout of each wait, for a slow machine."""
SHARE_GIB = 40
SLICES, CLAIMS = "resourceslices", "resourceclaims"
NAMESPACE = "default"
AGENT_POD = PodSpec("nodeagent-demo", (Container("agent", {}),), namespace="nodeagent")
"""Because the kubelet lists it, its list without devices counts sooner, and the first slices come sooner."""
CDI_FOLDER = "var/run/cdi"
"""Where the agent writes CDI specs by default, below the root of the machine."""
BRIEF = ("NODEAGENT_GPU_UUID", "NODEAGENT_VFS_NEAR")
"""The variables of a pod with its GPU and its VF as values."""
VARIABLE_MAX = 80
_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {{kind: vf, mode: dra}}
- {{kind: gpu-mem, mode: dra}}
cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, report: false, events: false}}
listen: null
"""
_PLACES = {"pcie-root": "below", "numa-node": "on NUMA node"}
_CLASSES = {"gpu-share": "gpu", "nic": "nic"}
"""The DeviceClasses without a rail, as ``daemonset/components/dra`` has them, and the kind that each selects."""

Json = dict[str, Any]


class ClaimShow(DemoSteps):
    def __init__(self, machine: str, folder: Path) -> None:
        super().__init__()
        self._machine = Machine.load(machine)
        self._root, self._folder = folder / "root", folder
        self._log = folder / "agent.log"
        self._server = ApiServer(seed=7)
        self._kubelet = Kubelet(folder / "kubelet", seed=7, delete_slices=self._delete_slices)
        self._cluster: ApiClient
        self._near_by = "pcie-root"
        """The place that a GPU and the NIC beside it have in common on this machine."""
        self._template = ""

    async def run(self, *, once: bool) -> None:
        print(
            f"nodeagent demo. Simulated: the machine ({self._machine.model.name}), its drivers, the kubelet, the API "
            "server and\nthe scheduler's allocation of claims. Real: the agent, which publishes ResourceSlices and "
            "prepares claims.\n"
        )
        if not self._machine.gpus or not self._machine.pfs:
            raise DemoError(f"the machine {self._machine.model.name} has no GPU or no NIC; claims need both")
        self._machine.write(self._root)
        await self._server.start()
        await self._kubelet.start()
        await self._kubelet.admit(AGENT_POD)
        try:
            self._fill_cluster()
            async with self._client(), self._agent():
                await self._show_slices()
                await self._show_claims()
                await self._show_prepared()
                await self._show_fault()
                await self._show_end()
                await self._show_restart()
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
        await self._until(lambda: len(self._server.objects(SLICES)) == 2, "two ResourceSlices exist")
        config = self._folder / "nodeagent.yaml"
        scan = await printed(command("scan", "--root", str(self._root), "--config", str(config)))
        lines = scan.partition("ALLOCATED BY CLAIMS\n")[2].partition("\n\n")[0].splitlines()
        self.say(*lines, "")
        for obj in self._server.objects(SLICES):
            size = len(json.dumps(obj, separators=(",", ":")))
            spec = obj["spec"]
            self.say(f"pool {spec['pool']['name']}: {len(spec['devices'])} devices, {size / 1000:.1f} kB")
        self.say("")

    async def _show_claims(self) -> None:
        self.step(f"Claims for {SHARE_GIB} GiB of a GPU and a VF beside it (`nodeagent claim`)")
        self._near_by = self._common_place()
        request = ClaimRequest.checked(
            str(SHARE_GIB), 1, near=True, near_rail=None, name="near-pair", near_by=self._near_by
        )
        self._template = claim_yaml(request).partition("---\n")[0]
        self.say(*self._template.splitlines(), "")
        for name in ("trainer-a", "trainer-b"):
            await self._allocate(name)
        self.say("The scheduler takes the first GPU with room, and the first NIC beside it.", "")

    async def _show_prepared(self) -> None:
        self.step("The kubelet starts the pods: the agent prepares their claims (NodePrepareResources)")
        await self._until_kubelet(lambda: self._kubelet.dra.registered(DRIVER), "the driver is registered")
        await self._prepare("trainer-a", detailed=True)
        await self._prepare("trainer-b")
        self.say(
            "The scheduler chose GPU and NIC, the agent the VF. The runtime adds to a container what its CDI ids name.",
            "",
        )

    async def _show_fault(self) -> None:
        user = "trainer-b"
        self.step(f"The GPU of {user} is lost; a new claim avoids it; it comes back")
        await self._until_kubelet(lambda: self._healthy(user), f"the devices of {user} are healthy")
        gpu = next(it.device for it in self._given(user) if it.requests == ("gpu",))
        uuid = self._device(gpu)["attributes"]["uuid"]["string"]
        began = time.monotonic()
        self._machine.lose_gpu(uuid)
        await self._until(lambda: list(self._taints()), "the GPU has a taint")
        for device, taint in self._taints():
            self.say(f"{1000 * (time.monotonic() - began):.0f} ms later: {device} has the taint {taint}")
        await self._until_kubelet(lambda: not self._healthy(user), "the kubelet has the new health")
        self.say(f"status of the pod {user}:", *self._health(user), "")
        await self._allocate("trainer-c", may_wait=True)
        self._machine.find_gpu(uuid)
        began = time.monotonic()
        await self._until(lambda: not list(self._taints()), "the taint is gone")
        self.say(f"back: {time.monotonic() - began:.2f} s later no device has a taint")
        await self._until_kubelet(lambda: self._healthy(user), "the kubelet has the new health")
        self.say(f"status of the pod {user}:", *self._health(user), "")

    async def _show_end(self) -> None:
        ended, next_one = "trainer-b", "trainer-d"
        self.step(f"{ended} ends: the agent unprepares its claim, and the next pod gets its devices")
        spec = self._cdi_spec(self._claim(ended))
        await self._unprepare(ended)
        if spec.exists():
            raise DemoError(f"{spec} still exists after the end of {ended}")
        self.say(f"NodeUnprepareResources: the CDI spec of {ended} is removed")
        await self._cluster.delete(RESOURCE_CLAIMS, ended, namespace=NAMESPACE)
        await self._allocate(next_one)
        await self._prepare(next_one)

    async def _show_restart(self) -> None:
        self.step("The kubelet restarts: it deletes all ResourceSlices of its node")
        deleted = self._slice_uids()
        began = time.monotonic()
        await self._kubelet.restart()
        await self._until(lambda: len(self._slice_uids() - deleted) == 2, "the slices are back")
        generations = [obj["spec"]["pool"]["generation"] for obj in self._server.objects(SLICES)]
        took = 1000 * (time.monotonic() - began)
        self.say(f"both are back {took:.0f} ms later, with the generations {generations}", "")

    # --- scheduler and kubelet --------------------------------------------------------------------------

    async def _allocate(self, name: str, *, may_wait: bool = False) -> None:
        """Create a claim and allocate it as the scheduler does; print its devices with their places.

        ``may_wait``: a machine with few GPUs may have none left, and the pod waits.
        """
        spec = yaml.safe_load(self._template)["spec"]["spec"]
        claim = await self._cluster.create(
            RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE
        )
        slices, classes = self._server.objects(SLICES), self._server.objects("deviceclasses")
        try:
            _, allocation = allocate(claim, slices, classes, self._server.objects(CLAIMS))
        except AllocationError as error:
            if may_wait:
                self.say(f"claim {name} waits: {error}; the demo deletes it", "")
                await self._cluster.delete(RESOURCE_CLAIMS, name, namespace=NAMESPACE)
                return
            raise DemoError(f"the claim {name} is not allocated: {error}") from error
        pod = {"resource": "pods", "name": name, "uid": f"{name}-uid"}
        status = {"allocation": allocation, "reservedFor": [pod]}
        await self._cluster.patch(
            RESOURCE_CLAIMS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )
        self.say(f"claim {name}:")
        places = set()
        for result in allocation["devices"]["results"]:
            place = _place(self._device(result["device"]), self._near_by)
            places.add(place)
            amounts = ", ".join(f"{key} {amount}" for key, amount in result["consumedCapacity"].items())
            self.say(
                f"    {result['request']}: {result['device']}, {amounts}, {_PLACES[self._near_by]} {place}"
            )
        if len(places) != 1:
            raise DemoError(f"the claim {name} has devices of several places: {places}")
        self.say("")

    async def _prepare(self, name: str, *, detailed: bool = False) -> None:
        """Prepare the claim of a pod; print the CDI ids and variables of its devices. ``detailed``: all that the
        runtime adds to the container."""
        claim = self._claim(name)
        try:
            await self._kubelet.dra.prepare(name, [claim])
        except SandboxError as error:
            raise self._error(f"the pod {name} does not start: {error}") from error
        edits = self._container_edits()
        self.say(f"pod {name}:")
        for given in self._given(name):
            self.say(f"    {', '.join(given.requests)}:")
            for cdi_id in given.cdi_ids:
                if cdi_id not in edits:
                    raise DemoError(f"no CDI spec has the device {cdi_id}")
                self.say(f"        CDI id {cdi_id}")
                for variable in edits[cdi_id].get("env") or ():
                    if detailed or variable.partition("=")[0] in BRIEF:
                        self.say(f"        env {_shortened(variable)}")
                for node in (edits[cdi_id].get("deviceNodes") or ()) if detailed else ():
                    self.say(f"        device {node['path']}")
        self.say("")

    async def _unprepare(self, name: str) -> None:
        try:
            await self._kubelet.dra.unprepare(name)
        except SandboxError as error:
            raise self._error(f"the pod {name} does not end: {error}") from error

    def _health(self, name: str) -> list[str]:
        """The health of a pod's devices, as in ``allocatedResourcesStatus`` of its containers."""
        lines = []
        for given in self._given(name):
            health, message = self._kubelet.dra.device_health(DRIVER, given.pool, given.device)
            reason = f" ({message})" if message else ""
            lines.append(f"    claim:{name}/{', '.join(given.requests)}: {health}{reason}")
        return lines

    def _healthy(self, name: str) -> bool:
        return all(line.endswith(": Healthy") for line in self._health(name))

    def _given(self, name: str) -> list[GivenDevice]:
        """The devices of a claim, as the agent answered."""
        return self._kubelet.dra.states[f"{NAMESPACE}/{name}"].devices[DRIVER]

    def _slice_uids(self) -> set[str]:
        return {obj["metadata"]["uid"] for obj in self._server.objects(SLICES)}

    def _claim(self, name: str) -> PodClaim:
        claim = self._server.find(CLAIMS, name, NAMESPACE)
        if claim is None:
            raise DemoError(f"the claim {name} does not exist")
        return PodClaim(NAMESPACE, name, claim["metadata"]["uid"], (DRIVER,))

    def _cdi_spec(self, claim: PodClaim) -> Path:
        return self._root / CDI_FOLDER / f"{SPEC_PREFIX}{claim.uid}.json"

    def _container_edits(self) -> dict[str, Json]:
        """The edits of all CDI specs by id, as the runtime resolves them."""
        specs = [json.loads(path.read_text()) for path in (self._root / CDI_FOLDER).glob("*.json")]
        return {
            f"{spec['kind']}={device['name']}": device["containerEdits"]
            for spec in specs
            for device in spec["devices"]
        }

    def _delete_slices(self, driver: str | None) -> None:
        for obj in self._server.objects(SLICES):
            if driver in (None, obj["spec"]["driver"]):
                self._server.remove(SLICES, obj["metadata"]["name"])

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

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[None]:
        """The client of the scheduler."""
        self._cluster = ApiClient(access.kubeconfig(self._folder / "kubeconfig"))
        try:
            yield
        finally:
            await self._cluster.close()

    def _agent(self) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        argv = command(
            "run", "--root", str(self._root), "--kubelet-dir", str(self._kubelet.directory),
            "--config", str(self._folder / "nodeagent.yaml"),
        )  # fmt: skip
        pod = {"POD_NAMESPACE": AGENT_POD.namespace, "POD_NAME": AGENT_POD.name}
        return running(argv, self._log, {"NODE_NAME": NODE, **pod})

    def _common_place(self) -> str:
        """Return the word of ``NEAR_BY`` for which a GPU and a NIC of this machine have a common value."""
        for near_by in NEAR_BY:
            gpus, nics = (
                {_place(device, near_by) for device in obj["spec"]["devices"]}
                for obj in sorted(
                    self._server.objects(SLICES), key=lambda it: str(it["spec"]["pool"]["name"])
                )
            )
            if (gpus & nics) - {None}:
                return near_by
        raise DemoError("no GPU of this machine shares a PCIe root or a NUMA node with a NIC")

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
            await self._server.until(condition, START_S)
        except TimeoutError as error:
            raise self._error(f"waited {START_S:g} s until {what}") from error

    async def _until_kubelet(self, condition: Callable[[], bool], what: str) -> None:
        try:
            await self._kubelet.until(condition, START_S)
        except TimeoutError as error:
            raise self._error(f"waited {START_S:g} s until {what}") from error

    def _error(self, problem: str) -> DemoError:
        return DemoError(f"{problem}; the end of the agent's log:\n{tail(self._log)}")


def _shortened(variable: str) -> str:
    return variable if len(variable) <= VARIABLE_MAX else f"{variable[:VARIABLE_MAX]}…"


def _place(device: Json, near_by: str) -> str | int | None:
    value: Json = device["attributes"].get(NEAR_BY[near_by], {})
    return next(iter(value.values()), None)
