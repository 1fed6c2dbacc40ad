"""VFs follow the sandboxes of their pods: in real network namespaces, over ends and restarts in any order."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_plan import PlannedVf
from nodeagent.facts.model import Holding, PodNetdev
from tests.support.attached_pods import AttachedNode, addresses, links, rules, vf

pytestmark = pytest.mark.needs("root", "ip", "nsenter")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AttachedNode]:
    made = AttachedNode(tmp_path)
    yield made
    made.close()


async def test_a_pod_has_its_vfs_with_name_address_and_mtu_before_its_containers(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(1), vf(0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"], "rail1": ["10.101.16.7/16"]}
    assert {(link["mtu"], "UP" in link["flags"]) for link in links(pod).values()} == {(4200, True)}
    assert node.on_host() == {node.host_name(0, 1), node.host_name(1, 1)}
    assert node.entries() == {
        vf(rail): {
            "env": [f"NODEAGENT_INTERFACE_0000_0{rail}_00_2=rail{rail}"],
            "mounts": [
                {
                    "hostPath": sandbox.network,
                    "containerPath": "/run/nodeagent/network-namespace",
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
            ],
        }
        for rail in range(2)
    }


async def test_a_second_vf_of_a_rail_has_a_letter_more_and_a_table_of_its_own(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(1, 1), vf(1, 0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail1": ["10.101.16.7/16"], "rail1b": ["10.101.32.7/16"]}


async def test_the_vfs_of_an_ended_pod_are_on_the_host_under_their_names_and_in_no_spec(
    node: AttachedNode,
) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    await node.attachments.begin(sandbox)
    await node.attachments.end(sandbox)
    assert node.on_host() == node.all_host_names()
    assert not any("UP" in link["flags"] for link in links(node.host).values())
    assert all(one == [] for one in addresses(node.host).values())
    assert node.entries() == {}
    assert links(pod) == {}
    await node.attachments.end(replace(sandbox, network=""))  # RemovePodSandbox names no namespace


async def test_a_pod_without_vfs_moves_nothing(node: AttachedNode) -> None:
    sandbox, pod = node.pod("web")
    await node.attachments.begin(sandbox)
    await node.attachments.end(sandbox)
    assert (node.entries(), links(pod), node.on_host()) == ({}, {}, node.all_host_names())


async def test_pods_without_vfs_do_not_wait_for_the_kubelet(node: AttachedNode) -> None:
    """Nothing was allocated since its last list, so a pod that is not in it holds nothing."""
    trainer, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(trainer)
    node.long_after_the_allocation()
    await node.attachments.look()
    asked, held, node.holdings = node.asked, node.holdings, None
    for name in ("web", "db"):
        await node.attachments.begin(node.pod(name)[0])
    assert node.asked == asked
    node.holdings = held
    second, pod = node.pod("second", vf(1))
    await node.attachments.begin(second)
    assert (node.asked, links(pod).keys()) == (asked + 1, {"rail1"})


async def test_a_list_just_after_an_allocation_does_not_tell_that_a_pod_holds_nothing(
    node: AttachedNode,
) -> None:
    """The kubelet has answered for the devices of a pod, and does not list it yet when another pod begins."""
    second, pod = node.pod("second", vf(1))
    held, node.holdings, node.unlisted = node.holdings, [], {("default", "second")}
    await node.attachments.begin(node.pod("web")[0])
    node.holdings, node.unlisted = held, set()
    await node.attachments.begin(second)
    assert links(pod).keys() == {"rail1"}


async def test_after_an_allocation_a_pod_that_was_missed_is_found(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    held, node.holdings = node.holdings, []
    await node.attachments.begin(sandbox)
    assert links(pod) == {}
    node.holdings = held
    await node.attachments.look()
    assert node.starts(vf(0))


async def test_a_pod_on_the_hosts_network_keeps_its_vfs_there(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    sandbox = replace(sandbox, network="", on_host=True)
    await node.attachments.begin(sandbox)
    assert node.on_host() == node.all_host_names()
    assert node.entries() == {vf(0): {"env": ["NODEAGENT_INTERFACE_0000_00_00_2=ens0v0"]}}
    await node.attachments.end(sandbox)
    assert node.entries() == {}


async def test_a_pod_whose_name_is_taken_gets_nothing_and_the_message_names_the_step(
    node: AttachedNode,
) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    pod.ip("link add rail1 type veth peer name other")
    with pytest.raises(AttachRefused) as refused:
        await node.attachments.begin(sandbox)
    assert str(refused.value) == (
        "nodeagent attach: 0000:01:00.2 as rail1: move: rtnetlink: File exists (EEXIST); the pod has a netdev rail1 "
        "already"
    )
    assert node.on_host() == node.all_host_names()
    assert node.entries() == {}
    assert links(pod).keys() == {"rail1", "other"}


async def test_a_vf_without_an_address_keeps_its_pod_from_starting(node: AttachedNode) -> None:
    assert node.plan is not None
    node.plan = replace(
        node.plan, vfs={**node.plan.vfs, vf(1): PlannedVf(1, refusal="its PF has no address")}
    )
    sandbox, _ = node.pod("trainer", vf(0), vf(1))
    with pytest.raises(AttachRefused, match=r"0000:01:00\.2 has no address: its PF has no address"):
        await node.attachments.begin(sandbox)
    assert (node.on_host(), node.entries()) == (node.all_host_names(), {})


async def test_a_vf_that_two_pods_hold_goes_to_neither(node: AttachedNode) -> None:
    first, pod = node.pod("first", vf(0))
    await node.attachments.begin(first)
    second, other = node.pod("second", vf(0))
    with pytest.raises(AttachRefused, match=r"0000:00:00\.2 is held by default/first too"):
        await node.attachments.begin(second)
    assert (links(pod).keys(), links(other)) == ({"rail0"}, {})


async def test_a_vf_leaves_a_sandbox_whose_pod_holds_it_no_more(node: AttachedNode) -> None:
    """The runtime still has the sandbox of a pod that the kubelet has forgotten."""
    first, pod = node.pod("first", vf(0), vf(1))
    await node.attachments.begin(first)
    node.released("first")
    second, other = node.pod("second", vf(0))
    await node.attachments.begin(second)
    assert (links(pod).keys(), links(other).keys()) == ({"rail1"}, {"rail0"})
    assert node.entries()[vf(0)]["mounts"][0]["hostPath"] == second.network


async def test_a_cni_plugin_has_moved_the_vf_before(node: AttachedNode) -> None:
    """Multus: its name and its addresses stay, and it takes the VF back itself."""
    sandbox, pod = node.pod("trainer", vf(0))
    node.host.ip(f"link set ens0v0 netns {pod.path}")
    pod.ip("link set ens0v0 name net1\naddress add 192.168.1.1/24 dev net1")
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"net1": ["192.168.1.1/24"]}
    assert node.entries()[vf(0)]["env"] == ["NODEAGENT_INTERFACE_0000_00_00_2=net1"]
    await node.attachments.end(sandbox)
    assert node.entries() == {}
    assert links(pod).keys() == {"net1"}


# --- the interlock ----------------------------------------------------------------------------------------


async def test_a_container_starts_once_its_vfs_are_in_its_pod_and_starts_again(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0), vf(1))
    assert not node.starts(vf(0), vf(1))
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0), vf(1))
    await node.restarted().synchronize((sandbox,))
    assert node.starts(vf(0), vf(1))
    await node.attachments.end(sandbox)
    assert not node.starts(vf(0), vf(1))


async def test_each_container_of_a_pod_starts(node: AttachedNode) -> None:
    """The kubelet allocates the VF of a finished init container once more, for the next container."""
    sandbox, _ = node.pod("trainer", vf(0))
    init = dict(node.allocated)
    node.allocate(vf(0))
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0))
    node.allocated = init
    assert node.starts(vf(0))


async def test_a_container_that_is_allocated_later_starts_after_the_next_look(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    node.allocate(vf(0))
    assert not node.starts(vf(0))
    await node.attachments.look()
    assert node.starts(vf(0))


async def test_the_next_pod_does_not_start_with_what_an_earlier_one_left(node: AttachedNode) -> None:
    """The kubelet frees a VF while the sandbox of its pod still exists. Here nobody listens: a real kubelet started
    the next container without its netdev."""
    first, _ = node.pod("first", vf(0))
    await node.attachments.begin(first)
    node.released("first")
    second, pod = node.pod("second", vf(0))
    assert node.entries().keys() == {vf(0)}
    assert not node.starts(vf(0))
    await node.restarted().synchronize((first, second))
    assert node.starts(vf(0))
    assert links(pod).keys() == {"rail0"}


async def test_a_new_sandbox_of_a_pod_does_not_start_with_what_its_old_one_left(node: AttachedNode) -> None:
    old, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(old)
    await _kernel_returns(node, old)
    Path(old.network).unlink()
    assert node.entries().keys() == {vf(0)}
    assert not node.starts(vf(0))


async def test_a_vf_that_changes_its_pod_while_the_kubelet_is_asked_is_not_defined_for_the_old_one(
    node: AttachedNode,
) -> None:
    """The answer of the kubelet is older than the allocation."""
    first, _ = node.pod("first", vf(0))
    node.at_list = lambda: node.allocate(vf(0))
    await node.attachments.begin(first)
    assert not node.starts(vf(0))


async def test_a_plan_without_a_kubelet_keeps_the_stamps_that_the_spec_has_and_no_newer_ones(
    node: AttachedNode,
) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    first = dict(node.allocated)
    node.holdings = None
    node.allocate(vf(0))
    await node.restarted().synchronize((sandbox,))
    assert not node.starts(vf(0))
    node.allocated = first
    assert node.starts(vf(0))


# --- ends and restarts ------------------------------------------------------------------------------------


async def test_a_sandbox_that_began_while_nobody_listened_gets_its_vfs_at_synchronize(
    node: AttachedNode,
) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}
    assert node.entries().keys() == {vf(0)}


async def test_another_process_finds_what_an_earlier_one_has_attached(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(0, 1))
    await node.attachments.begin(sandbox)
    before, entries = links(pod), node.entries()
    await node.restarted().synchronize((sandbox,))
    assert (links(pod), node.entries()) == (before, entries)
    await node.attachments.end(sandbox)
    assert node.on_host() == node.all_host_names()


@pytest.mark.parametrize(
    "half", ["", "link set rail0 down", "link set rail0 up", "link set rail0 name ens0v0"]
)
async def test_a_half_attached_vf_is_completed(node: AttachedNode, half: str) -> None:
    """The earlier process ended after the move, or between its parts."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip(f"address flush dev rail0\nlink set rail0 down\n{half}")
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}
    assert "UP" in links(pod)["rail0"]["flags"]


