"""The rules of the API server for ResourceSlices of ``resource.k8s.io/v1``.

``prepare`` changes an object as the server does before it stores it: it drops the fields of gates that are off, dates
new taints and writes quantities in their canonical form. ``errors`` checks it. Both follow
``pkg/apis/resource/validation`` and the strategy of Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
FieldError = tuple[str, str]

CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
DEVICE_TAINTS = "DRADeviceTaints"
EXTENDED_RESOURCE = "DRAExtendedResource"
LIST_ATTRIBUTES = "DRAListTypeAttributes"
SINCE_1_36 = (CONSUMABLE_CAPACITY, DEVICE_TAINTS, EXTENDED_RESOURCE)
"""The gates that are on by default from 1.36 on, and off in 1.34 and 1.35."""

DEVICES_MAX, DEVICES_MAX_WITH_TAINTS = 128, 64
ATTRIBUTES_MAX, VALUES_MAX, TAINTS_MAX = 32, 48, 16
VALUE_MAX, DOMAIN_MAX, IDENTIFIER_MAX, POOL_NAME_MAX = 64, 63, 32, 253
VALID_VALUES_MAX = 10

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)(Ki|Mi|Gi|Ti|Pi|m|k|M|G|T|P|)")
_SCALES = {
    "": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9),
    "T": Fraction(10**12), "P": Fraction(10**15), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
}  # fmt: skip
_SCALARS = ("bool", "int", "string", "version")
_LISTS = ("bools", "ints", "strings", "versions")
_SELECTORS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def quantity(text: Any) -> Fraction | None:
    """The number of a Kubernetes quantity; ``None`` for another text."""
    match = _QUANTITY.fullmatch(str(text))
    return Fraction(match[1].rstrip(".")) * _SCALES[match[2]] if match else None


def canonical(text: Any) -> Any:
    """The quantity as the server writes it: ``1024Mi`` is ``1Gi``, ``1000`` is ``1k``. Other values stay."""
    number = quantity(text)
    if number is None or number.denominator != 1 or not number:
        return text
    binary = str(text).endswith("i")
    suffixes = ("Pi", "Ti", "Gi", "Mi", "Ki") if binary else ("P", "T", "G", "M", "k")
    suffix = next((suffix for suffix in suffixes if not number % _SCALES[suffix]), "")
    return f"{number / _SCALES[suffix]}{suffix}"


def prepare(obj: Json, gates: Collection[str]) -> None:
    """Drop the fields whose gate is not in ``gates``, and set ``timeAdded`` of taints without one."""
    spec = obj.get("spec") or {}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for device in spec.get("devices") or ():
        for capacity in (device.get("capacity") or {}).values():
            _write_canonical(capacity)
        if CONSUMABLE_CAPACITY not in gates:
            device.pop("allowMultipleAllocations", None)
            for capacity in (device.get("capacity") or {}).values():
                capacity.pop("requestPolicy", None)
        if DEVICE_TAINTS not in gates:
            device.pop("taints", None)
        if LIST_ATTRIBUTES not in gates:
            for attribute in (device.get("attributes") or {}).values():
                for name in _LISTS:
                    attribute.pop(name, None)
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now)


def _write_canonical(capacity: Json) -> None:
    capacity["value"] = canonical(capacity.get("value"))
    policy = capacity.get("requestPolicy") or {}
    for holder, name in (
        (policy, "default"),
        *((policy.get("validRange") or {}, n) for n in ("min", "max", "step")),
    ):
        if name in holder:
            holder[name] = canonical(holder[name])
    if "validValues" in policy:
        policy["validValues"] = [canonical(value) for value in policy["validValues"]]


def errors(obj: Json, live: Json | None) -> Iterator[FieldError]:
    """The reasons to refuse an object. ``live`` is the stored object of an update."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        yield "spec", "Required value"
    else:
        yield from _slice_errors(spec, (live or {}).get("spec") or {})


