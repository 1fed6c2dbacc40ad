"""How the devices do: asked of the agent that runs, or looked at for a moment, or replayed from recorded samples."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from nodeagent import node
from nodeagent.config import Config, host_port
from nodeagent.health import nic
from nodeagent.health.engine import Engine, Terms
from nodeagent.health.explain import DeviceView, RuleView, clears, threshold
from nodeagent.health.recording import Header, Subject
from nodeagent.health.rules import Rule
from nodeagent.health.samples import Sample
from nodeagent.inventory import Inventory
from nodeagent.model import HEALTHY, Function, Health, Link
from nodeagent.sources.verdicts import Verdicts, roles
from nodeagent.table import plain, remarks, section

ASK_S = 5.0
LOOK_S = 2.0
"""Of our own: long enough for every source to have spoken once."""
Views = Callable[[], tuple[DeviceView, ...]]
_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class CheckupError(Exception):
    """The agent cannot be asked; the message says why and what would help."""


# --- the agent that runs ----------------------------------------------------------------------------------


def ask(config: Config, listen: str | None) -> tuple[DeviceView, ...] | None:
    """What the running agent says; ``None`` when none is there. Raises ``CheckupError``."""
    address = listen or config.listen
    if address is None:
        return None
    host, port = host_port(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    if config.web.certificate_file is not None:
        # Our own agent on this host: the certificate is for the name that others know it by.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=ASK_S, context=context)
    try:
        connection.request("GET", "/health", headers=_token(config))
        answer = connection.getresponse()
        body = answer.read()
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException) as error:
        raise CheckupError(f"the agent at {host}:{port} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise CheckupError(
            f"the agent at {host}:{port} answers {answer.status} {answer.reason}; give its own configuration with "
            "--config, or its address with --listen"
        )
    try:
        return _VIEWS.decode(body)
    except msgspec.MsgspecError as error:
        raise CheckupError(
            f"what answers at {host}:{port} is no nodeagent of this version: {error}"
        ) from error


def _token(config: Config) -> dict[str, str]:
    if config.web.token_file is None:
        return {}
    lines = Path(config.web.token_file).read_text().split()
    return {"Authorization": f"Bearer {lines[0]}"} if lines else {}


async def look(config: Config, root: Path) -> tuple[DeviceView, ...]:
    """A short look of our own, without memory of what was."""
    async with _looking(config, root) as views:
        return views()


@dataclass(slots=True)
class _Looking:
    """Everything that states facts, for as long as it is open."""

    config: Config
    root: Path
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Views:
        inventory, judge = Inventory(), Verdicts(node.terms(self.config.health))
        ledger = node.gpus_ledger(self.config.gpu)
        quiet = msgspec.structs.replace(self.config.lldp, transmit=False)
        config = msgspec.structs.replace(self.config, lldp=quiet)
        watching = asyncio.create_task(
            node.watch(
                inventory, config, self.root, judge=judge, gpu_ledger=ledger, sampling=lambda _sampler: None
            )
        )
        self._tasks.append(watching)
        await asyncio.wait((watching,), timeout=LOOK_S)
        if watching.done():
            await watching
        return lambda: _VIEWS.decode(node.explained(judge, ledger))

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _looking(config: Config, root: Path) -> _Looking:
    return _Looking(config, root)


# --- recorded samples -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transition:
    """One PF at one moment: what its health was and is. ``before`` is ``None`` at the first word."""

    at: float
    device: str
    name: str
    before: Health | None
    after: Health


@dataclass(slots=True)
class Tally:
    """What a replay came to, by device: transitions, and for how long its devices were Unhealthy."""

    transitions: dict[str, int] = field(default_factory=dict)
    unhealthy_s: dict[str, float] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def follow(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The same samples, and a note of how long the recording is."""
        for sample in samples:
            self._last = max(self._last, sample.at)
            yield sample

    def finish(self) -> None:
        for device in tuple(self._since):
            self.end(device, self._last)

    def count(self, one: Transition) -> None:
        self.transitions[one.device] = self.transitions.get(one.device, 0) + (one.before is not None)
        self.end(one.device, one.at)
        if not one.after.allocatable:
            self._since[one.device] = one.at

    def end(self, device: str, at: float) -> None:
        since = self._since.pop(device, None)
        if since is not None:
            self.unhealthy_s[device] = self.unhealthy_s.get(device, 0.0) + at - since


