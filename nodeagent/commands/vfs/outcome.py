"""What came of it, for each PF with SR-IOV: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import to_builtins

from nodeagent.commands.vfs.provision import spell
from nodeagent.host.sriov import VfSettings
from nodeagent.model import Function
from nodeagent.text_table import remarks, section


class State(StrEnum):
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    DIFFERS = "differs"
    """``show`` alone: ``apply`` would change it."""
    REFUSED = "refused"
    FAILED = "failed"
    LEFT = "left alone"
    """It carries the default route: its VFs are never offered, and making them could cut the node off."""
    FREE = "not configured"


@dataclass(frozen=True, slots=True)
class Vf:
    """``settings`` is ``None`` where its PF cannot be asked."""

    function: Function
    settings: VfSettings | None


@dataclass(frozen=True, slots=True)
class Pf:
    """``changes`` are those that were made, or that ``apply`` would make; ``reasons`` say why no more."""

    function: Function
    mtu: int | None
    state: State
    changes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    vfs: tuple[Vf, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """PFs in PCI order. ``notes`` are about no PF in particular: an entry that selects none is no failure,
    for one configuration serves nodes with and without such NICs."""

    pfs: tuple[Pf, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not any(pf.state in (State.REFUSED, State.FAILED) for pf in self.pfs)


def as_json(outcome: Outcome) -> str:
    """One object on one line. Absent values are null."""
    return json.dumps({"good": outcome.good, **to_builtins(outcome)}, ensure_ascii=True)


def as_table(outcome: Outcome) -> str:
    parts = [
        section("PFS", ("NETDEV", "PCI ADDRESS", "DRIVER", "VFS", "MTU", "STATE"), _pf_rows(outcome)),
        section(
            "VFS",
            ("PF", "VF", "PCI ADDRESS", "DRIVER", "NETDEV", "TRUST", "SPOOF CHECK", "LINK", "TX MBPS"),
            _vf_rows(outcome),
        ),
        _sentences(outcome),
    ]
    return "\n".join(part for part in parts if part)


def _pf_rows(outcome: Outcome) -> Iterable[Sequence[str]]:
    for pf in outcome.pfs:
        function = pf.function
        yield (
            _or_dash(function.netdev),
            function.pci_address,
            _or_dash(function.driver),
            f"{_or_dash(function.num_vfs)}/{function.total_vfs}",
            _or_dash(pf.mtu),
            pf.state,
        )


def _vf_rows(outcome: Outcome) -> Iterable[Sequence[str]]:
    for pf in outcome.pfs:
        for vf in pf.vfs:
            function, settings = vf.function, vf.settings or VfSettings()
            low, high = settings.min_tx_rate_mbps, settings.max_tx_rate_mbps
            yield (
                pf.function.netdev or pf.function.pci_address,
                _or_dash(function.vf_index),
                function.pci_address,
                _or_dash(function.driver),
                _or_dash(function.netdev),
                "-" if settings.trust is None else spell(settings.trust),
                "-" if settings.spoof_check is None else spell(settings.spoof_check),
                _or_dash(settings.link_state),
                f"{low or 'any'}-{high or 'any'}" if low is not None or high is not None else "-",
            )


def _sentences(outcome: Outcome) -> str:
    lines = [
        f"{pf.function.netdev or 'PF'} {pf.function.pci_address}: {pf.state}: {sentence}"
        for pf in outcome.pfs
        for sentence in (*pf.changes, *pf.reasons)
    ]
    lines += [f"note: {note}" for note in outcome.notes]
    lines += [f"unreadable: {sentence}" for sentence in outcome.unreadable]
    return remarks("REMARKS", lines)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
