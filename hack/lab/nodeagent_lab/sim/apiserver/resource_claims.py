"""The rules of the API server for ResourceClaims and DeviceClasses of ``resource.k8s.io/v1``.

``prepare`` changes an object as the server does before it stores it: it drops the fields of gates that are off, sets
defaults and writes quantities in their canonical form. ``errors`` checks it. Both follow ``pkg/apis/resource`` of
Kubernetes 1.36. The differences: CEL is neither compiled nor its cost estimated, node selectors are not checked,
``adminAccess`` needs no label of the namespace, and opaque parameters are measured as JSON without spaces, not as sent.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

from nodeagent_lab.sim.apiserver.resource_slices import (
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    EXTENDED_RESOURCE,
    LABEL_VALUE,
    FieldError,
    Json,
    canonical,
    driver_errors,
    pool_name_errors,
    qualified_name_errors,
    quantity,
    too_many,
)

REQUESTS_MAX, CONSTRAINTS_MAX, CONFIGURATIONS_MAX, RESULTS_MAX = 32, 32, 32, 32
SELECTORS_MAX, ALTERNATIVES_MAX, TOLERATIONS_MAX, CONSUMERS_MAX = 32, 8, 16, 256
CONDITIONS_MAX = 8
CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
EXPRESSION_MAX = PARAMETERS_MAX = 10 * 1024
"""Bytes of a CEL expression, and of the opaque parameters of one configuration."""


def prepare(obj: Json, gates: Collection[str]) -> None:
    """Drop the fields whose gate is not in ``gates``, and set the defaults of requests and tolerations."""
    spec = obj.get("spec") or {}
    if obj.get("kind") == "DeviceClass":
        if EXTENDED_RESOURCE not in gates:
            spec.pop("extendedResourceName", None)
        return
    for request in _exact_requests(spec):
        if CONSUMABLE_CAPACITY not in gates:
            request.pop("capacity", None)
        if DEVICE_TAINTS not in gates:
            request.pop("tolerations", None)
    if CONSUMABLE_CAPACITY not in gates:
        for constraint in (spec.get("devices") or {}).get("constraints") or ():
            constraint.pop("distinctAttribute", None)
    _set_defaults(spec)


def _set_defaults(spec: Json) -> None:
    for request in _exact_requests(spec):
        if not request.get("allocationMode"):
            request["allocationMode"] = "ExactCount"
        if request["allocationMode"] == "ExactCount" and not request.get("count"):
            request["count"] = 1
        for toleration in request.get("tolerations") or ():
            toleration.setdefault("operator", "Equal")
        amounts = (request.get("capacity") or {}).get("requests") or {}
        amounts.update({name: canonical(amount) for name, amount in amounts.items()})


def _exact_requests(spec: Json) -> Iterator[Json]:
    """The requests and their alternatives, without names."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        if request.get("exactly") is not None:
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def drop_deallocated(obj: Json, live: Json) -> None:
    """Remove the entries of ``status.devices`` whose device this write takes from the claim."""
    status = obj.get("status") or {}
    gone = set(_allocated(live.get("status") or {})) - set(_allocated(status))
    kept = [entry for entry in status.get("devices") or () if _device_key(entry) not in gone]
    if kept:
        status["devices"] = kept
    else:
        status.pop("devices", None)


def changed_drivers(obj: Json, live: Json) -> set[str]:
    """The drivers whose entries in ``status.devices`` a write adds, changes or removes."""
    before, after = ((it.get("status") or {}).get("devices") or [] for it in (live, obj))
    changed = [entry for entry in after if entry not in before]
    changed += [entry for entry in before if entry not in after]
    return {str(entry.get("driver")) for entry in changed}


def errors(obj: Json, live: Json | None) -> Iterator[FieldError]:
    """The reasons to refuse an object. ``live`` is the stored object of an update.

    An update of a claim may not change its spec, which is not checked again then. What is stored in the status is not
    checked again either.
    """
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        yield "spec", "Required value"
    elif obj.get("kind") == "DeviceClass":
        yield from _class_errors(spec)
    elif live is None:
        yield from _claim_errors(spec.get("devices") or {})
    else:
        before = copy.deepcopy(live.get("spec") or {})
        _set_defaults(before)
        if spec != before:
            yield "spec", "Invalid value: field is immutable"
        if obj.get("status") != live.get("status"):
            yield from _status_errors(obj, live.get("status") or {})