def replay(header: Header, samples: Iterable[Sample], terms: Terms) -> Iterator[Transition]:
    """Every transition that the rules would have made, in order. Deterministic: the samples hold all the time there
    is. PFs alone are judged."""
    engine = Engine(terms)
    subjects = {one.device: one for one in header.devices if one.kind == "nic"}
    functions = tuple(_function(one) for one in subjects.values())
    links = tuple(_link(one) for one in subjects.values())
    engine.facts(nic.judge(functions, links), links)
    engine.roles(roles(functions, ()))
    told: dict[str, Health] = {}

    def judged(at: float) -> Iterator[Transition]:
        for function in engine.judge(at):
            before = told.get(function.pci_address)
            if function.health != before:
                told[function.pci_address] = function.health
                name = subjects[function.pci_address].netdev or function.pci_address
                if before is not None or function.health != HEALTHY:
                    yield Transition(engine.now, function.pci_address, name, before, function.health)

    for moment in _moments(samples):
        at = moment[0].at
        while engine.now and (due := engine.due()) is not None and due < at:
            yield from judged(due)
        engine.samples(moment)
        yield from judged(at)


def _moments(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Those of one time together: sources speak of all PFs at once."""
    moment: list[Sample] = []
    for sample in samples:
        if moment and sample.at != moment[0].at:
            yield moment
            moment = []
        moment.append(sample)
    if moment:
        yield moment


def _function(subject: Subject) -> Function:
    return Function(
        subject.device,
        vendor="",
        device=str(subject.speed_mbps or ""),
        driver=subject.driver or "unknown",
        netdev=subject.netdev,
        link_type=subject.link_type,
        rdma=None,
        vfio_group=None,
        vdpa=None,
        numa_node=subject.numa_node,
        pci_path=subject.path,
    )


def _link(subject: Subject) -> Link:
    """Its state is what the samples tell."""
    return Link(
        subject.netdev or subject.device,
        subject.device,
        subject.mac,
        admin_up=True,
        carrier=None,
        operstate=None,
        speed_mbps=None,
        mtu=None,
        default_route=subject.default_route,
    )


def told(one: Transition, header: Header) -> str:
    """A transition in one line."""
    before = "first seen" if one.before is None else _words(one.before)
    why = (
        "; ".join(f"{reason.key}: {reason.detail}" for reason in one.after.reasons)
        or "nothing stands against it"
    )
    return plain(f"{moment(one.at, header)}  {one.name}  {before} → {_words(one.after)}  {why}")


def moment(at: float, header: Header) -> str:
    """As UTC where the recording tells when the machine was booted, or as seconds since then."""
    if not header.booted_at:
        return f"{at:12.3f}"
    with suppress(ValueError, OverflowError):
        return datetime.fromtimestamp(header.booted_at + at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return f"{at:12.3f}"


def _words(health: Health) -> str:
    return f"{health.state} ({'Healthy' if health.allocatable else 'Unhealthy'})"


def summary(tally: Tally) -> str:
    rows = [
        (device, str(count), seconds(tally.unhealthy_s.get(device, 0.0)))
        for device, count in sorted(tally.transitions.items())
    ]
    return section("SUMMARY", ("DEVICE", "TRANSITIONS", "UNHEALTHY FOR"), rows)


def as_object(one: Transition) -> dict[str, object]:
    return {
        "at": one.at,
        "device": one.device,
        "name": one.name,
        "before": None if one.before is None else msgspec.to_builtins(one.before),
        "after": msgspec.to_builtins(one.after),
    }


# --- for people -------------------------------------------------------------------------------------------


def find(views: Sequence[DeviceView], name: str) -> DeviceView:
    """By PCI address, netdev, UUID or GPU0. Raises ``CheckupError``."""
    for view in views:
        if name in (view.device, view.name):
            return view
    known = ", ".join(view.name for view in views) or "none"
    raise CheckupError(f"no device is called {name!r} here; there are: {known}")


def as_table(views: Sequence[DeviceView]) -> str:
    rows = [
        (
            view.name,
            view.device,
            view.state.value,
            "Healthy" if view.allocatable else "Unhealthy",
            "-" if view.for_s is None else seconds(view.for_s),
            ", ".join(reason.key for reason in view.reasons) or "-",
        )
        for view in views
    ]
    lines = [line for view in views for line in _sentences(view)]
    heads = ("DEVICE", "ID", "STATE", "KUBELET", "FOR", "REASONS")
    return "\n".join(part for part in (section("HEALTH", heads, rows), remarks("REASONS", lines)) if part)


def _sentences(view: DeviceView) -> Iterator[str]:
    rules = {rule.rule: rule for rule in view.rules}
    for reason in view.reasons:
        yield f"{view.name}: {reason.key}: {reason.detail}"
        if (rule := rules.get(reason.key)) is not None:
            yield f"    {_live(rule)}"


def _live(rule: RuleView) -> str:
    parts = [f"measured now: {rule.measured or 'nothing'}, threshold: {rule.threshold}"]
    if rule.for_s is not None:
        parts.append(f"for {seconds(rule.for_s)}")
    if rule.clears is not None:
        parts.append(f"clears {rule.clears}")
    if rule.in_s is not None:
        parts.append(f"{seconds(rule.in_s)} to go")
    return "; ".join(parts)


def as_detail(view: DeviceView) -> str:
    """One device with every rule."""
    rows = [
        (
            rule.rule,
            rule.phase,
            rule.measured or "-",
            rule.threshold,
            "-" if rule.for_s is None else seconds(rule.for_s),
            "-" if rule.in_s is None else seconds(rule.in_s),
            rule.clears or "-",
        )
        for rule in view.rules
    ]
    heads = ("RULE", "PHASE", "MEASURED", "THRESHOLD", "FOR", "TO GO", "CLEARS")
    parts = [as_table([view])]
    if rows:
        parts.append(section("RULES", heads, rows))
    return "\n".join(parts)


def rules_table(rules: Iterable[Rule]) -> str:
    """The effective rules."""
    return section("RULES", RULE_HEADS, map(rule_row, rules))


RULE_HEADS = ("RULE", "STATE", "KUBELET", "ENTER", "FOR", "CLEAR", "FOR", "WINDOW", "ENABLED")


def rule_row(rule: Rule) -> tuple[str, ...]:
    clear = clears(rule).partition(",")[0]
    return (
        rule.key,
        "warning" if rule.state.value == "healthy" else rule.state.value,
        "Unhealthy" if rule.withdraws else "Healthy",
        threshold(rule),
        seconds(rule.enter_for_s),
        clear,
        seconds(rule.clear_for_s),
        "-" if rule.window_s is None else seconds(rule.window_s),
        "yes" if rule.enabled else "no",
    )


def seconds(count: float) -> str:
    """``90 s``, ``15 min``, ``2 h``: the largest unit that leaves something to count."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if count >= 2 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} s"


async def watch(config: Config, root: Path, listen: str | None) -> AsyncIterator[tuple[DeviceView, ...]]:
    """What the agent says, or what is seen, about once a second and when it differs in more than its age."""
    if (views := await asyncio.to_thread(ask, config, listen)) is not None:
        while True:
            yield views or ()
            await asyncio.sleep(1.0)
            views = await asyncio.to_thread(ask, config, listen)
            if views is None:
                raise CheckupError("the agent has ended")
    async with _looking(config, root) as seen:
        while True:
            yield seen()
            await asyncio.sleep(1.0)


def rules_markdown(rules: Iterable[Rule]) -> str:
    """The table of docs/health.md."""
    lines = ["| rule | state | kubelet | enter | clear | window | meaning |", "|---|---|---|---|---|---|---|"]
    for rule in rules:
        key, state, kubelet, enter, enter_for, clear, clear_for, window, _ = rule_row(rule)
        enter += f" for {enter_for}" if rule.enter_for_s else ""
        clear += f" for {clear_for}" if rule.clear_for_s else ""
        lines.append(
            f"| `{key}` | {state} | {kubelet} | {enter} | {clear} | {window} | {rule.meaning} *{rule.origin}* |"
        )
    return "\n".join(lines) + "\n"
