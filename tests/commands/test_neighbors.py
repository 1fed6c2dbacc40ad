"""The verb `neighbors`: table and JSON of the links of a namespace."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.base.stored_file import StoredFile
from nodeagent.cli import main
from nodeagent.cluster.node_report import reported_neighbor
from nodeagent.commands.neighbors import neighbor_listing
from nodeagent.commands.scan import listing
from nodeagent.host.packet import open_socket
from nodeagent.lldp.lldpd_json import LldpdError
from nodeagent.sources import lldp_source
from nodeagent.sources.source_settings import LinkSelect, LldpSettings
from nodeagent_lab.sim.machine import Machine
from tests.sources.test_lldp_source import announce
from tests.support.namespaces import Netns, veth
from tests.support.running_agent import node
from tests.support.waiting import LIMIT_S

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
    """A machine without PCI devices: the kernel lists its netdevs."""
    (tmp_path / "sys").mkdir()
    return tmp_path


@pytest.mark.needs("root", "ip", "nsenter")
async def test_the_verb_ends_when_every_link_with_carrier_has_a_neighbor(links, root):
    _, far = links
    said: list[str] = []

    def speak(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            for number in (1, 2):
                with far.raw(f"b{number}") as switch:
                    switch.send(announce("leaf-1", f"Ethernet{number}", port_description="node-7\x1b[31m"))

    async with asyncio.timeout(60):
        result = await neighbor_listing.read_once(SWP, QUIET, root, wait_s=600, progress=speak)
    assert (
        said[0] == "0 of 2 links with carrier have a neighbor (3 in all); waiting up to 600 s for the others"
    )
    assert said[-1] != said[0]
    table = neighbor_listing.neighbor_table(result).splitlines()
    assert table[0].split("  ")[0] == "LINK"
    assert re.fullmatch(
        r"swp1  -  +leaf-1  Ethernet1  node-7\\x1b\[31m  -  +\d+ s +2 min  \d+ s +live", table[1]
    )
    assert re.fullmatch(r"swp3  -  +-  +-  +-  +-  +-  +-  +-  +down", table[3])
    printed = json.loads(neighbor_listing.neighbors_json(result))
    assert [link["state"] for link in printed["links"]] == ["live", "live", "down"]
    one = printed["links"][0]["neighbors"][0]
    assert one["portId"] == {"subtype": "ifname", "value": "Ethernet1"}
    assert 0 <= one["ageSeconds"] < 60
    assert one["stale"] is False


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_short_wait_prints_its_length_instead_of_a_reason(links, root):
    async with asyncio.timeout(60):
        result = await neighbor_listing.read_once(SWP, QUIET, root, wait_s=0.2)
    assert [row.state for row in result.rows] == ["unheard", "unheard", "down"]
    table = neighbor_listing.neighbor_table(result)
    assert "swp1: no LLDP in 0.2 s, which proves little: a switch sends every 30 s" in table
    assert "most likely" not in table


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_link_without_frames_for_long_has_a_likely_reason(links, root):
    async with asyncio.timeout(60):
        result = await neighbor_listing.read_once(SWP, QUIET, root, wait_s=0.3, no_neighbor_after_s=0.1)
    assert [row.state for row in result.rows] == ["silent", "silent", "down"]
    assert (
        "swp1: carrier, but no LLDP for 65 s: LLDP is most likely off on the switch port"
        in neighbor_listing.neighbor_table(result)
    )


@pytest.mark.needs("root", "ip", "nsenter")
async def test_watch_prints_each_change(links, root):
    _, far = links
    listings = neighbor_listing.watch_neighbors(SWP, QUIET, root)
    async with asyncio.timeout(60):
        first = await anext(listings)
        assert [row.state for row in first.rows] == ["unheard", "unheard", "down"]
        with far.raw("b1") as switch:
            switch.send(announce("leaf-1"))
            assert [row.state for row in (await anext(listings)).rows] == ["live", "unheard", "down"]
            switch.send(announce("leaf-1", ttl=0))
            assert [row.state for row in (await anext(listings)).rows] == ["stale", "unheard", "down"]
        await listings.aclose()


async def verb(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Run `nodeagent neighbors` as a process in the namespace of this thread. Return stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nodeagent", "neighbors", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == code, err.decode()
    return out.decode(), err.decode()


@pytest.mark.slow
@pytest.mark.needs("root", "ip", "nsenter")
async def test_the_running_agent_answers_at_once_with_the_neighbor_of_its_report(links):
    near, far = links
    near.ip("link set lo up")
    async with node("two-gpu-two-nic") as running:
        config = running.configure('links: {select: {netdevs: ["swp*"]}}\nlldp: {ttlMaxSeconds: 300}')
        await running.start_agent(config)
        inventory = running.agent.inventory
        root = ("--root", str(running.root))

        async def until_sent(count: int, *frames: bytes) -> None:
            """Send until so many neighbors are live; the agent's sockets open some time after its start."""
            with far.raw("b1") as wire:
                async with asyncio.timeout(20):
                    while sum(n.confirmed and not n.stale for n in inventory.snapshot.neighbors) < count:
                        for frame in frames:
                            wire.send(frame)
                        await asyncio.sleep(0.05)

        await until_sent(1, announce("leaf-9", "p9", b"\2\0\0\0\0\x09", ttl=1))
        await running.until(lambda: all(one.stale for one in inventory.snapshot.neighbors))
        await until_sent(1, announce("leaf-1"))
        await running.until(lambda: [one.system_name for one in inventory.snapshot.neighbors] == ["leaf-1"])
        await until_sent(2, announce("leaf-1"), announce("forged", "p0", b"\2\0\0\0\0\0", ttl=65535))
        with far.raw("b1") as wire:
            wire.send(announce("leaf-1"))
        await running.until(lambda: [one.contender for one in inventory.snapshot.neighbors] == [False, True])
        out, err = await verb(*root, "--json")
        printed = json.loads(out)
        assert (printed["agent"], err) == (f"{running.root}/var/lib/nodeagent/agent.sock", "")
        first, second, third = printed["links"]
        assert [one["systemName"] for one in first["neighbors"]] == ["leaf-1", "forged"]
        assert [one["ttlSeconds"] for one in first["neighbors"]] == [120, 300]
        assert first["neighbors"][1]["announcedTtlSeconds"] == 65535
        assert first["movedFrom"] == "leaf-9 p9"
        assert first["movedSeconds"] >= 0
        assert [second["state"], third["state"]] == ["unheard", "down"]
        facts = [one for one in inventory.snapshot.neighbors if one.link == "swp1"]
        reported = reported_neighbor(facts, None, patient=False)
        assert (reported.system_name, reported.contested) == ("leaf-1", True)
        out, err = await verb(*root)
        assert "the agent at " in err
        assert re.search(r"leaf-1 .* 2 min +[\d.]+ s +live$", out, re.MULTILINE)
        assert re.search(r"forged .* 5 min of 18 h 12 min +[\d.]+ s +live beside$", out, re.MULTILINE)
        assert "swp1: the neighbor was leaf-9 p9 until " in out
        out, err = await verb(
            *root, "--receive", "--wait", "0.2", "--json", "--config", str(running.config_file)
        )
        assert json.loads(out)["agent"] is None
        assert "asks no agent" in err

        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodeagent", "neighbors", *root, "--watch", "--json"),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            assert json.loads(await watching.stdout.readline())["links"][1]["state"] == "unheard"
            with far.raw("b2") as wire:
                wire.send(announce("leaf-2"))
            assert json.loads(await watching.stdout.readline())["links"][1]["state"] == "live"
        watching.terminate()
        await asyncio.wait_for(watching.wait(), LIMIT_S)
        await running.stop_agent()
        out, err = await verb(*root, "--wait", "0.2", "--json", code=2)
        assert not out
        assert "no agent runs here" in err


