"""The compared values of a node: how they read from facts and samples, when they are published, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.cluster.node_report import NodeReporter, body, report
from nodeagent.cluster.refused_fields import leave_out, refused_fields
from nodeagent.fabric.node_values import (
    NODE_MODEL,
    VALUE_NAMES,
    by_name,
    reported_values,
    same_value,
    values_text,
)
from nodeagent.fabric.nodelinks import ComparedValues, convert_nodelinks
from nodeagent.facts.model import Function, Gpu, Link, Rdma, Snapshot
from nodeagent.features.peer_values import value_table, value_watch
from nodeagent.features.peer_values.compare_task import start_compare
from nodeagent.features.peer_values.host_values import NIC_SETTINGS_PATH, HostValues, read_host
from nodeagent.features.peer_values.peers_settings import PeersSettings
from nodeagent.features.peer_values.value_table import (
    RunningAgent,
    boot_parameters,
    devices_here,
    model_of,
    node_reading,
    read_values,
    texts_of,
)
from nodeagent.features.peer_values.value_watch import ValueWatch
from nodeagent.features.seam import AgentCore
from nodeagent.host.netlink.nic_settings import NicSettings
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kube.client import ApiError
from nodeagent.measurements.sample import Sample, Source
from tests.support.agent_and_server import kubeconfig, server
from tests.support.agent_core import agent_core
from tests.support.running_agent import node, shorten

__all__ = ["kubeconfig", "server"]
NICS = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
NAMES = {address: f"nic{rail}" for rail, address in enumerate(NICS)}
RAILS = {address: rail for rail, address in enumerate(NICS)}
COMMAND_LINE = (
    "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro iommu=pt quiet hugepages=1024 nvidia.NVreg_Foo=1 pci=realloc=off"
)
HOST = HostValues(
    kernel="6.8.0-79-generic",
    command_line=COMMAND_LINE,
    iommu=dict.fromkeys(NICS, "identity"),
    nics=dict.fromkeys(NICS, NicSettings((3,), "none", "8192", "63")),
)
AGENT = RunningAgent("2026.11.1", "0badcafe")


def nic(address: str, **other: object) -> Function:
    values = {
        "pci_address": address, "vendor": "15b3", "device": "1021", "driver": "mlx5_core", "netdev": "n" + address[5:7],
        "link_type": "ethernet", "rdma": None, "vfio_group": None, "vdpa": None, "numa_node": 0, "pci_path": (),
        "num_vfs": 16,
    }  # fmt: skip
    return Function(**(values | other))


def link(address: str, *, up: bool = True) -> Link:
    speed = 400_000 if up else None
    return Link("n" + address[5:7], address, None, True, up, "up" if up else "down", speed, 9000)


def gpu(index: int, **other: object) -> Gpu:
    values = {
        "uuid": f"GPU-{index}", "index": index, "minor": index, "name": "NVIDIA H100",
        "pci_address": f"0000:{index:02x}:00.0", "memory_mib": 81559, "numa_node": 0,
    }  # fmt: skip
    return Gpu(**(values | other))


def samples() -> list[Sample]:
    of_gpu = {
        "gpu_power_limit_watts": 699.99, "gpu_persistence_mode": 1.0, "gpu_ecc_mode": 1.0, "gpu_pcie_generation": 1.0,
        "gpu_pcie_generation_max": 5.0, "gpu_pcie_width": 16.0, **{f"gpu_nvlink_up/{n}": 1.0 for n in range(18)},
    }  # fmt: skip
    found = [Sample(1, f"GPU-{n}", Source.GPU, of_gpu, {"gpu_vbios": "96.00.CF.00.01"}) for n in range(8)]
    for address in NICS:
        found += [
            Sample(1, address, Source.DRIVER, {}, {"firmware": "28.43.2026 (MT_0000000838)"}),
            Sample(1, address, Source.MODES, {"lanes": 4.0}),
            Sample(1, address, Source.FEC, {}, {"fec_mode": "RS"}),
            Sample(1, address, Source.PCIE, {"pcie_gts": 32.0, "pcie_width": 16.0}),
        ]
    return found


SNAPSHOT = Snapshot(
    product="NVIDIA DGX H100",
    gpus=tuple(gpu(n) for n in range(8)),
    functions=tuple(map(nic, NICS)),
    links=tuple(map(link, NICS)),
    gpu_driver="580.95.05",
)
READ = {
    NODE_MODEL: "NVIDIA DGX H100, 8 x NVID#481ad0",
    "GPU driver": "580.95.05",
    "GPU VBIOS": "96.00.CF.00.01",
    "GPU power limit": "700 W",
    "GPU persistence": "on",
    "GPU ECC mode": "on",
    "GPU MIG mode": "off",
    "GPU PCIe": "gen5 x16",
    "NVLinks": "18",
    "NIC driver": "mlx5_core",
    "NIC firmware": "28.43.2026 (MT_0000000838)",
    "NIC PCIe": "gen5 x16",
    "link type": "ethernet",
    "link speed": "400G",
    "link lanes": "4",
    "FEC": "RS",
    "MTU": "9000",
    "PFC": "3",
    "pause": "none",
    "rings": "8192",
    "channels": "63",
    "VFs": "16",
    "IOMMU": "identity",
    "kernel": "6.8.0-79-generic",
    "boot parameters": "hugepages=1024 iommu=pt nvidia.NVreg_Foo=1 pci=realloc=off",
    "agent": "2026.11.1",
    "agent settings": "0badcafe",
}


def test_each_value_of_the_table_reads_from_a_whole_node() -> None:
    reading = node_reading(SNAPSHOT, samples(), NAMES, HOST, AGENT)
    assert texts_of(read_values(reading), model_of(reading)) == READ
    assert [*READ] == [NODE_MODEL, *VALUE_NAMES]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("iommu=pt pci=noacs", "iommu=pt pci=noacs"),
        ("pci=noacs quiet iommu=pt", "iommu=pt pci=noacs"),
        ("intel-iommu=on", "intel_iommu=on"),
        (
            "hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=8",
            "hugepages=16 hugepages=8 hugepagesz=1G hugepagesz=2M",
        ),
        ('nvidia.NVreg_RegistryDwords="A=1; B=2" quiet', "nvidia.NVreg_RegistryDwords=A=1; B=2"),
        ('"nvidia.NVreg_Foo=a b" x', "nvidia.NVreg_Foo=a b"),
        ("iommu=pt -- iommu=off pci=noacs", "iommu=pt"),
        ('pci="', "pci="),
        ("quiet", "none"),
        ("", "none"),
    ],
)
def test_boot_parameters_read_as_the_kernel_reads_them(line: str, read: str) -> None:
    assert boot_parameters(line) == read


def test_a_value_that_is_not_known_is_absent() -> None:
    reading = node_reading(Snapshot(), (), {}, HostValues(), None)
    assert texts_of(read_values(reading), model_of(reading)) == {NODE_MODEL: "unknown product"}


def test_a_link_that_is_down_has_neither_speed_nor_lanes_nor_fec() -> None:
    down = (link(NICS[3], up=False), *(link(address) for address in NICS if address != NICS[3]))
    found = read_values(node_reading(_with(links=down), samples(), NAMES, HOST, AGENT))
    assert {len(found[name]) for name in ("link speed", "link lanes", "FEC")} == {7}
    assert len(found["MTU"]) == 8


def test_a_lost_gpu_and_a_missing_nic_belong_to_the_model() -> None:
    lost = _with(
        gpus=(gpu(0, lost=True), *SNAPSHOT.gpus[1:]),
        functions=(nic(NICS[0], missing=True), *SNAPSHOT.functions[1:]),
    )
    reading = node_reading(lost, samples(), NAMES, HOST, AGENT)
    assert model_of(reading) == READ[NODE_MODEL]
    assert {"gpu0", "nic0"} <= devices_here(reading)
    assert "gpu0" not in read_values(reading)["GPU VBIOS"]


def test_a_long_model_keeps_its_beginning_and_differs_from_others() -> None:
    models = {
        model_of(
            node_reading(_with(product=f"A server of a {'very ' * 20}long name {n}"), (), NAMES, HOST, AGENT)
        )
        for n in range(2)
    }
    assert len(models) == 2
    assert max(map(len, models)) <= 32


def reported_bytes(values: dict[str, str], earlier: dict[str, str] | None = None) -> int:
    """The bytes that the values add to a report."""
    first = None if earlier is None else reported_values(earlier, None, 1_790_000_000.0 - 3600)
    compared = reported_values(values, first, 1_790_000_000.0)
    return len(msgspec.json.encode(Report(compared))) - len(b"{}")


class Report(msgspec.Struct):
    compared: ComparedValues


def test_the_values_of_a_whole_node_take_less_than_300_bytes_of_a_report() -> None:
    usual = READ | {"boot parameters": "iommu=pt pci=realloc=off"}
    assert reported_bytes(usual) <= 300
    assert by_name(values_text(usual)) == usual, "as text, all of them"
    assert reported_bytes(READ) <= 300
    assert {name for name, value in by_name(values_text(READ)).items() if value != READ[name]} == {
        "boot parameters"
    }


@given(
    st.dictionaries(
        st.sampled_from(VALUE_NAMES),
        st.dictionaries(
            st.sampled_from([*NAMES.values()]), st.text(min_size=1, max_size=50), min_size=1, max_size=8
        ),
    ),
    st.text(max_size=90),
)
@example({name: {"nic0": '"\\|' * 20, "nic1": "\U0001f600"} for name in VALUE_NAMES}, "|" * 90)
def test_no_values_take_more_than_300_bytes(values: dict[str, dict[str, str]], model: str) -> None:
    texts = texts_of(values, value_table.model_text(model))
    assert reported_bytes(texts) <= 300
    read = by_name(values_text(texts))
    assert all(same_value(read[name], texts[name]) for name in VALUE_NAMES if name in texts)


def test_values_that_changed_together_cost_one_date() -> None:
    """As after a boot into a new image; the date leaves after some days."""
    changed = ("GPU driver", "kernel", "agent", "NIC firmware")
    assert reported_bytes(READ, READ | dict.fromkeys(changed, "before")) <= 300 + 130


def _with(**other: object) -> Snapshot:
    return replace(SNAPSHOT, **other)


# --- reading ------------------------------------------------------------------------------------------------


class Offer:
    offered: tuple[object, ...] = ()
    rails = RAILS
    dra = None


def core_of(found: list[Sample], root: Path) -> AgentCore:
    core = agent_core()._replace(offer=Offer(), samples=lambda: found, tree=Tree(root))
    core.inventory.publish(
        "pci", **{n: getattr(SNAPSHOT, n) for n in ("functions", "links", "gpus", "product")}
    )
    return core


def published(core: AgentCore) -> dict[str, str]:
    return dict(core.inventory.snapshot.compared)


async def test_a_changed_value_counts_when_it_is_read_twice(tmp_path: Path) -> None:
    found = samples()
    core = core_of(found, tmp_path)
    watch = ValueWatch(core, lambda: RunningAgent("1", "a"))
    await watch.read()
    assert published(core)["NIC firmware"] == READ["NIC firmware"]
    found[:] = [
        Sample(2, one.device, one.source, one.values, {"firmware": "28.39.1002"})
        if (one.device, one.source) == (NICS[3], Source.DRIVER)
        else one
        for one in found
    ]
    await watch.read()
    assert published(core)["NIC firmware"] == READ["NIC firmware"]
    await watch.read()
    assert published(core)["NIC firmware"] == "28.43.2026 (MT_0000000838); nic3: 28.39.1002"


async def test_a_value_that_comes_and_goes_writes_nothing(tmp_path: Path) -> None:
    """A link that flaps, a driver that is loaded again: the last value stands."""
    found = samples()
    core = core_of(found, tmp_path)
    watch = ValueWatch(core, lambda: RunningAgent("1", "a"))
    await watch.read()
    revision = core.inventory.snapshot.revision
    found.clear()
    for _ in range(3):
        await watch.read()
    assert core.inventory.snapshot.revision == revision


async def test_a_device_that_left_the_node_leaves_its_values(tmp_path: Path) -> None:
    core = core_of(samples(), tmp_path)
    watch = ValueWatch(core, lambda: RunningAgent("1", "a"))
    await watch.read()
    core.inventory.publish("pci", functions=SNAPSHOT.functions[1:], gpus=SNAPSHOT.gpus[1:])
    await watch.read()
    assert all("nic0" not in values and "gpu0" not in values for values in watch._last.values())


def test_the_host_is_read_from_its_files(tmp_path: Path) -> None:
    for path, text in {
        "proc/sys/kernel/osrelease": "6.8.0\n",
        "proc/cmdline": COMMAND_LINE + "\n",
        f"sys/bus/pci/devices/{NICS[0]}/iommu_group/type": "DMA-FQ\n",
        f"sys/bus/pci/devices/{NICS[1]}/infiniband/mlx5_1/fw_ver": "28.43.2026\n",
        f"sys/bus/pci/devices/{NICS[1]}/infiniband/mlx5_1/board_id": "MT_0000000838\n",
        ".nodeagent/gpus.json": "{}",
        NIC_SETTINGS_PATH[1:]: json.dumps({NICS[0]: {"pfc": [3], "rings": "rx 512 tx 512"}}),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    pfs = (nic(NICS[0]), nic(NICS[1], netdev=None, rdma=Rdma("mlx5_1")), nic(NICS[2], netdev=None))
    assert read_host(Tree(tmp_path), pfs) == HostValues(
        "6.8.0",
        COMMAND_LINE,
        {NICS[0]: "DMA-FQ"},
        {NICS[1]: "28.43.2026 (MT_0000000838)"},
        {NICS[0]: NicSettings(pfc=(3,), rings="rx 512 tx 512")},
    )


def test_the_firmware_of_infiniband_without_a_netdev_reads_like_that_of_a_netdev() -> None:
    found = [one for one in samples() if (one.device, one.source) != (NICS[3], Source.DRIVER)]
    host = replace(HOST, firmware={NICS[3]: "28.43.2026 (MT_0000000838)"})
    reading = node_reading(SNAPSHOT, found, NAMES, host, AGENT)
    assert texts_of(read_values(reading), model_of(reading)) == READ


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}', '{"a": {"pfc": "3"}}', "\x00", "[" * 5000])
def test_a_broken_file_of_a_capture_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / ".nodeagent").mkdir()
    (tmp_path / ".nodeagent/gpus.json").write_text("{}")
    (tmp_path / NIC_SETTINGS_PATH[1:]).write_text(content)
    with pytest.raises(SysfsError, match="has no settings of NICs"):
        read_host(Tree(tmp_path), ())


def test_settings_of_this_machine_are_read_or_not_known() -> None:
    found = read_host(Tree("/"), (nic(NICS[0], netdev="lo"), nic(NICS[1], netdev="no-such-netdev")))
    assert found.kernel is not None
    assert found.nics.keys() == {NICS[0], NICS[1]}
    assert found.nics[NICS[1]] == NicSettings()


def test_off_is_an_empty_part() -> None:
    assert not start_compare(agent_core(), PeersSettings(), lambda: ("", "")).tasks
    assert [*start_compare(agent_core(), PeersSettings(compare=True), lambda: ("", "")).tasks] == ["peers"]


async def test_an_agent_that_compares_has_the_values_in_its_report(server, kubeconfig, monkeypatch):
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0, gap_s=0.0)
    monkeypatch.setattr(value_watch, "PEERS_FIRST_S", 0.0)
    async with node() as n:
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\npeers: {{compare: true}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.until(lambda: n.agent.inventory.snapshot.compared)
        await server.until(lambda: "compared" in (server.find("nodelinks", "gpu-0", "nodeagent") or {}))
        compared = server.find("nodelinks", "gpu-0", "nodeagent")["compared"]
        values = by_name(compared["values"])
        assert values[NODE_MODEL]
        assert values["MTU"]
        assert compared["since"]
        assert "changes" not in compared


def test_the_report_has_the_values_and_an_older_definition_costs_these_alone() -> None:
    """Helm does not upgrade definitions."""
    snapshot = Snapshot(compared=tuple(READ.items()))
    links = report(snapshot, "n1", {}, None, now=1_790_000_000.0)
    written = msgspec.json.decode(msgspec.json.encode(body(links, None)))
    assert convert_nodelinks(written).compared == links.compared
    why = "failed to create typed patch object: .compared: field not declared in schema"
    refused = ApiError("patch", "/nodelinks/n1", 500, "", why)
    assert leave_out(written, refused_fields(refused)) == ["compared"]
    assert "compared" not in written


def test_after_a_start_the_last_values_stand_until_they_are_read_and_keep_their_dates() -> None:
    first = report(Snapshot(compared=(("MTU", "9000"),)), "n1", {}, None, now=0.0)
    starting = report(Snapshot(), "n1", {}, first, now=60.0, patient=True)
    assert starting.compared == first.compared
    read = report(Snapshot(compared=(("MTU", "9000"),)), "n1", {}, starting, now=90.0)
    assert read.compared == first.compared
    changed = report(Snapshot(compared=(("MTU", "1500"),)), "n1", {}, read, now=120.0)
    assert [(one.values, one.since) for one in changed.compared.changes] == [
        (("MTU",), "1970-01-01T00:02:00Z")
    ]
    assert report(Snapshot(), "n1", {}, changed, now=300.0).compared is None, "it does not compare any more"


def test_the_names_of_the_table_are_those_of_the_report() -> None:
    tables = (value_table._OF_NODE, value_table._OF_GPU, value_table._OF_NIC)
    assert sorted(name for table in tables for name in table) == sorted(VALUE_NAMES)
    assert json.loads(json.dumps(VALUE_NAMES))


def test_the_page_has_the_order_of_the_values() -> None:
    page = (Path(__file__).parents[3] / "docs/odd-nodes.md").read_text(encoding="utf-8")
    assert f"the order is: {', '.join(VALUE_NAMES)}." in " ".join(page.split())
    assert f"values: {values_text(READ).partition('|gen5 x16|ethernet')[0]}|…" in page
