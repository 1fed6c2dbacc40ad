"""The names under which pods may hold VFs, and the file of the rails: one decision at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import Config
from nodeagent.facts.model import Holding, Snapshot, StaleSource
from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.rail_numbers import Rail
from nodeagent.kinds.vf import VfPool
from nodeagent.kubelet.rail_memory import (
    RAIL_ENTRIES_MAX,
    RAILS_FORM,
    NumberedSelection,
    OfferedNic,
    RailMemory,
    RailsFile,
    without,
)
from tests.offering.test_offer import machine, pf

ONE = pf(1)
ADDRESS = ONE.pci_address
OLD, NEW = VfPool("x/nic0", (ADDRESS,)), VfPool("x/nic1", (ADDRESS,))
VF = f"{ADDRESS[:-1]}1"
RAILS = {"{}": (Rail(0, ADDRESS, "b8:3f:d2:00:00:01"),)}


def seen(*held: str, resource: str = "x/nic0") -> Snapshot:
    """The machine with one NIC; ``held`` are the VFs of a pod."""
    holdings = (Holding("ns", "pod", "main", resource, held),) if held else ()
    return replace(machine(ONE), holdings=holdings)


UNREAD = machine(ONE)


def memory(tmp_path: Path, **settings: object) -> RailMemory:
    return RailMemory(tmp_path, tmp_path / "checkpoint", **({"pod_resources": True} | settings))


async def offered(tmp_path: Path, **settings: object) -> RailMemory:
    """The memory of an agent that starts after another one has offered the VFs as ``x/nic0``."""
    await memory(tmp_path).save(RAILS, ("{}",), (OLD,), UNREAD)
    return memory(tmp_path, **settings)


async def test_a_vf_with_its_old_name_waits_for_nothing(tmp_path: Path) -> None:
    assert (await offered(tmp_path)).obstacle(OLD, UNREAD) is None


async def test_a_vf_with_another_name_waits_for_the_holdings(tmp_path: Path) -> None:
    stored = await offered(tmp_path)
    stale = replace(UNREAD, stale_sources=(StaleSource("pods", "no socket"),))
    assert stored.obstacle(NEW, stale) == (
        "its VFs were offered as x/nic0 before, and what pods hold is not known yet: no socket"
    )
    assert stored.holdings_read()
    assert stored.obstacle(NEW, seen(VF)) is None


async def test_a_name_that_changes_while_the_agent_runs_waits_for_a_new_reading(tmp_path: Path) -> None:
    """The last reading may be older than the last allocation under the old name."""
    asked: list[bool] = []
    stored = await offered(tmp_path, read_holdings=lambda: asked.append(True))
    stored.holdings_read()
    assert stored.obstacle(OLD, seen()) is None
    assert asked == []
    assert stored.obstacle(NEW, seen()) is not None
    assert asked == [True]
    await stored.save(RAILS, ("{}",), (), seen())  # meanwhile the old reading removes no name
    assert stored.obstacle(NEW, seen()) is not None
    assert stored.holdings_read()
    assert stored.obstacle(NEW, seen()) is None


async def test_a_name_is_kept_as_long_as_a_pod_may_hold_the_vf(tmp_path: Path) -> None:
    stored = await offered(tmp_path)
    stored.obstacle(NEW, UNREAD)
    stored.holdings_read()
    await stored.save(RAILS, ("{}",), (NEW,), seen(VF))
    assert memory(tmp_path).content.names["x/nic0"] == (VF,)
    assert len(memory(tmp_path).content.names["x/nic1"]) == 2
    await stored.save(RAILS, ("{}",), (NEW,), seen())
    assert list(memory(tmp_path).content.names) == ["x/nic1"]


async def test_a_name_that_pods_give_back_makes_no_resource_wait_again(tmp_path: Path) -> None:
    """A resource that waits is withdrawn from the kubelet for a moment, and a pod may be admitted in it."""
    asked: list[bool] = []
    stored = await offered(tmp_path, read_holdings=lambda: asked.append(True))
    assert stored.obstacle(NEW, UNREAD) is not None
    stored.holdings_read()
    assert stored.obstacle(NEW, seen(VF)) is None
    for held in (
        seen(VF),
        seen(),
    ):  # at first no pod holds the other VF under the old name, then none holds any
        await stored.save(RAILS, ("{}",), (NEW,), held)
        assert stored.obstacle(NEW, held) is None
    assert asked == [True]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_without_a_file_the_kubelets_checkpoint_decides_by_its_existence(
    tmp_path: Path, checkpoint: bool
) -> None:
    if checkpoint:
        (tmp_path / "checkpoint").write_text("the content is private to the kubelet")
    stored = memory(tmp_path)
    why = stored.obstacle(OLD, UNREAD)
    assert (why is not None) == checkpoint
    assert stored.obstacle(OLD, seen(VF)) is None
    assert RailMemory(tmp_path, None, pod_resources=True).obstacle(OLD, UNREAD) is None


async def test_unknown_names_stay_unknown_over_a_restart_until_the_holdings_are_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    await memory(tmp_path).save(RAILS, ("{}",), (), UNREAD)
    stored = memory(tmp_path)
    assert "not known under which names" in (stored.obstacle(OLD, UNREAD) or "")
    await stored.save(RAILS, ("{}",), (OLD,), seen(VF))
    assert memory(tmp_path).obstacle(OLD, UNREAD) is None


async def test_without_podresources_a_changed_name_waits_and_unknown_names_are_accepted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoint").touch()
    assert memory(tmp_path, pod_resources=False).obstacle(OLD, UNREAD) is None
    assert "kubelet.podResources is off" in caplog.text
    blind = await offered(tmp_path, pod_resources=False)
    assert "turn it on, or drain the node" in (blind.obstacle(NEW, UNREAD) or "")


async def test_a_nic_of_an_earlier_agent_is_known_with_its_vfs_as_missing(tmp_path: Path) -> None:
    stored = await offered(tmp_path)
    facts = stored.known_nics(Config().resources)
    assert [function.pci_address for function in facts.functions] == [
        ADDRESS,
        VF,
        f"{ADDRESS[:-1]}2",
    ]
    assert all(function.missing for function in facts.functions)
    assert facts.identities == {ADDRESS: "b8:3f:d2:00:00:01"}
    # Between a reboot and `vfs apply` the PF has no VFs; those of before stay.
    await stored.save(RAILS, ("{}",), (OLD,), machine(pf(1, vfs=0)))
    assert len(memory(tmp_path).known_nics(Config().resources).functions) == 3


async def test_selections_that_are_not_in_force_stay_up_to_a_limit(tmp_path: Path) -> None:
    stored = memory(tmp_path)
    numbering = {f'{{"drivers":["{number}"]}}': RAILS["{}"] for number in range(RAIL_ENTRIES_MAX + 4)}
    await stored.save(RAILS | numbering, ("{}",), (OLD,), UNREAD)
    kept = memory(tmp_path).content.numbering
    assert len(kept) == RAIL_ENTRIES_MAX
    assert kept["{}"] == RAILS["{}"]


async def test_a_rail_that_another_process_removed_ends_now_or_with_the_agent(tmp_path: Path) -> None:
    stored = await offered(tmp_path)
    await stored.save(RAILS, ("{}",), (OLD,), UNREAD)
    (tmp_path / RAILS_FORM.name).write_text('{"version":1}')
    (tmp_path / RAILS_FORM.name).chmod(0o600)
    gone = replace(UNREAD, functions=tuple(replace(one, missing=True) for one in UNREAD.functions))
    assert await stored.forgotten(gone) == RAILS["{}"]
    await stored.save(RAILS, ("{}",), (OLD,), UNREAD)
    (tmp_path / RAILS_FORM.name).write_text('{"version":1}')
    assert await stored.forgotten(UNREAD) == ()
    await stored.save(RAILS, ("{}",), (OLD,), replace(UNREAD, revision=2))
    assert memory(tmp_path).content.numbering == {}
    assert stored.content.numbering == RAILS


async def test_the_file_of_another_version_is_named_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await offered(tmp_path)
    file = tmp_path / RAILS_FORM.name
    file.write_bytes(file.read_bytes().replace(b'"version":1', b'"version":2'))
    (tmp_path / "checkpoint").touch()
    stored = memory(tmp_path)
    assert stored.content.entries == ()
    assert stored.content.names_unknown
    assert f"file={file} version=2" in caplog.text


GPUS = machine(gpus=1)
WAS, NOW = (GpuMemory(f"x/gpu-mem{n}", frozenset({"GPU-0"}), number=n) for n in (0, 1))


async def test_a_gpu_with_another_name_waits_for_the_holdings(tmp_path: Path) -> None:
    """Its index has changed while no agent ran: the kubelet would count the slices of a pod as free."""
    await memory(tmp_path).save({}, (), (WAS,), GPUS)
    stored = memory(tmp_path)
    assert stored.obstacle(WAS, GPUS) is None
    assert stored.obstacle(NOW, GPUS) == (
        "its GPUs were offered as x/gpu-mem0 before, and what pods hold is not known yet"
    )
    assert stored.holdings_read()
    held = replace(GPUS, holdings=(Holding("ns", "pod", "main", "x/gpu-mem0", ("GPU-0::3",)),))
    assert stored.obstacle(NOW, held) is None
    with pytest.raises(Refused, match="held by ns/pod through x/gpu-mem0"):
        NOW.allocate(held, ("GPU-0::3",))
    await stored.save({}, (), (NOW,), held)
    assert sorted(memory(tmp_path).content.names) == ["x/gpu-mem0", "x/gpu-mem1"]
    await stored.save({}, (), (NOW,), replace(GPUS, holdings=()))
    assert sorted(memory(tmp_path).content.names) == ["x/gpu-mem1"]


async def test_gpus_do_not_wait_for_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    stored = memory(tmp_path)
    assert stored.content.names_unknown
    assert stored.obstacle(NOW, GPUS) is None
    await memory(tmp_path).save({}, (), (WAS,), GPUS)
    assert memory(tmp_path, pod_resources=False).obstacle(NOW, GPUS) is None


def test_a_forgotten_rail_takes_its_nic_and_the_names_of_its_vfs_with_it() -> None:
    """Others stay. With podresources the names stay until no pod holds the VFs."""
    other = pf(2)
    rails = (Rail(0, ADDRESS, "b8:3f:d2:00:00:01"), Rail(1, other.pci_address, "b8:3f:d2:00:00:02"))
    vf = replace(ONE, pci_address=VF, parent=ADDRESS)
    kept = OfferedNic(other, ())
    file = RailsFile(
        entries=(NumberedSelection("{}", rails), NumberedSelection("{netdevs}", rails[:1])),
        nics=(OfferedNic(ONE, (vf,)), kept),
        names={"x/nic0": (VF,), "x/nic1": ("0000:02:00.1",)},
    )
    left = without(file, rails[:1], names=True)
    assert left.entries == (NumberedSelection("{}", rails[1:]),)
    assert left.nics == (kept,)
    assert left.names == {"x/nic1": ("0000:02:00.1",)}
    assert without(file, rails[:1], names=False) == replace(left, names=file.names)
