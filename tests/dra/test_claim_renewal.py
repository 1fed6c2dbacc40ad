"""Device nodes that are numbered anew while a claim is prepared, and files that go from the disk.

What must hold: a container never gets a device node that is another device's by now. The CDI spec has the nodes that
the claim's devices have at present, or the claim is refused and its spec is gone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.dra import claims as claims_module
from nodeagent.dra.claim_mending import ClaimMending
from nodeagent.dra.claims import PreparedClaims
from nodeagent.dra.offered import DraOffer, OfferedPools
from nodeagent.dra.prepared_claim import PreparedClaim, PreparedDevice, is_outdated
from nodeagent.facts.cdi import ContainerEdits
from nodeagent.facts.model import DeviceNode, Function, Gpu, Rdma, Snapshot, StaleSource
from nodeagent.kinds import Refused
from tests.support.dra_node import (
    ClaimStore,
    claim_of,
    claims_of,
    gpus_of,
    machine,
    offer_of,
    pfs_of,
    publish,
    reference,
    result,
)
from tests.support.kind_machines import SICK

BASE = machine(rails=1, vfs=4)


def numbered(first: int, **changes: object) -> Snapshot:
    """The machine whose VFs have RDMA devices, numbered from here on upwards."""
    vfs = [it for it in BASE.functions if it.parent is not None]

    def with_number(function: Function) -> Function:
        if function.parent is None:
            return function
        number = first + vfs.index(function)
        return replace(function, rdma=Rdma(f"mlx5_{number}", f"/dev/infiniband/uverbs{number}"), **changes)

    return replace(BASE, functions=tuple(map(with_number, BASE.functions)))


BEFORE, AFTER = numbered(10), numbered(12)
"""After the driver was loaded again the first VF has what the third one had."""
PF = pfs_of(BEFORE)[0]


class Prepared:
    """One claim of a VF and a share of a GPU that is prepared with the facts of before."""

    def __init__(self, folder: Path, offer: Any, claims: PreparedClaims, claim: dict[str, Any]) -> None:
        self.folder, self.offer, self.claims, self.claim = folder, offer, claims, claim
        self.uid = claim["metadata"]["uid"]
        self.mending = ClaimMending(claims, claims._files, offer)

    async def prepare(self) -> PreparedClaim:
        return await self.claims.prepare(reference(self.claim))

    @property
    def spec(self) -> Path:
        return self.folder / "cdi" / f"nodeagent-claim-{self.uid}.json"

    def nodes(self) -> list[str]:
        """The RDMA device nodes of the spec on the disk."""
        devices = json.loads(self.spec.read_text())["devices"]
        edits = [it["containerEdits"].get("deviceNodes", ()) for it in devices]
        return [node["path"] for one in edits for node in one if "uverbs" in node["path"]]


@pytest.fixture
async def prepared(tmp_path: Path) -> Prepared:
    store, offer = ClaimStore(), offer_of(BEFORE)
    claim = store.put(claim_of("a", result(gpus_of(BEFORE)[0], 1024, "g"), result(PF, 1, "r")))
    found = Prepared(tmp_path, offer, claims_of(tmp_path, offer, store), claim)
    await found.prepare()
    assert found.nodes() == ["/dev/infiniband/uverbs10"]
    return found


async def test_a_claim_that_is_prepared_again_gets_the_nodes_that_its_vf_has_now(prepared: Prepared) -> None:
    before = prepared.claims.records[prepared.uid]
    publish(prepared.offer, AFTER)
    record = await prepared.prepare()
    assert prepared.nodes() == ["/dev/infiniband/uverbs12"]
    assert "uverbs10" not in prepared.spec.read_text()
    assert record.devices == before.devices, "the devices are what was stored"


async def test_a_container_that_restarts_gets_the_nodes_of_now_without_a_prepare(prepared: Prepared) -> None:
    await prepared.mending.mend()
    text = prepared.spec.read_text()
    publish(prepared.offer, AFTER)
    await prepared.mending.mend()
    assert prepared.nodes() == ["/dev/infiniband/uverbs12"]
    assert prepared.spec.read_text() != text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"missing": True}, "is not there any more"),
        ({"driver": "vfio-pci", "vfio_group": None}, "IOMMU group"),
    ],
    ids=["gone", "another driver"],
)
async def test_a_claim_whose_nodes_are_others_and_whose_vf_has_none_is_refused(
    prepared: Prepared, change: dict[str, Any], words: str
) -> None:
    vf = prepared.claims.records[prepared.uid].devices[1].vfs[0]
    others = numbered(9)  # the second VF has now what the first one had
    lacking = (replace(it, **change) if it.pci_address == vf else it for it in others.functions)
    publish(prepared.offer, replace(others, functions=tuple(lacking)))
    with pytest.raises(Refused, match=words):
        await prepared.prepare()
    await prepared.mending.mend()
    assert not prepared.spec.exists(), "no container starts with the nodes of another VF"
    assert prepared.uid not in prepared.claims.written
    publish(prepared.offer, AFTER)
    await prepared.mending.mend()
    assert prepared.nodes() == ["/dev/infiniband/uverbs12"]
    assert prepared.uid in prepared.claims.written


def _without(facts: Snapshot, vf: str) -> Snapshot:
    return replace(facts, functions=tuple(it for it in facts.functions if it.pci_address != vf))


def _missing(facts: Snapshot, vf: str) -> Snapshot:
    functions = (
        replace(it, missing=True, rdma=None) if it.pci_address == vf else it for it in facts.functions
    )
    return replace(facts, functions=tuple(functions))


def _lost(facts: Snapshot, _vf: str) -> Snapshot:
    uuid = gpus_of(BEFORE)[0].gpu.uuid
    return replace(facts, gpus=tuple(replace(it, lost=it.uuid == uuid) for it in facts.gpus))


def _no_gpu(facts: Snapshot, _vf: str) -> Snapshot:
    return replace(facts, gpus=())


GONE = {"missing": _missing, "absent": _without, "lost": _lost, "no GPU": _no_gpu}


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_a_claim_whose_device_is_gone_is_refused_until_it_is_back(
    prepared: Prepared, gone: Callable[[Snapshot, str], Snapshot]
) -> None:
    """Nobody has its node number yet: the next device that comes gets it."""
    before = prepared.claims.records[prepared.uid]
    publish(prepared.offer, gone(BEFORE, before.devices[1].vfs[0]))
    with pytest.raises(Refused, match="is not there any more"):
        await prepared.prepare()
    await prepared.mending.mend()
    assert not prepared.spec.exists()
    await prepared.claims.compare()
    assert not prepared.spec.exists(), "what the mending took away stays away"
    publish(prepared.offer, BEFORE)
    await prepared.prepare()
    assert prepared.nodes() == ["/dev/infiniband/uverbs10"]
    assert prepared.claims.records[prepared.uid] == before


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_a_source_that_fails_or_has_not_published_refuses_no_claim(
    prepared: Prepared, gone: Callable[[Snapshot, str], Snapshot]
) -> None:
    text = prepared.spec.read_text()
    facts = gone(BEFORE, prepared.claims.records[prepared.uid].devices[1].vfs[0])
    stale = tuple(StaleSource(source, "it does not answer") for source in ("gpus", "pci"))
    publish(prepared.offer, replace(facts, stale_sources=stale))
    await prepared.prepare()
    prepared.offer.update(OfferedPools({"gpu": None, "nic": None}), Snapshot())
    await prepared.mending.mend()
    assert prepared.spec.read_text() == text


async def test_a_new_agent_gives_no_stored_nodes_before_it_has_facts(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "DEVICES_S", 0.05)
    text = prepared.spec.read_text()
    prepared.offer.update(OfferedPools({"gpu": None, "nic": None}), Snapshot())
    with pytest.raises(Refused, match="the devices of gpu and nic are not known yet"):
        await prepared.prepare()
    await prepared.mending.mend()
    assert prepared.spec.read_text() == text, "nothing speaks against the nodes"
    publish(prepared.offer, AFTER)
    await prepared.prepare()
    assert prepared.nodes() == ["/dev/infiniband/uverbs12"]


async def test_health_and_a_device_in_the_pods_namespace_change_nothing(prepared: Prepared) -> None:
    """With RDMA's exclusive mode the host has no RDMA device of a VF that a pod has."""
    text = prepared.spec.read_text()
    hidden = replace(BEFORE, functions=tuple(replace(it, rdma=None) for it in BEFORE.functions))
    for facts in (numbered(10, health=SICK), hidden):
        publish(prepared.offer, facts)
        await prepared.prepare()
        await prepared.mending.mend()
        assert prepared.spec.read_text() == text


