"""Create and configure VFs according to the ``vfs`` section of the configuration, or show the differences.

``apply`` may be run again at any time: it reads first and changes only differences, one PF after the other. A PF
that is refused or fails does not stop the others. ``wanted`` derives the target of a PF from the entries,
``vf_users`` finds the users of its VFs, and ``provision_pf`` has the steps, each of which a crash may follow.
``read_vfs`` goes through the same steps without changes.

A PF with the default route is not changed, and neither is a PF without an SR-IOV capability. On a simulated machine
only settings in files are applied; a note lists those that only a kernel has. A capture is not changed.

The agent's pod starts only when ``apply`` has ended, as its init container. So nothing here waits without a limit: a
file that does not answer is left out of the scan, and its PF is not changed; a step that hangs ends the work on its PF
alone. With an empty section ``apply`` reads nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import to_builtins

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.commands.vfs.provision_pf import PfProvisioning, VfInUseError, spell, until
from nodeagent.commands.vfs.vf_users import PodHolders, VfUsers
from nodeagent.commands.vfs.wanted import wanted
from nodeagent.console.json_document import json_document
from nodeagent.console.options import KUBELET_DIR
from nodeagent.console.running_sources import nics_of_machine
from nodeagent.console.terminal import PLAIN, Screen, joined, remarks, screen_section
from nodeagent.facts.card_identity import lacks_guid
from nodeagent.facts.model import INFINIBAND, Function, Link, Snapshot
from nodeagent.host.sriov import BUS, SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree, is_live
from nodeagent.kinds.hardware_selection import selected_pf
from nodeagent.kinds.resource_settings import VfsEntry
from nodeagent.sources import pci_source
from nodeagent.sources.bounded_scan import BoundedScan
from nodeagent.sources.pci_source import PciFacts

log = logging.getLogger(__name__)

T = TypeVar("T")

_WAIT_S = 10.0
"""VFs appear during the write to ``sriov_numvfs``, but their driver may be loaded later, and udev renames their
netdevs after that."""
STEP_S = 300.0
"""For one write or one question to the kernel. A driver takes seconds for each VF that it creates."""
_MARKER = "/.nodeagent/machine.yaml"


class PfState(StrEnum):
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    DIFFERS = "differs"
    """only from ``read_vfs``: ``apply`` would change it"""
    HELD = "held"
    """only VFs that pods or programs hold differ; they stay as they are"""
    REFUSED = "refused"
    FAILED = "failed"
    LEFT = "left alone"
    """it carries the default route: a change of its VFs could disconnect the node"""
    FREE = "not configured"


@dataclass(frozen=True, slots=True)
class VfResult:
    """``settings`` is ``None`` if they cannot be read from its PF."""

    function: Function
    settings: VfSettings | None


@dataclass(frozen=True, slots=True)
class PfResult:
    """``changes`` were made, or ``apply`` would make them; ``left`` are the differences that stay because a VF is
    held; ``reasons`` explain missing changes. ``nic``: the name by its rail."""

    function: Function
    mtu: int | None
    state: PfState
    changes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    vfs: tuple[VfResult, ...] = ()
    nic: str | None = None

    @property
    def label(self) -> str:
        """Its first name: that of its rail, ``nic7``, or its netdev."""
        return self.nic or self.function.netdev or self.function.pci_address


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


def apply(
    config: Config,
    root: Path,
    *,
    force: bool = False,
    wait_s: float = _WAIT_S,
    step_s: float = STEP_S,
    kubelet_dir: Path = Path(KUBELET_DIR),
) -> VfsResult:
    """Make the machine match the configuration. ``force``: a VF whose users are unknown counts as unused.

    Raises ``SysfsError`` without a machine, ``SriovError`` for a capture."""
    if not config.vfs:
        return VfsResult(notes=("the section vfs is empty: nothing was read or changed",))
    tree = Tree(root)
    if "kind: captured" in (tree.text(_MARKER) or "").splitlines():
        raise SriovError(
            f"{root} is a capture and is not written; `nodeagent vfs show` shows the differences"
        )
    holders = PodHolders(tree, wait_s, kubelet_dir)
    return asyncio.run(_Run(config, tree, holders, wait_s, step_s, force=force, dry=False).result())


def read_vfs(config: Config, root: Path, kubelet_dir: Path = Path(KUBELET_DIR)) -> VfsResult:
    tree = Tree(root)
    holders = PodHolders(tree, 0.0, kubelet_dir)
    return asyncio.run(_Run(config, tree, holders, 0.0, STEP_S, force=False, dry=True).result())


class _Run:
    """One run over all PFs."""

    def __init__(
        self,
        config: Config,
        tree: Tree,
        holders: PodHolders,
        wait_s: float,
        step_s: float,
        *,
        force: bool,
        dry: bool,
    ) -> None:
        self._config, self._tree, self._wait_s, self._step_s = config, tree, wait_s, step_s
        self._force, self._dry = force, dry
        self._scans = BoundedScan("vfs", tree)
        self._holders = holders

    async def result(self) -> VfsResult:
        facts = await self._scan()
        links = {link.pci_address: link for link in facts.links}
        hanging = pci_source.hanging_devices(self._tree, facts.links)
        capable = [
            pf
            for pf in facts.functions
            if pf.parent is None and (pf.total_vfs is not None or pf.pci_address in hanging)
        ]
        pfs = [await self._processed(pf, links.get(pf.pci_address), facts) for pf in capable]
        late: tuple[str, ...] = ()
        if not self._dry:
            late = await self._bounded(partial(_wait_for_vfs, self._tree, pfs, self._wait_s), _sentence)
        unknown = self._holders.error
        notes = (
            *_unselected(self._config.vfs, facts, hanging),
            *((unknown,) if unknown and self._force else ()),
            *late,
        )
        return await self._with_current_facts(pfs, notes)

    async def _scan(self) -> PciFacts:
        return await self._scans.run(pci_source.scan, self._tree)

    async def _bounded(self, work: Callable[[], T], otherwise: Callable[[Unanswered], T]) -> T:
        """Do the work in a thread; if a step of it hangs, abandon the thread."""
        try:
            return await BoundedCalls("vfs", self._step_s, alone=False).run(work)
        except Unanswered as error:
            return otherwise(error)

    async def _processed(self, pf: Function, link: Link | None, facts: PciFacts) -> PfResult:
        result = PfResult(pf, link.mtu if link else None, PfState.FREE)
        if wanted(self._config.vfs, pf) is None:
            return result
        if link is not None and link.default_route:
            reason = (
                f"{link.netdev} carries the default route, and a change of its VFs could disconnect the node"
            )
            return replace(result, state=PfState.LEFT, reasons=(reason,))
        if hanging := self._hanging(pf, facts):
            reason = f"{', '.join(hanging)}: no answer of the driver, so nothing of this PF is changed"
            return self._logged(replace(result, state=PfState.FAILED, reasons=(reason,)))
        vfs = tuple(function for function in facts.functions if function.parent == pf.pci_address)
        return self._logged(
            await self._bounded(
                partial(self._provision, result, link, vfs),
                lambda error: replace(result, state=PfState.FAILED, reasons=(str(error),)),
            )
        )

    def _hanging(self, pf: Function, facts: PciFacts) -> list[str]:
        """The devices of this PF of which a file hangs: the facts may lack a VF that a pod holds."""
        devices = pci_source.hanging_devices(self._tree, facts.links)
        return sorted(
            address
            for address in devices
            if pf.pci_address in (address, self._tree.link(f"{BUS}/devices/{address}/physfn"))
        )

    def _provision(self, result: PfResult, link: Link | None, vfs: tuple[Function, ...]) -> PfResult:
        """Bring one PF to its target state. Blocks."""
        pf = result.function
        want = wanted(self._config.vfs, pf)
        assert want is not None
        with _netlink(self._tree) as netlink:
            users = VfUsers(self._tree, netlink, self._holders, force=self._force)
            work = PfProvisioning(self._tree, netlink, users, pf, link, vfs, want, self._wait_s, self._dry)
            state, reasons = PfState.UNCHANGED, tuple[str, ...]()
            try:
                work.run()
            except VfInUseError as error:
                state, reasons = PfState.REFUSED, error.reasons
            except (SriovError, SysfsError) as error:
                state, reasons = PfState.FAILED, (str(error),)
        changes, left = work.changes.sentences(), tuple(work.left)
        if changes and state is PfState.UNCHANGED:
            state = PfState.DIFFERS if self._dry else PfState.CHANGED
        elif left and state is PfState.UNCHANGED:
            state = PfState.HELD
        return replace(result, state=state, changes=changes, left=left, reasons=(*reasons, *work.notes))

    def _logged(self, result: PfResult) -> PfResult:
        if result.state is not PfState.UNCHANGED and not self._dry:
            what = "; ".join((*result.changes, *result.left, *result.reasons))
            address = result.function.pci_address
            log.info("PF processed. pci_address=%s outcome=%s what=%r", address, result.state, what)
        return result

    async def _with_current_facts(self, pfs: Iterable[PfResult], notes: tuple[str, ...]) -> VfsResult:
        """The results with the functions as they are now."""
        facts = await self._scan()
        now = {function.pci_address: function for function in facts.functions}
        mtu = {link.pci_address: link.mtu for link in facts.links}
        names = nics_of_machine(
            self._config, self._tree.root, Snapshot(functions=facts.functions, links=facts.links)
        )
        current = []
        for pf in pfs:
            function = now.get(pf.function.pci_address, pf.function)
            vfs = [vf for vf in facts.functions if vf.parent == function.pci_address]
            settings = None
            if vfs:
                settings = await self._bounded(partial(_settings, self._tree, function), lambda _: None)
            current.append(
                replace(
                    pf,
                    function=function,
                    mtu=mtu.get(function.pci_address),
                    nic=names.get(function.pci_address),
                    vfs=tuple(
                        VfResult(
                            vf, settings.get(vf.vf_index) if settings and vf.vf_index is not None else None
                        )
                        for vf in sorted(vfs, key=lambda vf: (vf.vf_index is None, vf.vf_index))
                    ),
                )
            )
        return VfsResult(tuple(current), notes, facts.unreadable)


def _sentence(error: Unanswered) -> tuple[str, ...]:
    return (str(error),)


@contextmanager
def _netlink(tree: Tree) -> Iterator[VfNetlink | None]:
    if not is_live(tree):
        yield None
        return
    with VfNetlink(tree) as netlink:
        yield netlink


def _unselected(entries: Sequence[VfsEntry], facts: PciFacts, hanging: Collection[str]) -> Iterator[str]:
    pfs = [
        function
        for function in facts.functions
        if function.parent is None and function.pci_address not in hanging
    ]
    for i, entry in enumerate(entries):
        selected = [pf for pf in pfs if selected_pf(entry.select, pf)]
        if not any(pf.total_vfs is not None for pf in selected):
            yield f"vfs[{i}] selects no PF with SR-IOV on this machine"
        for pf in selected:
            if pf.total_vfs is None:
                yield (
                    f"vfs[{i}] selects {pf.pci_address} ({pf.netdev or 'no netdev'}), which has no SR-IOV "
                    "capability; enable SR-IOV in the device's firmware if it supports it"
                )


def _wait_for_vfs(tree: Tree, pfs: Iterable[PfResult], wait_s: float) -> tuple[str, ...]:
    """Wait for drivers and netdevs of the VFs of changed PFs. Returns a sentence for each missing one."""
    addresses = [pf.function.pci_address for pf in pfs if pf.state is PfState.CHANGED]

    def late() -> tuple[str, ...]:
        return tuple(sentence for address in addresses for sentence in _late(tree, address))

    until(lambda: not late(), wait_s)
    try:
        return late()
    except SysfsError as error:
        return (str(error),)


def _late(tree: Tree, pf: str) -> Iterator[str]:
    folder = f"{BUS}/devices/{pf}"
    probed = tree.integer(f"{folder}/sriov_drivers_autoprobe") != 0
    for name in tree.names(folder):
        if not name.startswith("virtfn"):
            continue
        driver = tree.link(f"{folder}/{name}/driver")
        if driver is None and probed:
            yield f"{tree.link(f'{folder}/{name}')} has no driver yet; if none appears, modprobe it on the host"
        elif driver is not None and "vfio" not in driver and "uio" not in driver:
            names = tree.names(f"{folder}/{name}")
            holder = next((part for part in names if part.startswith("virtio")), ".")
            # An empty folder means that the netdev is in another network namespace.
            if not tree.exists(f"{folder}/{name}/{holder}/net"):
                yield f"{tree.link(f'{folder}/{name}')} has no netdev yet"


def _settings(tree: Tree, pf: Function) -> dict[int, VfSettings] | None:
    with _netlink(tree) as netlink:
        if netlink is None or pf.netdev is None:
            return None
        try:
            return netlink.vfs(pf.netdev)
        except (SriovError, SysfsError) as error:
            log.warning("VF settings cannot be read. pci_address=%s reason=%r", pf.pci_address, str(error))
            return None


# --- the results ----------------------------------------------------------------------------------------


def vfs_json(result: VfsResult, root: Path = Path("/")) -> str:
    """One object on one line. Absent values are null."""
    return json_document({"good": result.good, **to_builtins(result)}, root, None)


def vf_table(result: VfsResult, on: Screen = PLAIN) -> str:
    parts = [
        screen_section(
            "PFS", ("NIC", "NETDEV", "PCI ADDRESS", "DRIVER", "VFS", "MTU", "STATE"), _pf_rows(result), on
        ),
        _vf_section(result, on),
        _sentences(result, on),
    ]
    return joined(*parts)


def _vf_section(result: VfsResult, on: Screen) -> str:
    """The VFs; with their GUIDs if there are VFs of InfiniBand."""
    heads = ["PF", "VF", "PCI ADDRESS", "DRIVER", "NETDEV", "TRUST", "SPOOF CHECK", "LINK", "TX MBPS"]
    rows = [[*row] for row in _vf_rows(result)]
    functions = [vf.function for pf in result.pfs for vf in pf.vfs]
    if any(vf.link_type == INFINIBAND for vf in functions):
        heads.insert(5, "GUID")
        for row, vf in zip(rows, functions, strict=True):
            row.insert(5, _guid(vf))
    return screen_section("VFS", heads, rows, on, optional=("DRIVER",))


def _pf_rows(result: VfsResult) -> Iterable[Sequence[object]]:
    for pf in result.pfs:
        function = pf.function
        yield (
            pf.nic,
            function.netdev,
            function.pci_address,
            function.driver,
            "/".join("-" if n is None else str(n) for n in (function.num_vfs, function.total_vfs)),
            pf.mtu,
            pf.state,
        )


def _vf_rows(result: VfsResult) -> Iterable[Sequence[object]]:
    for pf in result.pfs:
        for vf in pf.vfs:
            function, settings = vf.function, vf.settings or VfSettings()
            low, high = settings.min_tx_rate_mbps, settings.max_tx_rate_mbps
            yield (
                pf.label,
                function.vf_index,
                function.pci_address,
                function.driver,
                function.netdev,
                None if settings.trust is None else spell(settings.trust),
                None if settings.spoof_check is None else spell(settings.spoof_check),
                settings.link_state,
                f"{low or 'any'}-{high or 'any'}" if low is not None or high is not None else None,
            )


def _guid(vf: Function) -> str | None:
    """The node GUID of a VF, ``none`` for an InfiniBand VF without one."""
    if vf.link_type != INFINIBAND or vf.rdma is None:
        return None
    return "none" if lacks_guid(vf) else vf.rdma.node_guid


def _sentences(result: VfsResult, on: Screen) -> str:
    lines = [
        f"{' '.join(dict.fromkeys((pf.label, pf.function.pci_address)))}: {word}: {sentence}"
        for pf in result.pfs
        for word, sentences in ((pf.state, pf.changes), (PfState.HELD, pf.left), (pf.state, pf.reasons))
        for sentence in sentences
    ]
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"unreadable: {sentence}" for sentence in result.unreadable]
    return remarks("REMARKS", lines, on)