def _slice_errors(spec: Json, before: Json) -> Iterator[FieldError]:
    yield from driver_errors(spec.get("driver", ""), "spec.driver")
    yield from _pool_errors(spec.get("pool") or {})
    chosen = [name for name in _SELECTORS if spec.get(name)]
    if len(chosen) != 1:
        yield "spec", f"Invalid value: exactly one of {', '.join(_SELECTORS)} is required, not {chosen}"
    if before:
        for path, was, now in (
            ("spec.driver", before.get("driver"), spec.get("driver")),
            ("spec.nodeName", before.get("nodeName"), spec.get("nodeName")),
            ("spec.pool.name", before.get("pool", {}).get("name"), spec.get("pool", {}).get("name")),
        ):
            if was != now:
                yield path, f'Invalid value: "{now}": field is immutable'
    devices = spec.get("devices") or []
    if devices and spec.get("sharedCounters"):
        yield "spec", 'Invalid value: exactly one of "sharedCounters" or "devices" is allowed'
    small = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    most = DEVICES_MAX_WITH_TAINTS if small else DEVICES_MAX
    if len(devices) > most:
        yield "spec.devices", too_many(len(devices), most)
    names = set()
    for number, device in enumerate(devices):
        path = f"spec.devices[{number}]"
        if device.get("name") in names:
            yield f"{path}.name", f'Duplicate value: "{device.get("name")}"'
        names.add(device.get("name"))
        yield from _device_errors(device, path)


def driver_errors(driver: str, path: str) -> Iterator[FieldError]:
    if not driver:
        yield path, "Required value"
    elif len(driver) > DOMAIN_MAX or not DNS_SUBDOMAIN.fullmatch(driver):
        yield path, f'Invalid value: "{driver}": must be a DNS subdomain of at most 63 characters'


def pool_name_errors(name: str, path: str) -> Iterator[FieldError]:
    if not name:
        yield path, "Required value"
    if len(name) > POOL_NAME_MAX:
        yield path, f"Too long: may not be more than {POOL_NAME_MAX} bytes"
    for part in name.split("/"):
        if name and not DNS_SUBDOMAIN.fullmatch(part):
            yield path, f'Invalid value: "{part}": must be DNS subdomains joined by slashes'


def too_many(count: int, most: int) -> str:
    return f"Too many: {count}: must have at most {most} items"


def _pool_errors(pool: Json) -> Iterator[FieldError]:
    yield from pool_name_errors(pool.get("name", ""), "spec.pool.name")
    if pool.get("resourceSliceCount", 0) <= 0:
        count = pool.get("resourceSliceCount", 0)
        yield "spec.pool.resourceSliceCount", f"Invalid value: {count}: must be greater than zero"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation", "Invalid value: must be greater than or equal to zero"


def _device_errors(device: Json, path: str) -> Iterator[FieldError]:
    name = device.get("name", "")
    if not DNS_LABEL.fullmatch(name):
        yield f"{path}.name", f'Invalid value: "{name}": must be a lower case RFC 1123 label'
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacities) > ATTRIBUTES_MAX:
        count = len(attributes) + len(capacities)
        yield (
            path,
            f"Invalid value: {count}: the total number of attributes and capacities must not exceed 32",
        )
    values = sum(
        max([1, *(len(attribute.get(name) or ()) for name in _LISTS)]) for attribute in attributes.values()
    )
    if values > VALUES_MAX:
        yield path, f"Invalid value: {values}: the total number of attribute values must not exceed 48"
    for key, attribute in attributes.items():
        yield from qualified_name_errors(key, f"{path}.attributes[{key}]")
        yield from _attribute_errors(attribute, f"{path}.attributes[{key}]")
    for key, capacity in capacities.items():
        yield from qualified_name_errors(key, f"{path}.capacity[{key}]")
        yield from _capacity_errors(
            capacity, f"{path}.capacity[{key}]", shared=bool(device.get("allowMultipleAllocations"))
        )
    taints = device.get("taints") or []
    if len(taints) > TAINTS_MAX:
        yield f"{path}.taints", too_many(len(taints), TAINTS_MAX)
    for number, taint in enumerate(taints):
        yield from _taint_errors(taint, f"{path}.taints[{number}]")


