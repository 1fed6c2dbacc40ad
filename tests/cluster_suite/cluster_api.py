"""The API server, by the official client's connection: a kubeconfig with any kind of login, or a token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

Object = dict[str, Any]
Found = TypeVar("Found")

POLL_S = 0.5
CALL_S = 30
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class BrokenError(Exception):
    """A promise does not hold. The message says what was expected and what was seen."""


class SkippedError(Exception):
    """This cluster cannot show the promise. The message says why, and what would make it possible."""


class RefusedError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ClusterApi:
    """Requests by path, with objects as dictionaries. Each has a deadline."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._connection = connection

    @classmethod
    def from_kubeconfig(cls, path: str | None, context: str | None) -> ClusterApi:
        return cls(config.new_client_from_config(config_file=path, context=context))

    def with_token(self, token: str) -> ClusterApi:
        """The same server, asked by the bearer of ``token`` and without any other login of the kubeconfig."""
        settings = copy(self._connection.configuration)
        settings.cert_file = settings.key_file = settings.refresh_api_key_hook = None
        settings.username = settings.password = None
        settings.api_key, settings.api_key_prefix = {"BearerToken": f"Bearer {token}"}, {}
        return ClusterApi(client.ApiClient(settings))

    @property
    def host(self) -> str:
        return str(self._connection.configuration.host)

    def call(
        self, method: str, path: str, body: Any = None, *, content: str = "application/json", **query: Any
    ) -> Any:
        headers = {"Accept": "application/json, */*", "Content-Type": content}
        request = self._connection.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._connection.call_api(*request, _request_timeout=CALL_S)
            data: bytes = answer.read()
        except ApiException as error:
            raise RefusedError(error.status, error.reason) from error
        if answer.status >= 400:
            raise RefusedError(answer.status, _message(data))
        return json.loads(data) if data[:1] in (b"{", b"[") else data.decode(errors="replace")

    def get(self, path: str, **query: Any) -> Object:
        return self.call("GET", path, **query)

    def find(self, path: str, **query: Any) -> Object | None:
        """None if there is no such object, or no such kind of objects."""
        try:
            return self.get(path, **query)
        except RefusedError as refused:
            if refused.status == 404:
                return None
            raise

    def items(self, path: str, **query: Any) -> list[Object]:
        """All objects of a list, in pages."""
        found: list[Object] = []
        while True:
            page = self.find(path, limit=500, **query)
            if page is None:
                return found
            found += page["items"]
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return found

    def delete(self, path: str, **options: Any) -> None:
        try:
            self.call("DELETE", path, options or None)
        except RefusedError as refused:
            if refused.status != 404:
                raise


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")


def until(seconds: float, expected: str, look: Callable[[], Found | None]) -> Found:
    """The first answer of ``look`` that is neither None nor False; after ``seconds`` the promise is broken. A
    ``BrokenError`` that ``look`` raises says why not yet."""
    end = time.monotonic() + seconds
    while True:
        reason = ""
        try:
            if found := look():
                return found
        except BrokenError as not_yet:
            reason = f": {not_yet}"
        if time.monotonic() > end:
            raise BrokenError(f"{expected}: not within {seconds:.0f} s{reason}")
        time.sleep(POLL_S)
