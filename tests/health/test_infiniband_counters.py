"""Losses of an InfiniBand port without a netdev: ``link_downed``, its end, and a rule without its counter."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, Rdma, State
from nodeagent.host.rdma_ports import INFINIBAND_COUNTERS
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Source
from nodeagent.sampling.adapter_readers import INFINIBAND_NAMES, RdmaReader
from tests.host.test_adapter import PORT, machine
from tests.sampling.test_readers import pf
from tests.support.judged_machine import Bench

EFA = {
    "tx_bytes": "rdma_tx_bytes",
    "rx_bytes": "rdma_rx_bytes",
    "rx_drops": "rdma_rx_discards",
    "retrans_timeout_events": "rdma_path_timeouts",
    "unresponsive_remote_events": "rdma_unresponsive_remotes",
    "rdma_read_wr_err": "rdma_read_errors",
}
"""Some files in ``hw_counters`` of its port (drivers/infiniband/hw/efa/efa_verbs.c), with their sample names."""


def port(count: int = 1) -> Bench:
    """PFs without a netdev, so that nothing reads a kernel's counter of lost carriers."""
    bench = Bench(count)
    bench.functions = [
        replace(function, link_type="infiniband", netdev=None, rdma=Rdma("mlx5_0"))
        for function in bench.functions
    ]
    return bench.look()


def phases(bench: Bench) -> dict[str, str]:
    return {rule.rule: rule.phase for rule in bench.explained()[0].rules}


def test_six_lost_links_in_eighteen_seconds_withdraw_a_port_without_netdev() -> None:
    bench = port(2).sample(Source.RDMA, at=1001, ib_link_downed=3, rdma_port_active=1)
    assert phases(bench)["flapping"] == "quiet"
    bench.sample(Source.RDMA, at=1019, ib_link_downed=9, rdma_port_active=1)
    assert bench.reasons() == ["flapping", "flapping_daily"]
    assert not bench.health().allocatable


@pytest.mark.parametrize("values", [{}, {"rdma_port_active": 1.0}])
def test_a_rule_without_its_counter_is_unknown(values: dict[str, float]) -> None:
    bench = port()
    if values:
        bench.take(Source.RDMA, values, at=1001)
    assert {phases(bench)[rule] for rule in ("flapping", "flapping_daily")} == {"unknown"}
    figures = bench.engine.devices[bench.pfs[0].pci_address].figures(bench.now)
    assert figures.penalty is None, "no metric states a penalty of 0 that nothing has measured"
    assert "flapping_daily" not in figures.values


def test_a_counter_at_its_end_starts_no_fault_and_one_that_is_left_ends_by_time() -> None:
    bench = port(2).sample(Source.RDMA, at=1001, ib_link_downed=250, rdma_port_active=1)
    bench.sample(Source.RDMA, at=1010, ib_link_downed=254, rdma_port_active=1)
    before = bench.reasons()
    assert "flapping" in before
    for at in range(1025, 1100, 15):
        bench.sample(Source.RDMA, at=at, rdma_port_active=1)
    assert bench.reasons() == before
    assert phases(bench)["flapping"] == "active"
    for at in range(1115, 4700, 15):
        bench.sample(Source.RDMA, at=at, rdma_port_active=1)
    assert bench.reasons() == []
    assert phases(bench)["flapping"] == "unknown"


def read(folder: Path, **counters: int) -> dict[str, float]:
    made = machine(folder, link_layer="InfiniBand", phys_state="5: LinkUp")
    for name, count in counters.items():
        made.draw(f"{PORT}/ports/1/counters/{name}", str(count))
    (sample,) = RdmaReader(Tree(made.root), live=False).read([pf(rdma="mlx5_0")])
    return sample.values


def test_each_counter_of_the_port_is_read(tmp_path: Path) -> None:
    counters = {name: number for number, name in enumerate(INFINIBAND_COUNTERS)}
    values = read(tmp_path, **counters)
    assert {name: values[INFINIBAND_NAMES[name]] for name in counters} == counters


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("link_downed", 255),
        ("link_error_recovery", 255),
        ("symbol_error", 65535),
        ("port_rcv_errors", 65535),
        ("local_link_integrity_errors", 15),
        ("port_xmit_wait", 2**32 - 1),
    ],
)
def test_a_counter_at_its_end_is_no_value(tmp_path: Path, name: str, end: int) -> None:
    assert read(tmp_path / "before", **{name: end - 1})[INFINIBAND_NAMES[name]] == end - 1
    assert INFINIBAND_NAMES[name] not in read(tmp_path / "at", **{name: end})


def test_a_port_whose_netdev_went_into_a_pod_is_judged_by_its_own_counter() -> None:
    bench = port(2).sample(Source.LINK, at=1001, carrier_down=0, admin_up=1)
    bench.sample(Source.RDMA, at=1001, ib_link_downed=3, rdma_port_active=1)
    for at in range(1010, 1300, 10):
        bench.sample(Source.RDMA, at=at, ib_link_downed=3, rdma_port_active=1)
    assert phases(bench)["flapping"] == "quiet"
    bench.sample(Source.RDMA, at=1301, ib_link_downed=9, rdma_port_active=1)
    assert bench.reasons() == ["flapping", "flapping_daily", "data_stale"]


