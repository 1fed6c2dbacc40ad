"""The writes that make VFs and set them up, and what only a look at the kernel beside sysfs can tell of them.

The law of this file:

* Every write is one value into one file that is there already, or one netlink message. Nothing here waits,
  retries, compares or decides: that is ``nodeagent.commands.vfs.apply``.
* Files lie under a ``Tree``, so a simulated machine is written like a real one. The settings that a PF keeps
  of its VFs (trust, spoof check, link state, rates) are in no file: they go through rtnetlink, to the
  network namespace of this process, and that only where it is the one that the tree's sysfs shows.
* Whatever fails is a ``SriovError`` that names the function, the file or attribute, the errno and the remedy.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nodeagent.host.sysfs import NET, Tree

if TYPE_CHECKING:  # 0.1 s and 13 MiB, for what only a change of VFs needs
    from pyroute2 import IPRoute

BUS = "/sys/bus/pci"

_WRITABLE = "it takes root and a writable /sys: a privileged container, or the host's /sys mounted read-write"
_REMEDIES: Mapping[int, str] = {
    errno.EPERM: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENODEV: "the device has gone, or it is not one of this driver's",
    errno.ENOENT: "the device has gone, or the driver is not loaded",
}
# drivers/pci/pci-sysfs.c and drivers/pci/iov.c
_NUM_VFS: Mapping[int, str] = {
    errno.EBUSY: "it has VFs already, and they must be removed before another number is made",
    errno.ERANGE: "that is more than sriov_totalvfs",
    errno.ENOENT: "its driver makes no VFs, or it has none; bind the PF to its network driver",
    errno.ENOMEM: "the firmware left no room for their registers or bus numbers; switch SR-IOV on in the "
    "machine's firmware, or boot with pci=realloc",
    errno.ENOSPC: "the device has no resources for so many",
    errno.EPERM: f"a VM holds one of its VFs, or /sys cannot be written: {_WRITABLE}",
}
_MTU: Mapping[int, str] = {errno.EINVAL: "the device does not reach that MTU"}
_BIND: Mapping[int, str] = {
    errno.EBUSY: "another driver was faster",
    errno.ENODEV: "the driver does not take this device",
    errno.ENOENT: "the driver is not loaded; modprobe it on the host",
    errno.EINVAL: "the driver refuses it; without an IOMMU vfio-pci needs enable_unsafe_noiommu_mode=1",
}
_NETLINK: Mapping[int, str] = {
    errno.EPERM: "it takes CAP_NET_ADMIN",
    errno.EOPNOTSUPP: "the PF's driver cannot do that; take the setting out of the configuration",
    errno.EINVAL: "the PF's driver refuses that value; some want the PF's link to be up first",
    errno.ENODEV: "the netdev has gone",
}
_RTEXT_FILTER_VF = 1  # include/uapi/linux/rtnetlink.h
_UNKNOWN = 0xFFFF_FFFF  # what the kernel says for a driver that does not say (net/core/rtnetlink.c)
_LINK_STATES = ("auto", "enable", "disable")  # IFLA_VF_LINK_STATE_*, include/uapi/linux/if_link.h
_SCOPE_LINK = 253


class SriovError(Exception):
    """A function could not be changed, or not be asked about its VFs."""


@dataclass(frozen=True, slots=True)
class VfSettings:
    """What a PF keeps of one of its VFs; ``None`` is not known, or not wanted."""

    trust: bool | None = None
    spoof_check: bool | None = None
    link_state: str | None = None
    min_tx_rate_mbps: int | None = None
    max_tx_rate_mbps: int | None = None

    def items(self) -> tuple[tuple[str, bool | str | int | None], ...]:
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


# --- sysfs ----------------------------------------------------------------------------------------------


def set_num_vfs(tree: Tree, pf: str, count: int) -> None:
    """Between two numbers of VFs the kernel wants a 0. Removing a VF that a program holds may take for ever."""
    _write(tree, pf, f"{BUS}/devices/{pf}/sriov_numvfs", str(count), _NUM_VFS)


def set_autoprobe(tree: Tree, pf: str, *, on: bool) -> None:
    """Whether VFs that are made from now on get a driver at once."""
    _write(tree, pf, f"{BUS}/devices/{pf}/sriov_drivers_autoprobe", str(int(on)))


def set_mtu(tree: Tree, pf: str, netdev: str, mtu: int) -> None:
    _write(tree, pf, f"{NET}/{netdev}/mtu", str(mtu), _MTU)


def override(tree: Tree, function: str, driver: str) -> None:
    """From now on no other driver may take the function, and this one may."""
    _write(tree, function, f"{BUS}/devices/{function}/driver_override", driver)


def unbind(tree: Tree, function: str, driver: str) -> None:
    _write(tree, function, f"{BUS}/drivers/{driver}/unbind", function)


def bind(tree: Tree, function: str, driver: str) -> None:
    """Not by ``drivers_probe``, which keeps the driver's error to itself."""
    _write(tree, function, f"{BUS}/drivers/{driver}/bind", function, _BIND)


