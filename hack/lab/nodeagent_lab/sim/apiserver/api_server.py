"""The server itself: users and tokens, injected faults, and a record of all requests."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nodeagent_lab.sim.apiserver import authorization as policy
from nodeagent_lab.sim.apiserver import resource_claims
from nodeagent_lab.sim.apiserver.http import (
    HEAD_MAX,
    ClosedError,
    HttpAnswer,
    HttpRequest,
    serve,
    stop_listening,
)
from nodeagent_lab.sim.apiserver.injected_faults import InjectedFault, InjectedFaults
from nodeagent_lab.sim.apiserver.request_target import RequestTarget, parse_target
from nodeagent_lab.sim.apiserver.resource_slices import SINCE_1_36
from nodeagent_lab.sim.apiserver.resource_types import BUILT_IN, INSTALLED, MINOR, ApiKind, kinds_of_crd
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError, invalid
from nodeagent_lab.sim.apiserver.routes import Routes
from nodeagent_lab.sim.apiserver.store import Store, decode, encode, key_of
from nodeagent_lab.sim.apiserver.tls import Certificates
from nodeagent_lab.sim.apiserver.write_verbs import WriteVerbs

Json = dict[str, Any]
Admission = Callable[[str, str, str, Json | None, Json | None], str | None]

APPLY = "application/apply-patch"
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "nodeagent")

DRIP_S = 0.01


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that was handled. ``verb`` is RBAC's, ``resource`` the plural with its subresource (``nodes/status``),
    ``status`` the status of the answer, 0 without an answer."""

    verb: str
    group: str
    resource: str
    namespace: str | None
    name: str | None
    user: str
    status: int
    query: str = ""
    user_agent: str = ""


