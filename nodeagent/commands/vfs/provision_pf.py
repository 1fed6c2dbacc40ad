"""Bring one PF to its target state, or list the differences.

The process may be killed between any two writes. Each step compares the machine with the target state, not with
earlier steps, so the next run continues at any point. The order makes the intermediate states harmless:

1. Check the users of each VF that would be changed. A PF is refused, and not changed at all, if a VF in use would be
   removed or get another driver, or if its VFs would be changed and no kubelet lists the pods that hold them.
   Settings of a held VF stay as they are: the CNI plugin of its pod has set them, and takes them back at the end of
   the pod. The MTU of a PF with a held VF stays too, because a change interrupts the link of each VF.
2. Set the MTU of the PF, which is the upper limit for its VFs.
3. Set the number of VFs, through 0, as the kernel requires. If all VFs have a configured driver, the kernel must not
   bind another one in between: ``sriov_drivers_autoprobe`` is off during this time.
4. Set the PF's settings for each VF (trust, spoof check, link state, rates; without a netdev the link state of an
   InfiniBand VF by the file of its driver) before its driver, so that no VF is ever
   usable with less protection than configured.
5. Give InfiniBand VFs their GUIDs and link state, by rtnetlink where the PF has a netdev, else by the files of the
   driver, and bind the driver of these VFs again: it reads the GUID when it is bound. The VF itself tells whether it
   has one, because a driver may show that of another VF on the side of the PF.
6. Bind the driver: ``driver_override`` first, so that no other driver binds to the unbound VF.
7. Turn ``sriov_drivers_autoprobe`` on again, also after an error. After a killed run the next run turns it on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.commands.vfs.vf_users import VfUsers
from nodeagent.commands.vfs.wanted import PfWant
from nodeagent.facts.card_identity import is_no_guid, node_guid
from nodeagent.facts.model import INFINIBAND, Function, Link
from nodeagent.host import sriov
from nodeagent.host.sriov import BUS, SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree

_POLL_S = 0.02
_LOCAL = 0x02
"""The universal/local bit of an EUI-64 (RFC 4291, appendix A)."""


class VfInUseError(Exception):
    """A VF that would have to be changed is in use."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


@dataclass(slots=True)
class Changes:
    """The changes, each listed once with all its VFs: ``trust off → on (VFs 0-7)``."""

    _vfs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, change: str, vf: int | None = None) -> None:
        self._vfs[change] += [] if vf is None else [vf]

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"{change} ({'VF' if len(vfs) == 1 else 'VFs'} {spans(vfs)})" if vfs else change
            for change, vfs in self._vfs.items()
        )


