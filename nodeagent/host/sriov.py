"""Create and configure VFs: sysfs writes, VF settings by rtnetlink, and checks whether a VF is in use.

* Each write is one value into an existing file, or one netlink message. This module does not wait, retry, compare or
  decide: ``nodeagent.commands.vfs`` does.
* Files are below a ``Tree``, so a simulated machine is written like a real one. No file has a PF's settings for its
  VFs (trust, spoof check, link state, rates): they go through rtnetlink to the network namespace of this process,
  but only if the tree's sysfs shows the same namespace.
* Every failure is a ``SriovError`` with the function, the file or attribute, the errno and the remedy.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from nodeagent.base.bounded_calls import enter
from nodeagent.facts.card_identity import is_no_guid
from nodeagent.host.fd import Closing
from nodeagent.host.sysfs import NET, Tree

if TYPE_CHECKING:  # the import takes 0.1 s and 13 MiB, and only a change of VFs needs it
    from pyroute2 import IPRoute

BUS = "/sys/bus/pci"

_WRITABLE = "it needs root and a writable /sys: a privileged container, or the host's /sys mounted read-write"
_REMEDIES: Mapping[int, str] = {
    errno.EPERM: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENODEV: "the device was removed, or the driver does not support it",
    errno.ENOENT: "the device was removed, or the driver is not loaded",
}
# drivers/pci/pci-sysfs.c and drivers/pci/iov.c
_NUM_VFS: Mapping[int, str] = {
    errno.EBUSY: "the PF already has VFs; remove them before another number is created",
    errno.ERANGE: "that is more than sriov_totalvfs",
    errno.ENOENT: "the PF has no driver, or its driver does not support VFs; bind the PF to its network driver",
    errno.ENOMEM: "the firmware left no room for their registers or bus numbers; enable SR-IOV in the "
    "machine's firmware, or boot with pci=realloc",
    errno.ENOSPC: "the device has no resources for that many VFs",
    errno.EPERM: f"a VM holds one of its VFs, or /sys is not writable: {_WRITABLE}",
}
_MTU: Mapping[int, str] = {errno.EINVAL: "the device does not support that MTU"}
_BIND: Mapping[int, str] = {
    errno.EBUSY: "another driver was faster",
    errno.ENODEV: "the driver does not support this device",
    errno.ENOENT: "the driver is not loaded; modprobe it on the host",
    errno.EINVAL: "the driver refuses it; without an IOMMU vfio-pci needs enable_unsafe_noiommu_mode=1",
}
_NETLINK: Mapping[int, str] = {
    errno.EPERM: "it needs CAP_NET_ADMIN",
    errno.EOPNOTSUPP: "the PF's driver does not support it; remove the setting from the configuration",
    errno.EINVAL: "the PF's driver refuses that value; some drivers need the PF's link to be up first",
    errno.ENODEV: "the netdev was removed",
}
_RTEXT_FILTER_VF = 1  # include/uapi/linux/rtnetlink.h
_UNKNOWN = 0xFFFF_FFFF  # the kernel's value if the driver reports none (net/core/rtnetlink.c)
_LINK_STATES = ("auto", "enable", "disable")  # IFLA_VF_LINK_STATE_*, include/uapi/linux/if_link.h
_SCOPE_LINK = 253


class SriovError(Exception):
    """A function cannot be changed, or its VF settings cannot be read."""


@dataclass(frozen=True, slots=True)
class VfSettings:
    """A PF's settings for one of its VFs; ``None`` is unknown, or not to be changed."""

    trust: bool | None = None
    spoof_check: bool | None = None
    link_state: str | None = None
    min_tx_rate_mbps: int | None = None
    max_tx_rate_mbps: int | None = None

    def items(self) -> tuple[tuple[str, bool | str | int | None], ...]:
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


# --- sysfs ----------------------------------------------------------------------------------------------


def set_num_vfs(tree: Tree, pf: str, count: int) -> None:
    """The kernel requires a 0 between two numbers of VFs. Removing a VF that a program holds may never end."""
    _write(tree, pf, f"{BUS}/devices/{pf}/sriov_numvfs", str(count), _NUM_VFS)


def set_autoprobe(tree: Tree, pf: str, *, on: bool) -> None:
    """Whether VFs that are created from now on get a driver at once."""
    _write(tree, pf, f"{BUS}/devices/{pf}/sriov_drivers_autoprobe", str(int(on)))


def set_mtu(tree: Tree, pf: str, netdev: str, mtu: int) -> None:
    _write(tree, pf, f"{NET}/{netdev}/mtu", str(mtu), _MTU)


