"""Samples of the adapter behind a link: driver statistics, RDMA, PCIe, devlink, the transceiver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from errno import EINVAL, ENODEV, EOPNOTSUPP, EPERM

from nodeagent.host import eeprom, pcie_link
from nodeagent.host.ethtool import DriverInfo, Ethtool, EthtoolError
from nodeagent.host.netlink.devlink import Devlink
from nodeagent.host.netlink.message import NetlinkAbsentError, NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.rdma_counters import RdmaCounters
from nodeagent.host.rdma_ports import PORT_COUNTERS, RdmaPorts
from nodeagent.host.sysfs import OpenAttributes, SysfsError, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function, Rdma
from nodeagent.sampling.driver_counters import RDMA, Names, rdma_values
from nodeagent.sampling.port_counters import Asked
from nodeagent.sampling.reader import RETRY_S, FromSysfs, Plain, Ports, boottime, known

log = logging.getLogger(__name__)

_OCTETS = 4
"""The unit of an RDMA port's data counters."""
_HOUR_S = 3600.0


class DriverReader(Plain):
    """The driver's private statistics, and hourly what driver and firmware these are."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(Source.DRIVER)
        self._ports = ports
        self._ethtool: Ethtool | None = None
        self._names = Names()
        self._info: dict[int, tuple[float, DriverInfo]] = {}

    def close(self) -> None:
        if self._ethtool is not None:
            self._ethtool.close()
            self._ethtool = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        if self._ethtool is None:
            self._ethtool = Ethtool()
        for gone in self._info.keys() - set(self._ports.ifindex.values()):
            del self._info[gone]
            self._ethtool.forget(gone)
        found = []
        for pf in pfs:
            now, device = boottime(), pf.pci_address
            netdev, ifindex = self._ports.netdev.get(device), self._ports.ifindex.get(device)
            if netdev is None or ifindex is None or self.left_out.skips(device, now):
                continue
            try:
                values = self._names.translate(self._ethtool.statistics(netdev, ifindex))
                texts = self._texts(netdev, ifindex, now)
            except EthtoolError as error:
                if error.code not in (EOPNOTSUPP, ENODEV):
                    self.left_out.add(device, str(error), now)
                continue
            self.left_out.take_back(device)
            found.append(Sample(now, device, Source.DRIVER, values, texts))
        return found

    def _texts(self, netdev: str, ifindex: int, now: float) -> dict[str, str]:
        assert self._ethtool is not None
        until, info = self._info.get(ifindex, (0.0, None))
        if info is None or now >= until:
            info = self._ethtool.info(netdev)
            self._info[ifindex] = (now + _HOUR_S, info)
        texts = {"driver": info.driver, "firmware": info.firmware}
        return {name: text for name, text in texts.items() if text}


class RdmaReader(FromSysfs):
    """State, GIDs and traffic from sysfs; hardware counters over netlink where that is this machine's own."""

    def __init__(self, tree: Tree, *, live: bool) -> None:
        super().__init__(Source.RDMA, OpenAttributes(tree))
        self.ports = RdmaPorts(self.attributes)
        self._live = live
        self._counters: RdmaCounters | None = None
        self._without_until = 0.0
        self._gids_again_at = 0.0
        self._devices: frozenset[str] = frozenset()

    @property
    def overruns(self) -> int:
        return self._counters.overruns if self._counters else 0

    def close(self) -> None:
        super().close()
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        mine = [(pf, pf.rdma) for pf in pfs if pf.rdma is not None]
        if not mine:
            return []
        devices = frozenset(rdma.device for _, rdma in mine)
        for gone in self._devices - devices:
            self.ports.forget(gone)
        self._devices = devices
        indexes = self._indexes(now)
        again = now >= self._gids_again_at
        if again:
            self._gids_again_at = now + RETRY_S
        found = []
        for pf, rdma in mine:
            if self.left_out.skips(pf.pci_address, now):
                continue
            before = self.ports.refused.keys() | ()
            try:
                found.append(self._sample(pf.pci_address, rdma, indexes.get(rdma.device), again=again))
            except (SysfsError, NetlinkError) as error:
                self.left_out.add(pf.pci_address, str(error), now)
                continue
            self.left_out.take_back(pf.pci_address)
            for path in self.ports.refused.keys() - before:
                self.left_out.count += 1
                log.warning(
                    "A counter is not read again. device=%s reason=%r",
                    pf.pci_address,
                    self.ports.refused[path],
                )
        return [sample for sample in found if sample.values]

    def _sample(self, device: str, rdma: Rdma, index: int | None, *, again: bool) -> Sample:
        now = boottime()
        state = self.ports.state(rdma.device)
        traffic = self.ports.counters(rdma.device, PORT_COUNTERS)
        data = {name: value * _OCTETS for name, value in traffic.items()}
        ethernet = state.link_layer == "Ethernet"
        values = known(
            rdma_port_active=None if state.active is None else int(state.active),
            roce_v2_gids=self.ports.roce_v2_gids(rdma.device, again=again) if ethernet else None,
            rdma_rx_bytes=data.get("port_rcv_data"),
            rdma_tx_bytes=data.get("port_xmit_data"),
        )
        values |= rdma_values(self._hardware(rdma.device, index))
        texts = {
            "rdma_device": rdma.device,
            "rdma_link_layer": state.link_layer,
            "rdma_phys_state": state.phys_state,
            "node_guid": state.node_guid,
        }
        if state.active is None:
            return Sample(now, device, Source.RDMA)  # its files are in another network namespace
        return Sample(now, device, Source.RDMA, values, {name: text for name, text in texts.items() if text})

    def _hardware(self, device: str, index: int | None) -> dict[str, int]:
        if self._counters is not None and index is not None:
            try:
                return self._counters.read(index)
            except NetlinkRefusedError as error:
                if error.code not in (EOPNOTSUPP, EINVAL, ENODEV):
                    raise
        return self.ports.counters(device, tuple(RDMA), "hw_counters")

    def _indexes(self, now: float) -> dict[str, int]:
        """By name; none where the counters are to be read in files."""
        if not self._live or now < self._without_until:
            return {}
        try:
            if self._counters is None:
                self._counters = RdmaCounters()
            return self._counters.devices()
        except NetlinkError:
            self._without_until = now + RETRY_S
            return {}


