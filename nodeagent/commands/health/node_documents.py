"""The node page as one HTML file: of an agent, of a machine without one such as a capture, or of recorded samples.

The page of a recording has the health at its end, and curves of its last ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from nodeagent.agent_config import Config
from nodeagent.commands.health import replay
from nodeagent.commands.health.device_health import ALONE
from nodeagent.console.agent_query import fetch_page, origin
from nodeagent.console.json_document import node_name
from nodeagent.console.options import GOOD, USAGE
from nodeagent.console.running_sources import RunningSources, known_kinds, unanswered, view_of
from nodeagent.console.terminal import note
from nodeagent.console.user_files import name_of
from nodeagent.facts.model import HEALTHY, Function, Gpu, Health, Link, Snapshot
from nodeagent.health.explain import DeviceView
from nodeagent.health.recording import Header, Subject
from nodeagent.host.clock import boottime
from nodeagent.measurements.sample import Sample, Source
from nodeagent.offering.offer import Offer
from nodeagent.web.gpu_statuses import gpu_statuses
from nodeagent.web.machine_view import machine_view
from nodeagent.web.node_view import node_view
from nodeagent.web.pages import device_counts
from nodeagent.web.sample_history import EVERY_S, SampleHistory
from nodeagent.web.ui_files import self_contained

_HEALTH = msgspec.json.Decoder(tuple[DeviceView, ...])


def show(config: Config, options: argparse.Namespace) -> int:
    """Print the page of this machine. Return the exit code."""
    answer = fetch_page("/ui/document.json", config, options.root, options.listen)
    note(origin(answer.body, answer.source, ALONE))
    document, silent = answer.body, False
    if document is None:
        document, silent = asyncio.run(read_document(config, options.root))
    print(self_contained("node", document))
    return USAGE if silent else GOOD


def show_recording(config: Config, file: str) -> int:
    """Print the page of a recording. Raises ``UserFileError``."""
    with replay.recorded(file) as (header, samples):
        document = recording_document(header, samples, config, Path(name_of(file)).name)
    print(self_contained("node", document))
    return GOOD


async def read_document(config: Config, root: Path) -> tuple[bytes, bool]:
    """Read the machine for a moment. Return the document as JSON, and whether a source has not answered."""
    async with RunningSources(config, root) as sources:
        snapshot = sources.inventory.snapshot
        offer = Offer(config, sources.rails.content.numbering)
        machine = view_of(offer, snapshot)
        counts = device_counts(known_kinds(offer, snapshot), snapshot)
        samples = sources.gpu_publisher.samples()
        gpus = gpu_statuses(
            snapshot, counts, samples, (), "no agent runs here", settings=config.gpu, now=boottime()
        )
        health = _HEALTH.decode(sources.gpu_publisher.health.explain_json(machine.nics))
    view = node_view(
        machine,
        health,
        gpus,
        (),
        offer.rails,
        {},
        node=await asyncio.to_thread(node_name, root),
        source="read once by `nodeagent health --html`",
        taken=time.time(),
        runbook=config.web.runbook,
    )
    return msgspec.json.encode(view), bool(unanswered(snapshot.stale_sources))


# --- recordings -----------------------------------------------------------------------------------------


class _Latest:
    """The latest sample of each device and source, and the curves."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, Source], Sample] = {}
        self.history = SampleHistory()
        self.at = self._due = 0.0

    def follow(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the same samples, and keep what the page shows of them."""
        for sample in samples:
            if sample.at >= self._due:
                self.keep()
                self._due = sample.at + EVERY_S
            self.at = max(self.at, sample.at)
            self.samples[sample.device, sample.source] = sample
            yield sample
        self.keep()

    def keep(self) -> None:
        self.history.take(self.samples.values(), self.at)

    def value(self, device: str, name: str) -> float | None:
        of_device = (sample.values for sample in self.samples.values() if sample.device == device)
        return next((values[name] for values in of_device if name in values), None)


def recording_document(header: Header, samples: Iterable[Sample], config: Config, name: str) -> bytes:
    """The document as JSON. ``name``: of the recording. Raises ``RecordingError``."""
    latest, health = _Latest(), dict[str, Health]()
    for transition in replay.replay(header, latest.follow(samples), config.health, config.gpu):
        health[transition.device] = transition.after
    snapshot = Snapshot(
        gpus=tuple(_gpu(subject, health) for subject in header.devices if subject.kind == "gpu"),
        functions=tuple(_function(subject, health) for subject in header.devices if subject.kind == "nic"),
        links=tuple(_link(subject, latest) for subject in header.devices if subject.netdev is not None),
    )
    taken = header.booted_at + latest.at
    view = node_view(
        machine_view((), snapshot, ()),
        (),
        gpu_statuses(
            snapshot,
            (),
            latest.samples.values(),
            (),
            "a recording has no pods",
            settings=config.gpu,
            now=latest.at,
        ),
        (),
        {},
        latest.history.curves(latest.at, taken),
        node=name,
        source="recorded samples, by `nodeagent health --html replay`",
        taken=taken,
        runbook=config.web.runbook,
    )
    return msgspec.json.encode(view)


def _gpu(subject: Subject, health: dict[str, Health]) -> Gpu:
    return Gpu(
        subject.device, subject.index or 0, None, "", "", 0, subject.numa_node, subject.path,
        health.get(subject.device, HEALTHY),
    )  # fmt: skip


def _function(subject: Subject, health: dict[str, Health]) -> Function:
    return Function(
        subject.device, "", "", subject.driver, subject.netdev, subject.link_type, None, None, None,
        subject.numa_node, subject.path, health=health.get(subject.device, HEALTHY),
    )  # fmt: skip


def _link(subject: Subject, latest: _Latest) -> Link:
    carrier, mtu = latest.value(subject.device, "carrier"), latest.value(subject.device, "mtu_bytes")
    return Link(
        netdev=subject.netdev or subject.device,
        pci_address=subject.device,
        mac=subject.mac,
        admin_up=latest.value(subject.device, "admin_up") != 0,
        carrier=None if carrier is None else carrier == 1,
        operstate=None,
        speed_mbps=subject.speed_mbps,
        mtu=None if mtu is None else int(mtu),
        default_route=subject.default_route,
    )
