"""The stand-in kubelet as a process on a node: it starts, ends, restarts and admits pods."""

from __future__ import annotations

import asyncio
import contextlib
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path

from nodeagent.facts.allocation import Allocation
from nodeagent_lab.sim.kubelet.admission import PodAdmitter
from nodeagent_lab.sim.kubelet.device_manager import HEALTHY, DeviceManager
from nodeagent_lab.sim.kubelet.dra_manager import DraManager
from nodeagent_lab.sim.kubelet.plugin_clients import PluginClients
from nodeagent_lab.sim.kubelet.podresources_server import PodResourcesServer
from nodeagent_lab.sim.kubelet.pods import (
    Admission,
    AdmissionError,
    Container,
    Journal,
    KubeletPanic,
    ListedDevice,
    PodSpec,
)
from nodeagent_lab.sim.kubelet.protocol import GrpcListener
from nodeagent_lab.sim.kubelet.registration_server import RegistryWatcher
from nodeagent_lab.sim.kubelet.topology_manager import Policy, Scope


class Kubelet:
    """A kubelet under ``directory``, its ``--root-dir``; the package's docstring lists what it lacks.

    ``device_plugins`` stands for ``/var/lib/kubelet/device-plugins``, which is no part of a kubelet's root; without it
    both are together, as where the root is ``/var/lib/kubelet``.
    ``seed`` makes every order that Go leaves to its maps repeatable. ``bug_127803`` keys plugin clients by
    resource alone, as kubelets up to 1.36 do. ``stop_grace_s`` is how long a resource whose plugin is gone
    keeps its capacity on the Node, and may be set at any time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        device_plugins: Path | None = None,
        topology_policy: Policy = "none",
        topology_scope: Scope = "container",
        numa_nodes: tuple[int, ...] = (0, 1),
        seed: int | None = None,
        bug_127803: bool = True,
        stop_grace_s: float = 300.0,
        dial_timeout_s: float = 10.0,
        reconcile_s: float = 1.0,
        delete_slices: Callable[[str | None], None] = lambda _driver: None,
    ) -> None:
        self.directory = directory
        self.socket = (device_plugins or directory / "device-plugins") / "kubelet.sock"
        self.plugins_registry = directory / "plugins_registry"
        self.podresources_socket = directory / "pod-resources" / "kubelet.sock"
        self.bound_at = 0.0  # when kubelet.sock was there last
        self.admissions: dict[str, Admission] = {}  # the latest of each pod, by UID
        self._journal = Journal()
        self.registrations = self._journal.registrations
        self.updates = self._journal.updates
        self.calls = self._journal.calls
        self.ends = self._journal.ends
        self.panics = self._journal.panics
        self.dra = DraManager(self._journal, delete_slices)
        self._bug_127803 = bug_127803
        self._dial_timeout_s = dial_timeout_s
        self._reconcile_s = reconcile_s
        self._refusal: str | None = None
        rng = random.Random(seed)  # noqa: S311  (a choice of devices is no secret)
        self._devices = DeviceManager(self.socket.parent, self._journal, rng, stop_grace_s)
        self._admitter = PodAdmitter(self._devices, topology_policy, topology_scope, numa_nodes, rng)
        self._admitting = asyncio.Lock()
        self._plugins: PluginClients | None = None
        self._listeners: list[GrpcListener] = []
        self._tasks: list[asyncio.Task[None]] = []

    # The process.

    @property
    def running(self) -> bool:
        return self._plugins is not None

    async def start(self, *, listen_delay_s: float = 0.0, sources_delay_s: float = 0.0) -> None:
        """Start, from the checkpoint if there is one.

        ``listen_delay_s`` is how long ``kubelet.sock`` is there and refuses connections.
        ``sources_delay_s`` is how long no pod is known: podresources lists none, and no device is freed.
        """
        if self.running:
            raise RuntimeError("the stand-in kubelet already runs: stop, kill or restart it")
        folder = self.socket.parent
        for wanted in (folder, self.plugins_registry, self.podresources_socket.parent):
            wanted.mkdir(parents=True, exist_ok=True)
        self._devices.forget()
        self._devices.load()
        self.dra.start()
        (folder / "DEPRECATION").touch()
        for path in (*folder.iterdir(), self.podresources_socket):
            with contextlib.suppress(FileNotFoundError):  # a plugin may remove its own socket meanwhile
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        plugins = PluginClients(
            self._devices,
            self._journal,
            folder,
            bug_127803=self._bug_127803,
            dial_timeout_s=self._dial_timeout_s,
        )
        plugins.refusal = self._refusal
        registration = GrpcListener(self.socket, [plugins.handler()], self.directory)
        lister = GrpcListener(
            self.podresources_socket, [PodResourcesServer(self._devices, self.dra).handler()], self.directory
        )
        self._plugins = plugins
        self._listeners = [registration, lister]
        await lister.start()
        await registration.start(listen_delay_s=listen_delay_s)
        self.bound_at = time.monotonic()
        registry = RegistryWatcher(self.plugins_registry, plugins, self.dra, self._reconcile_s)
        self._tasks = [asyncio.create_task(registry.run(), name="kubelet watches plugins_registry")]
        if sources_delay_s > 0:
            self._tasks.append(
                asyncio.create_task(self._receive_pods(sources_delay_s), name="kubelet sources")
            )
        else:
            await self._receive_pods(0)
        self._journal.changed()

    async def stop(self) -> None:
        """Stop in order and remove the sockets. Does nothing if it is down."""
        await self._end(leave_sockets=False)

    async def kill(self) -> None:
        """End as by SIGKILL: connections break; the sockets' files stay and refuse connections."""
        await self._end(leave_sockets=True)

    async def restart(
        self, *, down_s: float = 0.0, listen_delay_s: float = 0.0, sources_delay_s: float = 0.0
    ) -> None:
        """Stop and start again: plugins' sockets are removed, the checkpoint is kept."""
        await self.stop()
        if down_s > 0:
            await asyncio.sleep(down_s)
        await self.start(listen_delay_s=listen_delay_s, sources_delay_s=sources_delay_s)

    async def _end(self, *, leave_sockets: bool) -> None:
        plugins, self._plugins = self._plugins, None
        if plugins is None:
            return
        own = asyncio.current_task()
        for task in self._tasks:
            if task is not own:
                task.cancel()
        for task in self._tasks:
            if task is not own:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await plugins.close()
        await self.dra.stop()
        for listener in self._listeners:
            await listener.stop(leave_file=leave_sockets)
        self._tasks, self._listeners = [], []
        self._journal.changed()

    async def _receive_pods(self, delay_s: float) -> None:
        """Receive the pods from the API server; those from before a restart are admitted again.

        The sources are not ready yet, so running containers are skipped. The devices of a finished init container are
        handled as new (#138446: the pod fails while its plugin is away).
        """
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        async with self._admitting:
            for pod in list(self._devices.active.values()):
                running = frozenset(
                    c.name for c in (*pod.init_containers, *pod.containers) if self._runs(pod, c)
                )
                try:
                    await self._admitter.allocate(pod, running)
                except AdmissionError as error:
                    self._fail(pod, error)
                except KubeletPanic as panic:
                    await self._panic(panic)
                    return
            self._devices.sources_ready = True
        self._journal.changed()

    @staticmethod
    def _runs(pod: PodSpec, container: Container) -> bool:
        return container in pod.containers or container.restartable

    # Pods.

    async def admit(self, pod: PodSpec) -> Admission:
        """Admit a pod that the scheduler has bound here, and start its containers.

        Raises ``KubeletPanic`` where the kubelet would have died of it; it is then down, and ``start``
        brings it back as its supervisor would.
        """
        async with self._admitting:
            if not self.running:
                raise RuntimeError("the stand-in kubelet is down: start it before it admits a pod")
            self._devices.active[pod.uid] = pod
            try:
                await self._admitter.allocate(pod)
            except AdmissionError as error:
                return self._fail(pod, error)
            except KubeletPanic as panic:
                await self._panic(panic)
                raise
            return await self._start_containers(pod)

    async def start_container(self, pod: PodSpec, container: str) -> Allocation:
        """Return what a container gets at each start. Raises ``AdmissionError`` if it cannot start."""
        by_name = {c.name: c for c in (*pod.init_containers, *pod.containers)}
        return await self._admitter.start(pod, by_name[container])

    def remove(self, pod: PodSpec) -> None:
        """Remove the pod from the node. The kubelet frees its devices at its next search for ended pods."""
        self._devices.active.pop(pod.uid, None)
        self._journal.changed()

    def insufficient(self, pod: PodSpec) -> tuple[str, ...]:
        """Return the resources that are insufficient by the scheduler's arithmetic.

        What is requested by running pods is taken from the allocatable, which an unhealthy device in use
        has lowered already: one bad device in use counts twice.
        """
        lacking = []
        allocatable = self.allocatable()
        for resource, count in pod.requests().items():
            used = sum(other.requests().get(resource, 0) for other in self._devices.active.values())
            if used + count > allocatable.get(resource, 0):
                lacking.append(resource)
        return tuple(sorted(lacking))

    async def _start_containers(self, pod: PodSpec) -> Admission:
        given: dict[str, Allocation] = {}
        admission = Admission(pod, "Running", given=given)
        for container in (*pod.init_containers, *pod.containers):
            try:
                given[container.name] = await self._admitter.start(pod, container)
            except AdmissionError as error:
                admission = Admission(pod, "Pending", "CreateContainerConfigError", str(error), given)
                break
        return self._conclude(admission)

    def _fail(self, pod: PodSpec, error: AdmissionError) -> Admission:
        """Fail the pod for good. Its devices are freed at the next search for ended pods."""
        self._devices.active.pop(pod.uid, None)
        return self._conclude(Admission(pod, "Failed", error.reason, error.verdict()))

    def _conclude(self, admission: Admission) -> Admission:
        self.admissions[admission.pod.uid] = admission
        self._journal.changed()
        return admission

    async def _panic(self, panic: KubeletPanic) -> None:
        self.panics.append(panic)
        await self.kill()

    # Inspection and faults.

    @property
    def stop_grace_s(self) -> float:
        return self._devices.stop_grace_s

    @stop_grace_s.setter
    def stop_grace_s(self, seconds: float) -> None:
        self._devices.stop_grace_s = seconds

    def capacity(self) -> dict[str, int]:
        """Return ``status.capacity`` of the Node, which stays as it is while the kubelet is down."""
        return {resource: capacity for resource, (capacity, _) in self._node().items()}

    def allocatable(self) -> dict[str, int]:
        return {resource: allocatable for resource, (_, allocatable) in self._node().items()}

    def _node(self) -> dict[str, tuple[int, int]]:
        if self.running:
            self._devices.refresh_node()
        return self._devices.node

    def devices(self, resource: str) -> dict[str, ListedDevice]:
        """Return all devices as in the plugin's latest message, also after its stream has ended."""
        listed = self._devices.listed.get(resource)
        if listed is None:
            return {}
        return {name: ListedDevice(device.health, listed.numa(name)) for name, device in listed.by_id.items()}

    def allocated(self, resource: str) -> frozenset[str]:
        """Return the devices that are not allocated again: more than containers hold if a choice leaked."""
        return frozenset(self._devices.allocated.get(resource, ()))

    def held(self, pod: PodSpec) -> dict[str, dict[str, frozenset[str]]]:
        """Return the devices of a pod in the checkpoint: container, then resource, then IDs."""
        return {
            container: {resource: frozenset(held.ids()) for resource, held in resources.items()}
            for container, resources in self._devices.holdings.get(pod.uid, {}).items()
        }

    def resource_health(self, pod: PodSpec) -> dict[str, dict[str, dict[str, str]]]:
        """``allocatedResourcesStatus`` of the app containers: container, then resource, then ID.

        The health last reported, which a plugin's death does not change; Healthy for an unknown ID.
        """
        return {
            container.name: {
                resource: {name: self._health(resource, name) for name in held.ids()}
                for resource, held in self._devices.holdings.get(pod.uid, {}).get(container.name, {}).items()
            }
            for container in pod.containers
        }

    def _health(self, resource: str, name: str) -> str:
        listed = self._devices.listed.get(resource)
        device = None if listed is None else listed.by_id.get(name)
        return HEALTHY if device is None or device.health == HEALTHY else "Unhealthy"

    def refuse(self, reason: str | None) -> None:
        """Refuse every registration with this reason; ``None`` accepts again."""
        self._refusal = reason
        if self._plugins is not None:
            self._plugins.refusal = reason

    async def until(self, predicate: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until the predicate holds; it is called at every change. Raises ``TimeoutError`` with the state."""
        await self._journal.until(predicate, timeout_s)
