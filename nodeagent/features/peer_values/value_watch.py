"""Read the compared values of this node and publish them for its report.

* They are read ``PEERS_FIRST_S`` after the kubelet has the devices, then every ``VALUES_READ_S``. What no fact has is
  read in a thread of its own with a time limit.
* A value that changed is read again after ``CONFIRM_S``, and counts if it is the same then. One that is not known now
  stays as it was: a link that is down has no speed, and that is a fault with a report of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.features.peer_values.host_values import HostValues, read_host
from nodeagent.features.peer_values.value_table import (
    NodeReading,
    RunningAgent,
    Values,
    devices_here,
    model_of,
    node_reading,
    read_values,
    texts_of,
)
from nodeagent.features.seam import AgentCore
from nodeagent.host.sysfs import SysfsError
from nodeagent.kinds.rail_numbers import nic_names

log = logging.getLogger(__name__)

PEERS_FIRST_S, VALUES_READ_S, CONFIRM_S = 60.0, 600.0, 60.0
_READ_S = 10.0
PEER_VALUES = "peers"


class ValueWatch:
    """``agent`` returns what runs now."""

    def __init__(self, core: AgentCore, agent: Callable[[], RunningAgent]) -> None:
        self._core, self._agent = core, agent
        self._calls = BoundedCalls("values of the host", _READ_S)
        self._last: Values = {}
        self._published: dict[str, str] = {}
        self._other: dict[str, str] = {}
        """Values that were read once and differ from the published ones."""

    async def run(self, _node: str | None) -> None:
        """Publish until cancelled."""
        await self._core.settled.wait()
        await asyncio.sleep(PEERS_FIRST_S)
        while True:
            await self.read()
            await asyncio.sleep(CONFIRM_S if self._other else VALUES_READ_S)

    async def read(self) -> None:
        """Read once. Values that changed are published when they are read the same a second time."""
        core = self._core
        rails, snapshot = core.offer.rails, core.inventory.snapshot
        pfs = tuple(one for one in snapshot.functions if one.pci_address in rails and not one.missing)
        try:
            host = await self._calls.run(read_host, core.tree, pfs)
        except (Unanswered, SysfsError) as error:
            log.debug("The values of the host are not read now. reason=%r", str(error))
            host = HostValues()
        reading = node_reading(snapshot, core.samples(), nic_names(rails), host, self._agent())
        if texts := self._settled(self._with_last(reading), model_of(reading)):
            core.inventory.publish(PEER_VALUES, compared=tuple(texts.items()))

    def _with_last(self, reading: NodeReading) -> Values:
        """The values now, and the last ones of what is not known now."""
        here = devices_here(reading)
        now = read_values(reading)
        for name in self._last.keys() | now.keys():
            values = {**self._last.get(name, {}), **now.get(name, {})}
            now[name] = {device: values[device] for device in sorted(values, key=_order) if device in here}
        self._last = now
        return now

    def _settled(self, values: Values, model: str) -> dict[str, str]:
        """The texts to publish; ``_other`` are those that differ for the first time."""
        other = {}
        settled = texts_of(values, model)
        for name, text in [*settled.items()]:
            known = self._published.get(name, text)
            if text not in (known, self._other.get(name)):
                other[name], settled[name] = text, known
        self._published, self._other = settled, other
        return settled


def _order(device: str) -> tuple[int, str]:
    return len(device), device
