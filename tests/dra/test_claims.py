"""The claims of a node over prepare, unprepare, restarts and failures, with a disk of real files."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from nodeagent.dra import claim_files
from nodeagent.dra.claims import COMPARE_S, GONE_S, ClaimReference
from nodeagent.dra.devices import Occupied
from nodeagent.dra.kubelet_service import DEADLINE_S
from nodeagent.dra.resource_claim import ResourceClaim
from nodeagent.kinds import Refused
from nodeagent.kube.failure import ApiError
from tests.support.dra_node import (
    ClaimStore,
    Clock,
    StepCalls,
    claim_of,
    claims_of,
    gpus_of,
    machine,
    offer_of,
    pfs_of,
    publish,
    reference,
    result,
    uid_of,
)
from tests.support.kind_machines import SICK
from tests.support.waiting import until

T = TypeVar("T")

FACTS = machine()
GPU, PF = gpus_of(FACTS)[0], pfs_of(FACTS)[0]


def small(name: str, amount: int = 1024, **more: Any) -> dict[str, Any]:
    return claim_of(name, result(GPU, amount, "g"), result(PF, 1, "r"), **more)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_a_prepared_claim_has_its_files_before_the_answer_and_none_after_its_end(
    tmp_path: Path,
) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    claim = store.put(small("a"))
    record = await claims.prepare(reference(claim))
    uid = claim["metadata"]["uid"]
    info = f"nvidia-dgx-h100-nic0-{PF.vfs[0]}-device.json"
    assert files(tmp_path) == {f"{uid}.json", f"nodeagent-claim-{uid}.json", info}
    spec = json.loads((tmp_path / "cdi" / f"nodeagent-claim-{uid}.json").read_text())
    assert [device["name"] for device in spec["devices"]] == [f"{uid}-0", f"{uid}-1"]
    assert {name for device in record.devices for name in device.cdi_devices} >= {
        f"{spec['kind']}={device['name']}" for device in spec["devices"]
    }
    await claims.unprepare(reference(claim))
    assert files(tmp_path) == set()


async def test_a_repeated_prepare_gives_the_same_answer_and_restores_a_removed_spec(tmp_path: Path) -> None:
    store, offer = ClaimStore(), offer_of(FACTS)
    claim = store.put(small("a"))
    first = await claims_of(tmp_path, offer, store).prepare(reference(claim))
    publish(offer, replace(FACTS, gpus=tuple(replace(gpu, health=SICK) for gpu in FACTS.gpus)))
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    again = claims_of(tmp_path, offer, store)
    assert await again.prepare(reference(claim)) == first, "the GPU has failed while the claim has it"
    assert any((tmp_path / "cdi").iterdir())


async def test_a_claim_holds_its_devices_at_once_and_counts_as_written_when_its_files_are_there(
    tmp_path: Path,
) -> None:
    """Its status in the cluster says Ready from then on."""
    store, offer, calls = ClaimStore(), offer_of(FACTS), StepCalls()
    claims = claims_of(tmp_path, offer, store, calls=calls)
    claim = store.put(small("a"))
    uid = claim["metadata"]["uid"]
    calls.failure, before = OSError(errno.EROFS, "read-only"), offer.revision
    with pytest.raises(OSError, match="read-only"):
        await claims.prepare(reference(claim))
    assert (set(claims.records), claims.written, offer.revision) == ({uid}, {}, before)
    assert claims.holdings
    calls.failure = None
    await claims.prepare(reference(claim))
    assert set(claims.written) == {uid}
    assert offer.revision > before, "readers are woken"
    moved = store.put(claim_of("a", result(gpus_of(FACTS)[1], 1024, "g"), uid=uid))
    calls.failure = OSError(errno.EROFS, "read-only")
    with pytest.raises(OSError, match="read-only"):
        await claims.prepare(reference(moved))
    assert (set(claims.records), claims.written) == ({uid}, {}), "it has other devices"
    calls.failure = None
    await claims.prepare(reference(moved))
    assert set(claims.written) == {uid}


@pytest.mark.parametrize("removed_later", [False, True])
async def test_a_claim_that_is_prepared_again_after_its_end_has_its_files_to_be_written(
    tmp_path: Path, removed_later: bool
) -> None:
    store, calls = ClaimStore(), StepCalls()
    claims = claims_of(tmp_path, offer_of(FACTS), store, calls=calls)
    claim = store.put(small("a"))
    await claims.prepare(reference(claim))
    failure = OSError(errno.EROFS, "read-only")
    calls.failure = failure if removed_later else None
    await claims.unprepare(reference(claim))
    calls.failure = None
    if removed_later:
        await claims.remove_leftovers()
    assert files(tmp_path / "cdi") == set()
    calls.failure = failure
    with pytest.raises(OSError, match="read-only"):
        await claims.prepare(reference(claim))
    assert (len(claims.records), claims.written) == (1, {})


async def test_a_restarted_agent_counts_a_claim_as_written_if_its_files_are_there(tmp_path: Path) -> None:
    store, offer = ClaimStore(), offer_of(FACTS)
    claims = claims_of(tmp_path, offer, store)
    bare = claim_of("b", {**result(GPU, 1024, "g"), "driver": "other.io"})
    whole, no_spec, no_info, folder = (small(name) for name in ("a", "s", "i", "f"))
    all_five = map(store.put, (whole, no_spec, no_info, folder, bare))
    uids = [(await claims.prepare(reference(claim))).uid for claim in all_five]
    specs = [tmp_path / "cdi" / f"nodeagent-claim-{uid}.json" for uid in uids]
    specs[1].unlink()
    (tmp_path / "devinfo" / claims.records[uids[2]].device_info[0].name).unlink()
    specs[3].unlink()
    specs[3].mkdir()
    again = claims_of(tmp_path, offer, store)
    assert set(again.records) == set(uids)
    assert set(again.written) == {uids[0], uids[4]}
    await again.compare()
    assert set(again.written) == set(uids), "the kubelet asks no more for a pod that runs"
    assert all(spec.is_file() for spec in specs[:4])


async def test_the_end_of_an_unknown_claim_is_a_success(tmp_path: Path) -> None:
    claims = claims_of(tmp_path, offer_of(FACTS), ClaimStore())
    await claims.unprepare(ClaimReference("default", "x", uid_of(1)))
    await claims.unprepare(ClaimReference("default", "../..", "../../etc/passwd"))
    with pytest.raises(Refused, match="is no UID"):
        await claims.prepare(ClaimReference("default", "x", "../../etc/passwd"))


async def test_a_claim_that_was_made_again_under_its_name_is_refused(tmp_path: Path) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    old = reference(store.put(small("a")))
    store.put(small("a"))
    with pytest.raises(Refused, match=f"the kubelet asks for {old.uid}"):
        await claims.prepare(old)
    del store.claims["a"]
    with pytest.raises(Refused, match="does not exist"):
        await claims.prepare(old)
    unallocated = store.put(small("b"))
    del unallocated["status"]["allocation"]
    with pytest.raises(Refused, match="not allocated"):
        await claims.prepare(reference(unallocated))
    assert not claims.records


async def test_a_claim_with_other_devices_by_now_is_prepared_again(tmp_path: Path) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    claim = store.put(small("a", 80896))
    await claims.prepare(reference(claim))
    moved = store.put(claim_of("a", result(gpus_of(FACTS)[1], 1024, "g"), uid=claim["metadata"]["uid"]))
    record = await claims.prepare(reference(moved))
    assert [device.device for device in record.devices] == [gpus_of(FACTS)[1].name]
    await claims.prepare(reference(store.put(small("b", 80896))))


@pytest.mark.usefixtures("virtual_time")
async def test_the_successor_of_a_pod_deleted_by_force_gets_its_gpu_when_the_kubelet_has_ended_that_pod(
    tmp_path: Path,
) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    old, other = store.put(small("a", 80896)), store.put(claim_of("c", result(gpus_of(FACTS)[1], 1024, "g")))
    for claim in (old, other):
        await claims.prepare(reference(claim))
    del store.claims["a"]
    began = time.monotonic()
    waiting = asyncio.create_task(claims.prepare(reference(store.put(small("b", 1024)))))
    await asyncio.sleep(2)
    await claims.unprepare(reference(other))
    await asyncio.sleep(1)
    assert not waiting.done(), "the end of a claim on another GPU is no help"
    await claims.unprepare(reference(old))
    assert (await waiting).devices
    assert time.monotonic() - began < 4
    assert claims.conflicts == 0


@pytest.mark.usefixtures("virtual_time")
async def test_a_claim_on_what_a_gone_claim_holds_is_refused_before_the_kubelet_stops_waiting(
    tmp_path: Path,
) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    await claims.prepare(reference(store.put(small("a", 80896))))
    store.put(claim_of("a", result(GPU, 1024, "g")))  # its successor has its name
    new = reference(store.put(small("b", 1024)))
    began = time.monotonic()
    with pytest.raises(Refused, match="other claims hold 80896Mi"):
        await claims.prepare(new)
    assert 30 < time.monotonic() - began < DEADLINE_S
    assert claims.conflicts == 1
    waiting = asyncio.create_task(claims.prepare(new))
    await asyncio.sleep(1)
    await claims.unprepare(new)
    await claims.unprepare(next(iter(ClaimReference("default", "a", uid) for uid in claims.records)))
    with pytest.raises(Refused, match="was unprepared meanwhile"):
        await waiting


@pytest.mark.parametrize("status", [0, 500])
@pytest.mark.usefixtures("virtual_time")
async def test_a_claim_on_what_a_living_claim_holds_is_refused_at_once(tmp_path: Path, status: int) -> None:
    """So is one whose neighbors cannot be read: nothing shows that a wait would help."""
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    store.put(small("a", 80896))
    await claims.prepare(reference(store.claims["a"]))
    new = store.put(small("b", 1024))
    if status:
        store.failures["a"] = ApiError("get", "/a", status, "InternalError", "no leader")
    began = time.monotonic()
    with pytest.raises(Refused, match="other claims hold 80896Mi"):
        await claims.prepare(reference(new))
    assert time.monotonic() - began < 1


async def test_a_claim_that_the_kubelet_never_ends_blocks_nothing_without_end(tmp_path: Path) -> None:
    store, clock = ClaimStore(), Clock()
    claims = claims_of(tmp_path, offer_of(FACTS), store, clock=clock)
    gone, again, moved, kept = (store.put(small(name, 1024)) for name in ("gone", "again", "moved", "kept"))
    for claim in (gone, again, moved, kept):
        await claims.prepare(reference(claim))
    del store.claims["gone"]
    store.put(small("again"))
    moved["status"]["allocation"] = None
    await claims.compare()
    assert len(claims.records) == 4, "the kubelet's own search for ended pods comes first"
    clock.seconds += GONE_S
    store.failure = ApiError("get", "/x", None, "Unreachable", "no route")
    await claims.compare()
    assert len(claims.records) == 4, "an API server that is away ends no claim"
    store.failure = None
    await claims.compare()
    assert set(claims.records) == {kept["metadata"]["uid"]}
    assert COMPARE_S == 600


async def test_the_pods_of_a_claim_follow_the_api_server(tmp_path: Path) -> None:
    store = ClaimStore()
    changes: list[int] = []
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    claims._on_change = lambda: changes.append(1)
    claim = store.put(small("a", pod="first"))
    await claims.prepare(reference(claim))
    claim["status"]["reservedFor"][0]["name"] = "second"
    await claims.compare()
    assert {holding.pod for holding in claims.holdings} == {"second"}
    assert len(changes) == 2


async def test_a_slow_prepare_does_not_bring_back_a_claim_that_was_ended_meanwhile(tmp_path: Path) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    claim = store.put(small("a", 80896))
    for steps in range(1, 9):
        task = asyncio.create_task(claims.prepare(reference(claim)))
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = task.done()
        await claims.unprepare(reference(claim))
        await asyncio.gather(task, return_exceptions=True)
        assert ended or isinstance(task.exception(), Refused)
        assert not claims.records
        assert files(tmp_path) == set(), f"after {steps} steps"
    other = store.put(small("b", 80896))
    assert await claims.prepare(reference(other))


async def test_an_api_server_that_is_away_for_a_moment_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.dra.claims.READ_AGAIN_S", 0.001)
    store, clock = ClaimStore(), Clock()
    claims = claims_of(tmp_path, offer_of(FACTS), store, clock=clock)
    claim = store.put(small("a"))
    store.failure = ApiError("get", "/x", 503, "ServiceUnavailable", "starting")
    task = asyncio.create_task(claims.prepare(reference(claim)))
    await until(lambda: store.reads >= 3)
    store.failure = None
    assert (await task).devices
    store.failure = ApiError("get", "/x", None, "Unreachable", "no route to host")
    task = asyncio.create_task(claims.prepare(reference(store.put(small("b")))))
    reads = store.reads
    await until(lambda: store.reads >= reads + 3)
    clock.seconds += 60
    with pytest.raises(Refused, match=r"cannot be read.*no route to host"):
        await task
    store.failure = ApiError("get", "/x", 403, "Forbidden", "no right")
    with pytest.raises(Refused, match="Forbidden"):
        await claims.prepare(reference(store.claims["b"]))


@pytest.mark.parametrize("after", [False, True])
async def test_a_full_disk_fails_the_claim_with_its_file_and_the_next_attempt_succeeds(
    tmp_path: Path, *, after: bool
) -> None:
    store, calls = ClaimStore(), StepCalls()
    claims = claims_of(tmp_path, offer_of(FACTS), store, calls=calls)
    claim = store.put(small("a", 80896))
    calls.failure, calls.after = OSError(errno.ENOSPC, "No space left on device", "/x"), after
    with pytest.raises(OSError, match="No space left"):
        await claims.prepare(reference(claim))
    with pytest.raises(Refused, match="other claims hold"):
        await claims.prepare(reference(store.put(small("b", 80896))))
    calls.failure = None
    assert await claims.prepare(reference(claim))
    assert claim["metadata"]["uid"] in claims_of(tmp_path, offer_of(FACTS), store).records


async def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    store = ClaimStore()
    (tmp_path / "cdi").write_text("in the way")
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    with pytest.raises(OSError) as failed:
        await claims.prepare(reference(store.put(small("a"))))
    assert str(failed.value.filename).startswith(str(tmp_path / "cdi"))


async def test_the_end_of_a_claim_succeeds_although_its_files_cannot_be_removed(tmp_path: Path) -> None:
    store, calls, clock = ClaimStore(), StepCalls(), Clock()
    claims = claims_of(tmp_path, offer_of(FACTS), store, calls=calls, clock=clock)
    claim = store.put(small("a", 80896))
    await claims.prepare(reference(claim))
    calls.failure = OSError(errno.EROFS, "Read-only file system", "/x")
    await claims.unprepare(reference(claim))
    del store.claims["a"]
    other = store.put(small("b", 80896))
    calls.failure = None
    await claims.prepare(reference(other))
    again = claims_of(tmp_path, offer_of(FACTS), store, clock=clock)
    assert set(again.records) == {other["metadata"]["uid"]}, "the later record is the true one"
    await again.compare()
    assert not [name for name in files(tmp_path) if claim["metadata"]["uid"] in name]


async def test_a_damaged_record_is_restored_from_the_spec_and_one_without_a_copy_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store)
    first, second = store.put(small("a", 80896)), store.put(claim_of("b", result(PF, 1, "r")))
    record = await claims.prepare(reference(first))
    await claims.prepare(reference(second))
    for path in (tmp_path / "claims").iterdir():
        path.write_bytes(b'{"boot_id": "boot-1", "claim": {"uid"\0')
    (tmp_path / "cdi" / f"nodeagent-claim-{second['metadata']['uid']}.json").write_text("[")
    (tmp_path / "claims" / "no uid.json").write_text("{}")
    again = claims_of(tmp_path, offer_of(FACTS), store)
    assert again.records == {record.uid: record}
    assert "has no copy" in caplog.text
    assert second["metadata"]["uid"] in caplog.text
    assert "no uid" not in caplog.text
    with pytest.raises(Refused, match="other claims hold"):
        await again.prepare(reference(store.put(small("c"))))


async def test_records_of_an_earlier_boot_hold_nothing(tmp_path: Path) -> None:
    store = ClaimStore()
    claim = store.put(small("a", 80896))
    await claims_of(tmp_path, offer_of(FACTS), store).prepare(reference(claim))
    again = claims_of(tmp_path, offer_of(FACTS), store, boot_id="boot-2")
    assert not again.records
    await again.remove_leftovers()
    assert not list((tmp_path / "claims").iterdir())
    assert not list((tmp_path / "cdi").iterdir())
    await again.unprepare(reference(claim))
    assert await again.prepare(reference(claim))


async def test_a_claim_waits_for_devices_that_are_not_known_yet_and_is_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the start of an agent. A refusal would cost the pod the kubelet's back-off."""
    store, offer = ClaimStore(), offer_of(FACTS)
    known = offer.current
    claims = claims_of(tmp_path, offer, store)
    earlier = reference(store.put(small("earlier")))
    record = await claims.prepare(earlier)
    offer.update(replace(known, pools={"gpu": None, "nic": None}), FACTS)
    again = asyncio.create_task(claims.prepare(earlier))  # its device nodes may be others by now
    waiting, ended, changed = (
        asyncio.create_task(claims.prepare(reference(store.put(small(name))))) for name in "bcd"
    )
    reads = store.reads
    await until(lambda: store.reads >= reads + 4, pause_s=0)
    await asyncio.sleep(0)
    assert not again.done()
    await claims.unprepare(reference(store.claims["c"]))
    elsewhere = claim_of("d", result(gpus_of(FACTS)[1], 2048, "g"), uid=store.claims["d"]["metadata"]["uid"])
    store.put(elsewhere)
    offer.update(replace(known, pools=known.pools | {"gpu": None}), FACTS)
    offer.update(known, FACTS)
    assert await again == record
    assert (await waiting).name == "b"
    assert [device.amount for device in (await changed).devices] == [2048], "the claim is read again"
    with pytest.raises(Refused, match="was unprepared meanwhile"):
        await ended
    monkeypatch.setattr("nodeagent.dra.claims.DEVICES_S", 0.01)
    offer.update(replace(known, pools={"gpu": None, "nic": None}), FACTS)
    with pytest.raises(Refused, match="the devices of gpu and nic are not known yet"):
        await claims.prepare(reference(store.put(small("e"))))


