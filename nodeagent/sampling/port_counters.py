"""Samples of links from netlink: state and counters, modes, why a link is down, FEC, pauses, traffic of VFs.

One dump each, whatever the number of ports. Where one driver ends the dump with its error, every port is asked by
itself until ``RETRY_S`` has passed, and the ports that fail are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import ENODEV, EOPNOTSUPP
from typing import Generic, TypeVar

from nodeagent.host.netlink import ethtool_messages as ethtool
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.netdevs import NetdevCounters, Netdevs, VfTraffic
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function
from nodeagent.sampling.reader import RETRY_S, LeftOut, Plain, Ports, boottime, known

A = TypeVar("A", bound=ethtool.PortAnswer)

_COUNTED = (
    *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes"),
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
    *("rx_multicast", "collisions"),
    *("rx_length_errors", "rx_over_errors", "crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_missed"),
    *("tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors", "tx_heartbeat_errors", "tx_window_errors"),
    *("rx_compressed", "tx_compressed", "rx_nohandler"),
)
"""The first 24 counters of struct rtnl_link_stats64."""


class LinkReader(Plain):
    """RTM_GETLINK. Says which netdev each PF has."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(Source.LINK)
        self._ports = ports
        self._netdevs: Netdevs | None = None

    @property
    def overruns(self) -> int:
        return self._netdevs.overruns if self._netdevs else 0

    def close(self) -> None:
        if self._netdevs is not None:
            self._netdevs.close()
            self._netdevs = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        if self._netdevs is None:
            self._netdevs = Netdevs()
        now = boottime()
        readings = self._netdevs.counters()
        by_name = {one.netdev.name: one for one in readings}
        by_ifindex = {one.netdev.ifindex: one for one in readings}
        before = self._ports.ifindex
        mine: dict[str, NetdevCounters] = {}
        for pf in pfs:
            # A name that has changed is known again by its number until the PCI source knows it too.
            one = by_name.get(pf.netdev or "") or by_ifindex.get(before.get(pf.pci_address, 0))
            if one is not None:
                mine[pf.pci_address] = one
        self._ports.ifindex = {device: one.netdev.ifindex for device, one in mine.items()}
        self._ports.netdev = {device: one.netdev.name for device, one in mine.items()}
        return [Sample(now, device, Source.LINK, link_values(one)) for device, one in mine.items()]


def link_values(one: NetdevCounters) -> dict[str, float]:
    netdev = one.netdev
    values: dict[str, float] = {"admin_up": int(netdev.admin_up), "oper_up": int(one.oper_up)}
    if netdev.carrier is not None:
        values["carrier"] = int(netdev.carrier)
    if netdev.mtu is not None:
        values["mtu_bytes"] = netdev.mtu
    if one.queue_length is not None:
        values["tx_queue_length"] = one.queue_length
    if one.carrier_up is not None:
        values["carrier_up"] = one.carrier_up
    if one.carrier_down is not None:
        values["carrier_down"] = one.carrier_down
    counters = one.counters
    if counters is not None:
        values.update(zip(_COUNTED, counters, strict=True))
    return values


class Asked:
    """The one socket of the ethtool family, opened when it is needed."""

    def __init__(self) -> None:
        self._family: ethtool.EthtoolSocket | None = None

    def family(self) -> ethtool.EthtoolSocket:
        if self._family is None:
            self._family = ethtool.EthtoolSocket()
        return self._family

    @property
    def overruns(self) -> int:
        return self._family.overruns if self._family else 0

    def close(self) -> None:
        if self._family is not None:
            self._family.close()
            self._family = None


