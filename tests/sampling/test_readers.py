"""Adapters as the readers sample them, where no such hardware is here: the families answer from memory."""

from __future__ import annotations

from dataclasses import replace
from errno import EINVAL, EIO, ENODEV, EOPNOTSUPP, EPERM
from types import SimpleNamespace

import pytest
from msgspec import structs

from nodeagent.facts.model import Function, Rdma
from nodeagent.host.eeprom.image import ADDRESS, Lane, Medium, Module
from nodeagent.host.netlink.devlink import HealthReporter
from nodeagent.host.netlink.message import NetlinkAbsentError, NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.netdevs import VfTraffic
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Source
from nodeagent.sampling.adapter_readers import DevlinkReader, RdmaReader
from nodeagent.sampling.link_readers import EthtoolReader, VfReader
from nodeagent.sampling.reader import LazySocket, PfNetdevs
from nodeagent.sampling.transceiver_reader import TransceiverReader, module_values, own_lanes
from tests.host.test_adapter import PF, PORT, machine
from tests.host.test_eeprom import Pages, cmis_image

B = "0000:19:00.0"


def pf(device: str = PF, rdma: str | None = None, num_vfs: int | None = None) -> Function:
    return Function(
        *(device, "15b3", "1021", "mlx5_core", "eth0", "ethernet"),
        *(Rdma(rdma) if rdma else None, None, None, None, ("pci0000:15", "0000:15:01.0", device)),
        num_vfs=num_vfs,
    )


# --- transceivers ---------------------------------------------------------------------------------------


class Modules:
    """A socket with an EEPROM, or an error number, per ifindex. ``refused`` are pages that fail."""

    overruns = 0

    def __init__(self, **modules: Pages | int) -> None:
        self.modules = {int(index[1:]): module for index, module in modules.items()}
        self.refused: set[int] = set()
        self.reads = 0

    def get(self) -> Modules:
        return self

    def close(self) -> None:
        pass

    def eeprom(self, ifindex: int, i2c: int, page: int, start: int, length: int) -> bytes:
        self.reads += 1
        module = self.modules[ifindex]
        if isinstance(module, int):
            raise NetlinkRefusedError("ethtool", module)
        if page in self.refused:
            raise NetlinkRefusedError("ethtool", EIO)
        assert i2c == ADDRESS
        return bytes(module.get((i2c, page), bytearray(256))[start : start + length])


def modules(**by_index: Pages | int) -> tuple[TransceiverReader, Modules]:
    reader = TransceiverReader(Tree("/nowhere"), PfNetdevs({PF: 1, B: 2}))
    answers = Modules(**by_index)
    reader._socket = answers
    return reader, answers


def test_a_sample_of_a_transceiver_has_its_limits():
    reader, answers = modules(_1=cmis_image(), _2=EOPNOTSUPP)
    (sample,) = reader.read([pf(), pf(B)])
    assert (sample.device, sample.source, sample.texts["module_serial"]) == (PF, Source.MODULE, "SN0001")
    assert sample.values["module_ready"] == 1
    assert sample.values["rx_power_watts/1"] == 0
    assert sample.values["rx_power_watts_low_alarm"] == pytest.approx(0.0001)
    assert answers.reads < 12
    assert not reader.skipped.reasons, "a port without a module is no failure"


def test_a_page_that_fails_leaves_out_only_its_own_values():
    reader, answers = modules(_1=cmis_image(), _2=EOPNOTSUPP)
    answers.refused = {2, 0x11}
    (sample,) = reader.read([pf()])
    assert sample.values["module_celsius"] == 45.5
    assert not [name for name in sample.values if "power" in name]


def test_a_module_that_cannot_be_read_is_skipped_and_the_others_are_read():
    reader, answers = modules(_1=cmis_image(), _2=EIO)
    for _ in range(2):
        assert [sample.device for sample in reader.read([pf(), pf(B)])] == [PF]
    assert list(reader.skipped.reasons) == [B]
    pages = cmis_image()
    pages[ADDRESS, 0][0] = 0x99
    answers.modules[1] = pages
    assert reader.read([pf(), pf(B)]) == []
    assert "no known kind" in reader.skipped.reasons[PF]


def test_without_the_capability_the_reader_stops_at_the_first_module():
    reader, answers = modules(_1=EPERM, _2=EPERM)
    with pytest.raises(NetlinkError, match="CAP_NET_ADMIN"):
        reader.read([pf(), pf(B)])
    assert answers.reads == 1


# --- VFs, devlink ---------------------------------------------------------------------------------------


class Counters:
    overruns = 0

    def __init__(self, answers: dict[int, tuple[VfTraffic, ...] | int]) -> None:
        self.answers = answers

    def vfs(self, ifindex: int) -> tuple[VfTraffic, ...]:
        answer = self.answers[ifindex]
        if isinstance(answer, int):
            raise NetlinkRefusedError("links", answer)
        return answer


