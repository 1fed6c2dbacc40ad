"""GPUs in trouble: what of a report says so, and what the list of troubles, the map and the metrics make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.base.change_log import Change
from nodeagent.fabric import NodeLinks, Planner, link_faults
from nodeagent.fabric.fabric_view import TROUBLES_SHOWN
from nodeagent.fabric.gpu_troubles import gpu_changes, gpu_faults, gpu_series
from nodeagent.fabric.maintenance import MaintenanceBook
from nodeagent.fabric.nodelinks import GPU_PODS_MAX, GPU_REASONS_MAX, GPUS_MAX, ReportedGpu
from nodeagent.fabric.troubles import GPU_TROUBLES_MAX, GPUS_TOGETHER_S, FabricTrouble, troubles
from nodeagent.facts.remedies import remedy_of
from nodeagent.health.rules.gpu_rules import LOST, MEASURED_KEYS, MISMATCH, UNREADABLE, recovery_rule
from tests.fabric.test_away_nodes import without_power
from tests.fabric.test_fabric_view import published, view_of
from tests.fabric.test_troubles import down
from tests.support import fabrics

AT = "2026-01-01T00:00:00Z"
SINCE = 1_767_225_600.0
DETAIL = "XID 79: the GPU has fallen off the bus."
FELL = ReportedGpu(
    index=3,
    pci_address="0000:5e:00.0",
    state="unhealthy",
    reasons=("xid_79",),
    reason_details=(DETAIL,),
    since=AT,
    pods=("ml/train-0",),
)


def gpu(index: int, **more: Any) -> ReportedGpu:
    return structs.replace(FELL, index=index, pci_address=f"0000:{index:02x}:00.0", **more)


def with_gpus(node: str, row: fabrics.Row, *gpus: ReportedGpu) -> NodeLinks:
    return structs.replace(fabrics.links(node, row), gpus=gpus)


def listed(planner: Planner, **more: Any) -> list[FabricTrouble]:
    return troubles(planner.prepare(1.0)(), **more)


def fleet(*gpus: ReportedGpu) -> tuple[Planner, str, dict[str, fabrics.Row]]:
    """A planner, the first node, which reports these GPUs, and the cables."""
    planner, cables = published()
    first = next(iter(cables))
    planner.report(first, with_gpus(first, cables[first], *gpus))
    return planner, first, cables


def test_a_gpu_in_trouble_is_a_trouble_with_its_pods_and_the_remedy_of_its_reason() -> None:
    planner, first, _ = fleet(FELL)
    (one,) = listed(planner, job_of=lambda pod: "JobSet ml/train" if pod == "ml/train-0" else "")
    assert (one.where, one.what, one.since) == (f"{first} GPU 3", "unhealthy", SINCE)
    assert one.reasons == ("xid_79",)
    assert (one.details, one.pods, one.jobs) == ((DETAIL,), ("ml/train-0",), ("JobSet ml/train",))
    assert (one.links, one.nodes, one.gpus) == ((), (first,), ((first, "GPU 3"),))
    assert one.remedy == remedy_of("xid_79")


def test_a_gpu_that_is_mended_a_refused_report_and_a_deleted_one_leave_the_list() -> None:
    planner, first, cables = fleet(FELL)
    planner.report(first, fabrics.links(first, cables[first]))
    assert listed(planner) == []
    planner.report(first, with_gpus(first, cables[first], FELL))
    planner.refuse(first, "is broken")
    assert [one.gpus for one in listed(planner)] == [()]
    planner.report(first, with_gpus(first, cables[first], FELL))
    planner.report(first, None)
    assert [one.gpus for one in listed(planner)] in ([], [()])


def test_each_rule_of_a_gpu_that_makes_trouble_has_a_remedy_of_its_own() -> None:
    fixed = (MISMATCH, LOST, UNREADABLE, recovery_rule("gpu_reset"))
    keys = [*MEASURED_KEYS, *(rule.key for rule in fixed), "xid_79", "repeated_xid", "driver_silent"]
    assert [key for key in keys if remedy_of(key) is None] == []
    assert [key for key in keys if "NIC" in str(remedy_of(key))] == []


def test_the_gpus_of_a_node_change_nothing_of_the_tree() -> None:
    planner, *_ = fleet()
    before = planner.prepare(1.0)().outcome
    planner, *_ = fleet(*map(gpu, range(8)))
    after = planner.prepare(1.0)().outcome
    assert (before.hypernodes, before.labels, before.anomalies, before.unplaced, before.writes) == (
        after.hypernodes,
        after.labels,
        after.anomalies,
        after.unplaced,
        after.writes,
    )


def test_gpus_that_failed_together_for_one_reason_are_one_trouble_and_others_have_their_own() -> None:
    late = "2026-01-01T00:10:00Z"
    assert GPUS_TOGETHER_S < 600
    slow = gpu(6, state="degraded", reasons=("thermal_slowdown",), reason_details=("slow",), pods=())
    planner, first, _ = fleet(gpu(0), gpu(1, pods=("ml/other",)), gpu(2), gpu(5, since=late), slow)
    found = {one.where: one for one in listed(planner)}
    assert found.keys() == {first, f"{first} GPU 5", f"{first} GPU 6"}
    joint = found[first]
    assert joint.what == "3 GPUs are unhealthy"
    assert joint.details == ("GPU 0, GPU 1, GPU 2", DETAIL)
    assert joint.pods == ("ml/other", "ml/train-0")
    assert joint.gpus == tuple((first, f"GPU {n}") for n in range(3))


def test_a_gpu_that_nvml_does_not_name_has_its_place() -> None:
    planner, first, _ = fleet(structs.replace(FELL, index=None), ReportedGpu(state="unhealthy"))
    assert {one.where for one in listed(planner)} == {
        f"{first} GPU at 0000:5e:00.0",
        f"{first} GPU at an unknown place",
    }


def test_the_gpus_of_a_node_that_is_away_go_with_it() -> None:
    planner, first, cables = fleet(FELL)
    planner.report(first, structs.replace(down(first, cables[first], links=1), gpus=(FELL,)))
    without_power(planner, first)
    (one,) = listed(planner)
    assert one.what == "unreachable"
    assert one.details[1] == "its links and GPUs are as last reported (GPU 3 unhealthy; rail0 down)"
    assert view_of(planner, 1.0).gpus == {}


def test_planned_work_on_the_node_counts_for_its_gpus() -> None:
    planner, first, _ = fleet(FELL)
    book: MaintenanceBook = planner.inputs.maintenance
    book.take(first, '[{"until":"2100-01-01T00:00:00Z","reason":"swap"}]')
    (one,) = listed(planner, at=SINCE)
    assert one.maintenance.startswith("maintenance until 2100-01-01T00:00:00Z: swap")


def test_the_map_has_the_gpus_of_each_node_and_their_troubles() -> None:
    planner, first, _ = fleet(FELL, gpu(5, state="unknown"))
    view = view_of(planner, 1.0)
    assert view.gpus == {first: ("GPU 3 unhealthy", "GPU 5 unknown")}
    assert [one.gpus for one in view.troubles] == [((first, "GPU 3"),), ((first, "GPU 5"),)]
    assert view.pods == {"ml/train-0": (0, 1)}


# --- a node that lies -------------------------------------------------------------------------------------


def lie(count: int = 200) -> tuple[ReportedGpu, ...]:
    """As many GPUs as it likes, of as many reasons and pods of others."""
    return tuple(
        gpu(
            n,
            state=f"\x1b[31m{n}",
            reasons=tuple(f"{n}\n{k}" * 99 for k in range(99)),
            reason_details=("x\n" * 9999,) * 99,
            pods=tuple(f"victims/{n}-{k}" for k in range(999)),
            since="9999-12-31T23:59:59Z",
        )
        for n in range(count)
    )


def test_a_lying_nodes_gpus_sort_nobody_elses_trouble() -> None:
    """The others' troubles are the same and in the same order, and it adds a bounded number of its own."""
    planner, cables = published()
    first, *others = cables
    for n, node in enumerate(others[:6]):
        planner.report(node, down(node, cables[node], pods=n % 3, links=1 + n % 2))
    planner.report(others[6], with_gpus(others[6], cables[others[6]], FELL))
    before = listed(planner)
    assert len(before) > 3
    planner.report(first, with_gpus(first, cables[first], *lie()))
    after = listed(planner)
    own = [one for one in after if one.nodes == (first,)]
    assert [one for one in after if one not in own] == before
    assert len(own) == GPU_TROUBLES_MAX + 1
    assert sum(len(one.gpus) for one in own) == GPUS_MAX
    assert {node for one in own for node, _ in one.gpus} == {first}
    assert len(own) < TROUBLES_SHOWN / 50


