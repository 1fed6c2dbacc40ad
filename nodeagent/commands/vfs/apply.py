"""VFs made and set up as the ``vfs`` section of the configuration wants them, or shown.

``apply`` may be run again at any time: it reads first and changes only what differs, one PF after the other,
each on its own: a PF that is refused or fails keeps no other from being done. What becomes of a PF is decided
in ``want`` (which entries mean it), ``uses`` (who would be hurt) and ``provision`` (the steps, and why a crash
between two of them does no harm). ``show`` walks the same steps and makes none of them.

A PF that carries the default route is left alone, and so are PFs without an SR-IOV capability. On a simulated
machine what lies in files is done, and what only a kernel keeps is said not to be. A capture is not written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.commands.vfs.outcome import Outcome, Pf, State, Vf, as_json, as_table
from nodeagent.commands.vfs.provision import Provision, RefusedError, until
from nodeagent.commands.vfs.uses import Uses
from nodeagent.commands.vfs.want import wanted
from nodeagent.host.sriov import BUS, SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree, is_live
from nodeagent.kinds.resource_settings import VfsEntry
from nodeagent.model import Function
from nodeagent.offer import selected_pf
from nodeagent.sources import pci_source
from nodeagent.sources.pci_source import PciFacts

__all__ = ["Outcome", "Pf", "State", "Vf", "apply", "as_json", "as_table", "show"]

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""VFs appear while ``sriov_numvfs`` is written, but their driver may be loaded only then, and udev renames
their netdevs after that."""
MARKER = "/.nodeagent/machine.yaml"


def apply(config: Config, root: Path, *, wait_s: float = WAIT_S) -> Outcome:
    """Make the machine match. Raises ``SysfsError`` without a machine, ``SriovError`` for a capture."""
    tree = Tree(root)
    if "kind: captured" in (tree.text(MARKER) or "").splitlines():
        raise SriovError(
            f"{root} is a capture and is not written; `nodeagent vfs show` tells what would be changed"
        )
    with _links(tree) as links:
        outcome = _walk(config, tree, links, wait_s, dry=False)
        late = _settle(tree, outcome, wait_s)
        return _told(tree, links, outcome, late)


def show(config: Config, root: Path) -> Outcome:
    tree = Tree(root)
    with _links(tree) as links:
        return _told(tree, links, _walk(config, tree, links, 0.0, dry=True), ())


@contextmanager
def _links(tree: Tree) -> Iterator[VfNetlink | None]:
    if not is_live(tree):
        yield None
        return
    with VfNetlink(tree) as links:
        yield links


def _walk(config: Config, tree: Tree, links: VfNetlink | None, wait_s: float, *, dry: bool) -> Outcome:
    facts = pci_source.scan(tree)
    link_of = {link.pci_address: link for link in facts.links}
    uses = Uses(tree, links)

    def visit(pf: Function) -> Pf:
        link = link_of.get(pf.pci_address)
        seen = Pf(pf, link.mtu if link else None, State.FREE)
        want = wanted(config.vfs, pf)
        if want is None:
            return seen
        if link is not None and link.default_route:
            reason = f"{link.netdev} carries the default route; its VFs are never offered"
            return replace(seen, state=State.LEFT, reasons=(reason,))
        vfs = tuple(function for function in facts.functions if function.parent == pf.pci_address)
        work = Provision(tree, links, uses, pf, link, vfs, want, wait_s, dry)
        state, reasons = State.UNCHANGED, tuple[str, ...]()
        try:
            work.run()
        except RefusedError as error:
            state, reasons = State.REFUSED, error.reasons
        except (SriovError, SysfsError) as error:
            state, reasons = State.FAILED, (str(error),)
        changes = work.changes.sentences()
        if changes and state is State.UNCHANGED:
            state = State.DIFFERS if dry else State.CHANGED
        if state is not State.UNCHANGED and not dry:
            told = "; ".join((*changes, *reasons))
            log.info("A PF was visited. pci_address=%s outcome=%s what=%r", pf.pci_address, state, told)
        return replace(seen, state=state, changes=changes, reasons=(*reasons, *work.notes))

    pfs = [visit(pf) for pf in facts.functions if pf.parent is None and pf.total_vfs is not None]
    silence = (uses.silence,) if uses.silence else ()
    return Outcome(tuple(pfs), (*_unselected(config.vfs, facts), *silence))


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
                    "capability; it may have to be switched on in the device's firmware"
                )


def _settle(tree: Tree, outcome: Outcome, wait_s: float) -> tuple[str, ...]:
    """Wait for the drivers and netdevs of the VFs of all PFs that were changed; what is late is told."""
    addresses = [pf.function.pci_address for pf in outcome.pfs if pf.state is State.CHANGED]

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
            yield f"{tree.link(f'{folder}/{name}')} has no driver yet; if it stays so, modprobe it on the host"
        elif driver is not None and "vfio" not in driver and "uio" not in driver:
            names = tree.names(f"{folder}/{name}")
            holder = next((part for part in names if part.startswith("virtio")), ".")
            # An empty one has lent it to another network namespace.
            if not tree.exists(f"{folder}/{name}/{holder}/net"):
                yield f"{tree.link(f'{folder}/{name}')} has no netdev yet"


def _told(tree: Tree, links: VfNetlink | None, outcome: Outcome, late: Iterable[str]) -> Outcome:
    """The outcome with the machine as it is now."""
    facts = pci_source.scan(tree)
    now = {function.pci_address: function for function in facts.functions}
    mtu = {link.pci_address: link.mtu for link in facts.links}
    pfs = []
    for pf in outcome.pfs:
        function = now.get(pf.function.pci_address, pf.function)
        vfs = [vf for vf in facts.functions if vf.parent == function.pci_address]
        settings = _settings(links, function) if vfs else None
        pfs.append(
            replace(
                pf,
                function=function,
                mtu=mtu.get(function.pci_address),
                vfs=tuple(
                    Vf(vf, settings.get(vf.vf_index) if settings and vf.vf_index is not None else None)
                    for vf in sorted(vfs, key=lambda vf: (vf.vf_index is None, vf.vf_index))
                ),
            )
        )
    return Outcome(tuple(pfs), (*outcome.notes, *late), facts.unreadable)


def _settings(links: VfNetlink | None, pf: Function) -> dict[int, VfSettings] | None:
    if links is None or pf.netdev is None:
        return None
    try:
        return links.vfs(pf.netdev)
    except (SriovError, SysfsError) as error:
        log.warning(
            "What a PF keeps of its VFs is not shown. pci_address=%s reason=%r", pf.pci_address, str(error)
        )
        return None
