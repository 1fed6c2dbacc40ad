"""Read a switch's openconfig-lldp by gNMI: Subscribe in mode ONCE, or Get.

Servers differ in what they accept: Subscribe or Get, an encoding, a type of data (sonic-gnmi accepts only ALL), an
origin and a target (sonic-gnmi requires both), ``[name=*]`` for a list. ``METHODS`` are tried in order, and the one
that works is stored for each switch. A rejection of the method leads to the next one, and so does an answer without
neighbors, because some servers answer an unknown path with nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError, Message

from nodeagent.fabric.reports import shown
from nodeagent.features.switches import gnmi_pb2 as pb
from nodeagent.features.switches import openconfig
from nodeagent.features.switches.credentials import SwitchCredentials
from nodeagent.features.switches.openconfig import Step, Steps
from nodeagent.features.switches.switch_reading import SwitchError, SwitchReading
from nodeagent.features.switches.switch_settings import GnmiSettings

Answer = TypeVar("Answer", bound=Message)

PORT = 9339
ANSWER_MAX = 16 << 20
MESSAGES_MAX = 100_000
PATHS = (("lldp", "state"), ("lldp", "interfaces", "interface", "neighbors"))
ORIGIN = "openconfig"
TARGET = "OC-YANG"
"""The name that sonic-gnmi has for the OpenConfig models; other switches ignore it."""
_STATE, _ALL = pb.GetRequest.DataType.STATE, pb.GetRequest.DataType.ALL
_JSON_IETF, _JSON, _PROTO = pb.Encoding.JSON_IETF, pb.Encoding.JSON, pb.Encoding.PROTO


class Method(NamedTuple):
    """One form of the request. ``get`` is the type of data of a Get; without it the request is Subscribe ONCE.

    Answers are decoded in any encoding. ``addressed``: with origin and target. ``keyed``: with ``[name=*]``.
    """

    get: pb.GetRequest.DataType | None
    encoding: pb.Encoding
    addressed: bool = True
    keyed: bool = False


_FORMS: tuple[tuple[pb.GetRequest.DataType | None, pb.Encoding], ...] = (
    (None, _JSON_IETF),
    (None, _PROTO),
    (_STATE, _JSON_IETF),
    (_ALL, _JSON_IETF),
    (_STATE, _JSON),
    (_ALL, _JSON),
)
METHODS = (
    *(Method(get, encoding) for get, encoding in _FORMS),
    *(Method(get, encoding, addressed=False) for get, encoding in _FORMS),
    Method(None, _JSON_IETF, keyed=True),
    Method(None, _PROTO, keyed=True),
    Method(_ALL, _JSON_IETF, keyed=True),
)
_NEXT_METHOD = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
)
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(slots=True)
class GnmiReader:
    """Reads LLDP from switches by gNMI."""

    settings: GnmiSettings = field(default_factory=GnmiSettings)
    port: int = PORT
    _methods: dict[str, Method] = field(default_factory=dict)
    """By address, the method that works."""

    async def read(self, address: str, credentials: SwitchCredentials) -> SwitchReading:
        values: list[tuple[Steps, Any]] = []
        without_neighbors: SwitchReading | None = None
        async with self._channel(address, credentials) as channel:
            first = self._methods.get(address, METHODS[0])
            for method in (first, *(method for method in METHODS if method != first)):
                values.clear()
                try:
                    async for notification in _notifications(channel, method, _metadata(credentials)):
                        values += _leaves(notification)
                except grpc.aio.AioRpcError as error:
                    if error.code() in _NEXT_METHOD:
                        continue
                    raise _failure(address, self.port, error) from None
                reading = openconfig.reading_of(values)
                if reading.neighbors:
                    self._methods[address] = method
                    return reading
                if without_neighbors is None or reading.name:
                    without_neighbors = reading
        if without_neighbors is None:
            raise SwitchError(f"{address} port {self.port} supports neither gNMI Subscribe nor Get for LLDP")
        return without_neighbors

    def _channel(self, address: str, credentials: SwitchCredentials) -> grpc.aio.Channel:
        target = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", ANSWER_MAX),
            ("grpc.enable_retries", 0),
            # The controller's HTTP proxy is for the API server only.
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not self.settings.tls:
            return grpc.aio.insecure_channel(target, options)
        if self.settings.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.settings.server_name))
        key, chain = credentials.raw("tls.key"), credentials.raw("tls.crt")
        if (key is None) != (chain is None):
            raise SwitchError(
                f"{credentials.folder} has only one of tls.crt and tls.key; both are needed", "refused"
            )
        tls = grpc.ssl_channel_credentials(credentials.raw("ca.crt"), key, chain)
        return grpc.aio.secure_channel(target, tls, options)


def _metadata(credentials: SwitchCredentials) -> tuple[tuple[str, str], ...]:
    pairs = ((name, credentials.text(name)) for name in ("username", "password"))
    metadata = tuple((name, value) for name, value in pairs if value)
    if not all(value.isascii() and value.isprintable() for _, value in metadata):
        raise SwitchError(
            f"{credentials.folder}/username or password has characters that gRPC cannot send: only ASCII",
            "refused",
        )
    return metadata


async def _notifications(
    channel: grpc.aio.Channel, method: Method, metadata: tuple[tuple[str, str], ...]
) -> AsyncIterator[pb.Notification]:
    paths = [_path(path, method) for path in PATHS]
    prefix = pb.Path(target=TARGET) if method.addressed else None
    if method.get is not None:
        get: grpc.aio.UnaryUnaryMultiCallable[pb.GetRequest, bytes] = channel.unary_unary(
            "/gnmi.gNMI/Get", pb.GetRequest.SerializeToString
        )
        request = pb.GetRequest(prefix=prefix, path=paths, type=method.get, encoding=method.encoding)
        for notification in _decoded(pb.GetResponse, await get(request, metadata=metadata)).notification:
            yield notification
        return
    call: grpc.aio.StreamStreamMultiCallable[pb.SubscribeRequest, bytes] = channel.stream_stream(
        "/gnmi.gNMI/Subscribe", pb.SubscribeRequest.SerializeToString
    )
    subscriptions = pb.SubscriptionList(
        prefix=prefix,
        subscription=[pb.Subscription(path=path) for path in paths],
        mode=pb.SubscriptionList.Mode.ONCE,
        encoding=method.encoding,
    )
    stream = call(iter((pb.SubscribeRequest(subscribe=subscriptions),)), metadata=metadata)
    try:
        count = size = 0
        async for content in stream:
            count += 1
            size += len(content)
            if count > MESSAGES_MAX or size > ANSWER_MAX:
                raise SwitchError(
                    f"the subscription sent more than {MESSAGES_MAX} answers, or more than {ANSWER_MAX} bytes"
                )
            answer = _decoded(pb.SubscribeResponse, content)
            if answer.HasField("sync_response"):
                return
            yield answer.update
    finally:
        stream.cancel()


def _decoded(answer: type[Answer], content: bytes) -> Answer:
    """gRPC's own deserializer would make a traceback and ``None`` of what cannot be read."""
    try:
        return answer.FromString(content)
    except DecodeError as error:
        raise SwitchError(f"the answer is no gNMI {answer.DESCRIPTOR.name}: {error}") from None