def test_what_it_says_is_one_short_line_each() -> None:
    planner, first, _ = fleet(*lie())
    for one in listed(planner):
        assert "\x1b" not in one.what + one.where
        for text in (*one.reasons, *one.details, *one.pods):
            assert len(text) <= 317
            assert text.isprintable()
    kept = planner.inputs.gpu_faults.of_node[first]
    assert len(kept) == GPUS_MAX
    assert max(len(fault.reasons) for fault in kept) == GPU_REASONS_MAX
    assert max(len(fault.pods) for fault in kept) == GPU_PODS_MAX


def test_a_gpu_that_is_listed_twice_counts_once_and_one_that_is_well_not_at_all() -> None:
    planner, *_ = fleet(FELL, structs.replace(FELL, state="degraded"), gpu(4, state="healthy"))
    assert [one.gpus[0][1] for one in listed(planner)] == ["GPU 3"]


@given(st.lists(st.builds(
    ReportedGpu,
    index=st.none() | st.integers(-(2**70), 2**70),
    pci_address=st.none() | st.text(max_size=8),
    state=st.text(max_size=8),
    reasons=st.lists(st.text(max_size=4), max_size=3).map(tuple),
    since=st.none() | st.text(max_size=8) | st.just("9999-12-31T23:59:59-23:59"),
    pods=st.lists(st.text(max_size=4), max_size=3).map(tuple),
), max_size=6))  # fmt: skip
def test_no_list_of_gpus_breaks_the_list_of_troubles(gpus: list[ReportedGpu]) -> None:
    planner, *_ = fleet(*gpus)
    found = listed(planner)
    assert sum(len(one.gpus) for one in found) <= len(gpus)
    assert view_of(planner, 1.0)