def test_only_pfs_with_vfs_are_queried_for_vf_traffic():
    reader = VfReader(PfNetdevs({PF: 1, B: 2, "c": 3, "d": 4}))
    answers = {1: (VfTraffic(0, 1, 2, 3, 4, 5, None, {"trust": "on"}),), 3: EIO, 4: ENODEV}
    reader._socket = LazySocket(lambda: Counters(answers))
    pfs = [pf(num_vfs=1), pf(B, num_vfs=0), pf("c", num_vfs=8), pf("d", num_vfs=1)]
    (sample,) = reader.read(pfs)
    assert sample.values == {
        "vf_rx_packets/0": 1,
        "vf_tx_packets/0": 2,
        "vf_rx_bytes/0": 3,
        "vf_tx_bytes/0": 4,
        "vf_rx_dropped/0": 5,
    }
    assert sample.texts == {"vf_trust/0": "on"}
    assert list(reader.skipped.reasons) == ["c"], "one that has gone is no failure"


class Reporters:
    overruns = 0

    def reporters(self) -> list[HealthReporter]:
        return [
            HealthReporter(PF, None, "fw", False, 0, 0),
            HealthReporter(PF, None, "tx", False, 2, 2),
            HealthReporter(PF, 1, "tx", True, 3, 1),
            HealthReporter(None, None, "fw", True, 9, 0),
            HealthReporter("0000:ff:00.0", None, "fw", True, 9, 0),
        ]


def test_reporters_of_a_function_and_of_its_ports_are_added_by_name():
    reader = DevlinkReader(Reporters)
    (sample,) = reader.read([pf()])
    assert sample.device == PF
    assert sample.values == {
        **{"devlink_error/fw": 0, "devlink_errors/fw": 0, "devlink_recoveries/fw": 0},
        **{"devlink_error/tx": 1, "devlink_errors/tx": 5, "devlink_recoveries/tx": 3},
    }


def test_a_kernel_without_devlink_is_no_failure():
    asked = []

    def absent():
        asked.append(1)
        raise NetlinkAbsentError("this kernel has no netlink family devlink")

    reader = DevlinkReader(absent)
    assert reader.read([pf()]) == reader.read([pf()]) == []
    assert len(asked) == 1


# --- RDMA -----------------------------------------------------------------------------------------------


class RdmaFamily:
    overruns = 0
    code = 0

    def devices(self) -> dict[str, int]:
        return {"mlx5_0": 4}

    def read(self, index: int) -> dict[str, int]:
        assert index == 4
        if self.code:
            raise NetlinkRefusedError("RDMA counters", self.code)
        return {"out_of_sequence": 7, "lifespan": 10}

    def close(self) -> None:
        pass


def test_hardware_counters_come_over_netlink_or_else_from_files(tmp_path):
    made = machine(tmp_path, link_layer="Ethernet", phys_state="5: LinkUp")
    made.draw(f"{PORT}/ports/1/counters/port_rcv_data", "25")
    made.draw(f"{PORT}/ports/1/hw_counters/out_of_sequence", "8")
    family = RdmaFamily()
    reader = RdmaReader(Tree(made.root), live=True, connect=lambda: family)
    (sample,) = reader.read([pf(rdma="mlx5_0"), pf(B)])
    assert sample.values == {"rdma_port_active": 1, "rdma_rx_bytes": 100, "rdma_out_of_sequence": 7}
    assert sample.texts["rdma_device"] == "mlx5_0"
    for code in (EOPNOTSUPP, EINVAL):
        family.code = code
        (sample,) = reader.read([pf(rdma="mlx5_0")])
        assert sample.values["rdma_out_of_sequence"] == 8
    family.code = EIO
    assert reader.read([pf(rdma="mlx5_0")]) == []
    assert list(reader.skipped.reasons) == [PF]


def test_an_rdma_device_in_the_network_namespace_of_a_pod_has_no_sample(tmp_path):
    made = machine(tmp_path)
    reader = RdmaReader(Tree(made.root), live=False)
    assert reader.read([pf(rdma="mlx5_7")]) == []
    assert not reader.skipped.reasons


@pytest.mark.parametrize("text", ["N/A (no PMA)", "invalid", ""])
def test_a_device_without_counters_takes_nothing_from_the_others(tmp_path, text):
    made = machine(tmp_path, link_layer="InfiniBand")
    made.draw(f"{PORT}/ports/1/counters/link_downed", "3")
    made.draw("/sys/class/infiniband/irdma0/ports/1/state", "4: ACTIVE")
    made.draw("/sys/class/infiniband/i40iw0/ports/1/counters/link_downed", text)
    devices = {"0000:16:00.0": "irdma0", "0000:16:00.1": "i40iw0", PF: "mlx5_0"}
    reader = RdmaReader(Tree(made.root), live=False)
    samples = reader.read([pf(address, rdma) for address, rdma in devices.items()])
    lost = {sample.device: sample.values.get("ib_link_downed") for sample in samples}
    assert lost.pop(PF) == 3
    assert set(lost.values()) <= {None}
    assert not reader.skipped.reasons


