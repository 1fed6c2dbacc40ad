"""SNMP v2c and v3: a switch's LLDP-MIB, by gufo-snmp (the extra ``snmp``).

The law of this file: a datagram may be lost, so each request is sent up to three times; a walk that does not
end is ended here. A wrong community is met with silence by every agent, and cannot be told from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from nodeagent.switches import lldp_mib
from nodeagent.switches.answers import Reading, SwitchError
from nodeagent.switches.lldp_mib import Column, Index, Value
from nodeagent.switches.secret import Secret
from nodeagent.switches.switch_settings import SnmpSettings

if TYPE_CHECKING:
    from gufo.snmp import User
    from gufo.snmp.aio import SnmpSession

T = TypeVar("T")

PORT = 161
TRIES = 3
ROWS_MAX = 32768
"""In one column: four thousand neighbors with eight addresses each."""
REPETITIONS = 20
"""Rows in one answer: long names of all of them still fit one datagram of a switch that sends no fragments."""


class MissingError(Exception):
    """The extra is not installed."""


@dataclass(frozen=True, slots=True)
class Snmp:
    """Reads the LLDP-MIB of one switch after another."""

    settings: SnmpSettings = field(default_factory=SnmpSettings)
    port: int = PORT
    timeout_s: float = 20.0

    def check(self) -> None:
        """Raises ``MissingError`` where SNMP cannot be spoken at all."""
        try:
            import gufo.snmp  # noqa: F401, PLC0415 - an extra, loaded where it is used
        except ImportError as error:
            raise MissingError(
                f"switches.method is snmp and the package gufo-snmp is missing ({error}): pip install nodeagent[snmp]"
            ) from None

    async def read(self, address: str, secret: Secret) -> Reading:
        from gufo.snmp import SnmpAuthError, SnmpError  # noqa: PLC0415 - as above

        until = asyncio.get_running_loop().time() + self.timeout_s
        try:
            session = self._session(address, secret)
            await _patient(session.refresh)
            own = await _patient(lambda: session.get_many(lldp_mib.OWN))
            columns = {oid: await _column(session, oid, until) for oid in lldp_mib.COLUMNS}
        except TimeoutError:
            raise SwitchError(
                f"{address} port {self.port} does not answer SNMP {self.settings.version}: is it reached, may this "
                "address ask, and are the credentials right?",
                "timeout",
            ) from None
        except SnmpAuthError:
            raise SwitchError(
                f"{address} refuses the user name or the authentication of SNMP v3", "refused"
            ) from None
        except (SnmpError, OSError, ValueError) as error:
            raise SwitchError(f"{address} cannot be read by SNMP: {type(error).__name__}") from error
        return lldp_mib.reading(own, columns)

    def _session(self, address: str, secret: Secret) -> SnmpSession:
        from gufo.snmp import SnmpVersion  # noqa: PLC0415 - as above
        from gufo.snmp.aio import SnmpSession  # noqa: PLC0415 - as above

        # Of the caller's time each try has a share; the caller ends what takes longer in sum.
        timeout_s = max(0.2, self.timeout_s / (2 * TRIES))
        if self.settings.version == "v2c":
            return SnmpSession(
                address,
                self.port,
                community=secret.need("community"),
                version=SnmpVersion.v2c,
                timeout=timeout_s,
            )
        return SnmpSession(
            address, self.port, user=self._user(secret), version=SnmpVersion.v3, timeout=timeout_s
        )

    def _user(self, secret: Secret) -> User:
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
            secret.need("username"),
            secret.text("authPassword"),
            secret.text("privPassword"),
        )
        for key, value in (("authPassword", auth), ("privPassword", privacy)):
            if value is not None and len(value) < 8:
                raise SwitchError(
                    f"{secret.folder}/{key} has less than the 8 characters of SNMP v3", "refused"
                )
        if privacy is not None and auth is None:
            raise SwitchError(f"{secret.folder}/privPassword is of no use without authPassword", "refused")
        return snmp.User(
            name,
            auth_key=None if auth is None else auths[self.settings.auth](auth.encode()),
            priv_key=None if privacy is None else privacies[self.settings.privacy](privacy.encode()),
        )


async def _column(session: SnmpSession, column: str, until: float) -> Column:
    """A column of a table, by index. The caller's deadline is kept here too: gufo-snmp waits by
    ``asyncio.wait_for``, which may swallow a cancellation on Python 3.11."""
    found: dict[Index, Value] = {}
    rows = session.getbulk(column, REPETITIONS)
    while True:
        try:
            oid, value = await _patient(rows.__anext__)
        except StopAsyncIteration:
            return found
        index = lldp_mib.index_of(column, oid)
        if index is None:
            return found
        if index in found or len(found) == ROWS_MAX:
            raise SwitchError(
                f"the table {column} has no end: it repeats itself, or has more than {ROWS_MAX} rows"
            )
        found[index] = value
        if asyncio.get_running_loop().time() > until:
            raise TimeoutError


async def _patient(ask: Callable[[], Awaitable[T]]) -> T:
    """One request, sent again when no answer comes."""
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except TimeoutError:
            continue
    return await ask()