async def test_a_sandbox_that_begins_during_a_look_disturbs_nothing(
    node: AttachedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look runs in a thread, and goes through the sandboxes while others begin and end in the loop."""
    first, _ = node.pod("trainer", vf(0))
    await node.attachments.synchronize((first,))
    loop, exists, begun = asyncio.get_running_loop(), Path.exists, threading.Event()

    def exists_while_others_begin(path: Path) -> bool:
        if str(path) == first.network and not begun.is_set():
            loop.call_soon_threadsafe(loop.create_task, node.attachments.begin(second))
            loop.call_soon_threadsafe(loop.call_soon, begun.set)
            assert begun.wait(10)
        return exists(path)

    second, pod = node.pod("other", vf(1))
    monkeypatch.setattr(Path, "exists", exists_while_others_begin)
    await node.attachments.look()
    monkeypatch.undo()
    assert begun.is_set()
    await node.attachments.look()
    assert node.starts(vf(0), vf(1))
    assert addresses(pod) == {"rail1": ["10.101.16.7/16"]}


async def test_without_the_kubelet_a_sandbox_goes_on_and_the_vfs_come_later(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    held, node.holdings = node.holdings, None
    await node.attachments.begin(sandbox)
    assert (links(pod), node.entries()) == ({}, {})
    node.holdings = held
    await node.attachments.settle()
    assert (links(pod).keys(), node.entries().keys()) == ({"rail0"}, {vf(0)})


async def test_a_pod_that_the_kubelet_does_not_list_yet_gets_its_vfs_later(node: AttachedNode) -> None:
    """Shortly after its start the kubelet lists no pod, or some."""
    sandbox, pod = node.pod("trainer", vf(0))
    held, node.holdings, node.unlisted = node.holdings, [], {("default", "trainer")}
    await node.attachments.begin(sandbox)
    assert links(pod) == {}
    node.holdings, node.unlisted = held, set()
    await node.attachments.look()
    assert node.starts(vf(0))


async def test_after_a_restart_a_pod_that_is_not_listed_yet_keeps_what_it_has(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    held, node.holdings, node.unlisted = node.holdings, [], {("default", "trainer")}
    await node.restarted().synchronize((sandbox,))
    assert node.starts(vf(0))
    node.holdings, node.unlisted = held, set()
    await node.attachments.look()
    assert (node.starts(vf(0)), links(pod).keys()) == (True, {"rail0"})
    await node.attachments.end(sandbox)
    assert node.on_host() == node.all_host_names()


async def test_without_the_kubelet_a_restart_keeps_the_entries_of_vfs_that_are_in_pods(
    node: AttachedNode,
) -> None:
    stays, pod = node.pod("stays", vf(0))
    goes, _ = node.pod("goes", vf(1))
    for sandbox in (stays, goes):
        await node.attachments.begin(sandbox)
    await _kernel_returns(node, goes)
    node.holdings = None
    await node.restarted().synchronize((stays, goes))
    assert node.entries().keys() == {vf(0)}
    assert links(pod).keys() == {"rail0"}


async def test_a_vf_that_the_kernel_returned_has_its_name_again(node: AttachedNode) -> None:
    """The namespace died while nobody listened: the kernel keeps the pod's name, or makes one."""
    sandbox, _ = node.pod("trainer", vf(0), vf(1))
    await node.attachments.begin(sandbox)
    await _kernel_returns(node, sandbox)
    node.host.ip("link set rail1 name dev0")
    node.ended(sandbox)
    await node.restarted().synchronize(())
    assert node.on_host() == node.all_host_names()
    assert node.entries() == {}


async def test_a_vf_that_comes_back_goes_to_the_next_pod_by_its_address(node: AttachedNode) -> None:
    first, _ = node.pod("first", vf(0))
    await node.attachments.begin(first)
    await _kernel_returns(node, first)
    node.ended(first)
    node.restarted()
    second, pod = node.pod("second", vf(0))
    await node.attachments.begin(second)
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}
    await node.attachments.end(second)
    assert node.on_host() == node.all_host_names()


