"""The metrics page: every family, independent parsers, hostile texts, missing devices, and the texts that are kept."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from hack.docs.metrics import CATALOG
from nodeagent.facts.model import Health, Holding, Identifier, Neighbor, Reason, Snapshot, State
from nodeagent.host.clock import boottime
from nodeagent.kubelet.withheld import Withheld
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS
from nodeagent.metrics.exposition import Exposition
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import LABEL_TEXT_MAX, OPENMETRICS, PLAIN_TYPE, label, negotiate
from nodeagent.web.metrics_page import MetricsPage
from nodeagent.web.web_settings import WebSettings
from tests.support import golden
from tests.support.scrape_inputs import facts, page, samples_of, scrape_input

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics-dgx-h100.txt"


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The values of a family by label values, in the order of the page."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in read_text(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.golden("tests/golden/metrics-dgx-h100.txt")
def test_the_page_of_a_dgx_h100_is_as_reviewed() -> None:
    golden.same(GOLDEN, page(scrape_input()))


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_page() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page(scrape_input()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_family_of_the_catalog_is_on_the_page_and_is_of_its_type() -> None:
    found = {family.name: family for family in read_openmetrics(page(scrape_input(), openmetrics=True))}
    missing = CATALOG.keys() - {f"{f.name}_total" if f.type == "counter" else f.name for f in found.values()}
    assert missing == {
        "nodeagent_series_dropped_total",
        "nodeagent_source_silent",
        "nodeagent_hanging_call_seconds",
        "nodeagent_lldp_neighbor_duplicates",
    }, "give these families a value in tests/support/scrape_inputs.py"
    for family in CATALOG.values():
        if family.name not in missing:
            assert found[family.base].type == family.type
            assert found[family.base].documentation == family.help


def test_both_formats_have_the_same_values() -> None:
    shown = scrape_input()
    text = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_text(page(shown))
        for sample in family.samples
    }
    open_ = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_openmetrics(page(shown, openmetrics=True))
        for sample in family.samples
    }
    assert text == open_
    assert len(text) > 2000


def test_every_sample_name_has_a_family_except_those_for_rules_and_computed_families() -> None:
    shown = {number.name for family in CATALOG.values() for number in family.measurements}
    assert set(MEASUREMENTS) - shown == {
        "gpu_xids",  # nodeagent_gpu_xid_errors_total counts them itself
        "rail_rtt",  # the histogram nodeagent_rail_round_trip_seconds
        *("rail_lossy_packets", "rail_lossy_partners", "rail_lossy_since"),  # the evidence of rail_loss
        "rail_lossy_way",
        *("attach_connected", "attach_waiting", "attach_seconds", "attach_failures"),  # computed families
    }


def test_values_are_scaled_to_base_units() -> None:
    device = facts()[0].links[1]
    sample = Sample(1, device.pci_address, Source.MODES, {"speed_mbps": 400_000})
    text = page(ScrapeInput(snapshot=facts()[0], samples=(sample,)))
    assert values(text, "nodeagent_link_speed_bytes") == {(device.netdev,): 50e9}


def test_a_resource_that_is_withheld_is_not_registered_once_its_name_is_known() -> None:
    withheld = (
        Withheld("example.com/gpu-mem", "the driver hangs"),
        Withheld("nic{rail}", "no PF is known yet"),
    )
    text = page(ScrapeInput(snapshot=Snapshot(), withheld=withheld))
    assert values(text, "nodeagent_resource_registered") == {("example.com/gpu-mem",): 0}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", PLAIN_TYPE),
        ("*/*", PLAIN_TYPE),
        ("text/plain", PLAIN_TYPE),
        ("application/openmetrics-text", OPENMETRICS.format("1.0.0")),
        ("application/openmetrics-text; version=2.0.0, text/plain", PLAIN_TYPE),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", PLAIN_TYPE),
        ("application/openmetrics-text;q=0", PLAIN_TYPE),
        ("application/openmetrics-text;q=nonsense", PLAIN_TYPE),
        ('application/openmetrics-text; version="0.0.1"', OPENMETRICS.format("0.0.1")),
        (
            # Prometheus 2.42
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPENMETRICS.format("1.0.0"),
        ),
        (
            # Prometheus 3, protobuf first
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            OPENMETRICS.format("1.0.0"),
        ),
    ],
)
def test_the_client_gets_its_preferred_format(accept: str, expected: str) -> None:
    assert negotiate(accept) == expected


# --- hostile texts ------------------------------------------------------------------------------------------

HOSTILE = st.text(
    st.characters(codec=None) | st.sampled_from('\0\n\r"\\{}%s# \u2028\u202e\udcff\x1b'), max_size=300
)


def hostile(text: str) -> ScrapeInput:
    snapshot = facts()[0]
    link = snapshot.links[1]
    device = link.pci_address
    return ScrapeInput(
        snapshot=replace(
            snapshot,
            neighbors=(Neighbor(link.netdev, Identifier("local", text), Identifier("local", text), text),),
            holdings=(Holding(text, text, text, text, (text,)),),
        ),
        samples=(
            Sample(
                1, device, Source.MODULE, {"module_celsius": 3}, {"module_vendor": text, "module_type": text}
            ),
            Sample(1, device, Source.PCIE, {f"aer_fatal/{text}": 7}),
            Sample(1, device, Source.DRIVER, {f"lane_errors/{text}": 9}, {"firmware": text}),
        ),
        restarts={text: 1},
    )


@given(HOSTILE)
def test_no_text_breaks_a_line(text: str) -> None:
    for openmetrics, read in ((False, read_text), (True, read_openmetrics)):
        rendered = page(hostile(text), openmetrics=openmetrics)
        rendered.encode("utf-8")
        found = {sample.name: sample for family in read(rendered) for sample in family.samples}
        assert found["nodeagent_pcie_aer_errors_total"].value == 7
        assert found["nodeagent_lldp_neighbor_info"].value == 1
        assert found["nodeagent_transceiver_temperature_celsius"].value == 3
        for sample in found.values():
            assert all(value.isprintable() for value in sample.labels.values())
            assert all(len(value) <= LABEL_TEXT_MAX for value in sample.labels.values())


def test_a_text_of_a_hundred_thousand_characters_is_cut() -> None:
    text = page(hostile("x" * 100_000))
    assert max(map(len, text.splitlines())) < 6 * LABEL_TEXT_MAX
    assert label("x" * 100_000) == "x" * (LABEL_TEXT_MAX - 1) + "…"


def test_texts_that_are_equal_after_cutting_make_one_series() -> None:
    snapshot = facts()[0]
    long = ["x" * 500 + str(n) for n in range(2)]
    neighbors = tuple(
        Neighbor(snapshot.links[0].netdev, Identifier("local", text), Identifier("local", text), text)
        for text in long
    )
    text = page(ScrapeInput(snapshot=replace(snapshot, neighbors=neighbors)))
    assert len(values(text, "nodeagent_lldp_neighbor_info")) == 1


def test_series_above_the_limit_are_left_out_and_counted() -> None:
    snapshot = facts()[0]
    device = snapshot.links[1].pci_address
    flood = {f"lane_errors/{n}": n for n in range(1000)}
    exposition = Exposition(100)
    shown = ScrapeInput(
        snapshot=snapshot,
        samples=(Sample(1, device, Source.DRIVER, flood),),
        restarts=dict.fromkeys(map(str, range(150)), 1),
    )
    first = "".join(exposition.pieces(shown, openmetrics=False))
    assert len(values(first, "nodeagent_link_lane_bit_errors_total")) == 100
    assert len(values(first, "nodeagent_task_restarts_total")) == 100
    second = "".join(exposition.pieces(shown, openmetrics=False))
    dropped = values(second, "nodeagent_series_dropped_total")
    assert dropped["nodeagent_link_lane_bit_errors_total",] == 2 * 900
    assert dropped["nodeagent_task_restarts_total",] == 2 * 50


# --- missing devices ----------------------------------------------------------------------------------------


OF_A_MISSING_NIC = (
    "nodeagent_link_health",
    "nodeagent_link_info",
    "nodeagent_lldp_",
    "nodeagent_link_device",
    "nodeagent_link_pre",
    "nodeagent_link_post",
    "nodeagent_link_expected",
    "nodeagent_link_flap",
    "nodeagent_link_rule",
)
"""Families that keep their series of a NIC that is gone: its name, its fault, and the state of its rules."""


def without(snapshot: Snapshot, *addresses: str) -> Snapshot:
    """The snapshot after these functions disappear: they stay in it as missing."""
    gone = Health(State.DOWN, (Reason("device_missing", "it is missing"),), allocatable=False)
    return replace(
        snapshot,
        functions=tuple(
            replace(f, health=gone, missing=True) if f.pci_address in addresses else f
            for f in snapshot.functions
        ),
        links=tuple(link for link in snapshot.links if link.pci_address not in addresses),
    )


def test_the_series_of_a_vf_a_nic_a_gpu_or_a_pod_disappear_with_it() -> None:
    shown = scrape_input()
    snapshot = shown.snapshot
    exposition = Exposition(10_000)

    def rendered(**changes: object) -> str:
        return "".join(exposition.pieces(structs.replace(shown, **changes), openmetrics=False))

    vf = next(one for one in snapshot.functions if one.vf_index == 0)
    assert vf.pci_address in rendered()
    assert f'pci_address="{vf.pci_address}"' not in rendered(
        snapshot=replace(without(snapshot, vf.pci_address), holdings=())
    )
    nic = snapshot.links[1]
    vfs = [one.pci_address for one in snapshot.functions if one.parent == nic.pci_address]
    without_nic = rendered(snapshot=without(snapshot, nic.pci_address, *vfs))
    left = [line for line in without_nic.splitlines() if f'"{nic.netdev}"' in line]
    stays = [line for line in left if not line.startswith(OF_A_MISSING_NIC)]
    assert not stays, (
        "the function of this family leaves out a NIC that is `missing`, or OF_A_MISSING_NIC has it"
    )
    assert (
        f'nodeagent_link_health_reason{{device="{nic.netdev}",reason="device_missing",severity="fault"}} 1'
        in left
    )
    assert "worker-0" not in rendered(snapshot=replace(snapshot, holdings=(), gpu_limits=()), gpu_accounts=())
    gpu = snapshot.gpus[-1]
    without_gpu = rendered(snapshot=replace(snapshot, gpus=snapshot.gpus[:-1]))
    assert f'gpu="{gpu.index}"' not in without_gpu
    assert rendered() == "".join(Exposition(10_000).pieces(shown, openmetrics=False))


def test_a_nic_that_takes_over_a_netdev_name_keeps_its_own_state() -> None:
    """The kernel reuses netdev names; the missing PF then gets its PCI address as its name."""
    snapshot = facts()[0]
    gone, heir = snapshot.links[0], snapshot.links[1]
    left = without(snapshot, gone.pci_address)
    renamed = replace(
        left,
        links=tuple(replace(x, netdev=gone.netdev) if x is heir else x for x in left.links),
        functions=tuple(
            replace(f, netdev=gone.netdev) if f.pci_address == heir.pci_address else f for f in left.functions
        ),
    )
    rails = {gone.pci_address: 0}
    states = values(page(ScrapeInput(snapshot=renamed, rails=rails)), "nodeagent_link_health_state")
    assert states[gone.netdev, "healthy"] == 1
    assert states[gone.pci_address, "missing"] == 1
    without_rail = values(page(ScrapeInput(snapshot=renamed)), "nodeagent_link_health_state")
    assert gone.pci_address not in {device for device, _ in without_rail}
    names = [key[0] for key in values(page(ScrapeInput(snapshot=renamed)), "nodeagent_link_info")]
    assert len(names) == len(set(names))


def test_values_of_old_samples_are_not_shown() -> None:
    snapshot = facts()[0]
    device = snapshot.links[1].pci_address
    shown = ScrapeInput(snapshot=snapshot, samples=tuple(samples_of(device, [Source.LINK], at=100.0)))
    exposition = Exposition(100)
    assert "nodeagent_link_carrier{" in "".join(exposition.pieces(shown, openmetrics=False, now=130.0))
    assert "nodeagent_link_carrier{" not in "".join(exposition.pieces(shown, openmetrics=False, now=5000.0))


def test_texts_of_old_samples_are_not_shown() -> None:
    snapshot = facts()[0]
    device = snapshot.links[1].pci_address
    module = Sample(100.0, device, Source.MODULE, {"module_celsius": 40.0}, {"module_vendor": "ACME"})
    state = Sample(100.0, device, Source.STATE, {}, {"ext_state": "no cable"})
    exposition = Exposition(100)
    shown = ScrapeInput(snapshot=snapshot, samples=(module, state))
    for now, there in ((130.0, True), (5000.0, False)):
        text = "".join(exposition.pieces(shown, openmetrics=False, now=now))
        assert ("ACME" in text) is there
        assert ("no cable" in text) is there


# --- reuse --------------------------------------------------------------------------------------------------


def test_new_numbers_reuse_the_lines_and_a_new_name_makes_another() -> None:
    snapshot = facts()[0]
    device = snapshot.links[1].pci_address
    exposition = Exposition(100)

    def shown(**numbers: float) -> str:
        sample = Sample(1, device, Source.LINK, numbers)
        pieces = list(exposition.pieces(ScrapeInput(snapshot=snapshot, samples=(sample,)), openmetrics=False))
        made.append("" in pieces)
        return "".join(pieces)

    made: list[bool] = []
    name = snapshot.links[1].netdev
    assert f'carrier{{device="{name}"}} 1\n' in shown(carrier=1, rx_bytes=10)
    assert f'receive_bytes_total{{device="{name}"}} 11\n' in shown(carrier=0, rx_bytes=11)
    assert f'mtu_bytes{{device="{name}"}} 9000\n' in shown(carrier=0, rx_bytes=12, mtu_bytes=9000)
    assert made == [True, False, True]


def test_names_that_come_and_go_are_not_kept_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.metrics.exposition.EXPOSITION_KEPT_MAX", 10)
    snapshot = facts()[0]
    device, netdev = snapshot.links[1].pci_address, snapshot.links[1].netdev
    exposition = Exposition(100)
    for n in range(40):
        sample = Sample(1, device, Source.LINK, {"rx_bytes": n, f"of_container/{n}": 1})
        shown = "".join(
            exposition.pieces(ScrapeInput(snapshot=snapshot, samples=(sample,)), openmetrics=False)
        )
        assert f'receive_bytes_total{{device="{netdev}"}} {n}\n' in shown
        assert len(exposition._shown[device]) <= 12


def test_no_piece_of_the_page_is_long() -> None:
    """Other tasks of the event loop wait for one piece; the facts of a DGX are the longest."""
    pieces = list(Exposition(10_000).pieces(scrape_input(), openmetrics=False))
    assert max(piece.count("\n") for piece in pieces) < 2500


@pytest.mark.parametrize(("wanted", "of_each"), [("alerts", 2), ("all", 20)])
async def test_the_limits_of_optics_are_those_of_the_alerts_unless_all_are_wanted(
    wanted: Literal["alerts", "all"], of_each: int
) -> None:
    shown = await asyncio.to_thread(scrape_input, at=boottime())
    metrics = MetricsPage(lambda: shown, WebSettings(optics_limits=wanted))
    pieces = metrics.page("text/plain").pieces
    assert pieces is not None
    text = b"".join([piece async for piece in pieces]).decode()
    limits = re.findall(r'^nodeagent_transceiver_threshold\{device="([^"]+)"', text, re.MULTILINE)
    modules = set(
        re.findall(r'^nodeagent_transceiver_temperature_celsius\{device="([^"]+)"', text, re.MULTILINE)
    )
    assert Counter(limits) == dict.fromkeys(modules, of_each) != {}
