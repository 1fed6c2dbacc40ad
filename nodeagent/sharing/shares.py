"""The shares of GPU memory that containers hold, by the level that keeps them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from nodeagent.facts.allocation import hardware_of
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.volcano_vgpus import MEMORY, granted_shares

READ_BACK_ONLY = "env"
"""The level of claims where that of a device plugin is ``nvml-limits``: the agent sets no limit for a claim."""
HARD_LEVELS = ("env", "nvml-limits")
"""The levels that promise a hard limit."""


class Share(NamedTuple):
    """The memory of one GPU that one container holds. ``level``: what keeps it within them."""

    namespace: str
    pod: str
    container: str
    uuid: str
    size_bytes: int
    level: str = "nvml-limits"


def shares_of(kinds: Iterable[DeviceKind], snapshot: Snapshot, *levels: str) -> tuple[Share, ...] | None:
    """Return the shares of the resources with these levels, sorted; ``None`` before podresources has answered.

    ``kinds`` has those of claims too. The agent sets no limit for a claim or for a choice by Volcano: it reads back.
    """
    if snapshot.holdings is None:
        return None
    # A limit is set before it can be read back.
    tried = structs.replace(snapshot, limits_kept=True)
    sizes = {
        kind.resource: (kind.device_mib << 20, level)
        for kind in kinds
        if kind.device_mib is not None and (level := kind.level(tried)) in levels
    }
    held: Counter[tuple[str, str, str, str, str]] = Counter()
    slice_bytes, level = sizes.pop(MEMORY, (0, None))  # the IDs of its devices name no GPU
    for choice in granted_shares(snapshot) if level is not None else ():
        if choice.container:
            container = choice.namespace, choice.pod, choice.container
            held[*container, choice.uuid, level or ""] += choice.slices * slice_bytes
    for share in snapshot.claim_shares:
        if share.resource in sizes:
            held[share.namespace, share.pod, share.container, share.uuid, READ_BACK_ONLY] += share.size_bytes
    for holding in snapshot.holdings:
        if not holding.claim and (found := sizes.get(holding.resource)) is not None:
            container = holding.namespace, holding.pod, holding.container
            for id_ in holding.device_ids:
                if (uuid := hardware_of(id_)) is not None:  # another plugin may have had this name
                    held[*container, uuid, found[1] or ""] += found[0]
    return tuple(Share(*key[:4], size, key[4]) for key, size in sorted(held.items()))
