"""Poll the LLDP neighbors of the switches by SNMP and pass the uplinks to the planner.

* A switch fails alone if it does not answer, answers as another switch or sends malformed data. It is logged once,
  and its last reading stays. The planner gets the uplinks after a complete round, never those of half a fabric.
* Only configured addresses, and reported addresses in configured networks, are polled, because each request carries
  a credential. No message, log or repr contains a credential.
* Data of a switch is bounded before it is kept and escaped before it is printed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nodeagent.base.backoff import jittered
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.fabric.reports import shown
from nodeagent.fabric.switch_keys import full_key, short
from nodeagent.fabric.uplinks import KnownSwitch, SwitchNeighbor, UplinkRule, find_uplinks, is_same
from nodeagent.features.switches.credentials import SwitchCredentials, read_credentials
from nodeagent.features.switches.switch_reading import SwitchError, SwitchReading
from nodeagent.features.switches.switch_settings import SwitchesSettings

__all__ = ["SwitchError", "SwitchPoller", "SwitchReader", "UplinkPlanner"]

log = logging.getLogger(__name__)

SECRET_S = 2.0
"""For the files of a mounted Secret, which are in memory."""

SWITCHES_MAX = 8192
ADDRESSES_MAX = 3
NAMED_MAX = 10
"""Failed switches that the log names in each round; the others are counted."""
_CHECK_S = 30.0
"""The interval of checks, between two rounds, for newly known switches."""


class UplinkPlanner(Protocol):
    """The part of ``fabric.Planner`` that concerns switches."""

    def switches(self) -> tuple[KnownSwitch, ...]: ...
    def is_node(self, name: str) -> bool: ...
    def uplinks(self, uplinks: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None: ...


class SwitchReader(Protocol):
    """Reads by one protocol. Raises ``SwitchError``; the caller sets the deadline."""

    async def read(self, address: str, credentials: SwitchCredentials) -> SwitchReading: ...


class SwitchPoller:
    """``changed`` is called after the planner has new uplinks. ``generic_names`` identify no switch."""

    def __init__(
        self,
        settings: SwitchesSettings,
        reader: SwitchReader,
        planner: UplinkPlanner,
        changed: Callable[[], object],
        generic_names: Iterable[str] = (),
    ) -> None:
        self._settings, self._reader, self._planner, self._changed = settings, reader, planner, changed
        self._networks = tuple(map(ipaddress.ip_network, settings.networks))
        self._addresses = {
            form: entry.address for entry in settings.addresses for form in _forms(entry.switch)
        }
        self._above = UplinkRule(
            None if settings.name is None else re.compile(settings.name),
            settings.management_ports,
            frozenset(name.lower() for name in generic_names),
            planner.is_node,
        )
        self._last: dict[str, SwitchReading] = {}
        self._secret = BoundedCalls("switch credentials", SECRET_S)
        self._uplinks: dict[str, tuple[str, ...]] | None = None
        self._polled: frozenset[str] = frozenset()
        self.reads: Counter[str] = Counter()
        """By result: ``ok``, ``no-neighbors``, ``timeout``, ``refused``, ``other-switch``, ``no-lldp`` or
        ``failed``."""
        self.states: Counter[str] = Counter()
        """Switches by the result of the last round: ``read``, ``silent`` or ``no-address``."""
        self.errors: dict[str, str] = {}
        self.round_s: float | None = None
        self.rounds = 0

    async def run(self) -> None:
        """Poll in rounds until cancelled. A round starts early when a new switch becomes known."""
        while True:
            await self.poll_once()
            left_s = jittered(self._settings.interval_seconds, 0.9, 1.1)
            while left_s > 0 and not self._has_new_switch():
                await asyncio.sleep(min(_CHECK_S, left_s))
                left_s -= _CHECK_S

    def _has_new_switch(self) -> bool:
        return any(known.key not in self._polled for known in self._planner.switches()[:SWITCHES_MAX])

    async def poll_once(self) -> None:
        """Read all switches once, and pass changed uplinks to the planner."""
        started = time.monotonic()
        leaves = {known.key: known for known in self._planner.switches()[:SWITCHES_MAX]}
        self._polled = frozenset(leaves)
        credentials = await self._secret.run(read_credentials, self._settings.credentials)
        poll_round = _Round(self, credentials, self._last)
        await poll_round.read_all(leaves.values())
        ups, above = find_uplinks(poll_round.neighbors(leaves), self._above, leaves.values())
        uppers = {key: known for key, known in above.items() if key not in leaves}
        if self._settings.upwards and uppers:
            await poll_round.read_all(list(uppers.values())[:SWITCHES_MAX])
            ups, _ = find_uplinks(poll_round.neighbors(leaves | uppers), self._above, leaves.values())
        self._last = {key: self._last[key] for key in self._last.keys() & (leaves.keys() | uppers.keys())}
        self._log_changes(poll_round.errors)
        self.states = poll_round.states
        self.round_s = time.monotonic() - started
        self.rounds += 1
        if ups != self._uplinks and (ups or self._uplinks):
            self._uplinks = ups
            self._planner.uplinks(ups, by_key=True)
            log.info("Uplinks of the switches changed. switches=%d", len(ups))
            self._changed()

    async def read_switch(
        self, known: KnownSwitch, address: str, credentials: SwitchCredentials
    ) -> SwitchReading:
        """Read one switch at one address. Raises ``SwitchError``."""
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                reading = await self._reader.read(address, credentials)
        except TimeoutError:
            message = f"{address} did not answer within {self._settings.timeout_seconds:g} s"
            raise SwitchError(
                f"{message}: check that it is reachable, and the credentials", "timeout"
            ) from None
        if not (reading.name or reading.chassis or reading.neighbors):
            message = f"{address} answers without LLDP data"
            raise SwitchError(
                f"{message}: it may have just started, or it does not allow LLDP to be read", "no-lldp"
            )
        if not is_same(known, reading.name, reading.chassis):
            message = f"{address} answers as {shown(reading.name or reading.chassis)}"
            raise SwitchError(f"{message}, which is another switch", "other-switch")
        return reading

    def addresses(self, known: KnownSwitch) -> tuple[str, ...]:
        """The addresses to poll: the configured one, else those reported in the configured networks."""
        for name in (*known.names, known.key):
            for form in _forms(name):
                if (configured := self._addresses.get(form)) is not None:
                    return (configured,)
        allowed = []
        for text in known.addresses:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                continue
            if any(address in network for network in self._networks):
                allowed.append((address.version, int(address), str(address)))
        return tuple(text for _, _, text in sorted(allowed)[:ADDRESSES_MAX])

    def _log_changes(self, errors: dict[str, str]) -> None:
        """Log one line for each transition."""
        failed = [key for key in sorted(errors) if key not in self.errors]
        for key in failed[:NAMED_MAX]:
            log.warning(
                "Cannot read the LLDP neighbors of a switch; its last reading stays. switch=%s reason=%r",
                shown(key),
                errors[key],
            )
        if len(failed) > NAMED_MAX:
            log.warning("Cannot read %d more switches.", len(failed) - NAMED_MAX)
        recovered = [key for key in self.errors if key not in errors and key in self._last]
        if recovered:
            log.info("Switches answer again. count=%d first=%s", len(recovered), shown(min(recovered)))
        self.errors = errors


class _Round:
    """The state of one round."""

    def __init__(
        self, poller: SwitchPoller, credentials: SwitchCredentials, last: dict[str, SwitchReading]
    ) -> None:
        self._poller, self._credentials, self._last = poller, credentials, last
        self._slots = asyncio.Semaphore(poller._settings.parallel)
        self.states: Counter[str] = Counter()
        self.errors: dict[str, str] = {}

    async def read_all(self, known: Iterable[KnownSwitch]) -> None:
        async with asyncio.TaskGroup() as group:
            for switch in known:
                group.create_task(self._read_one(switch))

    def neighbors(self, known: Iterable[str]) -> dict[str, Iterable[SwitchNeighbor]]:
        return {key: self._last[key].neighbors for key in known if key in self._last}

    async def _read_one(self, known: KnownSwitch) -> None:
        addresses = self._poller.addresses(known)
        if not addresses:
            self.states["no-address"] += 1
            return
        async with self._slots:
            for address in addresses:
                try:
                    reading = await self._poller.read_switch(known, address, self._credentials)
                except SwitchError as error:
                    self._poller.reads[error.result] += 1
                    self.errors[known.key] = str(error)
                    continue
                self.states["read"] += 1
                self._take(known.key, address, reading)
                return
        self.states["silent"] += 1

    def _take(self, key: str, address: str, reading: SwitchReading) -> None:
        """Keep a reading. Without neighbors it replaces none that has some: others receive frames of this switch."""
        if reading.neighbors:
            self._poller.reads["ok"] += 1
            self._last[key] = reading
            self.errors.pop(key, None)
        else:
            self._poller.reads["no-neighbors"] += 1
            self._last.setdefault(key, reading)
            self.errors[key] = (
                f"{address} reports no LLDP neighbors, though others receive its frames: check that it receives LLDP, "
                "and that its server allows the neighbors to be read; without switches above it this is not a fault"
            )


def _forms(name: str) -> tuple[str, ...]:
    whole = full_key(name)
    return (whole, short(whole)) if short(whole) != whole else (whole,)
