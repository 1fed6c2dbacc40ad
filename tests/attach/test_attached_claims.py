"""VFs of claims come into the pods that hold them, by the agent's records of prepared claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.attach.claimed_vfs import ClaimedVf, ClaimedVfs
from nodeagent.attach.nri_plugin import AttachRefused
from nodeagent.facts.model import PodNetdev
from tests.support.attached_pods import AttachedNode, addresses, links, vf

pytestmark = pytest.mark.needs("root", "ip", "nsenter")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AttachedNode]:
    made = AttachedNode(tmp_path)
    yield made
    made.close()


async def test_a_pod_with_a_claim_has_its_vfs_and_its_containers_start(node: AttachedNode) -> None:
    sandbox, pod = node.pod_by_claim("trainer", vf(1), vf(0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.16.7/16"], "rail1": ["10.101.16.7/16"]}
    assert node.starts(vf(0), vf(1))
    assert node.attachments.netdevs == (
        PodNetdev(vf(0), "default", "trainer", "rail0", ("10.100.16.7/16",)),
        PodNetdev(vf(1), "default", "trainer", "rail1", ("10.101.16.7/16",)),
    )
    await node.attachments.end(sandbox)
    assert (node.on_host(), node.entries()) == (node.all_host_names(), {})


async def test_a_claim_is_found_after_a_kill_and_keeps_its_entry(node: AttachedNode) -> None:
    sandbox, _ = node.pod_by_claim("trainer", vf(0))
    await node.attachments.begin(sandbox)
    again = node.restarted()
    await again.synchronize((sandbox,))
    assert node.starts(vf(0))
    await again.end(sandbox)
    assert (node.on_host(), node.entries()) == (node.all_host_names(), {})


async def test_a_claim_that_was_prepared_while_nobody_ran_is_attached_at_the_start(
    node: AttachedNode,
) -> None:
    sandbox, pod = node.pod_by_claim("trainer", vf(0))
    assert not node.starts(vf(0))
    await node.restarted().synchronize((sandbox,))
    assert node.starts(vf(0))
    assert links(pod).keys() == {"rail0"}


async def test_after_a_claim_was_prepared_a_pod_is_not_answered_by_the_last_list(node: AttachedNode) -> None:
    first, _ = node.pod("first", vf(1))
    await node.attachments.begin(first)
    node.long_after_the_allocation()
    await node.attachments.look()
    second, pod = node.pod_by_claim("second", vf(0))
    await node.attachments.begin(second)
    assert links(pod).keys() == {"rail0"}


async def test_a_new_sandbox_of_a_pod_with_a_claim_gets_its_vfs_without_a_new_allocation(
    node: AttachedNode,
) -> None:
    sandbox, before = node.pod_by_claim("trainer", vf(0))
    await node.attachments.begin(sandbox)
    node.long_after_the_allocation()
    await node.attachments.look()
    await node.attachments.end(sandbox)
    Path(sandbox.network).unlink()
    before.__exit__()
    again, pod = node.pod("trainer")
    await node.attachments.begin(replace(again, id="sandbox-again"))
    assert links(pod).keys() == {"rail0"}
    assert node.starts(vf(0))


async def test_the_vfs_of_two_claims_of_one_rail_are_named_in_the_order_of_their_preparation(
    node: AttachedNode,
) -> None:
    """The first claim has told its containers rail0, whatever comes later."""
    node.claim("first", {"uid-trainer": "trainer"}, vf(0, 1))
    node.claim("second", {"uid-trainer": "trainer"}, vf(0, 0))
    sandbox, pod = node.pod("trainer")
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.32.7/16"], "rail0b": ["10.100.16.7/16"]}


async def test_a_pod_of_the_same_name_does_not_take_the_vfs_of_one_that_still_ends(
    node: AttachedNode,
) -> None:
    """A StatefulSet gives the name again while the containers of a pod that was deleted by force still run."""
    old, before = node.pod_by_claim("worker-0", vf(0))
    await node.attachments.begin(old)
    kept = node.folder / "cni-old"
    Path(old.network).rename(kept)
    node.claim("claim-next", {"uid-next": "worker-0"}, vf(0, 1))
    new, pod = node.pod("worker-0")
    await node.attachments.begin(replace(new, id="sandbox-next", uid="uid-next"))
    assert addresses(pod) == {"rail0": ["10.100.32.7/16"]}
    assert links(before).keys() == {"rail0"}
    before.__exit__()


async def test_a_claim_of_two_pods_is_refused_with_the_name_of_the_other_one(node: AttachedNode) -> None:
    node.claim("shared", {"uid-one": "one", "uid-two": "two"}, vf(0))
    one, _ = node.pod("one")
    node.pod("two")
    with pytest.raises(AttachRefused, match=r"0000:00:00.2 is held by default/two too"):
        await node.attachments.begin(one)
    assert node.on_host() == node.all_host_names()


async def test_a_claim_that_an_ended_pod_shared_is_for_the_other_one(node: AttachedNode) -> None:
    node.claim("shared", {"uid-one": "one", "uid-gone": "gone"}, vf(0))
    one, pod = node.pod("one")
    await node.attachments.begin(one)
    assert links(pod).keys() == {"rail0"}


async def test_the_next_claim_with_a_vf_names_another_device(node: AttachedNode) -> None:
    """The entry of an ended claim starts no container of a later one."""
    first, _ = node.pod_by_claim("first", vf(0))
    await node.attachments.begin(first)
    node.claim("claim-second", {"uid-second": "second"}, vf(0))
    assert not node.starts(vf(0))


async def test_a_claim_from_before_the_settings_asked_for_netdevs_stays_on_the_host(
    node: AttachedNode,
) -> None:
    """Its containers name no device of ours."""
    record = node.claim("old", {"uid-old": "old"}, vf(0))
    devices = tuple(replace(device, cdi_devices=("c=0",)) for device in record.devices)
    node.claim_files.write_record(replace(record, devices=devices))
    sandbox, _ = node.pod("old")
    await node.attachments.begin(sandbox)
    assert node.on_host() == node.all_host_names()


def test_records_of_another_boot_and_damaged_ones_hold_nothing(node: AttachedNode) -> None:
    record = node.claim("good", {"uid-a": "a"}, vf(0))
    folder = node.folder / "claims"
    (folder / "damaged.json").write_text('{"boot_id"')
    (folder / "empty.json").write_text("")
    (folder / "folder.json").mkdir()
    (folder / "other.txt").write_text("")
    good = ClaimedVf(vf(0), "uidgood.1", record.sequence, "default", {"uid-a": "a"})
    assert ClaimedVfs(node.folder).read() == (good,)
    assert ClaimedVfs(node.folder, boot="another boot").read() == ()
    assert ClaimedVfs(node.folder / "nothing").read() == ()


def test_the_records_are_read_again_after_each_change(node: AttachedNode) -> None:
    claimed = ClaimedVfs(node.folder)
    first = node.claim("first", {"uid-a": "a"}, vf(0))
    assert [one.device for one in claimed.read()] == [vf(0)]
    node.claim("second", {"uid-b": "b"}, vf(1))
    assert [one.device for one in claimed.read()] == [vf(0), vf(1)]
    node.long_after_the_allocation()
    assert claimed.read() == claimed.read()
    node.claim_files.remove(first)
    assert [one.device for one in claimed.read()] == [vf(1)]