@pytest.mark.slow
@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_restarted_agent_prefers_the_switch_of_before(links, monkeypatch):
    near, far = links
    near.ip("link set lo up")
    monkeypatch.setattr(lldp_source, "CHECK_S", 0.05)
    async with node("two-gpu-two-nic") as running:
        config = running.configure('links: {select: {netdevs: ["swp*"]}}')
        stored = StoredFile(running.root / "var/lib/nodeagent", lldp_source.NEIGHBORS_FORM)

        async def send_until(done, frame: bytes) -> None:
            with far.raw("b1") as wire:
                async with asyncio.timeout(30):
                    while not done():
                        wire.send(frame)
                        await asyncio.sleep(0.05)

        await running.start_agent(config)
        await send_until(lambda: any(each.live_s > 1 for each in stored.read() or ()), announce("leaf-1"))
        await running.stop_agent()
        await running.start_agent(config)
        inventory = running.agent.inventory
        forged = announce("forged", "p0", b"\2\0\0\0\0\0", ttl=65535)
        await send_until(lambda: any(one.confirmed for one in inventory.snapshot.neighbors), forged)
        assert [one.system_name for one in inventory.snapshot.neighbors] == ["forged"]
        with far.raw("b1") as wire:
            wire.send(announce("leaf-1"))
        await running.until(
            lambda: [one.system_name for one in inventory.snapshot.neighbors] == ["leaf-1", "forged"]
        )


async def test_an_agent_without_lldp_gives_the_reason():
    async with node("two-gpu-two-nic") as running:
        await running.start_agent(running.configure("lldp: {source: none}"))
        out, _ = await verb("--root", str(running.root))
        assert out == "The agent receives no LLDP: lldp.source is none\n"


