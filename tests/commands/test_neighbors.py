"""The verb: what a person and a program see of the links of a namespace."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.commands.neighbors import live
from nodeagent.commands.scan import listing
from nodeagent.host.packet import open_on
from nodeagent.lldp.lldpd_json import LldpdError
from nodeagent.sim.machine import Machine
from nodeagent.sources.source_settings import LinkSelect, LldpSettings
from tests.sources.test_neighbor_table import announce
from tests.support.namespaces import Netns, veth

SWP = LinkSelect(netdevs=("swp*",))
QUIET = LldpSettings()


@pytest.fixture
def links():
    """Three links in this thread's namespace: ``swp1`` and ``swp2`` with carrier, ``swp3`` without."""
    with Netns() as near, Netns() as far:
        for number in (1, 2, 3):
            veth(near, f"swp{number}", far, f"b{number}")
        far.ip("link set b3 down")
        with near.entered():
            yield near, far


@pytest.fixture
def root(tmp_path):
    """A machine without PCI devices, for its netdevs are told by the kernel."""
    (tmp_path / "sys").mkdir()
    return tmp_path


@pytest.mark.needs("root", "ip", "nsenter")
async def test_one_look_ends_when_every_link_with_carrier_was_heard(links, root):
    _, far = links
    said: list[str] = []

    def speak(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            for number in (1, 2):
                with far.raw(f"b{number}") as switch:
                    switch.send(announce("leaf-1", f"Ethernet{number}", port_description="node-7\x1b[31m"))

    async with asyncio.timeout(10):
        seen = await live.once(SWP, QUIET, root, wait_s=60, progress=speak)
    assert said[0] == "0 of 2 links with carrier heard (3 links in all); waiting up to 60 s for the others"
    assert said[-1] != said[0]
    table = live.as_table(seen).splitlines()
    assert table[0].split("  ")[0] == "LINK"
    assert re.fullmatch(r"swp1  -  +leaf-1  Ethernet1  node-7\\x1b\[31m  -  +0s   live", table[1])
    assert re.fullmatch(r"swp3  -  +-  +-  +-  +-  +-    down", table[3])
    told = json.loads(live.as_json(seen))
    assert [link["state"] for link in told["links"]] == ["live", "live", "down"]
    one = told["links"][0]["neighbors"][0]
    assert one["port_id"] == {"subtype": "ifname", "value": "Ethernet1"}
    assert 0 <= one["age_seconds"] < 10
    assert one["stale"] is False


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_look_that_was_too_short_to_judge_silence_says_how_long_it_was(links, root):
    async with asyncio.timeout(10):
        seen = await live.once(SWP, QUIET, root, wait_s=0.2)
    assert [row.state for row in seen.rows] == ["unheard", "unheard", "down"]
    told = live.as_table(seen)
    assert "swp1: nothing was heard in 0.2 s, which says little: a switch speaks every 30 s" in told
    assert "most likely" not in told


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_link_that_was_silent_for_long_has_a_likely_reason(links, root):
    async with asyncio.timeout(10):
        seen = await live.once(SWP, QUIET, root, wait_s=0.3, silent_after_s=0.1)
    assert [row.state for row in seen.rows] == ["silent", "silent", "down"]
    assert "swp1: carrier, but no LLDP for 65 s: LLDP is most likely off on the switch port" in live.as_table(
        seen
    )


@pytest.mark.needs("root", "ip", "nsenter")
async def test_watching_shows_each_change(links, root):
    _, far = links
    looks = live.watch(SWP, QUIET, root)
    async with asyncio.timeout(10):
        first = await anext(looks)
        assert [row.state for row in first.rows] == ["unheard", "unheard", "down"]
        with far.raw("b1") as switch:
            switch.send(announce("leaf-1"))
            assert [row.state for row in (await anext(looks)).rows] == ["live", "unheard", "down"]
            switch.send(announce("leaf-1", ttl=0))
            assert [row.state for row in (await anext(looks)).rows] == ["unheard", "unheard", "down"]
        await looks.aclose()


TALKATIVE = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
links: {select: {netdevs: ["swp*"]}}
lldp: {transmit: true}
"""


def talkative() -> Config:
    return load(TALKATIVE, name="talkative.yaml")


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_scan_listens_until_every_link_that_is_named_was_heard(links, root):
    _, far = links

    async def speak() -> None:
        while True:  # until the scan's sockets are there
            for number in (1, 2):
                with far.raw(f"b{number}") as switch:
                    switch.send(announce("leaf-1", f"Ethernet{number}"))
            await asyncio.sleep(0.05)

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(10):
            seen = await listing.once(talkative(), root, wait_s=60)
    finally:
        speaking.cancel()
    assert [one.link for one in seen.snapshot.neighbors] == ["swp1", "swp2"]


@pytest.mark.needs("root", "ip", "nsenter")
async def test_whoever_looks_says_nothing_to_the_switches(links, root):
    """Their farewell would be taken for the daemon's."""
    _, far = links
    with far.entered():
        heard = open_on(far.ifindex("b1"))
    with heard as switch:
        async with asyncio.timeout(10):
            await listing.once(talkative(), root, wait_s=0.3)
            looks = live.watch(SWP, talkative().lldp, root)
            await anext(looks)
            with far.raw("b1") as wire:
                wire.send(announce("leaf-1"))
            await anext(looks)
            await looks.aclose()
        with pytest.raises(BlockingIOError):
            switch.recv(2048)


async def test_a_scan_waits_for_nobody_where_it_does_not_listen(tmp_path):
    Machine.load("two-gpu-two-nic").write(tmp_path / "root")
    async with asyncio.timeout(10):
        seen = await listing.once(Config(), tmp_path / "root", wait_s=60)
    assert seen.snapshot.links


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_machine_without_links_is_told_what_to_name(links, root):
    seen = await live.once(LinkSelect(), QUIET, root)
    assert live.as_table(seen).startswith("No netdev is a link here")


@pytest.mark.needs("root", "ip", "nsenter")
async def test_what_lldpd_knows_is_shown_in_the_same_way(links, root):
    told = {
        "name": "swp1",
        "chassis": [{"id": [{"type": "mac", "value": "02:00:00:00:00:01"}], "name": [{"value": "leaf-1"}]}],
        "port": [{"id": [{"type": "local", "value": "Eth1/1"}], "mfs": [{"value": "1000"}]}],
    }
    answer = json.dumps({"lldp": [{"interface": [told, {**told, "name": "eno1"}]}]})
    settings = LldpSettings(source="lldpd", command=(sys.executable, "-c", f"print({answer!r})"))
    seen = await live.once(SWP, settings, root)
    assert [(row.link, row.state) for row in seen.rows] == [
        ("swp1", "live"),
        ("swp2", "unheard"),
        ("swp3", "down"),
    ]
    assert [(one.link, one.key) for one in seen.findings] == [("swp1", "frame_size_mismatch")]
    assert re.search(r"^swp1 .* leaf-1 .* Eth1/1 .* - +live$", live.as_table(seen), re.MULTILINE)
    looks = live.watch(SWP, settings, root)
    assert await anext(looks) == seen
    await looks.aclose()


async def test_trouble_with_the_source_is_raised_to_whoever_asked(root):
    with pytest.raises(LldpdError, match="no-such-lldpcli cannot be run"):
        await live.once(SWP, LldpSettings(source="lldpd", command=("no-such-lldpcli",)), root)


@pytest.mark.needs("root", "ip", "nsenter", "setpriv")
def test_want_of_a_capability_ends_the_look_with_its_name(links):
    near, _ = links
    code = """
import asyncio, pathlib
from nodeagent.commands.neighbors import live
from nodeagent.sources.source_settings import LinkSelect
from nodeagent.sources.source_settings import LldpSettings
asyncio.run(live.once(LinkSelect(netdevs=("swp*",)), LldpSettings(), pathlib.Path("/")))
"""
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code)
    done = subprocess.run(
        near.command(*nobody),
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("nodeagent.host.packet.PacketError: listening for LLDP needs CAP_NET_RAW: run as root")
    )
