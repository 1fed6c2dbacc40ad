"""The sampler on a real kernel (veth, tap, namespaces) and on simulated machines."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from errno import EIO, EOPNOTSUPP
from pathlib import Path

import msgspec
import pytest

from nodeagent.facts.model import Function, Health, Reason, State
from nodeagent.host.netlink import ethtool_messages as ethtool
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.netlink.message import NetlinkRefusedError
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import measurement
from nodeagent.sampling.link_readers import EthtoolReader
from nodeagent.sampling.reader import PfNetdevs
from nodeagent.sampling.sampler import PREFERRED, LatestSamples, Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import pci_source
from nodeagent.sources.scan_hints import ScanHint
from nodeagent_lab.sim.machine import Machine
from tests.support.dead_files import dead
from tests.support.namespaces import Netns, veth
from tests.support.tap_devices import Tap
from tests.support.waiting import LIMIT_S

LINKS_ONLY = SamplesSettings(
    link_seconds=None,
    ethtool_seconds=None,
    driver_seconds=None,
    rdma_seconds=None,
    pcie_seconds=None,
    devlink_seconds=None,
    vf_seconds=None,
    module_seconds=None,
    kernel_log=False,
)
"""Only readings that hints cause."""


def function(address: str, netdev: str | None) -> Function:
    return Function(
        *(address, "15b3", "1021", "veth", netdev, "ethernet"),
        None,
        None,
        None,
        None,
        ("pci0000:00", address),
    )


class Latest:
    """The newest samples of a device, all readers together."""

    def __init__(self, samples: LatestSamples) -> None:
        self.samples = samples

    def values(self, device: str) -> dict[str, float]:
        return {
            name: value
            for sample in self.samples.all()
            if sample.device == device
            for name, value in sample.values.items()
        }

    def texts(self, device: str) -> dict[str, str]:
        return {
            name: text
            for sample in self.samples.all()
            if sample.device == device
            for name, text in sample.texts.items()
        }

    def at(self, device: str, source: Source) -> float | None:
        sample = self.samples.sample(device, source)
        return None if sample is None else sample.at


class SampledMachine:
    """A sampler and the samples that it published; ``functions`` may be replaced."""

    def __init__(self, tree: Tree, functions: Iterable[Function], rates: SamplesSettings) -> None:
        self.functions = tuple(functions)
        self.published: list[Sample] = []
        self._news = asyncio.Event()
        self.sampler = Sampler(tree, lambda: self.functions, self._state, rates)
        self.latest = Latest(self.sampler.latest)

    def _state(self, samples: Iterable[Sample]) -> None:
        self.published += samples
        self._news.set()

    async def once(self) -> Latest:
        try:
            await self.sampler.once()
        finally:
            self.sampler.close()
        return self.latest

    async def until(self, predicate: Callable[[Latest], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not predicate(self.latest):
                self._news.clear()
                await self._news.wait()

    async def readings(self, source: Source, count: int) -> None:
        """Wait for so many further samples of one reader."""
        begin = len(self.published)
        await self.until(lambda _: sum(new.source is source for new in self.published[begin:]) >= count)

    def value(self, device: str, name: str) -> float | None:
        return self.latest.values(device).get(name)


@asynccontextmanager
async def sampling(
    functions: Iterable[Function],
    rates: SamplesSettings = LINKS_ONLY,
    hints: Iterable[ScanHint] = (),
    root: Path | str = "/",
) -> AsyncIterator[SampledMachine]:
    sampled = SampledMachine(Tree(root), functions, rates)
    task = asyncio.create_task(sampled.sampler.watch(hints))
    try:
        yield sampled
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception():
            raise task.exception()


A, B = "0000:0a:00.0", "0000:0b:00.0"


def carrier(device: str, value: float) -> Callable[[Latest], bool]:
    return lambda latest: latest.values(device).get("carrier") == value


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_carrier_loss_and_its_return_are_sampled_immediately():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered(), LinkEvents() as events:
            async with sampling([function(A, "v0")], hints=[events]) as sampled:
                await sampled.until(carrier(A, 1))
                far.ip("link set w0 down")
                await sampled.until(carrier(A, 0))
                far.ip("link set w0 up")
                await sampled.until(carrier(A, 1))
                near.ip("link set v0 down")
                await sampled.until(lambda latest: latest.values(A).get("admin_up") == 0)
                assert sampled.value(A, "carrier") is None


@pytest.mark.needs("root", "ip", "nsenter")
async def test_speed_and_state_are_read_soon_after_a_link_changes():
    rates = SamplesSettings(
        link_seconds=600,
        ethtool_seconds=600,
        driver_seconds=None,
        rdma_seconds=None,
        pcie_seconds=None,
        devlink_seconds=None,
        vf_seconds=None,
        module_seconds=None,
        kernel_log=False,
    )
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered(), LinkEvents() as events:
            async with sampling([function(A, "v0")], rates, hints=[events]) as sampled:
                await sampled.until(lambda latest: latest.at(A, Source.MODES) is not None)
                before = sampled.latest.at(A, Source.MODES)
                far.ip("link set w0 down")
                await sampled.until(lambda latest: latest.at(A, Source.MODES) > before)
                assert sampled.value(A, "carrier") == 0


@pytest.mark.needs("root", "ip", "nsenter")
async def test_speed_and_state_are_read_as_often_as_the_links_while_one_is_faulty():
    rates = msgspec.structs.replace(LINKS_ONLY, link_seconds=0.05, ethtool_seconds=600)
    faulty = Health(State.DEGRADED, (Reason("low_speed", "slower than the others"),))
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered():
            async with sampling(
                [msgspec.structs.replace(function(A, "v0"), health=faulty)], rates
            ) as sampled:
                await sampled.readings(Source.MODES, 3)
                sampled.functions = (function(A, "v0"),)
                await sampled.readings(Source.LINK, 10)  # a reading of the modes that was due has been made
                before = sampled.latest.at(A, Source.MODES)
                await sampled.readings(Source.LINK, 10)
                assert sampled.latest.at(A, Source.MODES) == before


@pytest.mark.needs("root", "ip", "nsenter", "tun")
async def test_two_hundred_flaps_in_a_burst_count_as_two_hundred():
    with Netns() as near, Tap(near, "tap0") as tap, near.entered(), LinkEvents() as events:
        async with sampling([function(A, "tap0")], hints=[events]) as sampled:
            await sampled.until(carrier(A, 1))
            down, up = sampled.value(A, "carrier_down"), sampled.value(A, "carrier_up")
            tap.flap(200)
            await sampled.until(lambda latest: latest.values(A).get("carrier_down") == down + 200)
            assert sampled.value(A, "carrier_up") == up + 200
            assert sampled.value(A, "carrier") == 1


@pytest.mark.needs("root", "ip", "nsenter", "tun")
async def test_the_sweep_finds_a_second_loss_that_linkwatch_delays():
    with (
        Netns() as near,
        Tap(near, "tap0") as one,
        Tap(near, "tap1") as two,
        near.entered(),
        LinkEvents() as events,
    ):
        async with sampling([function(A, "tap0"), function(B, "tap1")], hints=[events]) as sampled:
            await sampled.until(carrier(B, 1))
            one.carrier(False)
            await sampled.until(carrier(A, 0))
            two.carrier(False)
            await sampled.until(carrier(B, 0))


@pytest.mark.needs("root", "ip", "nsenter", "tun")
async def test_events_that_the_kernel_dropped_are_counted_and_no_change_is_lost():
    with Netns() as near, Tap(near, "tap0") as tap, near.entered(), LinkEvents() as events:
        events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the kernel takes its least
        near.ip("\n".join(f"link add n{n} type veth peer name m{n}" for n in range(20)))
        tap.flap(3)
        async with sampling([function(A, "tap0")], hints=[events]) as sampled:
            await sampled.until(carrier(A, 1))
            down = sampled.value(A, "carrier_down")
            tap.carrier(False)
            await sampled.until(carrier(A, 0))
            assert sampled.value(A, "carrier_down") == down + 1
            assert sampled.sampler.overruns()["events"] > 0


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_renamed_netdev_stays_the_same_device():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered(), LinkEvents() as events:
            async with sampling([function(A, "v0")], hints=[events]) as sampled:
                await sampled.until(carrier(A, 1))
                near.ip("link set v0 name ens9np0")
                far.ip("link set w0 down")
                await sampled.until(carrier(A, 0))
                sampled.functions = (function(A, "ens9np0"),)
                far.ip("link set w0 up")
                await sampled.until(carrier(A, 1))


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_netdev_in_another_namespace_has_no_sample_and_the_others_do():
    with Netns() as near, Netns() as far, Netns() as pod:
        veth(near, "v0", far, "w0")
        veth(near, "v1", far, "w1")
        with near.entered():
            sampled = SampledMachine(Tree("/"), [function(A, "v0"), function(B, "v1")], LINKS_ONLY)

            async def sampled_devices() -> set[str]:
                sampled.published.clear()
                await sampled.once()
                return {sample.device for sample in sampled.published}

            assert await sampled_devices() == {A, B}
            near.ip(f"link set v0 netns {pod.path}")
            assert await sampled_devices() == {B}
            pod.ip(f"link set v0 netns {near.path}")
            near.ip("link set v0 up")
            assert await sampled_devices() == {A, B}
            near.ip("link delete v1")
            assert await sampled_devices() == {A}
            assert sampled.latest.at(B, Source.LINK) is not None
            sampled.functions = (function(A, "v0"),)
            await sampled_devices()
            assert {sample.device for sample in sampled.sampler.samples()} == {A}


def as_nobody(work: Callable[[], None]) -> None:
    """Run in a thread without privileges; setresuid as a system call changes only the calling thread."""

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(117, 65534, 65534, 65534) == 0  # setresuid on x86-64
        work()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()


@pytest.mark.needs("root", "ip", "nsenter")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_without_privileges_only_the_eeprom_cannot_be_read(caplog):
    caplog.set_level(logging.INFO)

    async def once() -> dict[Source, str]:
        sampled = SampledMachine(Tree("/"), [function(A, "v0")], SamplesSettings())
        await sampled.once()
        assert {sample.source for sample in sampled.published} >= {Source.LINK, Source.MODES, Source.DRIVER}
        return {source: one.reason for source, one in sampled.sampler.statuses.items() if one.reason}

    reasons: dict[Source, str] = {}
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered():
            as_nobody(lambda: reasons.update(asyncio.run(once())))
    assert list(reasons) == [Source.MODULE]
    assert "CAP_NET_ADMIN" in reasons[Source.MODULE]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, line in lines if "source=module" in line] == ["INFO"], (
        "it is withheld on purpose"
    )
    assert not [line for level, line in lines if level == "WARNING"]


# --- one port's trouble ---------------------------------------------------------------------------------


class Family:
    """An ethtool socket: the driver of ifindex 2 fails, the driver of 3 has no answer."""

    broken = True
    queries = 0

    def all(self, question):
        self.queries += 1
        if self.broken:
            raise NetlinkRefusedError("ethtool", EIO)
        return [ethtool.PauseCounters(1, 1, 1), ethtool.PauseCounters(2, 2, 2)]

    def one(self, question, ifindex):
        self.queries += 1
        if ifindex > 1:
            raise NetlinkRefusedError("ethtool", EIO if ifindex == 2 else EOPNOTSUPP)
        return ethtool.PauseCounters(1, 1, 1)


class FailingSocket:
    def __init__(self) -> None:
        self.connection = Family()
        self.overruns = 0

    def get(self):
        return self.connection

    def close(self):
        pass


def test_a_port_whose_driver_fails_is_skipped_and_logged_once(caplog):
    ports = PfNetdevs({A: 1, B: 2, "c": 3})
    ethtool_socket = FailingSocket()
    pfs = [function(device, device) for device in ports.ifindex]
    reader = EthtoolReader(
        Source.PAUSE,
        ports,
        ethtool_socket,
        ethtool.PAUSE,
        lambda one: ({"rx_pause_frames": one.rx_frames}, {}),
    )
    for _ in range(3):
        assert [sample.device for sample in reader.read(pfs)] == [A]
    assert len([record for record in caplog.records if "skips a device" in record.message]) == 1
    assert (list(reader.skipped.reasons), reader.skipped.count) == ([B], 1)
    assert ethtool_socket.connection.queries == 1 + 3 + 2 + 2, "the dump or the port was retried early"
    ethtool_socket.connection.broken = False
    reader._dump_again_at = 0
    assert [sample.device for sample in reader.read(pfs)] == [A, B]
    assert not reader.skipped.reasons


# --- one counter, two readers ------------------------------------------------------------------------------------


def test_only_one_reader_states_a_counter():
    latest, spoken = LatestSamples(), set[Source]()

    def take(source: Source, **values: float) -> dict[str, float]:
        return latest.take([Sample(1, A, source, values)], spoken.__contains__)[0].values

    assert take(Source.LINK, crc_errors=5, rx_bytes=1) == {"rx_bytes": 1}, "the driver may know better"
    spoken.add(Source.DRIVER)
    assert take(Source.LINK, crc_errors=5) == {}, "the kernel's standard counters may know better"
    spoken.add(Source.STANDARD)
    assert take(Source.LINK, crc_errors=5) == {"crc_errors": 5}, "they do not"
    assert take(Source.DRIVER, crc_errors=7) == {"crc_errors": 7}
    assert take(Source.LINK, crc_errors=5) == {}
    assert Latest(latest).values(A)["crc_errors"] == 7
    assert take(Source.STANDARD, crc_errors=8) == {"crc_errors": 8}
    assert take(Source.DRIVER, crc_errors=7) == take(Source.LINK, crc_errors=5) == {}
    assert Latest(latest).values(A)["crc_errors"] == 8


def test_a_driver_counts_symbols_where_the_standard_counts_frames():
    """mlx5: SymbolErrorDuringCarrier is ``rx_symbol_err_phy``, and ``rx_pcs_symbol_err_phy`` is finer."""
    latest = LatestSamples()

    def take(**of: float) -> list[dict[str, float]]:
        samples = [Sample(1, A, Source(source), {"symbol_errors": value}) for source, value in of.items()]
        return [sample.values for sample in latest.take(samples, lambda _source: True)]

    assert take(standard=1) == [{"symbol_errors": 1}], "another driver has no name of its own"
    assert take(standard=1, driver=50) == take(standard=1, driver=50) == [{}, {"symbol_errors": 50}]


@pytest.mark.parametrize("order", [*itertools.permutations((Source.LINK, Source.DRIVER, Source.STANDARD))])
def test_the_readers_of_one_batch_need_no_order(order: tuple[Source, ...]) -> None:
    latest = LatestSamples()
    samples = [
        Sample(1, A, source, {name: 1 for name, readers in PREFERRED.items() if source in readers})
        for source in order
    ]
    taken = latest.take(samples, lambda _source: True)
    assert sorted(name for sample in taken for name in sample.values) == sorted(PREFERRED)
    assert [sample.source for sample in taken if "crc_errors" in sample.values] == [Source.STANDARD]


# --- simulated machines ---------------------------------------------------------------------------------

SMALL = "two-gpu-two-nic"


def machine(tmp_path: Path) -> tuple[Machine, Path, tuple[Function, ...], str]:
    made, root = Machine.load(SMALL), tmp_path / "m"
    made.write(root)
    return made, root, pci_source.scan(Tree(root)).functions, made.nic(0).address


async def test_faults_of_a_simulated_nic_are_sampled(tmp_path):
    made, root, functions, nic = machine(tmp_path)
    sampled = SampledMachine(Tree(root), functions, SamplesSettings())
    await sampled.once()
    before = sampled.latest.values(nic)
    assert before["carrier"] == before["rdma_port_active"] == before["roce_v2_gids"] == 1
    assert before["pcie_width"] == before["pcie_expected_width"] == 16
    assert before["speed_mbps"] == before["supported_mbps"] == 400_000
    assert sampled.latest.texts(nic)["fec_mode"] == "RS"
    made.flap(nic, 3)
    made.count(nic, "symbol_errors", 40)
    made.count(nic, "fec_uncorrectable_blocks", 2)
    made.count(nic, "lane_errors/2", 1000)
    made.count(nic, "rdma_ack_timeouts", 9)
    made.light(nic, 1, 0.0)
    made.heat(nic, 78)
    made.downtrain(nic, "16.0", 8)
    made.count_aer(nic, "fatal", "DLP")
    made.fail_reporter(nic)
    made.set_speed(nic, 200_000)
    made.set_gids(nic, False)
    made.count(nic, "kernel_events/unrecoverable")
    await sampled.once()
    after = sampled.latest.values(nic)
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    assert changed == {
        "carrier_down": before["carrier_down"] + 3,
        "carrier_up": before["carrier_up"] + 3,
        "link_down_events": 3,
        "ext_down": 3,
        "symbol_errors": 40,
        "fec_uncorrectable_blocks": 2,
        "lane_errors/2": 1000,
        "rdma_ack_timeouts": 9,
        "rx_power_watts/1": 0,
        "module_celsius": 78,
        "pcie_gts": 16,
        "pcie_width": 8,
        "aer_fatal/DLP": 1,
        "devlink_error/fw_fatal": 1,
        "devlink_errors/fw_fatal": 1,
        "speed_mbps": 200_000,
        "roce_v2_gids": 0,
        "kernel_events/unrecoverable": 1,
    }


async def test_every_name_of_a_simulated_machine_is_in_the_table(tmp_path):
    _, root, functions, _ = machine(tmp_path)
    sampled = SampledMachine(Tree(root), functions, SamplesSettings())
    await sampled.once()
    assert {sample.source for sample in sampled.published} == set(Source) - {
        Source.GPU,
        Source.ADMINISTRATION,
        Source.RAILS,
        Source.ATTACH,
    }
    for sample in sampled.published:
        for name in sample.values:
            datum = measurement(name)
            assert datum is not None, name
            assert datum.source == sample.source or name in PREFERRED, name


async def test_a_machine_without_recorded_samples_has_those_of_sysfs(tmp_path):
    _, root, functions, nic = machine(tmp_path)
    with_file = SampledMachine(Tree(root), functions, SamplesSettings())
    await with_file.once()
    (root / ".nodeagent/samples.json").unlink()
    sampled = SampledMachine(Tree(root), functions, SamplesSettings())
    await sampled.once()
    assert {sample.source for sample in sampled.published} == {
        Source.LINK,
        Source.MODES,
        Source.PCIE,
        Source.RDMA,
    }
    recorded = with_file.latest.values(nic)
    for name, value in sampled.latest.values(nic).items():
        assert recorded.get(name, 0) == value, name


@pytest.mark.parametrize("text", ["", "{}", "[{}]", '[{"at":1,"device":"a","source":"tea"}]', "\xff"])
async def test_a_broken_file_of_samples_fails_the_link_reader_and_is_logged_once(tmp_path, text, caplog):
    _, root, functions, _ = machine(tmp_path)
    (root / ".nodeagent/samples.json").write_text(text, "latin-1")
    sampled = SampledMachine(Tree(root), functions, SamplesSettings())
    for _ in range(3):
        await sampled.once()
    status = sampled.sampler.statuses[Source.LINK]
    assert (status.errors, status.attempts, status.succeeded_at) == (3, 3, None)
    assert "samples.json" in status.reason
    assert len([record for record in caplog.records if "failed" in record.message]) == 1
    assert sampled.sampler.statuses[Source.PCIE].attempts == 3
    assert sampled.sampler.statuses[Source.PCIE].errors == 0


@pytest.mark.needs("root", "fuse")
async def test_a_reader_that_hangs_is_reported_and_the_others_continue(tmp_path, caplog):
    _, root, functions, nic = machine(tmp_path)
    speed = Path(os.path.realpath(root / f"sys/bus/pci/devices/{nic}")) / "current_link_speed"
    speed.write_text("32.0 GT/s PCIe\n")
    hanging = ExitStack()
    hanging.enter_context(dead(speed))
    rates = SamplesSettings(
        link_seconds=0.02, pcie_seconds=0.02, rdma_seconds=0.02, kernel_log=False, hang_seconds=0.1
    )
    async with sampling(functions, rates, root=root) as sampled:
        statuses = sampled.sampler.statuses
        await sampled.until(lambda _: statuses[Source.PCIE].hanging)
        links, rdma = statuses[Source.LINK].attempts, statuses[Source.RDMA].attempts
        await sampled.until(
            lambda _: statuses[Source.LINK].attempts > links + 2 and statuses[Source.RDMA].attempts > rdma + 2
        )
        assert statuses[Source.PCIE].succeeded_at is None
        assert "not answered" in statuses[Source.PCIE].reason
        hanging.close()
        await sampled.until(lambda _: statuses[Source.PCIE].succeeded_at is not None)
        assert not statuses[Source.PCIE].hanging
        assert sampled.value(nic, "pcie_gts") == 32
    assert len([record for record in caplog.records if "hangs" in record.message]) == 1


async def test_samples_of_the_file_get_the_time_of_reading(tmp_path):
    _, root, functions, nic = machine(tmp_path)
    path = root / ".nodeagent/samples.json"
    path.write_text(
        json.dumps([{"at": 5, "device": nic, "source": "fec"}, {"at": 5, "device": "x", "source": "fec"}])
    )
    sampled = SampledMachine(Tree(root), functions, SamplesSettings())
    await sampled.once()
    assert [sample.device for sample in sampled.published if sample.source is Source.FEC] == [nic]
    assert sampled.latest.at(nic, Source.FEC) > 5


@pytest.mark.needs("root", "ip", "nsenter")
async def test_changes_by_an_administrator_are_sampled():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered(), LinkEvents() as events:
            async with sampling([function(A, "v0")], hints=[events]) as sampled:
                await sampled.until(lambda latest: latest.values(A).get("administration/mtu") == 0)
                near.ip("link set v0 down")
                near.ip("link set v0 up")
                await sampled.until(lambda latest: latest.values(A).get("administration/admin", 0) >= 1)
                near.ip("link set v0 mtu 1400")
                await sampled.until(lambda latest: latest.values(A).get("administration/mtu") == 1)
                far.ip("link set w0 mtu 1300")
                assert sampled.value(A, "administration/mtu") == 1
