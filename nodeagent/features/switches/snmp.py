"""Read a switch's LLDP-MIB by SNMP v2c or v3, with gufo-snmp (the extra ``snmp``).

A datagram may be lost, so each request is sent up to three times. A walk that does not end is stopped. SNMP agents
do not answer a wrong community, so it looks like an unreachable switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from nodeagent.features.switches import lldp_mib
from nodeagent.features.switches.credentials import SwitchCredentials
from nodeagent.features.switches.lldp_mib import Column, Index, Value
from nodeagent.features.switches.switch_reading import SwitchError, SwitchReading
from nodeagent.features.switches.switch_settings import SnmpSettings

if TYPE_CHECKING:
    from gufo.snmp import User
    from gufo.snmp.aio import SnmpSession

T = TypeVar("T")

SNMP_PORT = 161
_TRIES = 3
ROWS_MAX = 32768
"""In one column: four thousand neighbors with eight addresses each."""
REPETITIONS = 20
"""Rows in one answer: with long names they still fit one datagram of a switch that sends no fragments."""


class SnmpMissingError(Exception):
    """The extra is not installed."""


@dataclass(frozen=True, slots=True)
class SnmpReader:
    """Reads the LLDP-MIB of switches."""

    settings: SnmpSettings = field(default_factory=SnmpSettings)
    port: int = SNMP_PORT
    timeout_s: float = 20.0

    def check(self) -> None:
        """Raises ``SnmpMissingError`` if the package for SNMP is missing."""
        try:
            import gufo.snmp  # noqa: F401, PLC0415 - an extra, loaded on use
        except ImportError as error:
            raise SnmpMissingError(
                f"switches.method is snmp and the package gufo-snmp is missing ({error}): pip install gufo-snmp"
            ) from None

    async def read(self, address: str, credentials: SwitchCredentials) -> SwitchReading:
        from gufo.snmp import SnmpAuthError, SnmpError  # noqa: PLC0415 - as above

        until = asyncio.get_running_loop().time() + self.timeout_s
        try:
            session = self._session(address, credentials)
            await _retried(session.refresh)
            own = await _retried(lambda: session.get_many(lldp_mib.OWN))
            columns = {oid: await _column(session, oid, until) for oid in lldp_mib.COLUMNS}
        except TimeoutError:
            raise SwitchError(
                f"{address} port {self.port} does not answer SNMP {self.settings.version}: check that it is "
                "reachable, that it accepts requests from this address, and the credentials",
                "timeout",
            ) from None
        except SnmpAuthError:
            raise SwitchError(
                f"{address} refuses the user name or the authentication of SNMP v3", "refused"
            ) from None
        except (SnmpError, OSError, ValueError) as error:
            raise SwitchError(f"{address} cannot be read by SNMP: {type(error).__name__}") from error
        return lldp_mib.reading_of(own, columns)

    def _session(self, address: str, credentials: SwitchCredentials) -> SnmpSession:
        from gufo.snmp import SnmpVersion  # noqa: PLC0415 - as above
        from gufo.snmp.aio import SnmpSession  # noqa: PLC0415 - as above

        # Each try gets a share of the caller's time; the caller limits the sum.
        timeout_s = max(0.2, self.timeout_s / (2 * _TRIES))
        if self.settings.version == "v2c":
            return SnmpSession(
                address,
                self.port,
                community=credentials.need("community"),
                version=SnmpVersion.v2c,
                timeout=timeout_s,
            )
        return SnmpSession(
            address, self.port, user=self._user(credentials), version=SnmpVersion.v3, timeout=timeout_s
        )

    def _user(self, credentials: SwitchCredentials) -> User:
        from gufo import snmp  # noqa: PLC0415 - as above

        auths = {
            "md5": snmp.Md5Key,
            "sha1": snmp.Sha1Key,
            "sha224": snmp.Sha224Key,
            "sha256": snmp.Sha256Key,
            "sha384": snmp.Sha384Key,
            "sha512": snmp.Sha512Key,
        }
        privacies = {
            "des": snmp.DesKey,
            "aes128": snmp.Aes128Key,
            "aes192": snmp.Aes192Key,
            "aes256": snmp.Aes256Key,
        }
        name, auth, privacy = (
            credentials.need("username"),
            credentials.text("authPassword"),
            credentials.text("privPassword"),
        )
        for key, value in (("authPassword", auth), ("privPassword", privacy)):
            if value is not None and len(value) < 8:
                raise SwitchError(
                    f"{credentials.folder}/{key} has less than the 8 characters that SNMP v3 needs", "refused"
                )
        if privacy is not None and auth is None:
            raise SwitchError(f"{credentials.folder}/privPassword needs authPassword", "refused")
        return snmp.User(
            name,
            auth_key=None if auth is None else auths[self.settings.auth](auth.encode()),
            priv_key=None if privacy is None else privacies[self.settings.privacy](privacy.encode()),
        )


async def _column(session: SnmpSession, column: str, until: float) -> Column:
    """A column of a table, by index. This function checks the caller's deadline too: gufo-snmp uses
    ``asyncio.wait_for``, which may swallow a cancellation on Python 3.11."""
    values: dict[Index, Value] = {}
    rows = session.getbulk(column, REPETITIONS)
    while True:
        try:
            oid, value = await _retried(rows.__anext__)
        except StopAsyncIteration:
            return values
        index = lldp_mib.index_of(column, oid)
        if index is None:
            return values
        if index in values or len(values) == ROWS_MAX:
            raise SwitchError(
                f"the table {column} does not end: it repeats rows, or has more than {ROWS_MAX}"
            )
        values[index] = value
        if asyncio.get_running_loop().time() > until:
            raise TimeoutError


async def _retried(send: Callable[[], Awaitable[T]]) -> T:
    """Send a request up to ``_TRIES`` times until an answer comes."""
    for _ in range(_TRIES - 1):
        try:
            return await send()
        except TimeoutError:
            continue
    return await send()
