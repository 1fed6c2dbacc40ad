"""Compared values of the host that are no facts: kernel, boot parameters, IOMMU and settings of NICs.

A captured machine has the answers of its kernel about NICs in a file, ``NIC_SETTINGS_PATH``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from nodeagent.facts.model import Function
from nodeagent.host.netlink.nic_settings import NicSettings, read_nic_settings
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree

NIC_SETTINGS_PATH = "/.nodeagent/nic_settings.json"
_decoder = msgspec.json.Decoder(dict[str, NicSettings])


class HostValues(msgspec.Struct, frozen=True):
    """``iommu``, ``firmware`` and ``nics`` are by PCI address. ``firmware``: of NICs without a netdev, whose driver
    cannot be asked for it."""

    kernel: str | None = None
    command_line: str | None = None
    iommu: Mapping[str, str] = {}
    firmware: Mapping[str, str] = {}
    nics: Mapping[str, NicSettings] = {}


def read_host(tree: Tree, pfs: Sequence[Function]) -> HostValues:
    """The values of the host and of these PFs; one that cannot be read is not known. Blocks. Raises ``SysfsError`` for
    a broken file of a capture."""

    def text(path: str) -> str | None:
        return (sysfs.read(tree.text, path) or "").strip() or None

    def firmware(pf: Function) -> str | None:
        return None if pf.rdma is None else _rdma_firmware(text, f"{_folder(pf)}/infiniband/{pf.rdma.device}")

    sysfs = SysfsScan(tree)
    return HostValues(
        text("/proc/sys/kernel/osrelease"),
        text("/proc/cmdline"),
        _known({pf.pci_address: text(f"{_folder(pf)}/iommu_group/type") for pf in pfs}),
        _known({pf.pci_address: firmware(pf) for pf in pfs if pf.netdev is None}),
        _recorded_settings(tree) if tree.recorded else nic_settings(pfs),
    )


def nic_settings(pfs: Sequence[Function]) -> dict[str, NicSettings]:
    """The settings of the NICs of this machine that have a netdev. Blocks."""
    return read_nic_settings({pf.pci_address: pf.netdev for pf in pfs if pf.netdev is not None})


def _recorded_settings(tree: Tree) -> dict[str, NicSettings]:
    raw = tree.data(NIC_SETTINGS_PATH)
    try:
        return {} if raw is None else _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SysfsError(f"{NIC_SETTINGS_PATH} has no settings of NICs: {error}") from error


def _rdma_firmware(text: Callable[[str], str | None], folder: str) -> str | None:
    """In the form of mlx5's answer to ``ethtool -i``, with the PSID, which sysfs calls the ID of the board."""
    firmware, board = text(f"{folder}/fw_ver"), text(f"{folder}/board_id")
    return f"{firmware} ({board})" if firmware and board else firmware


def _folder(pf: Function) -> str:
    return f"/sys/bus/pci/devices/{pf.pci_address}"


def _known(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}