async def test_a_container_gets_the_name_that_the_rdma_device_of_its_vf_has_now(prepared: Prepared) -> None:
    """udev renames RDMA devices after a driver is loaded again, and the device node may be the same."""
    renamed = replace(
        BEFORE,
        functions=tuple(
            replace(it, rdma=replace(it.rdma, device=f"rocep{it.rdma.device}"))
            if it.rdma and it.parent
            else it
            for it in BEFORE.functions
        ),
    )
    info = prepared.folder / "devinfo"
    before = [path.read_text() for path in sorted(info.iterdir())]
    assert any('"mlx5_10"' in text for text in before)
    publish(prepared.offer, renamed)
    await prepared.mending.mend()
    after = [path.read_text() for path in sorted(info.iterdir())]
    assert any('"rocepmlx5_10"' in text for text in after)
    assert not any('"mlx5_10"' in text for text in after)
    assert prepared.nodes() == ["/dev/infiniband/uverbs10"]
    publish(prepared.offer, BEFORE)
    await prepared.mending.mend()
    assert [path.read_text() for path in sorted(info.iterdir())] == before


async def test_files_that_were_wiped_under_a_running_agent_are_there_again(prepared: Prepared) -> None:
    text = prepared.spec.read_text()
    shutil.rmtree(prepared.folder / "cdi")
    shutil.rmtree(prepared.folder / "devinfo")
    await prepared.mending.mend()
    assert prepared.spec.read_text() == text
    assert list((prepared.folder / "devinfo").iterdir())
    (prepared.folder / "claims" / f"{prepared.uid}.json").unlink()
    await prepared.mending.mend()
    assert (prepared.folder / "claims" / f"{prepared.uid}.json").exists()