def test_a_bnxt_re_device_without_the_folder_of_counters_has_its_hardware_counters(tmp_path):
    """prometheus/procfs 687: the folder is absent, and the collector gives nothing of any device."""
    made = machine(tmp_path, link_layer="InfiniBand")
    made.draw(f"{PORT}/ports/1/counters/link_downed", "3")
    port = "/sys/class/infiniband/bnxt_re0/ports/1"
    made.draw(f"{port}/link_layer", "Ethernet")
    made.draw(f"{port}/hw_counters/to_retransmits", "8")
    other = structs.replace(pf("0000:16:00.0", "bnxt_re0"), driver="bnxt_en")
    found = RdmaReader(Tree(made.root), live=False).read([other, pf(rdma="mlx5_0")])
    values = {sample.device: sample.values for sample in found}
    assert values["0000:16:00.0"]["rdma_ack_timeouts"] == 8
    assert values[PF]["ib_link_downed"] == 3


# --- a module that two ports share --------------------------------------------------------------------------


def test_a_lane_has_only_what_the_module_measures():
    module = replace(osfp(), lanes={0: Lane(rx_power=1e-3), 1: Lane(bias=0.01)})
    values, _ = module_values(module)
    assert values == {"rx_power_watts/0": 1e-3, "bias_amperes/1": 0.01}


def test_an_answer_of_ethtool_with_texts_alone_is_a_sample():
    class Socket:
        def get(self):
            return self

        def all(self, _query):
            return [SimpleNamespace(ifindex=7)]

    netdevs = PfNetdevs()
    netdevs.ifindex = {PF: 7}
    reader = EthtoolReader(Source.MODES, netdevs, Socket(), None, lambda _answer: ({}, {"fec": "RS"}))
    (sample,) = reader.read([pf()])
    assert (sample.device, sample.values, sample.texts) == (PF, {}, {"fec": "RS"})
    empty = EthtoolReader(Source.MODES, netdevs, Socket(), None, lambda _answer: ({}, {}))
    assert empty.read([pf()]) == []


def osfp(serial: str = "S1", lanes: int = 8) -> Module:
    lit = {n: Lane(1e-3 if n < 4 else 0.0, 1e-3, 0.01) for n in range(lanes)}
    return Module("OSFP", Medium.OPTICAL, "NVIDIA", "MMA4Z00", serial, "A1", lanes=lit)


def test_two_pfs_on_one_module_each_get_their_own_lanes():
    found = own_lanes({"0000:1b:00.0": osfp(), "0000:1a:00.0": osfp(), "0000:1c:00.0": osfp("S2")})
    assert {device: sorted(one.lanes) for device, one in found.items()} == {
        "0000:1a:00.0": [0, 1, 2, 3],
        "0000:1b:00.0": [0, 1, 2, 3],
        "0000:1c:00.0": list(range(8)),
    }
    assert all(lane.rx_power for lane in found["0000:1a:00.0"].lanes.values()), (
        "a dark lane of one port is not a lane of the other"
    )
    assert not any(lane.rx_power for lane in found["0000:1b:00.0"].lanes.values())


def test_modules_that_share_only_a_serial_number_keep_their_lanes():
    for modules in (
        {"a": osfp(lanes=4), "b": osfp(lanes=4)},
        {"a": osfp(""), "b": osfp("")},
        {"a": osfp("0"), "b": osfp("0"), "c": osfp("0")},
    ):
        assert own_lanes(modules) == modules


# --- a module of a NIC without a netdev ---------------------------------------------------------------------


def monitored(tmp_path, **module: str) -> TransceiverReader:
    """The files of ``sensors -j`` of a user: asic 46 °C (105), Module0 57 °C (70)."""
    made = machine(tmp_path)
    sensors = {"label": "Module0", "input": "57000", "crit": "70000", "highest": "58000"} | module
    asic = {"label": "asic", "input": "46000", "crit": "105000"}
    for number, files in enumerate((asic, sensors), 1):
        for name, text in files.items():
            made.draw(f"{made.folders[PF]}/hwmon/hwmon3/temp{number}_{name}", text)
    made.draw(f"{made.folders[PF]}/hwmon/hwmon3/name", "mlx5")
    return TransceiverReader(Tree(made.root), PfNetdevs())


def test_the_temperature_of_a_module_without_a_netdev_comes_from_the_hardware_monitor(tmp_path):
    (sample,) = monitored(tmp_path).read([pf()])
    assert (sample.device, sample.source) == (PF, Source.MODULE)
    assert sample.values == {"module_celsius": 57.0, "module_celsius_high_warning": 70.0}


def test_a_monitor_without_a_module_or_with_broken_files_gives_no_temperature(tmp_path):
    assert monitored(tmp_path / "copper", label="asic1").read([pf()]) == []
    (sample,) = monitored(tmp_path / "bare", crit="0").read([pf()])
    assert sample.values == {"module_celsius": 57.0}
    reader = monitored(tmp_path / "broken", input="warm")
    assert reader.read([pf()]) == []
    assert list(reader.skipped.reasons) == [PF]
    made = machine(tmp_path / "none")
    assert TransceiverReader(Tree(made.root), PfNetdevs()).read([pf()]) == []
