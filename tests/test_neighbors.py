"""The verb: what a person and a program see of the links of a namespace."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent import neighbors
from nodeagent.links import LinkSelect
from nodeagent.lldp.lldpd import LldpdError
from nodeagent.sources.lldp import LldpSettings
from tests.netns import Netns, veth
from tests.test_sources_neighbors import announce

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
        seen = await neighbors.once(SWP, QUIET, root, wait_s=60, progress=speak)
    assert said[0] == "0 of 2 links with carrier heard (3 links in all); waiting up to 60 s for the others"
    assert said[-1] != said[0]
    table = neighbors.as_table(seen).splitlines()
    assert table[0].split("  ")[0] == "LINK"
    assert re.fullmatch(r"swp1  -  +leaf-1  Ethernet1  node-7\\x1b\[31m  -  +0s   live", table[1])
    assert re.fullmatch(r"swp3  -  +-  +-  +-  +-  +-    down", table[3])
    told = json.loads(neighbors.as_json(seen))
    assert [link["state"] for link in told["links"]] == ["live", "live", "down"]
    one = told["links"][0]["neighbors"][0]
    assert one["port_id"] == {"subtype": "ifname", "value": "Ethernet1"}
    assert 0 <= one["age_seconds"] < 10
    assert one["stale"] is False


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_link_that_stays_silent_ends_the_wait_and_has_a_hint(links, root):
    async with asyncio.timeout(10):
        seen = await neighbors.once(SWP, QUIET, root, wait_s=0.2)
    assert [row.state for row in seen.rows] == ["silent", "silent", "down"]
    assert "swp1: nothing was heard: LLDP is most likely off on the switch port" in neighbors.as_table(seen)


@pytest.mark.needs("root", "ip", "nsenter")
async def test_watching_shows_each_change(links, root):
    _, far = links
    looks = neighbors.watch(SWP, QUIET, root)
    async with asyncio.timeout(10):
        first = await anext(looks)
        assert [row.state for row in first.rows] == ["silent", "silent", "down"]
        with far.raw("b1") as switch:
            switch.send(announce("leaf-1"))
            assert [row.state for row in (await anext(looks)).rows] == ["live", "silent", "down"]
            switch.send(announce("leaf-1", ttl=0))
            assert [row.state for row in (await anext(looks)).rows] == ["silent", "silent", "down"]
        await looks.aclose()


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_machine_without_links_is_told_what_to_name(links, root):
    seen = await neighbors.once(LinkSelect(), QUIET, root)
    assert neighbors.as_table(seen).startswith("No netdev is a link here")


async def test_trouble_with_the_source_is_raised_to_whoever_asked(root):
    with pytest.raises(LldpdError, match="no-such-lldpcli cannot be run"):
        await neighbors.once(SWP, LldpSettings(source="lldpd", command=("no-such-lldpcli",)), root)


@pytest.mark.needs("root", "ip", "nsenter", "setpriv")
def test_want_of_a_capability_ends_the_look_with_its_name(links):
    near, _ = links
    code = """
import asyncio, pathlib
from nodeagent import neighbors
from nodeagent.links import LinkSelect
from nodeagent.sources.lldp import LldpSettings
asyncio.run(neighbors.once(LinkSelect(netdevs=("swp*",)), LldpSettings(), pathlib.Path("/")))
"""
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code)
    done = subprocess.run(
        near.command(*nobody),
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        timeout=60,
    )
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("nodeagent.host.packet.PacketError: listening for LLDP needs CAP_NET_RAW: run as root")
    )