class EthtoolReader(Generic[A]):
    """One question of ethtool netlink; ``sample`` makes values and texts of an answer."""

    def __init__(
        self,
        source: Source,
        ports: Ports,
        asked: Asked,
        question: ethtool.PortQuery[A],
        sample: Callable[[A], tuple[dict[str, float], dict[str, str]]],
    ) -> None:
        self.source = source
        self.left_out = LeftOut(source)
        self._ports = ports
        self._asked = asked
        self._question = question
        self._sample = sample
        self._dump_again_at = 0.0

    @property
    def overruns(self) -> int:
        return self._asked.overruns

    def close(self) -> None:
        self._asked.close()

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        device = self._ports.device()
        wanted = {pf.pci_address for pf in pfs}
        found = []
        for answer in self._answers(now):
            whose = device.get(answer.ifindex)
            values, texts = self._sample(answer) if whose in wanted else ({}, {})
            if whose is not None and (values or texts):
                found.append(Sample(now, whose, self.source, values, texts))
        return found

    def _answers(self, now: float) -> list[A]:
        if now >= self._dump_again_at:
            try:
                answers = self._asked.family().all(self._question)
            except NetlinkRefusedError:
                self._dump_again_at = now + RETRY_S
            else:
                for device in list(self.left_out.reasons):
                    self.left_out.take_back(device)
                return answers
        return [
            answer
            for device, ifindex in self._ports.ifindex.items()
            for answer in self._one(device, ifindex, now)
        ]

    def _one(self, device: str, ifindex: int, now: float) -> list[A]:
        if self.left_out.skips(device, now):
            return []
        try:
            answer = self._asked.family().one(self._question, ifindex)
        except NetlinkRefusedError as error:
            if error.code not in (EOPNOTSUPP, ENODEV):
                self.left_out.add(device, str(error), now)
            return []
        self.left_out.take_back(device)
        return [answer]


def ethtool_readers(
    ports: Ports,
) -> tuple[
    EthtoolReader[ethtool.LinkModes],
    EthtoolReader[ethtool.LinkState],
    EthtoolReader[ethtool.FecCounters],
    EthtoolReader[ethtool.PauseCounters],
]:
    asked = Asked()
    return (
        EthtoolReader(Source.MODES, ports, asked, ethtool.MODES, _modes),
        EthtoolReader(Source.STATE, ports, asked, ethtool.STATE, _state),
        EthtoolReader(Source.FEC, ports, asked, ethtool.FEC, _fec),
        EthtoolReader(Source.PAUSE, ports, asked, ethtool.PAUSE, _pause),
    )


_Told = tuple[dict[str, float], dict[str, str]]


def _modes(one: ethtool.LinkModes) -> _Told:
    return known(speed_mbps=one.speed_mbps, lanes=one.lanes, supported_mbps=one.supported_mbps), {}


def _state(one: ethtool.LinkState) -> _Told:
    texts = {"ext_state": one.state, "ext_substate": one.substate}
    return known(ext_down=one.down_events), {name: text for name, text in texts.items() if text is not None}


def _fec(one: ethtool.FecCounters) -> _Told:
    values = known(
        fec_corrected_blocks=one.corrected_blocks,
        fec_uncorrectable_blocks=one.uncorrectable_blocks,
        fec_corrected_bits=one.corrected_bits,
    )
    return values, {} if one.mode is None else {"fec_mode": one.mode}


def _pause(one: ethtool.PauseCounters) -> _Told:
    return known(rx_pause_frames=one.rx_frames, tx_pause_frames=one.tx_frames), {}


class VfReader(Plain):
    """What the PFs count of their VFs' traffic, whoever has these."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(Source.VF)
        self._ports = ports
        self._netdevs: Netdevs | None = None

    @property
    def overruns(self) -> int:
        return self._netdevs.overruns if self._netdevs else 0

    def close(self) -> None:
        if self._netdevs is not None:
            self._netdevs.close()
            self._netdevs = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        if self._netdevs is None:
            self._netdevs = Netdevs()
        found = []
        for pf in pfs:
            now = boottime()
            ifindex = self._ports.ifindex.get(pf.pci_address)
            if not pf.num_vfs or ifindex is None or self.left_out.skips(pf.pci_address, now):
                continue
            try:
                vfs = self._netdevs.vfs(ifindex)
            except NetlinkError as error:
                if not (isinstance(error, NetlinkRefusedError) and error.code == ENODEV):
                    self.left_out.add(pf.pci_address, str(error), now)
                continue
            self.left_out.take_back(pf.pci_address)
            if values := vf_values(vfs):
                texts = {f"vf_{name}/{vf.index}": word for vf in vfs for name, word in vf.setup.items()}
                found.append(Sample(now, pf.pci_address, Source.VF, values, texts))
        return found


def vf_values(vfs: Sequence[VfTraffic]) -> dict[str, float]:
    names = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
    values: dict[str, float] = {}
    for vf in vfs:
        for name in names:
            value = getattr(vf, name)
            if value is not None:
                values[f"vf_{name}/{vf.index}"] = value
    return values