@pytest.mark.usefixtures("virtual_time")
async def test_a_claim_that_waits_for_a_record_without_a_claim_gets_its_devices_in_minutes(
    tmp_path: Path,
) -> None:
    """The kubelet has lost its state, and never asks for the end of the first claim."""
    store = ClaimStore()
    claims = claims_of(tmp_path, offer_of(FACTS), store, clock=lambda: time.monotonic())  # noqa: PLW0108 - the clock of the test
    await claims.prepare(reference(store.put(small("a", 80896))))
    following = asyncio.create_task(claims.follow())
    await asyncio.sleep(1)
    del store.claims["a"]
    waiting, began = reference(store.put(small("b"))), time.monotonic()
    while True:
        with suppress(Occupied):
            await claims.prepare(waiting)
            break
        await asyncio.sleep(64)  # the kubelet's back-off
    assert time.monotonic() - began < 2 * GONE_S
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class PausedStore(ClaimStore):
    """A store whose next read, once made, is answered only after ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on: asyncio.Event | None = None

    async def read(self, namespace: str, name: str) -> ResourceClaim:
        answer = await super().read(namespace, name)
        if (go_on := self.go_on) is not None:
            self.go_on = None
            await go_on.wait()
        return answer


async def test_a_comparison_with_a_late_answer_does_not_end_a_claim_that_is_in_use_again(
    tmp_path: Path,
) -> None:
    """Its devices were taken away and given back, so the record is the same."""
    store, clock = PausedStore(), Clock()
    claims = claims_of(tmp_path, offer_of(FACTS), store, clock=clock)
    claim = store.put(small("a"))
    await claims.prepare(reference(claim))
    allocation = claim["status"].pop("allocation")
    await claims.compare()
    clock.seconds += GONE_S
    go_on = store.go_on = asyncio.Event()
    late = asyncio.create_task(claims.compare())
    await until(lambda: store.go_on is None, pause_s=0)
    claim["status"]["allocation"] = allocation
    record = await claims.prepare(reference(claim))
    go_on.set()
    await late
    assert claims.records == {record.uid: record}


async def test_a_slow_call_does_not_answer_with_devices_that_the_claim_has_lost(tmp_path: Path) -> None:
    """The kubelet gave up waiting and asked again after the claim had got other devices."""
    store, calls = ClaimStore(), PausedCalls()
    claims = claims_of(tmp_path, offer_of(FACTS), store, calls=calls)
    blocker = asyncio.create_task(claims.prepare(reference(store.put(small("blocker")))))
    await until(lambda: calls.waits, pause_s=0)
    claim = store.put(small("a"))
    slow = asyncio.create_task(claims.prepare(reference(claim)))
    await until(lambda: claim["metadata"]["uid"] in claims.records, pause_s=0)
    moved = store.put(claim_of("a", result(gpus_of(FACTS)[1], 2048, "g"), uid=claim["metadata"]["uid"]))
    again = asyncio.create_task(claims.prepare(reference(moved)))
    uid = moved["metadata"]["uid"]
    await until(lambda: [it.amount for it in claims.records[uid].devices] == [2048], pause_s=0)
    calls.go_on.set()
    await blocker
    with pytest.raises(Refused, match="allocated again meanwhile"):
        await slow
    assert [device.amount for device in (await again).devices] == [2048]


class PausedCalls(StepCalls):
    """A disk whose calls wait for ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.waits = False

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        self.waits = True
        await self.go_on.wait()
        return await super().run(work, *arguments)