def _class_errors(spec: Json) -> Iterator[FieldError]:
    name = spec.get("extendedResourceName")
    if name is not None and "/" not in name:
        yield "spec.extendedResourceName", f'Invalid value: "{name}": must be an extended resource name'
    yield from _each(spec, "selectors", "spec", SELECTORS_MAX, _selector_errors)
    yield from _each(spec, "config", "spec", CONFIGURATIONS_MAX, _opaque_errors)


# --- the spec of a claim ------------------------------------------------------------------------------


def _claim_errors(devices: Json) -> Iterator[FieldError]:
    path, names = "spec.devices", _request_names(devices)

    def constraint_errors(constraint: Json, path: str) -> Iterator[FieldError]:
        yield from _reference_errors(constraint, path, names)
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
        if attribute is None:
            yield path, 'Required value: exactly one of "matchAttribute" or "distinctAttribute" is required'
        elif "/" not in attribute:
            yield path, f'Invalid value: "{attribute}": must include a domain'
        else:
            yield from qualified_name_errors(attribute, path)

    def configuration_errors(configuration: Json, path: str) -> Iterator[FieldError]:
        yield from _reference_errors(configuration, path, names)
        yield from _opaque_errors(configuration, path)

    yield from _each(devices, "requests", path, REQUESTS_MAX, _request_errors, _name)
    yield from _each(devices, "constraints", path, CONSTRAINTS_MAX, constraint_errors)
    yield from _each(devices, "config", path, CONFIGURATIONS_MAX, configuration_errors)


def _request_names(devices: Json) -> set[str]:
    """The names that constraints, configurations and results may have: requests, and alternatives behind a slash."""
    names = set()
    for request in devices.get("requests") or ():
        names.add(_name(request))
        names.update(f"{_name(request)}/{_name(one)}" for one in request.get("firstAvailable") or ())
    return names


def _request_errors(request: Json, path: str) -> Iterator[FieldError]:
    yield from _label_errors(_name(request), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if bool(alternatives) == (exactly is not None):
        yield path, "Invalid value: exactly one of `exactly` or `firstAvailable` is required"
    elif exactly is not None:
        yield from _exact_errors(exactly, f"{path}.exactly")
    else:
        yield from _each(request, "firstAvailable", path, ALTERNATIVES_MAX, _alternative_errors, _name)


def _alternative_errors(alternative: Json, path: str) -> Iterator[FieldError]:
    yield from _label_errors(_name(alternative), f"{path}.name")
    yield from _exact_errors(alternative, path)


def _exact_errors(request: Json, path: str) -> Iterator[FieldError]:
    name = request.get("deviceClassName") or ""
    if not name:
        yield f"{path}.deviceClassName", "Required value"
    elif len(name) > 253 or not DNS_SUBDOMAIN.fullmatch(name):
        yield f"{path}.deviceClassName", f'Invalid value: "{name}": must be a lower case RFC 1123 subdomain'
    mode, count = request.get("allocationMode"), request.get("count") or 0
    if mode not in ("All", "ExactCount"):
        yield f"{path}.allocationMode", f'Unsupported value: "{mode}": supported values: "All", "ExactCount"'
    elif mode == "All" and count:
        yield (
            f"{path}.count",
            f"Invalid value: {count}: must not be specified when allocationMode is 'All'",
        )
    elif mode == "ExactCount" and count <= 0:
        yield f"{path}.count", f"Invalid value: {count}: must be greater than zero"
    for key, amount in ((request.get("capacity") or {}).get("requests") or {}).items():
        at = f"{path}.capacity.requests[{key}]"
        yield from qualified_name_errors(key, at)
        if quantity(amount) is None:
            yield at, f"Invalid value: {amount!r}: must be a quantity"
    yield from _each(request, "selectors", path, SELECTORS_MAX, _selector_errors)
    yield from _each(request, "tolerations", path, TOLERATIONS_MAX, _toleration_errors)


def _selector_errors(selector: Json, path: str) -> Iterator[FieldError]:
    expression = (selector.get("cel") or {}).get("expression")
    if not expression:
        yield f"{path}.cel", "Required value"
    elif len(expression.encode()) > EXPRESSION_MAX:
        yield f"{path}.cel.expression", f"Too long: may not be more than {EXPRESSION_MAX} bytes"


def _toleration_errors(toleration: Json, path: str) -> Iterator[FieldError]:
    operator, value, effect = (toleration.get(name) or "" for name in ("operator", "value", "effect"))
    if operator not in ("Equal", "Exists"):
        yield (
            f"{path}.operator",
            f'Unsupported value: "{operator}": supported values: "Equal", "Exists"',
        )
    elif operator == "Exists" and value:
        yield f"{path}.value", f'Invalid value: "{value}": must be empty for operator `Exists`'
    elif operator == "Equal" and not toleration.get("key"):
        yield f"{path}.operator", "Invalid value: must be Exists when `key` is empty"
    elif not LABEL_VALUE.fullmatch(value):
        yield f"{path}.value", f'Invalid value: "{value}": must be a label value'
    if effect not in ("", "NoSchedule", "NoExecute"):
        yield (
            f"{path}.effect",
            f'Unsupported value: "{effect}": supported values: "NoExecute", "NoSchedule"',
        )


def _opaque_errors(configuration: Json, path: str) -> Iterator[FieldError]:
    opaque = configuration.get("opaque")
    if opaque is None:
        yield f"{path}.opaque", "Required value"
        return
    yield from driver_errors(opaque.get("driver") or "", f"{path}.opaque.driver")
    parameters = opaque.get("parameters")
    path = f"{path}.opaque.parameters"
    if parameters is None:
        yield path, "Required value"
    elif not isinstance(parameters, dict):
        yield path, "Invalid value: must be a valid JSON object"
    elif len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode()) > PARAMETERS_MAX:
        yield path, f"Too long: may not be more than {PARAMETERS_MAX} bytes"


