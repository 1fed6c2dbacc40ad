"""Samples of a captured or simulated machine: ``/.nodeagent/samples.json`` under its root, a list of samples.

What is in the file is what the hardware shows at this moment; when it was measured is when it is read here. The
file may be replaced at any time. Where it is silent, or not there, sysfs tells what it can of links.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function
from nodeagent.sampling.reader import Plain, boottime, known

PATH = "/.nodeagent/samples.json"
_IFF_UP = 1
_SPEED_UNKNOWN = 0xFFFF_FFFF
_decoder = msgspec.json.Decoder(list[Sample])

_ORDER = {Source.FEC: -2, Source.DRIVER: -1, Source.LINK: 1}
"""Whoever is believed first speaks first: ``latest.BETTER``."""

_STATISTICS = {
    "rx_bytes": "rx_bytes",
    "tx_bytes": "tx_bytes",
    "rx_packets": "rx_packets",
    "tx_packets": "tx_packets",
    "rx_errors": "rx_errors",
    "tx_errors": "tx_errors",
    "rx_dropped": "rx_dropped",
    "tx_dropped": "tx_dropped",
    "multicast": "rx_multicast",
    "rx_crc_errors": "crc_errors",
    "rx_missed_errors": "rx_missed",
}


def load(tree: Tree) -> list[Sample]:
    """As they stand there. Raises ``SysfsError``."""
    raw = tree.data(PATH)
    if raw is None:
        return []
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SysfsError(f"{PATH} is no list of samples: {error}") from error


class ReplicaReader(Plain):
    """All sources of the file, and links from sysfs. Its own name is that of the links.

    ``told`` is what the file speaks of, by device and source.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(Source.LINK)
        self._tree = tree
        self.told: frozenset[tuple[str, Source]] = frozenset()
        self._loaded: tuple[tuple[int, int, int] | None, list[Sample]] = (None, [])

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        devices = {pf.pci_address for pf in pfs}
        found = [
            msgspec.structs.replace(sample, at=now) for sample in self._file() if sample.device in devices
        ]
        self.told = told = frozenset((sample.device, sample.source) for sample in found)
        for pf in pfs:
            if pf.netdev is not None:
                if {(pf.pci_address, Source.LINK), (pf.pci_address, Source.MODES)} <= told:
                    continue
                samples = self._sysfs(pf.pci_address, pf.netdev, now)
                found += [sample for sample in samples if (sample.device, sample.source) not in told]
        return sorted(found, key=lambda sample: _ORDER.get(sample.source, 0))

    def _file(self) -> list[Sample]:
        """Read again when it has been replaced."""
        try:
            found = self._tree.path(PATH).stat()
        except OSError:
            self._loaded = (None, [])
            return []
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._loaded[0] != mark:
            self._loaded = (mark, load(self._tree))
        return self._loaded[1]

    def _sysfs(self, device: str, netdev: str, now: float) -> list[Sample]:
        sysfs = SysfsScan(self._tree)
        number = self._tree.integer

        def say(attribute: str) -> int | None:
            return sysfs.netdev(number, netdev, attribute)

        flags = say("flags")
        if flags is None:
            return []
        up = bool(flags & _IFF_UP)
        values = known(
            admin_up=int(up),
            oper_up=int(sysfs.netdev(self._tree.text, netdev, "operstate") == "up"),
            carrier=say("carrier") if up else None,
            mtu_bytes=say("mtu"),
            carrier_up=say("carrier_up_count"),
            carrier_down=say("carrier_down_count"),
            **{name: say(f"statistics/{file}") for file, name in _STATISTICS.items()},
        )
        found = [Sample(now, device, Source.LINK, values)]
        speed = say("speed") if up else None
        if speed is not None and 0 < speed < _SPEED_UNKNOWN:
            found.append(Sample(now, device, Source.MODES, {"speed_mbps": speed}))
        return found
