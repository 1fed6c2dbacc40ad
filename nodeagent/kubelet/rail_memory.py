"""The rails of NICs and the names of VFs that the kubelet was given, kept over restarts and reboots.

The file ``rails.json`` is beside the slice sizes and is not bound to a boot, as the kubelet's checkpoint is not:

* ``entries``: the rails of each selection of the configuration, with PCI address and the identity of the card. The
  sixteen selections that were in force last stay, so that a configuration that is taken back has its old rails.
* ``nics``: the last facts of each NIC with a rail. A NIC that is missing at the start is offered as missing.
* ``names``: the resources through which pods may hold each VF and each GPU.

**Names.** The kubelet counts by the name of the resource. If a VF was offered under another name before, or that is not
known, a pod may hold it where the kubelet counts it as free. Then its resource waits for the holdings
(``kubelet/holdings.py``), read after the change. Once they are known, ``kinds/vf.py`` withholds each VF that another
resource holds. Names are on the disk before the kubelet gets the devices. The same holds for GPUs with
a resource of their own (``gpu-mem{gpu}``), except that unknown names are accepted.

Without a file that can be read, the names are unknown, unless the kubelet has no checkpoint either: then it never
allocated a device. The checkpoint is not read, because its format is private to the kubelet.

If ``kubelet.podResources`` is off, GPUs wait for nothing, and a VF with another name is not offered until its rail is
forgotten. Unknown names are accepted once, with a warning: an update from an agent without this file must not withdraw
all VFs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nodeagent.base.bounded_calls import within
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.facts.model import HEALTHY, Function, Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.hardware_selection import offers_vfs_of
from nodeagent.kinds.rail_numbers import Numbering, Rail, Rails, Selection
from nodeagent.kinds.resource_settings import (
    ResourceSettings,
    network_entries,
)
from nodeagent.sources.pci_source import PciFacts

log = logging.getLogger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
_LOOK_S = 2.0
"""Below the kubelet's folder."""
RAIL_ENTRIES_MAX = 16
_VERSION = 1


class NumberedSelection(msgspec.Struct, frozen=True):
    """The rails of the NICs of one selection, which is a ``kinds.rail_numbers.Selection``."""

    select: str
    rails: tuple[Rail, ...]


class OfferedNic(msgspec.Struct, frozen=True):
    """A PF with its VFs, as they were offered last."""

    pf: Function
    vfs: tuple[Function, ...]


class RailsFile(msgspec.Struct, frozen=True):
    """The content of the file. ``names``: the VFs that pods may hold, by resource. ``names_unknown``: pods may hold
    VFs under any name."""

    version: int = _VERSION
    entries: tuple[NumberedSelection, ...] = ()
    nics: tuple[OfferedNic, ...] = ()
    names: dict[str, tuple[str, ...]] = {}
    names_unknown: bool = False

    @property
    def numbering(self) -> dict[Selection, Rails]:
        return {entry.select: entry.rails for entry in self.entries}


RAILS_FORM = StoredForm(
    name="rails.json",
    type=RailsFile,
    content="rails of NICs",
    loss="the rails are those of the node's report and of held VFs; without both, NICs are numbered in PCI order, and "
    "pods may get another network",
    version=_VERSION,
)


