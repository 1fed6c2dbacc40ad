"""A netdev for each share of an HCA: in real network namespaces, over ends and restarts in any order."""

from __future__ import annotations

import asyncio
import doctest
import sys
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.attach import share_netdevs
from nodeagent.attach.address_plan import AddressPlan, AddressPlanError
from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.given_numbers import GivenNumbers
from nodeagent.attach.nri_plugin import AttachRefused
from nodeagent.attach.pod_netdevs import open_namespace
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.attach.share_netdevs import share_group, share_mac, share_of
from nodeagent.attach.vf_plan import attach_plan
from nodeagent.commands.scan.listing import pod_plan_table
from nodeagent.fabric.rail_partners import RailNumber
from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Holding, Identifier, Link, Neighbor, Snapshot
from nodeagent.host.netlink.netdevs import Netdev
from nodeagent.kinds.hca_shares import HcaShares, share_ids
from tests.support.attached_pods import AttachedNode, addresses, links, pf, vf
from tests.support.kind_machines import pf_of

real = pytest.mark.needs("root", "ip", "nsenter")


def share(rail: int, number: int) -> str:
    return f"{pf(rail)}::{number}"


async def sharing(folder: Path) -> AttachedNode:
    """A node with two HCAs of four shares each, beside VFs."""
    node = AttachedNode(folder)
    for rail in (0, 1):
        await node.add_pf(rail)
    shares = {
        share(rail, n): PlannedVf(
            rail,
            1400,
            f"10.{100 + rail}.{16 * (n + 5)}.7/16",
            pf=pf(rail),
            mac=share_mac(f"02:aa:00:01:{rail:02x}:00", n),
        )
        for rail in (0, 1)
        for n in range(4)
    }
    assert node.plan is not None
    node.plan = replace(node.plan, vfs={**node.plan.vfs, **shares}, probe=False)
    return node


@real
async def test_three_pods_have_netdevs_of_one_hca_at_once_and_the_host_keeps_the_pf(tmp_path: Path) -> None:
    node = await sharing(tmp_path)
    host = links(node.host).keys()
    pods = [node.pod(f"p{n}", share(0, n), share(1, n)) for n in range(3)]
    for sandbox, _ in pods:
        await node.attachments.begin(sandbox)
    for n, (_, pod) in enumerate(pods):
        assert addresses(pod) == {
            "rail0": [f"10.100.{16 * (n + 5)}.7/16"],
            "rail1": [f"10.101.{16 * (n + 5)}.7/16"],
        }
        assert {(link["mtu"], "UP" in link["flags"]) for link in links(pod).values()} == {(1400, True)}
        assert links(pod)["rail0"]["address"] == share_mac("02:aa:00:01:00:00", n)
        assert node.starts(share(0, n))
    assert (links(node.host).keys(), node.attachments.pods) == (host, 3)
    # They reach each other over the HCA, and the other end of its link.
    listen = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('10.100.96.7', 9)); s.settimeout(20); "
        "print('ready', flush=True); print(s.recvfrom(9)[1][0])"
    )
    send = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('10.100.96.7', 9))"
    far = await asyncio.create_subprocess_exec(
        *("nsenter", f"--net={pods[1][1].path}", sys.executable, "-c", listen), stdout=asyncio.subprocess.PIPE
    )
    assert far.stdout is not None
    await far.stdout.readline()
    near = await asyncio.create_subprocess_exec(
        "nsenter", f"--net={pods[0][1].path}", sys.executable, "-c", send
    )
    assert await near.wait() == 0
    assert (await far.communicate())[0] == b"10.100.80.7\n"
    node.close()


@real
async def test_the_netdev_of_an_ended_pod_is_gone_and_another_pod_gets_the_share(tmp_path: Path) -> None:
    node = await sharing(tmp_path)
    host = links(node.host).keys()
    first, pod = node.pod("first", share(0, 2), vf(1))
    await node.attachments.begin(first)
    assert links(pod).keys() == {"rail0", "rail1"}
    await node.attachments.end(first)
    assert (links(pod), node.entries(), links(node.host).keys()) == ({}, {}, host)
    node.ended(first)
    second, pod = node.pod("second", share(0, 2))
    await node.attachments.begin(second)
    assert addresses(pod) == {"rail0": ["10.100.112.7/16"]}
    # The runtime removes the namespace without a word: the kernel removes what was made in it.
    node.pods.pop("second").__exit__()
    node.ended(second)
    await node.attachments.look()
    assert (node.entries(), links(node.host).keys()) == ({}, host)
    node.close()


