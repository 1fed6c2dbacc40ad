"""The values of a node that its peers should have too, such as the firmware of its NICs: their form in a report. Pure.

* ``VALUE_NAMES`` is the closed set. A value of a later version of the agent is left out, as is one that is unknown.
* A value is short text that a person can read. Where the devices of a node differ, it is the value of most of them and
  the exceptions: ``28.43.2026; nic3: 28.39.1002``. What does not fit is a digest, which tells values apart.
* A change has a date, which stays in the report for ``CHANGES_KEPT_S``: so a restart of agent or controller knows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from nodeagent.base.plain_text import one_line
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.fabric.link_faults import unix
from nodeagent.fabric.nodelinks import ComparedValues, ValueChange
from nodeagent.fabric.switch_keys import digest

NODE_MODEL = "model"
"""Names what nodes are compared: those of one model. It is no value that may differ."""
ValueName = Literal[
    "GPU driver",
    "GPU VBIOS",
    "GPU power limit",
    "GPU persistence",
    "GPU ECC mode",
    "GPU MIG mode",
    "GPU PCIe",
    "NVLinks",
    "NIC driver",
    "NIC firmware",
    "NIC PCIe",
    "link type",
    "link speed",
    "link lanes",
    "FEC",
    "MTU",
    "PFC",
    "pause",
    "rings",
    "channels",
    "VFs",
    "IOMMU",
    "kernel",
    "boot parameters",
    "agent",
    "agent settings",
]
VALUE_NAMES: tuple[ValueName, ...] = get_args(ValueName)
COMPARED_VALUES_MAX, CHANGES_MAX = 32, 32
COMPARED_MAX = 96
"""Characters of ``name=value``, as in the definition of NodeLinks."""
SUMMARY_MAX = 64
_USUAL_MAX = 40
CHANGES_KEPT_S = 8 * 86_400.0
_BETWEEN, _OF, _EQUAL = "; ", ": ", "="
DEVICES_MIN = 4
"""Of fewer devices none is an exception: each is written."""
_DIGEST = re.compile(r"#[0-9a-f]{8}")


class NodeValues(NamedTuple):
    """The values of a node as ``name=value``, when each that changed did so and what it was, and when the node first
    reported any (Unix time)."""

    texts: tuple[str, ...]
    changes: tuple[tuple[str, str, float], ...] = ()
    since: float | None = None


def summary(values: Mapping[str, str]) -> str:
    """The values of some devices of one node, by the name of the device, as one text. ``values`` has one at least.

    >>> summary({"nic0": "a", "nic1": "a", "nic2": "a", "nic3": "b"})
    'a; nic3: b'
    >>> summary({"nic0": "a", "nic1": "b"})
    'nic0: a; nic1: b'
    """
    plain = {device: plain_value(value) for device, value in values.items()}
    devices: dict[str, list[str]] = {}
    for device, value in plain.items():
        devices.setdefault(value, []).append(device)
    usual, most = max(devices.items(), key=lambda entry: (len(entry[1]), entry[0]))
    if len(devices) == 1:
        return usual if len(usual) <= SUMMARY_MAX else _digest(usual)
    has_usual = len(plain) >= DEVICES_MIN and 2 * len(most) > len(plain)
    rest = _BETWEEN.join(
        f"{','.join(of_value)}{_OF}{value}"
        for value, of_value in devices.items()
        if not (has_usual and value == usual)
    )
    whole = f"{usual}{_BETWEEN}{rest}" if has_usual else rest
    if len(whole) <= SUMMARY_MAX:
        return whole
    if has_usual and len(usual) <= _USUAL_MAX:
        return f"{usual}{_BETWEEN}{len(plain) - len(most)} of {len(plain)}{_OF}{_digest(rest)}"
    return _digest(whole)


def plain_value(value: str) -> str:
    """One line of ASCII without the signs between the parts of a summary."""
    return one_line(value.strip().replace(_BETWEEN, ", ").replace(_OF, " "), ascii_only=True)


def _digest(text: str) -> str:
    return f"#{digest(text)}"


def exceptions(value: str) -> tuple[str, dict[str, str]]:
    """The usual value in a summary, and the others by the names of their devices. The first is empty if none is usual.

    >>> exceptions("a; nic3: b")
    ('a', {'nic3': 'b'})
    """
    first, *others = value.split(_BETWEEN)
    if _OF in first:
        first, others = "", [first, *others]
    return first, {device: text for device, _, text in (other.partition(_OF) for other in others)}


def is_digest(value: str) -> bool:
    return _DIGEST.search(value) is not None


def by_name(texts: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition(_EQUAL) for text in texts)}


def reported_values(values: Mapping[str, str], before: ComparedValues | None, now: float) -> ComparedValues:
    """The part of a report, with the dates of changes since ``before``. A value that was not known has a date too, and
    its ``was`` is empty."""
    stamp = rfc3339(now)
    was = {} if before is None else by_name(before.values)
    kept = {} if before is None else {change.name: change for change in before.changes}
    texts = tuple(f"{name}{_EQUAL}{value}" for name, value in values.items())
    for name, value in values.items():
        if before is not None and was.get(name) != value:
            kept[name] = ValueChange(name=name, was=was.get(name, ""), since=stamp)
    if before is not None and texts == before.values:
        return before
    recent = [one for one in kept.values() if (unix(one.since) or 0.0) > now - CHANGES_KEPT_S]
    return ComparedValues(
        values=texts,
        changes=tuple(sorted(recent, key=lambda one: one.name)[:CHANGES_MAX]),
        since=stamp if before is None or before.since is None else before.since,
    )


def node_values(compared: ComparedValues, pool: Callable[[Any], Any] = lambda value: value) -> NodeValues:
    """The compared values of a report: only known names count, and each once. ``pool`` makes equal values one."""
    known: dict[str, str] = {}
    for text in compared.values[:COMPARED_VALUES_MAX]:
        name, _, value = text[: COMPARED_MAX + 1].partition(_EQUAL)
        if value and len(text) <= COMPARED_MAX and (name == NODE_MODEL or name in VALUE_NAMES):
            known.setdefault(name, one_line(value, ascii_only=True))
    changes = tuple(
        (pool(change.name), pool(change.was[:COMPARED_MAX]), since)
        for change in compared.changes[:CHANGES_MAX]
        if change.name in VALUE_NAMES and (since := unix(change.since)) is not None
    )
    texts = tuple(pool(f"{name}{_EQUAL}{value}") for name, value in known.items())
    return NodeValues(pool(texts), changes, unix(compared.since))
