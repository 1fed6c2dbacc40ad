"""Rails and VFs of pods over restarts, with NICs that are pulled, moved and replaced while no agent looks.

The machine is simulated, and the agent and the stand-in kubelet run with their sockets and files. Between two agents a
NIC is unplugged, another card is put into its slot, or cards change their slots. The file of the rails is deleted or
replaced by a named pipe, a resource is renamed, and the kubelet is away. No rail may move, and no VF may be in two
pods.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from nodeagent.agent_config import load
from nodeagent.cluster import node_report
from nodeagent.cluster.node_report import NodeReporter
from nodeagent.commands.scan.listing import scan_once
from nodeagent.doctor import kubelet_checks, nic_checks
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import Snapshot
from nodeagent.host.sysfs import Tree
from nodeagent.sources import pci_source
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.machine.state import octets
from tests.dra.test_agent import kubeconfig
from tests.support.rail_machine import HEAD, SLOTS, VFS, model, vfs_of
from tests.support.running_agent import Node, node, shorten
from tests.support.waiting import LIMIT_S

STATE = "var/lib/nodeagent/rails.json"
VFS_ONLY = "scanSeconds: 1\nresources: [{kind: vf}]\n"
BLIND = "kubelet: {podResources: false}\n"


def nic(number: int) -> str:
    return f"{HEAD}/nic{number}"


@asynccontextmanager
async def rail_node(
    folder: Path, empty: tuple[int, ...] = (4,), link_type: str = "ethernet"
) -> AsyncIterator[Node]:
    async with node(str(model(folder, link_type))) as n:
        for slot in empty:
            n.machine.unplug(SLOTS[slot])
        yield n


async def start(n: Node, text: str = VFS_ONLY) -> None:
    await n.start_agent(n.configure(text))


async def restart(n: Node, text: str = VFS_ONLY) -> None:
    await n.stop_agent()
    await start(n, text)


def listed(n: Node, number: int) -> set[str]:
    return set(n.kubelet.devices(nic(number)))


async def every_rail(n: Node, numbers: range = range(4)) -> None:
    for number in numbers:
        await n.allocatable(nic(number), VFS)


def all_held(n: Node, *pods: PodSpec) -> list[str]:
    return [
        id_
        for pod in pods
        for resources in n.kubelet.held(pod).values()
        for ids in resources.values()
        for id_ in ids
    ]


@pytest.mark.parametrize("pods_are_read", [True, False])
async def test_a_nic_that_is_missing_at_the_start_keeps_its_rail_and_no_vf_is_in_two_pods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pods_are_read: bool
) -> None:
    text = VFS_ONLY + ("" if pods_are_read else BLIND)
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n, text)
        await every_rail(n)
        one = PodSpec.single("one", {nic(2): VFS})
        assert (await n.kubelet.admit(one)).admitted
        await n.stop_agent()
        n.machine.unplug(SLOTS[1])
        await start(n, text)
        for number in (0, 2, 3):
            await n.allocatable(nic(number), VFS)
        await n.allocatable(nic(1), 0)
        assert n.kubelet.capacity()[nic(1)] == VFS
        assert [listed(n, number) for number in range(4)] == [vfs_of(slot) for slot in SLOTS[:4]]
        two = PodSpec.single("two", {nic(3): VFS})
        assert (await n.kubelet.admit(two)).admitted
        assert set(all_held(n, one)) == vfs_of(SLOTS[2])
        assert set(all_held(n, two)) == vfs_of(SLOTS[3])
        await n.registered()
        status, body = await n.get("/readyz")
        assert status == 200
        assert f"nic1: NIC {SLOTS[1]} is missing and keeps rail 1" in body
        assert f"{nic(1)}: 0 of {VFS} healthy" in body
        assert sum("A NIC of an earlier agent is missing" in line for line in caplog.messages) == 1
        (pf,) = (
            function for function in n.agent.inventory.snapshot.functions if function.pci_address == SLOTS[1]
        )
        assert pf.missing
        assert [reason.key for reason in pf.health.reasons] == ["device_missing"]
        metrics = (await n.get("/metrics"))[1]
        assert (
            'nodeagent_link_health_reason{device="ens2np0",reason="device_missing",severity="fault"} 1'
            in metrics
        )
        assert f'nodeagent_resource_devices{{resource="{nic(1)}",health="unhealthy"}} {VFS}' in metrics
        n.machine.plug(SLOTS[1])
        await n.allocatable(nic(1), VFS)
        about = () if pods_are_read else ("kubelet.podResources is off",)
        await n.until(lambda: tuple(it.partition(":")[0] for it in n.agent.offering.remarks) == about)


async def test_the_verbs_without_an_agent_number_the_nics_as_the_agent_does(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        await n.stop_agent()
        n.machine.unplug(SLOTS[1])
        config = load(n.config_file.read_text(), name="nodeagent.yaml")
        view = await scan_once(config, n.root)
        shown = {
            resource: {entry.parent for entry in devices if entry.health.allocatable}
            for resource, devices in view.resources
        }
        assert shown == {nic(number): {SLOTS[number]} - {SLOTS[1]} for number in range(4)}
        assert sum(len(devices) for _, devices in view.resources) == 4 * VFS
        tree = Tree(n.root)
        stored = nic_checks.read_stored(Target(tree, config, recorded=True, kubelet_dir=None))
        facts = nic_checks.completed(pci_source.scan(tree), stored)
        snapshot = Snapshot(product=facts.product, functions=facts.functions, links=facts.links)
        claims = kubelet_checks.findings(
            kubelet_checks.KubeletFacts(
                folder=tmp_path, exists=True, locked=True, offered={nic(1): tuple(sorted(vfs_of(SLOTS[1])))}
            ),
            config,
            snapshot,
            stored.numbering,
        )
        assert "resource_claimed" not in {finding.key for finding in claims}


async def test_rails_are_not_bound_to_the_boot(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        await n.stop_agent()
        (n.root / "var/lib/nodeagent/health.json").unlink()  # of another boot, this file is not used
        n.machine.unplug(SLOTS[0])
        await start(n)
        await n.allocatable(nic(0), 0)
        await n.allocatable(nic(1), VFS)
        assert listed(n, 1) == vfs_of(SLOTS[1])


async def test_another_card_in_the_same_slot_takes_the_rail_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        await n.stop_agent()
        n.machine.unplug(SLOTS[1])
        n.machine.insert_card(SLOTS[1], "b8:3f:d2:00:00:01")
        n.machine.plug(SLOTS[1])
        await start(n)
        await every_rail(n)
        assert [listed(n, number) for number in range(4)] == [vfs_of(slot) for slot in SLOTS[:4]]
        assert any("b8:3f:d2:00:00:01, which takes the rail over" in line for line in caplog.messages)
        assert '"b8:3f:d2:00:00:01"' in (n.root / STATE).read_text()


@pytest.mark.parametrize("link_type", ["ethernet", "infiniband"])
async def test_when_the_buses_are_numbered_in_another_way_the_rails_follow_the_cards(
    tmp_path: Path, link_type: str
) -> None:
    """Every card appears one slot later, as when a card with a PCI bridge is added in front of them."""
    async with rail_node(tmp_path, link_type=link_type) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        macs = macs_of(n)
        one = PodSpec.single("one", {nic(0): 1})
        assert (await n.kubelet.admit(one)).admitted
        await n.stop_agent()
        for slot in SLOTS[:4]:
            n.machine.unplug(slot)
        for before, slot in pairwise(SLOTS):
            n.machine.insert_card(slot, macs[before])
            n.machine.plug(slot)
        await start(n)
        # The addresses of the VFs had other names: they wait for the holdings, and then each has its name.
        await every_rail(n)
        given = [set(all_held(n, pod)) for pod in [await admitted(n, number) for number in range(4)]]
        assert given == [vfs_of(slot) for slot in SLOTS[1:]]
        assert all(function.pci_address != SLOTS[0] for function in n.agent.inventory.snapshot.functions)


def macs_of(n: Node) -> dict[str, str]:
    """The permanent MAC addresses of the simulated PFs."""
    return {pf.address: pf.mac or octets(n.machine.model, pf).hex(":") for pf in n.machine.pfs}


def move(n: Node, moves: dict[int, int]) -> None:
    """Cards change their slots while no agent runs."""
    macs = macs_of(n)
    for slot in moves:
        n.machine.unplug(SLOTS[slot])
    for old, new in moves.items():
        n.machine.insert_card(SLOTS[new], macs[SLOTS[old]])
        n.machine.plug(SLOTS[new])


def without_guids(n: Node) -> None:
    """Make the file of the rails that of an agent that knew no card of InfiniBand."""
    content = json.loads((n.root / STATE).read_text())
    for rail in (rail for entry in content["entries"] for rail in entry["rails"]):
        assert rail["permanent_mac"].count(":") == 3
        rail["permanent_mac"] = None
        rail.pop("late", None)
    for nic_ in content["nics"]:
        for function in (nic_["pf"], *nic_["vfs"]):
            (function["rdma"] or {}).pop("node_guid", None)
    (n.root / STATE).write_text(json.dumps(content))


async def test_an_update_learns_the_guids_of_the_cards_before_the_buses_are_renumbered(
    tmp_path: Path,
) -> None:
    async with rail_node(tmp_path, (2, 3, 4), "infiniband") as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n, range(2))
        await n.stop_agent()
        without_guids(n)
        await restart(n)
        await every_rail(n, range(2))
        await n.stop_agent()
        move(n, {1: 3, 0: 2})
        await start(n)
        await n.until(lambda: n.agent.offering.rails == {SLOTS[2]: 0, SLOTS[3]: 1})
        assert n.agent.offering.remarks == ()


async def test_cards_that_no_record_knows_are_numbered_again_by_the_one_command_that_the_message_gives(
    tmp_path: Path,
) -> None:
    async with rail_node(tmp_path, (2, 3, 4), "infiniband") as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n, range(2))
        await n.stop_agent()
        without_guids(n)
        move(n, {0: 2, 1: 3})
        await start(n)
        await n.until(lambda: n.agent.offering.rails == {SLOTS[k]: k for k in range(4)})
        for _ in range(2):  # the next agent says it too
            await n.until(lambda: n.agent.offering.remarks != ())
            (said,) = n.agent.offering.remarks
            assert (
                "2 NICs (nic0, nic1) went and 2 NICs (nic2, nic3) came: the PCI buses were renumbered" in said
            )
            await restart(n)
        for number in (2, 3):
            await n.allocatable(nic(number), VFS)
        command = re.search("`nodeagent remembered (.*?)`", said)
        assert command is not None
        assert command[1] == "forget --all-rails"
        assert (await rails(n, *command[1].split()))[0] == 0
        await n.until(lambda: n.agent.offering.rails == {SLOTS[2]: 2, SLOTS[3]: 3})
        await restart(n)
        await n.until(lambda: n.agent.offering.rails == {SLOTS[2]: 0, SLOTS[3]: 1})
        await every_rail(n, range(2))
        assert n.agent.offering.remarks == ()


async def test_two_of_three_cards_that_were_renumbered_are_named_by_the_command(tmp_path: Path) -> None:
    async with rail_node(tmp_path, (3, 4), "infiniband") as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n, range(3))
        await n.stop_agent()
        without_guids(n)
        move(n, {0: 3, 1: 4})
        await start(n)
        await n.until(lambda: n.agent.offering.remarks != ())
        await n.allocatable(nic(4), VFS)  # so it is on the disk
        (said,) = n.agent.offering.remarks
        names = " ".join(SLOTS[k] for k in (0, 1, 3, 4))
        assert f"`nodeagent remembered forget {names}`" in said
        assert (await rails(n, "forget", *names.split()))[0] == 0
        await n.until(lambda: n.agent.offering.rails == {SLOTS[k]: k for k in (2, 3, 4)})
        await restart(n)
        await n.until(lambda: n.agent.offering.rails == {SLOTS[3]: 0, SLOTS[4]: 1, SLOTS[2]: 2})


async def admitted(n: Node, number: int) -> PodSpec:
    pod = PodSpec.single(f"all-{number}", {nic(number): VFS})
    assert (await n.kubelet.admit(pod)).admitted
    return pod


async def test_an_additional_nic_gets_the_next_number_and_moves_no_other(tmp_path: Path) -> None:
    async with rail_node(tmp_path, empty=(0,)) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        await n.stop_agent()
        n.machine.plug(SLOTS[0])
        await start(n)
        await every_rail(n, range(5))
        assert [listed(n, number) for number in range(5)] == [vfs_of(slot) for slot in (*SLOTS[1:], SLOTS[0])]


# --- names that the kubelet may still count ---------------------------------------------------------------


async def test_a_renamed_vf_waits_for_the_holdings_when_the_agent_starts_before_the_kubelet(
    tmp_path: Path,
) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        one = PodSpec.single("one", {nic(0): VFS})
        assert (await n.kubelet.admit(one)).admitted
        await n.stop_agent()
        await n.kubelet.stop()
        await start(n, "scanSeconds: 1\nresources: [{kind: vf, name: 'rail{rail}'}]\n")
        await n.until(lambda: len(n.agent.offering.withheld) == 4)
        assert f"its VFs were offered as {nic(0)} before, and what pods hold is not known yet" in str(
            n.agent.offering.withheld
        )
        assert (await n.get("/readyz"))[0] == 503
        await n.kubelet.start()
        await n.allocatable(f"{HEAD}/rail1", VFS)
        await n.until(lambda: n.kubelet.capacity().get(f"{HEAD}/rail0") == VFS)
        await n.allocatable(f"{HEAD}/rail0", 0)
        assert not (await n.kubelet.admit(PodSpec.single("two", {f"{HEAD}/rail0": 1}))).admitted
        assert (await n.kubelet.admit(PodSpec.single("three", {f"{HEAD}/rail1": VFS}))).admitted
        n.kubelet.remove(one)
        await n.allocatable(f"{HEAD}/rail0", VFS)


@pytest.mark.parametrize("damage", ["deleted", "a named pipe", "nonsense"])
async def test_without_the_memory_no_vf_is_offered_before_the_holdings_are_known(
    tmp_path: Path, damage: str
) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        one = PodSpec.single("one", {nic(1): VFS})
        assert (await n.kubelet.admit(one)).admitted
        await n.stop_agent()
        await n.kubelet.stop()
        (n.root / STATE).unlink()
        if damage == "a named pipe":
            os.mkfifo(n.root / STATE)
        elif damage == "nonsense":
            (n.root / STATE).write_bytes(b"\xff\x00 rails")
        n.machine.unplug(SLOTS[0])  # only the name that the pod holds keeps a rail from moving
        await start(n)
        await n.until(lambda: "what pods hold, which decides" in str(n.agent.offering.withheld))
        await n.kubelet.start()
        for number in range(3):
            await n.allocatable(nic(number), VFS)
        assert listed(n, 1) == vfs_of(SLOTS[1])
        refused = await n.kubelet.admit(PodSpec.single("two", {nic(1): 1}))
        assert not refused.admitted
        assert set(all_held(n, one)) == vfs_of(SLOTS[1])


async def test_a_fresh_node_offers_its_vfs_at_once(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await start(n)
        await n.until(lambda: len(n.agent.offering.offered) >= 4)
        assert n.agent.offering.withheld == ()


async def test_a_rename_while_podresources_is_off_waits_until_the_rail_is_forgotten(tmp_path: Path) -> None:
    renamed = f"scanSeconds: 1\n{BLIND}resources: [{{kind: vf, name: 'rail{{rail}}'}}]\n"
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n, f"{VFS_ONLY}{BLIND}")
        await every_rail(n)
        await restart(n, renamed)
        await n.until(lambda: len(n.agent.offering.withheld) == 4)
        assert "turn it on, or drain the node" in str(n.agent.offering.withheld[0])
        await n.stop_agent()
        assert (await rails(n, "forget", "--all-rails"))[0] == 0
        await start(n, renamed)
        await n.allocatable(f"{HEAD}/rail0", VFS)


@pytest.mark.slow
async def test_what_pods_hold_is_read_seconds_after_the_kubelet_is_there(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n, "resources: [{kind: vf}]\n")
        await every_rail(n)
        assert (await n.kubelet.admit(PodSpec.single("one", {nic(0): 1}))).admitted
        await n.stop_agent()
        await n.kubelet.stop()
        await start(n, "resources: [{kind: vf}]\n")
        await n.until(lambda: "pods" in str(n.agent.inventory.snapshot.stale_sources))
        await n.kubelet.start()
        # ``until`` waits for 15 s; the usual interval is 30 s.
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))


# --- nodeagent remembered --------------------------------------------------------------------------------------


async def rails(n: Node, *arguments: str) -> tuple[int, str]:
    """Run the verb as an administrator does. Return its exit code and what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "nodeagent", "remembered", "--root", str(n.root), "--config", str(n.config_file)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode or 0, output.decode()


