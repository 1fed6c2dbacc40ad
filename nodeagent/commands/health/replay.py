"""Recorded samples through the rules: every change of health. Reads no clock."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from nodeagent.agent_config import Config
from nodeagent.base.duration import duration
from nodeagent.base.plain_text import one_line
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.console import user_files
from nodeagent.console.json_document import document
from nodeagent.console.options import GOOD
from nodeagent.console.terminal import PLAIN, Screen, screen, section
from nodeagent.console.user_files import UserFileError
from nodeagent.facts.model import HEALTHY, Function, Gpu, Health, Link
from nodeagent.health.gpu import GpuJudge
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.health_settings import GuardSettings, HealthSettings
from nodeagent.health.nic import NicJudge, roles
from nodeagent.health.recording import Header, RecordingError, Subject, decode, lines
from nodeagent.health.structural import Faults, find_faults
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.measurements.sample import Sample, Source

RECORDING = "a recording, as `nodeagent capture --samples SECONDS FILE` writes it"
PRESENT, VFS, DRIVER = "pf_present", "pf_vfs", "pf_driver"
"""Names in the samples with facts of a PF. Without a driver the last one is missing."""
READ_S = 5.0
"""The agent's interval between readings."""


def show(config: Config, options: argparse.Namespace, file: str) -> int:
    """Print every change of health, and what the changes add up to. Raises ``UserFileError``."""
    tally = Tally()
    with recorded(file) as (header, samples):
        for transition in replay(header, tally.follow(samples), config.health, config.gpu):
            tally.count(transition)
            change = as_object(transition) | {"node": None}  # a recording does not name its node
            print(document(change, options.root, file) if options.json else describe(transition, header))
    tally.finish()
    if not options.json:
        print(f"\n{summary(tally, screen())}", end="")
    return GOOD


@contextmanager
def recorded(file: str) -> Iterator[tuple[Header, Iterator[Sample]]]:
    """The header and the samples of a file or ``-``. Raises ``UserFileError``, also for a fault that comes later."""
    try:
        with user_files.opened(file, RECORDING) as stream:
            yield decode(lines(stream))
    except RecordingError as error:
        raise UserFileError(user_files.name_of(file), error.fault, RECORDING, error.line) from error


