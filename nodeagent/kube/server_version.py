"""The version of Kubernetes that the API server has."""

from __future__ import annotations

import re

import msgspec

from nodeagent.kube.client import ApiClient
from nodeagent.kube.resource import Resource


class ServerVersion(msgspec.Struct):
    """The answer at ``/version``; ``minor`` may end with a sign: ``36+``."""

    major: str = ""
    minor: str = ""


class _PlainPath(Resource[ServerVersion]):
    __slots__ = ()

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:  # noqa: ARG002
        return f"/{self.plural}"


_VERSION = _PlainPath("", "", "version", "", False, ServerVersion)


async def server_version(client: ApiClient) -> tuple[int, int]:
    """``(1, 36)``; ``(0, 0)`` if the answer has no version. Every user may read it. Raises ``ApiError``."""
    version = await client.get(_VERSION, "")
    major, minor = (re.match(r"\d{1,4}", text) for text in (version.major, version.minor))
    return (int(major[0]), int(minor[0])) if major and minor else (0, 0)