def override(tree: Tree, function: str, driver: str) -> None:
    """Only this driver may bind to the function from now on."""
    _write(tree, function, f"{BUS}/devices/{function}/driver_override", driver)


def unbind(tree: Tree, function: str, driver: str) -> None:
    _write(tree, function, f"{BUS}/drivers/{driver}/unbind", function)


def bind(tree: Tree, function: str, driver: str) -> None:
    """Bind directly: ``drivers_probe`` does not return the driver's error."""
    _write(tree, function, f"{BUS}/drivers/{driver}/bind", function, _BIND)


GUID_FILES = ("node", "port")
_POLICIES = {"auto": "Follow", "enable": "Up", "disable": "Down"}


def has_vf_files(tree: Tree, pf: str, index: int) -> bool:
    """Whether the driver of an InfiniBand PF has files for its VFs: that of MLNX_OFED and DOCA, not the kernel's."""
    return tree.exists(f"{BUS}/devices/{pf}/sriov/{index}/node")


def write_vf_files(tree: Tree, pf: str, index: int, guid: str, link_state: str) -> None:
    """Write node GUID, port GUID (``02:42:a1:03:01:16:05:4c``) and link state of an InfiniBand VF.

    A reading of ``node`` and ``policy`` may show those of the VF before it: ``vf_file_link_state``.
    """
    folder = f"{BUS}/devices/{pf}/sriov/{index}"
    for name in GUID_FILES:
        _write(tree, pf, f"{folder}/{name}", guid)
    write_vf_file_link_state(tree, pf, index, link_state)


def write_vf_file_link_state(tree: Tree, pf: str, index: int, link_state: str) -> None:
    """Write the link state of an InfiniBand VF (``auto``, ``enable`` or ``disable``) by the file of its driver."""
    _write(tree, pf, f"{BUS}/devices/{pf}/sriov/{index}/policy", _POLICIES[link_state])


def vf_file_link_state(tree: Tree, pf: str, index: int, guid: str | None) -> str | None:
    """The link state that the files show of the InfiniBand VF with this node GUID; ``None`` if it is unknown.

    The files of a VF may show the values of the VF before it (``sriov_sysfs.c``, whose readings ask for one vport and
    whose writes go to the next). So those files count whose ``node`` is the VF's own GUID.
    """
    if guid is None or is_no_guid(guid):
        return None
    for shown in (index, index + 1):
        folder = f"{BUS}/devices/{pf}/sriov/{shown}"
        if _digits(tree.text(f"{folder}/node")) == _digits(guid):
            policy = (tree.text(f"{folder}/policy") or "").strip()
            return next((state for state, name in _POLICIES.items() if name == policy), None)
    return None


def _digits(guid: str | None) -> str:
    return (guid or "").strip().lower().replace(":", "")


