"""The GPUs of a report: those in trouble alone, each since when, and no write while nothing of them changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cluster.refused_fields import leave_out, refused_fields
from nodeagent.cluster.reported_gpus import DETAIL_MAX
from nodeagent.fabric.nodelinks import (
    GPU_PODS_MAX,
    GPU_REASONS_MAX,
    GPUS_MAX,
    NodeLinks,
    ReportedGpu,
    convert_nodelinks,
)
from nodeagent.facts.model import (
    Gpu,
    Health,
    Holding,
    Reason,
    Snapshot,
    StaleSource,
    State,
    UnusableGpu,
)
from nodeagent.kube.failure import ApiError
from nodeagent_lab.sim.apiserver import ApiServer
from tests.cluster.test_node_report import neighbor, report_of, reporting, snapshot, stored

pytestmark = pytest.mark.usefixtures("virtual_time")

NOON, LATER = "2026-11-21T12:00:00Z", "2026-11-21T12:01:00Z"
XID = Reason("xid_79", "XID 79: the GPU has fallen off the bus.")
FELL = Health(State.UNHEALTHY, (XID,), allocatable=False)
SLOW = Health(State.DEGRADED, (Reason("thermal_slowdown", "The GPU is slowed down."),))
SILENT = Health(State.UNKNOWN, (Reason("driver_silent", "The driver does not answer."),))


def uuid(n: int) -> str:
    return f"GPU-{n:08d}-0000-0000-0000-000000000000"


def with_gpus(*healths: Health, **more: Any) -> Snapshot:
    gpus = tuple(
        Gpu(uuid(n), n, n, "H100", f"0000:{n + 0x50:02x}:00.0", 81559, 0, health=health)
        for n, health in enumerate(healths)
    )
    return replace(snapshot(neighbor(0), count=1), gpus=gpus, **more)


def gpus_of(facts: Snapshot, before: NodeLinks | None = None, **more: Any) -> tuple[ReportedGpu, ...]:
    return report_of(facts, before, **more).gpus


def test_a_gpu_in_trouble_is_named_with_its_reasons_and_time_and_no_other_is() -> None:
    assert gpus_of(with_gpus(Health(), FELL, SLOW, SILENT)) == (
        ReportedGpu(index=1, pci_address="0000:51:00.0", state="unhealthy", reasons=("xid_79",),
                    reason_details=(XID.detail,), since=NOON),
        ReportedGpu(index=2, pci_address="0000:52:00.0", state="degraded", reasons=("thermal_slowdown",),
                    reason_details=("The GPU is slowed down.",), since=NOON),
        ReportedGpu(index=3, pci_address="0000:53:00.0", state="unknown", reasons=("driver_silent",),
                    reason_details=("The driver does not answer.",), since=NOON),
    )  # fmt: skip


@pytest.mark.parametrize(
    "health",
    [
        Health(),
        Health(State.UNUSED, (Reason("gpu_passthrough", "bound to vfio-pci"),), allocatable=False),
        Health(State.HEALTHY, (Reason("cordoned", "by ops"),), allocatable=False),
        Health(State.HEALTHY, (Reason("mig_enabled", "MIG", warning=True),)),
    ],
)
def test_nothing_stands_in_the_report_of_gpus_that_are_well_or_kept_from_pods_by_a_person(
    health: Health,
) -> None:
    assert gpus_of(with_gpus(Health(), health)) == ()


def test_the_time_is_that_of_the_state_and_not_of_its_reasons() -> None:
    first = report_of(with_gpus(SLOW))
    more = replace(SLOW, reasons=(*SLOW.reasons, Reason("pcie_width", "8 of 16 lanes")))
    assert gpus_of(with_gpus(more), first, later_s=60.0)[0].since == NOON
    assert gpus_of(with_gpus(FELL), first, later_s=60.0)[0].since == LATER


def test_a_gpu_that_nvml_does_not_name_has_its_place_alone_and_one_without_a_driver_is_not_named() -> None:
    lost = (
        UnusableGpu("0000:5e:00.0", FELL),
        UnusableGpu("index 7", FELL),
        UnusableGpu("0000:5f:00.0", Health(State.UNKNOWN, (Reason("driver_absent", "none"),), allocatable=False)),
    )  # fmt: skip
    found = gpus_of(with_gpus(Health(), unusable_gpus=lost))
    assert [(gpu.index, gpu.pci_address) for gpu in found] == [(None, "0000:5e:00.0"), (7, None)]


def test_while_no_gpu_is_known_the_last_report_stands() -> None:
    before = report_of(with_gpus(Health(), FELL))
    silent = with_gpus(stale_sources=(StaleSource("gpus", "the driver is loaded"),))
    assert gpus_of(silent, before, later_s=600.0) == before.gpus
    assert gpus_of(with_gpus(), before, patient=True) == before.gpus
    assert gpus_of(with_gpus(), before) == ()


def test_after_a_start_a_gpu_that_is_not_known_yet_is_as_last_reported() -> None:
    before = report_of(with_gpus(Health(), FELL))
    assert gpus_of(with_gpus(SILENT, SILENT), before, patient=True, later_s=5.0) == before.gpus
    assert [gpu.state for gpu in gpus_of(with_gpus(SILENT, SILENT), before)] == ["unknown", "unknown"]


def test_it_names_the_pods_that_hold_the_gpu_only_on_request() -> None:
    held = (Holding("ml", "train-0", "main", "nvidia.com/gpu", (uuid(1),)),)
    facts = with_gpus(Health(), FELL, holdings=held)
    assert gpus_of(facts)[0].pods == ()
    named = report_of(facts, with_holders=True)
    assert named.gpus[0].pods == ("ml/train-0",)
    unknown = replace(facts, holdings=None)
    assert gpus_of(unknown, named, with_holders=True) == named.gpus
    assert gpus_of(unknown, named)[0].pods == ()


def test_its_parts_are_bounded() -> None:
    reasons = tuple(Reason(f"xid_{n}", "x" * 2000) for n in range(40))
    held = tuple(Holding("ml", f"p{n}", "main", "r", (uuid(0),)) for n in range(100))
    facts = with_gpus(*(Health(State.UNHEALTHY, reasons),) * 100, holdings=held)
    found = gpus_of(facts, with_holders=True)
    assert len(found) == GPUS_MAX
    first = found[0]
    assert (len(first.reasons), len(first.reason_details), len(first.pods)) == (
        GPU_REASONS_MAX,
        GPU_REASONS_MAX,
        GPU_PODS_MAX,
    )
    assert max(map(len, first.reason_details)) <= DETAIL_MAX


async def test_it_is_written_when_a_gpu_fails_or_is_mended_and_at_no_other_change_of_it() -> None:
    server = await ApiServer().start()

    def writes() -> int:
        return sum(one.verb == "patch" and one.resource == "nodelinks" for one in server.requests)

    try:
        async with reporting(server) as (inventory, _):

            def tell(*healths: Health, memory_mib: int = 81559) -> None:
                facts = with_gpus(*healths)
                inventory.publish("pci", functions=facts.functions, links=facts.links)
                gpus = (replace(gpu, memory_mib=memory_mib) for gpu in facts.gpus)
                inventory.publish("gpus", gpus=tuple(gpus))

            tell(Health(), Health())
            await stored(server, lambda found: "gpus" not in found)
            tell(Health(), FELL)
            await stored(server, lambda found: [gpu["index"] for gpu in found.get("gpus", ())] == [1])
            count = writes()
            for n in range(20):  # facts that no reader of the report asks for
                tell(Health(), FELL, memory_mib=80000 + n)
                await asyncio.sleep(1)
            assert writes() == count
            tell(Health(), Health())
            await stored(server, lambda found: "gpus" not in found)
            assert writes() == count + 1
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "message",
    [
        "failed to create typed patch object (nodeagent/gpu-0; nodeagent.io/v1alpha1, Kind=NodeLinks): "
        ".gpus: field not declared in schema",
    ],
)
def test_a_definition_without_gpus_costs_the_report_nothing_else(message: str) -> None:
    made: Any = {"nodeName": "gpu-0", "links": [], "gpus": [{"index": 1, "state": "unhealthy"}]}
    assert leave_out(made, refused_fields(ApiError("patch", "/nodelinks/gpu-0", 500, "", message))) == [
        "gpus"
    ]
    assert made == {"nodeName": "gpu-0", "links": []}


def test_a_later_field_or_state_of_a_gpu_is_no_fault_of_the_report() -> None:
    gpu = {"index": 1, "state": "resting", "ofALaterVersion": {"a": [1]}}
    (read,) = convert_nodelinks({"nodeName": "gpu-0", "gpus": [gpu]}).gpus
    assert (read.index, read.state) == (1, "resting")