TRANSMITTING = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
links: {select: {netdevs: ["swp*"]}}
lldp: {transmit: true}
"""


def transmitting() -> Config:
    return load(TRANSMITTING, name="transmitting.yaml")


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_scan_receives_until_every_named_link_has_a_neighbor(links, root):
    _, far = links

    async def speak() -> None:
        while True:  # until the scan's sockets are there
            for number in (1, 2):
                with far.raw(f"b{number}") as switch:
                    switch.send(announce("leaf-1", f"Ethernet{number}"))
            await asyncio.sleep(0.05)

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(60):
            result = await listing.scan_machine(transmitting(), root, wait_s=600)
    finally:
        speaking.cancel()
    assert [one.link for one in result.snapshot.neighbors] == ["swp1", "swp2"]


@pytest.mark.needs("root", "ip", "nsenter")
async def test_the_verbs_send_nothing_to_the_switches(links, root):
    """A switch would take their shutdown frame for the agent's."""
    _, far = links
    with far.entered():
        heard = open_socket(far.ifindex("b1"))
    with heard as switch:
        async with asyncio.timeout(60):
            await listing.scan_machine(transmitting(), root, wait_s=0.3)
            listings = neighbor_listing.watch_neighbors(SWP, transmitting().lldp, root)
            await anext(listings)
            with far.raw("b1") as wire:
                wire.send(announce("leaf-1"))
            await anext(listings)
            await listings.aclose()
        with pytest.raises(BlockingIOError):
            switch.recv(2048)


async def test_a_scan_of_a_capture_does_not_wait_for_lldp(tmp_path):
    Machine.load("two-gpu-two-nic").write(tmp_path / "root")
    async with asyncio.timeout(60):
        result = await listing.scan_machine(Config(), tmp_path / "root", wait_s=600)
    assert result.snapshot.links


def test_the_answer_for_a_copy_of_a_machine_names_where_frames_arrive(tmp_path, capsys):
    Machine.load("two-gpu-two-nic").write(tmp_path / "root")
    for option in ((), ("--json",), ("--watch",), ("--watch", "--json"), ("--receive",)):
        assert main(["neighbors", "--root", str(tmp_path / "root"), *option]) == 2
        output, said = capsys.readouterr()
        assert not output, "an empty list would say that no link has a neighbor"
        assert f"{tmp_path / 'root'} is a copy of a machine" in said


@pytest.mark.needs("root", "ip", "nsenter")
async def test_a_machine_without_links_prints_the_setting_to_change(links, root):
    result = await neighbor_listing.read_once(LinkSelect(), QUIET, root)
    assert neighbor_listing.neighbor_table(result).startswith("This machine has no link")


@pytest.mark.needs("root", "ip", "nsenter")
async def test_neighbors_of_lldpd_are_printed_in_the_same_way(links, root):
    interface = {
        "name": "swp1",
        "chassis": [{"id": [{"type": "mac", "value": "02:00:00:00:00:01"}], "name": [{"value": "leaf-1"}]}],
        "port": [{"id": [{"type": "local", "value": "Eth1/1"}], "mfs": [{"value": "1000"}]}],
    }
    answer = json.dumps({"lldp": [{"interface": [interface, {**interface, "name": "eno1"}]}]})
    settings = LldpSettings(source="lldpd", command=(sys.executable, "-c", f"print({answer!r})"))
    result = await neighbor_listing.read_once(SWP, settings, root)
    assert [(row.link, row.state) for row in result.rows] == [
        ("swp1", "live"),
        ("swp2", "unheard"),
        ("swp3", "down"),
    ]
    assert [(remark.link, remark.key) for remark in result.remarks] == [("swp1", "frame_size_mismatch")]
    assert re.search(
        r"^swp1 .* leaf-1 .* Eth1/1 .* - +live$", neighbor_listing.neighbor_table(result), re.MULTILINE
    )
    listings = neighbor_listing.watch_neighbors(SWP, settings, root)
    assert await anext(listings) == result
    await listings.aclose()


async def test_an_error_of_the_source_is_raised(root):
    with pytest.raises(LldpdError, match="no-such-lldpcli cannot be run"):
        await neighbor_listing.read_once(
            SWP, LldpSettings(source="lldpd", command=("no-such-lldpcli",)), root
        )


@pytest.mark.needs("root", "ip", "nsenter", "setpriv")
def test_a_missing_capability_ends_the_verb_with_its_name(links):
    near, _ = links
    code = """
import asyncio, pathlib
from nodeagent.commands.neighbors import neighbor_listing
from nodeagent.commands.scan import listing
from nodeagent.agent_config import Config, load
from nodeagent.host.packet import open_socket
from nodeagent.sources.source_settings import LinkSelect
from nodeagent.sources.source_settings import LldpSettings
asyncio.run(neighbor_listing.read_once(LinkSelect(netdevs=("swp*",)), LldpSettings(), pathlib.Path("/")))
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
        .startswith("nodeagent.host.packet.PacketError: receiving LLDP needs CAP_NET_RAW: run as root")
    )