def _reference_errors(holder: Json, path: str, names: set[str]) -> Iterator[FieldError]:
    def known(name: str, path: str) -> Iterator[FieldError]:
        if name not in names:
            yield path, f'Invalid value: "{name}": must be the name of a request in the claim'

    yield from _each(holder, "requests", path, REQUESTS_MAX, known, lambda name: name)


# --- the status of a claim ----------------------------------------------------------------------------


def _status_errors(obj: Json, before: Json) -> Iterator[FieldError]:
    status = obj.get("status") or {}
    yield from _each(status, "reservedFor", "status", CONSUMERS_MAX, _consumer_errors, _uid)
    allocation, path = status.get("allocation"), "status.allocation"
    if status.get("reservedFor") and allocation is None:
        yield "status.reservedFor", "Forbidden: may not be specified when `allocated` is not set"
    elif obj["metadata"].get("deletionTimestamp"):
        known = {_uid(consumer) for consumer in before.get("reservedFor") or ()}
        if any(_uid(consumer) not in known for consumer in status.get("reservedFor") or ()):
            yield "status.reservedFor", "Forbidden: no entries may be added while `deletionTimestamp` is set"
    if allocation is None:
        if status.get("devices"):
            yield "status.devices", "Invalid value: must be an allocated device in the claim"
        return
    yield from _device_status_errors(status)
    if before.get("allocation") is not None:
        if allocation != before["allocation"]:
            yield path, "Invalid value: field is immutable"
        return
    names = _request_names(obj["spec"].get("devices") or {})
    devices, path = allocation.get("devices") or {}, f"{path}.devices"

    def configuration_errors(configuration: Json, path: str) -> Iterator[FieldError]:
        if configuration.get("source") not in ("FromClass", "FromClaim"):
            source = configuration.get("source") or ""
            yield (
                f"{path}.source",
                f'Unsupported value: "{source}": supported values: "FromClaim", "FromClass"',
            )
        yield from _reference_errors(configuration, path, names)
        yield from _opaque_errors(configuration, path)

    def result_errors(result: Json, path: str) -> Iterator[FieldError]:
        if result.get("request") not in names:
            name = result.get("request") or ""
            yield f"{path}.request", f'Invalid value: "{name}": must be the name of a request in the claim'
        yield from driver_errors(result.get("driver") or "", f"{path}.driver")
        yield from pool_name_errors(result.get("pool") or "", f"{path}.pool")
        yield from _label_errors(result.get("device") or "", f"{path}.device")
        share = result.get("shareID")
        if share is not None and not _is_uid(share):
            yield f"{path}.shareID", f'Invalid value: "{share}": must be in RFC 4122 normalized form'

    yield from _each(devices, "results", path, RESULTS_MAX, result_errors)
    yield from _each(devices, "config", path, 2 * CONFIGURATIONS_MAX, configuration_errors)