class ApiServer:
    """Start it in an event loop. Clients use HTTP; tests may also read and write its store directly.

    It serves Nodes, Pods, Events, Leases, RBAC, CRDs, HyperNodes, NodeLinks, ResourceSlices and DeviceClasses. Every
    token may do everything, unless ``rbac`` enforces the stored roles. ``bookmark_s`` is the interval of bookmarks on a
    quiet watch. ``store`` is the store of an earlier server. ``minor`` is the version of Kubernetes 1.x that it claims,
    ``gates`` are the feature gates that are on, by default those of this version.
    """

    def __init__(
        self,
        *,
        tls: Certificates | None = None,
        rbac: bool = False,
        namespaces: Iterable[str] = NAMESPACES,
        bookmark_s: float = 60.0,
        store: Store | None = None,
        seed: int | None = None,
        minor: int = MINOR,
        gates: Iterable[str] | None = None,
    ) -> None:
        self.tls = tls
        self.rbac = rbac
        self.requests: list[RequestRecord] = []
        """Every request except watches that still run, in the order of the answers."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By verb and resource."""
        self.watching: Counter[str] = Counter()
        """Open watches by resource."""
        self.recording = True
        self.admit: list[Admission] = []
        """Called before each write with user, verb (``create``, ``update``, ``delete``), resource (``nodes/status``),
        the old and the new object. A returned sentence refuses the write (403)."""
        self._store = store if store is not None else Store()
        self._store._changed = self._notify
        if gates is None:
            gates = SINCE_1_36 if minor >= 36 else ()
        self._minor = minor
        self._verbs = WriteVerbs(self._store, seed, frozenset(gates))
        self._verbs.admit.append(self._admission)
        self._faults = InjectedFaults()
        self._tokens: dict[str, policy.ApiUser] = {}
        self._kinds: dict[tuple[str, str, str], ApiKind] = {}
        self._routes = Routes(self._store, self._verbs, self._kinds, bookmark_s, minor)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._event = asyncio.Event()
        self._user = self._verb = ""
        self._port = 0
        self._load_kinds()
        for name in namespaces:
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    @property
    def store(self) -> Store:
        return self._store

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> ApiServer:
        context = self.tls.server() if self.tls is not None else None
        self._server = await asyncio.start_server(self._connected, host, port, ssl=context, limit=HEAD_MAX)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """End every connection. The store stays, and ``start`` serves it again."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    # --- users ------------------------------------------------------------------------------------------

    def token(self, user: str = "admin", groups: Iterable[str] | None = None) -> str:
        """A new bearer token. ``system:serviceaccount:<namespace>:<name>`` is a service account; ``admin`` is in
        ``system:masters``."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = self._user_of(user, groups)
        return token

    def revoke(self, token: str) -> None:
        """Answer requests with this token with 401 from now on."""
        self._tokens.pop(token, None)

    def _user_of(self, user: str, groups: Iterable[str] | None = None) -> policy.ApiUser:
        named = policy.ApiUser(user)
        given = list(groups) if groups is not None else [policy.MASTERS] if user == "admin" else []
        if named.account is not None:
            given += ["system:serviceaccounts", f"system:serviceaccounts:{named.account[0]}"]
        return policy.ApiUser(user, (*given, "system:authenticated"))

    # --- objects -------------------------------------------------------------------------------

    def objects(self, plural: str, namespace: str | None = None) -> list[Json]:
        """The stored objects, sorted by namespace and name. ``plural`` as in ``nodes``."""
        kind = self._plural(plural)
        return [decode(body) for body in self._store.items(kind.group, kind.plural, namespace)[1]]

    def find(self, plural: str, name: str, namespace: str | None = None) -> Json | None:
        kind = self._plural(plural)
        return self._store.get(kind.group, kind.plural, key_of(namespace, name))

    def put(self, obj: Json) -> Json:
        """Create or replace an object without any check. Its ``apiVersion`` and ``kind`` select the resource."""
        kind = next(
            (
                kind
                for kind in self._kinds.values()
                if (kind.api_version, kind.kind) == (obj["apiVersion"], obj["kind"])
            ),
            None,
        )
        if kind is None:
            raise LookupError(f"no kind {obj['kind']} of {obj['apiVersion']}; put its CRD first")
        meta = dict(obj["metadata"])
        namespace = meta.setdefault("namespace", "default") if kind.namespaced else None
        key = key_of(namespace, meta["name"])
        before = self._store.get(kind.group, kind.plural, key)
        meta.setdefault("uid", before["metadata"]["uid"] if before else f"{kind.plural}-{key}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        stored = self._store.write(kind.group, kind.plural, key, {**obj, "metadata": meta})
        if kind.plural == "customresourcedefinitions":
            self._load_kinds()
        return stored

    def remove(self, plural: str, name: str, namespace: str | None = None) -> None:
        kind = self._plural(plural)
        self._store.remove(kind.group, kind.plural, key_of(namespace, name))

    async def until(self, condition: Callable[[], object], timeout_s: float = 40.0) -> None:
        """Wait until the condition is true. It is checked after every request and every change."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._event.clear()
                await self._event.wait()

    # --- faults ------------------------------------------------------------------------------

    def fail(
        self,
        how: str = "500",
        *,
        verb: str | None = None,
        resource: str | None = None,
        name: str | None = None,
        times: int | None = 1,
        retry_after_s: int | None = None,
        message: str | None = None,
        skip: int = 0,
    ) -> None:
        """Let the next ``times`` matching requests fail, after ``skip`` of them; ``None``: all of them.

        ``how`` is a status ("500", "429", "403", …) or one of these:

        * ``hang``: no answer
        * ``drip``: an endless answer, a byte now and then
        * ``half``: half of the body
        * ``close``: the connection ends
        * ``lost``: the request is executed, but the connection ends before the answer
        * ``deny``: an admission webhook refuses
        * ``webhook``: the webhook cannot be reached
        """
        self._faults.rules.append(
            InjectedFault(how, verb, resource, name, times, retry_after_s, message, skip)
        )

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.rules.clear()

    def expire(self) -> None:
        """Compact the store: older resource versions and continue tokens have expired (410)."""
        self._store.expire()

    def drop(self, plural: str | None = None) -> None:
        """End the open watches, as a server does before its shutdown."""
        self._store.end_watches(plural)

    # --- requests ------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        self._event.set()

    def _plural(self, plural: str) -> ApiKind:
        kinds = [kind for kind in self._kinds.values() if kind.plural == plural]
        if not kinds:
            raise LookupError(f"no resource {plural}")
        return kinds[0]

    def _load_kinds(self) -> None:
        self._kinds.clear()
        for kind in (*BUILT_IN, *INSTALLED):
            if kind.since > self._minor:
                continue
            self._kinds[kind.group, kind.version, kind.plural] = kind
        for crd in self.objects("customresourcedefinitions"):
            for kind in kinds_of_crd(crd):
                self._kinds[kind.group, kind.version, kind.plural] = kind

    def _admission(self, verb: str, resource: str, old: Json | None, new: Json | None) -> None:
        if self.rbac and resource == "resourceclaims/status":
            self._authorize_drivers(new or {}, old or {})
        for admission in self.admit:
            if (why := admission(self._user, verb, resource, old, new)) is not None:
                raise ApiRefusedError(403, why)

    def _authorize_drivers(self, new: Json, old: Json) -> None:
        """The gate DRAResourceClaimGranularStatusAuthorization: a right for each driver whose entries change. A missing
        one is an invalid field (422). Every user counts as one of the node of the claim."""
        for driver in sorted(resource_claims.changed_drivers(new, old)):
            target = RequestTarget(
                f"associated-node:{self._verb}",
                "",
                "resource.k8s.io",
                "v1",
                "resourceclaims",
                new["metadata"]["namespace"],
                driver,
                "driver",
            )
            user = self._user_of(self._user)
            if not policy.allowed(self._store, user, target):
                why = (
                    f'Forbidden: changing status.devices requires resource="resourceclaims/driver", '
                    f'verb="[{target.verb}]" permission: {policy.forbidden(user, target)}'
                )
                name = new["metadata"]["name"]
                raise invalid("resource.k8s.io", "ResourceClaim", name, [("status.devices", why)])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            if self._server is not None:  # a handshake of TLS may outlast it
                return await serve(reader, writer, self._handle)
        except asyncio.CancelledError:
            pass
        writer.transport.abort()

    async def _handle(self, request: HttpRequest) -> HttpAnswer:
        target = RequestTarget(request.method.lower(), request.path)
        user = policy.ANONYMOUS
        code = 0
        try:
            user = self._authenticated(request)
            watch = request.query_value("watch").lower() in ("true", "1")
            target = parse_target(
                request.method, request.path, watch=watch, kind_of=lambda *key: self._kinds.get(key)
            )
            answer = await self._answer(request, target, user)
            code = answer.code
        except ApiRefusedError as refused:
            code = refused.code
            headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
            answer = HttpAnswer(code, encode(refused.status()), headers=headers)
        finally:
            self._record(request, target, user, code)
        return answer

    async def _answer(self, request: HttpRequest, target: RequestTarget, user: policy.ApiUser) -> HttpAnswer:
        fault = self._faults.due(target)
        if fault is not None:
            self._notify()
            await self._inject(fault, target)
        for right in self._needed_rights(request, target) if self.rbac else ():
            if not policy.allowed(self._store, user, right):
                raise ApiRefusedError(
                    403,
                    policy.forbidden(user, right),
                    details={"group": target.group, "kind": target.plural},
                )
        self._user, self._verb = user.name, target.verb  # for _admission; no await until the write is done
        if fault is not None and fault.how == "drip":
            return HttpAnswer(200, stream=_drip())
        answer = self._routes.answer(request, target, user)
        if target.plural == "customresourcedefinitions" and target.verb not in ("get", "list", "watch"):
            self._load_kinds()
        if fault is not None and fault.how == "lost":
            raise ClosedError
        if fault is not None and fault.how == "half":
            return HttpAnswer(answer.code, answer.body or b'{"type":"ADDED","object"', cut=True)
        if answer.stream is not None:
            return HttpAnswer(answer.code, stream=self._counted(answer.stream, target.plural))
        return answer

    def _needed_rights(self, request: HttpRequest, target: RequestTarget) -> Iterator[RequestTarget]:
        """The rights that the request needs. To apply an object that does not exist also needs ``create``."""
        yield target
        applies = target.verb == "patch" and request.headers.get("content-type", "").startswith(APPLY)
        if not applies or target.kind is None or not target.name or target.subresource:
            return
        if self._store.get(target.group, target.plural, key_of(target.namespace, target.name)) is None:
            yield replace(target, verb="create")

    async def _inject(self, fault: InjectedFault, target: RequestTarget) -> None:
        if fault.how == "hang":
            await asyncio.Event().wait()
        if fault.how == "close":
            raise ClosedError
        if fault.how == "deny":
            message = fault.message or "no reason"
            raise ApiRefusedError(
                400, f'admission webhook "validate.example.com" denied the request: {message}', reason=""
            )
        if fault.how == "webhook":
            raise ApiRefusedError(
                500,
                'Internal error occurred: failed calling webhook "validate.example.com": failed to call webhook: '
                'Post "https://webhook.svc:443/validate?timeout=10s": connect: connection refused',
            )
        if fault.how.isdigit():
            message = fault.message or f"an injected fault, on {target.verb} {target.resource}"
            raise ApiRefusedError(int(fault.how), message, retry_after_s=fault.retry_after_s)

    async def _counted(self, stream: AsyncGenerator[bytes, None], plural: str) -> AsyncGenerator[bytes, None]:
        self.watching[plural] += 1
        self._notify()
        try:
            async for part in stream:
                yield part
        finally:
            self.watching[plural] -= 1
            await stream.aclose()
            self._notify()

    def _authenticated(self, request: HttpRequest) -> policy.ApiUser:
        if request.subject:
            names = [value for name, value in request.subject if name == "commonName"]
            groups = [value for name, value in request.subject if name == "organizationName"]
            return self._user_of(names[0] if names else "", groups)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            if self.rbac:
                return policy.ANONYMOUS
            raise ApiRefusedError(401, "Unauthorized")
        user = self._tokens.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiRefusedError(401, "Unauthorized")
        return user

    def _record(self, request: HttpRequest, target: RequestTarget, user: policy.ApiUser, code: int) -> None:
        self.counts[target.verb, target.resource] += 1
        if self.recording:
            query = "&".join(f"{name}={value}" for name, values in request.query.items() for value in values)
            agent = request.headers.get("user-agent", "")
            self.requests.append(
                RequestRecord(
                    target.verb,
                    target.group,
                    target.resource,
                    target.namespace,
                    target.name,
                    user.name,
                    code,
                    query,
                    agent,
                )
            )
        self._notify()


async def _drip() -> AsyncGenerator[bytes, None]:
    while True:
        yield b" "
        await asyncio.sleep(DRIP_S)