def is_open(tree: Tree, node: str) -> bool | None:
    """Whether a program holds a device node that one program at a time can open; ``None`` if that cannot be told.

    Asked by opening it, as VFIO groups (also when a device is held through iommufd) and vhost-vdpa devices
    answer a second one with EBUSY. No other program can be looked at from another PID namespace.
    """
    try:
        os.close(os.open(tree.path(node), os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return True if error.errno == errno.EBUSY else None
    return False


def _write(
    tree: Tree, function: str, path: str, value: str, remedies: Mapping[int, str] | None = None
) -> None:
    try:
        # No O_CREAT: on a simulated machine an attribute that is not there must fail as it does in sysfs.
        fd = os.open(tree.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise SriovError(_sentence(function, path, value, error.errno or 0, {}, remedies)) from error


def _sentence(
    function: str,
    what: str,
    value: object,
    code: int,
    common: Mapping[int, str],
    special: Mapping[int, str] | None,
) -> str:
    remedy = (special or {}).get(code) or (common or _REMEDIES).get(code)
    name = errno.errorcode.get(code, str(code))
    return f"{function}: {what} did not take {value}: {os.strerror(code)} ({name})" + (
        f"; {remedy}" if remedy else ""
    )


# --- rtnetlink ------------------------------------------------------------------------------------------


class Links:
    """What PFs keep of their VFs, and addresses, by rtnetlink in this network namespace.

    Netdevs are named as the tree's sysfs does, which may show another namespace's: that is found out and
    refused, for a netdev of the same name would be another NIC's. Not to be used inside an event loop.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._route: IPRoute | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.close()

    def vfs(self, netdev: str) -> dict[int, VfSettings]:
        """By VF index; empty where the netdev's driver keeps none."""
        return vf_settings(self._link(netdev))

    def set_vf(self, pf: str, netdev: str, index: int, settings: VfSettings) -> None:
        """Set what is not ``None``. One message each, so that an error is about one setting."""
        link = self._link(netdev)["index"]
        for name, key, value in _attributes(settings):
            try:
                self._rtnl().link("set", index=link, vf={"vf": index, key: value})
            except _netlink_error() as error:
                what = f"{name} of VF {index} of {netdev}"
                shown = str(getattr(settings, name)).lower()
                raise SriovError(_said_by(error, pf, what, shown)) from error

    def addresses(self, netdev: str) -> tuple[str, ...]:
        """IP addresses with their prefix length, without those that the kernel gives to every link."""
        link = self._link(netdev)["index"]
        return tuple(
            f"{address.get_attr('IFA_ADDRESS')}/{address['prefixlen']}"
            for address in self._rtnl().get_addr(index=link)
            if address["scope"] != _SCOPE_LINK
        )

    def _link(self, netdev: str) -> Any:
        try:
            link = self._rtnl().link("get", ifname=netdev, ext_mask=_RTEXT_FILTER_VF)[0]
        except _netlink_error() as error:
            if error.code == errno.ENODEV:
                raise SriovError(_elsewhere(netdev)) from error
            raise SriovError(_said_by(error, netdev, "the question for it", "")) from error
        mac = (self._tree.text(f"{NET}/{netdev}/address") or "").strip()
        index = self._tree.integer(f"{NET}/{netdev}/ifindex")
        # Of the 20 octets of an InfiniBand address pyroute2 tells six.
        if index != link["index"] or not mac.startswith(link.get_attr("IFLA_ADDRESS") or ""):
            raise SriovError(_elsewhere(netdev))
        return link

    def _rtnl(self) -> IPRoute:
        if self._route is None:
            from pyroute2 import IPRoute  # noqa: PLC0415

            self._route = IPRoute(ext_ack=True)
        return self._route


def vf_settings(link: Any) -> dict[int, VfSettings]:
    """Of a netdev's ``RTM_NEWLINK`` message, as pyroute2 decodes it."""
    listed = link.get_attr("IFLA_VFINFO_LIST")
    found: dict[int, VfSettings] = {}
    for info in listed.get_attrs("IFLA_VF_INFO") if listed is not None else ():
        rate = info.get_attr("IFLA_VF_RATE")
        state = _said(info, "IFLA_VF_LINK_STATE", "link_state")
        index = next(value["vf"] for _, value in info["attrs"] if "vf" in value)
        found[index] = VfSettings(
            trust=_boolean(_said(info, "IFLA_VF_TRUST", "trust")),
            spoof_check=_boolean(_said(info, "IFLA_VF_SPOOFCHK", "spoofchk")),
            link_state=_LINK_STATES[state] if state is not None and state < len(_LINK_STATES) else None,
            min_tx_rate_mbps=rate["min_tx_rate"] if rate is not None else None,
            max_tx_rate_mbps=rate["max_tx_rate"] if rate is not None else None,
        )
    return found


def _attributes(settings: VfSettings) -> list[tuple[str, str, Any]]:
    """Setting, pyroute2's name of the attribute, its value. The kernel takes both rates or none."""
    low, high = settings.min_tx_rate_mbps, settings.max_tx_rate_mbps
    rates = {"min_tx_rate": low or 0, "max_tx_rate": high or 0}
    state = settings.link_state
    wanted: list[tuple[str, str, Any]] = [
        ("trust", "trust", None if settings.trust is None else int(settings.trust)),
        ("spoof_check", "spoofchk", None if settings.spoof_check is None else int(settings.spoof_check)),
        ("link_state", "link_state", None if state is None else _LINK_STATES.index(state)),
        (
            "min_tx_rate_mbps" if high is None else "max_tx_rate_mbps",
            "rate",
            None if low is None and high is None else rates,
        ),
    ]
    return [entry for entry in wanted if entry[2] is not None]


def _said(info: Any, attribute: str, field: str) -> int | None:
    value = info.get_attr(attribute)
    return None if value is None or value[field] == _UNKNOWN else int(value[field])


def _boolean(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _elsewhere(netdev: str) -> str:
    return (
        f"{netdev}: sysfs shows it, but it is not in this process's network namespace; "
        "run with hostNetwork: true"
    )


def _said_by(error: Any, function: str, what: str, value: object) -> str:
    told = error.args[1] if len(error.args) > 1 else ""
    sentence = _sentence(function, what, value, error.code, _NETLINK, None)
    return sentence if told in ("", None, os.strerror(error.code)) else f"{sentence} (the kernel: {told})"


def _netlink_error() -> Any:
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    return NetlinkError