@real
@pytest.mark.parametrize("crash", ["before", "made", "written"])
async def test_a_crash_at_any_step_loses_no_netdev_and_makes_none_twice(tmp_path: Path, crash: str) -> None:
    node = await sharing(tmp_path)
    sandbox, pod = node.pod("trainer", share(1, 3), share(0, 0))
    if crash == "made":  # the end came between the making and the rest
        mac = bytes.fromhex(share_mac("02:aa:00:01:01:00", 3).replace(":", ""))
        with open_namespace(str(node.host.path)) as host, open_namespace(str(pod.path)) as there:
            pf1 = next(one for one in host.netdevs.read() if one.name == "ens1")
            host.netdevs.add_macvlan(
                pf1.ifindex, there.descriptor, "rail1", mac, share_group(share(1, 3)) or 0
            )
    if crash == "written":
        await node.attachments.begin(sandbox)
    again = node.restarted()
    await again.synchronize((sandbox,))
    await again.synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.80.7/16"], "rail1": ["10.101.128.7/16"]}
    assert node.starts(share(1, 3))
    assert node.starts(share(0, 0))
    assert [netdev.netdev for netdev in again.netdevs] == ["rail0", "rail1"]
    node.close()


@real
async def test_a_pod_that_lacks_one_netdev_gets_none(tmp_path: Path) -> None:
    node = await sharing(tmp_path)
    sandbox, pod = node.pod("trainer", share(0, 0), share(1, 0))
    pod.ip("link add rail1 type veth peer name other")
    with pytest.raises(AttachRefused, match=r"0000:01:00\.0::0 as rail1: move: .*the pod has a netdev rail1"):
        await node.attachments.begin(sandbox)
    assert links(pod).keys() == {"rail1", "other"}
    assert node.entries() == {}
    node.host.ip("link delete ens0")
    gone, pod = node.pod("late", share(0, 1))
    with pytest.raises(AttachRefused, match=r"the netdev of 0000:00:00\.0 is not on the host"):
        await node.attachments.begin(gone)
    node.close()


@real
async def test_a_pod_on_the_hosts_network_has_the_netdev_of_the_pf(tmp_path: Path) -> None:
    node = await sharing(tmp_path)
    sandbox, _ = node.pod("agent", share(1, 1))
    await node.attachments.begin(replace(sandbox, network="", on_host=True))
    (entry,) = node.entries().values()
    assert entry == {"env": ["NODEAGENT_INTERFACE_0000_01_00_0__1=ens1"]}
    node.close()


PLACES = st.tuples(
    st.integers(0, 0x1F), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7), st.integers(0, 1023)
)


@given(PLACES)
def test_the_group_of_a_netdev_tells_its_share(place: tuple[int, int, int, int, int]) -> None:
    domain, bus, slot, function, number = place
    device = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}::{number}"
    group = share_group(device)
    assert group is not None
    assert 0 <= group < 2**32
    made = Netdev(7, "rail0", 1, "macvlan", None, None, 1500, True, True, None, None, group=group)
    assert share_of(made) == device
    assert share_of(replace(made, kind="bridge")) is None
    assert share_of(replace(made, group=0)) is None


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(share_netdevs).failed == 0


@given(st.integers(1, 16), st.integers(0, 100), st.data(), st.integers(0, 7), st.sampled_from((16, 18, 20)))
def test_no_share_has_the_address_of_a_vf_a_pf_or_another_share(
    vfs: int, shares: int, data: st.DataObject, rail: int, length: int
) -> None:
    plan = AddressPlan(f"10.{{rail+100}}.0.0/{length}", 3, vfs, shares)
    if list(plan.faults()):
        return
    node = data.draw(st.integers(1, 3))
    prefix = plan.of(rail)
    own = IPv4Interface((int(prefix.network_address) + node, prefix.prefixlen))
    given_to = [own.ip]
    given_to += [plan.address(rail, n, pf=[own], mac=None).ip for n in range(vfs)]
    given_to += [plan.share_address(rail, n, pf=[own], mac="").ip for n in range(shares)]
    assert len(set(given_to)) == len(given_to)
    assert all(ip in prefix for ip in given_to)
    with pytest.raises(AddressPlanError, match=f"beyond `attach.shares: {shares}`"):
        plan.share_address(rail, shares, pf=[own], mac="")


