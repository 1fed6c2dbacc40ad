"""One GPU or several whose driver reports nonsense, drawn by Hypothesis, through the whole chain of the agent.

A reading may have any text as UUID, name or PCI address, any number as memory or minor number, and values of another
GPU. What must hold: the GPUs that are sound are offered as always; the device list, the CDI spec and the metrics page
are valid; every text is on one line; the agent never ends, and a GPU that becomes sound is offered again.
"""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families as read_text

from nodeagent.agent_config import Config
from nodeagent.cluster.affected_devices import reported_devices
from nodeagent.facts import cdi
from nodeagent.facts.model import GpuFunction, Snapshot
from nodeagent.health.service import HealthService
from nodeagent.host.gpu_driver import GpuReading, GpuVitals
from nodeagent.host.plausible_gpus import plausible_gpus
from nodeagent.kinds import gpu_access
from nodeagent.kinds.device_list_size import LIMIT
from nodeagent.kubelet.device_list import DeviceList
from nodeagent.offering.offer import Offer
from nodeagent.offering.readiness import gpu_remarks
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading, DriverVitals
from nodeagent.web.pages import device_counts
from tests.support.running_agent import node
from tests.support.scrape_inputs import page, scrape_input

SOUND = 3
EACH = 79
HOSTILE = st.one_of(
    st.text(max_size=100),
    st.sampled_from(
        ["", "all", "GPU-", "GPU-a::1", "GPU-0", "GPU-\n0", "GPU-\x1b[2J", "GPU-\u202e1", "GPU-" + "0" * 90]
    ),
)
NUMBER = st.one_of(st.integers(-(2**70), 2**70), st.sampled_from([-1, 0, 1, 2**32 - 1, 2**43, 81559]))


def sound(index: int) -> GpuReading:
    return GpuReading(index, f"GPU-{index}", index, "H100", f"0000:{0x1B + index:02x}:00.0", 81559)


NONSENSE = st.builds(
    lambda uuid, minor, name, address, memory, fault, lost: GpuReading(
        0, uuid, minor, name, address, memory, fault=fault, lost=lost
    ),
    st.none() | HOSTILE,
    st.none() | NUMBER,
    st.none() | HOSTILE,
    st.none() | HOSTILE | st.sampled_from(["0000:1b:00.0", "0000:40:00.0"]),
    st.none() | NUMBER,
    st.none() | HOSTILE,
    st.booleans(),
)


def untouched(readings: list[GpuReading]) -> set[str]:
    """The sound GPUs that share no value with another one."""

    def alone(reading: GpuReading) -> bool:
        others = [other for other in readings if other is not reading]
        return not any(
            getattr(reading, field) == getattr(other, field)
            for other in others
            for field in ("uuid", "pci_address", "minor")
        )

    return {f"GPU-{index}" for index in range(SOUND) if alone(readings[index])}


def check(publisher: GpuPublisher, snapshot: Snapshot, expected: set[str]) -> None:
    offer = Offer(Config())
    (memory,) = [kind for kind in offer.kinds(snapshot) if kind.source == "gpus"]
    assert not [trouble for trouble in offer.troubles(snapshot) if trouble.fatal]
    devices = memory.devices(snapshot)
    healthy = {entry.parent for entry in devices if entry.health.allocatable and len(entry.ids) == EACH}
    assert expected <= healthy
    listed = DeviceList()
    listed.update(devices)
    assert len(listed.message) < LIMIT
    ids = [id_ for entry in devices for id_ in entry.ids]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"GPU-[-_.0-9A-Za-z]{1,36}::\d+", id_) for id_ in ids)
    described = gpu_access.cdi_devices(snapshot)
    if described.devices:
        cdi.spec_text(cdi.spec(cdi.GPU_KIND, described.devices, described.shared))
    assert len({gpu.index for gpu in snapshot.gpus}) == len(snapshot.gpus)
    listed_gpus = [gpu for gpu in snapshot.gpus if not gpu.lost]
    assert len({gpu.pci_address for gpu in listed_gpus}) == len(listed_gpus)
    minors = [gpu.minor for gpu in listed_gpus if gpu.minor is not None]
    assert len(set(minors)) == len(minors)
    texts = [*gpu_remarks(snapshot), *(device.title for device in reported_devices(snapshot))]
    texts += [reason.detail for device in reported_devices(snapshot) for reason in device.health.reasons]
    texts += [gpu.name for gpu in snapshot.gpus]
    assert all(text.isprintable() for text in texts), texts
    shown = structs.replace(
        scrape_input(),
        snapshot=snapshot,
        samples=publisher.samples(),
        device_counts=tuple(device_counts((memory,), snapshot)),
        health_figures=publisher.health.figures(),
        xids=publisher.xids,
        xid_times=publisher.xid_times,
    )
    series = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in read_text(page(shown))
        for sample in family.samples
    ]
    assert len(set(series)) == len(series)
    json.loads(publisher.health.explain_json())


