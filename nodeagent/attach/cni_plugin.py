"""Run an IPAM plugin by the protocol of the Container Network Interface (CNI), versions 1.0 and 1.1.

The plugin is a program. The command and its parameters are in the environment, the network's configuration is JSON on
its standard input, the answer is JSON on its standard output; an error is an exit code and an object with ``msg``.

* A call ends after ``CALL_S`` or ``ANSWER_MAX`` bytes: the plugin is killed with all that it has started.
* Each plugin inherits a lock. So one that outlives this process, because it was killed, ends before the next call.
* A plugin gets no variable of this process.
* ``GC`` is never called: it takes back all addresses of a network but those listed, and a plugin whose store is the
  cluster's has those of other nodes there.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from nodeagent.attach.address_plan import VfAddress
from nodeagent.attach.pod_plan import PodRoute
from nodeagent.base.bounded_calls import enter
from nodeagent.base.file_writing import make_folder

CALL_S = 10.0
"""host-local answers within milliseconds, a plugin that asks the API server within seconds."""
ANSWER_MAX = 256 * 1024
"""Bytes of the answer, and of what else the plugin prints."""
_VERSIONS = ("1.1.0", "1.0.0")
_ADDRESSES_MAX, _ROUTES_MAX = 8, 64
_MESSAGE_MAX = 300
_AGAIN_S = 0.05
_END_S = 2.0
_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}")
_ARGUMENT = re.compile(r"[a-zA-Z0-9_.-]*")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CniError(Exception):
    """A plugin gave no answer that is of use. The message names the plugin and the cause; ``hangs``: it did not answer
    in time."""

    def __init__(self, message: str, *, hangs: bool = False) -> None:
        super().__init__(message)
        self.hangs = hangs


class Attachment(NamedTuple):
    """The netdev that a plugin keeps an address for. ``network`` is the path of the network namespace, empty if it is
    gone. ``arguments`` describe the pod: ``K8S_POD_NAME`` and others, as container runtimes pass them."""

    container: str
    interface: str
    network: str
    arguments: Mapping[str, str]


class GivenAddresses(Struct, frozen=True):
    """The addresses that a plugin has given to a netdev, and the routes over it."""

    addresses: tuple[VfAddress, ...]
    routes: tuple[PodRoute, ...] = ()


class _Ip(Struct):
    address: str
    gateway: str | None = None


class _Route(Struct):
    dst: str
    gw: str | None = None


class _Result(Struct):
    """The fields of a result that count here."""

    ips: list[_Ip] = []
    routes: list[_Route] | None = None


class _PluginFailure(Struct):
    msg: str = ""
    details: str = ""


class _Versions(Struct):
    supported: list[str] = msgspec.field(name="supportedVersions", default_factory=list)


def given_addresses(plugin: str, result: Mapping[str, Any]) -> GivenAddresses:
    """Return the addresses and routes in a result. A route without a gateway of its own goes over that of the addresses
    of its family (CNI 1.0, section 5). Raises ``CniError``."""
    try:
        read = msgspec.convert(result, _Result)
        addresses = tuple(ip_interface(one.address) for one in read.ips)
        gateways = {
            gateway.version: gateway
            for gateway in (ip_address(one.gateway) for one in reversed(read.ips) if one.gateway)
        }
        routes = []
        for one in read.routes or ():
            destination = ip_network(one.dst, strict=False)
            gateway = ip_address(one.gw) if one.gw else gateways.get(destination.version)
            if gateway is not None and gateway.version != destination.version:
                raise ValueError(f"the gateway {gateway} of {destination} is of another family")
            routes.append(PodRoute(destination, gateway))
    except ValueError as error:  # also msgspec's
        raise CniError(f"{plugin}: its result is invalid: {_short(str(error))}") from error
    if not addresses:
        raise CniError(f"{plugin}: its result has no address")
    if len(addresses) > _ADDRESSES_MAX or len(routes) > _ROUTES_MAX:
        raise CniError(
            f"{plugin}: its result has more than {_ADDRESSES_MAX} addresses or {_ROUTES_MAX} routes"
        )
    for address in addresses:
        ip = address.ip
        if ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip in gateways.values():
            raise CniError(f"{plugin}: {ip} cannot be the address of a netdev")
        if address.version == 4 and address.network.prefixlen < 31 and ip in _edges(address):
            raise CniError(f"{plugin}: {ip} cannot be the address of a netdev")
    return GivenAddresses(addresses, tuple(routes))


def _edges(address: VfAddress) -> tuple[object, object]:
    """The address of a prefix itself, and its broadcast address."""
    return address.network.network_address, address.network.broadcast_address


class CniPlugins:
    """The plugins in a folder of this node. ``lock`` is the file of the lock. Every call blocks and raises
    ``CniError``."""

    def __init__(self, folder: Path, lock: Path, limit_s: float = CALL_S) -> None:
        self._folder, self._lock, self._limit_s = folder, lock, limit_s
        self._versions: dict[tuple[str, int, int, int], tuple[str, ...]] = {}

    def configuration(self, network: str, ipam: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a network, in the newest version that its plugin supports."""
        plugin = str(ipam["type"])
        common = [version for version in _VERSIONS if version in self._supported(plugin)]
        if not common:
            raise CniError(f"{plugin} supports none of the versions {' and '.join(_VERSIONS)} of CNI")
        return {"cniVersion": common[0], "name": network, "type": "nodeagent-attach", "ipam": dict(ipam)}

    def add(self, configuration: Mapping[str, Any], attachment: Attachment) -> dict[str, Any]:
        """Let the plugin give addresses, and return its result."""
        plugin = _plugin(configuration)
        answer = self._call(plugin, "ADD", configuration, attachment)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except ValueError as error:
            raise CniError(f"{plugin}: its answer is no JSON object: {_short(str(error))}") from error

    def check(
        self, configuration: Mapping[str, Any], attachment: Attachment, result: Mapping[str, Any]
    ) -> None:
        """Ask whether the plugin still keeps the addresses of an earlier result."""
        self._call(_plugin(configuration), "CHECK", {**configuration, "prevResult": result}, attachment)

    def delete(
        self, configuration: Mapping[str, Any], attachment: Attachment, result: Mapping[str, Any] | None
    ) -> None:
        """Let the plugin take its addresses back. A plugin that has given none agrees."""
        with_result = configuration if result is None else {**configuration, "prevResult": result}
        self._call(_plugin(configuration), "DEL", with_result, attachment)

    def _supported(self, plugin: str) -> tuple[str, ...]:
        try:
            found = (self._folder / plugin).stat()
        except OSError as error:
            raise CniError(f"{self._folder / plugin} cannot be run: {error.strerror}") from error
        key = (plugin, found.st_ino, found.st_size, found.st_mtime_ns)
        if key not in self._versions:
            answer = self._call(plugin, "VERSION", {"cniVersion": _VERSIONS[0]}, None)
            try:
                self._versions[key] = tuple(msgspec.json.decode(answer, type=_Versions).supported)
            except ValueError as error:
                raise CniError(f"{plugin}: its versions are invalid: {_short(str(error))}") from error
        return self._versions[key]

    def _call(
        self, plugin: str, command: str, configuration: Mapping[str, Any], attachment: Attachment | None
    ) -> bytes:
        enter(f"{plugin} {command}")
        variables = {"PATH": _PATH, "CNI_COMMAND": command, "CNI_PATH": str(self._folder)}
        if attachment is not None:
            variables |= cni_variables(plugin, attachment)
        deadline = time.monotonic() + self._limit_s
        with self._alone(plugin, deadline) as lock:
            program = str(self._folder / plugin)
            try:
                child = subprocess.Popen(
                    [program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=variables,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            except OSError as error:
                raise CniError(f"{program} cannot be run: {error.strerror}") from error
            try:
                printed = _exchange(child, msgspec.json.encode(configuration), deadline)
                if printed is None:
                    raise CniError(f"{plugin} did not answer within {self._limit_s:g} s", hangs=True)
                answer, complaint = printed
                if max(len(answer), len(complaint)) > ANSWER_MAX:
                    raise CniError(f"{plugin} printed more than {ANSWER_MAX} bytes")
                code = child.wait(max(deadline - time.monotonic(), _AGAIN_S))
            except subprocess.TimeoutExpired:
                raise CniError(f"{plugin} did not end within {self._limit_s:g} s", hangs=True) from None
            finally:
                _end(child)
        if code != 0:
            raise CniError(f"{plugin}: {_reason(answer, complaint, code)}")
        return answer

    @contextmanager
    def _alone(self, plugin: str, deadline: float) -> Iterator[int]:
        """Take the lock, whose descriptor the plugin inherits."""
        try:
            make_folder(self._lock.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._lock, flags, 0o600)
        except OSError as error:
            raise CniError(f"{self._lock} cannot be opened: {error.strerror}") from error
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise CniError(
                            f"{plugin} cannot begin: an earlier plugin still runs", hangs=True
                        ) from None
                time.sleep(_AGAIN_S)
            yield lock
        finally:
            os.close(lock)


def is_container_id(text: str) -> bool:
    """Whether CNI accepts a text as the ID of a container. It may be the name of a file, too."""
    return _ID.fullmatch(text) is not None


def _plugin(configuration: Mapping[str, Any]) -> str:
    return str(configuration["ipam"]["type"])


def cni_variables(plugin: str, attachment: Attachment) -> dict[str, str]:
    """The parameters of a command in the environment of a plugin. Raises ``CniError``."""
    for text in attachment.arguments.values():
        if not _ARGUMENT.fullmatch(text):
            raise CniError(f"{plugin}: {_short(text)} cannot be an argument of CNI")
    arguments = {"IgnoreUnknown": "1", **attachment.arguments}
    variables = {
        "CNI_CONTAINERID": attachment.container,
        "CNI_IFNAME": attachment.interface,
        "CNI_ARGS": ";".join(f"{key}={text}" for key, text in arguments.items()),
    }
    return variables | ({"CNI_NETNS": attachment.network} if attachment.network else {})


def _exchange(child: subprocess.Popen[bytes], text: bytes, deadline: float) -> tuple[bytes, bytes] | None:
    """Pass the text to the plugin, and read what it prints until both ends are closed or too long; ``None``: the time
    is over."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    printed = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    open_ends, rest = set(printed), memoryview(text)
    with selectors.DefaultSelector() as ends:
        for end in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(end.fileno(), False)
        ends.register(child.stdin, selectors.EVENT_WRITE)
        for descriptor in printed:
            ends.register(descriptor, selectors.EVENT_READ)
        while open_ends:
            ready = ends.select(max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            for key, _ in ready:
                if key.fileobj is child.stdin:
                    try:
                        rest = rest[os.write(key.fd, rest) :]
                    except BrokenPipeError:  # it does not read all of it
                        rest = rest[:0]
                    if not rest:
                        ends.unregister(child.stdin)
                        with suppress(BrokenPipeError):
                            child.stdin.close()
                    continue
                part = os.read(key.fd, 64 * 1024)
                printed[key.fd] += part
                if not part:
                    ends.unregister(key.fd)
                    open_ends.discard(key.fd)
            if any(len(one) > ANSWER_MAX for one in printed.values()):
                break
            if time.monotonic() > deadline:
                return None
    return bytes(printed[child.stdout.fileno()]), bytes(printed[child.stderr.fileno()])


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a plugin that has not ended, with what it has started, and close the ends here."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a call that hangs in the kernel ignores the signal
            child.wait(_END_S)
    for end in (child.stdin, child.stdout, child.stderr):
        if end is not None:
            with suppress(OSError):
                end.close()


def _reason(answer: bytes, complaint: bytes, code: int) -> str:
    with suppress(ValueError):
        failure = msgspec.json.decode(answer, type=_PluginFailure)
        if failure.msg:
            return _short(f"{failure.msg}: {failure.details}" if failure.details else failure.msg)
    lines = complaint.decode("utf-8", "backslashreplace").strip().splitlines()
    return _short(lines[-1]) if lines else f"it failed with exit code {code} and no message"


def _short(text: str) -> str:
    """One line of a foreign text, for logs and Events."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if len(line) <= _MESSAGE_MAX else f"{line[:_MESSAGE_MAX]}…"
