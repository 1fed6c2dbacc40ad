"""A stand-in for a switch with gNMI: an in-process server with a tree of openconfig-lldp and the behavior of several
vendors.

Compared with the OpenConfig models, the gNMI specification and the source of sonic-gnmi; never with a switch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from nodeagent.features.switches import gnmi_pb2 as pb

Elements = tuple[tuple[str, dict[str, str]], ...]

LIST_KEYS = {"interface": "name", "neighbor": "id", "capability": "name", "mgmt-address": "address"}


def neighbor(name: str, chassis: str, port: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    """An entry of the neighbor list in the form of RFC 7951."""
    return {
        "id": more.get("id", "1"),
        "state": {
            "id": more.get("id", "1"),
            "system-name": name,
            "chassis-id": chassis,
            "chassis-id-type": "MAC_ADDRESS",
            "port-id": port,
            "port-id-type": "INTERFACE_NAME",
            "ttl": 120,
            **more.get("state", {}),
        },
        "capabilities": {
            "capability": [
                {
                    "name": f"openconfig-lldp-types:{word}",
                    "state": {"name": f"openconfig-lldp-types:{word}", "enabled": True},
                }
                for word in capabilities
            ]
        },
        "mgmt-addresses": {
            "mgmt-address": [{"address": one, "state": {"address": one}} for one in more.get("addresses", ())]
        },
    }


def tree(name: str, ports: dict[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "lldp": {
            "state": {
                "enabled": True,
                "system-name": name,
                "chassis-id": "02:00:00:00:00:01",
                "chassis-id-type": "MAC_ADDRESS",
            },
            "interfaces": {
                "interface": [
                    {
                        "name": port,
                        "state": {"name": port, "counters": {"frame-in": "17"}},
                        "neighbors": {"neighbor": list(found)},
                    }
                    for port, found in ports.items()
                ]
            },
        }
    }  # fmt: skip


@dataclass
class Habits:
    """``cut`` is the depth at which paths end and values begin: 99 is leaf by leaf. ``module`` is a name prefix."""

    subscribe: bool = True
    encodings: tuple[int, ...] = (pb.Encoding.JSON, pb.Encoding.PROTO, pb.Encoding.JSON_IETF)
    cut: int = 2
    module: str = ""
    password: str | None = None
    hang: bool = False
    stays_open: bool = False
    origin: str | None = None
    """The origin that every path must have; ``None``: any."""
    target: bool = False
    """The prefix must have a target."""
    types: tuple[int, ...] = (
        pb.GetRequest.DataType.ALL,
        pb.GetRequest.DataType.STATE,
        pb.GetRequest.DataType.OPERATIONAL,
    )
    keys: str | None = None
    """The key that an entry of a list must have in a path. Without it the answer is empty."""
    raw: bytes | None = None
    garbage: bytes | None = None
    """Sent in place of each message."""
    asked: list[tuple[str, int]] = field(default_factory=list)


class Server:
    """``async with Server(tree) as server``; it listens on ``port`` of 127.0.0.1."""

    def __init__(
        self, tree: dict[str, Any], habits: Habits | None = None, tls: grpc.ServerCredentials | None = None
    ) -> None:
        self.tree, self.habits = tree, habits or Habits()
        self._tls = tls
        self.port = 0

    async def __aenter__(self) -> Server:
        self._server = grpc.aio.server()
        handlers = {
            "Get": grpc.unary_unary_rpc_method_handler(self._get, pb.GetRequest.FromString, self._encoded),
            "Subscribe": grpc.stream_stream_rpc_method_handler(
                self._subscribe, pb.SubscribeRequest.FromString, self._encoded
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gnmi.gNMI", handlers),))
        where = "127.0.0.1:0"
        self.port = (
            self._server.add_insecure_port(where)
            if self._tls is None
            else self._server.add_secure_port(where, self._tls)
        )
        await self._server.start()
        return self

    def _encoded(self, answer: pb.GetResponse | pb.SubscribeResponse) -> bytes:
        return answer.SerializeToString() if self.habits.garbage is None else self.habits.garbage

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def _get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:
        await self._admit("get", request.encoding, context)
        await self._check_paths(request.prefix, request.path, context)
        if request.type not in self.habits.types:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unsupported request type")
        return pb.GetResponse(notification=list(self._notifications(request.path, request.encoding)))

    async def _subscribe(
        self, requests: AsyncIterator[pb.SubscribeRequest], context: Any
    ) -> AsyncIterator[pb.SubscribeResponse]:
        asked = (await anext(requests)).subscribe
        assert asked.mode == pb.SubscriptionList.Mode.ONCE
        await self._admit("subscribe", asked.encoding, context)
        await self._check_paths(asked.prefix, [one.path for one in asked.subscription], context)
        if not self.habits.subscribe:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no ONCE here")
        for one in self._notifications([one.path for one in asked.subscription], asked.encoding):
            yield pb.SubscribeResponse(update=one)
        yield pb.SubscribeResponse(sync_response=True)
        if self.habits.stays_open:
            await asyncio.Event().wait()

    async def _admit(self, verb: str, encoding: int, context: Any) -> None:
        habits = self.habits
        habits.asked.append((verb, encoding))
        metadata = dict(context.invocation_metadata())
        if habits.password is not None and metadata.get("password") != habits.password:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"not with {metadata.get('password')}")
        if habits.hang:
            await asyncio.Event().wait()
        if encoding not in habits.encodings:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported encoding")

    async def _check_paths(self, prefix: pb.Path, paths: Sequence[pb.Path], context: Any) -> None:
        habits = self.habits
        if habits.target and not prefix.target:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Empty target data not supported yet")
        if habits.origin is not None and any(path.origin != habits.origin for path in paths):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such origin")

    def _notifications(self, paths: Sequence[pb.Path], encoding: int) -> Any:
        habits = self.habits
        if habits.raw is not None:
            yield pb.Notification(
                update=[
                    pb.Update(path=path(("lldp", {})), val=pb.TypedValue(json_ietf_val=habits.raw)),
                ]
            )
            return
        for asked in paths:
            if habits.keys and any(
                one.name in LIST_KEYS and one.key.get(LIST_KEYS[one.name]) != habits.keys
                for one in asked.elem
            ):
                continue
            for at, value in find(self.tree, [one.name for one in asked.elem], ()):
                for deep, inner in cut(at, value, habits.cut):
                    yield pb.Notification(
                        timestamp=1,
                        prefix=path(*deep[:1]),
                        update=[
                            pb.Update(
                                path=path(*deep[1:], module=habits.module), val=typed(inner, encoding, habits)
                            )
                        ],
                    )


def path(*elements: tuple[str, dict[str, str]], module: str = "") -> pb.Path:
    return pb.Path(elem=[pb.PathElem(name=module + name, key=keys) for name, keys in elements])


def find(value: Any, names: list[str], at: Elements) -> Any:
    """Resolve a path without keys: it means every entry of its lists."""
    if not names:
        yield at, value
    elif isinstance(value[names[0]], list):
        for item in value[names[0]]:
            key = LIST_KEYS[names[0]]
            yield from find(item, names[1:], (*at, (names[0], {key: item[key]})))
    else:
        yield from find(value[names[0]], names[1:], (*at, (names[0], {})))


def cut(at: Elements, value: Any, depth: int) -> Any:
    """Split a value: ``depth`` more levels in the path, the rest in the value."""
    if depth <= 0 or not isinstance(value, dict | list):
        yield at, value
    elif isinstance(value, list):
        name = at[-1][0]
        for item in value:
            yield from cut((*at[:-1], (name, {LIST_KEYS[name]: item[LIST_KEYS[name]]})), item, depth - 1)
    else:
        for name, inner in value.items():
            yield from cut((*at, (name, {})), inner, depth - 1)


def typed(value: Any, encoding: int, habits: Habits) -> pb.TypedValue:
    if encoding == pb.Encoding.PROTO and not isinstance(value, dict | list):
        if isinstance(value, bool):
            return pb.TypedValue(bool_val=value)
        if isinstance(value, int):
            return pb.TypedValue(uint_val=value)
        return pb.TypedValue(string_val=value)
    raw = json.dumps(named(value, habits.module)).encode()
    if encoding == pb.Encoding.JSON_IETF:
        return pb.TypedValue(json_ietf_val=raw)
    return pb.TypedValue(json_val=raw)


def named(value: Any, module: str) -> Any:
    """Add the module to the names of the top level, as RFC 7951 does."""
    return {module + name: inner for name, inner in value.items()} if isinstance(value, dict) else value
