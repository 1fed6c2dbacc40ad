"""Readers of the adapter behind a link: driver statistics, RDMA, PCIe and devlink.

The names of statistics and RDMA counters are those of each driver: ``driver_names.py``. Others are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from errno import EINVAL, ENODEV, EOPNOTSUPP
from functools import partial

from nodeagent.facts.model import Function, Rdma
from nodeagent.host.clock import boottime
from nodeagent.host.ethtool import DriverInfo, Ethtool, EthtoolError
from nodeagent.host.netlink.devlink import Devlink
from nodeagent.host.netlink.message import NetlinkAbsentError, NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.rdma_counters import RdmaCounters
from nodeagent.host.pcie_link import PcieLinks
from nodeagent.host.rdma_ports import INFINIBAND, INFINIBAND_COUNTERS, PORT_COUNTERS, RdmaPorts
from nodeagent.host.sysfs import OpenAttributes, SysfsError, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.driver_names import DriverNames, driver_names_of, driver_values, rdma_values
from nodeagent.sampling.reader import (
    RETRY_S,
    LazySocket,
    NetlinkReader,
    PfNetdevs,
    SampleReader,
    SysfsReader,
    measured,
)

log = logging.getLogger(__name__)

_OCTETS = 4
"""The unit of an RDMA port's data counters."""
_HOUR_S = 3600.0


INFINIBAND_NAMES = {
    "symbol_error": "ib_symbol_errors",
    "link_error_recovery": "ib_recoveries",
    "link_downed": "ib_link_downed",
    "port_rcv_errors": "ib_receive_errors",
    "port_rcv_remote_physical_errors": "ib_remote_physical_errors",
    "port_rcv_switch_relay_errors": "ib_switch_relay_errors",
    "port_xmit_discards": "ib_transmit_discards",
    "port_xmit_constraint_errors": "ib_transmit_constraint_errors",
    "port_rcv_constraint_errors": "ib_receive_constraint_errors",
    "local_link_integrity_errors": "ib_integrity_errors",
    "excessive_buffer_overrun_errors": "ib_buffer_overruns",
    "VL15_dropped": "ib_vl15_dropped",
    "port_xmit_wait": "ib_transmit_waits",
}
"""By the name of its file in ``counters``: the sample name of each counter of an InfiniBand port."""


class DriverReader(SampleReader):
    """The driver's private statistics, and once an hour the driver's name and the firmware's version."""

    def __init__(self, pf_netdevs: PfNetdevs) -> None:
        super().__init__(Source.DRIVER)
        self._pf_netdevs = pf_netdevs
        self._ethtool: Ethtool | None = None
        self._info: dict[int, tuple[float, DriverInfo]] = {}

    def close(self) -> None:
        if self._ethtool is not None:
            self._ethtool.close()
            self._ethtool = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        if self._ethtool is None:
            self._ethtool = Ethtool()
        for ifindex in self._info.keys() - set(self._pf_netdevs.ifindex.values()):
            del self._info[ifindex]
            self._ethtool.forget(ifindex)
        with_netdev = [pf for pf in pfs if pf.pci_address in self._pf_netdevs.ifindex]
        return self.read_each(with_netdev, self._read_pf, EthtoolError, frozenset((EOPNOTSUPP, ENODEV)))

    def _read_pf(self, pf: Function, now: float) -> Sample | None:
        assert self._ethtool is not None
        device = pf.pci_address
        netdev, ifindex = self._pf_netdevs.name.get(device), self._pf_netdevs.ifindex.get(device)
        if netdev is None or ifindex is None:
            return None  # the link reader, in its own thread, no longer lists the PF
        values = driver_values(pf.driver, self._ethtool.statistics(netdev, ifindex))
        return Sample(now, device, Source.DRIVER, values, self._texts(netdev, ifindex, now))

    def _texts(self, netdev: str, ifindex: int, now: float) -> dict[str, str]:
        assert self._ethtool is not None
        until, info = self._info.get(ifindex, (0.0, None))
        if info is None or now >= until:
            info = self._ethtool.info(netdev)
            self._info[ifindex] = (now + _HOUR_S, info)
        texts = {"driver": info.driver, "firmware": info.firmware}
        return {name: text for name, text in texts.items() if text}