def test_without_shares_a_prefix_is_divided_as_before() -> None:
    own = [IPv4Interface("10.103.0.7/16")]
    plan = AddressPlan("10.{rail+100}.0.0/16", 1000, 8)
    assert str(plan.address(3, 0, pf=own, mac=None)) == "10.103.16.7/16"
    shared = replace(plan, nodes=500, shares=64)
    assert str(shared.share_address(3, 0, pf=own, mac="")) == "10.103.18.7/16"


def test_the_plan_has_the_shares_of_ethernet_hcas_with_a_rail() -> None:
    nic = replace(pf_of(0), link_type="ethernet", pci_address=pf(0))
    ib = replace(pf_of(1), pci_address=pf(1))
    made = [
        Link(str(it.netdev), it.pci_address, "0c:42:a1:16:05:4c", True, True, "up", 400_000, 9000)
        for it in (nic, ib)
    ]
    snapshot = Snapshot(functions=(nic, ib), links=tuple(made))
    offered = [Devices(it.pci_address, share_ids(it.pci_address, 2), ()) for it in (nic, ib)]
    settings = AttachSettings(interface="rail{rail}", addresses="fd00:{rail}::/64", shares=2)
    plan = attach_plan(settings, snapshot, {pf(0): 0, pf(1): 1}, {}, (), offered)
    assert {device: (it.address, it.mac) for device, it in plan.vfs.items()} == {
        share(0, 0): ("fd00::a1ff:fe16:54c/64", "02:00:a1:16:05:4c"),
        share(0, 1): ("fd00::1:a1ff:fe16:54c/64", "02:01:a1:16:05:4c"),
    }
    lost = attach_plan(replace(settings, addresses="10.{rail}.0.0/16"), snapshot, {pf(0): 0}, {}, (), offered)
    assert "its PF has no address in 10.0.0.0/16" in lost.vfs[share(0, 0)].refusal


def test_the_plan_keeps_the_shares_that_pods_hold_after_there_are_fewer() -> None:
    """Without a plan their containers would not start again."""
    nic = replace(pf_of(0), link_type="ethernet", pci_address=pf(0))
    link = Link("ens0", nic.pci_address, "0c:42:a1:16:05:4c", True, True, "up", 400_000, 9000)
    ids = (share(0, 3), f"{nic.pci_address}::0b3c-77.0", "GPU-1::3", "0000:99:00.0::1", nic.pci_address)
    facts = Snapshot(functions=(nic,), links=(link,), holdings=(Holding("ml", "p", "c", "x/rdma0", ids),))
    settings = AttachSettings(interface="rail{rail}", addresses="fd00:{rail}::/64", shares=2)
    offered = [Devices(nic.pci_address, share_ids(nic.pci_address, 2), ())]
    rails = {nic.pci_address: 0}
    for devices, planned in ((offered, [0, 1, 3]), ([], [3])):
        plan = attach_plan(settings, facts, rails, {}, offered=devices)
        assert list(plan.vfs) == [share(0, number) for number in planned]
        assert plan.vfs[share(0, 3)].mac == "02:03:a1:16:05:4c"


def test_a_share_whose_netdev_could_not_be_told_apart_is_planned_so_that_its_pod_learns_why() -> None:
    far = replace(pf_of(0), link_type="ethernet", pci_address="10000:01:00.0")
    link = Link("ens0", far.pci_address, "0c:42:a1:16:05:4c", True, True, "up", 400_000, 9000)
    offered = [Devices(far.pci_address, share_ids(far.pci_address, 1), ())]
    settings = AttachSettings(interface="rail{rail}")
    plan = attach_plan(
        settings, Snapshot(functions=(far,), links=(link,)), {far.pci_address: 0}, {}, offered=offered
    )
    assert list(plan.vfs) == [f"{far.pci_address}::0"]