def _path(names: Iterable[str], method: Method) -> pb.Path:
    keys = {"interface": {"name": "*"}} if method.keyed else {}
    elements = [pb.PathElem(name=name, key=keys.get(name, {})) for name in names]
    return pb.Path(origin=ORIGIN if method.addressed else "", elem=elements)


def _leaves(notification: pb.Notification) -> Iterator[tuple[Steps, Any]]:
    prefix = tuple(_steps(notification.prefix.elem))
    for update in notification.update:
        steps = (*prefix, *_steps(update.path.elem))
        yield from openconfig.leaves(steps, _value(update.val))


def _steps(elements: Iterable[pb.PathElem]) -> Iterator[Step]:
    for element in elements:
        yield openconfig.step(element.name, element.key.items())


def _value(value: pb.TypedValue) -> Any:
    kind = value.WhichOneof("value")
    if kind in ("json_val", "json_ietf_val"):
        try:
            return msgspec.json.decode(getattr(value, kind))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SwitchError(f"the answer is not JSON: {shown(str(error))}") from None
    if kind == "leaflist_val":
        return [_value(element) for element in value.leaflist_val.element]
    return None if kind is None else getattr(value, kind)


def _failure(address: str, port: int, error: grpc.aio.AioRpcError) -> SwitchError:
    """The message omits the switch's own text on a refusal: it may contain the credentials."""
    where, code = f"{address} port {port}", error.code()
    if code in _REFUSED:
        return SwitchError(f"{where} refuses username and password ({code.name})", "refused")
    if code is grpc.StatusCode.UNAVAILABLE:
        details = shown(error.details() or "")
        return SwitchError(f"{where} is not reachable by gNMI, or not trusted: {details}", "unreachable")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SwitchError(f"{where} does not answer gNMI in time", "timeout")
    return SwitchError(f"{where}: gNMI failed: {code.name}")
