"""Read RDMA ports from sysfs: state, GIDs and counters.

On some NICs reading a counter file sends a command to the firmware, and on some PFs that fails with an error in the
kernel log. So only the needed files are read, and a file that the driver refused is not read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from nodeagent.host.sysfs import OpenAttributes, SysfsError, SysfsScan

_CLASS = "/sys/class/infiniband"
PORT_COUNTERS = ("port_rcv_data", "port_xmit_data")
"""In units of four octets."""
_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
}
"""The counters of an InfiniBand port that report errors (IBTA volume 1, 16.1.3.5, PortCounters), and the bits of each
in the kernel's query (PORT_PMA_ATTR in drivers/infiniband/core/sysfs.c)."""
INFINIBAND_COUNTERS = tuple(_BITS)
_ENDS = {name: (1 << bits) - 1 for name, bits in _BITS.items()}
"""A counter stays at its end until somebody clears it: from then on it tells nothing."""

INFINIBAND = "InfiniBand"
"""The link layer of a port that a subnet manager configures."""
_ROCE_V2 = "RoCE v2"
_ACTIVE = "4"  # of "4: ACTIVE" (enum ib_port_state)


class RdmaPortState(Struct, frozen=True):
    """``None`` is unknown. ``phys_state`` is the kernel's name: LinkUp, Disabled, Polling… ``subnet`` has the numbers
    of an InfiniBand port by the names of their files: ``state``, ``phys_state``, ``lid`` and ``sm_lid``."""

    active: bool | None
    link_layer: str | None
    phys_state: str | None
    node_guid: str | None
    subnet: Mapping[str, int] = {}


@dataclass(slots=True)
class RdmaPorts:
    """For one thread at a time. ``refused`` are the files that are not read again, with the reason."""

    attributes: OpenAttributes
    refused: dict[str, str] = field(default_factory=dict)
    _gids: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def state(self, device: str) -> RdmaPortState:
        """Raises ``SysfsError``."""
        read = self.attributes.text
        folder = f"{_CLASS}/{device}/ports/1"
        state = read(f"{folder}/state")
        phys = read(f"{folder}/phys_state")
        link_layer = read(f"{folder}/link_layer")
        subnet = {}
        if link_layer == INFINIBAND:
            texts = {"state": state, "phys_state": phys}
            texts |= {name: read(f"{folder}/{name}") for name in ("lid", "sm_lid")}
            subnet = {name: number for name, text in texts.items() if (number := _number(text)) is not None}
        return RdmaPortState(
            active=None if state is None else state.startswith(_ACTIVE),
            link_layer=link_layer,
            phys_state=None if phys is None else phys.partition(":")[2].strip() or phys,
            node_guid=read(f"{_CLASS}/{device}/node_guid"),
            subnet=subnet,
        )

    def counters(self, device: str, names: tuple[str, ...], folder: str = "counters") -> dict[str, int]:
        """The counters among ``names`` that the port has, without those at their end."""
        counters = {}
        for name in names:
            path = f"{_CLASS}/{device}/ports/1/{folder}/{name}"
            if path in self.refused:
                continue
            try:
                text = self.attributes.text(path)
            except SysfsError as error:
                self.refused[path] = str(error)
                continue
            if text is None:
                continue
            # some drivers write "N/A (no PMA)" for a missing counter
            if text.strip().isdecimal() and int(text) != _ENDS.get(name):
                counters[name] = int(text)
        return counters

    def roce_v2_gids(self, device: str, *, again: bool) -> int | None:
        """The number of GIDs for RoCE v2; ``None`` if the port has no GID table.

        The table has hundreds of entries, most of them empty. Known entries are read each time; the whole table is
        read if one of them became empty, if there was none, or with ``again``.
        """
        known = self._gids.get(device)
        if known and not again and all(self._is_roce_v2(device, entry) for entry in known):
            return len(known)
        folder = f"{_CLASS}/{device}/ports/1/gid_attrs/types"
        names = SysfsScan(self.attributes.tree).names(folder)
        if not names and not self.attributes.tree.exists(folder):
            return None
        entries = tuple(
            int(name) for name in names if name.isdecimal() and self._is_roce_v2(device, int(name))
        )
        self._gids[device] = entries
        return len(entries)

    def _is_roce_v2(self, device: str, entry: int) -> bool:
        port = f"{_CLASS}/{device}/ports/1"
        tree = self.attributes.tree
        try:
            if (tree.text(f"{port}/gid_attrs/types/{entry}") or "").strip() != _ROCE_V2:
                return False
            gid = tree.text(f"{port}/gids/{entry}") or ""
        except SysfsError:
            return False  # reading an empty entry fails (EINVAL)
        return any(digit not in "0:" for digit in gid.strip())

    def forget(self, device: str) -> None:
        """Drop the state of a removed or replaced device, so that refused files are tried again."""
        prefix = f"{_CLASS}/{device}/"
        self.attributes.forget(prefix)
        self._gids.pop(device, None)
        for path in [path for path in self.refused if path.startswith(prefix)]:
            del self.refused[path]


def _number(text: str | None) -> int | None:
    """The number in ``4: ACTIVE`` or ``0x1f``."""
    try:
        return int((text or "").partition(":")[0], 0)
    except ValueError:
        return None