class RecordedPfs:
    """All PFs that the header names. Samples of a recording contain the state of their links."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        subjects = tuple(subjects)
        self.links = tuple(map(_link, subjects))
        self.functions: tuple[Function, ...] = ()
        """All of them, the missing ones too."""
        self._present = {subject.device: _function(subject) for subject in subjects}
        self._known = frozenset(self._present)

    def take(self, sample: Sample) -> bool:
        """Return whether the sample has facts of a PF, and is no measurement."""
        address = sample.device
        if PRESENT not in sample.values or address not in self._known:
            return False
        if sample.values[PRESENT] == 0:
            self._present.pop(address, None)
            return True
        known = self._present.get(address) or next(
            function for function in self.functions if function.pci_address == address
        )
        vfs = sample.values.get(VFS)
        self._present[address] = replace(
            known,
            driver=sample.texts.get(DRIVER),
            num_vfs=known.num_vfs if vfs is None else int(vfs),
            missing=False,
        )
        return True

    def facts(self) -> tuple[tuple[Function, ...], tuple[Link, ...], Faults]:
        """Return the functions, their links, and their faults."""
        self.functions, faults = find_faults(self._present.values(), self.links, self.functions)
        return self.functions, self.links, faults


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


class RecordedDriver:
    """Apply the agent's GPU rules to the GPUs that the header of a recording names.

    A recording contains readings, events and measured values of the driver (``capture/sample_recorder.py``). The names
    in a sample distinguish them. The rules also work on measured values alone. The agent applies them to events again
    at each reading, so call ``step`` for every moment of the recording.
    """

    def __init__(self, subjects: Iterable[Subject], settings: GpuSettings, guard: GuardSettings) -> None:
        self._index = {
            subject.device: number if subject.index is None else subject.index
            for number, subject in enumerate(subjects)
        }
        self._judge = GpuJudge(settings, guard)
        self._readings: dict[str, GpuReading] = {}
        self._xids: dict[tuple[str, int], float] = {}
        self._sampled_at: float | None = None
        self.now = 0.0

    def name(self, uuid: str) -> str:
        return f"GPU{self._index[uuid]}"

    def step(self, at: float, samples: Iterable[Sample]) -> Iterator[tuple[str, Health]]:
        """Yield the health of every GPU after the samples of one moment."""
        of_gpus = [s for s in samples if s.source is Source.GPU and s.device in self._index]
        self.now = max(self.now, at)
        events = [event for sample in of_gpus for event in self._events(sample)]
        vitals = [GpuVitals(s.device, s.values, s.texts) for s in of_gpus if _is_measured(s)]
        before = dict(self._readings)
        for sample in of_gpus:
            self._read(sample)
        if of_gpus:
            self._sampled_at = self.now
        due = self.now - max((gpu.read_at for gpu in self._judge.devices.values()), default=0.0) >= READ_S
        # Without samples for some time the driver does not answer, and its GPUs are not read: no fault ends.
        gap_s = self._judge.settings.health.gap_s
        answers = self._sampled_at is not None and self.now - self._sampled_at <= gap_s
        if not of_gpus and not (answers and due):
            return
        if due or before != self._readings or any("gpu_lost" in sample.values for sample in of_gpus):
            # First, because an event of a GPU that was never read is dropped.
            self._judge.take_readings(tuple(self._readings.values()), self.now)
        self._judge.take_events(events, self.now)
        self._judge.take_vitals(vitals, self.now)
        yield from self._judge.judge(self.now).items()

    def _read(self, sample: Sample) -> None:
        uuid = sample.device
        if "gpu_lost" in sample.values:
            self._readings[uuid] = GpuReading(
                self._index[uuid],
                uuid,
                mig=sample.values.get("gpu_mig") == 1,
                recovery_action=sample.texts.get("gpu_recovery_action"),
                lost=sample.values["gpu_lost"] == 1,
                fault=sample.texts.get("gpu_fault"),
            )
        elif uuid not in self._readings:
            self._readings[uuid] = GpuReading(self._index[uuid], uuid)

    def _events(self, sample: Sample) -> Iterator[GpuEvent]:
        """The XID counts start with the recording: a count that has grown is an event."""
        for name, count in sample.values.items():
            head, _, key = name.partition("/")
            if head == "gpu_xids" and key.isdecimal():
                counter = sample.device, int(key)
                if count > self._xids.get(counter, 0):
                    yield GpuEvent(sample.device, int(key))
                self._xids[counter] = count
        if sample.values.get("gpu_unavailable") == 1:
            yield GpuEvent(sample.device, None, unavailable=True)


def _is_measured(sample: Sample) -> bool:
    """Whether the sample contains measured values, and is neither a reading nor an event."""
    heads = {name.partition("/")[0] for name in sample.values}
    return "gpu_lost" not in heads and bool(heads - {"gpu_xids", "gpu_unavailable"})


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of the health of one PF or GPU. ``before`` is ``None`` for its first health."""

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
    pfs = RecordedPfs(nics.values())
    judge.take_facts(*pfs.facts())
    judge.take_roles(roles(pfs.functions, tuple(map(_gpu, gpu_subjects))))
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
            measured = [sample for sample in moment if not pfs.take(sample)]
            if len(measured) < len(moment):
                judge.now = max(judge.now, at)
                judge.take_facts(*pfs.facts())
            judge.take_samples(measured)
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


def _gpu(subject: Subject) -> Gpu:
    """Return a GPU with its place only, from which the roles of PFs follow."""
    return Gpu(subject.device, 0, None, "", "", 0, subject.numa_node, subject.path)


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


def summary(tally: Tally, on: Screen = PLAIN) -> str:
    rows = [
        (device, str(count), duration(tally.unhealthy_s.get(device, 0.0)))
        for device, count in sorted(tally.transitions.items())
    ]
    return section("SUMMARY", ("DEVICE", "TRANSITIONS", "UNHEALTHY FOR"), rows, on)


def as_object(change: Transition) -> dict[str, object]:
    return {
        "at": change.at,
        "device": change.device,
        "name": change.name,
        "before": None if change.before is None else msgspec.to_builtins(change.before),
        "after": msgspec.to_builtins(change.after),
    }