async def test_a_claim_that_has_ended_gets_no_files_again(prepared: Prepared) -> None:
    await prepared.claims.unprepare(reference(prepared.claim))
    await prepared.mending.mend()
    assert not [path for path in prepared.folder.rglob("*") if path.is_file()]


def test_the_nodes_of_gpus_and_vfio_groups_have_owners_too() -> None:
    """Functions of one IOMMU group share its node."""
    gpus = gpus_of(BEFORE)

    def record(*nodes: str, **device: Any) -> PreparedClaim:
        one = PreparedDevice("r", "p", "nic", "d", 1, "x", ("k/c=n",), **device)
        edits = ContainerEdits(device_nodes=tuple(DeviceNode(node, node) for node in nodes))
        return PreparedClaim("u", "ns", "c", 1, "", (one,), {"n": edits})

    def numbered_gpus(*minors: int) -> Snapshot:
        found: list[Gpu] = [replace(it.gpu, minor=minor) for it, minor in zip(gpus, minors, strict=True)]
        return Snapshot(gpus=tuple(found))

    gpu = record("/dev/nvidia0", "/dev/nvidiactl", uuid=gpus[0].gpu.uuid)
    assert [is_outdated(gpu, numbered_gpus(*minors)) for minors in ((0, 1), (1, 0), (5, 6))] == [
        False,
        True,
        True,
    ]
    by_cdi = record("/dev/nvidiactl", uuid=gpus[0].gpu.uuid)
    assert not is_outdated(by_cdi, numbered_gpus(1, 0))

    def grouped(*groups: str) -> Snapshot:
        vfs = [it for it in BASE.functions if it.parent is not None]
        bound = (
            replace(vf, driver="vfio-pci", rdma=None, vfio_group=group)
            for vf, group in zip(vfs, groups, strict=False)
        )
        return Snapshot(functions=tuple(bound))

    first = pfs_of(BASE)[0].vfs[0]
    vfio = record("/dev/vfio/vfio", "/dev/vfio/40", vfs=(first,))
    assert [is_outdated(vfio, grouped(*of)) for of in (("40", "40"), ("41", "40"), ("41", "42"))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("kind", ["gpu", "nic"])
async def test_an_administrator_loses_a_device_that_is_gone_and_keeps_the_others(
    tmp_path: Path, kind: str
) -> None:
    """The device node of a device that was taken out may be another one's by now."""
    admin, facts, (one, _), seen = await administrator(tmp_path, kind)
    assert seen() == [True, True]
    admin.offer.update(OfferedPools({"gpu": None, "nic": None}), Snapshot())
    await admin.mending.mend()
    assert seen() == [True, True], "the devices are not known yet"
    gone = one.gpu.uuid if kind == "gpu" else one.pf.pci_address
    left = replace(
        facts,
        gpus=tuple(it for it in facts.gpus if it.uuid != gone),
        functions=tuple(it for it in facts.functions if gone not in (it.pci_address, it.parent)),
    )
    publish(admin.offer, left)
    await admin.mending.mend()
    assert seen() == [False, True]
    publish(admin.offer, facts)
    await admin.mending.mend()
    assert seen() == [True, True]


@pytest.mark.parametrize("kind", ["gpu", "nic"])
async def test_an_administrator_loses_all_devices_of_a_kind_that_claims_do_not_offer_any_more(
    tmp_path: Path, kind: str
) -> None:
    """Without an entry of mode dra nothing says which device nodes its devices have."""
    admin, facts, _, seen = await administrator(tmp_path, kind)
    admin.offer.update(OfferedPools({}), facts)
    await admin.mending.mend()
    assert seen() == [False, False]
    await admin.prepare()
    assert seen() == [False, False]
    publish(admin.offer, facts)
    await admin.mending.mend()
    assert seen() == [True, True]


@pytest.mark.parametrize("kind", ["gpu", "nic"])
async def test_an_administrator_keeps_its_devices_until_a_new_agent_knows_what_is_offered(
    tmp_path: Path, kind: str
) -> None:
    admin, _, _, seen = await administrator(tmp_path, kind)
    mending = ClaimMending(admin.claims, admin.claims._files, DraOffer())
    await mending.mend()
    assert seen() == [True, True]


async def administrator(
    folder: Path, kind: str
) -> tuple[Prepared, Snapshot, Sequence[Any], Callable[[], list[bool]]]:
    """A prepared claim that sees two devices of this kind, the facts, the devices, and which of them its spec shows."""
    store, facts = ClaimStore(), machine()
    rdma = {
        it.pci_address: Rdma(f"mlx5_{i}", f"/dev/infiniband/uverbs{i}")
        for i, it in enumerate(facts.functions)
    }
    facts = replace(facts, functions=tuple(replace(it, rdma=rdma[it.pci_address]) for it in facts.functions))
    offer, devices = offer_of(facts), gpus_of(facts) if kind == "gpu" else pfs_of(facts)
    claim = store.put(claim_of("m", *(result(it, 0, "all", adminAccess=True) for it in devices)))
    admin = Prepared(folder, offer, claims_of(folder, offer, store), claim)
    await admin.prepare()
    words = [it.gpu.uuid if kind == "gpu" else f'"{rdma[it.pf.pci_address].uverbs}"' for it in devices]

    def seen() -> list[bool]:
        text = json.dumps(json.loads(admin.spec.read_text())["devices"])
        return [word in text for word in words]

    return admin, facts, devices, seen