class RailMemory:
    """Belongs to one event loop."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Path | None = None,
        *,
        pod_resources: bool = True,
        read_holdings: Callable[[], object] = lambda: None,
    ) -> None:
        """Read the file of an earlier agent. Blocks.

        ``checkpoint`` is that of the kubelet, if it gets devices. ``read_holdings`` asks for a reading now.
        """
        self.file = StoredFile(folder, RAILS_FORM)
        content = self.file.read()
        self.lost = content is None
        """There is no file of an earlier agent that can be read."""
        if content is None:
            content = RailsFile(names_unknown=checkpoint is not None and _exists(checkpoint))
            if content.names_unknown and not pod_resources:
                log.warning(
                    "The names under which pods hold VFs are not known, and kubelet.podResources is off. A VF that "
                    "a pod holds under another name may be allocated again; drain the node, or turn podResources on."
                )
                content = RailsFile()
        self.content = content
        self._pod_resources = pod_resources
        self._read_holdings = read_holdings
        self._read_since = True
        """The holdings were read after the last change of a name."""
        self._forgotten: dict[tuple[int, str | None], Rail] = {}
        """By their places: rails of present NICs that are not written any more: they end with this agent."""
        self._inputs: object = None
        self._changed: dict[str, dict[str, frozenset[str]]] = {}
        """By resource: its VFs that pods may hold under other names."""
        self._waiting: set[str] = set()

    def known_nics(self, resources: Iterable[ResourceSettings]) -> PciFacts:
        """Return the NICs of an earlier agent that are selected now, as missing until the machine is read."""
        entries = network_entries(resources)
        nics = [nic for nic in self.content.nics if any(offers_vfs_of(entry, nic.pf) for entry in entries)]
        functions = [replace(function, missing=True) for nic in nics for function in (nic.pf, *nic.vfs)]
        identities = {
            rail.pci_address: rail.identity
            for entry in self.content.entries
            for rail in entry.rails
            if rail.pci_address is not None and rail.identity is not None
        }
        ordered = tuple(sorted(functions, key=lambda function: function.pci_address))
        return PciFacts(functions=ordered, identities=identities)

    # --- names ----------------------------------------------------------------------------------------

    def holdings_read(self) -> bool:
        """Record that the kubelet has listed what pods hold. Return whether a changed name waited for it."""
        waited = not self._read_since
        self._read_since = True
        return waited

    def obstacle(self, kind: DeviceKind, snapshot: Snapshot) -> str | None:
        """Return why the VFs or GPUs of this kind are not offered yet."""
        vfs = kind.source == "pci"
        if not vfs and not self._pod_resources:
            return None
        hardware = kind.hardware(snapshot).keys()
        before = {
            name: frozenset(hardware & set(ids))
            for name, ids in self.content.names.items()
            if name != kind.resource and not hardware.isdisjoint(ids)
        }
        known = self._changed.get(kind.resource, {})
        self._changed[kind.resource] = before
        # The holdings may be older than the last allocation under such a name. One that pods gave back is no news.
        if any(not ids <= known.get(name, frozenset()) for name, ids in before.items()):
            self._read_since = False
            self._read_holdings()
        if self._held(snapshot) is not None or not (before or (vfs and self.content.names_unknown)):
            self._waiting.discard(kind.resource)
            return None
        if before:
            names = ", ".join(sorted(before))
            why = (
                f"its VFs were offered as {names} before"
                if vfs
                else f"its GPUs were offered as {names} before"
            )
        else:
            why = "it is not known under which names its VFs were offered before"
        if kind.resource not in self._waiting:
            self._waiting.add(kind.resource)
            log.warning(
                "A resource waits until it is known what pods hold: %s. resource=%s", why, kind.resource
            )
        if not self._pod_resources:
            return (
                f"{why}, and kubelet.podResources is off, so pods may hold them; turn it on, or drain the node and "
                "use `nodeagent remembered forget`"
            )
        cause = next((f": {entry.reason}" for entry in snapshot.stale_sources if entry.source == "pods"), "")
        return f"{why}, and what pods hold is not known yet{cause}"

    def _held(self, snapshot: Snapshot) -> frozenset[tuple[str, str]] | None:
        """Return the resources and the VFs and GPUs that pods hold; ``None`` if this is not known."""
        if snapshot.holdings is None or not self._read_since:
            return None
        return frozenset(
            (holding.resource, id_.partition("::")[0])
            for holding in snapshot.holdings
            for id_ in holding.device_ids
        )

    # --- the file -------------------------------------------------------------------------------------

    async def save(
        self,
        numbering: Numbering,
        in_force: Sequence[Selection],
        kinds: Sequence[DeviceKind],
        snapshot: Snapshot,
    ) -> None:
        """Save what the kubelet gets. Return when it is on the disk, or cannot be written."""
        functions = tuple(
            (function.pci_address, function.driver, function.missing) for function in snapshot.functions
        )
        held = self._held(snapshot)
        inputs = dict(numbering), in_force, kinds, functions, held, tuple(self._forgotten)
        if inputs != self._inputs:
            self.content = RailsFile(
                entries=self._entries(numbering, in_force),
                nics=tuple(self._nics(numbering, in_force, snapshot)),
                names=self._names(kinds, snapshot, held),
                names_unknown=self.content.names_unknown and held is None,
            )
            self._inputs = inputs
        if self.content != RailsFile():
            await self.file.save(self._without_forgotten())

    async def forgotten(self, snapshot: Snapshot) -> tuple[Rail, ...]:
        """Return the rails that another process has removed from the file and whose NICs are missing.

        A rail whose NIC is here ends with this agent: its number must not change while pods may hold its VFs.
        """
        content = await self.file.changed()
        if content is None:
            return ()
        left = {rail.place for entry in content.entries for rail in entry.rails}
        known = {rail.place: rail for entry in self.content.entries for rail in entry.rails}
        removed = [
            rail for place, rail in known.items() if place not in left and place not in self._forgotten
        ]
        here = {function.pci_address for function in snapshot.functions if not function.missing}
        for rail in sorted(removed, key=lambda rail: rail.number):
            present = rail.pci_address in here
            log.info(
                "A rail is forgotten %s. rail=%d pci=%s card=%s",
                "when the agent is restarted" if present else "now",
                rail.number,
                rail.pci_address or "-",
                rail.identity or "-",
            )
            if present:
                self._forgotten[rail.place] = rail
        self._inputs = None  # the file lacks these rails; what else has changed is written again
        return tuple(rail for rail in removed if rail.place not in self._forgotten)

    def _entries(self, numbering: Numbering, in_force: Sequence[Selection]) -> tuple[NumberedSelection, ...]:
        """The entries in force first, then those that were in force before."""
        order = dict.fromkeys((*in_force, *self.content.numbering, *numbering))
        entries = (NumberedSelection(key, rails) for key in order if (rails := numbering.get(key)))
        return tuple(entries)[:RAIL_ENTRIES_MAX]

    def _nics(
        self, numbering: Numbering, in_force: Sequence[Selection], snapshot: Snapshot
    ) -> Iterable[OfferedNic]:
        before = {nic.pf.pci_address: nic for nic in self.content.nics}
        present = {function.pci_address: function for function in snapshot.functions if not function.missing}
        vfs: dict[str, list[Function]] = {}
        for function in present.values():
            if function.parent is not None:
                vfs.setdefault(function.parent, []).append(_lasting(function))
        addresses = {rail.pci_address for key in in_force for rail in numbering.get(key, ())}
        for address in sorted(filter(None, addresses)):
            pf, known = present.get(address), before.get(address)
            if pf is not None:
                # Between a reboot and `vfs apply` a PF has no VFs.
                kept = tuple(vfs.get(address, ())) or (known.vfs if known else ())
                yield OfferedNic(_lasting(pf), kept)
            elif known is not None:
                yield known

    def _names(
        self, kinds: Sequence[DeviceKind], snapshot: Snapshot, held: frozenset[tuple[str, str]] | None
    ) -> dict[str, tuple[str, ...]]:
        """VFs and GPUs by resource: those that are offered now, and others as long as a pod may hold them."""
        names = {
            name: {id_ for id_ in ids if held is None or (name, id_) in held}
            for name, ids in self.content.names.items()
        }
        for kind in kinds:
            # The index of a GPU may change without a change of the configuration.
            if kind.source == "pci" or kind.number is not None:
                names.setdefault(kind.resource, set()).update(kind.hardware(snapshot))
        return {name: tuple(sorted(ids)) for name, ids in names.items() if ids}

    def _without_forgotten(self) -> RailsFile:
        if not self._forgotten:
            return self.content
        return without(self.content, self._forgotten.values(), names=not self._pod_resources)


def without(content: RailsFile, rails: Iterable[Rail], *, names: bool) -> RailsFile:
    """Return the file without these rails and their NICs. ``names``: without the names of their VFs too."""
    gone = {rail.place for rail in rails}
    entries = tuple(
        replace(entry, rails=tuple(rail for rail in entry.rails if rail.place not in gone))
        for entry in content.entries
    )
    used = {rail.pci_address for entry in entries for rail in entry.rails}
    nics = tuple(nic for nic in content.nics if nic.pf.pci_address in used)
    ids = {
        function.pci_address
        for nic in content.nics
        if nic.pf.pci_address not in used
        for function in (nic.pf, *nic.vfs)
    }
    kept: Mapping[str, tuple[str, ...]] = content.names
    if names:
        kept = {name: tuple(id_ for id_ in held if id_ not in ids) for name, held in kept.items()}
    return replace(
        content,
        entries=tuple(entry for entry in entries if entry.rails),
        nics=nics,
        names={name: held for name, held in kept.items() if held},
    )


def _exists(path: Path) -> bool:
    try:
        within("the kubelet's checkpoint", _LOOK_S, path.lstat)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # it cannot be excluded; a mount that hangs too
    return True


def _lasting(function: Function) -> Function:
    """The function without values that change while it is plugged in."""
    netdev = function.netdev if function.parent is None else None
    return replace(function, health=HEALTHY, missing=False, netdev=netdev)
