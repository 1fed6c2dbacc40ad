"""A stand-in for the part of the scheduler that allocates ResourceClaims: depth-first, first fit, one node at a time.

It behaves like Kubernetes 1.36 where a user sees it. Pools and slices are searched by name, devices as listed. Only
complete pools of the highest generation count. Taints, tolerations, consumable capacity with its policy,
``matchAttribute`` and ``distinctAttribute`` are applied. Equal devices are tried one by one, so a request that cannot
be met costs all combinations of those before it. The differences:

* selectors are conjunctions of comparisons, as in the shipped classes; another expression is an error;
* ``firstAvailable``, counters, binding conditions and node selectors are errors;
* ``allocationMode`` ``All`` takes the devices that match, as far as they have room for the request, as Kubernetes does;
  that a pool is being updated is no error;
* ``distinctAttribute`` compares all devices; Kubernetes 1.36.2 compares only the latest within one request.

Compared with the scheduler of Kubernetes 1.36.2: by its source (dynamic-resource-allocation/structured), and by hand
with the real one for the shipped classes until 2026-11-24.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from nodeagent_lab.sim.apiserver.resource_slices import canonical, quantity

Json = dict[str, Any]

STEPS_MAX = 200_000
"""The real search ends after 10 s on each node."""

_TERM = re.compile(
    r"""(?:(?P<driver>device\.driver)|"(?P<key>\w+)"\s+in\s+device\.attributes\["(?P<within>[^"]+)"\]
    |device\.attributes\["(?P<domain>[^"]+)"\]\.(?P<name>\w+))\s*(?:==\s*(?:"(?P<text>[^"]*)"|(?P<number>-?\d+)
    |(?P<truth>true|false)))?""",
    re.X,
)


class AllocationError(Exception):
    """The claim can be met nowhere, or the search failed. The message is that of an event of the pod."""


@dataclass(frozen=True)
class PoolDevice:
    """A device of a complete pool."""

    driver: str
    pool: str
    body: Json

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.body["name"]

    def attribute(self, name: str) -> Any:
        """The value of a fully qualified attribute, or ``None``."""
        attributes = self.body.get("attributes") or {}
        domain, _, short = name.rpartition("/")
        value = attributes.get(name, attributes.get(short) if domain == self.driver else None)
        return next(iter(value.values())) if value else None

    def has(self, domain: str, name: str) -> bool:
        return self.attribute(f"{domain}/{name}") is not None


@dataclass
class TakenCapacity:
    """The devices that are allocated, and the capacity that claims consume of each."""

    whole: set[tuple[str, str, str]] = field(default_factory=set)
    consumed: dict[tuple[str, str, str], dict[str, Fraction]] = field(default_factory=dict)

    def add(self, key: tuple[str, str, str], amounts: dict[str, Fraction] | None, sign: int = 1) -> None:
        if amounts is None:
            (self.whole.add if sign > 0 else self.whole.discard)(key)
            return
        held = self.consumed.setdefault(key, {})
        for name, amount in amounts.items():
            held[name] = held.get(name, Fraction(0)) + sign * amount


def allocate(
    claim: Json,
    slices: Sequence[Json],
    classes: Sequence[Json],
    claims: Sequence[Json],
    steps_max: int = STEPS_MAX,
) -> tuple[str, Json]:
    """The node and the allocation (``status.allocation``) for a claim, beside the allocated ``claims``.

    Raises ``AllocationError``.
    """
    taken = _taken(claims)
    requests = _requests(claim, {obj["metadata"]["name"]: obj for obj in classes})
    constraints = (claim["spec"].get("devices") or {}).get("constraints") or []
    nodes = sorted({obj["spec"]["nodeName"] for obj in slices})
    for node in nodes:
        devices = list(_devices([obj for obj in slices if obj["spec"]["nodeName"] == node]))
        search = _Search(requests, constraints, devices, taken, steps_max)
        if (results := search.results()) is not None:
            return node, {"devices": {"results": results}, "nodeSelector": _selector(node)}
    raise AllocationError(f"0/{len(nodes)} nodes are available: {len(nodes)} cannot allocate all claims")


@dataclass(frozen=True)
class _DeviceRequest:
    name: str
    driver_expressions: tuple[str, ...]
    amounts: dict[str, Fraction]
    tolerations: tuple[Json, ...]
    count: int | None
    """``None``: all devices."""
    admin: bool = False


def _requests(claim: Json, classes: dict[str, Json]) -> list[_DeviceRequest]:
    found = []
    for request in claim["spec"]["devices"]["requests"]:
        exactly = request.get("exactly")
        if exactly is None:
            raise AllocationError(f"request {request['name']}: the stand-in allocates exact requests only")
        device_class = classes.get(exactly["deviceClassName"])
        if device_class is None:
            raise AllocationError(f"device class {exactly['deviceClassName']} does not exist")
        selectors = [*(device_class["spec"].get("selectors") or ()), *(exactly.get("selectors") or ())]
        amounts = {
            name: quantity(amount) or Fraction(0)
            for name, amount in ((exactly.get("capacity") or {}).get("requests") or {}).items()
        }
        found.append(
            _DeviceRequest(
                request["name"],
                tuple(selector["cel"]["expression"] for selector in selectors),
                amounts,
                tuple(exactly.get("tolerations") or ()),
                None if exactly.get("allocationMode") == "All" else exactly.get("count", 1),
                bool(exactly.get("adminAccess")),
            )
        )
    return found


class _Search:
    def __init__(
        self,
        requests: list[_DeviceRequest],
        constraints: list[Json],
        devices: list[PoolDevice],
        taken: TakenCapacity,
        steps_max: int,
    ) -> None:
        self._constraints, self._devices = constraints, devices
        self._taken, self._steps_left = taken, steps_max
        counts = (self._all(request) if request.count is None else request.count for request in requests)
        self._requests = [
            request for request, count in zip(requests, counts, strict=True) for _ in range(count)
        ]
        self._lacks = any(request not in self._requests for request in requests)
        """A request for all devices matches none here."""
        self._chosen: list[tuple[PoolDevice, dict[str, Fraction] | None]] = []

    def results(self) -> list[Json] | None:
        """The results of the claim on this node; ``None`` if it does not fit. Raises ``AllocationError`` after too
        many steps, as the timeout of the scheduler does."""
        if self._lacks or not self._fill(0):
            return None
        results = []
        for request, (device, amounts) in zip(self._requests, self._chosen, strict=True):
            result: Json = {
                "request": request.name, "driver": device.driver, "pool": device.pool, "device": device.body["name"],
            }  # fmt: skip
            if amounts is not None:
                result["shareID"] = str(uuid.uuid4())
                result["consumedCapacity"] = {name: _text(amount) for name, amount in amounts.items()}
            if request.tolerations:
                result["tolerations"] = list(request.tolerations)
            if request.admin:
                result["adminAccess"] = True
            results.append(result)
        return results

    def _all(self, request: _DeviceRequest) -> int:
        """The number of devices that a request for all of them gets: a device without room is silently left out, and
        one with a taint makes the request fail."""
        return sum(
            all(matches(expression, device) for expression in request.driver_expressions)
            and self._amounts(request, device)[0]
            for device in self._devices
        )

    def _fill(self, index: int, first: int = 0) -> bool:
        if index == len(self._requests):
            return True
        request = self._requests[index]
        for place in range(first, len(self._devices)):
            device = self._devices[place]
            self._steps_left -= 1
            if self._steps_left < 0:
                raise AllocationError("timed out while trying to allocate devices")
            if not _suits(request, device):
                continue
            fits, amounts = self._amounts(request, device)
            if not fits or not self._keeps_constraints(index, device):
                continue
            self._chosen.append((device, amounts))
            self._taken.add(device.key, amounts)
            # The devices of one request are distinct: the next begins after the last.
            again = index + 1 < len(self._requests) and self._requests[index + 1] is request
            if self._fill(index + 1, place + 1 if again else 0):
                return True
            self._chosen.pop()
            self._taken.add(device.key, amounts, -1)
        return False

    def _amounts(
        self, request: _DeviceRequest, device: PoolDevice
    ) -> tuple[bool, dict[str, Fraction] | None]:
        """Whether the device has room, and the capacity that the request consumes; ``None``: the device as a whole."""
        capacities = device.body.get("capacity") or {}
        totals = {name: quantity(capacity["value"]) or Fraction(0) for name, capacity in capacities.items()}
        if any(name not in totals for name in request.amounts):
            return False, None
        if not device.body.get("allowMultipleAllocations"):
            enough = all(amount <= totals[name] for name, amount in request.amounts.items())
            return enough and (request.admin or device.key not in self._taken.whole), None
        amounts: dict[str, Fraction] = {}
        held = self._taken.consumed.get(device.key, {})
        for name, capacity in capacities.items():
            amount = _rounded(request.amounts.get(name), capacity.get("requestPolicy") or {}, totals[name])
            if amount is None or held.get(name, 0) + amount > totals[name]:
                return False, None
            amounts[name] = amount
        return True, amounts

    def _keeps_constraints(self, index: int, device: PoolDevice) -> bool:
        name = self._requests[index].name
        for constraint in self._constraints:
            members = constraint.get("requests") or [request.name for request in self._requests]
            if name not in members:
                continue
            attribute = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
            value = device.attribute(attribute)
            others = [
                chosen.attribute(attribute)
                for request, (chosen, _) in zip(self._requests, self._chosen, strict=False)
                if request.name in members
            ]
            if value is None:
                return False
            if "matchAttribute" in constraint and any(other != value for other in others):
                return False
            if "distinctAttribute" in constraint and value in others:
                return False
        return True


def _devices(slices: Sequence[Json]) -> Iterator[PoolDevice]:
    """The devices of the complete pools, in the order of preference."""
    pools: dict[tuple[str, str], list[Json]] = {}
    for obj in sorted(slices, key=lambda obj: str(obj["metadata"]["name"])):
        spec = obj["spec"]
        pools.setdefault((spec["pool"]["name"], spec["driver"]), []).append(spec)
    for (pool, driver), specs in sorted(pools.items()):
        highest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == highest]
        if len(current) == current[0]["pool"]["resourceSliceCount"]:
            for spec in current:
                yield from (PoolDevice(driver, pool, device) for device in spec.get("devices") or ())


def _taken(claims: Sequence[Json]) -> TakenCapacity:
    taken = TakenCapacity()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if result.get("adminAccess"):
                continue
            key = result["driver"], result["pool"], result["device"]
            consumed = result.get("consumedCapacity")
            amounts = (
                {name: quantity(amount) or Fraction(0) for name, amount in consumed.items()}
                if consumed
                else None
            )
            taken.add(key, amounts)
    return taken


def _suits(request: _DeviceRequest, device: PoolDevice) -> bool:
    tainted = any(
        taint["effect"] in ("NoSchedule", "NoExecute")
        and not any(_tolerates(toleration, taint) for toleration in request.tolerations)
        for taint in device.body.get("taints") or ()
    )
    return not tainted and all(matches(expression, device) for expression in request.driver_expressions)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def matches(expression: str, device: PoolDevice) -> bool:
    """Evaluate a selector. Raises ``AllocationError`` for a missing attribute, as CEL does."""
    for text in re.split(r"\s*&&\s*", expression.strip()):
        term = _TERM.fullmatch(text)
        if term is None or (term["key"] is None) != any(
            term[name] is not None for name in ("text", "number", "truth")
        ):
            raise AllocationError(f"the stand-in cannot evaluate {text!r}")
        if not _term_holds(term, device):
            return False
    return True


def _term_holds(term: re.Match[str], device: PoolDevice) -> bool:
    if term["key"] is not None:
        return device.has(term["within"], term["key"])
    if term["driver"] is None and not device.has(term["domain"], term["name"]):
        raise AllocationError(f"no such key: {term['name']}")
    value = device.driver if term["driver"] else device.attribute(f"{term['domain']}/{term['name']}")
    convert: Callable[[str], Any] = str
    wanted = term["text"]
    if term["number"] is not None:
        wanted, convert = term["number"], int
    elif term["truth"] is not None:
        return bool(value is (term["truth"] == "true"))
    return bool(value == convert(wanted))


def _rounded(amount: Fraction | None, policy: Json, total: Fraction) -> Fraction | None:
    """The amount that a request consumes; ``None`` if the policy does not allow it."""
    if amount is None:
        return quantity(policy["default"]) if "default" in policy else total
    if values := policy.get("validValues"):
        return min(
            (value for text in values if (value := quantity(text)) is not None and value >= amount),
            default=None,
        )
    if valid := policy.get("validRange"):
        least = quantity(valid["min"]) or Fraction(0)
        amount = max(amount, least)
        if step := quantity(valid.get("step", "")):
            amount = least + -(-(amount - least) // step) * step
        if "max" in valid and amount > (quantity(valid["max"]) or 0):
            return None
    return amount


def _text(amount: Fraction) -> str:
    if amount >= 1024 and not amount % 1024:
        return str(canonical(f"{amount / 1024}Ki"))
    return str(amount)


def _selector(node: str) -> Json:
    match = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [match]}]}
