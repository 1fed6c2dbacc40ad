"""gNMI: a switch's openconfig-lldp, subscribed to once, or got where a switch has no such subscription.

The law of this file: four ways of asking are tried, in an order that most switches understand at once; the one
that has worked is remembered for each switch. Only a refusal of the way itself leads to the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import msgspec

from nodeagent.fabric.reports import shown
from nodeagent.switches import gnmi_pb2 as pb
from nodeagent.switches import openconfig
from nodeagent.switches.answers import Reading, SwitchError
from nodeagent.switches.openconfig import Step, Steps
from nodeagent.switches.secret import Secret
from nodeagent.switches.switch_settings import GnmiSettings

PORT = 9339
ANSWER_MAX = 16 << 20
MESSAGES_MAX = 100_000
PATHS = (("lldp", "state"), ("lldp", "interfaces", "interface", "neighbors"))
WAYS = (
    (True, pb.Encoding.JSON_IETF),
    (True, pb.Encoding.PROTO),
    (False, pb.Encoding.JSON_IETF),
    (False, pb.Encoding.JSON),
)
"""Subscribe or get, and the encoding asked for. Answers are read in whichever they come."""
_OTHER_WAY = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(slots=True)
class Gnmi:
    """Reads LLDP from one switch after another by gNMI."""

    settings: GnmiSettings = field(default_factory=GnmiSettings)
    port: int = PORT
    _ways: dict[str, int] = field(default_factory=dict)

    async def read(self, address: str, secret: Secret) -> Reading:
        told: list[tuple[Steps, Any]] = []
        async with self._channel(address, secret) as channel:
            first = self._ways.get(address, 0)
            for n in (first, *(n for n in range(len(WAYS)) if n != first)):
                told.clear()
                try:
                    async for notification in _ask(channel, *WAYS[n], _metadata(secret)):
                        told += _leaves(notification)
                except grpc.aio.AioRpcError as error:
                    if error.code() in _OTHER_WAY:
                        continue
                    raise _failure(address, self.port, error) from None
                self._ways[address] = n
                return openconfig.reading(told)
        raise SwitchError(
            f"{address} port {self.port} can neither be subscribed to nor be asked for LLDP by gNMI"
        )

    def _channel(self, address: str, secret: Secret) -> grpc.aio.Channel:
        target = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", ANSWER_MAX),
            ("grpc.enable_retries", 0),
            # The controller's proxy is for the API server, if for anybody.
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not self.settings.tls:
            return grpc.aio.insecure_channel(target, options)
        if self.settings.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.settings.server_name))
        key, chain = secret.raw("tls.key"), secret.raw("tls.crt")
        if (key is None) != (chain is None):
            raise SwitchError(f"of {secret.folder}/tls.crt and tls.key one is missing", "refused")
        credentials = grpc.ssl_channel_credentials(secret.raw("ca.crt"), key, chain)
        return grpc.aio.secure_channel(target, credentials, options)


def _metadata(secret: Secret) -> tuple[tuple[str, str], ...]:
    found = ((name, secret.text(name)) for name in ("username", "password"))
    metadata = tuple((name, value) for name, value in found if value)
    if not all(value.isascii() and value.isprintable() for _, value in metadata):
        raise SwitchError(
            f"{secret.folder}/username or password has more than gRPC can carry: ASCII", "refused"
        )
    return metadata


async def _ask(
    channel: grpc.aio.Channel, subscribe: bool, encoding: pb.Encoding, metadata: tuple[tuple[str, str], ...]
) -> AsyncIterator[pb.Notification]:
    paths = [pb.Path(elem=[pb.PathElem(name=name) for name in path]) for path in PATHS]
    if not subscribe:
        get = channel.unary_unary(
            "/gnmi.gNMI/Get", pb.GetRequest.SerializeToString, pb.GetResponse.FromString
        )
        request = pb.GetRequest(path=paths, type=pb.GetRequest.DataType.STATE, encoding=encoding)
        for notification in (await get(request, metadata=metadata)).notification:
            yield notification
        return
    call = channel.stream_stream(
        "/gnmi.gNMI/Subscribe", pb.SubscribeRequest.SerializeToString, pb.SubscribeResponse.FromString
    )
    subscriptions = pb.SubscriptionList(
        subscription=[pb.Subscription(path=path) for path in paths],
        mode=pb.SubscriptionList.Mode.ONCE,
        encoding=encoding,
    )
    stream = call(iter((pb.SubscribeRequest(subscribe=subscriptions),)), metadata=metadata)
    try:
        count = 0
        async for answer in stream:
            count += 1
            if count > MESSAGES_MAX:
                raise SwitchError(f"a subscription once had more than {MESSAGES_MAX} answers")
            if answer.HasField("sync_response"):
                return
            yield answer.update
    finally:
        stream.cancel()


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
            raise SwitchError(f"its answer is no JSON: {shown(str(error))}") from None
    if kind == "leaflist_val":
        return [_value(one) for one in value.leaflist_val.element]
    return None if kind is None else getattr(value, kind)


def _failure(address: str, port: int, error: grpc.aio.AioRpcError) -> SwitchError:
    """What a switch says of a refusal stays out of it: it might repeat what it was shown."""
    where, code = f"{address} port {port}", error.code()
    if code in _REFUSED:
        return SwitchError(f"{where} refuses username and password ({code.name})", "refused")
    if code is grpc.StatusCode.UNAVAILABLE:
        details = shown(error.details() or "")
        return SwitchError(f"{where} is not reached by gNMI, or not trusted: {details}", "unreachable")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SwitchError(f"{where} does not answer gNMI in time", "timeout")
    return SwitchError(f"{where} fails gNMI: {code.name}")