async def test_a_missing_nic_is_forgotten_while_the_agent_runs_and_its_number_is_free(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        n.machine.unplug(SLOTS[1])
        await n.allocatable(nic(1), 0)
        code, table = await rails(n)
        assert code == 0
        (row,) = (line.split() for line in table.splitlines() if "nic1" in line)
        assert (row[:2], row[-1]) == (["nic1", SLOTS[1]], "missing")
        code, output = await rails(n, "forget", "nic1")
        assert code == 0
        assert "a running agent takes this over within 1 s" in output
        await n.until(lambda: SLOTS[1] not in n.agent.offering.rails)
        await n.until(lambda: SLOTS[1] not in [f.pci_address for f in n.agent.inventory.snapshot.functions])
        assert n.agent.offering.remarks == ()
        n.machine.plug(SLOTS[4])
        await n.until(lambda: n.agent.offering.rails.get(SLOTS[4]) == 1)
        await n.allocatable(nic(1), VFS)


async def test_a_present_nic_keeps_its_rail_until_the_agent_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with rail_node(tmp_path, empty=(0,)) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        n.machine.plug(SLOTS[0])
        await every_rail(n, range(5))
        code, output = await rails(n, "forget", "--all-rails")
        assert code == 0
        assert output.count("restart the agent") == 5
        await n.until(lambda: sum("is forgotten when" in line for line in caplog.messages) == 5)
        assert n.agent.offering.rails[SLOTS[0]] == 4
        n.machine.set_link(SLOTS[0], up=False)  # a change of facts must not bring the file back
        await n.allocatable(nic(4), 0)
        n.machine.set_link(SLOTS[0], up=True)
        one = PodSpec.single("one", {nic(0): 1})
        assert (await n.kubelet.admit(one)).admitted
        await restart(n)
        await n.until(lambda: n.agent.offering.rails.get(SLOTS[0]) == 0)
        await n.allocatable(nic(0), VFS)
        # The VF that a pod holds as nic0 has the name nic1 now, and is not given to another pod.
        await n.allocatable(nic(1), VFS - 1)
        refused = await n.kubelet.admit(PodSpec.single("two", {nic(1): VFS}))
        assert not refused.admitted
        assert (await n.kubelet.admit(PodSpec.single("three", {nic(1): 1}))).admitted


async def test_forget_refuses_a_name_that_is_no_rail(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await start(n)
        await n.until((n.root / STATE).exists)
        code, output = await rails(n, "forget", "nic9")
        assert code == 2
        assert "nic9: no such rail" in output
        assert "nic0, nic1, nic2, nic3" in output
        for wrong in (["forget"], ["forget", "nic0", "--all-rails"], ["--all-rails"], ["show"]):
            assert (await rails(n, *wrong))[0] == 2
        assert (await rails(n, "--json"))[0] == 0


# Without the file: the report of the node


REPORT = {
    "apiVersion": "nodeagent.io/v1alpha1",
    "kind": "NodeLinks",
    "metadata": {"name": "n1", "namespace": "default"},
}


@asynccontextmanager
async def reporting(
    folder: Path, empty: tuple[int, ...] = (4,)
) -> AsyncIterator[tuple[Node, ApiServer, str]]:
    """A node, an API server, and the configuration with both."""
    server = await ApiServer(seed=1).start()
    try:
        async with rail_node(folder, empty) as n:
            access = f"access: kubeconfig, kubeconfig: {kubeconfig(folder, server)}"
            yield n, server, f"{VFS_ONLY}cluster: {{{access}, events: false}}\n"
    finally:
        await server.stop()


async def test_without_the_file_and_a_nic_the_rails_are_those_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0, gather_s=0.05)
    async with reporting(tmp_path) as (n, server, text):
        await n.kubelet.start()
        await n.start_agent(n.configure(text), node_name="n1")
        await every_rail(n)
        await server.until(lambda: [len(one["links"]) for one in server.objects("nodelinks")] == [4])
        await n.stop_agent()
        (n.root / STATE).unlink()
        n.machine.unplug(SLOTS[0])
        n.machine.unplug(SLOTS[2])
        await n.start_agent(n.configure(text), node_name="n1")
        for number in (1, 3):
            await n.allocatable(nic(number), VFS)
        assert [listed(n, number) for number in (1, 3)] == [vfs_of(SLOTS[1]), vfs_of(SLOTS[3])]
        assert n.agent.offering.rails == {SLOTS[number]: number for number in range(4)}
        # They are in the file again: the next agent needs no report for the missing NICs.
        await n.stop_agent()
        for slot in (2, 4):
            n.machine.plug(SLOTS[slot])
        await restart(n, VFS_ONLY)
        await n.allocatable(nic(2), VFS)
        await n.allocatable(nic(4), VFS)
        assert [listed(n, number) for number in (2, 4)] == [vfs_of(SLOTS[2]), vfs_of(SLOTS[4])]


async def test_a_file_that_is_there_counts_and_the_report_does_not(tmp_path: Path) -> None:
    async with reporting(tmp_path) as (n, server, text):
        server.put(
            REPORT | {"nodeName": "n1", "links": [{"name": "nic9", "rail": 9, "pciAddress": SLOTS[0]}]}
        )
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        await n.stop_agent()
        await n.start_agent(n.configure(text), node_name="n1")
        await every_rail(n)
        assert nic(9) not in n.kubelet.capacity()


async def test_a_report_that_does_not_come_delays_the_offer_by_its_bound_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_report, "REPORT_S", 0.2)
    async with reporting(tmp_path) as (n, server, text):
        server.fail("hang", verb="get", resource="nodelinks", times=None)
        await n.kubelet.start()
        await n.start_agent(n.configure(text), node_name="n1")
        await every_rail(n)
        assert "the report of this node cannot be read" in caplog.text