def is_open(tree: Tree, node: str) -> bool | None:
    """Whether a program holds a device node that only one program can open; ``None`` if unknown.

    The function opens the node: VFIO groups (also if a device is held through iommufd) and vhost-vdpa devices return
    EBUSY to a second opener. Programs in another PID namespace cannot be checked in any other way.
    """
    try:
        os.close(os.open(tree.path(node), os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return True if error.errno == errno.EBUSY else None
    return False


def _write(
    tree: Tree, function: str, path: str, value: str, remedies: Mapping[int, str] | None = None
) -> None:
    enter(path)
    try:
        # No O_CREAT: on a simulated machine a missing attribute must fail as in sysfs.
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


class VfNetlink(Closing):
    """VF settings of PFs, and IP addresses, by rtnetlink in this network namespace.

    Netdev names come from the tree's sysfs, which may show another namespace. That is an error, because a netdev of
    the same name here belongs to another NIC. Do not use it inside an event loop.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._route: IPRoute | None = None

    def close(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.close()

    def vfs(self, netdev: str) -> dict[int, VfSettings]:
        """Settings by VF index; empty if the netdev's driver has none."""
        return vf_settings(self._link(netdev))

    def set_vf(self, pf: str, netdev: str, index: int, settings: VfSettings) -> None:
        """Set the values that are not ``None``, each with its own message, so that an error concerns one setting."""
        link = self._link(netdev)["index"]
        for name, key, value in _attributes(settings):
            try:
                self._rtnl().link("set", index=link, vf={"vf": index, key: value})
            except _netlink_error() as error:
                what = f"{name} of VF {index} of {netdev}"
                shown = str(getattr(settings, name)).lower()
                raise SriovError(_netlink_sentence(error, pf, what, shown)) from error

    def guids(self, netdev: str) -> dict[int, str]:
        """Node GUIDs of InfiniBand VFs by index, as ``02:42:a1:03:01:16:05:4c``; empty if the driver has none."""
        return vf_guids(self._link(netdev))

    def set_guid(self, pf: str, netdev: str, index: int, guid: str) -> None:
        """Set the GUID of the node and of the port of an InfiniBand VF."""
        link = self._link(netdev)["index"]
        for key in ("ib_node_guid", "ib_port_guid"):
            try:
                self._rtnl().link("set", index=link, vf={"vf": index, key: guid})
            except _netlink_error() as error:
                what = f"{key} of VF {index} of {netdev}"
                raise SriovError(_netlink_sentence(error, pf, what, guid)) from error

    def addresses(self, netdev: str) -> tuple[str, ...]:
        """IP addresses with prefix length, without the link-local ones, which every link has."""
        link = self._link(netdev)["index"]
        return tuple(
            f"{address.get_attr('IFA_ADDRESS')}/{address['prefixlen']}"
            for address in self._rtnl().get_addr(index=link)
            if address["scope"] != _SCOPE_LINK
        )

    def _link(self, netdev: str) -> Any:
        enter(f"rtnetlink for {netdev}")
        try:
            link = self._rtnl().link("get", ifname=netdev, ext_mask=_RTEXT_FILTER_VF)[0]
        except _netlink_error() as error:
            if error.code == errno.ENODEV:
                raise SriovError(_elsewhere(netdev)) from error
            raise SriovError(_netlink_sentence(error, netdev, "the request for it", "")) from error
        mac = (self._tree.text(f"{NET}/{netdev}/address") or "").strip()
        index = self._tree.integer(f"{NET}/{netdev}/ifindex")
        # pyroute2 returns six of the 20 octets of an InfiniBand address.
        if index != link["index"] or not mac.startswith(link.get_attr("IFLA_ADDRESS") or ""):
            raise SriovError(_elsewhere(netdev))
        return link

    def _rtnl(self) -> IPRoute:
        if self._route is None:
            from pyroute2 import IPRoute  # noqa: PLC0415 - 171 ms and 9 MiB

            self._route = IPRoute(ext_ack=True)
        return self._route


def vf_settings(link: Any) -> dict[int, VfSettings]:
    """The VF settings in a netdev's ``RTM_NEWLINK`` message, as decoded by pyroute2."""
    listed = link.get_attr("IFLA_VFINFO_LIST")
    settings: dict[int, VfSettings] = {}
    for info in listed.get_attrs("IFLA_VF_INFO") if listed is not None else ():
        rate = info.get_attr("IFLA_VF_RATE")
        state = _number(info, "IFLA_VF_LINK_STATE", "link_state")
        index = next(value["vf"] for _, value in info["attrs"] if "vf" in value)
        settings[index] = VfSettings(
            trust=_boolean(_number(info, "IFLA_VF_TRUST", "trust")),
            spoof_check=_boolean(_number(info, "IFLA_VF_SPOOFCHK", "spoofchk")),
            link_state=_LINK_STATES[state] if state is not None and state < len(_LINK_STATES) else None,
            min_tx_rate_mbps=rate["min_tx_rate"] if rate is not None else None,
            max_tx_rate_mbps=rate["max_tx_rate"] if rate is not None else None,
        )
    return settings


def vf_guids(link: Any) -> dict[int, str]:
    """The node GUIDs in a netdev's ``RTM_NEWLINK`` message, as decoded by pyroute2."""
    listed = link.get_attr("IFLA_VFINFO_LIST")
    found = (
        info.get_attr("IFLA_VF_IB_NODE_GUID")
        for info in (listed.get_attrs("IFLA_VF_INFO") if listed is not None else ())
    )
    return {value["vf"]: value["ib_node_guid"] for value in found if value is not None}


def _attributes(settings: VfSettings) -> list[tuple[str, str, Any]]:
    """Setting, pyroute2's name of the attribute, value. The kernel takes both rates or neither."""
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


def _number(info: Any, attribute: str, field: str) -> int | None:
    value = info.get_attr(attribute)
    return None if value is None or value[field] == _UNKNOWN else int(value[field])


def _boolean(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _elsewhere(netdev: str) -> str:
    return f"{netdev} is in sysfs, but not in this process's network namespace; run with hostNetwork: true"


def _netlink_sentence(error: Any, function: str, what: str, value: object) -> str:
    reason = error.args[1] if len(error.args) > 1 else ""
    sentence = _sentence(function, what, value, error.code, _NETLINK, None)
    return sentence if reason in ("", None, os.strerror(error.code)) else f"{sentence} (the kernel: {reason})"


def _netlink_error() -> Any:
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415 - as above

    return NetlinkError