class PcieReader(FromSysfs):
    """Speed and width of the link, and what AER counted."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(Source.PCIE, OpenAttributes(tree))

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        found = []
        for pf in pfs:
            now, device = boottime(), pf.pci_address
            if self.left_out.skips(device, now):
                continue
            try:
                reading = pcie_link.read(self.attributes, pf.pci_path)
            except SysfsError as error:
                self.left_out.add(device, str(error), now)
                continue
            self.left_out.take_back(device)
            values = known(
                pcie_gts=reading.gts,
                pcie_width=reading.width,
                pcie_expected_gts=reading.expected_gts,
                pcie_expected_width=reading.expected_width,
            )
            for (severity, name), count in reading.errors.items():
                values[f"aer_{severity}/{name}"] = count
            if values:
                found.append(Sample(now, device, Source.PCIE, values))
        return found


class DevlinkReader(Plain):
    """Health reporters of the function itself; those of its ports have names of their own."""

    def __init__(self, family: Callable[[], Devlink] = Devlink) -> None:
        super().__init__(Source.DEVLINK)
        self._family = family
        self._devlink: Devlink | None = None
        self._absent_until = 0.0

    @property
    def overruns(self) -> int:
        return self._devlink.overruns if self._devlink else 0

    def close(self) -> None:
        if self._devlink is not None:
            self._devlink.close()
            self._devlink = None

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        now = boottime()
        if now < self._absent_until:
            return []
        try:
            self._devlink = self._devlink or self._family()
        except NetlinkAbsentError:
            self._absent_until = now + RETRY_S
            return []
        wanted = {pf.pci_address for pf in pfs}
        found: dict[str, dict[str, float]] = {}
        for one in self._devlink.reporters():
            if one.pci_address in wanted and one.name:
                values = found.setdefault(one.pci_address, {})
                failing = values.get(f"devlink_error/{one.name}", 0)
                values[f"devlink_error/{one.name}"] = max(failing, int(one.failing))
                for name, count in (("devlink_errors", one.errors), ("devlink_recoveries", one.recoveries)):
                    values[f"{name}/{one.name}"] = values.get(f"{name}/{one.name}", 0) + count
        return [Sample(now, device, Source.DEVLINK, values) for device, values in found.items()]


class ModuleReader(Plain):
    """The transceiver's own measurements, over a slow bus. Without CAP_NET_ADMIN there are none."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(Source.MODULE)
        self._ports = ports
        self._asked = Asked()

    @property
    def overruns(self) -> int:
        return self._asked.overruns

    def close(self) -> None:
        self._asked.close()

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        read_at: dict[str, float] = {}
        modules: dict[str, eeprom.Module] = {}
        for pf in pfs:
            now, device = boottime(), pf.pci_address
            ifindex = self._ports.ifindex.get(device)
            if ifindex is None or self.left_out.skips(device, now):
                continue
            try:
                module = self._module(ifindex)
            except NetlinkRefusedError as error:
                if error.code == EPERM:
                    raise NetlinkError(
                        "the EEPROMs of transceivers can be read with CAP_NET_ADMIN alone"
                    ) from error
                if error.code not in (EOPNOTSUPP, ENODEV):
                    self.left_out.add(device, str(error), now)
                continue
            except (NetlinkError, eeprom.EepromError) as error:
                self.left_out.add(device, str(error), now)
                continue
            self.left_out.take_back(device)
            read_at[device], modules[device] = now, module
        return [
            Sample(read_at[device], device, Source.MODULE, *module_values(module))
            for device, module in own_lanes(modules).items()
        ]

    def _module(self, ifindex: int) -> eeprom.Module:
        """Pages beyond the first that cannot be read are missing; without the first there is nothing."""
        image, tried = eeprom.Image(), set[eeprom.Area]()
        wanted: tuple[eeprom.Area, ...] = (eeprom.IDENTIFIER,)
        while wanted:
            for area in wanted:
                tried.add(area)
                try:
                    data = self._asked.family().eeprom(ifindex, area.i2c, area.page, area.start, area.length)
                except NetlinkRefusedError:
                    if area.page == 0 and area.i2c == eeprom.ADDRESS:
                        raise
                    continue
                image.put(area, data)
            wanted = tuple(area for area in eeprom.missing(image) if area not in tried)
        return eeprom.decode(image)