class RdmaReader(SysfsReader):
    """State, GIDs and traffic from sysfs; hardware counters over netlink if ``live``, that is, of this machine."""

    def __init__(self, tree: Tree, *, live: bool, connect: Callable[[], RdmaCounters] = RdmaCounters) -> None:
        super().__init__(Source.RDMA, OpenAttributes(tree))
        self.ports = RdmaPorts(self.attributes)
        self._live = live
        self._socket = LazySocket(connect)
        self._netlink_again_at = 0.0
        self._gids_again_at = 0.0
        self._devices: frozenset[str] = frozenset()

    @property
    def overruns(self) -> int:
        return self._socket.overruns

    def close(self) -> None:
        super().close()
        self._socket.close()

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        rdma_pfs = [(pf, pf.rdma) for pf in pfs if pf.rdma is not None]
        if not rdma_pfs:
            return []
        devices = frozenset(rdma.device for _, rdma in rdma_pfs)
        for device in self._devices - devices:
            self.ports.forget(device)
        self._devices = devices
        indexes = self._indexes(now)
        again = now >= self._gids_again_at
        if again:
            self._gids_again_at = now + RETRY_S
        samples = []
        for pf, rdma in rdma_pfs:
            if self.skipped.skips(pf.pci_address, now):
                continue
            before = self.ports.refused.keys() | ()
            try:
                samples.append(self._sample(pf, rdma, indexes.get(rdma.device), again=again))
            except (SysfsError, NetlinkError) as error:
                self.skipped.add(pf.pci_address, str(error), now)
                continue
            self.skipped.remove(pf.pci_address)
            for path in self.ports.refused.keys() - before:
                self.skipped.count += 1
                log.warning(
                    "An RDMA counter failed and is not read again. device=%s reason=%r",
                    pf.pci_address,
                    self.ports.refused[path],
                )
        return [sample for sample in samples if sample.values]

    def _sample(self, pf: Function, rdma: Rdma, index: int | None, *, again: bool) -> Sample:
        now = boottime()
        state = self.ports.state(rdma.device)
        traffic = self.ports.counters(rdma.device, PORT_COUNTERS)
        data = {name: value * _OCTETS for name, value in traffic.items()}
        ethernet = state.link_layer == "Ethernet"
        values = measured(
            rdma_port_active=None if state.active is None else int(state.active),
            roce_v2_gids=self.ports.roce_v2_gids(rdma.device, again=again) if ethernet else None,
            ib_state=state.subnet.get("state"),
            ib_physical_state=state.subnet.get("phys_state"),
            ib_lid=state.subnet.get("lid"),
            ib_sm_lid=state.subnet.get("sm_lid"),
            rdma_rx_bytes=data.get("port_rcv_data"),
            rdma_tx_bytes=data.get("port_xmit_data"),
        )
        if state.link_layer == INFINIBAND:  # of an Ethernet port the driver's statistics count
            errors = self.ports.counters(rdma.device, INFINIBAND_COUNTERS)
            values |= {INFINIBAND_NAMES[name]: count for name, count in errors.items()}
        values |= rdma_values(pf.driver, self._hardware(rdma.device, index, driver_names_of(pf.driver)))
        texts = {
            "rdma_device": rdma.device,
            "rdma_link_layer": state.link_layer,
            "rdma_phys_state": state.phys_state,
            "node_guid": state.node_guid,
        }
        return Sample(
            now, pf.pci_address, Source.RDMA, values, {name: text for name, text in texts.items() if text}
        )

    def _hardware(self, device: str, index: int | None, names: DriverNames) -> dict[str, int]:
        if index is not None:
            try:
                return self._socket.get().read(index)
            except NetlinkRefusedError as error:
                if error.code not in (EOPNOTSUPP, EINVAL, ENODEV):
                    raise
        return self.ports.counters(device, tuple(names.rdma), "hw_counters")

    def _indexes(self, now: float) -> dict[str, int]:
        """The netlink index of each RDMA device; empty if the counters must be read from files."""
        if not self._live or now < self._netlink_again_at:
            return {}
        try:
            return self._socket.get().devices()
        except NetlinkError:
            self._netlink_again_at = now + RETRY_S
            return {}


class PcieReader(SysfsReader):
    """Speed and width of the PCIe link, and AER errors."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(Source.PCIE, OpenAttributes(tree))

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        return self.read_each(pfs, partial(_read_pcie, PcieLinks(self.attributes)), SysfsError)


def _read_pcie(links: PcieLinks, pf: Function, now: float) -> Sample | None:
    reading = links.read(pf.pci_path)
    values = measured(
        pcie_gts=reading.gts,
        pcie_width=reading.width,
        pcie_expected_gts=reading.expected_gts,
        pcie_expected_width=reading.expected_width,
    )
    values |= reading.errors
    return Sample(now, pf.pci_address, Source.PCIE, values) if values else None


class DevlinkReader(NetlinkReader[Devlink]):
    """Health reporters of the function and of its ports, by the reporter's name."""

    def __init__(self, connect: Callable[[], Devlink] = Devlink) -> None:
        super().__init__(Source.DEVLINK, LazySocket(connect))
        self._absent_until = 0.0

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        if now < self._absent_until:
            return []
        try:
            devlink = self._socket.get()
        except NetlinkAbsentError:
            self._absent_until = now + RETRY_S
            return []
        wanted = {pf.pci_address for pf in pfs}
        values_of: dict[str, dict[str, float]] = {}
        for reporter in devlink.reporters():
            name = reporter.name
            if reporter.pci_address in wanted and name:
                values = values_of.setdefault(reporter.pci_address, {})
                failing = values.get(f"devlink_error/{name}", 0)
                values[f"devlink_error/{name}"] = max(failing, int(reporter.failing))
                for counter, count in (
                    ("devlink_errors", reporter.errors),
                    ("devlink_recoveries", reporter.recoveries),
                ):
                    values[f"{counter}/{name}"] = values.get(f"{counter}/{name}", 0) + count
        return [Sample(now, device, Source.DEVLINK, values) for device, values in values_of.items()]
