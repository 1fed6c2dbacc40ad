"""The health of a device with every rule behind it: value, threshold, duration, and what would clear a fault.

Pure, and computed on request: facts contain no live values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from nodeagent.facts.model import Health, PodNetdev, Reason, State, UnusableGpu
from nodeagent.facts.remedies import remedy_for
from nodeagent.health.gpu import GpuJudge
from nodeagent.health.hold import Hold
from nodeagent.health.judge import JudgedDevice
from nodeagent.health.nic import NicJudge, NicState
from nodeagent.health.rule import Measured, Rule, clears, gravity, threshold

_Phase = Literal["active", "entering", "clearing", "quiet", "unknown", "off"]


class RuleView(msgspec.Struct, frozen=True, rename="camel"):
    """One rule on one device. ``for_s``: the time in this phase. ``in_s``: the time until it changes if the value
    stays as it is. ``clears``: what would clear the fault, in words."""

    rule: str
    phase: _Phase
    state: State
    withdraws: bool
    measured: str | None
    value: float | None
    threshold: str
    for_s: float | None = None
    in_s: float | None = None
    began: str | None = None
    clears: str | None = None


class DeviceView(msgspec.Struct, frozen=True, rename="camel"):
    """A PF or a GPU. ``watched``: it has passed the gate, so that a missing link is a fault. ``stale_sources``: the
    sources whose samples are stale, with the JSON key ``silent``. ``not_given``: the counters of unknown rules that no
    source gives. ``nic``: the name by its rail. ``offered``: whether a resource or a claim has devices of it, so that
    ``allocatable`` is what the kubelet or the scheduler is told. ``remedy``: the first thing to do about its reasons.
    ``pods``: those that hold devices of it, ``namespace/pod``. ``pod_netdevs``: the netdevs of its VFs in pods, by
    `nodeagent attach`."""

    device: str
    name: str
    kind: Literal["nic", "gpu"]
    state: State
    allocatable: bool
    watched: bool
    for_s: float | None
    reasons: tuple[Reason, ...]
    rules: tuple[RuleView, ...] = ()
    stale_sources: tuple[str, ...] = msgspec.field(default=(), name="silent")
    not_given: tuple[str, ...] = ()
    nic: str | None = None
    netdev: str | None = None
    rdma: str | None = None
    offered: bool = True
    remedy: str = ""
    pods: tuple[str, ...] = ()
    pod_netdevs: tuple[PodNetdev, ...] = ()

    @property
    def label(self) -> str:
        """Its first name: that of its rail, ``nic7``, or ``name``."""
        return self.nic or self.name


def explain_nics(
    judge: NicJudge, health: dict[str, Health], now: float, names: Mapping[str, str]
) -> tuple[DeviceView, ...]:
    """Return the views of all PFs, the gravest first. ``health``: the last result, by PCI address, as ``names``."""
    views = []
    for nic in judge.devices.values():
        nic.set_time(now)
        view = _device(nic, nic.address, nic.netdev or nic.address, health.get(nic.address, Health()), now)
        stale_sources = tuple(source.value for source in nic.history.stale())
        rdma, name = nic.function.rdma, names.get(nic.address)
        view = msgspec.structs.replace(view, nic=name, netdev=nic.netdev, rdma=rdma.device if rdma else None)
        remedy = remedy_of_device(view.reasons, nic.netdev or name or nic.address)
        view = msgspec.structs.replace(view, remedy=remedy)
        missing = _not_given(nic, {rule.rule for rule in view.rules if rule.phase == "unknown"})
        views.append(msgspec.structs.replace(view, stale_sources=stale_sources, not_given=missing))
    return tuple(sorted(views, key=lambda view: (-gravity(view.state), view.device)))


def _not_given(nic: NicState, unknown: Collection[str]) -> tuple[str, ...]:
    counters = {name for rule, _ in nic.measure_all() if rule.key in unknown for name in rule.counters}
    if nic.function.link_type != "infiniband":
        counters = {name for name in counters if not name.startswith("ib_")}
    return tuple(sorted(name for name in counters if not nic.history.gives(name)))


def explain_gpus(judge: GpuJudge, now: float) -> tuple[DeviceView, ...]:
    """Return the views of all GPUs, by index."""
    return tuple(
        _device(gpu, uuid, f"GPU{gpu.index}", judge.health(uuid), now) for uuid, gpu in judge.devices.items()
    )


def explain_unusable(gpus: Iterable[UnusableGpu]) -> tuple[DeviceView, ...]:
    """Return the views of the GPUs that no resource can offer; no rule reads them."""
    return tuple(
        DeviceView(
            device=gpu.place,
            name=f"GPU at {gpu.place}",
            kind="gpu",
            state=gpu.health.state,
            allocatable=False,
            watched=False,
            for_s=None,
            reasons=gpu.health.reasons,
            remedy=remedy_of_device(gpu.health.reasons, f"GPU at {gpu.place}"),
        )
        for gpu in gpus
    )


def _device(device: JudgedDevice, key: str, name: str, health: Health, now: float) -> DeviceView:
    return DeviceView(
        device=key,
        name=name,
        kind=device.kind,
        state=health.state,
        allocatable=health.allocatable,
        watched=device.watched,
        for_s=None if device.changed_at is None else max(0.0, now - device.changed_at),
        reasons=health.reasons,
        remedy=remedy_of_device(health.reasons, name),
        rules=tuple(_rules(device, {reason.key for reason in health.reasons}, now)),
    )


def remedy_of_device(reasons: Iterable[Reason], device: str) -> str:
    """The first thing to do, with the name of the device; empty without a reason."""
    keys = [reason.key for reason in reasons]
    return remedy_for(keys, device) if keys else ""


def _rules(device: JudgedDevice, shown: set[str], now: float) -> Iterable[RuleView]:
    """``shown`` are the keys of the reasons."""
    for rule, measured in device.measure_all():
        view = _rule(rule, measured, device.holds.get(rule.key), now)
        if view.clears is None and rule.key in shown and rule.enabled:
            view = msgspec.structs.replace(view, clears=clears(rule))
        yield view


def _phase(rule: Rule, hold: Hold | None, measured: Measured | None) -> _Phase:
    if not rule.enabled:
        return "off"
    if hold is not None and hold.active:
        return "active" if hold.good_since is None else "clearing"
    if hold is not None and hold.since is not None and (measured is not None or rule.patient):
        return "entering"
    return "unknown" if measured is None else "quiet"


def _rule(rule: Rule, measured: Measured | None, hold: Hold | None, now: float) -> RuleView:
    phase = _phase(rule, hold, measured)
    active = phase in ("active", "clearing")
    began = due = None
    if hold is not None and phase != "off":
        if rule.gap_s is not None and hold.read_at is not None:
            now = hold.read_at  # its time does not run between readings
        began, due = hold.since, hold.due(rule)
    return RuleView(
        rule=rule.key,
        phase=phase,
        state=rule.state,
        withdraws=rule.withdraws,
        measured=None if measured is None else measured.text,
        value=None if measured is None or math.isnan(measured.value) else measured.value,
        threshold=(measured.limit if measured is not None else None) or threshold(rule),
        for_s=None if began is None else max(0.0, now - began),
        in_s=None if due is None or math.isinf(due) else max(0.0, due - now),
        began=hold.text if hold is not None and active else None,
        clears=clears(rule) if active else None,
    )
