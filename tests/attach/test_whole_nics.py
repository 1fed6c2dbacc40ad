"""NICs as a whole go into pods and come back as they were: in real network namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.attach.host_names import read_left
from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_plan import PlannedVf
from tests.support.attached_pods import AttachedNode, addresses, links, pf, vf

pytestmark = pytest.mark.needs("root", "ip", "nsenter")

ADDRESS = {"ens0": ["10.100.0.7/16"], "ens1": ["10.101.0.7/16"]}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AttachedNode]:
    """A node with two NICs that have an address, beside VFs."""
    made = AttachedNode(tmp_path)
    for rail in (0, 1):
        await made.add_pf(rail)
    assert made.plan is not None
    nics = {
        pf(rail): PlannedVf(rail, whole=True, kept=(f"10.{100 + rail}.0.7/16", "fd00::7/64"))
        for rail in (0, 1)
    }
    made.plan = replace(made.plan, vfs={**made.plan.vfs, **nics}, probe=False)
    for rail in (0, 1):
        made.host.ip(f"link set ens{rail} mtu 1400\naddress add fd00::7/64 dev ens{rail} nodad")
    yield made
    made.close()


def seen(node: AttachedNode) -> dict[str, tuple[object, ...]]:
    """MTU, state and addresses of the NICs on the host."""
    return {
        name: (
            link["mtu"],
            "UP" in link["flags"],
            sorted(one["local"] for one in link["addr_info"] if not one["local"].startswith("fe80")),
        )
        for name, link in links(node.host).items()
        if "v" not in name
    }


BEFORE = {"ens0": (1400, True, ["10.100.0.7", "fd00::7"]), "ens1": (1400, True, ["10.101.0.7", "fd00::7"])}


def dies(node: AttachedNode, sandbox: Sandbox) -> None:
    """Do what the kernel does with physical netdevs when a namespace dies: veths it removes."""
    for name in links(node.pods[sandbox.pod]):
        node.pods[sandbox.pod].ip(f"link set {name} netns {node.host.path}")
    node.ended(sandbox)


async def test_a_nic_takes_its_addresses_and_mtu_along_and_gets_them_back(node: AttachedNode) -> None:
    assert seen(node) == BEFORE
    sandbox, pod = node.pod("trainer", pf(0), vf(1))
    assert not node.starts(pf(0))
    await node.attachments.begin(sandbox)
    assert node.starts(pf(0), vf(1))
    assert addresses(pod) == {"rail0": ["10.100.0.7/16"], "rail1": ["10.101.16.7/16"]}
    assert links(pod)["rail0"]["mtu"] == 1400
    assert [one["local"] for one in links(pod)["rail0"]["addr_info"] if one["scope"] == "global"] == [
        "10.100.0.7", "fd00::7",
    ]  # fmt: skip
    assert seen(node).keys() == {"ens1"}
    # Programs of the pod may change it.
    pod.ip("link set rail0 mtu 1280")
    await node.attachments.end(sandbox)
    assert seen(node) == BEFORE
    assert (node.starts(pf(0)), links(pod)) == (False, {})
    node.ended(sandbox)
    again, pod = node.pod("again", pf(0))
    await node.attachments.begin(again)
    assert addresses(pod) == {"rail0": ["10.100.0.7/16"]}


async def test_after_a_kill_of_everything_a_nic_is_on_the_host_as_it_was(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", pf(0), pf(1))
    await node.attachments.begin(sandbox)
    node.restarted()
    dies(node, sandbox)
    assert seen(node) == {"rail0": (1400, False, []), "rail1": (1400, False, [])}
    await node.attachments.synchronize(())
    assert seen(node) == BEFORE
    assert read_left(node.folder) == {}


async def test_what_a_nic_had_is_known_to_the_agent_while_a_pod_has_it(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", pf(0))
    await node.attachments.begin(sandbox)
    assert read_left(node.folder)[pf(0)].addresses == ("10.100.0.7/16", "fd00::7/64")
    node.host.ip("address del 10.101.0.7/16 dev ens1")
    await node.restarted().synchronize((sandbox,))
    assert node.starts(pf(0))
    assert read_left(node.folder).keys() == {pf(0)}
    await node.attachments.end(sandbox)
    assert read_left(node.folder) == {}
    assert seen(node)["ens0"] == BEFORE["ens0"]


async def test_a_nic_whose_kind_is_no_longer_offered_comes_back_too(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", pf(0))
    await node.attachments.begin(sandbox)
    assert node.plan is not None
    node.plan = replace(node.plan, vfs={vf(0): node.plan.vfs[vf(0)]})
    node.restarted()
    dies(node, sandbox)
    await node.attachments.synchronize(())
    assert seen(node) == BEFORE


async def test_a_nic_that_the_host_itself_names_as_pods_do_keeps_its_name(node: AttachedNode) -> None:
    node.host.ip("link set ens0 down\nlink set ens0 name rail0\nlink set rail0 up")
    sandbox, pod = node.pod("trainer", pf(0))
    await node.attachments.begin(sandbox)
    assert links(pod).keys() == {"rail0"}
    node.restarted()
    dies(node, sandbox)
    await node.attachments.synchronize(())
    assert seen(node)["rail0"][1] is True
    second, pod = node.pod("second", pf(0))
    await node.attachments.begin(second)
    await node.attachments.end(second)
    assert seen(node).keys() == {"rail0", "ens1"}


async def test_a_move_that_fails_leaves_the_nic_as_it_was(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", pf(0), pf(1))
    pod.ip("link add rail1 type veth peer name other")
    with pytest.raises(AttachRefused, match="rail1 already"):
        await node.attachments.begin(sandbox)
    await node.attachments.look()
    assert seen(node) == BEFORE
    assert (node.entries(), links(pod).keys()) == ({}, {"rail1", "other"})


async def test_a_nic_without_an_address_of_its_own_gets_that_of_the_plan_and_none_on_the_host(
    node: AttachedNode,
) -> None:
    assert node.plan is not None
    node.host.ip("address flush dev ens0 scope global")
    node.plan = replace(
        node.plan, vfs={pf(0): PlannedVf(0, address="10.100.0.9/16", pf=pf(0), whole=True)}, probe=True
    )
    sandbox, pod = node.pod("trainer", pf(0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.0.9/16"]}
    await node.attachments.end(sandbox)
    assert seen(node)["ens0"] == (1400, True, [])