async def test_the_entry_of_a_pod_that_ended_unseen_goes_at_the_next_look(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    await _kernel_returns(node, sandbox)
    node.ended(sandbox)
    await node.attachments.settle()
    assert node.entries() == {}
    assert node.on_host() == node.all_host_names()


async def test_the_file_of_a_namespace_that_is_none_fails_the_pod(node: AttachedNode, tmp_path: Path) -> None:
    """The namespace was mounted after our mounts were copied: HostToContainer propagation is missing."""
    sandbox, _ = node.pod("trainer", vf(0))
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(AttachRefused, match="cannot enter the network namespace: Invalid argument"):
        await node.attachments.begin(replace(sandbox, network=str(plain)))
    assert (node.on_host(), node.entries()) == (node.all_host_names(), {})


async def test_a_netdev_that_got_its_name_late_is_known_by_that(node: AttachedNode) -> None:
    """udev names a new VF some time after the kernel does."""
    node.host.ip("link set ens0v0 name eth0")
    sandbox, _ = node.pod("trainer", vf(1))
    await node.attachments.begin(sandbox)
    node.host.ip("link set eth0 name ens0v0")
    await node.attachments.settle()
    assert "ens0v0" in node.on_host()


async def test_ends_and_begins_at_a_time_lose_nothing(node: AttachedNode) -> None:
    pods = [node.pod(f"pod{rail}{index}", vf(rail, index)) for rail, index in node.vfs]
    await asyncio.gather(*(node.attachments.begin(sandbox) for sandbox, _ in pods))
    await asyncio.gather(*(node.attachments.end(sandbox) for sandbox, _ in pods), node.attachments.settle())
    assert node.on_host() == node.all_host_names()


async def _kernel_returns(node: AttachedNode, sandbox: Sandbox) -> None:
    """Do what the kernel does with physical netdevs when a namespace dies; veths it removes."""
    pod = node.pods[sandbox.pod]
    for name in links(pod):
        pod.ip(f"link set {name} netns {node.host.path}")


async def test_once_switched_off_pods_keep_their_netdevs_to_their_end_and_no_pod_gets_any(
    node: AttachedNode,
) -> None:
    first, pod = node.pod("first", vf(0))
    await node.attachments.begin(first)
    assert node.plan is not None
    node.plan = replace(node.plan, on=False)
    second, other = node.pod("second", vf(1))
    await node.attachments.begin(second)
    await node.restarted().synchronize((first, second))
    assert (links(pod).keys(), links(other)) == ({"rail0"}, {})
    assert node.entries().keys() == {vf(0)}
    await node.attachments.end(first)
    assert (node.on_host(), node.entries()) == (node.all_host_names(), {})


async def test_a_vf_that_left_its_pod_is_moved_again(node: AttachedNode) -> None:
    """The driver was loaded again under the pod: the kernel makes the netdev on the host."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip(f"link set rail0 netns {node.host.path} name ens0v0")
    await node.attachments.look()
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}


async def test_a_spec_that_was_deleted_is_written_again(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    before = node.entries()
    (node.folder / "cdi" / "nodeagent-attached.json").unlink()
    await node.attachments.look()
    assert node.entries() == before


# --- what others are told ---------------------------------------------------------------------------------


async def test_it_tells_which_pod_has_which_vf_under_which_name_and_address(node: AttachedNode) -> None:
    first, _ = node.pod("first", vf(1), vf(0))
    second, _ = node.pod("second", vf(0, 1))
    for sandbox in (first, second):
        await node.attachments.begin(sandbox)
    told = (
        PodNetdev(vf(0), "default", "first", "rail0", ("10.100.16.7/16",)),
        PodNetdev(vf(0, 1), "default", "second", "rail0", ("10.100.32.7/16",)),
        PodNetdev(vf(1), "default", "first", "rail1", ("10.101.16.7/16",)),
    )
    assert node.attachments.netdevs == told
    node.holdings = None
    await node.restarted().synchronize((first, second))
    assert node.attachments.netdevs == told
    await node.attachments.end(first)
    assert node.attachments.netdevs == told[1:2]


async def test_it_counts_pods_by_time_and_failures_by_step(node: AttachedNode) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    await node.attachments.settle()  # nothing moves, so nothing is counted
    counts = node.attachments.counts
    assert counts.seconds[-1] == 1
    assert counts.total_s > 0
    assert counts.failures == {}
    other, pod = node.pod("other", vf(1))
    pod.ip("link add rail1 type veth peer name far")
    with pytest.raises(AttachRefused):
        await node.attachments.begin(other)
    third, _ = node.pod("third", vf(0))
    with pytest.raises(AttachRefused):
        await node.attachments.begin(third)
    assert node.attachments.counts.failures == {"move": 1, "holder": 1}


# --- found by attacks -------------------------------------------------------------------------------------


async def test_a_pod_that_was_refused_after_its_answer_had_left_is_tried_again(node: AttachedNode) -> None:
    """The runtime was answered before the work failed, so its sandbox stays and no other one comes."""
    sandbox, pod = node.pod("trainer", vf(0))
    pod.ip("link add rail0 type veth peer name other")
    await node.attachments.synchronize(())
    node.long_after_the_allocation()
    with pytest.raises(AttachRefused):
        await node.attachments.begin(sandbox)
    assert [one.pod for one in node.attachments.waiting] == ["default/trainer"]
    pod.ip("link del rail0")
    await node.attachments.look()
    assert node.starts(vf(0))
    assert node.attachments.waiting == ()


async def test_a_vf_that_was_allocated_before_the_settings_asked_for_netdevs_stays_where_it_is(
    node: AttachedNode,
) -> None:
    sandbox, pod = node.pod("trainer")
    assert node.holdings is not None
    node.holdings.append(Holding("default", "trainer", "main", "example.com/nic", (vf(0),)))
    await node.attachments.synchronize((sandbox,))
    await node.attachments.begin(sandbox)
    assert (links(pod), node.on_host(), node.entries()) == ({}, node.all_host_names(), {})


async def test_a_stopped_sandbox_of_a_pod_does_not_hide_the_one_that_lives(node: AttachedNode) -> None:
    """A runtime lists its sandboxes in any order, and one that it has stopped without a namespace."""
    sandbox, pod = node.pod("trainer", vf(0))
    stopped = replace(sandbox, id="sandbox-before", network="")
    await node.attachments.synchronize((sandbox, stopped))
    assert (links(pod).keys(), node.starts(vf(0))) == ({"rail0"}, True)


async def test_of_two_sandboxes_of_a_name_that_live_neither_is_taken_for_the_newer_one(
    node: AttachedNode,
) -> None:
    """A pod was deleted by force, and its successor of the same name has a sandbox beside it."""
    sandbox, pod = node.pod("web-0", vf(0))
    before, old = node.pod("web-0-before")
    before = replace(before, pod="web-0")
    for order in ((sandbox, before), (before, sandbox)):
        await node.restarted().synchronize(order)
        assert (links(pod), links(old), node.starts(vf(0))) == ({}, {}, False)
        assert [one.pod for one in node.attachments.waiting] == ["default/web-0"]
    await node.attachments.end(before)
    Path(before.network).unlink()
    await node.attachments.look()
    assert (links(pod).keys(), links(old), node.starts(vf(0))) == ({"rail0"}, {}, True)
    assert node.attachments.waiting == ()


async def test_switched_off_a_pod_on_the_hosts_network_starts_its_containers_again(
    node: AttachedNode,
) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    sandbox = replace(sandbox, network="", on_host=True)
    await node.attachments.begin(sandbox)
    assert node.plan is not None
    node.plan = replace(node.plan, on=False)
    for _ in range(2):
        await node.restarted().synchronize((sandbox,))
        await node.attachments.look()
        assert node.starts(vf(0))
    await node.restarted().synchronize(())
    assert node.entries() == {}


async def test_without_the_kubelet_a_pod_on_the_hosts_network_starts_its_containers_again(
    node: AttachedNode,
) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    sandbox = replace(sandbox, network="", on_host=True)
    await node.attachments.begin(sandbox)
    node.holdings = None
    await node.restarted().synchronize((sandbox,))
    assert node.starts(vf(0))
    node.holdings, node.unlisted = [], {("default", "trainer")}
    await node.attachments.look()
    assert node.starts(vf(0))
    node.unlisted = set()
    await node.attachments.look()
    assert node.entries() == {}


@pytest.mark.parametrize("seen", [True, False])
async def test_a_netdev_that_its_pod_has_renamed_has_its_own_name_on_the_host_again(
    node: AttachedNode, *, seen: bool
) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip("link set rail0 down\nlink set rail0 name mine")
    await node.restarted().synchronize((sandbox,))
    assert node.starts(vf(0))
    if seen:
        await node.attachments.end(sandbox)
        node.ended(sandbox)
    else:
        await _kernel_returns(node, sandbox)
        node.ended(sandbox)
        await node.restarted().synchronize(())
        await node.attachments.look()
    assert node.on_host() == node.all_host_names()
    other, its = node.pod("other", vf(0))
    await node.attachments.begin(other)
    await node.attachments.end(other)
    assert (node.on_host(), links(its)) == (node.all_host_names(), {})


@pytest.mark.parametrize("seen", [True, False])
async def test_after_another_pattern_of_names_vfs_have_their_own_names_on_the_host_again(
    node: AttachedNode, *, seen: bool
) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert node.plan is not None
    node.plan = replace(node.plan, interface="net{rail}")
    await node.restarted().synchronize((sandbox,))
    assert links(pod).keys() == {"rail0"}
    if seen:
        await node.attachments.end(sandbox)
        node.ended(sandbox)
    else:
        await _kernel_returns(node, sandbox)
        node.ended(sandbox)
        await node.restarted().synchronize(())
    assert node.on_host() == node.all_host_names()


async def test_a_sandbox_that_begins_before_the_first_look_does_not_take_the_entries_of_others(
    node: AttachedNode,
) -> None:
    """Both wait for a move; the kubelet then answers once more."""
    stays, _ = node.pod("stays", vf(0))
    moves, _ = node.pod("moves", vf(0, 1))
    comes, _ = node.pod("comes", vf(1))
    await node.attachments.begin(stays)
    node.restarted()
    tasks: list[asyncio.Task[None]] = []

    def listed_the_last_time() -> None:
        node.holdings = None

    def waiting() -> None:
        node.at_list = listed_the_last_time
        tasks.append(asyncio.create_task(node.attachments.synchronize((stays, moves))))
        tasks.append(asyncio.create_task(node.attachments.begin(comes)))

    node.at_list = waiting
    await node.attachments.begin(moves)
    await asyncio.gather(*tasks)
    assert node.starts(vf(0), vf(0, 1))


async def test_an_ipv6_address_is_of_use_as_soon_as_the_container_may_start(node: AttachedNode) -> None:
    assert node.plan is not None
    node.plan = replace(node.plan, vfs={**node.plan.vfs, vf(0): PlannedVf(0, 4200, "fd00:100::7/64")})
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    with pod.entered(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as user:
        user.bind(("fd00:100::7", 4711))


async def test_a_running_pod_keeps_its_address_when_that_of_its_pf_changes(node: AttachedNode) -> None:
    """Another number of the node is for the next pods: connections of this one would break."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert node.plan is not None
    moved = {device: replace(it, address="10.100.16.9/24") for device, it in node.plan.vfs.items()}
    node.plan = replace(node.plan, vfs=moved)
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}
    assert node.attachments.netdevs == (PodNetdev(vf(0), "default", "trainer", "rail0", ("10.100.16.7/16",)),)
    assert node.starts(vf(0))
    await node.attachments.end(sandbox)
    node.released("trainer")
    second, pod = node.pod("second", vf(0))
    await node.attachments.begin(second)
    assert addresses(pod) == {"rail0": ["10.100.16.9/24"]}


