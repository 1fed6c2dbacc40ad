"""The shares of GPU memory that containers hold, by the level that keeps them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind


class Share(NamedTuple):
    """The memory of one GPU that one container holds."""

    namespace: str
    pod: str
    container: str
    uuid: str
    size_bytes: int


def shares_of(kinds: Iterable[DeviceKind], snapshot: Snapshot, level: str) -> tuple[Share, ...] | None:
    """Return the shares of the resources with this level, sorted; ``None`` before podresources has answered."""
    if snapshot.holdings is None:
        return None
    # A limit is set before it can be read back.
    tried = structs.replace(snapshot, limits_kept=True)
    sizes = {
        kind.resource: kind.device_mib << 20
        for kind in kinds
        if kind.device_mib is not None and kind.level(tried) == level
    }
    held: Counter[tuple[str, str, str, str]] = Counter()
    for holding in snapshot.holdings:
        if (size := sizes.get(holding.resource)) is not None:
            for id_ in holding.device_ids:
                held[holding.namespace, holding.pod, holding.container, id_.partition("::")[0]] += size
    return tuple(Share(*key, size) for key, size in sorted(held.items()))
