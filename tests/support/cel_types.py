"""Check the types of the expressions of a ValidatingAdmissionPolicy, as the API server does when it stores one.

The API server compiles every expression once for each kind that the rules of the policy match, with the types of the
kind's OpenAPI schema, and returns each error as a warning (`status.typeChecking`). This module does the same with the
type checker of the CEL project and the schemas of ``kubernetes_validate``. It copies three properties of the API
server that are easy to miss:

* A rule for the core group matches the kinds of that resource name and version in every group: `events` of `v1` is
  checked as an Event of the core group and as one of ``events.k8s.io``.
* A field whose schema has no single type does not exist, and neither does a map or a list of it. `Quantity` is such a
  type, so a Node has neither `status.capacity` nor `status.allocatable`.
* Resources with a slash and wildcards are not checked, and at most ten kinds of a policy are.

Limits: CEL's C++ checker stands in for the Go checker. Kubernetes' own functions (`url`, `quantity`, `authorizer` …)
and the type checks of `matchConditions` and parameters are missing; our policies use none. Structs are protobuf
messages here, so the result for a comparison of two different structs may differ.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2

from tests.support.kubernetes_schemas import definitions

KINDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("v1", "bindings"): ("io.k8s.api.core.v1.Binding",),
    ("v1", "configmaps"): ("io.k8s.api.core.v1.ConfigMap",),
    ("v1", "events"): ("io.k8s.api.core.v1.Event", "io.k8s.api.events.v1.Event"),
    ("v1", "nodes"): ("io.k8s.api.core.v1.Node",),
    ("v1", "pods"): ("io.k8s.api.core.v1.Pod",),
    ("v1", "resourceslices"): ("io.k8s.api.resource.v1.ResourceSlice",),
}
"""The definitions of the kinds of a version and resource name, in any group, as the API server's RESTMapper finds."""
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_HYPERNODE = {"type": "object", "properties": {"metadata": {"$ref": f"/{_META}"}}}
"""The part of a HyperNode that our policies read; Volcano installs its definition."""
_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("name", "namespace", "operation", "subResource", "uid")},
        "userInfo": {
            "type": "object",
            "properties": {
                "username": {"type": "string"},
                "uid": {"type": "string"},
                "groups": {"type": "array", "items": {"type": "string"}},
                "extra": {
                    "type": "object",
                    "additionalProperties": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
}
_numbers = itertools.count()
_POOL = descriptor_pool.DescriptorPool()
for _known in (struct_pb2, timestamp_pb2):
    _POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)

_TYPE_STRING, _TYPE_BOOL, _TYPE_INT64, _TYPE_DOUBLE, _TYPE_MESSAGE = 9, 8, 3, 1, 11
_SCALARS = {"string": _TYPE_STRING, "boolean": _TYPE_BOOL, "integer": _TYPE_INT64, "number": _TYPE_DOUBLE}


def type_errors(policy: dict[str, Any], crds: list[dict[str, Any]], version: str) -> list[str]:
    """The warnings of the API server for a policy, each with its kind and its place; empty if there are none."""
    found = []
    for name, schema in _kinds(policy["spec"], crds, version):
        for place, error in _errors(policy["spec"], _message(schema, version)):
            found.append(f"{policy['metadata']['name']}, {name}, {place}: {error}")
    return found


def _kinds(
    spec: dict[str, Any], crds: list[dict[str, Any]], version: str
) -> list[tuple[str, dict[str, Any]]]:
    """Name and schema of each kind that the rules match."""
    found: dict[str, dict[str, Any]] = {}
    for rule in spec["matchConstraints"]["resourceRules"]:
        for served, resource in itertools.product(rule["apiVersions"], rule["resources"]):
            if "/" in resource:
                continue
            if resource == "hypernodes":
                found["HyperNode"] = _HYPERNODE
                continue
            for crd in crds:
                names, versions = crd["spec"]["names"], crd["spec"]["versions"]
                if crd["spec"]["group"] in rule["apiGroups"] and names["plural"] == resource:
                    (stored,) = (one for one in versions if one["name"] == served)
                    schema = stored["schema"]["openAPIV3Schema"]
                    # The API server publishes a definition with the metadata of every object.
                    meta = {"metadata": {"$ref": f"/{_META}"}}
                    found[names["kind"]] = schema | {"properties": schema["properties"] | meta}
                    break
            else:
                for name in KINDS[served, resource]:
                    # A server that does not know the kind does not check its expressions.
                    if (definition := definitions(version).get(name)) is not None:
                        found[name] = definition
    return list(found.items())


def _errors(spec: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    from cel_expr_python import cel

    types = {"object": cel.Type(kind), "oldObject": cel.Type(kind)}
    types["request"] = cel.Type(_message(_REQUEST, ""))
    found = []

    def check(place: str, expression: str, wanted: Any = None) -> Any:
        try:
            result = cel.NewEnv(_POOL, variables=types).compile(expression).return_type()
        except RuntimeError as error:
            found.append((place, str(error)))
            return cel.Type.DYN
        if wanted is not None and result not in (wanted, cel.Type.DYN):
            found.append((place, f"the result is a {result.name()}, not a {wanted.name()}"))
        return result

    for variable in spec.get("variables", ()):
        name = variable["name"]
        types[f"variables.{name}"] = check(f"variables[{name}]", variable["expression"])
    for number, validation in enumerate(spec["validations"]):
        check(f"validations[{number}]", validation["expression"], cel.Type.BOOL)
        if message := validation.get("messageExpression"):
            check(f"validations[{number}].messageExpression", message, cel.Type.STRING)
    return found


# --- a schema as a protobuf message --------------------------------------------------------------------------------


@functools.cache
def _named(name: str, version: str) -> str | None:
    return _message(definitions(version)[name], version)


def _message(schema: dict[str, Any], version: str) -> str:
    """Register a message with the fields of an object schema; return its name."""
    number = next(_numbers)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"admission{number}.proto", package=f"admission{number}", syntax="proto3"
    )
    file.dependency.append("google/protobuf/struct.proto")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Object")
    for index, (name, field) in enumerate(schema.get("properties", {}).items(), start=1):
        _add_field(file, message, name, index, field, version)
    _POOL.AddSerializedFile(file.SerializeToString())
    return f"admission{number}.Object"


def _add_field(file: Any, message: Any, name: str, number: int, schema: dict[str, Any], version: str) -> None:
    """Add a field of the schema's type; none if the API server's checker has no type for it."""
    schema = _resolved(schema, version)
    kind = _kind(schema)
    if kind == "array":
        if (item := _type(schema["items"], version)) is not None:
            _set(file, message.field.add(name=name, number=number, label=3), item)
    elif kind == "object" and "additionalProperties" in schema:
        if (value := _type(schema["additionalProperties"], version)) is not None:
            entry = message.nested_type.add(name=f"{name[:1].upper()}{name[1:]}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=_TYPE_STRING)
            _set(file, entry.field.add(name="value", number=2, label=1), value)
            inside = (_TYPE_MESSAGE, f"{file.package}.{message.name}.{entry.name}")
            _set(file, message.field.add(name=name, number=number, label=3), inside)
    elif (single := _type(schema, version)) is not None:
        _set(file, message.field.add(name=name, number=number, label=1), single)


def _type(schema: Any, version: str) -> tuple[int, str] | None:
    """The protobuf type of a schema and the name of its message; ``None`` if the checker has no type for it."""
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref", "").rpartition("/")[2]
    schema = _resolved(schema, version)
    kind = _kind(schema)
    if kind == "string" and schema.get("format") == "date-time":
        return _TYPE_MESSAGE, "google.protobuf.Timestamp"
    if kind == "array":
        return _TYPE_MESSAGE, "google.protobuf.ListValue"
    if kind == "object" and "additionalProperties" in schema:
        return _TYPE_MESSAGE, "google.protobuf.Struct"
    if kind == "object":
        return _TYPE_MESSAGE, _named(reference, version) if reference else _message(schema, version)
    return None if kind is None else (_SCALARS[kind], "")


def _set(file: Any, field: Any, type_: tuple[int, str]) -> None:
    field.type, name = type_
    if name:
        field.type_name = f".{name}"
        package = name.partition(".")[0]
        needed = f"{package}.proto"
        if package.startswith("admission") and package != file.package and needed not in file.dependency:
            file.dependency.append(needed)


def _resolved(schema: dict[str, Any], version: str) -> dict[str, Any]:
    if reference := schema.get("$ref"):
        return definitions(version)[reference.rpartition("/")[2]]
    return schema


def _kind(schema: dict[str, Any]) -> str | None:
    """The one type of a schema; ``None`` for several, as that of a Quantity, and for none."""
    types = schema.get("type")
    names = [types] if isinstance(types, str) else [one for one in types or () if one != "null"]
    return names[0] if len(names) == 1 else None
