"""The pages of the running agent: free devices, samples, and no reading of the machine for a scrape."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from msgspec.structs import replace

from nodeagent.base.change_log import ChangeLog
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Health, Holding, Snapshot, State
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.service import HealthService
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import DeviceKind
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.metrics.agent_metrics import AGENT_FAMILIES
from nodeagent.metrics.computed_family import computed, single
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.sharing.cgroup_limits import CgroupLimits
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.gpu_sharing import GpuSharing
from nodeagent.sharing.mps_watch import MpsWatch
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverVitals
from nodeagent.web import pages
from nodeagent.web.machine_view import OfferView
from nodeagent.web.pages import FeaturePages, Pages, ShownAgent, device_counts
from nodeagent.web.web_settings import WebSettings
from tests.support.scrape_inputs import facts


def pages_of(
    inventory: Inventory | None = None,
    *,
    gpus: GpuPublisher | Gpus | None = None,
    offered: tuple[DeviceKind, ...] = (),
    features: FeaturePages | None = None,
) -> Pages:
    machine = SimpleNamespace(
        gpus=gpus or GpuPublisher(HealthService()),
        samples=tuple,
        reader_statuses=tuple,
        overruns=dict,
        last_lldp=dict,
    )
    sharing = GpuSharing(
        GpuAccounting(GpuSettings(), Snapshot, lambda: {}),
        CgroupLimits(Tree("/"), "/var/log/pods", Inventory(), lambda: None),
        MpsWatch(Path("/mps"), Inventory(), tuple, exclusive_process=False),
    )
    sources = ShownAgent(
        inventory=inventory or Inventory(),
        sources=machine,
        health=HealthService(),
        offer=SimpleNamespace(rails={}, shown=lambda: OfferView(offered), view=None),
        plugins=SimpleNamespace(stats=RpcStats(), statuses=tuple),
        claims=SimpleNamespace(figures=lambda: None, pools=tuple),
        sharing=sharing,
        deliveries=Deliveries(),
        changes=ChangeLog(10),
        unwritable=tuple,
        lost_history=lambda: None,
        configuration=None,
    )
    return Pages(WebSettings(), "gpu-0", sources, features or FeaturePages())


MEMORY, NIC = "nvidia-dgx-h100/gpu-mem", "nvidia-dgx-h100/nic0"


def test_a_free_device_is_healthy_and_unheld_and_unknown_before_podresources_has_answered() -> None:
    snapshot, offer = facts()
    unheard = {(one.resource, one.parent): one for one in device_counts(offer.kinds(snapshot), snapshot)}
    gpus, vfs = snapshot.gpus, [one for one in snapshot.functions if one.parent is not None]
    assert unheard[MEMORY, gpus[0].uuid].free is None
    assert unheard[MEMORY, gpus[0].uuid].devices == 79
    held = (
        Holding("ns", "pod", "main", MEMORY, tuple(f"{gpus[0].uuid}::{n}" for n in range(20))),
        Holding("ns", "pod", "main", NIC, (vfs[0].pci_address,)),
    )
    ill = Health(State.UNHEALTHY, (), allocatable=False)
    heard = replace(snapshot, holdings=held, gpus=(*gpus[:7], replace(gpus[7], health=ill)))
    found = {(one.resource, one.parent): one for one in device_counts(offer.kinds(heard), heard)}
    assert found[MEMORY, gpus[0].uuid].free == 59
    assert found[MEMORY, gpus[1].uuid].free == 79
    assert found[MEMORY, gpus[1].uuid].each_bytes == 1 << 30
    assert (found[MEMORY, gpus[7].uuid].free, found[MEMORY, gpus[7].uuid].allocatable) == (0, 0)
    assert found[NIC, str(vfs[0].parent)].free == 7


def test_the_counts_of_a_scrape_follow_the_facts() -> None:
    snapshot, offer = facts()
    inventory = Inventory()
    pages = pages_of(inventory, offered=tuple(offer.kinds(snapshot)))
    assert pages.scrape_input().device_counts == ()
    inventory.publish("gpus", gpus=snapshot.gpus)
    assert {one.parent for one in pages.scrape_input().device_counts} == {gpu.uuid for gpu in snapshot.gpus}
    inventory.publish("gpus", gpus=snapshot.gpus[:1])
    assert {one.parent for one in pages.scrape_input().device_counts} == {snapshot.gpus[0].uuid}


class Gpus:
    xids: ClassVar = {("GPU-0", 79): 1}
    xid_times: ClassVar = {("GPU-0", 79): 5.0}
    sxids: ClassVar = {("0000:05:00.0", 20034): 1}

    def __init__(self, samples: tuple[Sample, ...]) -> None:
        self._samples = samples

    def samples(self) -> tuple[Sample, ...]:
        return self._samples

    def reader_statuses(self) -> tuple[ReaderStatus, ...]:
        return ()


def test_the_age_of_gpu_values_is_shown_too() -> None:
    facts = GpuPublisher(HealthService())
    pages = pages_of(gpus=facts)
    series = {one.family.name: one.series_of for one in AGENT_FAMILIES}

    def collector() -> list[tuple[str, bool, float | None, float | None, int]]:
        shown = pages.scrape_input()
        ups = [(labels, bool(up)) for labels, up in series["nodeagent_collector_up"](shown)]
        counted = [labels for labels, _errors in series["nodeagent_collector_errors_total"](shown)]
        assert counted == [labels for labels, _up in ups]
        (gpu,) = shown.reader_statuses or (None,)
        return [(name, up, gpu.duration_s, gpu.succeeded_at, gpu.errors) for (name,), up in ups if gpu]

    assert collector() == [], "a machine without GPUs misses nothing"
    facts.take_vitals(DriverVitals(10.0, (), seconds=0.25))
    assert collector() == [("gpu", True, 0.25, 10.0, 0)]
    facts.take_vitals(DriverVitals(25.0, (), why="GPU is lost"))
    assert collector() == [("gpu", False, 0.25, 10.0, 1)]
    facts.take_driver_failure("it hangs")
    assert collector() == [("gpu", False, 0.25, 10.0, 2)]
    facts.take_vitals(DriverVitals(40.0, (), seconds=0.5))
    assert collector() == [("gpu", True, 0.5, 40.0, 2)]
    facts.take_absence("no driver", 30.0)
    assert collector() == []


def test_a_scrape_shows_the_parts_of_the_agent() -> None:
    snapshot, offer = facts()
    inventory = Inventory()
    inventory.publish("pci", functions=snapshot.functions, links=snapshot.links)
    assert pages_of(inventory).scrape_input().samples == ()
    sample = Sample(1.0, snapshot.gpus[0].uuid, Source.GPU, {"gpu_celsius": 40})
    pages = pages_of(inventory, gpus=Gpus((sample,)), offered=offer.kinds(snapshot))
    shown = pages.scrape_input()
    assert shown.samples == (sample,)
    assert shown.snapshot is inventory.snapshot
    assert pages.scrape_input().device_counts is shown.device_counts, (
        "it is counted again although nothing has changed"
    )
    assert shown.xids == Gpus.xids
    assert shown.certificate is None


def test_samples_and_families_of_features_follow_those_of_the_core() -> None:
    of_rail = Sample(1.0, "0000:18:00.0", Source.RAILS, {"rail_loss": 0.5})
    of_gpu = Sample(1.0, "GPU-0", Source.GPU, {"gpu_celsius": 40})
    family = computed("weather", "", "The weather.", lambda shown: single(len(shown.samples)))
    features = FeaturePages(samples=lambda: [of_rail], families=[family])
    made = pages_of(gpus=Gpus((of_gpu,)), features=features)
    assert made.scrape_input().samples == (of_rail, of_gpu)
    page = "".join(made._metrics_page._exposition.pieces(made.scrape_input(), openmetrics=False))
    assert page.endswith("# TYPE nodeagent_weather gauge\nnodeagent_weather 2\n")


def test_the_pages_fill_each_value_of_a_scrape() -> None:
    """A family without its value would be absent from every node."""
    calls = [
        node
        for node in ast.walk(ast.parse(Path(pages.__file__).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ScrapeInput"
    ]
    filled = {keyword.arg for call in calls for keyword in call.keywords}
    by_the_renderer = {"facts", "dropped"}
    missing = set(ScrapeInput.__struct_fields__) - filled - by_the_renderer
    assert not missing, "nodeagent/web/pages.py makes a ScrapeInput without them"
