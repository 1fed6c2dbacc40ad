"""What the switches themselves hear over LLDP, asked by SNMP or gNMI: for the controller, not for a node.

The law of this room:

* One switch that does not answer, answers as another or says nonsense fails alone, is named once, and what it
  said last stands. The planner is told after a whole round, so that half of a fabric is never taken for all.
* Only addresses that an operator has named, or that lie in networks he has named, are asked: whoever is asked
  is shown a credential. No credential is ever in a message, a log or a repr.
* What a switch says is bounded before it is kept and escaped before it is shown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nodeagent.fabric.names import full, short
from nodeagent.fabric.reports import shown
from nodeagent.fabric.uplinks import Above, KnownSwitch, SwitchNeighbor, is_same, uplinks
from nodeagent.switches.answers import Reading, SwitchError
from nodeagent.switches.secret import Secret, secrets
from nodeagent.switches.switch_settings import SwitchesSettings

__all__ = ["Asker", "Planned", "SwitchError", "Switches"]

log = logging.getLogger(__name__)

SWITCHES_MAX = 8192
ADDRESSES_MAX = 3
NAMED_MAX = 10
"""So many switches are named in the log for each round; the others are counted."""
GAP_S = 30.0
"""How often one looks, between two rounds, whether other switches have become known."""


class Planned(Protocol):
    """``fabric.Planner``, as far as switches go."""

    def switches(self) -> tuple[KnownSwitch, ...]: ...
    def is_node(self, name: str) -> bool: ...
    def uplinks(self, heard: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None: ...


class Asker(Protocol):
    """One protocol. Raises ``SwitchError``; its deadline is the caller's."""

    async def read(self, address: str, secret: Secret) -> Reading: ...


