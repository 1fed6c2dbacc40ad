"""Readers of links over netlink: state and counters, speed, link state, FEC, pauses, MAC counters and VF traffic.

Each ethtool reader makes one dump for all ports. If a driver's error ends the dump, the reader queries each port by
itself for ``RETRY_S``, and skips the ports that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import ENODEV, EOPNOTSUPP
from typing import Generic, TypeVar

from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.netlink import ethtool_messages as ethtool
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.netdevs import NetdevCounters, Netdevs, VfTraffic
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.reader import RETRY_S, LazySocket, NetlinkReader, PfNetdevs, measured

A = TypeVar("A", bound=ethtool.PortAnswer)

_STATS64 = (
    *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes"),
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
    *("rx_multicast", "collisions"),
    *("rx_length_errors", "rx_over_errors", "crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_missed"),
    *("tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors", "tx_heartbeat_errors", "tx_window_errors"),
    *("rx_compressed", "tx_compressed", "rx_nohandler"),
)
"""The first 24 counters of struct rtnl_link_stats64."""


class LinkReader(NetlinkReader[Netdevs]):
    """One RTM_GETLINK dump. Notes the current netdev of each PF in ``pf_netdevs``."""

    def __init__(self, pf_netdevs: PfNetdevs) -> None:
        super().__init__(Source.LINK, LazySocket(Netdevs))
        self._pf_netdevs = pf_netdevs

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        readings = self._socket.get().counters()
        by_name = {counters.netdev.name: counters for counters in readings}
        by_ifindex = {counters.netdev.ifindex: counters for counters in readings}
        before = self._pf_netdevs.ifindex
        by_pf: dict[str, NetdevCounters] = {}
        for pf in pfs:
            # After a rename the ifindex identifies the netdev until the PCI source reads the new name.
            counters = by_name.get(pf.netdev or "") or by_ifindex.get(before.get(pf.pci_address, 0))
            if counters is not None:
                by_pf[pf.pci_address] = counters
        self._pf_netdevs.ifindex = {device: counters.netdev.ifindex for device, counters in by_pf.items()}
        self._pf_netdevs.name = {device: counters.netdev.name for device, counters in by_pf.items()}
        return [Sample(now, device, Source.LINK, link_values(counters)) for device, counters in by_pf.items()]


def link_values(reading: NetdevCounters) -> dict[str, float]:
    netdev = reading.netdev
    values: dict[str, float] = {"admin_up": int(netdev.admin_up), "oper_up": int(reading.oper_up)}
    if netdev.carrier is not None:
        values["carrier"] = int(netdev.carrier)
    if netdev.mtu is not None:
        values["mtu_bytes"] = netdev.mtu
    if reading.queue_length is not None:
        values["tx_queue_length"] = reading.queue_length
    if reading.carrier_up is not None:
        values["carrier_up"] = reading.carrier_up
    if reading.carrier_down is not None:
        values["carrier_down"] = reading.carrier_down
    if reading.counters is not None:
        values.update(zip(_STATS64, reading.counters, strict=True))
    return values


ValuesAndTexts = tuple[dict[str, float], dict[str, str]]


class EthtoolReader(NetlinkReader[ethtool.EthtoolSocket], Generic[A]):
    """One query of ethtool netlink; ``convert`` makes values and texts of an answer."""

    def __init__(
        self,
        source: Source,
        pf_netdevs: PfNetdevs,
        socket: LazySocket[ethtool.EthtoolSocket],
        query: ethtool.PortQuery[A],
        convert: Callable[[A], ValuesAndTexts],
    ) -> None:
        super().__init__(source, socket)
        self._pf_netdevs = pf_netdevs
        self._query = query
        self._convert = convert
        self._dump_again_at = 0.0

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        devices = self._pf_netdevs.devices()
        wanted = {pf.pci_address for pf in pfs}
        samples = []
        for answer in self._answers(now):
            device = devices.get(answer.ifindex)
            if device is not None and device in wanted:
                values, texts = self._convert(answer)
                if values or texts:
                    samples.append(Sample(now, device, self.source, values, texts))
        return samples

    def _answers(self, now: float) -> list[A]:
        if now >= self._dump_again_at:
            try:
                answers = self._socket.get().all(self._query)
            except NetlinkRefusedError:
                self._dump_again_at = now + RETRY_S
            else:
                for device in list(self.skipped.reasons):
                    self.skipped.remove(device)
                return answers
        return [
            answer
            for device, ifindex in self._pf_netdevs.ifindex.items()
            for answer in self._answer_of(device, ifindex, now)
        ]

    def _answer_of(self, device: str, ifindex: int, now: float) -> list[A]:
        if self.skipped.skips(device, now):
            return []
        try:
            answer = self._socket.get().one(self._query, ifindex)
        except NetlinkRefusedError as error:
            if error.code not in (EOPNOTSUPP, ENODEV):
                self.skipped.add(device, str(error), now)
            return []
        self.skipped.remove(device)
        return [answer]


def ethtool_readers(
    pf_netdevs: PfNetdevs,
) -> tuple[
    EthtoolReader[ethtool.LinkModes],
    EthtoolReader[ethtool.LinkState],
    EthtoolReader[ethtool.FecCounters],
    EthtoolReader[ethtool.PauseCounters],
]:
    """Readers that share one socket, so they run in one thread."""
    socket = LazySocket(ethtool.EthtoolSocket)
    return (
        EthtoolReader(Source.MODES, pf_netdevs, socket, ethtool.MODES, _modes),
        EthtoolReader(Source.STATE, pf_netdevs, socket, ethtool.STATE, _state),
        EthtoolReader(Source.FEC, pf_netdevs, socket, ethtool.FEC, _fec),
        EthtoolReader(Source.PAUSE, pf_netdevs, socket, ethtool.PAUSE, _pause),
    )


STANDARD_NAMES = {
    "SymbolErrorDuringCarrier": "symbol_errors",
    "FrameCheckSequenceErrors": "crc_errors",
    "OctetsReceivedOK": "phy_rx_bytes",
    "OctetsTransmittedOK": "phy_tx_bytes",
    "AlignmentErrors": "mac_alignment_errors",
    "FramesLostDueToIntMACRcvError": "mac_receive_errors",
    "FramesLostDueToIntMACXmitError": "mac_transmit_errors",
    "InRangeLengthErrors": "mac_length_errors",
    "FrameTooLongErrors": "mac_too_long",
    "etherStatsUndersizePkts": "mac_undersize",
    "etherStatsOversizePkts": "mac_oversize",
    "etherStatsFragments": "mac_fragments",
    "etherStatsJabbers": "mac_jabbers",
    "MACControlFramesReceived": "mac_control_received",
    "MACControlFramesTransmitted": "mac_control_sent",
    "UnsupportedOpcodesReceived": "mac_control_unsupported",
}
"""By the kernel's name: the sample name. Numbers of good frames and of collisions are left out: the link's own
statistics have the first, and a full-duplex link has none of the others. Where a driver counts more exactly by a name
of its own, that one is stated (``sampler.PREFERRED``)."""


def standard_reader(pf_netdevs: PfNetdevs) -> EthtoolReader[ethtool.StandardCounters]:
    """The reader has a socket of its own: on mlx5 its answers cost firmware commands, as the driver's statistics do,
    so it runs at their rate."""
    socket = LazySocket(ethtool.EthtoolSocket)
    return EthtoolReader(Source.STANDARD, pf_netdevs, socket, ethtool.STANDARD, standard_values)


def standard_values(standard: ethtool.StandardCounters) -> ValuesAndTexts:
    return {
        name: standard.counts[word] for word, name in STANDARD_NAMES.items() if word in standard.counts
    }, {}


def _modes(modes: ethtool.LinkModes) -> ValuesAndTexts:
    return (
        measured(speed_mbps=modes.speed_mbps, lanes=modes.lanes, supported_mbps=modes.supported_mbps),
        {},
    )


def _state(state: ethtool.LinkState) -> ValuesAndTexts:
    texts = {"ext_state": state.state, "ext_substate": state.substate}
    return measured(ext_down=state.down_events), {
        name: text for name, text in texts.items() if text is not None
    }


def _fec(fec: ethtool.FecCounters) -> ValuesAndTexts:
    values = measured(
        fec_corrected_blocks=fec.corrected_blocks,
        fec_uncorrectable_blocks=fec.uncorrectable_blocks,
        fec_corrected_bits=fec.corrected_bits,
    )
    return values, {} if fec.mode is None else {"fec_mode": fec.mode}


def _pause(pause: ethtool.PauseCounters) -> ValuesAndTexts:
    return measured(rx_pause_frames=pause.rx_frames, tx_pause_frames=pause.tx_frames), {}


class VfReader(NetlinkReader[Netdevs]):
    """VF traffic as the PFs count it. It also covers VFs whose netdevs are in pods."""

    def __init__(self, pf_netdevs: PfNetdevs) -> None:
        super().__init__(Source.VF, LazySocket(Netdevs))
        self._pf_netdevs = pf_netdevs

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        with_vfs = [pf for pf in pfs if pf.num_vfs and pf.pci_address in self._pf_netdevs.ifindex]
        return self.read_each(with_vfs, self._read_pf, NetlinkError, frozenset((ENODEV,)))

    def _read_pf(self, pf: Function, now: float) -> Sample | None:
        ifindex = self._pf_netdevs.ifindex.get(pf.pci_address)
        if ifindex is None:
            return None  # the link reader, in its own thread, no longer lists the PF
        vfs = self._socket.get().vfs(ifindex)
        values = vf_values(vfs)
        texts = {f"vf_{name}/{vf.index}": text for vf in vfs for name, text in vf.setup.items()}
        return Sample(now, pf.pci_address, Source.VF, values, texts) if values else None


def vf_values(vfs: Sequence[VfTraffic]) -> dict[str, float]:
    names = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
    values: dict[str, float] = {}
    for vf in vfs:
        for name in names:
            value = getattr(vf, name)
            if value is not None:
                values[f"vf_{name}/{vf.index}"] = value
    return values
