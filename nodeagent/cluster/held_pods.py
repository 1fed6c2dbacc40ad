"""Which pod holds a device: the UID behind a name that the kubelet lists.

The podresources API names a pod without its UID, and controllers use names again: the next pod of a name may be on
another node, or here with another device. So a UID counts when three looks agree, in this order:

1. The facts name the pod as the holder of the device.
2. The API server has a running pod of this name on this node that the kubelet has acknowledged (``status.startTime``).
   The kubelet learns of pods in the order of their changes, so it has dropped any earlier pod of the name.
3. podresources, asked after that, lists the name with the device.

A UID stays for as long as the facts name the pod with the device.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from nodeagent.base.backoff import JITTER, Backoff, RateLimit
from nodeagent.facts.model import Holding
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import PODS

_BURST, PER_S = 25, 1.0
"""Of the reads of pods."""
HELD_AGAIN_FIRST_S, _AGAIN_MAX_S = 2.0, 60.0
"""Until the looks are repeated that did not agree: the kubelet acknowledges a pod within a second or two."""
_IDLE_S = 3600.0

ReadHoldings = Callable[[], Awaitable[Iterable[Holding] | None]]
"""Ask the kubelet now; ``None``: it does not answer."""


class HeldDevice(NamedTuple):
    """A device, and the namespace and name of a pod that holds it."""

    namespace: str
    pod: str
    device: str


class _HolderSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _HolderStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    start_time: str | None = None


class _HolderMeta(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None


class HolderPod(msgspec.Struct):
    """The fields of a pod that tell which one it is and whether it runs."""

    metadata: _HolderMeta
    spec: _HolderSpec = msgspec.field(default_factory=_HolderSpec)
    status: _HolderStatus = msgspec.field(default_factory=_HolderStatus)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def ends(self) -> bool:
        """Whether somebody has deleted it."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_ended(self) -> bool:
        """Whether its containers have ended for good: it holds no device any more."""
        return self.status.phase in ("Succeeded", "Failed")


_FOUND = PODS.typed(HolderPod)


async def read_pod(client: ApiClient, namespace: str, name: str) -> HolderPod | None:
    """Return the pod that has this name now, ``None`` if none has. Raises ``ApiError``."""
    try:
        return await client.get(_FOUND, name, namespace=namespace)
    except ApiError as error:
        if error.missing:
            return None
        raise


class HeldPods:
    """``uids`` are those of the pods that hold devices, as far as they are known."""

    def __init__(self, client: ApiClient, node: str, read_holdings: ReadHoldings) -> None:
        self.uids: dict[HeldDevice, str] = {}
        self._client, self._node, self._read_holdings = client, node, read_holdings
        self._rate = RateLimit(_BURST, PER_S)
        self._again: dict[HeldDevice, tuple[Backoff, float]] = {}
        """The wait of each device whose looks did not agree, and when they are repeated."""

    def keep(self, held: Collection[HeldDevice]) -> None:
        """Forget all others: the facts do not name them any more."""
        self.uids = {one: uid for one, uid in self.uids.items() if one in held}
        self._again = {one: wait for one, wait in self._again.items() if one in held}

    def forget(self, one: HeldDevice) -> None:
        """The pod of this UID is gone; another one may have its name."""
        self.uids.pop(one, None)

    async def identify(self, held: Mapping[HeldDevice, Collection[str]]) -> float:
        """Find the UIDs that are not known. Return the seconds until the next call is due. Raises ``ApiError``.

        ``held`` has the IDs of the devices that each pod holds; with none, any device of the pod counts.
        """
        now = time.monotonic()
        due = [one for one in held if one not in self.uids and self._due_at(one, now) <= now]
        pods: dict[tuple[str, str], HolderPod | None] = {}
        for one in due:
            if one[:2] not in pods and self._rate.wait_s(time.monotonic()) == 0:
                self._rate.take(time.monotonic())
                pods[one[:2]] = await read_pod(self._client, one.namespace, one.pod)
        here = {one: pod.uid for one in due if (pod := pods.get(one[:2])) is not None and self._is_here(pod)}
        if here:
            listed = tuple(await self._read_holdings() or ())
            agreed = {one: uid for one, uid in here.items() if _holds(listed, one, held[one])}
            self.uids |= agreed
        now = time.monotonic()
        for one in due:
            if one in self.uids:
                self._again.pop(one, None)
            elif one[:2] in pods:
                backoff, _ = self._again.get(one) or (
                    Backoff(HELD_AGAIN_FIRST_S, _AGAIN_MAX_S, jitter=JITTER),
                    now,
                )
                self._again[one] = backoff, now + backoff.next_s()
        waits = [
            max(self._due_at(one, now) - now, self._rate.wait_s(now)) for one in held if one not in self.uids
        ]
        return min(waits, default=_IDLE_S)

    def _due_at(self, one: HeldDevice, now: float) -> float:
        return self._again[one][1] if one in self._again else now

    def _is_here(self, pod: HolderPod) -> bool:
        acknowledged = pod.status.start_time is not None and not pod.has_ended
        return bool(pod.uid) and pod.spec.node_name == self._node and acknowledged


def _holds(listed: Iterable[Holding], one: HeldDevice, ids: Collection[str]) -> bool:
    return any(
        (holding.namespace, holding.pod) == one[:2]
        and (not ids or not set(ids).isdisjoint(holding.device_ids))
        for holding in listed
    )
