"""The write verbs: names, resource versions, status, generations and field ownership."""

from __future__ import annotations

import json
import random
import re
import string
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from nodeagent_lab.sim.apiserver import fields, patches, resource_claims
from nodeagent_lab.sim.apiserver.resource_types import ApiKind
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError, conflict, exists, invalid, not_found
from nodeagent_lab.sim.apiserver.schema import apply_schema
from nodeagent_lab.sim.apiserver.store import Store, key_of

Json = dict[str, Any]

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_FIXED = ("uid", "creationTimestamp", "namespace", "name")
_LOOSE_NAMES = {"roles", "rolebindings", "clusterroles", "clusterrolebindings"}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The object and the field manager of a write. ``strict``: unknown fields are refused, else dropped."""

    kind: ApiKind
    namespace: str | None
    name: str | None
    subresource: str
    manager: str
    strict: bool = False
    dry: bool = False


class WriteVerbs:
    def __init__(self, store: Store, seed: int | None = None, gates: Collection[str] = ()) -> None:
        self.store = store
        self._gates = gates
        self.admit: list[Callable[[str, str, Json | None, Json | None], None]] = []
        """Called before each write with the verb, the resource (``nodes/status``), the old and the new object."""
        self._rng = random.Random(seed)  # noqa: S311 - names, not secrets

    def get(self, kind: ApiKind, namespace: str | None, name: str) -> Json:
        obj = self.store.get(kind.group, kind.plural, key_of(namespace, name))
        if obj is None:
            raise not_found(kind.group, kind.plural, name)
        return obj

    def create(self, write: WriteOptions, obj: Json) -> Json:
        kind = write.kind
        obj = self._checked(write, obj)
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(
                self._rng.choices(string.ascii_lowercase + string.digits, k=5)
            )
        if meta.get("resourceVersion"):
            raise ApiRefusedError(400, "resourceVersion should not be set on objects to be created")
        self._name(kind, meta.get("name"))
        if write.namespace and not self.store.get("", "namespaces", write.namespace):
            raise not_found("", "namespaces", write.namespace)
        key = key_of(write.namespace, meta["name"])
        if self.store.get(kind.group, kind.plural, key) is not None:
            raise exists(kind.group, kind.plural, meta["name"])
        if kind.status and kind.plural not in ("nodes", "customresourcedefinitions"):
            obj.pop("status", None)
        managers: list[fields.FieldManager] = []
        fields.updated(kind, None, obj, managers, self._manager(write, "Update"))
        return self._insert(write, obj, managers)

    def _insert(self, write: WriteOptions, obj: Json, managers: list[fields.FieldManager]) -> Json:
        kind, meta = write.kind, obj["metadata"]
        if write.namespace is not None:
            meta["namespace"] = write.namespace
        meta["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = _now()
        if kind.counts:
            meta["generation"] = 1
        self._fit(write, obj, None)
        self._admit("create", write, None, obj)
        meta["managedFields"] = fields.write(kind, managers)
        return obj if write.dry else self._keep(kind, write.namespace, obj)

    def update(self, write: WriteOptions, obj: Json) -> Json:
        obj = self._checked(write, obj)
        name = write.name or ""
        live = self.get(write.kind, write.namespace, name)
        if obj["metadata"].get("name") not in (None, name):
            raise ApiRefusedError(
                400,
                f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({name})",
            )
        if write.kind.custom and not obj["metadata"].get("resourceVersion"):
            why = "Invalid value: 0x0: must be specified for an update"
            raise invalid(write.kind.group, write.kind.kind, name, [("metadata.resourceVersion", why)])
        return self._changed(write, live, obj)

    def patch(self, write: WriteOptions, content_type: str, body: bytes) -> Json:
        live = self.get(write.kind, write.namespace, write.name or "")
        patch = _parsed(body)
        if content_type == "application/json-patch+json":
            new = patches.json_patched(live, patch)
        elif content_type == "application/merge-patch+json":
            new = patches.merge_patched(live, patch)
        elif content_type == "application/strategic-merge-patch+json" and not write.kind.custom:
            new = patches.strategic_merge_patched(write.kind, live, patch)
        else:
            raise ApiRefusedError(
                415,
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )
        return self._changed(write, live, self._checked(write, new))

    def apply(self, write: WriteOptions, body: bytes, *, force: bool) -> Json:
        if not write.manager:
            raise invalid(
                "meta.k8s.io",
                "PatchOptions",
                "",
                [("fieldManager", "Required value: is required for apply patch")],
            )
        config = self._checked(write, _parsed(body))
        meta = config["metadata"]
        if meta.get("managedFields"):
            raise ApiRefusedError(400, "metadata.managedFields must be nil")
        if config.get("kind") != write.kind.kind or config.get("apiVersion") != write.kind.api_version:
            raise ApiRefusedError(400, f"the object is no {write.kind.kind} of {write.kind.api_version}")
        if meta.get("name") != write.name:
            raise ApiRefusedError(400, f"metadata.name must be {write.name!r}")
        live = self.store.get(write.kind.group, write.kind.plural, key_of(write.namespace, write.name or ""))
        if live is None and write.subresource:
            raise not_found(write.kind.group, write.kind.plural, write.name or "")
        wanted = meta.pop("resourceVersion", None)
        if wanted and (live is None or live["metadata"]["resourceVersion"] != wanted):
            raise _modified(write)
        config = _part(write, config)
        managers = fields.read(live)
        merged = fields.apply(write.kind, live, config, managers, self._manager(write, "Apply"), force=force)
        if live is None:
            self._name(write.kind, meta.get("name"))
            if write.namespace and not self.store.get("", "namespaces", write.namespace):
                raise not_found("", "namespaces", write.namespace)
            return self._insert(write, merged, managers)
        return self._changed(write, live, merged, managers)

    def evict(self, write: WriteOptions, eviction: Json) -> Json:
        """Admission sees the Eviction, and not the removal of the pod that follows (``EvictionREST.Create`` of
        pkg/registry/core/pod/storage)."""
        meta = {"name": write.name, "namespace": write.namespace, "creationTimestamp": None}
        meta = (eviction.get("metadata") or {}) | meta
        self._admit("create", write, None, {**eviction, "metadata": meta})
        options = eviction.get("deleteOptions") or {}
        uid, pod = (
            (options.get("preconditions") or {}).get("uid"),
            self.get(write.kind, write.namespace, write.name or ""),
        )
        if uid and uid != pod["metadata"]["uid"] and (pod.get("status") or {}).get("phase") != "Pending":
            why = (
                f"the UID in the precondition ({uid}) does not match the UID in record ({pod['metadata']['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict("", "Pod", write.name or "", why)
        return self._remove(write, options, admit=False)

    def bind(self, write: WriteOptions, binding: Json) -> Json:
        """Set the node of a pod and merge the annotations of the Binding into its own, in one write.

        ``BindingREST`` of pkg/registry/core/pod/storage. Admission sees the Binding, and no update of the pod.
        """
        meta: Json = dict(binding.get("metadata") or {})
        meta |= {"name": write.name, "namespace": write.namespace, "creationTimestamp": None}
        self._admit("create", write, None, {**binding, "metadata": meta})
        pod = self.get(write.kind, write.namespace, write.name or "")
        for field, wanted in (("uid", meta.get("uid")), ("resourceVersion", meta.get("resourceVersion"))):
            if wanted and pod["metadata"].get(field) != wanted:
                raise conflict(
                    "", "pods/binding", write.name or "", f"Precondition failed: {field} in precondition"
                )
        spec = pod.setdefault("spec", {})
        for refused, why in (
            (pod["metadata"].get("deletionTimestamp"), "is being deleted, cannot be assigned to a host"),
            (spec.get("nodeName"), f"is already assigned to node {spec.get('nodeName')!r}"),
            (spec.get("schedulingGates"), "has non-empty .spec.schedulingGates"),
        ):
            if refused:
                raise conflict("", "pods/binding", write.name or "", f"pod {write.name} {why}")
        spec["nodeName"] = (binding.get("target") or {}).get("name", "")
        pod["metadata"]["annotations"] = (pod["metadata"].get("annotations") or {}) | (
            meta.get("annotations") or {}
        )
        return self._keep(write.kind, write.namespace, pod)

    def delete(self, write: WriteOptions, options: Json) -> Json:
        return self._remove(write, options, admit=True)

    def _remove(self, write: WriteOptions, options: Json, *, admit: bool) -> Json:
        kind = write.kind
        live = self.get(kind, write.namespace, write.name or "")
        meta = live["metadata"]
        for field, wanted in (options.get("preconditions") or {}).items():
            if wanted and meta.get(field) != wanted:
                label = {"uid": "UID", "resourceVersion": "ResourceVersion"}.get(field, field)
                has = meta.get(field)
                why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {has}"
                raise conflict(kind.group, kind.plural, write.name or "", why)
        if admit:
            self._admit("delete", write, live, None)
        if write.dry:
            return live
        if meta.get("finalizers"):
            if not meta.get("deletionTimestamp"):
                meta["deletionTimestamp"] = _now()
                return self._keep(kind, write.namespace, live)
            return live
        return self.store.remove(kind.group, kind.plural, key_of(write.namespace, write.name or ""))

    # --- storing ------------------------------------------------------------------------------------------

    def _changed(
        self, write: WriteOptions, live: Json, new: Json, managers: list[fields.FieldManager] | None = None
    ) -> Json:
        """Replace ``live`` by ``new``, unless they are equal. ``managers``: the owners after an apply."""
        kind, meta = write.kind, dict(new.get("metadata") or {})
        new = _part(write, {**new, "metadata": meta}, live)
        meta = new["metadata"]
        wanted = meta.get("resourceVersion")
        if managers is None and wanted and wanted != live["metadata"]["resourceVersion"]:
            raise _modified(write)
        if meta.get("uid") not in (None, live["metadata"]["uid"]):
            why = (
                f"Precondition failed: UID in precondition: {meta['uid']}, "
                f"UID in object meta: {live['metadata']['uid']}"
            )
            raise conflict(kind.group, kind.plural, write.name or "", why)
        for field in (*_FIXED, "generation", "resourceVersion", "deletionTimestamp", "managedFields"):
            meta.pop(field, None)
            if field in live["metadata"]:
                meta[field] = live["metadata"][field]
        new["apiVersion"], new["kind"] = kind.api_version, kind.kind
        if kind.plural == "resourceclaims" and write.subresource:
            resource_claims.drop_deallocated(new, live)
        self._fit(write, new, live)
        if managers is None:
            managers = fields.read(live)
            fields.updated(kind, live, new, managers, self._manager(write, "Update"))
        same = _bare(new) == _bare(live)
        if same and _owned(managers) == _owned(fields.read(live)):
            return live
        self._admit("update", write, live, new)
        if kind.counts and _counted(new) != _counted(live):
            meta["generation"] = live["metadata"].get("generation", 0) + 1
        meta["managedFields"] = fields.write(kind, managers)
        if write.dry:
            return new
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return self.store.remove(kind.group, kind.plural, key_of(write.namespace, meta["name"]))
        return self._keep(kind, write.namespace, new)

    def _keep(self, kind: ApiKind, namespace: str | None, obj: Json) -> Json:
        return self.store.write(kind.group, kind.plural, key_of(namespace, obj["metadata"]["name"]), obj)

    def _manager(self, write: WriteOptions, operation: str) -> fields.FieldManager:
        return fields.FieldManager(write.manager, operation, write.subresource, set(), _now())

    def _admit(self, verb: str, write: WriteOptions, old: Json | None, new: Json | None) -> None:
        plural, subresource = write.kind.plural, write.subresource
        for admission in self.admit:
            admission(verb, f"{plural}/{subresource}" if subresource else plural, old, new)

    def _fit(self, write: WriteOptions, obj: Json, live: Json | None) -> None:
        """Apply the schema and the rules of the kind, and check the labels of every kind."""
        kind, meta = write.kind, obj["metadata"]
        errors = [
            (f"metadata.labels.{key}", f"Invalid value: {value!r}")
            for key, value in (meta.get("labels") or {}).items()
            if not isinstance(value, str) or len(value) > 63 or not _LABEL.match(value)
        ]
        if kind.schema is not None:
            errors += apply_schema(kind.schema, obj, strict=write.strict)
        if kind.prepare is not None:
            kind.prepare(obj, self._gates)
        if kind.errors is not None:
            errors += kind.errors(obj, live)
        if errors:
            raise invalid(kind.group, kind.kind, str(meta.get("name", "")), errors)

    def _checked(self, write: WriteOptions, obj: Any) -> Json:
        if not isinstance(obj, dict):
            raise ApiRefusedError(400, "the body of the request is no object")
        meta = obj.get("metadata")
        if not isinstance(meta, dict):
            raise ApiRefusedError(400, "the object has no metadata")
        obj.setdefault("apiVersion", write.kind.api_version)
        obj.setdefault("kind", write.kind.kind)
        if (obj["apiVersion"], obj["kind"]) != (write.kind.api_version, write.kind.kind):
            raise ApiRefusedError(
                400,
                f"the object provided is unrecognized: {obj['apiVersion']} {obj['kind']} where "
                f"{write.kind.api_version} {write.kind.kind} is expected",
            )
        if meta.get("namespace") not in (None, "", write.namespace):
            raise ApiRefusedError(
                400, "the namespace of the provided object does not match the namespace sent on the request"
            )
        return obj

    def _name(self, kind: ApiKind, name: Any) -> None:
        if not name:
            raise invalid(
                kind.group,
                kind.kind,
                "",
                [("metadata.name", "Required value: name or generateName is required")],
            )
        if kind.plural not in _LOOSE_NAMES and (len(name) > 253 or not _NAME.match(name)):
            why = (
                f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case letters'
            )
            raise invalid(kind.group, kind.kind, name, [("metadata.name", why)])


def _part(write: WriteOptions, obj: Json, live: Json | None = None) -> Json:
    """The part that the endpoint writes: ``/status`` only the status, the object itself all but the status."""
    if not write.kind.status:
        return obj
    live = live if live is not None else {}
    if write.subresource == "status":
        kept = {name: value for name, value in live.items() if name != "status"}
        kept["metadata"] = dict(live.get("metadata") or {}) | {
            name: obj["metadata"][name]
            for name in ("name", "resourceVersion", "uid")
            if name in obj["metadata"]
        }
        return {**kept, **{name: obj[name] for name in ("apiVersion", "kind", "status") if name in obj}}
    rest = {name: value for name, value in obj.items() if name != "status"}
    return {**rest, "status": live["status"]} if "status" in live else rest


def _modified(write: WriteOptions) -> ApiRefusedError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(write.kind.group, write.kind.plural, write.name or "", why)


def _bare(obj: Json) -> Json:
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}
    return {**obj, "metadata": meta}


def _counted(obj: Json) -> Json:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _owned(managers: list[fields.FieldManager]) -> set[tuple[tuple[str, str, str], frozenset[fields.Path]]]:
    return {(manager.key, frozenset(manager.fields)) for manager in managers}


def _parsed(body: bytes) -> Any:
    """The body as JSON, or as YAML, which an apply may be."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise ApiRefusedError(400, f"error decoding YAML: {error}") from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
