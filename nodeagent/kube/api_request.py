"""One request to an API server, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

OBJECT_MAX = 4 << 20
"""Bytes of an object or an event of a watch. etcd stores objects of up to 1.5 MiB by default."""


class ApiRequest(msgspec.Struct, frozen=True):
    """``verb`` and ``resource`` are RBAC's words (``patch``, ``nodes/status``), for errors. ``answer_max``: bytes."""

    verb: str
    method: str
    path: str
    resource: str
    group: str
    namespace: str | None = None
    query: Mapping[str, str] = {}
    body: bytes | None = None
    answer_max: int = OBJECT_MAX
    content_type: str = "application/json"
    accept: str = "application/json"