def _device_status_errors(status: Json) -> Iterator[FieldError]:
    allocated = set(_allocated(status))

    def entry_errors(entry: Json, path: str) -> Iterator[FieldError]:
        if _device_key(entry) not in allocated:
            yield path, "Invalid value: must be an allocated device in the claim"
        yield from _each(
            entry, "conditions", path, CONDITIONS_MAX, _condition_errors, lambda it: it.get("type")
        )
        data = entry.get("data")
        if data is not None and not isinstance(data, dict):
            yield f"{path}.data", "Invalid value: must be a valid JSON object"
        elif len(json.dumps(data, separators=(",", ":")).encode()) > PARAMETERS_MAX:
            yield f"{path}.data", f"Too long: may not be more than {PARAMETERS_MAX} bytes"
        network = entry.get("networkData") or {}
        for name, most in (("interfaceName", 256), ("hardwareAddress", 128)):
            if len(network.get(name) or "") > most:
                yield f"{path}.networkData.{name}", f"Too long: may not be more than {most} bytes"

    yield from _each(status, "devices", "status", RESULTS_MAX, entry_errors, _device_key)


def _condition_errors(condition: Json, path: str) -> Iterator[FieldError]:
    """As ``ValidateConditions`` of k8s.io/apimachinery."""
    if condition.get("status") not in ("True", "False", "Unknown"):
        yield f"{path}.status", f'Unsupported value: "{condition.get("status") or ""}"'
    if not condition.get("lastTransitionTime"):
        yield f"{path}.lastTransitionTime", "Required value: must be set"
    reason = condition.get("reason") or ""
    if len(reason) > 1024 or not CONDITION_REASON.fullmatch(reason):
        yield (
            f"{path}.reason",
            f'Invalid value: "{reason}": a condition reason must start with alphabetic character',
        )
    if len(condition.get("message") or "") > 32768:
        yield f"{path}.message", "Too long: may not be more than 32768 bytes"


def _allocated(status: Json) -> list[tuple[str, ...]]:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return [_device_key(result) for result in results]


def _device_key(entry: Json) -> tuple[str, ...]:
    return tuple(str(entry.get(name) or "") for name in ("driver", "pool", "device", "shareID"))


def _consumer_errors(consumer: Json, path: str) -> Iterator[FieldError]:
    for name in ("resource", "name", "uid"):
        if not consumer.get(name):
            yield f"{path}.{name}", "Required value"


# --- lists and names ----------------------------------------------------------------------------------


def _each(
    holder: Json,
    field: str,
    path: str,
    most: int,
    check: Callable[[Any, str], Iterator[FieldError]],
    key: Callable[[Any], Hashable] | None = None,
) -> Iterator[FieldError]:
    """Check the length of a list and its items; with ``key``, also that no two items have the same."""
    items, path = holder.get(field) or (), f"{path}.{field}"
    if len(items) > most:
        yield path, too_many(len(items), most)
    seen = set()
    for number, item in enumerate(items):
        yield from check(item, f"{path}[{number}]")
        if key is not None:
            if key(item) in seen:
                yield f"{path}[{number}]", f'Duplicate value: "{key(item)}"'
            seen.add(key(item))


def _label_errors(name: str, path: str) -> Iterator[FieldError]:
    if not name:
        yield path, "Required value"
    elif not DNS_LABEL.fullmatch(name):
        yield path, f'Invalid value: "{name}": must be a lower case RFC 1123 label'


def _name(obj: Json) -> str:
    return str(obj.get("name") or "")


def _uid(consumer: Json) -> str:
    return str(consumer.get("uid") or "")


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
