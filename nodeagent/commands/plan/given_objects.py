"""Nodes and reports that were read from a file, in the place of an API server: `nodeagent maintain --from`.

A patch changes the copy here and becomes a line of the output, which somebody else applies with rights of his own:
``kubectl nodeagent maintain`` does, by ``kubectl patch``. Each patch has the version of the object that was read, so
that the server refuses it if somebody has changed the object since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import Partial, Resource

PATCH = "patch"
"""The first word of a line with a patch; resource, namespace (``-`` without one), name, merge patch and the annotation
before it as JSON follow, separated by tabs."""


class GivenObjects:
    """The part of ``ApiClient`` that planned work needs. ``patches`` are the lines so far."""

    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        self.patches: list[str] = []
        self._of_kind: dict[str, list[dict[str, Any]]] = {}
        for document in documents:
            metadata = document.get("metadata")
            if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
                continue
            self._of_kind.setdefault(str(document.get("kind")), []).append(document)

    async def list_each(
        self, resource: Resource[Any], take: Callable[[Any], None], _forget: Callable[[], None]
    ) -> None:
        """Give each object of a kind to ``take``."""
        for document in self._of_kind.get(resource.kind, ()):
            take(msgspec.convert(document, resource.struct, strict=False))

    async def get(self, resource: Resource[Partial], name: str, *, namespace: str | None = None) -> Partial:
        """Raises ``ApiError``."""
        return msgspec.convert(self._find(resource, name, namespace), Partial, strict=False)

    async def patch(
        self, resource: Resource[Partial], name: str, body: dict[str, Any], *, namespace: str | None = None
    ) -> None:
        """Change the one annotation of the body in the copy, and keep the patch. Raises ``ApiError``."""
        metadata = self._find(resource, name, namespace)["metadata"]
        ((key, value),) = body["metadata"]["annotations"].items()
        annotations = dict(metadata.get("annotations") or {})
        before = annotations.pop(key, "")
        metadata["annotations"] = annotations if value is None else {**annotations, key: value}
        texts = (json.dumps(text, ensure_ascii=False) for text in (body, before))
        self.patches.append("\t".join((PATCH, resource.plural, namespace or "-", name, *texts)))

    async def close(self) -> None:
        """There is no connection."""

    def _find(self, resource: Resource[Any], name: str, namespace: str | None) -> dict[str, Any]:
        for document in self._of_kind.get(resource.kind, ()):
            found = document["metadata"]
            if found["name"] == name and (not resource.namespaced or found.get("namespace") == namespace):
                return document
        path = resource.path(namespace, name)
        raise ApiError("get", path, 404, "NotFound", "it is not among the objects of --from")