# --- its bounds, its history and its series ---------------------------------------------------------------


def test_the_faults_of_gpus_are_bounded_and_counted_with_those_of_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_faults, "FAULTS_MAX", 5)
    planner, cables = published()
    for node, row in cables.items():
        planner.report(node, with_gpus(node, row, gpu(0), gpu(1)))
    found = listed(planner)
    assert sum(len(one.gpus) for one in found) == 4
    (more,) = [one for one in found if one.where == "the fabric"]
    assert more.what.startswith("links or GPUs of 6 more nodes")


def test_a_change_of_a_gpu_is_an_entry_of_the_history() -> None:
    well, fell = (), tuple(gpu_faults(NodeLinks(node_name="n1", gpus=(FELL,))))
    slow = tuple(
        gpu_faults(NodeLinks(node_name="n1", gpus=(gpu(3, state="degraded", reasons=("pcie_width",)),)))
    )
    assert list(gpu_changes("n1", well, fell, 5.0)) == [
        Change(5.0, "gpu", "gpu3", "healthy", "unhealthy (xid_79)", (DETAIL,), ("GPU 3",), "n1")
    ]
    assert [(it.before, it.after) for it in gpu_changes("n1", fell, slow, 5.0)] == [
        ("unhealthy (xid_79)", "degraded (pcie_width)")
    ]
    assert [(it.before, it.after) for it in gpu_changes("n1", slow, well, 5.0)] == [
        ("degraded (pcie_width)", "healthy")
    ]
    assert list(gpu_changes("n1", fell, fell, 5.0)) == []
    held = tuple(one._replace(pods=("ml/other",)) for one in fell)
    assert list(gpu_changes("n1", fell, held, 5.0)) == []


def test_the_series_name_node_leaf_group_gpu_and_state() -> None:
    planner, first, _ = fleet(FELL, structs.replace(FELL, index=None))
    assert gpu_series(planner.inputs.gpu_faults.of_node, {first: "leaf1"}) == {
        (first, "leaf1", "3", "unhealthy"): SINCE,
        (first, "leaf1", "0000:5e:00.0", "unhealthy"): SINCE,
    }
    assert gpu_series({}, {}) == {}