async def test_a_running_pod_keeps_its_netdev_when_its_pf_loses_its_address(node: AttachedNode) -> None:
    """Its containers start again; the next pod waits for an address."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert node.plan is not None
    lost = {device: replace(it, address=None, refusal="no number") for device, it in node.plan.vfs.items()}
    node.plan = replace(node.plan, vfs=lost)
    await node.restarted().synchronize((sandbox,))
    assert node.attachments.waiting == ()
    assert node.starts(vf(0))
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"]}
    await node.attachments.end(sandbox)
    assert node.on_host() == node.all_host_names()
    second, _ = node.pod("second", vf(1))
    with pytest.raises(AttachRefused, match="no number"):
        await node.attachments.begin(second)


async def test_an_end_between_address_and_route_is_made_good(node: AttachedNode) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip("rule del from 10.100.16.7 table 1000")
    await node.restarted().synchronize((sandbox,))
    assert "10.100.16.7" in rules(pod)


async def test_an_address_by_router_advertisement_does_not_stand_for_the_planned_one(
    node: AttachedNode,
) -> None:
    """The process ended between the two, and a router was faster."""
    assert node.plan is not None
    planned = {device: replace(it, address="fd00::7/64") for device, it in node.plan.vfs.items()}
    node.plan = replace(node.plan, vfs=planned)
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip("address del fd00::7/64 dev rail0\naddress add 2001:db8::9/64 dev rail0 nodad")
    await node.restarted().synchronize((sandbox,))
    (netdev,) = node.attachments.netdevs
    assert netdev.addresses == ("2001:db8::9/64", "fd00::7/64")
