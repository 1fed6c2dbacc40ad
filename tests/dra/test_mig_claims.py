"""MIG devices of claims: what is published, what a container gets, and how they end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError
from nodeagent.dra import mig_counters
from nodeagent.dra.claim_mig import IN_USE_S, SEEN_S, ClaimMig
from nodeagent.dra.claims import GONE_S, PreparedClaims
from nodeagent.dra.devices import MIG
from nodeagent.dra.mig_instances import MigInstances
from nodeagent.dra.mig_place import MigPlace
from nodeagent.dra.offered import DraOffer, OfferedPools
from nodeagent.dra.published_pools import PublishedPools
from nodeagent.dra.slice_layout import AnsweredDevices, members_of, wanted_slices, writes
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu, MigSlot, Snapshot
from nodeagent.health.service import HealthService
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.kinds import Refused
from nodeagent.offering.offer import Offer
from nodeagent.offering.readiness import mig_remarks
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading
from nodeagent_lab.sim.apiserver import resource_slices
from tests.support.dra_node import (
    ClaimStore,
    Clock,
    StepCalls,
    claim_of,
    claims_of,
    devices_of,
    offer_of,
    reference,
)
from tests.support.kind_machines import SICK, WITH_DRIVER, gpu_of
from tests.support.mig_driver import MigDriver, caps

pytestmark = pytest.mark.usefixtures("virtual_time")

Json = dict[str, Any]
CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resourcePrefix: nvidia-dgx-h100
resources:
- {kind: gpu-mem, mode: dra}
- {kind: mig, mode: dra}
"""
GPUS = tuple(gpu_of(index) for index in range(8))


def machine_of(driver: MigDriver, count: int = 1, **facts: Any) -> Snapshot:
    return Snapshot(
        gpus=tuple(driver.facts(gpu) for gpu in GPUS[:count]), holdings=(), **{"paths": WITH_DRIVER, **facts}
    )


def places_of(snapshot: Snapshot) -> list[MigPlace]:
    return [it for it in devices_of(snapshot, CONFIG) if isinstance(it, MigPlace)]


def new_driver() -> MigDriver:
    return MigDriver(*(gpu.uuid for gpu in GPUS))