def qualified_name_errors(key: str, path: str) -> Iterator[FieldError]:
    domain, slash, identifier = key.rpartition("/")
    if slash and (len(domain) > DOMAIN_MAX or not DNS_SUBDOMAIN.fullmatch(domain)):
        yield path, f'Invalid value: "{domain}": must be a DNS subdomain of at most 63 characters'
    if len(identifier) > IDENTIFIER_MAX:
        yield path, f"Too long: may not be more than {IDENTIFIER_MAX} bytes"
    if not _IDENTIFIER.fullmatch(identifier):
        yield path, f'Invalid value: "{identifier}": a valid C identifier is required'


def _attribute_errors(attribute: Json, path: str) -> Iterator[FieldError]:
    if sum(name in attribute for name in (*_SCALARS, *_LISTS)) != 1:
        yield path, "Invalid value: exactly one value must be specified"
    for name in ("string", "version"):
        if len(str(attribute.get(name, "")).encode()) > VALUE_MAX:
            yield f"{path}.{name}", f"Too long: may not be more than {VALUE_MAX} bytes"
    if "version" in attribute and not _SEMVER.fullmatch(attribute["version"]):
        yield f"{path}.version", "Invalid value: must be a string compatible with semver.org spec 2.0.0"
    if "int" in attribute and (isinstance(attribute["int"], bool) or not isinstance(attribute["int"], int)):
        yield f"{path}.int", "Invalid value: must be an integer"


def _capacity_errors(capacity: Json, path: str, *, shared: bool) -> Iterator[FieldError]:
    total = quantity(capacity.get("value"))
    if total is None:
        yield f"{path}.value", f"Invalid value: {capacity.get('value')!r}: must be a quantity"
        return
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    path = f"{path}.requestPolicy"
    if not shared:
        yield path, "Forbidden: allowMultipleAllocations must be true"
        return
    default = quantity(policy["default"]) if "default" in policy else None
    if policy.get("validValues") and policy.get("validRange"):
        yield path, 'Forbidden: cannot specify "validValues" and "validRange" at the same time'
    elif policy.get("validValues"):
        allowed = [quantity(value) for value in policy["validValues"]]
        if len(allowed) > VALID_VALUES_MAX:
            yield (
                f"{path}.validValues",
                too_many(len(allowed), VALID_VALUES_MAX),
            )
        if default not in allowed or any(value is None or value > total for value in allowed):
            yield (
                f"{path}.validValues",
                "Invalid value: default value is not valid according to the requestPolicy",
            )
    elif policy.get("validRange"):
        if default is None:
            yield f"{path}.default", "Required value: required when validRange is defined"
        else:
            yield from _range_errors(policy["validRange"], default, total, f"{path}.validRange")


def _range_errors(valid: Json, default: Fraction, total: Fraction, path: str) -> Iterator[FieldError]:
    least = quantity(valid["min"]) if "min" in valid else None
    most = quantity(valid["max"]) if "max" in valid else None
    step = quantity(valid["step"]) if "step" in valid else None
    if least is None:
        yield f"{path}.min", "Required value: required when validRange is defined"
        return
    if least > total or default < least:
        yield f"{path}.min", "Invalid value: min is larger than the capacity or than default"
    if most is not None and (most > total or default > most or least > most):
        yield f"{path}.max", "Invalid value: max is larger than the capacity, or less than min or default"
    if step is None:
        return
    if step <= 0:
        yield f"{path}.step", "Invalid value: must be greater than zero"
        return
    if least + step > total:
        yield f"{path}.step", f"Invalid value: one step {least + step} is larger than capacity value: {total}"
    for value in (default, most):
        if value is not None and (value - least) % step:
            yield (
                f"{path}.step",
                f"Invalid value: {value} is not a multiple of a given step ({step}) from ({least})",
            )


def _taint_errors(taint: Json, path: str) -> Iterator[FieldError]:
    if not taint.get("key"):
        yield f"{path}.key", "Required value"
    if not LABEL_VALUE.fullmatch(taint.get("value", "")):
        yield f"{path}.value", f'Invalid value: "{taint.get("value")}": must be a label value'
    if taint.get("effect") not in ("None", "NoSchedule", "NoExecute"):
        supported = '"NoExecute", "NoSchedule", "None"'
        yield f"{path}.effect", f'Unsupported value: "{taint.get("effect")}": supported values: {supported}'
