"""Recorded samples through the rules: every change of health. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from nodeagent.commands.health.gpu_replay import RecordedDriver
from nodeagent.commands.health.tables import seconds
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.nic_judge import NicJudge, roles
from nodeagent.health.recording import Header, Subject
from nodeagent.health.structural import find_faults
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import HEALTHY, Function, Gpu, Health, Link
from nodeagent.one_line import one_line
from nodeagent.rfc3339 import rfc3339
from nodeagent.text_table import section


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of the health of one PF or GPU. ``before`` is ``None`` at its first verdict."""

    at: float
    device: str
    name: str
    before: Health | None
    after: Health


@dataclass(slots=True)
class Tally:
    """The result of a replay by device: the number of transitions, and the time for which it was Unhealthy."""

    transitions: dict[str, int] = field(default_factory=dict)
    unhealthy_s: dict[str, float] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def follow(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the same samples, and note the end of the recording."""
        for sample in samples:
            self._last = max(self._last, sample.at)
            yield sample

    def finish(self) -> None:
        for device in tuple(self._since):
            self.end(device, self._last)

    def count(self, change: Transition) -> None:
        self.transitions[change.device] = self.transitions.get(change.device, 0) + (change.before is not None)
        self.end(change.device, change.at)
        if not change.after.allocatable:
            self._since[change.device] = change.at

    def end(self, device: str, at: float) -> None:
        since = self._since.pop(device, None)
        if since is not None:
            self.unhealthy_s[device] = self.unhealthy_s.get(device, 0.0) + at - since


def replay(
    header: Header,
    samples: Iterable[Sample],
    settings: HealthSettings,
    gpu_settings: GpuSettings | None = None,
) -> Iterator[Transition]:
    """Yield every transition that the rules make on these samples, in order. Deterministic: the only clock is the time
    in the samples."""
    judge = NicJudge(settings)
    nics = {subject.device: subject for subject in header.devices if subject.kind == "nic"}
    gpu_subjects = tuple(subject for subject in header.devices if subject.kind == "gpu")
    links = tuple(map(_link, nics.values()))
    functions, faults = find_faults(map(_function, nics.values()), links)
    judge.take_facts(functions, links, faults)
    judge.take_roles(roles(functions, tuple(map(_gpu, gpu_subjects))))
    gpus = RecordedDriver(gpu_subjects, gpu_settings or GpuSettings(), settings.guard)
    last: dict[str, Health] = {}

    def transition(at: float, device: str, name: str, health: Health) -> Iterator[Transition]:
        before = last.get(device)
        if health != before:
            last[device] = health
            if before is not None or health != HEALTHY:
                yield Transition(at, device, name, before, health)

    def judge_nics(at: float) -> Iterator[Transition]:
        for function in judge.judge(at):
            address = function.pci_address
            yield from transition(judge.now, address, nics[address].netdev or address, function.health)

    for moment in _moments(samples):
        at = moment[0].at
        if any(sample.source is not Source.GPU for sample in moment):
            while judge.now and (due := judge.due()) is not None and due < at:
                yield from judge_nics(due)
            judge.take_samples(moment)
            yield from judge_nics(at)
        for uuid, health in gpus.step(at, moment):
            yield from transition(gpus.now, uuid, gpus.name(uuid), health)


def _moments(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Group samples of the same time: a source reports all PFs at once."""
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


def _gpu(subject: Subject) -> Gpu:
    """Return a GPU with its place only, from which the roles of PFs follow."""
    return Gpu(subject.device, 0, None, "", "", 0, subject.numa_node, subject.path)


def _link(subject: Subject) -> Link:
    """Return a link; the samples contain its state."""
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


def describe(transition: Transition, header: Header) -> str:
    """Return a transition in one line."""
    before = "first seen" if transition.before is None else _words(transition.before)
    reasons = "; ".join(f"{reason.key}: {reason.detail}" for reason in transition.after.reasons)
    at, after = moment(transition.at, header), _words(transition.after)
    return one_line(f"{at}  {transition.name}  {before} → {after}  {reasons or 'no fault'}")


def moment(at: float, header: Header) -> str:
    """Return the time as UTC if the recording contains the time of the boot, else as seconds since the boot."""
    if not header.booted_at:
        return f"{at:12.3f}"
    with suppress(ValueError, OverflowError):
        return rfc3339(header.booted_at + at, "milliseconds")
    return f"{at:12.3f}"


def _words(health: Health) -> str:
    return f"{health.state} ({'Healthy' if health.allocatable else 'Unhealthy'})"


def summary(tally: Tally) -> str:
    rows = [
        (device, str(count), seconds(tally.unhealthy_s.get(device, 0.0)))
        for device, count in sorted(tally.transitions.items())
    ]
    return section("SUMMARY", ("DEVICE", "TRANSITIONS", "UNHEALTHY FOR"), rows)


def as_object(change: Transition) -> dict[str, object]:
    return {
        "at": change.at,
        "device": change.device,
        "name": change.name,
        "before": None if change.before is None else msgspec.to_builtins(change.before),
        "after": msgspec.to_builtins(change.after),
    }
