"""Validate manifests: with the schemas of each Kubernetes version, and for other definitions with the small schemas
in ``tests/schemas/``, which hold the fields that our manifests use and refuse every other field.
``tests/schemas/compare.py`` holds them against their sources.

In a small schema ``x-pod: spec`` marks a PodSpec and ``x-pod: template`` a PodTemplateSpec: Kubernetes' own schema
validates these. ``x-quantities: true`` marks a map of resource names to amounts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.support.needs import need

OLDEST, NEWEST = "1.30", "1.37"
"""The first version whose tokens name their node (ServiceAccountTokenPodNodeInfo) and with admission policies v1."""

DRA_OLDEST = "1.36"
"""The first version of mode dra; objects of its API group are checked with the schemas of this one or a newer one."""

_FOLDER = Path(__file__).parents[1] / "schemas"
_QUANTITY = re.compile(r"([0-9]+|[0-9]*\.[0-9]+)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")


def complaints(manifest: dict[str, Any], version: str) -> list[str]:
    """Return all errors of an object in this version of Kubernetes."""
    by_claim = any(isinstance(one, list) for one in _find(manifest, "resourceClaims"))
    if by_claim or manifest["apiVersion"].startswith("resource.k8s.io/"):
        version = max(version, DRA_OLDEST)
    small = small_schemas().get((manifest["apiVersion"], manifest["kind"]))
    if small is None:
        return _builtin(manifest, version)
    found = [_line(error) for error in jsonschema.Draft202012Validator(small).iter_errors(manifest)]
    return [*found, *(text for one in _pods(manifest, small) for text in _builtin(one, version))]


@functools.cache
def small_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Schemas by apiVersion and kind."""
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            schema = {
                "type": "object",
                "required": ["apiVersion", "kind", "metadata", *document.get("required", ())],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object", "required": ["name"]},
                    **document["properties"],
                },
            }
            _close(schema)
            schema["properties"]["metadata"].pop("additionalProperties", None)
            found[document["apiVersion"], document["kind"]] = schema
    return found


def from_crd(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the stored version as the API server applies it: fields that it prunes are errors here."""
    (version,) = (one for one in crd["spec"]["versions"] if one["storage"])
    schema = _copy(version["schema"]["openAPIV3Schema"])
    _close(schema)
    schema["properties"]["metadata"].pop("additionalProperties", None)
    return schema


def structural(schema: Any, path: str = "$") -> Iterator[str]:
    """Return why a schema is not structural (Kubernetes, "Specifying a structural schema")."""
    if "type" not in schema and not schema.get("x-kubernetes-int-or-string"):
        yield f"{path}: no type"
    for word in (
        "$ref",
        "$defs",
        "definitions",
        "dependencies",
        "deprecated",
        "patternProperties",
        "uniqueItems",
    ):
        if schema.get(word):
            yield f"{path}: {word}"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: both properties and additionalProperties"
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield f"{path}: {name} is required and not described"
    for name, one in schema.get("properties", {}).items():
        yield from structural(one, f"{path}.{name}")
    if schema.get("type") == "array":
        if "items" not in schema:
            yield f"{path}: an array without items"
            return
        yield from structural(schema["items"], f"{path}[]")
        keys = schema.get("x-kubernetes-list-map-keys", [])
        if (schema.get("x-kubernetes-list-type") == "map") is not bool(keys):
            yield f"{path}: a list-map has keys, and no other list has"
        for key in keys:
            if key not in schema["items"].get("required", ()):
                yield f"{path}: the key {key} must be required"
        if "maxItems" not in schema:
            yield f"{path}: no bound on the number of items"


@functools.cache
def definitions(version: str) -> dict[str, dict[str, Any]]:
    """Return the schema of every type of Kubernetes by its name, such as ``io.k8s.api.core.v1.Node``."""
    need("kubernetes_validate")
    import kubernetes_validate as kubernetes

    folder = Path(str(kubernetes.__file__)).parent / "kubernetes-json-schema" / f"v{version}.0-local"
    found: dict[str, dict[str, Any]] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return found


def _builtin(manifest: dict[str, Any], version: str) -> list[str]:
    need("kubernetes_validate")
    import kubernetes_validate as kubernetes

    try:
        kubernetes.validate(manifest, version, strict=True)
    except kubernetes.ValidationError as error:
        return [_line(error)]
    except kubernetes.SchemaNotFoundError as error:
        return [error.message]
    return [
        f"{name}: {amount!r} is no amount"
        for resources in _find(manifest, "resources")
        if isinstance(resources, dict)
        for part in ("limits", "requests")
        for name, amount in (resources.get(part) or {}).items()
        if not _QUANTITY.fullmatch(str(amount))
    ]


def _line(error: Any) -> str:
    return f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"


def _close(schema: Any) -> None:
    """Refuse unknown fields in every object with listed fields."""
    if not isinstance(schema, dict):
        return
    if schema.pop("x-quantities", False):
        schema.update(
            type="object", additionalProperties={"type": ["string", "integer"], "pattern": _QUANTITY.pattern}
        )
    if "properties" in schema:
        schema.setdefault("type", "object")
        schema.setdefault("additionalProperties", False)
    for name in ("properties", "items", "additionalProperties"):
        part = schema.get(name)
        for one in part.values() if name == "properties" and isinstance(part, dict) else [part]:
            _close(one)


def _pods(value: Any, schema: Any) -> Iterator[dict[str, Any]]:
    """Return the parts that the schema marks as a pod, as objects with a Kubernetes schema."""
    if not isinstance(schema, dict):
        return
    if (what := schema.get("x-pod")) is not None:
        meta = {"name": "checked"}
        if what == "spec":
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": value}
        else:
            yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": value}
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _pods(one, schema.get("properties", {}).get(name, schema.get("additionalProperties")))
    elif isinstance(value, list):
        for one in value:
            yield from _pods(one, schema.get("items"))


def _find(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key == name:
                yield one
            yield from _find(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from _find(one, name)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value
