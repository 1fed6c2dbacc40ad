"""Keep every resource registered with the kubelet: serve, register, notice a loss, register again.

One loop compares the resources with what the kubelet has, and removes the difference. Inotify on the kubelet's
folder, a lost stream and a timer only wake it. ``registration_state`` has the states of a resource. The rules
below follow from the kubelet's own source:

* A plugin serves before Register is sent, because the kubelet dials it back inside that call.
* ``kubelet.sock`` exists before the kubelet listens, and a gRPC channel that is refused waits for a second. So a
  plain connect probes the socket first.
* A kubelet that starts removes every socket in its folder. It never opens a stream a second time.
* Up to 1.36 the end of an old stream disconnects the *new* client of that resource. So the old server stops, its
  streams end, and the kubelet gets a moment before the new registration.
* Another plugin may register our name, and the kubelet does not say so. ``counted_devices`` sees it. Then our stream
  stays open, because its end would disconnect the other plugin, and silent: a message would replace the list of the
  plugin that the kubelet asks. Once the other has ended, we register again. If it counts what we sent last, we have
  the name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.supervise import either, end_tasks
from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Snapshot
from nodeagent.host.inotify import FolderWatch, InotifyError
from nodeagent.kinds import DeviceKind
from nodeagent.kubelet.counted_devices import Comparison, Verdict
from nodeagent.kubelet.device_list import register_request
from nodeagent.kubelet.grown_requests import RequestNotes
from nodeagent.kubelet.node_lock import node_lock
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.plugin import Plugin, RecentFunctions
from nodeagent.kubelet.registration_state import NOT_YET, Event, KubeletId, Registration
from nodeagent.kubelet.rpc_stats import ResourceStatus, RpcStats
from nodeagent.kubelet.socket_probe import connects, kubelet_id, replaced, same_file
from nodeagent.kubelet.unix_server import BindError, socket_name

log = logging.getLogger(__name__)

REGISTER_S = 10.0
"""Inside Register the kubelet dials back for up to 10 s (plugin/v1beta1/client.go)."""
PROBE_FIRST_S = 0.001
PROBE_MAX_S = 0.05
REFUSES_S = 0.2
"""Between probes of a kubelet whose socket exists and refuses connections: no event reports when it listens."""
FOLDER_S = 2.0
SOCKET_LOOK_S = 5.0
"""Between looks without a hint: inotify does not report changes on another mount."""

USUAL = Path("/var/lib/kubelet/device-plugins")
"""A constant of the kubelet, whatever its --root-dir is (deviceplugin/v1beta1/constants.go)."""
COUNTED_S = 1.0
"""A registration that is younger is not compared with what the kubelet counts: the first message is on its way."""
NOBODY = frozenset[str]()

_CHANNEL = (
    # Channels to one address share a connection, and with it the back-off after an earlier kubelet ended.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # of an attempt; timers of less than 3 s wake gRPC more often
)


class DevicePlugins:
    """Offers the kubelet a plugin for each kind. ``update`` takes the kinds, ``run`` is a supervised task. ``folder``:
    of kubelet.sock and of the sockets of all device plugins."""

    def __init__(
        self,
        folder: Path,
        *,
        files: OfferFiles,
        stats: RpcStats,
        requests: RequestNotes,
        on_allocate: Callable[[str, Sequence[str]], None] = lambda _resource, _ids: None,
    ) -> None:
        self._folder = folder
        self._kubelet = folder / "kubelet.sock"
        self._files = files
        self.stats = stats
        self._requests = requests
        self._on_allocate = on_allocate
        self._recent = RecentFunctions()
        self._resources: dict[str, _Resource] = {}
        self._withdrawn: dict[str, _Resource] = {}
        self._wake = asyncio.Event()
        self._looks = BoundedCalls("the kubelet's folder", FOLDER_S)
        self._kubelet_refuses = False
        self._last_warning = ""

    def update(
        self, kinds: Iterable[DeviceKind], snapshot: Snapshot, removed: frozenset[str] = frozenset()
    ) -> None:
        """Offer exactly these kinds. A resource without a kind is withdrawn, and its device list kept: if the
        resource comes back, the kubelet may still know its IDs. ``removed`` are the IDs that may leave the lists."""
        wanted = {kind.resource: kind for kind in kinds}
        for name in self._resources.keys() - wanted.keys():
            self._withdrawn[name] = self._resources.pop(name)
            self._wake.set()
        for name, kind in wanted.items():
            resource = self._resources.get(name)
            if resource is None:
                resource = self._withdrawn.pop(name) if name in self._withdrawn else self._new(kind)
                self._resources[name] = resource
                self._wake.set()
            resource.plugin.update(kind, snapshot, removed)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        return tuple(resource.status() for _, resource in sorted(self._resources.items()))

    def observe(self, counted: Mapping[str, frozenset[str]], asked_at: float) -> bool:
        """Take the healthy device IDs that the kubelet counts under each name, as it answered at ``asked_at``
        (``time.monotonic``). Return whether a second look soon must decide."""
        doubt = False
        for resource in (*self._resources.values(), *self._withdrawn.values()):
            if resource.state.accepted and resource.state.accepted_at < asked_at - COUNTED_S:
                doubt |= resource.observe(counted.get(resource.plugin.resource, NOBODY), asked_at)
            if resource.dropped:
                self._wake.set()
        return doubt

    async def run(self) -> None:
        """Keep every resource registered until cancelled. Wait for the first one, and while the folder is gone."""
        while not self._resources:
            await self._woken()
        while True:
            await self._folder_exists()
            async with node_lock(self._folder, self._waits, self._blocked) as lock, self._hints():
                folder = kubelet_id(self._folder)
                self._give_reason(NOT_YET)
                try:
                    while same_file(kubelet_id(self._folder), folder) and lock.take():
                        await self._reconcile()
                        await self._woken()
                        await self._folder_answers()
                finally:
                    await self._close_all()

    def _new(self, kind: DeviceKind) -> _Resource:
        name = kind.resource
        plugin = Plugin(
            kind,
            self._files,
            self._recent,
            self.stats,
            self._requests.of(name),
            lambda: self._stream_lost(name),
            self._on_allocate,
        )
        return _Resource(plugin, self.stats)

    async def _close_all(self) -> None:
        event, reason = Event.WITHDRAWN, ""
        if not self._folder.is_dir():
            event, reason = Event.LOST, "the kubelet's folder is gone"
        resources = [*self._resources.values(), *self._withdrawn.values()]
        await asyncio.gather(*(resource.close(event, reason) for resource in resources))

    # --- waking ---------------------------------------------------------------------------------------

    def _stream_lost(self, name: str) -> None:
        # Also during Register: the kubelet opens the stream inside that call.
        if (resource := self._resources.get(name) or self._withdrawn.get(name)) is not None:
            resource.stream_lost = True
            self._wake.set()

    async def _woken(self) -> None:
        now, states = time.monotonic(), [resource.state for resource in self._resources.values()]
        pauses = [state.not_before - now for state in states if not state.registered]
        pause = min([REFUSES_S if self._kubelet_refuses else SOCKET_LOOK_S, *(it for it in pauses if it > 0)])
        # Not wait_for: up to Python 3.11 it loses a cancellation that arrives together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()

    @asynccontextmanager
    async def _hints(self) -> AsyncIterator[None]:
        async def watch() -> None:
            try:
                with FolderWatch() as watching:
                    if self._folder.is_dir():
                        watching.add(self._folder)
                    while True:
                        await watching.changes()
                        self._wake.set()
            except InotifyError as error:
                log.warning("No inotify: looking every %.0f s. reason=%r", SOCKET_LOOK_S, str(error))

        task = asyncio.create_task(watch(), name="kubelet-folder")
        try:
            yield
        finally:
            await end_tasks((task,))

    async def _folder_answers(self) -> bool:
        """Whether the folder exists. Wait while its file system hangs: afterwards the event loop uses it."""
        while True:
            try:
                return await self._looks.run(self._folder.is_dir)
            except Unanswered:  # the log and /readyz name the call
                await asyncio.sleep(REFUSES_S)

    async def _folder_exists(self) -> None:
        while not await self._folder_answers():
            hint = _other_folder(self._folder)
            self._warn_once(
                f"The kubelet's folder does not exist yet; waiting for it. folder={self._folder}{hint}"
            )
            if hint:
                self._give_reason(f"the folder of kubelet.sock does not exist{hint}")
            await asyncio.sleep(0.5)

    def _waits(self, sentence: str) -> None:
        self._give_reason(sentence)
        self._warn_once(sentence)

    def _blocked(self, reason: str) -> None:
        self._give_reason(reason)
        self._warn_once(f"No resource can be registered. reason={reason!r}")

    def _give_reason(self, reason: str) -> None:
        for resource in self._resources.values():
            resource.apply(Event.BLOCKED, reason=reason)

    def _warn_once(self, sentence: str) -> None:
        if sentence != self._last_warning:
            self._last_warning = sentence
            log.warning("%s", sentence)

    # --- reconciling ----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """Remove the differences between the resources and the kubelet."""
        kubelet = kubelet_id(self._kubelet)
        withdrawn = [resource for resource in self._withdrawn.values() if resource.plugin.serving]
        # The end of a stream would disconnect the plugin that has taken the name.
        ending = [resource for resource in withdrawn if not resource.spares_another(kubelet)]
        await asyncio.gather(*(resource.close(Event.WITHDRAWN) for resource in ending))
        self._kubelet_refuses = kubelet is not None and not await self._answers(kubelet)
        if kubelet is None or self._kubelet_refuses:
            hint = _other_folder(self._folder)
            self._warn_once(f"The kubelet does not listen; waiting for it. socket={self._kubelet}{hint}")
            for resource in (*self._resources.values(), *self._withdrawn.values()):
                resource.apply(Event.KUBELET_GONE, reason=f"the kubelet does not listen{hint}")
            if hint:
                self._give_reason(f"the kubelet does not listen{hint}")
            return
        for resource in tuple(self._resources.values()):  # ``update`` may change the table meanwhile
            await self._close_lost(resource, kubelet)
        now = time.monotonic()
        await self._register([r for r in self._resources.values() if r.state.due(kubelet, now)], kubelet)

    async def _close_lost(self, resource: _Resource, kubelet: KubeletId) -> None:
        """Stop a plugin whose registration with this kubelet is lost."""
        plugin = resource.plugin
        if plugin.streams and same_file(resource.state.kubelet, kubelet):
            resource.apply(Event.SOCKET_TOUCHED, kubelet=kubelet)
        state = resource.state
        if not state.accepted or state.kubelet != kubelet:
            return
        # The kubelet opens the stream right after Register.
        overdue = not plugin.streams and time.monotonic() - state.accepted_at > REGISTER_S
        if resource.stream_lost or overdue:
            await resource.close(Event.LOST, "the kubelet closed the stream")
        elif resource.dropped:
            await resource.close(Event.LOST, resource.dropped)
        elif state.registered and not plugin.intact():
            await resource.close(Event.LOST, "the socket was removed")

    async def _answers(self, kubelet: KubeletId) -> bool:
        """Whether this kubelet is there: it holds the streams of all resources, or it accepts a connection."""
        resources = self._resources.values()
        if resources and all(resource.is_held_by(kubelet) for resource in resources):
            return True
        return await self._listens(kubelet)

    async def _listens(self, kubelet: KubeletId) -> bool:
        """Whether the kubelet accepts connections. Wait a moment for a kubelet that is about to."""
        pause = PROBE_FIRST_S
        while kubelet_id(self._kubelet) == kubelet:
            if await connects(self._kubelet):
                return True
            if pause > PROBE_MAX_S:
                break
            await asyncio.sleep(pause)
            pause *= 1.5
        return False

    async def _register(self, due: list[_Resource], kubelet: KubeletId) -> None:
        await asyncio.gather(*(self._serve(resource, kubelet) for resource in due))
        # A kubelet that starts removes our sockets before it creates its own, and then dials a removed socket for
        # ten seconds. So register only what is intact while the same kubelet is there.
        intact = [resource for resource in due if resource.plugin.intact()]
        if kubelet_id(self._kubelet) != kubelet or not intact:
            return
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=_CHANNEL) as channel:
            await either(self._call_all(channel, intact, kubelet), self._replaced(kubelet))
        _log_registered([resource for resource in intact if resource.state.kubelet == kubelet])

    async def _replaced(self, kubelet: KubeletId) -> None:
        await replaced(self._kubelet, kubelet, self._looks)
        self._wake.set()  # inotify may have missed it

    async def _serve(self, resource: _Resource, kubelet: KubeletId) -> None:
        """Have a bound socket that answers. If the kubelet removed the old socket, bind a new one."""
        plugin = resource.plugin
        if plugin.serving and not plugin.intact():
            await plugin.stop()
        if not plugin.serving:
            try:
                await plugin.start(self._folder / socket_name(plugin.resource, self._folder))
            except BindError as error:
                resource.apply(Event.FAILED, kubelet=kubelet, reason=str(error))

    async def _call_all(self, channel: grpc.aio.Channel, due: list[_Resource], kubelet: KubeletId) -> None:
        await asyncio.gather(*(self._call_register(channel, resource, kubelet) for resource in due))

    async def _call_register(
        self, channel: grpc.aio.Channel, resource: _Resource, kubelet: KubeletId
    ) -> None:
        name = resource.plugin.resource
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.Registration/Register"
        )
        resource.stream_lost, resource.dropped, resource.plugin.silent = False, "", False
        resource.comparison.reset()
        try:
            await call(register_request(socket_name(name, self._folder), name), timeout=REGISTER_S)
        except grpc.aio.AioRpcError as error:
            resource.apply(Event.FAILED, kubelet=kubelet, reason=f"{error.code().name}: {error.details()}")
        else:
            resource.apply(Event.ACCEPTED, kubelet=kubelet)
            self._last_warning = ""


class _Resource:
    """One resource: its plugin, and the state of its registration."""

    def __init__(self, plugin: Plugin, stats: RpcStats) -> None:
        self.plugin = plugin
        self.state = Registration()
        self.stream_lost = False
        """The last stream ended since the plugin was registered last."""
        self.dropped = ""
        """Why the kubelet does not count its devices, or whose devices it has stopped to count."""
        self.comparison = Comparison()
        self._stats = stats

    def apply(self, event: Event, *, kubelet: KubeletId | None = None, reason: str = "") -> None:
        """Apply the event to the state. Count and log registrations, failures and losses."""
        before = self.state
        self.state = before.after(event, time.monotonic(), kubelet=kubelet, reason=reason)
        name = self.plugin.resource
        if event is Event.ACCEPTED:
            self._stats.registrations[name, "OK"] += 1
            healthy, count = self.plugin.device_list.counts()
            log.debug("The resource is registered. resource=%s devices=%d healthy=%d", name, count, healthy)
        elif event is Event.FAILED:
            self._stats.registrations[name, "error"] += 1
            if before.reason != reason:
                log.error(
                    "The resource cannot be registered. resource=%s reason=%r again_in_s=%.0f",
                    name,
                    reason,
                    self.state.retry_s,
                )
        elif before.registered and not self.state.registered and reason:
            log.warning("The resource is not registered. resource=%s reason=%r", name, reason)

    def observe(self, counted: frozenset[str], asked_at: float) -> bool:
        """Take the healthy devices that the kubelet counts under this name. Return whether a second look decides."""
        if self.state.taken:  # the stream is silent
            verdict = self.comparison.judge_taken(counted, _healthy(self.plugin.sent))
            if verdict is Verdict.NONE:
                self.dropped = "the other plugin of this name has ended"
            elif verdict is Verdict.OURS:
                self.apply(Event.REGAINED)
                self.plugin.speak()
                log.info("The kubelet counts our devices again. resource=%s", self.plugin.resource)
            return verdict is Verdict.DOUBT
        devices = self.plugin.device_list.devices
        healthy = _healthy(devices)
        known = healthy
        if counted != healthy:
            known = self.plugin.device_list.left.union(*(entry.ids for entry in devices))
        verdict = self.comparison.judge(counted, healthy, known, self.plugin.device_list.revision, asked_at)
        if verdict is Verdict.OTHERS:
            self.plugin.silent = True
            self.comparison.reset()
            self.apply(Event.TAKEN, reason=_taken(counted - known))
        elif verdict is Verdict.NONE:
            self.dropped = "the kubelet has stopped to count its devices"
        return verdict is Verdict.DOUBT

    def spares_another(self, kubelet: KubeletId | None) -> bool:
        """Whether the end of its stream would disconnect another plugin."""
        ended = self.stream_lost or bool(self.dropped)
        return self.state.taken and self.state.kubelet == kubelet and not ended

    def is_held_by(self, kubelet: KubeletId) -> bool:
        """Whether this kubelet has accepted it and has its stream open."""
        accepted = self.state.accepted and self.state.kubelet == kubelet
        return accepted and self.plugin.streams > 0 and not self.stream_lost

    async def close(self, event: Event, reason: str = "") -> None:
        """Stop the server because of ``event``. Return when its streams have ended."""
        self.apply(event, reason=reason)
        await self.plugin.stop()
        self.apply(Event.CLOSED)

    def status(self) -> ResourceStatus:
        healthy, devices = self.plugin.device_list.counts()
        registered, reason = self.state.registered, self.state.reason
        streams, taken = self.plugin.streams, self.state.taken
        return ResourceStatus(self.plugin.resource, registered, reason, healthy, devices, streams, taken)


def _healthy(devices: Iterable[Devices]) -> frozenset[str]:
    return frozenset(id_ for entry in devices if entry.health.allocatable for id_ in entry.ids)


def _log_registered(resources: Sequence[_Resource]) -> None:
    """One line for the resources that the kubelet has accepted together."""
    accepted = [resource for resource in resources if resource.state.accepted]
    if accepted:
        counts = [resource.plugin.device_list.counts() for resource in accepted]
        log.info(
            "The kubelet has accepted resources. resources=%d devices=%d healthy=%d first=%s",
            len(accepted),
            sum(count for _, count in counts),
            sum(healthy for healthy, _ in counts),
            min(resource.plugin.resource for resource in accepted),
        )


def _taken(foreign: frozenset[str]) -> str:
    example = f", for example {min(foreign)}" if foreign else ""
    return (
        f"another device plugin has registered this name, and the kubelet counts its devices{example}: remove that "
        "plugin, or change resourcePrefix here; within a minute after its end this agent registers again"
    )


def _other_folder(folder: Path) -> str:
    """The remedy if the socket is in the folder that every kubelet has, and not in this one."""
    if folder == USUAL or not (USUAL / "kubelet.sock").is_socket():
        return ""
    return f", but {USUAL} has kubelet.sock: --device-plugins-dir {USUAL}"
