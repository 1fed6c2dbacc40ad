"""A stand-in for Volcano's scheduler with the plugin deviceshare, written from its source.

volcano, pkg/scheduler/api/devices/nvidia/vgpu (``decodeNodeDevices``, ``resourcereqs``,
``checkNodeGPUSharingPredicateAndScore``, ``Allocate``) and pkg/scheduler/plugins/util/nodelock. Its unpleasant parts
are copied. It reads the health of a GPU and does not use it. It goes through the GPUs from the last to the first, and
counts a pod by its annotations until the pod is gone. A lock whose time it cannot read is never released.

Compared with the source of Volcano ed72c7c8 (2026-08-20) alone, on 2026-11-24.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from nodeagent_lab.sim.apiserver import ApiServer

Json = dict[str, Any]
REGISTER, LOCK = "volcano.sh/node-vgpu-register", "hamivgpu"


class Unschedulable(Exception):  # noqa: N818 - the scheduler's word
    """The pod stays Pending; the message is the scheduler's reason."""


@dataclass
class Card:
    uuid: str
    number: int
    memory: int
    kind: str
    used: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Scheduler:
    """``locks``: deviceshare.NodeLockEnable. ``patches``: as up to Volcano 1.15, patch the pod before the Binding."""

    server: ApiServer
    locks: bool = True
    patches: bool = False
    now: float = field(default_factory=time.time)

    def node(self, name: str) -> Json:
        found = self.server.find("nodes", name)
        assert found is not None
        return found

    def annotate(self, plural: str, name: str, namespace: str | None, **changes: str | None) -> None:
        found = self.server.find(plural, name, namespace)
        assert found is not None
        notes = found["metadata"].setdefault("annotations", {})
        for key, value in changes.items():
            if value is None:
                notes.pop(key, None)
            else:
                notes[key] = value
        self.server.put(found)

    def cards(self, node: str) -> list[Card]:
        notes = self.node(node)["metadata"].get("annotations") or {}
        cards = []
        for text in notes.get(REGISTER, "").split(":"):
            if "," in text:
                uuid, number, memory, kind, _health, _mode = text.split(",")
                cards.append(Card(uuid, int(number), int(memory), kind))
        for pod in self.server.objects("pods"):
            had = pod["metadata"].get("annotations") or {}
            if had.get("volcano.sh/vgpu-node") == node and pod.get("status", {}).get("phase") not in (
                "Succeeded",
                "Failed",
            ):
                for container in had.get("volcano.sh/vgpu-ids-new", "").split(";"):
                    for device in filter(None, container.split(":")):
                        uuid, _, memory, cores = device.split(",")
                        for card in cards:
                            if uuid == card.uuid:
                                card.used.append((int(memory), int(cores)))
        return cards

    def lock(self, node: str) -> None:
        held = (self.node(node)["metadata"].get("annotations") or {}).get(LOCK)
        if held is not None:
            if self.now - datetime.fromisoformat(held).timestamp() <= 300:
                raise Unschedulable(f"node {node} has been locked within 5 minutes")
            self.annotate("nodes", node, None, **{LOCK: None})
        at = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.annotate("nodes", node, None, **{LOCK: at})

    def bind(self, pod: str, node: str, *, namespace: str = "default", crash: bool = False) -> None:
        """Choose the GPUs, lock the Node, annotate the pod and bind it. ``crash``: end after the lock."""
        found = self.server.find("pods", pod, namespace)
        assert found is not None
        cards, chosen = self.cards(node), []
        for container in found["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            if "volcano.sh/vgpu-number" in limits or "volcano.sh/vgpu-memory" in limits:
                chosen.append(
                    self.fit(cards, {key: int(parse_quantity(value)) for key, value in limits.items()})
                )
        if self.locks:
            self.lock(node)
        if crash:
            return
        text = ";".join(
            "".join(f"{uuid},NVIDIA,{mem},{cores}:" for uuid, mem, cores in one) for one in chosen
        )
        at = str(int(self.now))
        choice = {
            "volcano.sh/vgpu-node": node,
            "volcano.sh/vgpu-time": at,
            "volcano.sh/vgpu-ids-new": text,
            "volcano.sh/devices-to-allocate": text,
            "volcano.sh/bind-phase": "allocating",
            "volcano.sh/bind-time": at,
        }
        if self.patches:
            self.annotate("pods", pod, namespace, **choice)
        found = self.server.find("pods", pod, namespace)
        assert found is not None
        found["metadata"]["annotations"] = (found["metadata"].get("annotations") or {}) | choice
        found["spec"]["nodeName"] = node
        self.server.put(found)

    @staticmethod
    def fit(cards: list[Card], limits: dict[str, int]) -> list[tuple[str, int, int]]:
        count, cores = limits.get("volcano.sh/vgpu-number", 1), limits.get("volcano.sh/vgpu-cores", 0)
        wanted, percent = (
            limits.get("volcano.sh/vgpu-memory", 0),
            limits.get("volcano.sh/vgpu-memory-percentage", 101),
        )
        if percent == 101 and wanted == 0:
            percent = 100
        found: list[tuple[str, int, int]] = []
        for card in reversed(cards):
            if len(found) == count:
                break
            memory = wanted if percent == 101 else int(float(card.memory) * float(percent) / 100.0)
            used = sum(size for size, _ in card.used), sum(part for _, part in card.used)
            if card.number <= len(card.used) or card.memory - used[0] < memory or used[1] + cores > 100:
                continue
            card.used.append((memory, cores))
            found.append((card.uuid, memory, cores))
        if len(found) < count:
            raise Unschedulable("not enough gpu fitted on this node")
        return found