def test_the_counters_that_no_source_gives_are_named_where_a_rule_waits_for_them() -> None:
    bench = port().sample(Source.RDMA, at=1001, rdma_port_active=1, rdma_ack_timeouts=0)
    bench.sample(Source.RDMA, at=1016, rdma_port_active=1, rdma_ack_timeouts=0)
    missing = bench.explained()[0].not_given
    assert {"carrier_down", "symbol_errors", "rdma_out_of_sequence"} <= {*missing}
    assert "rdma_ack_timeouts" not in missing


def test_an_efa_is_healthy_and_what_nobody_measures_of_it_is_unknown(tmp_path: Path) -> None:
    """It has no netdev by design; its driver states the port as active, and counts its datagrams."""
    made = machine(tmp_path, link_layer="Unknown", phys_state="5: LinkUp", lid="0x0")
    for number, name in enumerate(EFA):
        made.draw(f"{PORT}/ports/1/hw_counters/{name}", str(number))
    function = replace(pf(rdma="mlx5_0"), driver="efa", vendor="1d0f", netdev=None)
    (sample,) = RdmaReader(Tree(made.root), live=False).read([function])
    assert {name: sample.values[name] for name in EFA.values()} == {
        name: number for number, name in enumerate(EFA.values())
    }
    assert sample.values["rdma_port_active"] == 1
    assert not {"roce_v2_gids", "ib_state", "ib_link_downed"} & sample.values.keys()
    bench = Bench(1)
    bench.functions = [
        replace(
            one, driver="efa", vendor="1d0f", netdev=None, rdma=Rdma("rdmap58s0", "/dev/infiniband/uverbs0")
        )
        for one in bench.functions
    ]
    bench.look()
    for at in (1001, 1016, 1031):
        bench.take(Source.RDMA, sample.values, at=at)
    assert bench.health() == HEALTHY
    unmeasured = (
        *("flapping", "flapping_daily", "post_fec_errors", "crc_errors", "fec_uncorrectable"),
        *("optics_temperature", "optics_rx_power"),
    )
    assert {phases(bench)[rule] for rule in unmeasured} == {"unknown"}
    assert {"carrier_down", "crc_errors", "symbol_errors"} <= {*bench.explained()[0].not_given}


ERRORS = {
    "crc_errors": ("ib_receive_errors", 1000, State.DEGRADED),
    "link_recoveries": ("ib_recoveries", 4, HEALTHY.state),
    "link_symbol_errors": ("ib_symbol_errors", 1000, HEALTHY.state),
}
"""Of each rule the counter, what it adds in 15 s, and the state of the link."""


@pytest.mark.parametrize("rule", ERRORS)
def test_errors_of_a_port_without_netdev_are_judged(rule: str) -> None:
    name, step, state = ERRORS[rule]
    bench = port(2)
    for i in range(12):
        bench.sample(Source.RDMA, at=1001 + 15 * i, rdma_port_active=1, ib_link_downed=0, **{name: step * i})
    assert bench.reasons() == [rule]
    assert bench.health().state == state
    assert bench.health().allocatable
    last = step * 11
    for i in range(60):
        bench.sample(Source.RDMA, at=1181 + 15 * i, rdma_port_active=1, ib_link_downed=0, **{name: last})
    assert bench.reasons() == []


def test_a_few_errors_of_a_port_are_no_fault_and_a_rule_without_its_counter_is_unknown() -> None:
    bench = port(2)
    for i in range(12):
        bench.sample(
            Source.RDMA, at=1001 + 15 * i, rdma_port_active=1, ib_receive_errors=100 * i, ib_recoveries=i
        )
    assert bench.reasons() == []
    assert {phases(bench)[rule] for rule in ("crc_errors", "link_recoveries")} == {"quiet"}
    assert phases(bench)["link_symbol_errors"] == "unknown"


def test_the_checksum_errors_of_ipoib_do_not_hide_those_of_the_port() -> None:
    """Its netdev counts none."""
    bench = port(2)
    for i in range(12):
        bench.sample(Source.LINK, at=1001 + 15 * i, crc_errors=0, admin_up=1, carrier_down=0)
        bench.sample(Source.RDMA, at=1001 + 15 * i, rdma_port_active=1, ib_receive_errors=1000 * i)
    assert "crc_errors" in bench.reasons()


def test_an_ethernet_nic_lacks_no_counter_of_infiniband() -> None:
    bench = Bench(1).look().sample(Source.RDMA, at=1001, rdma_port_active=1)
    missing = bench.explained()[0].not_given
    assert "crc_errors" in missing
    assert not [name for name in missing if name.startswith("ib_")]
    missing = port().sample(Source.RDMA, at=1001, rdma_port_active=1).explained()[0].not_given
    assert {"ib_recoveries", "ib_receive_errors"} <= {*missing}
