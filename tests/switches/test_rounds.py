"""Rounds of asking switches, in virtual time: when they come, how many are asked at once, and what is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from nodeagent.fabric.uplinks import KnownSwitch, SwitchNeighbor
from nodeagent.switches.answers import Reading
from nodeagent.switches.rounds import NAMED_MAX, SwitchError, Switches
from nodeagent.switches.secret import Secret, secrets
from nodeagent.switches.switch_settings import SwitchesSettings
from tests.support import virtual_time


def leaf(number: int, *addresses: str) -> KnownSwitch:
    return KnownSwitch(f"leaf{number}", (f"leaf{number}",), (), addresses or (f"10.0.0.{number}",))


def above(name: str, *addresses: str) -> SwitchNeighbor:
    return SwitchNeighbor(f"local={name}", f"local={name}", name, True, addresses)


class Planned:
    """What a planner is, to whom it matters here."""

    def __init__(self, *known: KnownSwitch) -> None:
        self.known = list(known)
        self.told: list[dict[str, tuple[str, ...]]] = []

    def switches(self) -> tuple[KnownSwitch, ...]:
        return tuple(self.known)

    def is_node(self, name: str) -> bool:
        return name.startswith("node")

    def uplinks(self, heard: Mapping[str, tuple[str, ...]], *, by_key: bool = False) -> None:
        assert by_key
        self.told.append(dict(heard))


class Network:
    """Answers by address; whoever has none hangs. ``at_once`` is the most that were asked at a time."""

    def __init__(self, **answers: Reading | Exception) -> None:
        self.answers = {key.replace("_", ".").removeprefix("a."): value for key, value in answers.items()}
        self.asked: list[tuple[float, str]] = []
        self.at_once = self._now = 0
        self.takes_s = 0.1

    async def read(self, address: str, secret: Secret) -> Reading:
        self.asked.append((asyncio.get_running_loop().time(), address))
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


def test_rounds_come_by_their_interval_and_early_for_a_switch_that_is_new():
    network = Network(
        a_10_0_0_1=Reading("leaf1", "", (above("spine1"),)),
        a_10_0_0_2=Reading("leaf2", "", (above("spine1"),)),
    )
    planned = Planned(leaf(1))
    news = []

    async def hours() -> None:
        switches = Switches(ANYWHERE, network, planned, lambda: news.append(1))
        running = asyncio.create_task(switches.run())
        await asyncio.sleep(3000)
        assert 4 <= len(network.asked) <= 6
        before, planned.known = len(network.asked), [leaf(1), leaf(2)]
        became = asyncio.get_running_loop().time()
        await asyncio.sleep(31)
        first = next(at for at, address in network.asked[before:] if address == "10.0.0.2")
        assert first - became <= 30.0
        running.cancel()
        await asyncio.wait((running,))

    virtual_time.run(hours())
    assert planned.told == [{"leaf1": ("spine1",)}, {"leaf1": ("spine1",), "leaf2": ("spine1",)}]
    assert len(news) == 2


def test_no_more_are_asked_at_once_than_is_set_and_those_that_hang_take_their_time_alone():
    known = [leaf(number) for number in range(1, 101)]
    network = Network()
    network.answers = {f"10.0.0.{n}": Reading(f"leaf{n}", "", (above("spine1"),)) for n in range(1, 91)}
    planned = Planned(*known)

    async def one() -> float:
        way = SwitchesSettings(networks=("10.0.0.0/8",), parallel=8, timeout_seconds=5.0)
        switches = Switches(way, network, planned, lambda: None)
        await switches.round()
        assert switches.reads == {"ok": 90, "timeout": 10}
        assert switches.states == {"read": 90, "silent": 10, "no-address": 1}
        return asyncio.get_running_loop().time()

    assert virtual_time.run(one()) < 15.0
    assert network.at_once == 8
    assert len(planned.told[0]) == 90


def test_the_switches_above_are_asked_for_what_is_above_them():
    network = Network(
        a_10_0_0_1=Reading("leaf1", "", (above("spine1", "10.0.9.1"), above("node-1"))),
        a_10_0_9_1=Reading("spine1", "", (above("leaf1"), above("core1"), above("core2"))),
    )
    planned = Planned(leaf(1))

    async def one(upwards: bool) -> None:
        way = SwitchesSettings(networks=("10.0.0.0/8",), upwards=upwards)
        await Switches(way, network, planned, lambda: None).round()

    virtual_time.run(one(True))
    virtual_time.run(one(False))
    assert planned.told == [
        {"leaf1": ("spine1",), "spine1": ("core1", "core2", "leaf1")},
        {"leaf1": ("spine1",)},
    ]


def test_several_addresses_are_tried_in_order_and_only_where_one_may():
    network = Network(
        a_10_0_0_1=SwitchError("closed", "unreachable"), a_10_0_0_9=Reading("leaf1", "", (above("spine1"),))
    )
    planned = Planned(leaf(1, "10.0.0.9", "nonsense", "fe80::1", "10.0.0.1", "169.254.169.254"))

    async def one() -> Switches:
        switches = Switches(SwitchesSettings(networks=("10.0.0.0/24",)), network, planned, lambda: None)
        await switches.round()
        return switches

    switches = virtual_time.run(one())
    assert [address for _, address in network.asked] == ["10.0.0.1", "10.0.0.9"]
    assert not switches.trouble


def test_a_switch_that_is_gone_is_forgotten_and_one_without_lldp_changes_nothing():
    network = Network(a_10_0_0_1=Reading("leaf1", "", (above("spine1"),)))
    planned = Planned(leaf(1))

    async def rounds() -> None:
        switches = Switches(ANYWHERE, network, planned, lambda: None)
        await switches.round()
        network.answers["10.0.0.1"] = Reading("", "", ())
        await switches.round()
        assert switches.reads["no-lldp"] == 1
        planned.known = []
        await switches.round()

    virtual_time.run(rounds())
    assert planned.told == [{"leaf1": ("spine1",)}, {}]


def test_a_log_names_some_of_many_and_shows_no_escape(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    hostile = KnownSwitch("\x1b[2Jevil", ("\x1b[2Jevil",), (), ("10.0.0.200",))
    known = [hostile, *(leaf(number) for number in range(1, 60))]
    network = Network()
    network.answers = {f"10.0.0.{n}": SwitchError("refuses", "refused") for n in range(1, 60)}
    network.answers["10.0.0.200"] = Reading("\x1b[2J" + "x" * 2000, "local=\x1b", ())

    async def rounds() -> None:
        switches = Switches(ANYWHERE, network, Planned(*known), lambda: None)
        for _ in range(3):
            await switches.round()

    virtual_time.run(rounds())
    assert len(caplog.records) == NAMED_MAX + 1
    assert "\x1b" not in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 400


def test_a_credential_that_cannot_be_read_says_so(tmp_path):
    (tmp_path / "password").mkdir()
    with pytest.raises(SwitchError, match="password cannot be read: Is a directory"):
        secrets(str(tmp_path)).text("password")
    with pytest.raises(SwitchError, match="community is not there"):
        secrets(str(tmp_path)).need("community")
    (tmp_path / "community").write_bytes(b"\xff")
    with pytest.raises(SwitchError, match="not text"):
        secrets(str(tmp_path)).need("community")
