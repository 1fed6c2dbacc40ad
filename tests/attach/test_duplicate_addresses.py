"""No pod gets an address that another NIC of its rail has: the PF asks, in real network namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.attach.nri_plugin import AttachRefused
from nodeagent.attach.pod_plan import PlannedVf
from tests.support.attached_pods import AttachedNode, addresses, links, pf, vf

pytestmark = pytest.mark.needs("root", "ip", "nsenter")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AttachedNode]:
    made = AttachedNode(tmp_path)
    yield made
    made.close()


def neighbors(node: AttachedNode, netdev: str) -> str:
    command = node.host.command("ip", "neighbor", "show", "dev", netdev)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


async def test_an_address_that_another_nic_has_goes_to_no_pod_and_the_message_names_it(
    node: AttachedNode,
) -> None:
    far, other = await node.add_pf(0), await node.add_pf(1)
    node.far.ip(f"link set {other} address 02:00:00:00:00:99\naddress add 10.101.16.7/16 dev {other}")
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    before = node.on_host()
    with pytest.raises(AttachRefused) as refused:
        await node.attachments.begin(sandbox)
    assert str(refused.value) == (
        "nodeagent attach: 0000:01:00.2 as rail1: probe: 10.101.16.7 is in use by the NIC 02:00:00:00:00:99"
    )
    assert (node.on_host(), links(pod), node.entries()) == (before, {}, {})
    assert node.attachments.counts.failures == {"probe": 1}
    assert neighbors(node, "ens0") + neighbors(node, "ens1") == ""
    node.far.ip(f"address del 10.101.16.7/16 dev {other}\nlink set {far} up")
    await node.attachments.look()
    assert node.starts(vf(0), vf(1))
    assert neighbors(node, "ens0") + neighbors(node, "ens1") == ""


async def test_an_ipv6_address_is_asked_for_too(node: AttachedNode) -> None:
    far = await node.add_pf(0)
    node.far.ip(f"address add fd00:100::7/64 dev {far} nodad")
    assert node.plan is not None
    planned = PlannedVf(0, 4200, "fd00:100::7/64", pf=pf(0))
    node.plan = replace(node.plan, vfs={**node.plan.vfs, vf(0): planned})
    sandbox, _ = node.pod("trainer", vf(0))
    with pytest.raises(AttachRefused, match="fd00:100::7 is in use by the NIC"):
        await node.attachments.begin(sandbox)


async def test_a_switch_that_answers_for_the_vf_itself_is_no_other_nic(node: AttachedNode) -> None:
    """A fabric that keeps ARP from flooding answers with the MAC address that had the address last: the VF's own."""
    far = await node.add_pf(0)
    node.far.ip(f"link set {far} address 02:aa:00:00:00:00\naddress add 10.100.16.7/16 dev {far}")
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}


@pytest.mark.parametrize("without", ["link set ens0 down", "link del ens0"])
async def test_a_pf_that_cannot_ask_keeps_no_pod_from_starting(node: AttachedNode, without: str) -> None:
    await node.add_pf(0)
    node.host.ip(without)
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0))


async def test_switched_off_nobody_is_asked(node: AttachedNode) -> None:
    far = await node.add_pf(0)
    node.far.ip(f"address add 10.100.16.7/16 dev {far}")
    assert node.plan is not None
    node.plan = replace(node.plan, probe=False)
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0))


async def test_a_neighbor_that_an_administrator_has_set_stays(node: AttachedNode) -> None:
    far = await node.add_pf(0)
    node.far.ip(f"address add 10.100.16.7/16 dev {far}")
    node.host.ip("neighbor add 10.100.16.7 lladdr 02:00:00:00:00:55 dev ens0 nud permanent")
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert "10.100.16.7 lladdr 02:00:00:00:00:55 PERMANENT" in neighbors(node, "ens0")


async def test_the_address_of_a_running_pod_is_not_asked_for_again(node: AttachedNode) -> None:
    far = await node.add_pf(0)
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    node.far.ip(f"address add 10.100.16.7/16 dev {far}")
    await node.restarted().synchronize((sandbox,))
    assert (addresses(pod), node.starts(vf(0))) == ({"rail0": ["10.100.16.7/16"]}, True)
