"""From samples to the report: which VF is whose, what the answer of the agent has, and the two versions that meet."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nodeagent.cluster.node_report import report
from nodeagent.cluster.refused_fields import leave_out, refused_fields
from nodeagent.fabric.nodelinks import NodeLink, Wire, convert_nodelinks
from nodeagent.facts.model import Function, Gpu, Holding, PodTraffic, RailTraffic, Snapshot
from nodeagent.features.pod_traffic import traffic_watch
from nodeagent.features.pod_traffic.traffic_settings import TrafficSettings
from nodeagent.features.pod_traffic.traffic_task import start_traffic
from nodeagent.features.pod_traffic.traffic_watch import TrafficWatch, gpu_loads, pods_now, vf_counters
from nodeagent.features.seam import AgentCore
from nodeagent.kube.failure import ApiError
from nodeagent.measurements.sample import Sample, Source
from nodeagent_lab.sim.apiserver.schema import apply_schema
from tests.controller.test_two_versions import VERSIONS, recorded
from tests.support.agent_core import agent_core
from tests.support.wire_objects import definitions

PFS = ("0000:18:00.0", "0000:2a:00.0")
GPU, MIG = "GPU-32563e7a-0000-0000-0000-000000000000", "MIG-32563e7a-0000-0000-0000-000000000001"


def function(address: str, **other: Any) -> Function:
    values = {
        "pci_address": address, "vendor": "15b3", "device": "1021", "driver": "mlx5_core", "netdev": "n" + address[5:7],
        "link_type": "ethernet", "rdma": None, "vfio_group": None, "vdpa": None, "numa_node": 0, "pci_path": (),
    }  # fmt: skip
    return Function(**(values | other))


def snapshot() -> Snapshot:
    vfs = [function(f"{pf[:-1]}{n + 2}", parent=pf, vf_index=n, netdev=None) for pf in PFS for n in range(2)]
    gpu = Gpu(GPU, 0, 0, "NVIDIA H100", "0000:1b:00.0", 81559, 0)
    held = (
        Holding("ml", "llama-0", "main", "x/nic0", ("0000:18:00.2",)),
        Holding("ml", "llama-0", "main", "x/nic1", ("0000:2a:00.3",)),
        Holding("ml", "llama-0", "main", "x/gpu-mem", (f"{GPU}::1", f"{GPU}::2")),
        Holding("ml", "without-vf", "main", "x/gpu-mem", (f"{GPU}::3",)),
        Holding("", "", "", "x/nic0", ("0000:18:00.3",), claim="unused"),
        Holding("ml", "other", "main", "rival/nic", ("rdma0",)),
    )
    return Snapshot(functions=(*map(function, PFS), *vfs), gpus=(gpu,), holdings=held)


def samples(at: float, sent: float) -> list[Sample]:
    values = {
        f"vf_{name}/{n}": sent
        for n in range(2)
        for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
    }
    load = {"gpu_utilization": 1.0, "gpu_memory_utilization": 0.0}
    return [*(Sample(at, pf, Source.VF, values) for pf in PFS), Sample(at, GPU, Source.GPU, load)]


def test_the_vfs_and_gpus_of_each_pod_with_a_vf() -> None:
    (name,) = found = pods_now(snapshot())
    assert name == "ml/llama-0"
    assert [(vf.address, vf.pf, vf.driver) for vf in found[name].vfs] == [
        ("0000:18:00.2", PFS[0], "mlx5_core"),
        ("0000:2a:00.3", PFS[1], "mlx5_core"),
    ]
    assert found[name].gpus == (0,)
    assert pods_now(Snapshot()) == {}


def test_the_pod_that_holds_vfs_is_told_from_the_next_one_by_claim_or_allocation() -> None:
    now = snapshot()
    at = {"0000:18:00.2": 7.0, "0000:2a:00.3": 9.0}
    assert pods_now(now, lambda id_: at.get(id_, 0.0))["ml/llama-0"].identity == (frozenset({""}), 9.0)
    held = tuple(replace(one, claim="rails-x7k2p") for one in now.holdings or ())
    by_claim = pods_now(replace(now, holdings=held))["ml/llama-0"]
    assert by_claim.identity == (frozenset({"rails-x7k2p"}), 0.0)


def test_the_load_of_a_mig_device_is_not_that_of_its_gpu() -> None:
    now = snapshot()
    held = (*(now.holdings or ())[:2], Holding("ml", "llama-0", "main", "x/mig", (MIG,)))
    assert pods_now(replace(now, holdings=held))["ml/llama-0"].gpus == ()


def test_counters_are_those_of_the_index_of_a_vf() -> None:
    found = vf_counters(snapshot(), samples(5.0, 7.0))
    assert len(found) == 4
    assert found["0000:18:00.2"] == (5.0, 7.0, 7.0, 7.0, 7.0)
    assert vf_counters(snapshot(), [Sample(5.0, PFS[0], Source.VF, {"vf_rx_bytes/0": 1.0})]) == {}
    assert gpu_loads(snapshot(), samples(5.0, 7.0)) == {0: (5.0, 1.0, 0.0)}


RAILS = dict(zip(PFS, range(2), strict=True))


class Offer:
    offered: tuple[object, ...] = ()
    rails = RAILS
    dra = None


def core_of(found: list[Sample]) -> AgentCore:
    core = agent_core()._replace(offer=Offer(), samples=lambda: found)
    now = snapshot()
    core.inventory.publish("pci", functions=now.functions, gpus=now.gpus)
    return core


def test_nothing_is_judged_until_it_is_known_what_pods_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Sample] = []
    core, now = core_of(found), 100.0
    monkeypatch.setattr(traffic_watch, "boottime", lambda: now)
    watch = TrafficWatch(core)
    watch.look()
    assert not core.inventory.has_published(traffic_watch.POD_TRAFFIC)
    core.inventory.publish("pods", holdings=snapshot().holdings)
    for step in range(40):
        now = 100.0 + 30 * step
        found[:] = samples(now, 3e11 * min(step, 20))
        watch.look()
    (level,) = core.inventory.snapshot.pod_traffic
    assert (level.pod, level.level, level.gpus) == ("llama-0", "silent", "waiting")
    answer = json.loads(watch.page("").body)
    (pod,) = answer["pods"]
    assert (answer["kind"], pod["gpus"], pod["quietS"]) == ("NodeTraffic", {"0": 1.0}, 570.0)
    assert [(vf["link"], vf["sent"], vf["quietS"]) for vf in pod["vfs"]] == [
        ("nic0", 0.0, 570.0),
        ("nic1", 0.0, 570.0),
    ]


def test_off_is_an_empty_part() -> None:
    assert not start_traffic(agent_core(), TrafficSettings()).tasks
    part = start_traffic(agent_core(), TrafficSettings(report=True))
    assert ([*part.tasks], [*part.pages]) == (["traffic"], ["/traffic"])


# --- the report ---------------------------------------------------------------------------------------------

SILENT = PodTraffic(
    namespace="ml", pod="llama-0", level="silent", since=600, longest_pause=90, gpus="waiting", idle_gpus=(5,),
    rails=(RailTraffic(PFS[0], "0000:18:00.2", "below", 30), RailTraffic("0000:99:00.0", "x", "below")),
)  # fmt: skip
WITH_TRAFFIC = replace(snapshot(), pod_traffic=(SILENT,))


def reported(now: Snapshot, before: Any = None, **other: Any) -> Any:
    return report(now, "n1", RAILS, before, now=700.0, **other)


def test_levels_are_in_the_report_with_the_names_of_links() -> None:
    (made,) = msgspec.to_builtins(reported(WITH_TRAFFIC))["traffic"]
    assert made == {
        "namespace": "ml", "pod": "llama-0", "level": "silent", "since": "1970-01-01T00:10:00Z",
        "longestPauseSeconds": 90, "gpus": "waiting", "idleGpus": (5,),
        "rails": ({"link": "nic0", "pciAddress": "0000:18:00.2", "level": "below", "since": "1970-01-01T00:00:30Z"},),
    }  # fmt: skip


def test_after_a_start_the_last_levels_stand_until_the_judge_says_something() -> None:
    first = reported(WITH_TRAFFIC)
    assert reported(snapshot(), first, patient=True).traffic == first.traffic
    assert reported(snapshot(), first).traffic == ()


@pytest.mark.parametrize(
    ("last", "at_start", "since", "level"),
    [
        ("silent", True, 690, "silent"),
        ("silent", False, 690, "unused"),
        ("moving", True, 690, "moving"),
        ("moving", True, 500, "silent"),
        ("unused", True, 500, "unused"),
        ("unmeasured", True, 500, "unused"),
    ],
)
def test_a_judge_that_begins_goes_on_from_the_report(
    last: str, at_start: bool, since: int, level: str
) -> None:
    before = reported(replace(WITH_TRAFFIC, pod_traffic=(msgspec.structs.replace(SILENT, level=last),)))
    unused = PodTraffic(namespace="ml", pod="llama-0", level="unused", since=since, at_start=at_start)
    (made,) = reported(replace(WITH_TRAFFIC, pod_traffic=(unused,)), before).traffic
    assert (made.level, made.longest_pause_seconds) == (level, 90)


def schema_of(version: str) -> Any:
    (defined,) = (
        one
        for one in (definitions() if version == "now" else recorded(version, "CustomResourceDefinition"))
        if one["metadata"]["name"] == "nodelinks.nodeagent.io"
    )
    return defined["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_definition_takes_the_levels() -> None:
    written = msgspec.json.decode(msgspec.json.encode(reported(WITH_TRAFFIC)))
    assert apply_schema(schema_of("now"), written, strict=True) == []
    assert convert_nodelinks(written).traffic == reported(WITH_TRAFFIC).traffic


@pytest.mark.parametrize("version", VERSIONS)
def test_under_an_earlier_definition_the_levels_alone_are_lost(version: str) -> None:
    written = msgspec.json.decode(msgspec.json.encode(reported(WITH_TRAFFIC)))
    apply_schema(schema_of(version), written, strict=False)
    assert "traffic" not in written
    assert written["links"]
    for place in ("", "[0].rails", "[0].longestPauseSeconds"):
        whole = msgspec.json.decode(msgspec.json.encode(reported(WITH_TRAFFIC)))
        why = f"failed to create typed patch object: .traffic{place}: field not declared in schema"
        assert leave_out(whole, refused_fields(ApiError("patch", "/nodelinks/n1", 500, "", why))) == [
            "traffic"
        ]
        assert "traffic" not in whole
        assert whole["links"]


class EarlierNodeLinks(Wire, frozen=True, kw_only=True):
    """The fields that a controller reads which does not know `traffic`."""

    node_name: str
    links: tuple[NodeLink, ...] = ()


def test_an_earlier_controller_reads_the_report_as_ever() -> None:
    read = [
        msgspec.json.decode(msgspec.json.encode(reported(one)), type=EarlierNodeLinks)
        for one in (WITH_TRAFFIC, snapshot())
    ]
    assert read[0] == read[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_report_of_an_earlier_agent_has_no_levels(version: str) -> None:
    assert all(convert_nodelinks(one).traffic == () for one in recorded(version, "NodeLinks"))
