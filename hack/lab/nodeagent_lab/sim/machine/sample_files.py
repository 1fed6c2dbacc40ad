"""The measured values of the machine in the form of ``/.nodeagent/samples.json``.

PCIe and RDMA values are in sysfs, not here. The form is that of recorded samples (docs/reference/samples.md); the
reader adds the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent_lab.sim.machine.state import Device

PATH = "/.nodeagent/samples.json"
_VF_COUNTERS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped")

_Sample = dict[str, object]


def samples(nics: Iterable[Device]) -> list[_Sample]:
    return [sample for nic in nics if nic.present for sample in _of(nic)]


def _of(nic: Device) -> Iterator[_Sample]:
    part, hardware = nic.nic, nic.hardware
    assert part is not None
    if nic.driver != nic.natural:
        return

    def sample(source: str, values: dict[str, float], texts: dict[str, str]) -> _Sample:
        return {"at": 0, "device": nic.address, "source": source, "values": values, "texts": texts}

    netdev = nic.netdev if nic.netdev is not None and nic.netdev.here else None
    for source, values, texts in hardware.samples(part, carrier=nic.carrier):
        if netdev is not None or source in ("devlink", "kernel"):
            yield sample(source, values, texts)
    if netdev is None:
        return
    state: dict[str, float] = {
        "admin_up": int(netdev.admin_up),
        "oper_up": int(nic.carrier),
        "mtu_bytes": netdev.mtu,
        "carrier_up": netdev.carrier_ups,
        "carrier_down": netdev.carrier_downs,
    }
    if netdev.admin_up:
        state["carrier"] = int(nic.carrier)
    yield sample("link", state | hardware.link, {})
    modes: dict[str, float] = {"supported_mbps": part.speed_mbps}
    if nic.carrier:
        modes |= {"speed_mbps": hardware.speed_mbps or part.speed_mbps, "lanes": 4}
    yield sample("modes", modes, {})
    dark = {} if nic.cable else {name: 0.0 for name in hardware.module if name.startswith("rx_power_watts/")}
    yield sample(
        "module",
        hardware.module | dark,
        {
            "module_type": "OSFP",
            "module_vendor": "NODEAGENT SIM",
            "module_part": "SIM-400G-DR4",
            "module_serial": f"SIM{nic.address.replace(':', '').replace('.', '')}",
            "module_revision": "A1",
            "module_state": "ready" if hardware.module["module_ready"] else "low-power",
        },
    )
    if nic.num_vfs:
        yield sample("vf", {f"vf_{name}/{index}": 0 for index in nic.vfs for name in _VF_COUNTERS}, {})