@pytest.mark.slow
@given(st.lists(st.lists(NONSENSE, min_size=1, max_size=3), min_size=1, max_size=4))
def test_nonsense_costs_no_other_gpu(rounds: list[list[GpuReading]]) -> None:
    publisher = GpuPublisher(HealthService())
    published: list[Snapshot] = []
    functions = tuple(GpuFunction(f"0000:{0x1B + index:02x}:00.0", "nvidia") for index in range(SOUND + 2))
    publisher.publish_to(
        lambda gpus: published.append(
            Snapshot(gpus=gpus, unusable_gpus=publisher.unusable, gpu_functions=functions)
        )
    )
    publisher.take_functions(functions)
    for nonsense in rounds:
        readings = [sound(index) for index in range(SOUND)]
        readings += [structs.replace(odd, index=SOUND + i) for i, odd in enumerate(nonsense)]
        publisher.take_reading(DriverReading("580", plausible_gpus(readings), {}))
        uuids = [reading.uuid for reading in readings if reading.uuid is not None]
        publisher.take_vitals(
            DriverVitals(1.0, tuple(GpuVitals(uuid, {"gpu_celsius": 40}) for uuid in uuids))
        )
        check(publisher, published[-1], untouched(readings))
    publisher.take_reading(
        DriverReading("580", plausible_gpus([sound(index) for index in range(SOUND + 1)]), {})
    )
    check(publisher, published[-1], {f"GPU-{index}" for index in range(SOUND + 1)})


@pytest.mark.parametrize(("address", "longest"), [("0000:40:00.0", 2), ("{n:04x}:40:00.0", 64)])
def test_another_uuid_at_each_reading_does_not_make_the_lists_grow(address: str, longest: int) -> None:
    publisher = GpuPublisher(HealthService())
    published: list[tuple] = []
    publisher.publish_to(published.append)
    for n in range(500):
        other = structs.replace(sound(1), uuid=f"GPU-flip-{n}", pci_address=address.format(n=n))
        publisher.take_reading(DriverReading("580", plausible_gpus([sound(0), other]), {}))
    assert len(published[-1]) <= longest
    assert len(publisher.health.gpus.devices) <= longest
    assert published[-1][0].health.allocatable


MEMORY = "two-gpus-and-two-nics/gpu-mem"
NIC0 = "two-gpus-and-two-nics/nic0"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("uuid", "GPU-/../\x1b[2Jx", 'the UUID "GPU-/../\\x1b[2Jx"'),
        ("uuid", "all", 'the UUID "all"'),
        ("memory_mib", 2**43, "8796093022208 MiB of memory"),
        ("memory_mib", 0, "0 MiB of memory"),
        ("minor", 2**32 - 1, "the minor number 4294967295"),
        ("pci_address", "0000:1b:00.0\n", 'the PCI address "0000:1b:00.0\\n"'),
    ],
)
async def test_an_agent_offers_everything_but_the_gpu_with_nonsense(
    field: str, value: object, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with node() as n:
        facts = n.root / ".nodeagent/gpus.json"
        content = json.loads(facts.read_text())
        content["gpus"][1][field] = value
        facts.write_text(json.dumps(content))
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        await n.allocatable(NIC0, 4)
        await n.until(lambda: len(n.agent.offering.remarks) == 1)
        await n.registered()
        status, ready = await n.get("/readyz")
        assert (status, text in ready) == (200, True), ready
        # Without a PCI address the GPU has another name in the log before the bus is scanned.
        assert caplog.text.count("A GPU is not offered.") <= (2 if field == "pci_address" else 1)
        n.machine.measure(1, gpu_celsius=41)  # writes the driver's true values again
        await n.allocatable(MEMORY, 2 * EACH)
        assert n.agent.offering.remarks == ()
