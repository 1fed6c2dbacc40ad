"""The reader of a captured or simulated machine: ``/.nodeagent/samples.json`` under its root, a list of samples.

The file stands for the hardware, so its samples get the time of reading. It may be replaced at any time. Values of
links that the file lacks come from sysfs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.reader import SampleReader, measured

SAMPLES_PATH = "/.nodeagent/samples.json"
_IFF_UP = 1
_SPEED_UNKNOWN = 0xFFFF_FFFF
_decoder = msgspec.json.Decoder(list[Sample])

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


def load_samples(tree: Tree) -> list[Sample]:
    """The samples of the file, unchanged. Raises ``SysfsError``."""
    raw = tree.data(SAMPLES_PATH)
    if raw is None:
        return []
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SysfsError(f"{SAMPLES_PATH} is not a list of samples: {error}") from error


class RecordedSamplesReader(SampleReader):
    """Reads all samples of the file, and links from sysfs. Its own ``source`` is ``link``.

    ``in_file`` are the devices and sources that the file covers.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(Source.LINK)
        self._tree = tree
        self.in_file: frozenset[tuple[str, Source]] = frozenset()
        self._loaded: tuple[tuple[int, int, int] | None, list[Sample]] = (None, [])

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        devices = {pf.pci_address for pf in pfs}
        samples = [
            msgspec.structs.replace(sample, at=now) for sample in self._file() if sample.device in devices
        ]
        self.in_file = in_file = frozenset((sample.device, sample.source) for sample in samples)
        for pf in pfs:
            if pf.netdev is not None:
                if {(pf.pci_address, Source.LINK), (pf.pci_address, Source.MODES)} <= in_file:
                    continue
                link_samples = self._from_sysfs(pf.pci_address, pf.netdev, now)
                samples += [
                    sample for sample in link_samples if (sample.device, sample.source) not in in_file
                ]
        return samples

    def _file(self) -> list[Sample]:
        """The samples of the file, decoded again only after it was replaced."""
        try:
            status = self._tree.path(SAMPLES_PATH).stat()
        except OSError:
            self._loaded = (None, [])
            return []
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._loaded[0] != mark:
            self._loaded = (mark, load_samples(self._tree))
        return self._loaded[1]

    def _from_sysfs(self, device: str, netdev: str, now: float) -> list[Sample]:
        sysfs = SysfsScan(self._tree)
        number = self._tree.integer

        def value(attribute: str) -> int | None:
            return sysfs.netdev(number, netdev, attribute)

        flags = value("flags")
        if flags is None:
            return []
        up = bool(flags & _IFF_UP)
        values = measured(
            admin_up=int(up),
            oper_up=int(sysfs.netdev(self._tree.text, netdev, "operstate") == "up"),
            carrier=value("carrier") if up else None,
            mtu_bytes=value("mtu"),
            carrier_up=value("carrier_up_count"),
            carrier_down=value("carrier_down_count"),
            **{name: value(f"statistics/{file}") for file, name in _STATISTICS.items()},
        )
        samples = [Sample(now, device, Source.LINK, values)]
        speed = value("speed") if up else None
        if speed is not None and 0 < speed < _SPEED_UNKNOWN:
            samples.append(Sample(now, device, Source.MODES, {"speed_mbps": speed}))
        return samples