@pytest.mark.parametrize(("shares", "vfs", "copied"), [(1, 200, True), (8, 25, False)])
async def test_a_runtime_accepts_the_annotations_of_a_large_claim(
    tmp_path: Path, shares: int, vfs: int, copied: bool
) -> None:
    """Runtimes refuse a spec with more than 256 KiB of annotations, and the pod does not start."""
    facts = machine(rails=1, gpus=0, vfs=200)
    store, pf = ClaimStore(), pfs_of(facts)[0]
    claim = store.put(claim_of("c", *(result(pf, vfs, "all") for _ in range(shares))))
    record = await claims_of(tmp_path, offer_of(facts), store).prepare(reference(claim))
    spec = json.loads((tmp_path / "cdi" / f"nodeagent-claim-{record.uid}.json").read_text())
    annotations = spec.get("annotations", {})
    assert bool(annotations) is copied
    assert sum(len(key) + len(value) for key, value in annotations.items()) <= 256 * 1024
    again = claims_of(tmp_path, offer_of(facts), store)
    assert again.records == {record.uid: record}


async def test_a_record_that_could_not_be_read_again_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_files, "STORED_SIZE_MAX", 500)
    store = ClaimStore()
    with pytest.raises(OSError, match="use several claims") as refusal:
        await claims_of(tmp_path, offer_of(FACTS), store).prepare(reference(store.put(small("c"))))
    assert refusal.value.filename
    assert not files(tmp_path)


async def test_a_machine_without_descriptors_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClaimStore()
    record = await claims_of(tmp_path, offer_of(FACTS), store).prepare(reference(store.put(small("c"))))

    def without_descriptors(path: Path, _size_max: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(claim_files, "read_regular", without_descriptors)
        with pytest.raises(OSError, match="Too many open files"):
            claims_of(tmp_path, offer_of(FACTS), store)
    assert claims_of(tmp_path, offer_of(FACTS), store).records == {record.uid: record}
