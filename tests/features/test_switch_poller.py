"""Rounds of the switch poller in virtual time: their times, parallel readings, and the planner's uplinks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from nodeagent.fabric.uplinks import KnownSwitch, SwitchNeighbor
from nodeagent.features.switches.credentials import SwitchCredentials, read_credentials
from nodeagent.features.switches.switch_poller import NAMED_MAX, SwitchError, SwitchPoller
from nodeagent.features.switches.switch_reading import SwitchReading
from nodeagent.features.switches.switch_settings import SwitchesSettings
from tests.support import virtual_time


def leaf(number: int, *addresses: str) -> KnownSwitch:
    return KnownSwitch(f"leaf{number}", (f"leaf{number}",), (), addresses or (f"10.0.0.{number}",))


def above(name: str, *addresses: str) -> SwitchNeighbor:
    return SwitchNeighbor(f"local={name}", f"local={name}", name, True, addresses)


class RecordingPlanner:
    """Stands in for the planner and records the uplinks."""

    def __init__(self, *known: KnownSwitch) -> None:
        self.known = list(known)
        self.uplink_calls: list[dict[str, tuple[str, ...]]] = []

    def switches(self) -> tuple[KnownSwitch, ...]:
        return tuple(self.known)

    def is_node(self, name: str) -> bool:
        return name.startswith("node")

    def uplinks(self, neighbors: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None:
        assert by_key
        self.uplink_calls.append(dict(neighbors))


class Network:
    """Answers by address; an address without an answer hangs. ``at_once`` is the highest number of parallel reads."""

    def __init__(self, **answers: SwitchReading | Exception) -> None:
        self.answers = {key.replace("_", ".").removeprefix("a."): value for key, value in answers.items()}
        self.requests: list[tuple[float, str]] = []
        self.at_once = self._now = 0
        self.takes_s = 0.1

    async def read(self, address: str, credentials: SwitchCredentials) -> SwitchReading:
        self.requests.append((asyncio.get_running_loop().time(), address))
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        try:
            answer = self.answers.get(address)
            await asyncio.sleep(self.takes_s if answer is not None else 10_000)
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None
            return answer
        finally:
            self._now -= 1


ANYWHERE = SwitchesSettings(networks=("0.0.0.0/0", "::/0"))


def test_rounds_follow_their_interval_and_start_early_for_a_new_switch():
    network = Network(
        a_10_0_0_1=SwitchReading("leaf1", "", (above("spine1"),)),
        a_10_0_0_2=SwitchReading("leaf2", "", (above("spine1"),)),
    )
    planner = RecordingPlanner(leaf(1))
    news = []

    async def hours() -> None:
        poller = SwitchPoller(ANYWHERE, network, planner, lambda: news.append(1))
        running = asyncio.create_task(poller.run())
        await asyncio.sleep(3000)
        assert 4 <= len(network.requests) <= 6
        before, planner.known = len(network.requests), [leaf(1), leaf(2)]
        became = asyncio.get_running_loop().time()
        await asyncio.sleep(31)
        first = next(at for at, address in network.requests[before:] if address == "10.0.0.2")
        assert first - became <= 30.0
        running.cancel()
        await asyncio.wait((running,))

    virtual_time.run(hours())
    assert planner.uplink_calls == [{"leaf1": ("spine1",)}, {"leaf1": ("spine1",), "leaf2": ("spine1",)}]
    assert len(news) == 2


def test_parallel_reads_are_limited_and_a_hanging_switch_does_not_delay_others():
    known = [leaf(number) for number in range(1, 101)]
    network = Network()
    network.answers = {f"10.0.0.{n}": SwitchReading(f"leaf{n}", "", (above("spine1"),)) for n in range(1, 91)}
    planner = RecordingPlanner(*known)

    async def one() -> float:
        settings = SwitchesSettings(networks=("10.0.0.0/8",), parallel=8, timeout_seconds=5.0)
        poller = SwitchPoller(settings, network, planner, lambda: None)
        await poller.poll_once()
        assert poller.reads == {"ok": 90, "timeout": 10}
        assert poller.states == {"read": 90, "silent": 10, "no-address": 1}
        return asyncio.get_running_loop().time()

    assert virtual_time.run(one()) < 15.0
    assert network.at_once == 8
    assert len(planner.uplink_calls[0]) == 90


def test_the_upper_switches_are_read_for_their_uplinks():
    network = Network(
        a_10_0_0_1=SwitchReading("leaf1", "", (above("spine1", "10.0.9.1"), above("node-1"))),
        a_10_0_9_1=SwitchReading("spine1", "", (above("leaf1"), above("core1"), above("core2"))),
    )
    planner = RecordingPlanner(leaf(1))

    async def one(upwards: bool) -> None:
        settings = SwitchesSettings(networks=("10.0.0.0/8",), upwards=upwards)
        await SwitchPoller(settings, network, planner, lambda: None).poll_once()

    virtual_time.run(one(True))
    virtual_time.run(one(False))
    assert planner.uplink_calls == [
        {"leaf1": ("spine1",), "spine1": ("core1", "core2", "leaf1")},
        {"leaf1": ("spine1",)},
    ]


def test_several_addresses_are_tried_in_order_but_only_in_allowed_networks():
    network = Network(
        a_10_0_0_1=SwitchError("closed", "unreachable"),
        a_10_0_0_9=SwitchReading("leaf1", "", (above("spine1"),)),
    )
    planner = RecordingPlanner(leaf(1, "10.0.0.9", "nonsense", "fe80::1", "10.0.0.1", "169.254.169.254"))

    async def one() -> SwitchPoller:
        poller = SwitchPoller(SwitchesSettings(networks=("10.0.0.0/24",)), network, planner, lambda: None)
        await poller.poll_once()
        return poller

    poller = virtual_time.run(one())
    assert [address for _, address in network.requests] == ["10.0.0.1", "10.0.0.9"]
    assert not poller.errors


def test_a_removed_switch_is_dropped_and_one_without_lldp_changes_nothing():
    network = Network(a_10_0_0_1=SwitchReading("leaf1", "", (above("spine1"),)))
    planner = RecordingPlanner(leaf(1))

    async def rounds() -> None:
        poller = SwitchPoller(ANYWHERE, network, planner, lambda: None)
        await poller.poll_once()
        network.answers["10.0.0.1"] = SwitchReading("", "", ())
        await poller.poll_once()
        assert poller.reads["no-lldp"] == 1
        planner.known = []
        await poller.poll_once()

    virtual_time.run(rounds())
    assert planner.uplink_calls == [{"leaf1": ("spine1",)}, {}]


def test_a_switch_without_neighbors_is_named_once_and_its_last_neighbors_stay(
    caplog: pytest.LogCaptureFixture,
):
    spine, empty = SwitchReading("leaf1", "", (above("spine1"),)), SwitchReading("leaf1", "local=leaf1", ())
    network = Network(a_10_0_0_1=spine)
    planner = RecordingPlanner(leaf(1))

    async def rounds() -> None:
        poller = SwitchPoller(ANYWHERE, network, planner, lambda: None)
        await poller.poll_once()
        network.answers["10.0.0.1"] = empty
        for _ in range(2):
            await poller.poll_once()
        assert poller.reads == {"ok": 1, "no-neighbors": 2}
        assert poller.states["read"] == 1
        assert "reports no LLDP neighbors, though others receive its frames" in poller.errors["leaf1"]
        assert caplog.text.count("leaf1") == 1, "one line for a transition"
        network.answers["10.0.0.1"] = spine
        await poller.poll_once()
        assert not poller.errors

    virtual_time.run(rounds())
    assert planner.uplink_calls == [{"leaf1": ("spine1",)}], "equal uplinks are not passed again"


def test_the_log_names_some_of_many_switches_and_escapes_their_names(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    hostile = KnownSwitch("\x1b[2Jevil", ("\x1b[2Jevil",), (), ("10.0.0.200",))
    known = [hostile, *(leaf(number) for number in range(1, 60))]
    network = Network()
    network.answers = {f"10.0.0.{n}": SwitchError("refuses", "refused") for n in range(1, 60)}
    network.answers["10.0.0.200"] = SwitchReading("\x1b[2J" + "x" * 2000, "local=\x1b", ())

    async def rounds() -> None:
        poller = SwitchPoller(ANYWHERE, network, RecordingPlanner(*known), lambda: None)
        for _ in range(3):
            await poller.poll_once()

    virtual_time.run(rounds())
    assert len(caplog.records) == NAMED_MAX + 1
    assert "\x1b" not in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 400


def test_an_unreadable_credential_is_an_error_with_the_reason(tmp_path):
    (tmp_path / "authPassword").mkdir()
    with pytest.raises(SwitchError, match="authPassword cannot be read: Is a directory"):
        read_credentials(str(tmp_path)).text("authPassword")
    with pytest.raises(SwitchError, match="community does not exist"):
        read_credentials(str(tmp_path)).need("community")
    (tmp_path / "community").write_bytes(b"\xff")
    with pytest.raises(SwitchError, match="not text"):
        read_credentials(str(tmp_path)).need("community")
