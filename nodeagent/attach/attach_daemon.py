"""`nodeagent attach`, composed: the kubelet's list, the agent's plan and the runtime's sandboxes → netdevs in pods.

It runs until SIGTERM or SIGINT. Pods keep their netdevs then.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from nodeagent.attach.attach_files import AttachFiles, AttachState
from nodeagent.attach.attached_spec import AttachedSpec
from nodeagent.attach.attachments import Attachments, HoldingsError, KubeletList
from nodeagent.attach.cni_plugin import CniPlugins
from nodeagent.attach.host_names import HostNames
from nodeagent.attach.leases import CNI_FOLDER, PLUGIN_LOCK, Leases
from nodeagent.attach.node_netdevs import NodeNetdevs
from nodeagent.attach.nri_plugin import NriError, NriPlugin, Runtime
from nodeagent.attach.plan_file import read_attach_plan
from nodeagent.attach.pod_netdevs import HOST_NAMESPACE, DeviceOf, pci_device
from nodeagent.attach.vf_allocations import VfAllocations
from nodeagent.base.backoff import Backoff
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.ending import end_at
from nodeagent.base.supervise import ending_signals, keep
from nodeagent.kube.podresources_client import PodResources, PodResourcesError

log = logging.getLogger(__name__)

_KUBELET_S = 1.0
"""A sandbox waits for the kubelet's list no longer than this: the runtime's own limit is two seconds."""
_LOCKED_S, _REPORT_S = 0.5, 2.0
_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.2, 5.0


class AttachPaths(Struct, frozen=True):
    """``directory`` is the state directory of the agent, ``podresources`` and ``nri`` are sockets, ``cdi`` is the
    folder of specs, ``plugins`` that of CNI plugins."""

    directory: Path
    podresources: Path
    cdi: Path
    nri: Path
    plugins: Path = CNI_FOLDER


class AttachDaemon:
    """``device_of`` and ``host`` differ in the laboratory alone."""

    def __init__(
        self, paths: AttachPaths, device_of: DeviceOf = pci_device, host: str = HOST_NAMESPACE
    ) -> None:
        self._files = AttachFiles(paths.directory)
        self._kubelet = PodResources(paths.podresources, timeout_s=_KUBELET_S)
        self._attachments = Attachments(
            partial(read_attach_plan, paths.directory),
            self._holdings,
            AttachedSpec(paths.cdi),
            VfAllocations(paths.directory),
            NodeNetdevs(HostNames(paths.directory), device_of, host),
            Leases(paths.directory, CniPlugins(paths.plugins, paths.directory / PLUGIN_LOCK)),
        )
        self._plugin = NriPlugin(paths.nri, self._attachments, self._registered)
        self._backoff = Backoff(_AGAIN_FIRST_S, _AGAIN_MAX_S)
        self._obstacle = ""

    async def run(self) -> None:
        """Wait for the end of another one on this node, and follow the sandboxes until cancelled."""
        while await in_thread(self._files.take_lock) is None:
            if not self._obstacle:
                self._obstacle = "another `nodeagent attach` runs on this node"
                log.info("Another `nodeagent attach` runs on this node; waiting for its end.")
            await asyncio.sleep(_LOCKED_S)
        self._obstacle = ""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep("sandboxes", self._follow))
            group.create_task(keep("netdevs", self._attachments.tend))
            group.create_task(keep("state", self._report))

    async def _follow(self) -> None:
        while True:
            try:
                await self._plugin.run()
            except NriError as error:
                if str(error) != self._obstacle:
                    log.warning("The pod sandboxes are not followed. reason=%r", str(error))
                self._obstacle = str(error)
            await asyncio.sleep(self._backoff.next_s())

    def _registered(self, runtime: Runtime) -> None:
        self._obstacle = ""
        self._backoff.reset()
        log.info("Following the pod sandboxes. runtime=%s version=%r", runtime.name, runtime.version)

    async def _report(self) -> None:
        """Keep the file that the doctor reads."""
        written = None
        while True:
            runtime = self._plugin.runtime
            state = AttachState(
                "" if runtime is None else f"{runtime.name} {runtime.version}".strip(),
                self._obstacle,
                self._attachments.pods,
                self._attachments.waiting,
                self._attachments.netdevs,
                self._attachments.counts,
            )
            if state != written:  # at rest a thread for each look would be a third of all processor time
                await in_thread(partial(self._files.write_state, state))
                written = state
            await asyncio.sleep(_REPORT_S)

    async def _holdings(self) -> KubeletList:
        try:
            holdings = await self._kubelet.list()
        except PodResourcesError as error:
            raise HoldingsError(str(error)) from error
        return KubeletList(self._kubelet.pods_listed, holdings)


async def run_attach(paths: AttachPaths) -> None:
    end_at(ending_signals(signal.SIGINT))
    with suppress(asyncio.CancelledError):
        await AttachDaemon(paths).run()
