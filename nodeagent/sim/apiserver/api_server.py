"""The stand-in as a process of the cluster: who asks, what goes wrong, and what was asked."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.sim.apiserver import authorization as policy
from nodeagent.sim.apiserver.http import Answer, Asked, ClosedError, serve
from nodeagent.sim.apiserver.injected_faults import Fault, Faults
from nodeagent.sim.apiserver.request_target import Target, target
from nodeagent.sim.apiserver.resource_types import BUILT_IN, INSTALLED, Kind, of_crd
from nodeagent.sim.apiserver.responses import RefusedError
from nodeagent.sim.apiserver.routes import Routes
from nodeagent.sim.apiserver.store import Store, decode, encode, key_of
from nodeagent.sim.apiserver.tls import Certificates
from nodeagent.sim.apiserver.write_verbs import Verbs

Json = dict[str, Any]
Admission = Callable[[str, str, str, Json | None, Json | None], str | None]

APPLY = "application/apply-patch"
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "nodeagent")

DRIP_S = 0.01


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server saw it; ``verb`` is RBAC's, ``resource`` the plural with its subresource
    (``nodes/status``), ``status`` what was answered, 0 where nothing was."""

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
    """Start it in an event loop; ask it over HTTP, or read and write its store at once, as a test does.

    Nodes, Pods, Events, Leases, RBAC and CRDs are known, HyperNodes and NodeLinks are installed. Every token
    may do everything, unless ``rbac`` has the stored roles decide. ``bookmark_s`` is how often a quiet watch
    hears the present version. ``store`` is another server's, which this one goes on with.
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
    ) -> None:
        self.tls = tls
        self.rbac = rbac
        self.requests: list[Seen] = []
        """Every request but those of watches that still run, in the order of their answers."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By verb and resource."""
        self.watching: Counter[str] = Counter()
        """Open watches by resource."""
        self.recording = True
        self.admit: list[Admission] = []
        """Asked before a write is kept, with user, verb (``create``, ``update``, ``delete``), plural, the
        object that was and the one that is to be; a sentence refuses (403)."""
        self._store = store if store is not None else Store()
        self._store._changed = self._happened
        self._verbs = Verbs(self._store, seed)
        self._verbs.admit.append(self._admission)
        self._faults = Faults()
        self._tokens: dict[str, policy.User] = {}
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._routes = Routes(self._store, self._verbs, self._kinds, bookmark_s)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._stir = asyncio.Event()
        self._user = ""
        self._port = 0
        self._learn_kinds()
        for name in namespaces:
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    @property
    def store(self) -> Store:
        return self._store

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> ApiServer:
        context = self.tls.server() if self.tls is not None else None
        self._server = await asyncio.start_server(self._connected, host, port, ssl=context, limit=64 * 1024)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """End every connection; the store stays, and ``start`` goes on with it."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        self._server = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    # --- who ------------------------------------------------------------------------------------------

    def token(self, user: str = "admin", groups: Iterable[str] | None = None) -> str:
        """A bearer token; ``system:serviceaccount:<namespace>:<name>`` is a service account's. ``admin``
        is in ``system:masters``."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = self._known(user, groups)
        return token

    def revoke(self, token: str) -> None:
        """From now on it is answered with 401."""
        self._tokens.pop(token, None)

    def _known(self, user: str, groups: Iterable[str] | None = None) -> policy.User:
        named = policy.User(user)
        given = list(groups) if groups is not None else [policy.MASTERS] if user == "admin" else []
        if named.account is not None:
            given += ["system:serviceaccounts", f"system:serviceaccounts:{named.account[0]}"]
        return policy.User(user, (*given, "system:authenticated"))

    # --- what is stored -------------------------------------------------------------------------------

    def objects(self, plural: str, namespace: str | None = None) -> list[Json]:
        """What is stored now, sorted by namespace and name; ``plural`` as ``nodes``."""
        kind = self._plural(plural)
        return [decode(body) for body in self._store.items(kind.group, kind.plural, namespace)[1]]

    def one(self, plural: str, name: str, namespace: str | None = None) -> Json | None:
        kind = self._plural(plural)
        return self._store.get(kind.group, kind.plural, key_of(namespace, name))

    def put(self, obj: Json) -> Json:
        """Create or replace an object past all checks; its ``apiVersion`` and ``kind`` say where."""
        kind = next(
            (
                one
                for one in self._kinds.values()
                if (one.api_version, one.kind) == (obj["apiVersion"], obj["kind"])
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
            self._learn_kinds()
        return stored

    def remove(self, plural: str, name: str, namespace: str | None = None) -> None:
        kind = self._plural(plural)
        self._store.remove(kind.group, kind.plural, key_of(namespace, name))

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until it is true; looked at after every request and every change."""
        while not true():
            self._stir.clear()
            await self._stir.wait()

    # --- what goes wrong ------------------------------------------------------------------------------

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
        """The next ``times`` requests that match (``None``: all from now on), after ``skip`` of them, go wrong.

        ``how`` is a status ("500", "429", "403", …), ``hang`` (no answer), ``drip`` (one that never ends, a byte
        now and then), ``half`` (half a body), ``close``
        (nothing), ``lost`` (done, but the connection ends before the answer), ``deny`` (an admission webhook
        refuses) or ``webhook`` (it cannot be reached).
        """
        self._faults.rules.append(Fault(how, verb, resource, name, times, retry_after_s, message, skip))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.rules.clear()

    def expire(self) -> None:
        """Compact: older resource versions and continue tokens are gone (410)."""
        self._store.expire()

    def drop(self, plural: str | None = None) -> None:
        """End the open watches, as a server that is drained does."""
        self._store.end_watches(plural)

    # --- how ------------------------------------------------------------------------------------------

    def _happened(self) -> None:
        self._stir.set()

    def _plural(self, plural: str) -> Kind:
        found = [kind for kind in self._kinds.values() if kind.plural == plural]
        if not found:
            raise LookupError(f"no resource {plural}")
        return found[0]

    def _learn_kinds(self) -> None:
        self._kinds.clear()
        for kind in (*BUILT_IN, *INSTALLED):
            self._kinds[kind.group, kind.version, kind.plural] = kind
        for crd in self.objects("customresourcedefinitions"):
            for kind in of_crd(crd):
                self._kinds[kind.group, kind.version, kind.plural] = kind

    def _admission(self, verb: str, kind: Kind, old: Json | None, new: Json | None) -> None:
        for admission in self.admit:
            if (why := admission(self._user, verb, kind.plural, old, new)) is not None:
                raise RefusedError(403, why)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await serve(reader, writer, self._handle)
        except asyncio.CancelledError:
            writer.transport.abort()

    async def _handle(self, asked: Asked) -> Answer:
        about = Target(asked.method.lower(), asked.path)
        user = policy.ANONYMOUS
        code = 0
        try:
            user = self._authenticated(asked)
            watch = asked.one("watch").lower() in ("true", "1")
            about = target(asked.method, asked.path, watch=watch, known=lambda *key: self._kinds.get(key))
            answer = await self._answer(asked, about, user)
            code = answer.code
        except RefusedError as refused:
            code = refused.code
            headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
            answer = Answer(code, encode(refused.status()), headers=headers)
        finally:
            self._note(asked, about, user, code)
        return answer

    async def _answer(self, asked: Asked, about: Target, user: policy.User) -> Answer:
        fault = self._faults.due(about)
        if fault is not None:
            self._happened()
            await self._go_wrong(fault, about)
        for asked_for in self._demands(asked, about) if self.rbac else ():
            if not policy.allowed(self._store, user, asked_for):
                raise RefusedError(
                    403,
                    policy.forbidden(user, asked_for),
                    details={"group": about.group, "kind": about.plural},
                )
        self._user = user.name  # nothing is awaited until the write is done
        if fault is not None and fault.how == "drip":
            return Answer(200, stream=_drip())
        answer = self._routes.answer(asked, about, user)
        if about.plural == "customresourcedefinitions" and about.verb not in ("get", "list", "watch"):
            self._learn_kinds()
        if fault is not None and fault.how == "lost":
            raise ClosedError
        if fault is not None and fault.how == "half":
            return Answer(answer.code, answer.body or b'{"type":"ADDED","object"', cut=True)
        if answer.stream is not None:
            return Answer(answer.code, stream=self._counted(answer.stream, about.plural))
        return answer

    def _demands(self, asked: Asked, about: Target) -> Iterator[Target]:
        """What the request is allowed by: to apply what is not there yet takes ``create`` too."""
        yield about
        applies = about.verb == "patch" and asked.headers.get("content-type", "").startswith(APPLY)
        if not applies or about.kind is None or not about.name or about.subresource:
            return
        if self._store.get(about.group, about.plural, key_of(about.namespace, about.name)) is None:
            yield replace(about, verb="create")

    async def _go_wrong(self, fault: Fault, about: Target) -> None:
        if fault.how == "hang":
            await asyncio.Event().wait()
        if fault.how == "close":
            raise ClosedError
        if fault.how == "deny":
            message = fault.message or "no reason"
            raise RefusedError(
                400, f'admission webhook "validate.example.com" denied the request: {message}', reason=""
            )
        if fault.how == "webhook":
            raise RefusedError(
                500,
                'Internal error occurred: failed calling webhook "validate.example.com": failed to call webhook: '
                'Post "https://webhook.svc:443/validate?timeout=10s": connect: connection refused',
            )
        if fault.how.isdigit():
            message = fault.message or f"a fault that was asked for, on {about.verb} {about.resource}"
            raise RefusedError(int(fault.how), message, retry_after_s=fault.retry_after_s)

    async def _counted(self, stream: AsyncGenerator[bytes, None], plural: str) -> AsyncGenerator[bytes, None]:
        self.watching[plural] += 1
        self._happened()
        try:
            async for part in stream:
                yield part
        finally:
            self.watching[plural] -= 1
            await stream.aclose()
            self._happened()

    def _authenticated(self, asked: Asked) -> policy.User:
        if asked.subject:
            names = [value for name, value in asked.subject if name == "commonName"]
            groups = [value for name, value in asked.subject if name == "organizationName"]
            return self._known(names[0] if names else "", groups)
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if not scheme:
            if self.rbac:
                return policy.ANONYMOUS
            raise RefusedError(401, "Unauthorized")
        user = self._tokens.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise RefusedError(401, "Unauthorized")
        return user

    def _note(self, asked: Asked, about: Target, user: policy.User, code: int) -> None:
        self.counts[about.verb, about.resource] += 1
        if self.recording:
            query = "&".join(f"{name}={value}" for name, values in asked.query.items() for value in values)
            agent = asked.headers.get("user-agent", "")
            self.requests.append(
                Seen(
                    about.verb,
                    about.group,
                    about.resource,
                    about.namespace,
                    about.name,
                    user.name,
                    code,
                    query,
                    agent,
                )
            )
        self._happened()


async def _drip() -> AsyncGenerator[bytes, None]:
    while True:
        yield b" "
        await asyncio.sleep(DRIP_S)