@dataclass(slots=True)
class PfProvisioning:
    """The steps for one PF. ``dry`` only lists the changes. Raises ``VfInUseError``, ``SriovError`` and
    ``SysfsError``; ``changes`` then has those made before the error."""

    tree: Tree
    netlink: VfNetlink | None
    users: VfUsers
    pf: Function
    link: Link | None
    vfs: tuple[Function, ...]
    want: PfWant
    wait_s: float
    dry: bool
    changes: Changes = field(default_factory=Changes)
    left: list[str] = field(default_factory=list)
    """The differences that stay because a VF is held."""
    notes: list[str] = field(default_factory=list)
    _held: dict[str, str] = field(default_factory=dict)
    """The held VFs: what is known of their users, by PCI address."""
    _paused: bool = False

    def run(self) -> None:
        want, pf = self.want, self.pf
        if want.contradictions:
            raise SriovError(f"{pf.pci_address}: {'; '.join(want.contradictions)}")
        if want.count > (pf.total_vfs or 0):
            raise SriovError(
                f"{pf.pci_address}: {want.count} VFs are configured, but the device has {pf.total_vfs}; lower count, "
                "or raise the number in its firmware"
            )
        self._check_users()
        self._set_mtu()
        try:
            if want.count != pf.num_vfs:
                self._set_count()
                if self.dry:
                    return  # the properties of new VFs are unknown before they exist
            self._configure_vfs()
            self._give_guids()
            self._bind_drivers()
        finally:
            if self._paused:
                sriov.set_autoprobe(self.tree, pf.pci_address, on=True)

    def _check_users(self) -> None:
        if self.want.count != self.pf.num_vfs:
            self._refuse_used(self.vfs, f"sriov_numvfs {self.pf.num_vfs} → {self.want.count}")
            return
        self._refuse_used([vf for vf in self.vfs if self._needs_driver(vf)], "the change of its driver")
        affected = self.vfs if self._needs_mtu() else [vf for vf in self.vfs if self._needs_settings(vf)]
        without = [vf for vf in self.vfs if self._needs_guid(vf.vf_index, vf.pci_address)]
        for vf, users_of in (
            *((vf, self.users.holders) for vf in affected),
            *((vf, self.users.of) for vf in without),  # its driver is bound again
        ):
            users = users_of(vf)
            if users:
                self._held[vf.pci_address] = f"{_name(vf)} {', and '.join(users)}"
        affected = (*affected, *without)
        if any(vf.pci_address not in self._held for vf in affected):
            self._refuse_unknown("the change of its VFs")

    def _refuse_used(self, vfs: Iterable[Function], change: str) -> None:
        vfs = tuple(vfs)
        reasons = [f"{_name(vf)} {use}" for vf in vfs for use in self.users.of(vf)]
        if reasons:
            raise VfInUseError([f"{change} is refused", *reasons])
        if vfs:
            self._refuse_unknown(change)

    def _refuse_unknown(self, change: str) -> None:
        if self.users.error is not None and not self.users.force:
            remedy = "start the kubelet, or add --force if no pod holds a VF of this PF"
            raise VfInUseError([f"{change} is refused", f"{self.users.error}; {remedy}"])

    def _needs_driver(self, vf: Function) -> bool:
        return vf.vf_index is not None and self.want.drivers.get(vf.vf_index, vf.driver) != vf.driver

    def _needs_mtu(self) -> bool:
        return self.want.mtu is not None and self.want.mtu != (self.link.mtu if self.link else None)

    def _needs_settings(self, vf: Function) -> bool:
        if vf.vf_index is not None and self._link_state_by_file(vf.vf_index):
            want = self.want.settings[vf.vf_index].link_state
            return want is not None and want != self._shown_link_state(vf.vf_index, vf.pci_address)
        if self.netlink is None or self.pf.netdev is None or vf.vf_index not in self.want.settings:
            return False
        has = self.netlink.vfs(self.pf.netdev).get(vf.vf_index, VfSettings())
        return different(self.want.settings[vf.vf_index], has) is not None

    def _set_mtu(self) -> None:
        want, has = self.want.mtu, self.link.mtu if self.link else None
        if want is None or not self._needs_mtu():
            return
        if self.pf.netdev is None:
            raise SriovError(f"{self.pf.pci_address} has no netdev here, so its MTU cannot be set")
        if self._held:
            self.left.append(f"mtu is {has}, configured is {want}: {'; '.join(self._held.values())}")
            return
        if not self.dry:
            sriov.set_mtu(self.tree, self.pf.pci_address, self.pf.netdev, want)
        self.changes.add(f"mtu {has} → {want}")

    def _set_count(self) -> None:
        has, count, address = self.pf.num_vfs or 0, self.want.count, self.pf.pci_address
        if self.dry:
            self.changes.add(f"sriov_numvfs {has} → {count}")
            return
        if has:
            sriov.set_num_vfs(self.tree, address, 0)
            self._until(lambda: self._has_vfs(0), f"the {has} VFs did not disappear")
            self.changes.add(f"sriov_numvfs {has} → 0")
        if count:
            configured = all(index in self.want.drivers for index in range(count))
            if configured and self._autoprobe() is True:
                sriov.set_autoprobe(self.tree, address, on=False)
                self._paused = True
            sriov.set_num_vfs(self.tree, address, count)
            self._until(lambda: self._has_vfs(count), f"the {count} VFs did not appear")
            self.changes.add(f"sriov_numvfs 0 → {count}")

    def _has_vfs(self, count: int) -> bool:
        folder = f"{BUS}/devices/{self.pf.pci_address}"
        names = self.tree.names(folder)
        listed = sum(name.startswith("virtfn") for name in names)
        return self.tree.integer(f"{folder}/sriov_numvfs") == listed == count and all(
            self.tree.exists(f"{BUS}/devices/{address}/class") for address in self._vf_addresses(count)
        )

    def _vf_addresses(self, count: int) -> list[str]:
        folder = f"{BUS}/devices/{self.pf.pci_address}"
        return [self.tree.link(f"{folder}/virtfn{index}") or "" for index in range(count)]

    def _configure_vfs(self) -> None:
        """Set the PF's settings for its VFs."""
        pf, settings = self.pf, dict(self.want.settings)
        held = {vf.vf_index: self._held[vf.pci_address] for vf in self.vfs if vf.pci_address in self._held}
        for index, address in enumerate(self._vf_addresses(self.want.count)):
            if not self._link_state_by_file(index):
                continue
            self._set_link_state(index, address, held.get(index))
            settings[index] = replace(settings[index], link_state=None)
        settings = {index: vf for index, vf in settings.items() if vf != VfSettings()}
        if not settings:
            return
        if self.netlink is None:
            names = sorted(
                {name for vf in settings.values() for name, value in vf.items() if value is not None}
            )
            self.notes.append(
                f"{', '.join(names)} cannot be set: the root is not the machine of the running kernel"
            )
            return
        if pf.netdev is None:
            if all(
                vf == VfSettings(link_state=vf.link_state)
                and self._needs_guid(index, self._vf_addresses(self.want.count)[index])
                for index, vf in settings.items()
            ):
                return  # it is set together with the GUID
            raise SriovError(f"{pf.pci_address} has no netdev here, so its VFs cannot be configured")
        known = self.netlink.vfs(pf.netdev)
        for index, want in sorted(settings.items()):
            has = known.get(index, VfSettings())
            changed = different(want, has)
            differing = [
                (name, old, new)
                for (name, new), (_, old) in zip(want.items(), has.items(), strict=True)
                if new is not None and new != old
            ]
            if index in held and differing:
                stays = (
                    f"{name} is {spell(old)}, configured is {spell(new)}" for name, old, new in differing
                )
                self.left.append(f"{'; '.join(stays)}: {held[index]}")
                continue
            if changed is not None and not self.dry:
                self.netlink.set_vf(pf.pci_address, pf.netdev, index, changed)
            for name, old, new in differing:
                self.changes.add(f"{name} {spell(old)} → {spell(new)}", index)

    def _link_state_by_file(self, index: int) -> bool:
        """Whether a link state is configured for a VF that only a file of the driver takes."""
        return (
            index in self.want.settings
            and self.want.settings[index].link_state is not None
            and self.pf.link_type == INFINIBAND
            and (self.netlink is None or self.pf.netdev is None)
            and sriov.has_vf_files(self.tree, self.pf.pci_address, index)
        )

    def _shown_link_state(self, index: int, address: str) -> str | None:
        guid = self._guid_of(address)
        return sriov.vf_file_link_state(self.tree, self.pf.pci_address, index, guid)

    def _set_link_state(self, index: int, address: str, held: str | None) -> None:
        """Write a link state that differs. One that no file shows is written too, because the same value changes
        nothing, and is no difference: it would be one in each run."""
        want = self.want.settings[index].link_state
        if want is None or self._needs_guid(index, address):
            return  # it is set together with the GUID
        has = self._shown_link_state(index, address)
        if has == want:
            return
        if held is not None:
            self.left.append(f"link_state is {spell(has)}, configured is {want}: {held}")
            return
        if not self.dry:
            sriov.write_vf_file_link_state(self.tree, self.pf.pci_address, index, want)
        if has is None:
            self.notes.append(
                f"link_state of VF {index} of {self.pf.pci_address} is shown by no file of its driver: apply writes "
                f"{want} in each run"
            )
            return
        self.changes.add(f"link_state {spell(has)} → {want}", index)

    def _needs_guid(self, index: int | None, address: str) -> bool:
        if index is None or index not in self.want.guids or self.pf.link_type != INFINIBAND:
            return False
        guid = self._guid_of(address)
        if guid is None and self.netlink is not None and self.pf.netdev is not None:
            guid = self.netlink.guids(self.pf.netdev).get(index)  # a driver for virtual machines shows none
        return guid is None or is_no_guid(guid)

    def _guid_of(self, address: str) -> str | None:
        """The node GUID that a VF has; ``None`` if it has no RDMA device here that shows it."""
        folder = f"{BUS}/devices/{address}/infiniband"
        devices = self.tree.names(folder)
        return (self.tree.text(f"{folder}/{devices[0]}/node_guid") or "").strip() or None if devices else None

    def _give_guids(self) -> None:
        """Give each InfiniBand VF without a GUID one."""
        held = {vf.vf_index: self._held[vf.pci_address] for vf in self.vfs if vf.pci_address in self._held}
        for index, address in enumerate(self._vf_addresses(self.want.count)):
            if not address or not self._needs_guid(index, address):
                continue
            if index in held:
                self.left.append(f"guid is none, configured is auto: {held[index]}")
                continue
            self._give_guid(index, address)

    def _give_guid(self, index: int, address: str) -> None:
        pf, settings = self.pf, self.want.settings.get(index, VfSettings())
        own = node_guid(pf.rdma.node_guid) if pf.rdma else None
        if own is None:
            raise SriovError(
                f"{pf.pci_address} shows no GUID to make those of its VFs of; load mlx5_ib on the host"
            )
        guid, link_state = guid_of_vf(own, index), settings.link_state or "auto"
        if not self.dry:
            self._set_guid(index, guid, link_state)
            self._bind_again(address)
        self.changes.add(f"guid none → auto, link state → {link_state}", index)

    def _set_guid(self, index: int, guid: str, link_state: str) -> None:
        pf = self.pf
        has_files = sriov.has_vf_files(self.tree, pf.pci_address, index)
        if self.netlink is not None and pf.netdev is not None:
            try:
                self.netlink.set_guid(pf.pci_address, pf.netdev, index, guid)
                self.netlink.set_vf(pf.pci_address, pf.netdev, index, VfSettings(link_state=link_state))
            except SriovError:
                if not has_files:
                    raise
            else:
                return
        if not has_files:
            raise SriovError(
                f"{pf.pci_address}: its VFs have no GUID, and this host has no way to set one: the PF has no IPoIB "
                f"netdev here (modprobe ib_ipoib), and its driver has no {BUS}/devices/{pf.pci_address}/sriov/"
                f"{index}/node (MLNX_OFED or DOCA)"
            )
        sriov.write_vf_files(self.tree, pf.pci_address, index, guid, link_state)

    def _bind_again(self, address: str) -> None:
        """Let the driver of a VF read its GUID. A driver for virtual machines reads none."""
        at = f"{BUS}/devices/{address}/driver"
        driver = self.tree.link(at)
        if driver is None or "infiniband" not in self.tree.names(f"{BUS}/devices/{address}"):
            return
        sriov.unbind(self.tree, address, driver)
        self._until(lambda: self.tree.link(at) is None, f"{driver} did not release {address}")
        sriov.bind(self.tree, address, driver)
        self._until(
            lambda: (guid := self._guid_of(address)) is not None and not is_no_guid(guid),
            f"{address} shows no GUID after it was given one and {driver} was bound again",
        )

    def _bind_drivers(self) -> None:
        """Bind the configured drivers of the VFs."""
        if not self.want.drivers:
            return
        for index, address in enumerate(self._vf_addresses(self.want.count)):
            driver = self.want.drivers.get(index)
            if driver is not None and address:
                self._bind(index, address, driver)
        if self._autoprobe() is False and not self._paused:
            if not self.dry:
                sriov.set_autoprobe(self.tree, self.pf.pci_address, on=True)
            self.changes.add("sriov_drivers_autoprobe off → on")

    def _bind(self, index: int, address: str, driver: str) -> None:
        at = f"{BUS}/devices/{address}/driver"
        has = self.tree.link(at)
        if has == driver:
            return
        if not self.dry:
            # The driver of VFs may be loaded only when the first VF appears.
            known = f"{BUS}/drivers/{driver}"
            self._until(lambda: self.tree.exists(known), f"no driver {driver} (modprobe it on the host)")
            sriov.override(self.tree, address, driver)
            # Read again: a driver that was just loaded may have bound to the VF.
            bound = self.tree.link(at)
            if bound == driver:
                return
            if bound is not None:
                sriov.unbind(self.tree, address, bound)
                self._until(lambda: self.tree.link(at) is None, f"{bound} did not release {address}")
            sriov.bind(self.tree, address, driver)
            self._until(lambda: self.tree.link(at) == driver, f"{driver} did not bind to {address}")
        self.changes.add(f"driver {has or 'none'} → {driver}", index)

    def _autoprobe(self) -> bool | None:
        """``None`` on kernels before 4.12, which always probe."""
        value = self.tree.integer(f"{BUS}/devices/{self.pf.pci_address}/sriov_drivers_autoprobe")
        return None if value is None else bool(value)

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        if not until(holds, self.wait_s):
            raise SriovError(f"{self.pf.pci_address}: {otherwise} within {self.wait_s:g} s")