async def test_a_report_of_another_node_counts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(tmp_path) as (n, server, text):
        links = [{"name": "ens1np0", "rail": 9, "pciAddress": SLOTS[0]}]
        server.put(REPORT | {"nodeName": "n2", "links": links})
        await n.kubelet.start()
        await n.start_agent(n.configure(text), node_name="n1")
        await every_rail(n)
        assert nic(9) not in n.kubelet.capacity()
        assert "is that of another one" in caplog.text


# Without the file and the report: the names under which pods hold VFs


async def test_without_the_file_and_an_api_server_held_vfs_keep_their_names_and_missing_nics_their_numbers(
    tmp_path: Path,
) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        pods = [PodSpec.single(f"pod{number}", {nic(number): 1}) for number in (1, 2, 3)]
        for pod in pods:
            assert (await n.kubelet.admit(pod)).admitted
        await n.stop_agent()
        (n.root / STATE).unlink()
        for number in (0, 2):
            n.machine.unplug(SLOTS[number])
        await start(n)
        for number in (1, 3):
            await n.allocatable(nic(number), VFS)
        assert [listed(n, number) for number in (1, 3)] == [vfs_of(SLOTS[1]), vfs_of(SLOTS[3])]
        for number in (2, 0):
            n.machine.plug(SLOTS[number])
            await n.allocatable(nic(number), VFS)
            assert listed(n, number) == vfs_of(SLOTS[number])
        assert len(all_held(n, *pods)) == len({*all_held(n, *pods)}) == 3


async def test_without_the_file_nothing_is_numbered_before_it_is_known_what_pods_hold(tmp_path: Path) -> None:
    async with rail_node(tmp_path) as n:
        await n.kubelet.start()
        await start(n)
        await every_rail(n)
        assert (await n.kubelet.admit(PodSpec.single("one", {nic(3): 1}))).admitted
        await n.stop_agent()
        (n.root / STATE).unlink()
        n.machine.unplug(SLOTS[0])
        socket = n.kubelet.directory / "pod-resources/kubelet.sock"
        socket.rename(socket.with_name("away"))
        await start(n)
        await n.until(lambda: any("nic{rail}" in one.resource for one in n.agent.offering.withheld))
        status, body = await n.get("/readyz")
        assert status == 503
        assert "what pods hold, which decides the numbers, is not known yet" in body
        assert n.agent.offering.rails == {}
        await n.stop_agent()
        assert not (n.root / STATE).exists(), "the next agent too must know that the file is gone"
        socket.with_name("away").rename(socket)
        await start(n)
        await n.allocatable(nic(3), VFS)
        assert listed(n, 3) == vfs_of(SLOTS[3])