TWIN_LANES = 8
"""Of an OSFP with two ports, as NVIDIA's DGX H100 has them: each port is a PF of its own with half of the lanes."""


def own_lanes(modules: Mapping[str, eeprom.Module]) -> dict[str, eeprom.Module]:
    """Of each device the lanes that are its own, from 0, where two tell of one and the same module: another port's
    fiber that is not plugged in leaves this one's light alone. The first half is taken to be that of the lower PCI
    address."""
    twins: dict[tuple[str, str, str], list[str]] = {}
    for device, module in sorted(modules.items()):
        if module.serial and max(module.lanes, default=0) == TWIN_LANES - 1:
            twins.setdefault((module.vendor, module.part, module.serial), []).append(device)
    found = dict(modules)
    half = TWIN_LANES // 2
    for devices in twins.values():
        for place, device in enumerate(devices if len(devices) == 2 else ()):
            lanes = {
                n - place * half: lane for n, lane in modules[device].lanes.items() if n // half == place
            }
            found[device] = replace(modules[device], lanes=lanes)
    return found


def module_values(module: eeprom.Module) -> tuple[dict[str, float], dict[str, str]]:
    values = known(module_celsius=module.celsius, module_volts=module.volts)
    if module.state is not None:
        values["module_ready"] = int(module.state == "ready")
    for number, lane in module.lanes.items():
        for name, value in (
            ("rx_power_watts", lane.rx_power),
            ("tx_power_watts", lane.tx_power),
            ("bias_amperes", lane.bias),
        ):
            if value is not None:
                values[f"{name}/{number}"] = value
    words = {
        "celsius": "module_celsius",
        "volts": "module_volts",
        "rx_power": "rx_power_watts",
        "tx_power": "tx_power_watts",
        "bias": "bias_amperes",
    }
    for name, limits in module.limits.items():
        for level in ("high_alarm", "high_warning", "low_warning", "low_alarm"):
            values[f"{words[name]}_{level}"] = getattr(limits, level)
    texts = {
        "module_type": module.kind,
        "module_vendor": module.vendor,
        "module_part": module.part,
        "module_serial": module.serial,
        "module_revision": module.revision,
        "module_state": module.state,
    }
    return values, {name: text for name, text in texts.items() if text}
