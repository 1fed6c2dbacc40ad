"""A ResourceClaim as the API server sends it: the fields that a driver uses, and quantities as numbers.

Users write claims, and any client may write a status. So every text is untrusted.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))(?:e([+-]?[0-9]{1,2})|([a-zA-Z]{0,2}))", re.I
)
_SUFFIXES = {
    **{"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal("1e3")},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
"""The suffixes of a Kubernetes quantity (k8s.io/apimachinery/pkg/api/resource)."""


class Toleration(msgspec.Struct, frozen=True):
    """A taint that a request tolerates. An empty ``key`` or ``effect`` stands for every one."""

    key: str = ""
    effect: str = ""


class DeviceResult(msgspec.Struct, frozen=True, rename="camel"):
    """One allocated device. ``request`` is ``<request>`` or ``<request>/<sub-request>``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int | float] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class OpaqueParameters(msgspec.Struct, frozen=True):
    driver: str = ""


class ClaimConfiguration(msgspec.Struct, frozen=True):
    """Parameters for a driver. The agent has none, so it does not decode them."""

    opaque: OpaqueParameters | None = None


class DeviceAllocation(msgspec.Struct, frozen=True):
    results: tuple[DeviceResult, ...] | None = None
    config: tuple[ClaimConfiguration, ...] | None = None


class ClaimAllocation(msgspec.Struct, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()


class Consumer(msgspec.Struct, frozen=True):
    """A pod that may use the claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(msgspec.Struct, frozen=True, rename="camel"):
    allocation: ClaimAllocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ClaimMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class ResourceClaim(msgspec.Struct, frozen=True):
    metadata: ClaimMetadata = ClaimMetadata()
    status: ClaimStatus = ClaimStatus()

    def results_of(self, driver: str) -> tuple[DeviceResult, ...]:
        """Return the devices of one driver; a claim may have devices of several."""
        allocation = self.status.allocation
        results = () if allocation is None else allocation.devices.results or ()
        return tuple(result for result in results if result.driver == driver)

    def has_parameters_for(self, driver: str) -> bool:
        allocation = self.status.allocation
        entries = () if allocation is None else allocation.devices.config or ()
        return any(entry.opaque is not None and entry.opaque.driver == driver for entry in entries)

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(it.name for it in self.status.reserved_for or () if it.resource == "pods")


def quantity(text: str | float) -> Decimal | None:
    """Return the number of a Kubernetes quantity; ``None`` if it is none.

    >>> [int(quantity(text)) for text in ("40Gi", "1500m", "2e3", "0.5Ki", 3)]
    [42949672960, 1, 2000, 512, 3]
    >>> quantity("forty")
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    scale = _SUFFIXES.get(suffix)
    return None if scale is None else Decimal(number) * scale
