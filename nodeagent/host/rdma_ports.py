"""RDMA ports in sysfs: their state, GIDs and counters.

On some NICs each counter file is a command to the firmware, and on a PF that is not to be asked each of those is
an error in the kernel's log. So only files that are wanted are read, and one that the driver has refused is
not read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.host.sysfs import OpenAttributes, SysfsError

_CLASS = "/sys/class/infiniband"
PORT_COUNTERS = ("port_rcv_data", "port_xmit_data")
"""In units of four octets."""

_ROCE_V2 = "RoCE v2"
_ACTIVE = "4"  # of "4: ACTIVE" (enum ib_port_state)


@dataclass(frozen=True, slots=True)
class PortState:
    """``None`` is not said. ``phys_state`` is the kernel's word: LinkUp, Disabled, Polling…"""

    active: bool | None
    link_layer: str | None
    phys_state: str | None
    node_guid: str | None


@dataclass(slots=True)
class RdmaPorts:
    """For one thread at a time. ``refused`` are files that are not asked for again, with the reason."""

    attributes: OpenAttributes
    refused: dict[str, str] = field(default_factory=dict)
    _gids: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def state(self, device: str) -> PortState:
        """Raises ``SysfsError``."""
        read = self.attributes.text
        state = read(f"{_CLASS}/{device}/ports/1/state")
        phys = read(f"{_CLASS}/{device}/ports/1/phys_state")
        return PortState(
            active=None if state is None else state.startswith(_ACTIVE),
            link_layer=read(f"{_CLASS}/{device}/ports/1/link_layer"),
            phys_state=None if phys is None else phys.partition(":")[2].strip() or phys,
            node_guid=read(f"{_CLASS}/{device}/node_guid"),
        )

    def counters(self, device: str, names: tuple[str, ...], folder: str = "counters") -> dict[str, int]:
        """Those of ``names`` that the port has."""
        found = {}
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
            # "N/A (no PMA)" is how some drivers say that there is none
            if text.strip().isdecimal():
                found[name] = int(text)
        return found

    def roce_v2_gids(self, device: str, *, again: bool) -> int | None:
        """How many GIDs can be used for RoCE v2; ``None`` where the port has no table of them.

        The table has hundreds of places, most of them empty. Those that were filled are looked at each time, and
        all of them where one is no longer, where there was none, or with ``again``.
        """
        known = self._gids.get(device)
        if known and not again:
            still = tuple(place for place in known if self._is_roce_v2(device, place))
            if still == known:
                return len(known)
        folder = f"{_CLASS}/{device}/ports/1/gid_attrs/types"
        try:
            places = self.attributes.tree.names(folder)
        except SysfsError:
            places = ()
        if not places and not self.attributes.tree.exists(folder):
            return None
        found = tuple(
            int(place) for place in places if place.isdecimal() and self._is_roce_v2(device, int(place))
        )
        self._gids[device] = found
        return len(found)

    def _is_roce_v2(self, device: str, place: int) -> bool:
        port = f"{_CLASS}/{device}/ports/1"
        tree = self.attributes.tree
        try:
            if (tree.text(f"{port}/gid_attrs/types/{place}") or "").strip() != _ROCE_V2:
                return False
            gid = tree.text(f"{port}/gids/{place}") or ""
        except SysfsError:
            return False  # an empty place refuses to be read (EINVAL)
        return any(digit not in "0:" for digit in gid.strip())

    def forget(self, device: str) -> None:
        """The device has gone, or another has its name: what was refused may be tried again."""
        prefix = f"{_CLASS}/{device}/"
        self.attributes.forget(prefix)
        self._gids.pop(device, None)
        for path in [path for path in self.refused if path.startswith(prefix)]:
            del self.refused[path]
