"""One PF made what is wanted of it, or told how it differs.

What may go wrong, and what is left behind: the process may be killed between any two writes. Each step
compares the machine with what is wanted and not with what was done before, so the next run goes on from
wherever this one was. The order makes what stands between harmless:

1. who uses a VF that would be taken away or given to another driver is asked first; a PF that is refused is
   not touched at all;
2. the MTU of the PF, which bounds that of its VFs;
3. the number of VFs, by way of 0, as the kernel demands. Where every VF is to have a driver of our choice,
   the kernel is kept from giving them another for the moment in between (``sriov_drivers_autoprobe``);
4. what the PF keeps of each VF (trust, spoof check, link state, rates): before its driver, so that none is
   ever usable with less protection than was asked for;
5. the driver: ``driver_override`` first, so that nobody else takes the VF once it is unbound;
6. ``sriov_drivers_autoprobe`` is on again, also after an error. If the process was killed before, the next
   run finds it off and sees to it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nodeagent.commands.vfs.uses import Uses
from nodeagent.commands.vfs.want import PfWant
from nodeagent.host import sriov
from nodeagent.host.sriov import BUS, SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.model import Function, Link

POLL_S = 0.02


class RefusedError(Exception):
    """Somebody uses what would have to be changed."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


@dataclass(slots=True)
class Changes:
    """Said once for all the VFs that they were made to: ``VFs 0-7: trust off → on``."""

    _said: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def say(self, what: str, vf: int | None = None) -> None:
        self._said[what] += [] if vf is None else [vf]

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"{what} ({'VF' if len(vfs) == 1 else 'VFs'} {spans(vfs)})" if vfs else what
            for what, vfs in self._said.items()
        )


