"""The reader of transceivers: temperature, voltage, optical power, bias current, their limits, and names.

The EEPROM is read by the netdev. Of a NIC without one the driver may have a hardware monitor (hwmon) with the
temperature of the module: that of mlx5 has the labels ``asic`` and ``Module0`` (its hwmon.c, 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from errno import ENODEV, EOPNOTSUPP, EPERM

from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.eeprom import IDENTIFIER, decode, missing
from nodeagent.host.eeprom.image import ADDRESS, Area, EepromError, Image, Module
from nodeagent.host.netlink import ethtool_messages as ethtool
from nodeagent.host.netlink.message import NetlinkError, NetlinkForbiddenError, NetlinkRefusedError
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import LIMIT_LEVELS
from nodeagent.sampling.reader import LazySocket, NetlinkReader, PfNetdevs, measured


class TransceiverReader(NetlinkReader[ethtool.EthtoolSocket]):
    """Reads the EEPROM over a slow bus. The kernel requires CAP_NET_ADMIN."""

    def __init__(self, tree: Tree, pf_netdevs: PfNetdevs) -> None:
        super().__init__(Source.MODULE, LazySocket(ethtool.EthtoolSocket))
        self._tree, self._pf_netdevs = tree, pf_netdevs

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        read_at: dict[str, float] = {}
        modules: dict[str, Module] = {}
        for pf in pfs:
            now, device = boottime(), pf.pci_address
            ifindex = self._pf_netdevs.ifindex.get(device)
            if ifindex is None or self.skipped.skips(device, now):
                continue
            try:
                module = self._module(ifindex)
            except NetlinkRefusedError as error:
                if error.code == EPERM:
                    raise NetlinkForbiddenError(
                        "the EEPROMs of transceivers can be read with CAP_NET_ADMIN alone"
                    ) from error
                if error.code not in (EOPNOTSUPP, ENODEV):
                    self.skipped.add(device, str(error), now)
                continue
            except (NetlinkError, EepromError) as error:
                self.skipped.add(device, str(error), now)
                continue
            self.skipped.remove(device)
            read_at[device], modules[device] = now, module
        bare = [pf for pf in pfs if pf.pci_address not in self._pf_netdevs.ifindex]
        return [
            *(
                Sample(read_at[device], device, Source.MODULE, *module_values(module))
                for device, module in own_lanes(modules).items()
            ),
            *self.read_each(bare, self._monitored, SysfsError),
        ]

    def _monitored(self, pf: Function, now: float) -> Sample | None:
        """The temperature of the module and its limit, by the hardware monitor of the driver."""
        folder = f"/sys/bus/pci/devices/{pf.pci_address}/hwmon"
        for monitor in self._tree.names(folder):
            for name in self._tree.names(f"{folder}/{monitor}"):
                sensor = f"{folder}/{monitor}/{name.removesuffix('_label')}"
                if name.endswith("_label") and (self._tree.text(f"{sensor}_label") or "").startswith(
                    "Module"
                ):
                    celsius, limit = (self._tree.integer(f"{sensor}_{end}") for end in ("input", "crit"))
                    values = measured(
                        module_celsius=None if celsius is None else celsius / 1000,
                        module_celsius_high_warning=limit / 1000 if limit else None,
                    )
                    return Sample(now, pf.pci_address, Source.MODULE, values)
        return None

    def _module(self, ifindex: int) -> Module:
        """Read the first page and the pages that it announces. Raises if the first page cannot be read."""
        image, tried = Image(), set[Area]()
        wanted: tuple[Area, ...] = (IDENTIFIER,)
        while wanted:
            for area in wanted:
                tried.add(area)
                try:
                    data = self._socket.get().eeprom(ifindex, area.i2c, area.page, area.start, area.length)
                except NetlinkRefusedError:
                    if area.page == 0 and area.i2c == ADDRESS:
                        raise
                    continue
                image.put(area, data)
            wanted = tuple(area for area in missing(image) if area not in tried)
        return decode(image)


TWIN_LANES = 8
"""Lanes of an OSFP with two ports, as in NVIDIA's DGX H100: each port is a PF with half of the lanes."""


def own_lanes(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Give each PF its own lanes, counted from 0, if two PFs report one module.

    Otherwise an unplugged fiber of one port would count against the other. The PF with the lower PCI address gets
    the first half.
    """
    twins: dict[tuple[str, str, str], list[str]] = {}
    for device, module in sorted(modules.items()):
        if module.serial and max(module.lanes, default=0) == TWIN_LANES - 1:
            twins.setdefault((module.vendor, module.part, module.serial), []).append(device)
    divided = dict(modules)
    half = TWIN_LANES // 2
    for devices in twins.values():
        for place, device in enumerate(devices if len(devices) == 2 else ()):
            lanes = {
                number - place * half: lane
                for number, lane in modules[device].lanes.items()
                if number // half == place
            }
            divided[device] = replace(modules[device], lanes=lanes)
    return divided


def module_values(module: Module) -> tuple[dict[str, float], dict[str, str]]:
    values = measured(module_celsius=module.celsius, module_volts=module.volts)
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
    sensors = {
        "celsius": "module_celsius",
        "volts": "module_volts",
        "rx_power": "rx_power_watts",
        "tx_power": "tx_power_watts",
        "bias": "bias_amperes",
    }
    for name, limits in module.limits.items():
        for level in LIMIT_LEVELS:
            values[f"{sensors[name]}_{level}"] = getattr(limits, level)
    texts = {
        "module_type": module.kind,
        "module_vendor": module.vendor,
        "module_part": module.part,
        "module_serial": module.serial,
        "module_revision": module.revision,
        "module_state": module.state,
    }
    return values, {name: text for name, text in texts.items() if text}
