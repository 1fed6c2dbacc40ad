"""Create and configure VFs according to the ``vfs`` section of the configuration, or show the differences.

``apply`` may be run again at any time: it reads first and changes only differences, one PF after the other. A PF
that is refused or fails does not stop the others. ``wanted`` derives the target of a PF from the entries,
``vf_users`` finds the users of its VFs, and ``provision_pf`` has the steps, each of which a crash may follow.
``show`` goes through the same steps without changes.

A PF with the default route is not changed, and neither is a PF without an SR-IOV capability. On a simulated machine
only settings in files are applied; a note lists those that only a kernel has. A capture is not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.commands.vfs.provision_pf import PfProvisioning, VfInUseError, until
from nodeagent.commands.vfs.results import PfResult, PfState, VfResult, VfsResult, as_json, as_table
from nodeagent.commands.vfs.vf_users import VfUsers
from nodeagent.commands.vfs.wanted import wanted
from nodeagent.host.sriov import BUS, SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree, is_live
from nodeagent.kinds.hardware_selection import selected_pf
from nodeagent.kinds.resource_settings import VfsEntry
from nodeagent.model import Function
from nodeagent.sources import pci_source
from nodeagent.sources.pci_source import PciFacts

__all__ = ["PfResult", "PfState", "VfResult", "VfsResult", "apply", "as_json", "as_table", "show"]

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""VFs appear during the write to ``sriov_numvfs``, but their driver may be loaded later, and udev renames their
netdevs after that."""
MARKER = "/.nodeagent/machine.yaml"


def apply(config: Config, root: Path, *, force: bool = False, wait_s: float = WAIT_S) -> VfsResult:
    """Make the machine match the configuration. ``force``: a VF whose users are unknown counts as unused.

    Raises ``SysfsError`` without a machine, ``SriovError`` for a capture."""
    tree = Tree(root)
    if "kind: captured" in (tree.text(MARKER) or "").splitlines():
        raise SriovError(
            f"{root} is a capture and is not written; `nodeagent vfs show` shows the differences"
        )
    with _netlink(tree) as netlink:
        users = VfUsers(tree, netlink, wait_s=wait_s, force=force)
        result = _provision_all(config, tree, netlink, users, wait_s, dry=False)
        late = _wait_for_vfs(tree, result, wait_s)
        return _with_current_facts(tree, netlink, result, late)


def show(config: Config, root: Path) -> VfsResult:
    tree = Tree(root)
    with _netlink(tree) as netlink:
        result = _provision_all(config, tree, netlink, VfUsers(tree, netlink), 0.0, dry=True)
        return _with_current_facts(tree, netlink, result, ())


@contextmanager
def _netlink(tree: Tree) -> Iterator[VfNetlink | None]:
    if not is_live(tree):
        yield None
        return
    with VfNetlink(tree) as netlink:
        yield netlink


def _provision_all(
    config: Config, tree: Tree, netlink: VfNetlink | None, users: VfUsers, wait_s: float, *, dry: bool
) -> VfsResult:
    facts = pci_source.scan(tree)
    link_of = {link.pci_address: link for link in facts.links}

    def provision(pf: Function) -> PfResult:
        link = link_of.get(pf.pci_address)
        result = PfResult(pf, link.mtu if link else None, PfState.FREE)
        want = wanted(config.vfs, pf)
        if want is None:
            return result
        if link is not None and link.default_route:
            reason = f"{link.netdev} carries the default route; its VFs are never offered"
            return replace(result, state=PfState.LEFT, reasons=(reason,))
        vfs = tuple(function for function in facts.functions if function.parent == pf.pci_address)
        work = PfProvisioning(tree, netlink, users, pf, link, vfs, want, wait_s, dry)
        state, reasons = PfState.UNCHANGED, tuple[str, ...]()
        try:
            work.run()
        except VfInUseError as error:
            state, reasons = PfState.REFUSED, error.reasons
        except (SriovError, SysfsError) as error:
            state, reasons = PfState.FAILED, (str(error),)
        changes, left = work.changes.sentences(), tuple(work.left)
        if changes and state is PfState.UNCHANGED:
            state = PfState.DIFFERS if dry else PfState.CHANGED
        elif left and state is PfState.UNCHANGED:
            state = PfState.HELD
        if state is not PfState.UNCHANGED and not dry:
            what = "; ".join((*changes, *left, *reasons))
            log.info("PF processed. pci_address=%s outcome=%s what=%r", pf.pci_address, state, what)
        return replace(result, state=state, changes=changes, left=left, reasons=(*reasons, *work.notes))

    pfs = [provision(pf) for pf in facts.functions if pf.parent is None and pf.total_vfs is not None]
    notes = (users.problem,) if users.problem and users.force else ()
    return VfsResult(tuple(pfs), (*_unselected(config.vfs, facts), *notes))


def _unselected(entries: Sequence[VfsEntry], facts: PciFacts) -> Iterator[str]:
    pfs = [function for function in facts.functions if function.parent is None]
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


def _wait_for_vfs(tree: Tree, result: VfsResult, wait_s: float) -> tuple[str, ...]:
    """Wait for drivers and netdevs of the VFs of changed PFs. Returns a sentence for each missing one."""
    addresses = [pf.function.pci_address for pf in result.pfs if pf.state is PfState.CHANGED]

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


def _with_current_facts(
    tree: Tree, netlink: VfNetlink | None, result: VfsResult, late: Iterable[str]
) -> VfsResult:
    """The result with the functions as they are now."""
    facts = pci_source.scan(tree)
    now = {function.pci_address: function for function in facts.functions}
    mtu = {link.pci_address: link.mtu for link in facts.links}
    pfs = []
    for pf in result.pfs:
        function = now.get(pf.function.pci_address, pf.function)
        vfs = [vf for vf in facts.functions if vf.parent == function.pci_address]
        settings = _settings(netlink, function) if vfs else None
        pfs.append(
            replace(
                pf,
                function=function,
                mtu=mtu.get(function.pci_address),
                vfs=tuple(
                    VfResult(vf, settings.get(vf.vf_index) if settings and vf.vf_index is not None else None)
                    for vf in sorted(vfs, key=lambda vf: (vf.vf_index is None, vf.vf_index))
                ),
            )
        )
    return VfsResult(tuple(pfs), (*result.notes, *late), facts.unreadable)


def _settings(netlink: VfNetlink | None, pf: Function) -> dict[int, VfSettings] | None:
    if netlink is None or pf.netdev is None:
        return None
    try:
        return netlink.vfs(pf.netdev)
    except (SriovError, SysfsError) as error:
        log.warning("VF settings cannot be read. pci_address=%s reason=%r", pf.pci_address, str(error))
        return None