@dataclass(slots=True)
class Provision:
    """The work on one PF. ``dry`` only says what would be changed. Raises ``RefusedError``, ``SriovError`` and
    ``SysfsError``; ``changes`` tells what was done until then."""

    tree: Tree
    links: VfNetlink | None
    uses: Uses
    pf: Function
    link: Link | None
    vfs: tuple[Function, ...]
    want: PfWant
    wait_s: float
    dry: bool
    changes: Changes = field(default_factory=Changes)
    notes: list[str] = field(default_factory=list)
    _paused: bool = False

    def run(self) -> None:
        want, pf = self.want, self.pf
        if want.contradictions:
            raise SriovError(f"{pf.pci_address}: {'; '.join(want.contradictions)}")
        if want.count > (pf.total_vfs or 0):
            raise SriovError(
                f"{pf.pci_address}: {want.count} VFs are asked for, the device has {pf.total_vfs}; lower count, "
                "or raise the number in its firmware"
            )
        self._refuse()
        self._set_mtu()
        try:
            if want.count != pf.num_vfs:
                self._set_count()
                if self.dry:
                    return  # What the new VFs are like is not known before they are there.
            self._set_up()
            self._drive()
        finally:
            if self._paused:
                sriov.set_autoprobe(self.tree, pf.pci_address, on=True)

    def _refuse(self) -> None:
        if self.want.count != self.pf.num_vfs:
            touched = self.vfs
            why = f"sriov_numvfs {self.pf.num_vfs} → {self.want.count}"
        else:
            touched = tuple(vf for vf in self.vfs if self._misdriven(vf))
            why = "the change of its driver"
        reasons = [
            f"{vf.pci_address}{'' if vf.vf_index is None else f' (VF {vf.vf_index})'} {use}"
            for vf in touched
            for use in self.uses.of(vf)
        ]
        if reasons:
            raise RefusedError([f"{why} is refused", *reasons])

    def _misdriven(self, vf: Function) -> bool:
        return vf.vf_index is not None and self.want.drivers.get(vf.vf_index, vf.driver) != vf.driver

    def _set_mtu(self) -> None:
        want, has = self.want.mtu, self.link.mtu if self.link else None
        if want is None or want == has:
            return
        if self.pf.netdev is None:
            raise SriovError(f"{self.pf.pci_address} has no netdev here whose MTU could be set")
        if not self.dry:
            sriov.set_mtu(self.tree, self.pf.pci_address, self.pf.netdev, want)
        self.changes.say(f"mtu {has} → {want}")

    def _set_count(self) -> None:
        has, count, address = self.pf.num_vfs or 0, self.want.count, self.pf.pci_address
        if self.dry:
            self.changes.say(f"sriov_numvfs {has} → {count}")
            return
        if has:
            sriov.set_num_vfs(self.tree, address, 0)
            self._until(lambda: self._there(0), f"the {has} VFs have not gone")
            self.changes.say(f"sriov_numvfs {has} → 0")
        if count:
            ours = all(index in self.want.drivers for index in range(count))
            if ours and self._autoprobe() is True:
                sriov.set_autoprobe(self.tree, address, on=False)
                self._paused = True
            sriov.set_num_vfs(self.tree, address, count)
            self._until(lambda: self._there(count), f"the {count} VFs have not appeared")
            self.changes.say(f"sriov_numvfs 0 → {count}")

    def _there(self, count: int) -> bool:
        folder = f"{BUS}/devices/{self.pf.pci_address}"
        names = self.tree.names(folder)
        listed = sum(name.startswith("virtfn") for name in names)
        return self.tree.integer(f"{folder}/sriov_numvfs") == listed == count and all(
            self.tree.exists(f"{BUS}/devices/{address}/class") for address in self._vf_addresses(count)
        )

    def _vf_addresses(self, count: int) -> list[str]:
        folder = f"{BUS}/devices/{self.pf.pci_address}"
        return [self.tree.link(f"{folder}/virtfn{index}") or "" for index in range(count)]

    def _set_up(self) -> None:
        """The settings that the PF keeps."""
        pf, settings = self.pf, self.want.settings
        if not settings:
            return
        if self.links is None:
            names = sorted(
                {name for one in settings.values() for name, value in one.items() if value is not None}
            )
            self.notes.append(
                f"{', '.join(names)} cannot be set: this root's kernel is not the one that runs here"
            )
            return
        if pf.netdev is None:
            raise SriovError(f"{pf.pci_address} has no netdev here, through which its VFs could be set up")
        known = self.links.vfs(pf.netdev)
        for index, want in sorted(settings.items()):
            has = known.get(index, VfSettings())
            changed = different(want, has)
            if changed is not None and not self.dry:
                self.links.set_vf(pf.pci_address, pf.netdev, index, changed)
            for (name, new), (_, old) in zip(want.items(), has.items(), strict=True):
                if new is not None and new != old:
                    self.changes.say(f"{name} {spell(old)} → {spell(new)}", index)

    def _drive(self) -> None:
        """The drivers of the VFs."""
        if not self.want.drivers:
            return
        for index, address in enumerate(self._vf_addresses(self.want.count)):
            driver = self.want.drivers.get(index)
            if driver is not None and address:
                self._bind(index, address, driver)
        if self._autoprobe() is False and not self._paused:
            if not self.dry:
                sriov.set_autoprobe(self.tree, self.pf.pci_address, on=True)
            self.changes.say("sriov_drivers_autoprobe off → on")

    def _bind(self, index: int, address: str, driver: str) -> None:
        at = f"{BUS}/devices/{address}/driver"
        has = self.tree.link(at)
        if has == driver:
            return
        if not self.dry:
            # The driver of VFs may only be loaded because there are some now.
            known = f"{BUS}/drivers/{driver}"
            self._until(lambda: self.tree.exists(known), f"no driver {driver} (modprobe it on the host)")
            sriov.override(self.tree, address, driver)
            # Read again: a driver that is only now being loaded may just have taken it.
            bound = self.tree.link(at)
            if bound == driver:
                return
            if bound is not None:
                sriov.unbind(self.tree, address, bound)
                self._until(lambda: self.tree.link(at) is None, f"{bound} does not let go of {address}")
            sriov.bind(self.tree, address, driver)
            self._until(lambda: self.tree.link(at) == driver, f"{driver} does not take {address}")
        self.changes.say(f"driver {has or 'none'} → {driver}", index)

    def _autoprobe(self) -> bool | None:
        """``None`` on kernels before 4.12, which always probe."""
        value = self.tree.integer(f"{BUS}/devices/{self.pf.pci_address}/sriov_drivers_autoprobe")
        return None if value is None else bool(value)

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        if not until(holds, self.wait_s):
            raise SriovError(f"{self.pf.pci_address}: {otherwise} within {self.wait_s:g} s")


def until(holds: Callable[[], bool], wait_s: float) -> bool:
    """Poll: what sysfs shows of a device is announced nowhere that a captured or simulated machine has too."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            if holds():
                return True
        except SysfsError:
            pass  # Half there.
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def different(want: VfSettings, has: VfSettings) -> VfSettings | None:
    """What has to be set; the other rate along with the one that differs, for the kernel takes both."""
    values: dict[str, Any] = {
        name: new
        for (name, new), (_, old) in zip(want.items(), has.items(), strict=True)
        if new is not None and new != old
    }
    rates = ("min_tx_rate_mbps", "max_tx_rate_mbps")
    if not values:
        return None
    if any(rate in values for rate in rates):
        for rate in rates:
            wanted, found = getattr(want, rate), getattr(has, rate)
            values.setdefault(rate, found if wanted is None else wanted)
    return VfSettings(**values)


def spell(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unknown" if value is None else str(value)


def spans(numbers: Iterable[int]) -> str:
    """``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