def test_scan_shows_the_first_share_of_each_hca() -> None:
    shares = {share(0, n): PlannedVf(0, 1500, f"10.0.{n}.7/16", pf=pf(0), mac="02:00") for n in range(64)}
    shown = pod_plan_table(AttachPlan("rail{rail}", {**shares, vf(0): PlannedVf(0)}))
    assert shown.count("::") == 1
    assert share(0, 0) in shown
    assert vf(0) in shown


def test_a_container_names_the_netdev_of_each_of_its_shares_on_ethernet_alone() -> None:
    nic = replace(pf_of(0), link_type="ethernet")
    kind = HcaShares("x/rdma0", (nic.pci_address,), 2, attach=True)
    ids = list(share_ids(nic.pci_address, 2))
    assert kind.attaches
    names = kind.allocate(Snapshot(functions=(nic,)), ids).cdi_devices
    assert names == tuple(f"nodeagent.io/attached={id_}" for id_ in ids)
    assert kind.allocate(Snapshot(functions=(pf_of(0),)), ids).cdi_devices == ()


def test_a_share_has_the_number_that_the_controller_gave_its_node() -> None:
    nic = replace(pf_of(0), link_type="ethernet", pci_address=pf(0))
    link = Link(str(nic.netdev), nic.pci_address, "0c:42:a1:16:05:4c", True, True, "up", 400_000, 9000)
    snapshot = Snapshot(functions=(nic,), links=(link,))
    offered = [Devices(nic.pci_address, share_ids(nic.pci_address, 2), ())]
    settings = AttachSettings(interface="rail{rail}", addresses="10.{rail}.0.0/16", nodes=500, shares=64)

    def planned(*words: RailNumber, own: str = "") -> list[tuple[str | None, str]]:
        addresses = {pf(0): (IPv4Interface(own),)} if own else {}
        given_to = GivenNumbers({(word.rail, word.prefix): word for word in words})
        plan = attach_plan(settings, snapshot, {pf(0): 0}, addresses, (), offered, given_to)
        return [(it.address, it.refusal) for _, it in sorted(plan.vfs.items())]

    seventh = RailNumber(rail="nic0", prefix="10.0.0.0/16", number=7)
    parts = [("10.0.18.7/16", ""), ("10.0.20.7/16", "")]
    assert planned(seventh) == parts
    assert planned(seventh, own="10.0.0.7/16") == parts
    for words, own, why in (
        ((), "10.0.0.7/16", "the controller has not confirmed the number 7 of this node"),
        ((), "", "the controller has not confirmed a number for this node"),
        ((seventh,), "10.0.0.8/16", "the controller has not confirmed the number 8 of this node"),
        ((replace(seventh, holder="node-3"),), "10.0.0.7/16", "the node node-3 had the number 7"),
    ):
        for address, refusal in planned(*words, own=own):
            assert address is None
            assert why in refusal


def test_an_ipam_plugin_must_not_give_the_addresses_of_pfs_gateways_and_switches() -> None:
    nic = replace(pf_of(0), link_type="ethernet", pci_address=pf(0))
    settings = AttachSettings(
        interface="rail{rail}", ipam={"type": "host-local", "subnet": "10.{rail}.0.0/16"}
    )
    own, gateway = IPv4Interface("10.0.0.7/16"), IPv4Address("10.0.255.254")
    leaf = Identifier("mac", "02:00:00:00:00:01")
    neighbor = Neighbor("ens1", leaf, leaf, "leaf-1", management_addresses=("10.0.255.1", "leaf-1"))
    snapshot = Snapshot(functions=(nic,), neighbors=(neighbor,))
    plan = attach_plan(settings, snapshot, {pf(0): 0}, {pf(0): (own,)}, (gateway,))
    assert plan.taken == {
        "10.0.0.7": f"the PF {pf(0)}",
        "10.0.255.1": "the switch leaf-1",
        "10.0.255.254": "a gateway of the node's routes",
    }
    computed = attach_plan(replace(settings, ipam=None), snapshot, {pf(0): 0}, {pf(0): (own,)}, (gateway,))
    assert computed.taken == {}
