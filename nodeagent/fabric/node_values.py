"""The values of a node that its peers should have too, such as the firmware of its NICs: their form in a report. Pure.

* ``VALUE_NAMES`` is the closed set. A report has the values in this order in one text of ``VALUES_MAX`` characters, and
  a place is empty if its value is not known. A later version appends names, which an earlier one leaves out.
* A value is short text that a person can read. Where the devices of a node differ, it is the value of most of them and
  the exceptions: ``28.43.2026; nic3: 28.39.1002``.
* What does not fit is a digest, which equals the text that it is of (``same_value``). So it does not matter which node
  has written which form, and one node that has the text explains the digests of the others.
* A change has a date, which stays in the report for ``CHANGES_KEPT_S``: so a restart of agent or controller knows it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
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
_PLACES = (NODE_MODEL, *VALUE_NAMES)
_PLACE: dict[str, int] = {name: place for place, name in enumerate(_PLACES)}
VALUES_MAX, CHANGES_MAX = 244, 32
"""Characters of the values, which make 300 bytes of a report; and dates of changes."""
READ_MAX = 300
"""Characters that the controller keeps of a node, which may have a later version with more values."""
_MODEL_MAX, SUMMARY_MAX = 32, 64
_USUAL_MAX = 40
CHANGES_KEPT_S = 3 * 86_400.0
"""``odd_nodes`` reads those of two days."""
_SEPARATOR, _BETWEEN, _OF = "|", "; ", ": "
_PLAIN = str.maketrans({"|": "/", "\\": "/", '"': "'"})
"""Signs that separate values, or that JSON writes with a second character."""
DEVICES_MIN = 4
"""Of fewer devices none is an exception: each is written."""
_DIGEST_CHARS = 6
_DIGEST = re.compile(rf"#[0-9a-f]{{{_DIGEST_CHARS}}}")


class NodeValues(NamedTuple):
    """``values`` as in the report, without a copy of each: so 10,000 nodes of which no two are alike take as many short
    texts. ``changed``: the Unix time when each value changed last, in the order of ``VALUE_NAMES``, 0 if it did
    not, and negative if it was not known before; empty if none has changed. ``since``: when the node first reported."""

    values: str
    changed: Sequence[float] = ()
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
    """One line of ASCII without the signs between values and between the parts of a summary."""
    plain = value.strip().replace(_BETWEEN, ", ").replace(_OF, " ")
    return one_line(plain, ascii_only=True).translate(_PLAIN)


def _digest(text: str) -> str:
    return f"#{digest(text)[:_DIGEST_CHARS]}"


def model_text(model: str) -> str:
    """A model in the same form in all reports: cut, with a digest of the whole, if it is long."""
    plain = plain_value(model)
    return plain if len(plain) <= _MODEL_MAX else f"{plain[: _MODEL_MAX - _DIGEST_CHARS - 1]}{_digest(plain)}"


def exceptions(value: str) -> tuple[str, dict[str, str]]:
    """The usual value in a summary, and the others by the names of their devices. The first is empty if none is usual.

    >>> exceptions("a; nic3: b")
    ('a', {'nic3': 'b'})
    """
    first, *others = value.split(_BETWEEN)
    if _OF in first:
        first, others = "", [first, *others]
    return first, {device: text for device, _, text in (other.partition(_OF) for other in others)}


def has_digest(value: str) -> bool:
    """Whether the text is not known, or not all of it."""
    return _DIGEST.search(value) is not None


def is_digest(value: str) -> bool:
    return _DIGEST.fullmatch(value) is not None


def digest_of(value: str) -> str:
    return value if is_digest(value) else _digest(value)


def same_value(one: str, other: str) -> bool:
    return one == other or (is_digest(one) != is_digest(other) and digest_of(one) == digest_of(other))


def values_text(values: Mapping[str, str], limit: int = VALUES_MAX) -> str:
    """The values by name in one text of at most ``limit`` characters: while it is longer, the longest values become
    digests, those with exceptions after the others, since they are what a person looks for."""
    texts = [values.get(name, "") for name in _PLACES]
    over = sum(map(len, texts)) + len(texts) - 1 - limit
    for place in sorted(
        range(1, len(texts)), key=lambda place: (_BETWEEN in texts[place], -len(texts[place]))
    ):
        if over > 0 and len(texts[place]) > len(short := digest_of(texts[place])):
            over -= len(texts[place]) - len(short)
            texts[place] = short
    return _SEPARATOR.join(texts)


def by_name(values: str) -> dict[str, str]:
    """The values that are known, by name, and the model."""
    return {name: text for name, text in zip(_PLACES, values.split(_SEPARATOR), strict=False) if text}


def one_value(values: str, name: ValueName) -> str:
    """Empty if it is not known."""
    texts = values.split(_SEPARATOR, _PLACE[name] + 1)
    return texts[_PLACE[name]] if len(texts) > _PLACE[name] else ""


def model_in(values: str) -> str:
    return values.partition(_SEPARATOR)[0]


def last_change(values: NodeValues, name: ValueName) -> float:
    """As in ``NodeValues.changed``."""
    return values.changed[_PLACE[name] - 1] if values.changed else 0.0


def reported_values(values: Mapping[str, str], before: ComparedValues | None, now: float) -> ComparedValues:
    """The part of a report, with the dates of changes since ``before``. ``values`` are by name, with the model."""
    stamp, whole = rfc3339(now), values_text(values)
    if before is None:
        return ComparedValues(values=whole, since=stamp)
    if whole == before.values:
        return before
    was, dates = by_name(before.values), dict[tuple[str, bool], str]()
    for change in before.changes:
        if (unix(change.since) or 0.0) > now - CHANGES_KEPT_S:
            dates |= {(name, False): change.since for name in change.values}
            dates |= {(name, True): change.since for name in change.added}
    for name, value in by_name(whole).items():
        if name != NODE_MODEL and not same_value(was.get(name, ""), value):
            dates.pop((name, name in was), None)
            dates[name, name not in was] = stamp
    found: dict[str, tuple[list[str], list[str]]] = {}
    for (name, added), since in sorted(dates.items()):
        found.setdefault(since, ([], []))[added].append(name)
    changes = (
        ValueChange(since=since, values=tuple(changed), added=tuple(added))
        for since, (changed, added) in sorted(found.items())
    )
    return ComparedValues(values=whole, changes=tuple(changes), since=before.since or stamp)


def node_values(compared: ComparedValues, pool: Callable[[Any], Any] = lambda value: value) -> NodeValues:
    """The compared values of a report: only known names count. ``pool`` makes equal values one."""
    whole = one_line(compared.values[:READ_MAX], ascii_only=True)[:READ_MAX]
    return NodeValues(pool(whole), _dates(compared.changes), unix(compared.since))


def _dates(changes: Iterable[ValueChange]) -> Sequence[float]:
    """The latest date of each value; an array takes a third of the memory of a list of numbers."""
    found = array("d", bytes(8 * len(VALUE_NAMES)))
    for change in islice(changes, CHANGES_MAX):
        since = unix(change.since) or 0.0
        for name, sign in chain(
            ((name, 1.0) for name in change.values), ((name, -1.0) for name in change.added)
        ):
            place = _PLACE.get(name, 0) - 1
            if place >= 0 and abs(found[place]) <= since:
                found[place] = sign * since
    return found if any(found) else ()