class Switches:
    """``changed`` is called after the planner has got new uplinks. ``generic_names`` identify no switch."""

    def __init__(
        self,
        settings: SwitchesSettings,
        asker: Asker,
        planned: Planned,
        changed: Callable[[], object],
        generic_names: Iterable[str] = (),
    ) -> None:
        self._settings, self._asker, self._planned, self._changed = settings, asker, planned, changed
        self._networks = tuple(map(ipaddress.ip_network, settings.networks))
        self._addresses = {
            form: entry.address for entry in settings.addresses for form in _forms(entry.switch)
        }
        self._above = Above(
            None if settings.name is None else re.compile(settings.name),
            settings.management_ports,
            frozenset(name.lower() for name in generic_names),
            planned.is_node,
        )
        self._last: dict[str, Reading] = {}
        self._told: dict[str, tuple[str, ...]] | None = None
        self._seen: frozenset[str] = frozenset()
        self.reads: Counter[str] = Counter()
        """By result: ``ok``, ``timeout``, ``refused``, ``unreachable``, ``other-switch``, ``no-lldp`` or ``failed``."""
        self.states: Counter[str] = Counter()
        """Switches by what came of the last round: ``read``, ``silent`` or ``no-address``."""
        self.trouble: dict[str, str] = {}
        self.round_s: float | None = None
        self.rounds = 0

    async def run(self) -> None:
        """Rounds, for ever; one comes early when a switch has become known that was not asked for."""
        while True:
            await self.round()
            left_s = self._settings.interval_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
            while left_s > 0 and not self._unseen():
                await asyncio.sleep(min(GAP_S, left_s))
                left_s -= GAP_S

    def _unseen(self) -> bool:
        return any(known.key not in self._seen for known in self._planned.switches()[:SWITCHES_MAX])

    async def round(self) -> None:
        """Ask everybody once, and tell the planner if it follows something new."""
        began = time.monotonic()
        leaves = {known.key: known for known in self._planned.switches()[:SWITCHES_MAX]}
        self._seen = frozenset(leaves)
        secret = secrets(
            self._settings.credentials
        )  # a Secret's mount is memory: eight small reads block nobody
        asking = _Round(self, secret, self._last)
        await asking.ask(leaves.values())
        ups, above = uplinks(asking.heard(leaves), self._above, leaves.values())
        uppers = {key: known for key, known in above.items() if key not in leaves}
        if self._settings.upwards and uppers:
            await asking.ask(list(uppers.values())[:SWITCHES_MAX])
            ups, _ = uplinks(asking.heard(leaves | uppers), self._above, leaves.values())
        self._last = {key: self._last[key] for key in self._last.keys() & (leaves.keys() | uppers.keys())}
        self._say(asking.trouble)
        self.states = asking.states
        self.round_s = time.monotonic() - began
        self.rounds += 1
        if ups != self._told and (ups or self._told):
            self._told = ups
            self._planned.uplinks(ups, by_key=True)
            log.info("What is above the switches has changed. switches=%d", len(ups))
            self._changed()

    async def read(self, known: KnownSwitch, address: str, secret: Secret) -> Reading:
        """One switch at one address. Raises ``SwitchError``."""
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                reading = await self._asker.read(address, secret)
        except TimeoutError:
            message = f"{address} has not answered within {self._settings.timeout_seconds:g} s"
            raise SwitchError(
                f"{message}: is it reached, and are the credentials right?", "timeout"
            ) from None
        if not (reading.name or reading.chassis or reading.neighbors):
            message = f"{address} answers and knows nothing of LLDP"
            raise SwitchError(f"{message}: has it just started, or is LLDP not to be read there?", "no-lldp")
        if not is_same(known, reading.name, reading.chassis):
            message = f"{address} answers as {shown(reading.name or reading.chassis)}"
            raise SwitchError(f"{message}, which is another switch", "other-switch")
        return reading

    def addresses(self, known: KnownSwitch) -> tuple[str, ...]:
        """Where a switch may be asked: where it is told, or else where it is reported and we may go."""
        for name in (*known.names, known.key):
            for form in _forms(name):
                if (told := self._addresses.get(form)) is not None:
                    return (told,)
        found = []
        for text in known.addresses:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                continue
            if any(address in network for network in self._networks):
                found.append((address.version, int(address), str(address)))
        return tuple(text for _, _, text in sorted(found)[:ADDRESSES_MAX])

    def _say(self, trouble: dict[str, str]) -> None:
        """One line for each transition."""
        fresh = [key for key in sorted(trouble) if key not in self.trouble]
        for key in fresh[:NAMED_MAX]:
            log.warning(
                "A switch cannot be asked what it hears; what it said last stands. switch=%s reason=%r",
                shown(key),
                trouble[key],
            )
        if len(fresh) > NAMED_MAX:
            log.warning("Nor can %d others be asked.", len(fresh) - NAMED_MAX)
        mended = [key for key in self.trouble if key not in trouble and key in self._last]
        if mended:
            log.info("Switches answer again. count=%d first=%s", len(mended), shown(min(mended)))
        self.trouble = trouble


class _Round:
    """The state of one round."""

    def __init__(self, switches: Switches, secret: Secret, last: dict[str, Reading]) -> None:
        self._switches, self._secret, self._last = switches, secret, last
        self._slots = asyncio.Semaphore(switches._settings.parallel)
        self.states: Counter[str] = Counter()
        self.trouble: dict[str, str] = {}

    async def ask(self, known: Iterable[KnownSwitch]) -> None:
        async with asyncio.TaskGroup() as group:
            for one in known:
                group.create_task(self._one(one))

    def heard(self, known: Iterable[str]) -> dict[str, Iterable[SwitchNeighbor]]:
        return {key: self._last[key].neighbors for key in known if key in self._last}

    async def _one(self, known: KnownSwitch) -> None:
        addresses = self._switches.addresses(known)
        if not addresses:
            self.states["no-address"] += 1
            return
        async with self._slots:
            for address in addresses:
                try:
                    self._last[known.key] = await self._switches.read(known, address, self._secret)
                except SwitchError as error:
                    self._switches.reads[error.result] += 1
                    self.trouble[known.key] = str(error)
                    continue
                self._switches.reads["ok"] += 1
                self.states["read"] += 1
                self.trouble.pop(known.key, None)
                return
        self.states["silent"] += 1


def _forms(name: str) -> tuple[str, ...]:
    whole = full(name)
    return (whole, short(whole)) if short(whole) != whole else (whole,)
