"""A ResourceClaim as the API server sends it: the fields that a driver uses.

Users write claims, and any client may write a status. So every text is untrusted.
"""

from __future__ import annotations

import msgspec


class Toleration(msgspec.Struct, frozen=True):
    """A taint that a request tolerates. An empty ``key`` or ``effect`` stands for every one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, key: str, value: str, effect: str) -> bool:
        """Whether it tolerates this taint, as ``ToleratesTaint`` of Kubernetes' resourceclaim package."""
        same = self.key in ("", key) and self.effect in ("", effect)
        return same and (
            self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == value)
        )


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
    annotations: dict[str, str] | None = None


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
        return tuple(it.name for it in self._reserving)

    @property
    def pod_uids(self) -> tuple[str, ...]:
        """In the order of ``pods``."""
        return tuple(it.uid for it in self._reserving)

    @property
    def _reserving(self) -> tuple[Consumer, ...]:
        return tuple(it for it in self.status.reserved_for or () if it.resource == "pods")
