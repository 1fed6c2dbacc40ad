"""The results for each PF with SR-IOV, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import to_builtins

from nodeagent.commands.terminal import PLAIN, Screen, remarks, section
from nodeagent.commands.vfs.provision_pf import spell
from nodeagent.facts.model import Function
from nodeagent.host.sriov import VfSettings


class PfState(StrEnum):
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    DIFFERS = "differs"
    """only from ``show``: ``apply`` would change it"""
    HELD = "held"
    """only VFs that pods or programs hold differ; they stay as they are"""
    REFUSED = "refused"
    FAILED = "failed"
    LEFT = "left alone"
    """it carries the default route: its VFs are never offered, and a change could disconnect the node"""
    FREE = "not configured"


@dataclass(frozen=True, slots=True)
class VfResult:
    """``settings`` is ``None`` if they cannot be read from its PF."""

    function: Function
    settings: VfSettings | None


@dataclass(frozen=True, slots=True)
class PfResult:
    """``changes`` were made, or ``apply`` would make them; ``left`` are the differences that stay because a VF is
    held; ``reasons`` explain missing changes."""

    function: Function
    mtu: int | None
    state: PfState
    changes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    vfs: tuple[VfResult, ...] = ()


@dataclass(frozen=True, slots=True)
class VfsResult:
    """PFs in PCI order. ``notes`` concern no single PF: an entry that selects no PF is not a failure, because one
    configuration serves nodes with and without such NICs."""

    pfs: tuple[PfResult, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not any(pf.state in (PfState.REFUSED, PfState.FAILED) for pf in self.pfs)


def as_json(result: VfsResult) -> str:
    """One object on one line. Absent values are null."""
    return json.dumps({"good": result.good, **to_builtins(result)}, ensure_ascii=True)


def as_table(result: VfsResult, on: Screen = PLAIN) -> str:
    parts = [
        section("PFS", ("NETDEV", "PCI ADDRESS", "DRIVER", "VFS", "MTU", "STATE"), _pf_rows(result), on),
        section(
            "VFS",
            ("PF", "VF", "PCI ADDRESS", "DRIVER", "NETDEV", "TRUST", "SPOOF CHECK", "LINK", "TX MBPS"),
            _vf_rows(result),
            on,
            optional=("DRIVER",),
        ),
        _sentences(result, on),
    ]
    return "\n".join(part for part in parts if part)


def _pf_rows(result: VfsResult) -> Iterable[Sequence[str]]:
    for pf in result.pfs:
        function = pf.function
        yield (
            _or_dash(function.netdev),
            function.pci_address,
            _or_dash(function.driver),
            f"{_or_dash(function.num_vfs)}/{_or_dash(function.total_vfs)}",
            _or_dash(pf.mtu),
            pf.state,
        )


def _vf_rows(result: VfsResult) -> Iterable[Sequence[str]]:
    for pf in result.pfs:
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


def _sentences(result: VfsResult, on: Screen) -> str:
    lines = [
        f"{pf.function.netdev or 'PF'} {pf.function.pci_address}: {word}: {sentence}"
        for pf in result.pfs
        for word, sentences in ((pf.state, pf.changes), (PfState.HELD, pf.left), (pf.state, pf.reasons))
        for sentence in sentences
    ]
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"unreadable: {sentence}" for sentence in result.unreadable]
    return remarks("REMARKS", lines, on)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