def guid_of_vf(pf: str, index: int) -> str:
    """Return the GUID of a VF, from the node GUID of its PF: locally administered, with the number of the VF in its
    fourth and fifth octet, where the GUIDs of mlx5's PFs are equal. A reboot gives the same one.

    >>> guid_of_vf("0c42:a103:0016:054c", 0)
    '0e:42:a1:03:01:16:05:4c'
    """
    octets = bytearray.fromhex(pf.replace(":", ""))
    octets[0] |= _LOCAL
    octets[3:5] = (int.from_bytes(octets[3:5], "big") ^ (index + 1)).to_bytes(2, "big")
    return octets.hex(":")


def _name(vf: Function) -> str:
    return vf.pci_address if vf.vf_index is None else f"{vf.pci_address} (VF {vf.vf_index})"


def until(holds: Callable[[], bool], wait_s: float) -> bool:
    """Poll until the condition holds: a captured or simulated machine has no events for changes in sysfs."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            if holds():
                return True
        except SysfsError:
            pass  # a device that is just being added or removed
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)


def different(want: VfSettings, has: VfSettings) -> VfSettings | None:
    """The settings to write. If one rate differs, both are written, because the kernel takes both."""
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
            wanted, current = getattr(want, rate), getattr(has, rate)
            values.setdefault(rate, current if wanted is None else wanted)
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