class Node:
    """An agent with one GPU in MIG mode."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver, self.tree = folder, new_driver(), caps(folder / "host", 1)
        self.store, self.clock = ClaimStore(), Clock()
        self.offer = offer_of(machine_of(self.driver), CONFIG)
        self.places = places_of(self.offer.snapshot)
        self.claims = self.restarted()

    def restarted(self, boot_id: str = "boot-1", disk: StepCalls | None = None) -> PreparedClaims:
        mig = ClaimMig(MigInstances(self.tree, self.driver.opened), StepCalls(), self.clock)
        self.claims = claims_of(
            self.folder / "agent",
            self.offer,
            self.store,
            calls=disk,
            clock=self.clock,
            boot_id=boot_id,
            mig=mig,
        )
        return self.claims

    def place(self, profile: str, start: int) -> MigPlace:
        return next(it for it in self.places if (it.profile.name, it.slot.start) == (profile, start))

    def claim(self, name: str, *places: tuple[str, int], request: str = "m", **more: Any) -> Json:
        results = [
            {
                "request": request,
                "driver": "nodeagent.io",
                "pool": "n1/mig",
                "device": self.place(*it).name,
                **more,
            }
            for it in places
        ]
        return self.store.put(claim_of(name, *results))

    def spec(self, claim: Json) -> Json:
        uid = claim["metadata"]["uid"]
        spec: Json = json.loads((self.folder / "agent" / "cdi" / f"nodeagent-claim-{uid}.json").read_text())
        return spec


# --- what is published ----------------------------------------------------------------------------------


def published(snapshot: Snapshot, own: frozenset[MigSlot] = frozenset()) -> tuple[list[Json], list[Json]]:
    """The devices and the counter sets of the pool, and all objects that the stand-in API server has accepted."""
    inventory, offer = Inventory(), DraOffer()
    inventory.publish("gpus", gpus=snapshot.gpus)
    places = tuple(places_of(snapshot))
    offer.update(OfferedPools({MIG: places}), snapshot)
    offer.mig_slots = own
    pools = PublishedPools(inventory, offer, "n1").pools(())
    wanted = wanted_slices("n1", pools.devices, pools.counters)
    objects = [{"metadata": {"name": write.name}, "spec": write.spec} for write in writes("n1", wanted, {})]
    for obj in objects:
        assert list(resource_slices.errors(obj, None)) == []
    assert {obj["spec"]["pool"]["resourceSliceCount"] for obj in objects} == {len(objects)}
    return list(pools.devices["n1/mig"]), objects


def test_each_place_of_each_profile_is_a_device_that_consumes_counters_of_its_gpu() -> None:
    devices, objects = published(machine_of(new_driver()))
    assert len(devices) == 7 + 7 + 4 + 3 + 2 + 1 + 1
    device = next(it for it in devices if it["name"].endswith("-3g40gb-4"))
    attributes = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
    assert attributes["kind"] == "mig"
    assert (attributes["profile"], attributes["firstSlice"]) == ("3g.40gb", 4)
    assert attributes["parentUuid"] == GPUS[0].uuid
    assert {
        "product",
        "index",
        "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/numaNode",
    } <= attributes.keys()
    assert device["capacity"] == {"memory": {"value": "40448Mi"}}
    (consumed,) = device["consumesCounters"]
    assert {name: it["value"] for name, it in consumed["counters"].items()} == {
        "multiprocessors": "60",
        "copy-engines": "3",
        "decoders": "3",
        "jpeg-engines": "3",
        **dict.fromkeys(("memory-slice-4", "memory-slice-5", "memory-slice-6", "memory-slice-7"), "1"),
    }
    (counters,) = objects[0]["spec"]["sharedCounters"]
    assert counters["name"] == consumed["counterSet"]
    assert counters["counters"].keys() >= consumed["counters"].keys()
    assert "devices" not in objects[0]["spec"]


def test_eight_gpus_fit_into_slices_of_sixty_four_devices_and_eight_counter_sets() -> None:
    devices, objects = published(machine_of(new_driver(), 8))
    assert len(devices) == 200
    sizes = [
        (len(it["spec"].get("devices", ())), len(it["spec"].get("sharedCounters", ()))) for it in objects
    ]
    assert sizes == [(0, 8), (64, 0), (64, 0), (64, 0), (8, 0)]
    assert len({device["name"] for device in devices}) == 200


def test_the_places_that_leave_most_of_a_gpu_to_larger_profiles_come_first() -> None:
    starts = [it.slot.start for it in places_of(machine_of(new_driver())) if it.profile.name == "1g.10gb"]
    assert starts[0] == 6, "no 2g begins there"
    assert set(starts) == set(range(7))


def test_what_another_program_made_is_no_longer_in_the_counters_and_is_said() -> None:
    driver = new_driver()
    slot = MigSlot(GPUS[0].uuid, 9, 0, 4)
    assert driver.by_hand(slot)
    snapshot = machine_of(driver)

    def counters(own: frozenset[MigSlot]) -> dict[str, str]:
        sets = published(snapshot, own)[1][0]["spec"]["sharedCounters"]
        return {name: it["value"] for name, it in sets[0]["counters"].items()}

    left = counters(frozenset())
    assert [left[f"memory-slice-{n}"] for n in range(8)] == ["0"] * 4 + ["1"] * 4
    assert (left["multiprocessors"], left["ofa-engines"]) == ("72", "1")
    assert counters(frozenset({slot}))["memory-slice-0"] == "1", "the scheduler counts those of claims"
    offer = DraOffer()
    offer.update(OfferedPools({MIG: tuple(places_of(snapshot))}), snapshot)
    (remark,) = mig_remarks(snapshot, offer)
    assert "memory slices 0 to 3 is of no claim" in remark
    offer.mig_slots = frozenset({slot})
    assert not list(mig_remarks(snapshot, offer))


def test_a_sick_gpu_taints_all_its_places_and_no_other() -> None:
    snapshot = machine_of(new_driver(), 2)
    sick = replace(snapshot, gpus=(replace(snapshot.gpus[0], health=SICK), snapshot.gpus[1]))
    devices, _ = published(sick)
    tainted = {it["attributes"]["index"]["int"] for it in devices if "taints" in it}
    clean = {it["attributes"]["index"]["int"] for it in devices if "taints" not in it}
    assert (tainted, clean) == ({0}, {1})


def test_a_pool_turns_from_counters_to_an_empty_slice_and_unchanged_ones_are_not_written() -> None:
    _, objects = published(machine_of(new_driver()))
    stored = {it["metadata"]["name"]: it for it in objects}
    inventory, offer = Inventory(), DraOffer()
    offer.update(OfferedPools({MIG: ()}), Snapshot())
    pools = PublishedPools(inventory, offer, "n1").pools(())
    planned = list(writes("n1", wanted_slices("n1", pools.devices, pools.counters), stored))
    assert [
        (write.verb, write.spec.get("devices"), write.spec.get("sharedCounters", "-")) for write in planned
    ] == [
        ("delete", None, "-"),
        ("patch", [], None),
    ]
    same = {
        name: {
            **it,
            "spec": {
                **it["spec"],
                "sharedCounters": json.loads(json.dumps(it["spec"].get("sharedCounters"))),
            },
        }
        for name, it in stored.items()
    }
    full = PublishedPools(inventory, offer, "n1")
    snapshot = machine_of(new_driver())
    inventory.publish("gpus", gpus=snapshot.gpus)
    offer.update(OfferedPools({MIG: tuple(places_of(snapshot))}), snapshot)
    pools = full.pools(())
    wanted = wanted_slices("n1", pools.devices, pools.counters)
    assert not list(writes("n1", wanted, same))
    # A server without partitionable devices drops the fields; it is not written again and again.
    poor = {name: {**it, "spec": {**it["spec"], "sharedCounters": None}} for name, it in stored.items()}
    answered = {
        it.name: AnsweredDevices(it.devices or it.counters, members_of(poor[it.name]["spec"]))
        for it in wanted.values()
    }
    assert not list(writes("n1", wanted, poor, answered=answered))


def test_the_modes_are_checked_and_static_devices_stay_with_the_device_plugin() -> None:
    both = CONFIG + "- {kind: mig, name: other, mode: devicePlugin}\n"
    with pytest.raises(ConfigError, match="all entries of one kind have one mode"):
        load(both, name="c.yaml")
    shared = CONFIG + "- {kind: mig, mode: dra, name: 'other-{profile}', select: {indexes: ['0']}}\n"
    with pytest.raises(ConfigError, match="a GPU is offered twice"):
        load(shared, name="c.yaml")
    with pytest.raises(ConfigError, match="by CDI alone"):
        load(
            CONFIG.replace("{kind: mig, mode: dra}", "{kind: mig, mode: dra, deviceListStrategy: envvar}"),
            name="c",
        )
    snapshot = machine_of(new_driver(), 2)
    one = CONFIG.replace("mode: dra}\n", "mode: dra, select: {indexes: ['0']}}\n")
    same = f"- {{kind: mig, mode: dra, name: 'other-{{profile}}', select: {{uuids: [{GPUS[0].uuid}]}}}}\n"
    (trouble,) = Offer(load(one + same, name="c.yaml")).troubles(snapshot)
    assert trouble.message == (
        f"GPU 0 ({GPUS[0].uuid}) is in 2 entries of resources; with mode dra each GPU is in one"
    )
    offer = Offer(load(CONFIG, name="c.yaml"))
    assert offer.dra_pools == {"gpu", "mig"}
    assert offer.kinds(snapshot) == ()
    assert not offer.troubles(snapshot)
    static = Offer(load(CONFIG.replace("{kind: mig, mode: dra}", "{kind: mig}"), name="c.yaml"))
    assert static.dra_pools == {"gpu"}
    blind = replace(snapshot, gpus=tuple(replace(gpu, mig_profiles=()) for gpu in snapshot.gpus))
    assert ["components/mig-claims" in it.message for it in offer.troubles(blind)] == [True, True]


# --- claims ---------------------------------------------------------------------------------------------


async def test_a_container_gets_the_device_that_was_made_for_its_claim(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("2g.20gb", 2))
    record = await node.claims.prepare(reference(claim))
    slot = node.place("2g.20gb", 2).slot
    assert node.driver.slots == {slot}
    (device,) = record.devices
    assert device.uuid.startswith("MIG-")
    assert f"nodeagent.io/gpu={GPUS[0].uuid}" in device.cdi_devices, (
        "the driver's files and the node of the GPU"
    )
    (made,) = node.spec(claim)["devices"]
    edits = made["containerEdits"]
    assert edits["env"] == [f"NODEAGENT_MIG_UUID={device.uuid}", f"NODEAGENT_MIG_UUID_M={device.uuid}"]
    assert [(it["type"], it["major"]) for it in edits["deviceNodes"]] == [("c", 236)] * 2
    assert all(it["path"] == f"/dev/nvidia-caps/nvidia-cap{it['minor']}" for it in edits["deviceNodes"])
    (holding,) = node.claims.holdings
    assert (holding.resource, holding.device_ids) == ("nvidia-dgx-h100/mig-2g.20gb", (device.uuid,))
    await node.claims.unprepare(reference(claim))
    await node.claims.unprepare(reference(claim))
    assert (node.driver.slots, node.claims.records) == (set(), {})


async def test_two_devices_of_a_request_are_named_together(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("4g.40gb", 0), ("3g.40gb", 4))
    record = await node.claims.prepare(reference(claim))
    uuids = ",".join(device.uuid for device in record.devices)
    for made in node.spec(claim)["devices"]:
        assert f"NODEAGENT_MIG_UUID={uuids}" in made["containerEdits"]["env"]


async def test_places_that_overlap_are_refused_whatever_the_scheduler_says(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.claims.prepare(reference(node.claim("a", ("3g.40gb", 0))))
    with pytest.raises(Refused, match="the claim a has a MIG device in its place"):
        await node.claims.prepare(reference(node.claim("b", ("1g.10gb", 3))))
    await node.claims.prepare(reference(node.claim("c", ("1g.10gb", 4))))
    assert len(node.driver.slots) == 2
    await node.claims.prepare(reference(node.claim("d", ("1g.10gb+me", 5))))
    node.driver.reset()  # until the next comparison the GPU has room for what the claims hold
    with pytest.raises(Refused, match="leave too few of ofa-engines"):
        await node.claims.prepare(reference(node.claim("e", ("1g.10gb+me", 6))))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (("1g.10gb", 1), "1g10gb-1: the claim has mig-.*3g40gb-0 in its place too"),
        (("1g.10gb+me", 4), "the other MIG devices of the claim leave too few of"),
    ],
)
async def test_a_claim_whose_own_devices_exclude_each_other_is_refused_before_anything_is_made(
    tmp_path: Path, second: tuple[str, int], reason: str
) -> None:
    """Found by a search: a reset of the GPU between the two let both be made."""
    node = Node(tmp_path)
    first = ("3g.40gb", 0) if second[1] == 1 else ("1g.10gb+me", 0)
    with pytest.raises(Refused, match=reason) as refused:
        await node.claims.prepare(reference(node.claim("a", first, second)))
    assert refused.value.invalid
    assert (node.driver.slots, node.claims.records) == (set(), {})


async def test_an_instance_of_another_program_is_neither_used_nor_removed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    slot = node.place("1g.10gb", 6).slot
    assert node.driver.by_hand(slot)
    claim = node.claim("a", ("1g.10gb", 6))
    with pytest.raises(Refused, match="another program has made a GPU instance in its place"):
        await node.claims.prepare(reference(claim))
    assert node.claims.records == {}, "nothing was made, so nothing is held"
    await node.restarted().unprepare(reference(claim))
    assert node.driver.slots == {slot}


async def test_access_as_administrator_has_nothing_to_show(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with pytest.raises(Refused, match="adminAccess has nothing to show"):
        await node.claims.prepare(reference(node.claim("a", ("1g.10gb", 6), adminAccess=True)))


async def test_the_end_of_a_claim_waits_for_the_last_process_and_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6))
    await node.claims.prepare(reference(claim))
    node.driver.in_use = {node.place("1g.10gb", 6).slot}
    with pytest.raises(Refused, match="a process still uses it"):
        await node.claims.unprepare(reference(claim))
    assert node.claims.records, "the claim keeps it"
    ending = asyncio.create_task(node.claims.unprepare(reference(claim)))
    await asyncio.sleep(IN_USE_S / 2)
    with pytest.raises(Refused, match="is being ended"):
        await node.claims.prepare(reference(claim))
    node.driver.in_use = set()
    await ending
    assert (node.driver.slots, node.claims.records) == (set(), {})


async def test_after_a_reset_of_the_gpu_the_device_is_made_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6))
    first = await node.claims.prepare(reference(claim))
    node.driver.reset()
    await node.claims.compare()
    assert node.driver.slots == {node.place("1g.10gb", 6).slot}
    again = await node.claims.prepare(reference(claim))
    assert again.devices[0].uuid != first.devices[0].uuid, "this driver never names two alike"
    assert again.devices[0].uuid in json.dumps(node.spec(claim))


async def test_after_a_reboot_no_record_counts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6))
    await node.claims.prepare(reference(claim))
    node.driver.reset()
    claims = node.restarted("boot-2")
    assert claims.records == {}
    await claims.prepare(reference(claim))
    assert len(node.driver.slots) == 1


async def test_a_claim_that_is_given_other_places_gives_the_first_ones_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6))
    await node.claims.prepare(reference(claim))
    moved = node.claim("x", ("2g.20gb", 0))
    claim["status"] = moved["status"]
    await node.claims.prepare(reference(node.store.put(claim)))
    assert node.driver.slots == {node.place("2g.20gb", 0).slot}


async def test_without_the_numbers_of_the_device_nodes_a_claim_is_refused_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    (tmp_path / "host/proc/devices").unlink()
    claim = node.claim("a", ("1g.10gb", 6))
    with pytest.raises(Refused, match="components/mig-claims"):
        await node.claims.prepare(reference(claim))
    await node.claims.unprepare(reference(claim))
    assert node.driver.slots == set()


def test_instances_of_claims_are_not_foreign() -> None:
    driver = new_driver()
    slot = MigSlot(GPUS[0].uuid, 14, 2, 2)
    driver.by_hand(slot)
    (gpu,) = machine_of(driver).gpus
    assert mig_counters.foreign(gpu, ()) == [slot]
    assert mig_counters.foreign(gpu, {slot}) == []


async def test_a_place_that_a_claim_has_left_is_foreign_once_another_program_uses_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6))
    await node.claims.prepare(reference(claim))
    await node.claims.unprepare(reference(claim))
    slot = node.place("1g.10gb", 6).slot
    assert slot in node.offer.mig_slots, "the facts may still show the removed instance"
    node.clock.seconds += SEEN_S
    await node.claims.compare()
    assert slot not in node.offer.mig_slots


async def test_a_record_that_stayed_on_the_disk_does_not_end_the_claim_that_has_its_place_now(
    tmp_path: Path,
) -> None:
    node, disk = Node(tmp_path), StepCalls()
    claims = node.restarted(disk=disk)
    first = node.claim("a", ("1g.10gb", 6))
    await claims.prepare(reference(first))
    disk.failure = OSError(5, "Input/output error")
    await claims.unprepare(reference(first))
    disk.failure = None
    node.store.claims.clear()
    await claims.prepare(reference(node.claim("b", ("2g.20gb", 4))))
    second = node.claim("c", ("1g.10gb", 6))
    await claims.prepare(reference(second))
    claims = node.restarted()
    assert first["metadata"]["uid"] not in claims.records
    for _ in range(2):
        await claims.compare()
        node.clock.seconds += GONE_S
    assert node.driver.slots == {node.place(*it).slot for it in (("1g.10gb", 6), ("2g.20gb", 4))}


async def test_a_claim_that_gets_one_of_two_devices_gives_it_back_and_names_no_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    claim = node.claim("a", ("1g.10gb", 6), ("1g.10gb", 5))
    slot, made = node.place("1g.10gb", 5).slot, MigDriver._place

    def refused(driver: MigDriver, gpu: str, number: int, place: Any) -> int:
        if place.start == slot.start:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        return made(driver, gpu, number, place)

    with monkeypatch.context() as patched:
        patched.setattr(MigDriver, "_place", refused)
        with pytest.raises(Refused, match="cannot be made"):
            await node.claims.prepare(reference(claim))
    assert (node.driver.slots, node.claims.records) == (set(), {})
    assert node.driver.by_hand(slot)
    claims = node.restarted()
    with pytest.raises(Refused, match="another program"):
        await claims.prepare(reference(claim))
    await claims.unprepare(reference(claim))
    assert node.driver.slots == {slot}


async def test_a_gpu_instance_without_a_profile_of_compute_instances_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)

    def unsupported(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(MigDriver, "nvmlGpuInstanceGetComputeInstanceProfileInfo", unsupported)
    with pytest.raises(Refused, match="Not Supported"):
        await node.claims.prepare(reference(node.claim("a", ("1g.10gb", 6))))
    assert (node.driver.slots, node.claims.records) == (set(), {})


def test_an_instance_that_goes_while_it_is_read_takes_no_place_from_the_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = new_driver()
    assert driver.by_hand(MigSlot(GPUS[0].uuid, 9, 0, 4))

    def gone(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    monkeypatch.setattr(MigDriver, "nvmlGpuInstanceGetInfo", gone)
    (gpu,) = machine_of(driver).gpus
    assert gpu.mig_profiles
    assert gpu.mig_instances == ()


def test_places_that_could_not_be_read_once_stay_published() -> None:
    published: list[tuple[Gpu, ...]] = []
    publisher = GpuPublisher(HealthService())
    publisher.publish_to(published.append)
    driver = new_driver()
    assert driver.by_hand(MigSlot(GPUS[0].uuid, 9, 0, 4))
    (gpu,) = machine_of(driver).gpus
    known = GpuReading(
        0,
        gpu.uuid,
        0,
        gpu.name,
        gpu.pci_address,
        gpu.memory_mib,
        mig=True,
        mig_profiles=gpu.mig_profiles,
        mig_instances=gpu.mig_instances,
    )
    unread = replace(known, mig_profiles=None, mig_instances=None)
    for reading in (known, unread, replace(unread, mig=False, mig_profiles=(), mig_instances=())):
        publisher.take_reading(DriverReading("550", (reading,), {}))
    assert [bool(it.mig_profiles) for (it,) in published] == [True, True, False]
    assert [bool(it.mig_instances) for (it,) in published] == [True, True, False]
