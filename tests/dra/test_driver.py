"""The driver on its sockets: a stand-in kubelet and a stand-in API server, with their unpleasant parts."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from nodeagent.dra import DRIVER, claim_mig, driver, kubelet_service
from nodeagent.dra.claim_preparation import CDI_KIND
from nodeagent.dra.claims import ClaimReference
from nodeagent.dra.driver import DraDriver
from nodeagent.dra.mig_instances import MigInstances
from nodeagent.dra.offered import DraOffer, OfferedPools, held_by_claims
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.model import Health, Reason, Snapshot, State
from nodeagent.kube import dra_v1_pb2
from nodeagent.kube.access import Access
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.unix_server import UnixServer
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import Kubelet, dra_manager
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim, SandboxError, check_answer
from tests.support.dra_node import (
    CONFIG,
    NODE,
    claim_of,
    devices_of,
    gpus_of,
    machine,
    offer_of,
    pfs_of,
    publish,
    registering,
    result,
)
from tests.support.kind_machines import gpu_of
from tests.support.mig_driver import MigDriver, caps
from tests.support.waiting import until

FACTS = machine()
GPU, PF = gpus_of(FACTS)[0], pfs_of(FACTS)[0]


class DraNode:
    """A kubelet, an API server and a driver that starts and stops."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.folder, self.server = folder, server
        self.wiped: list[str | None] = []
        self.kubelet = Kubelet(folder / "k", seed=1, reconcile_s=0.02, delete_slices=self.wiped.append)
        self.offer: DraOffer = offer_of(FACTS)
        self.stats = RpcStats()
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> DraDriver:
        self.driver = DraDriver(
            Access(self.server.url, token=self.server.token()),
            NODE,
            self.offer,
            kubelet_dir=self.folder / "k",
            record_folder=self.folder / "claims",
            cdi_folder=self.folder / "cdi",
            device_info=DeviceInfoFiles(self.folder / "devinfo"),
            stats=self.stats,
        )
        self.driver.read_records()
        self.task = asyncio.create_task(self.driver.run())
        await self.kubelet.until(lambda: self.kubelet.dra.registered(DRIVER))
        return self.driver

    @property
    def registrations(self) -> int:
        return sum(attempt.error is None for attempt in self.kubelet.registrations)

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    def schedule(self, name: str, *results: dict[str, Any], uid: str | None = None) -> PodClaim:
        claim = self.server.put(claim_of(name, *results, uid=uid))
        drivers = tuple(dict.fromkeys(it["driver"] for it in results))
        return PodClaim("default", name, claim["metadata"]["uid"], drivers)


@pytest.fixture
async def node() -> AsyncIterator[DraNode]:
    server = await ApiServer().start()
    with tempfile.TemporaryDirectory(prefix="dra") as folder:  # the path of a socket is short
        node = DraNode(Path(folder), server)
        await node.kubelet.start()
        await node.start()
        try:
            yield node
        finally:
            await node.stop()
            await node.kubelet.stop()
            await server.stop()


async def test_a_pod_gets_its_share_its_vf_and_the_ids_of_its_requests(node: DraNode) -> None:
    share, vf = result(GPU, 40960, "g"), result(PF, 1, "r")
    claim = node.schedule("c", share, vf)
    await node.kubelet.dra.prepare("pod", [claim])
    state = node.kubelet.dra.states["default/c"]
    assert [device.share_id for device in state.devices[DRIVER]] == [share["shareID"], vf["shareID"]]
    assert node.kubelet.dra.container_devices(claim, "r") == [f"{CDI_KIND}={claim.uid}-1"]
    assert node.kubelet.dra.container_devices(claim, "g")[1] == f"nodeagent.io/gpu={GPU.gpu.uuid}"
    node.server.remove("resourceclaims", "c", "default")
    await node.kubelet.dra.unprepare("pod")
    assert not node.driver.claims.records
    assert node.stats.calls[DRIVER, "NodePrepareResources", "OK"] == 1


async def test_one_refused_claim_of_a_request_leaves_the_others_their_answer(node: DraNode) -> None:
    good = node.schedule("good", result(GPU, 1024, "g"))
    bad = node.schedule("bad", result(GPU, 1024, "g") | {"device": "gpu-gone"})
    with pytest.raises(SandboxError, match=r"ResourceClaim bad: .*is no device of this node"):
        await node.kubelet.dra.prepare("pod", [good, bad])
    await node.kubelet.dra.prepare("pod", [good])
    gone = PodClaim("default", "gone", "00000000-0000-4000-8000-0000000000ff", (DRIVER,))
    with pytest.raises(SandboxError, match="the claim default/gone does not exist"):
        await node.kubelet.dra.prepare("other", [gone])


@pytest.mark.parametrize(
    ("socket", "method"),
    [
        (f"plugins/{DRIVER}/dra.sock", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"),
        (f"plugins/{DRIVER}/dra.sock", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"),
        (
            f"plugins_registry/{DRIVER}-reg.sock",
            "pluginregistration.Registration/NotifyRegistrationStatus",
        ),
    ],
)
async def test_a_message_that_is_no_request_is_refused_with_one_line(
    node: DraNode, caplog: pytest.LogCaptureFixture, socket: str, method: str
) -> None:
    async with grpc.aio.insecure_channel(f"unix:{node.folder}/k/{socket}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(f"/{method}")(b"\xff\xff\xff garbage")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (line,) = (record for record in caplog.records if record.levelname != "INFO")
    assert (line.exc_info, "is refused" in line.message) == (None, True)


async def test_a_defect_in_one_claim_leaves_the_others_their_answer(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = node.schedule("good", result(PF, 1, "r")), node.schedule("bad", result(PF, 1, "r"))
    prepare = node.driver.claims.prepare

    async def defective(claim: ClaimReference) -> PreparedClaim:
        if claim.uid == bad.uid:
            raise ValueError("an unknown value")
        return await prepare(claim)

    monkeypatch.setattr(node.driver.claims, "prepare", defective)
    with pytest.raises(SandboxError, match="defect of the agent: ValueError"):
        await node.kubelet.dra.prepare("pod", [good, bad])
    assert set(node.driver.claims.records) == {good.uid}
    await node.kubelet.dra.prepare("pod", [good])


async def test_the_health_of_a_device_is_sent_whatever_its_reason_contains(node: DraNode) -> None:
    """A text of the machine may have bytes that are not UTF-8; Python has them as surrogates."""
    sick = Health(State.UNHEALTHY, (Reason("command_failed", "not \udcff valid"),), allocatable=False)
    publish(node.offer, replace(FACTS, gpus=(replace(FACTS.gpus[0], health=sick), *FACTS.gpus[1:])))
    where = DRIVER, f"{NODE}/gpu", GPU.name
    await node.kubelet.until(
        lambda: node.kubelet.dra.device_health(*where) == ("Unhealthy", "command_failed: not \\udcff valid")
    )


async def test_a_restart_of_the_kubelet_repeats_prepare_and_doubles_ids(node: DraNode) -> None:
    claim = node.schedule("c", result(PF, 1, "r"))
    await node.kubelet.dra.prepare("pod", [claim])
    once = node.kubelet.dra.container_devices(claim)
    wiped = len(node.wiped)
    await node.kubelet.restart()
    assert node.wiped[wiped:] == [None], "the kubelet deletes the slices of its Node"
    await node.kubelet.until(lambda: node.kubelet.dra.registered(DRIVER))
    await node.kubelet.dra.prepare("pod", [claim])
    assert node.kubelet.dra.container_devices(claim) == once * 2
    assert len(node.driver.claims.records) == 1


async def test_a_restart_of_the_driver_keeps_the_claims_and_serves_again(node: DraNode) -> None:
    claim = node.schedule("c", result(PF, 1, "r"))
    await node.kubelet.dra.prepare("pod", [claim])
    before = node.driver.claims.records
    await node.stop()
    await node.kubelet.until(lambda: not node.kubelet.dra.registered(DRIVER))
    with pytest.raises(SandboxError, match="not registered"):
        await node.kubelet.dra.unprepare("pod")
    await node.start()
    assert node.driver.claims.records == before
    await node.kubelet.dra.unprepare("pod")
    assert not node.driver.claims.records
    assert DRIVER not in node.wiped, "a restart within 30 s costs no slice"


async def test_of_two_agents_one_serves_and_the_other_takes_over_with_the_records_of_then(
    node: DraNode,
) -> None:
    """The other one has read the records before the first one wrote more, and removes no file of the first one."""
    first, task = node.driver, node.task
    ended = node.schedule("ended", result(PF, 1, "r"))
    await node.kubelet.dra.prepare("ended", [ended])
    files = sorted(path.name for path in (node.folder / "cdi").iterdir())
    second = await node.start()
    assert second.service is None or not second.service.registered
    assert sorted(path.name for path in (node.folder / "cdi").iterdir()) == files
    claim = node.schedule("c", result(PF, 1, "r"))
    await node.kubelet.dra.prepare("pod", [claim])
    await node.kubelet.dra.unprepare("ended")
    before = first.claims.records
    assert set(before) == {claim.uid}
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await node.kubelet.until(lambda: second.service is not None and second.service.registered, 20)
    assert second.claims.records == before
    await node.kubelet.dra.prepare("other", [node.schedule("d", result(PF, 1, "r"))])
    vfs = [vf for record in second.claims.records.values() for device in record.devices for vf in device.vfs]
    assert len(set(vfs)) == 2, "the VF of the first claim is not given again"


async def test_a_removed_socket_comes_back(node: DraNode) -> None:
    for name in (f"k/plugins_registry/{DRIVER}-reg.sock", f"k/plugins/{DRIVER}/dra.sock"):
        before = node.registrations
        (node.folder / name).unlink()
        await node.kubelet.until(lambda before=before: node.registrations > before)
    claim = node.schedule("c", result(PF, 1, "r"))
    async with asyncio.timeout(10):
        while True:
            try:
                await node.kubelet.dra.prepare("pod", [claim])
                break
            except SandboxError:  # the kubelet syncs the pod again
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["plugins", "plugins_registry"])
async def test_the_kubelets_folders_may_be_removed_and_created_again(
    node: DraNode, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(kubelet_service, "HEALTH_LOOK_S", 0.05)
    monkeypatch.setattr(kubelet_service, "SERVICE_RETRY_FIRST_S", 0.05)
    folder, dra = node.folder / "k" / name, node.kubelet.dra
    shutil.rmtree(folder)
    await node.kubelet.until(lambda: not dra.registered(DRIVER))
    folder.mkdir(exist_ok=True)
    await node.kubelet.until(lambda: dra.registered(DRIVER))
    await until(lambda: node.driver.unregistered is None)
    await node.kubelet.dra.prepare("pod", [node.schedule("c", result(PF, 1, "r"))])


async def test_a_driver_that_the_kubelet_has_dropped_registers_again(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet opens the stream of health again every five seconds as long as it knows the driver."""
    monkeypatch.setattr(kubelet_service, "UNWATCHED_S", 0.1)
    monkeypatch.setattr(kubelet_service, "HEALTH_LOOK_S", 0.05)
    where, dra = (DRIVER, f"{NODE}/gpu", GPU.name), node.kubelet.dra
    await node.kubelet.until(lambda: where in dra.health)
    before = node.registrations
    await dra.disconnect(DRIVER)
    assert not dra.registered(DRIVER)
    await node.kubelet.until(lambda: node.registrations > before)
    await node.kubelet.until(lambda: dra.registered(DRIVER) and where in dra.health)
    await node.kubelet.dra.prepare("pod", [node.schedule("c", result(PF, 1, "r"))])


async def test_a_driver_without_a_kubelet_is_not_registered(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_service, "UNWATCHED_S", 0.1)
    monkeypatch.setattr(kubelet_service, "HEALTH_LOOK_S", 0.05)
    await node.kubelet.until(lambda: (DRIVER, f"{NODE}/gpu", GPU.name) in node.kubelet.dra.health)
    await node.kubelet.kill()
    await until(lambda: node.driver.unregistered)
    assert "has stopped to watch" in (node.driver.unregistered or "")
    await node.kubelet.start()
    await until(lambda: node.driver.unregistered is None)


@pytest.mark.parametrize("before", [("v1alpha1.DRAResourceHealth",), ()], ids=["until-now", "never"])
async def test_a_kubelet_that_does_not_watch_the_health_has_not_dropped_the_driver(
    node: DraNode, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...]
) -> None:
    """Kubelets before 1.36 open no stream of health, and later ones none while ``ResourceHealthStatus`` is off."""
    monkeypatch.setattr(kubelet_service, "UNWATCHED_S", 0.1)
    monkeypatch.setattr(kubelet_service, "HEALTH_LOOK_S", 0.05)
    await node.stop()

    async def restarted(*health: str) -> None:
        known = node.registrations
        await node.kubelet.kill()
        node.kubelet.dra.knows = ("v1.DRAPlugin", *health)
        await node.kubelet.start()
        if node.task is None:
            await node.start()
        await node.kubelet.until(lambda: node.registrations > known)

    await restarted(*before)
    if before:
        await node.kubelet.until(lambda: bool(node.kubelet.dra.health))
        await restarted()
    known = node.registrations
    for _ in range(10):
        await asyncio.sleep(0.05)
        assert node.driver.unregistered is None
    assert node.registrations == known


async def test_the_kubelet_gets_the_reason_of_a_fault_and_its_end(node: DraNode) -> None:
    where = (DRIVER, f"{NODE}/gpu", GPU.name)
    health = node.kubelet.dra.device_health
    await node.kubelet.until(lambda: health(*where)[0] == "Healthy")
    detail = "XID 79: the GPU has fallen off the bus " + "ö" * 2000
    sick = Health(State.UNHEALTHY, (Reason("xid", detail),), allocatable=False)
    publish(node.offer, replace(FACTS, gpus=(replace(FACTS.gpus[0], health=sick), *FACTS.gpus[1:])))
    await node.kubelet.until(lambda: health(*where)[0] == "Unhealthy")
    message = health(*where)[1]
    assert message.startswith("xid: XID 79")
    assert len(message.encode()) <= 1024
    publish(node.offer, FACTS)
    await node.kubelet.until(lambda: health(*where) == ("Healthy", ""))


async def test_the_health_is_sent_again_before_the_kubelet_takes_it_for_unknown(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * kubelet_service.HEALTH_S < dra_manager.HEALTH_S, "one message may be late"
    monkeypatch.setattr(kubelet_service, "HEALTH_S", 0.05)
    where = (DRIVER, f"{NODE}/gpu", GPU.name)
    publish(node.offer, replace(FACTS, gpus=FACTS.gpus[:1]))  # the waits from now on are short
    await node.kubelet.until(lambda: where in node.kubelet.dra.health)
    first = node.kubelet.dra.health[where].received_at
    await node.kubelet.until(lambda: node.kubelet.dra.health[where].received_at > first)
    second = node.kubelet.dra.health[where].received_at
    await node.kubelet.until(lambda: node.kubelet.dra.health[where].received_at > second)


async def test_the_driver_stays_until_the_last_claim_of_a_changed_mode_has_ended(node: DraNode) -> None:
    claim = node.schedule("c", result(PF, 1, "r"))
    await node.kubelet.dra.prepare("pod", [claim])
    node.offer.update(OfferedPools(), FACTS)
    with pytest.raises(SandboxError, match="is no device of this node"):
        await node.kubelet.dra.prepare("new", [node.schedule("d", result(PF, 1, "r"))])
    await node.kubelet.dra.unprepare("pod")
    await node.kubelet.until(lambda: not node.kubelet.dra.registered(DRIVER))
    publish(node.offer, FACTS)
    await node.kubelet.until(lambda: node.kubelet.dra.registered(DRIVER))


def test_an_answer_that_skips_a_claim_is_an_error_of_the_kubelet() -> None:
    """The stand-in finds the answer that the driver must never give."""
    claim = PodClaim("default", "x", "u", (DRIVER,))
    with pytest.raises(SandboxError, match="skipped 1 ResourceClaims"):
        check_answer(dra_v1_pb2.NodePrepareResourcesResponse(), [claim], "Prepare")


async def test_what_claims_hold_is_unknown_while_their_records_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device plugin offers no hardware then: after a change of the mode a claim may still hold it."""
    folder = tmp_path / "claims"
    folder.mkdir()
    driver = DraDriver(
        Access("http://127.0.0.1:1"),
        NODE,
        DraOffer(),
        kubelet_dir=tmp_path,
        record_folder=folder,
        cdi_folder=tmp_path / "cdi",
        device_info=DeviceInfoFiles(tmp_path / "devinfo"),
        stats=RpcStats(),
    )
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda _path: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        driver.read_records()
    assert driver.holdings is None
    assert "cannot be read" in (held_by_claims(GPU.hardware, driver.holdings) or "")
    driver.read_records()
    assert driver.holdings == ()
    assert held_by_claims(GPU.hardware, driver.holdings) is None


async def test_a_pod_gets_a_mig_device_that_is_made_for_it_and_waits_at_its_end_for_the_last_process(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided = MigDriver(gpu_of(0).uuid)
    facts = Snapshot(gpus=(divided.facts(gpu_of(0)),), holdings=())
    config = CONFIG.replace("gpu-mem", "mig")
    place = next(it for it in devices_of(facts, config) if it.pool == "mig")
    tree = caps(node.folder / "host", 1)
    monkeypatch.setattr(driver, "MigInstances", lambda _tree: MigInstances(tree, divided.opened))
    monkeypatch.setattr(claim_mig, "IN_USE_S", 0.0)
    await node.stop()
    await node.kubelet.until(lambda: not node.kubelet.dra.registered(DRIVER))
    publish(node.offer, facts, config)
    await node.start()
    allocated = {"request": "m", "driver": DRIVER, "pool": f"{NODE}/mig", "device": place.name}
    claim = node.schedule("c", allocated)
    await node.kubelet.dra.prepare("pod", [claim])
    (slot,) = divided.slots
    assert node.offer.mig_slots == {slot}
    own, whole = node.kubelet.dra.container_devices(claim, "m")
    assert (own, whole) == (f"{CDI_KIND}={claim.uid}-0", f"nodeagent.io/gpu={gpu_of(0).uuid}")
    await node.stop()  # another agent takes over, and the records with it
    await node.kubelet.until(lambda: not node.kubelet.dra.registered(DRIVER))
    await node.start()
    node.server.remove("resourceclaims", "c", "default")
    divided.in_use = {slot}
    with pytest.raises(SandboxError, match="a process still uses it"):
        await node.kubelet.dra.unprepare("pod")
    assert divided.slots == {slot}
    divided.in_use = set()
    await node.kubelet.dra.unprepare("pod")
    assert (divided.slots, node.driver.claims.records) == (set(), {})


async def test_another_driver_of_our_name_is_told_until_it_goes_and_then_ours_is_registered_again(
    node: DraNode,
) -> None:
    await until(lambda: node.driver.unregistered is None and node.registrations == 1)
    asked: list[str] = []
    registry = node.folder / "k/plugins_registry"
    (registry / "below").mkdir()
    plugins = [("csi.example.com", "CSIPlugin"), ("gpu.example.com", "DRAPlugin"), (DRIVER, "DRAPlugin")]
    servers = [UnixServer() for _ in plugins]
    for server, (name, kind) in zip(servers, plugins, strict=True):
        await server.start(registry / "below" / f"{kind}-{name}.sock", (registering(name, kind, asked),))
    await until(lambda: node.driver.unregistered is not None)
    assert f"another DRA driver registers the name {DRIVER} " in node.driver.unregistered
    assert "endpoint '/other/dra.sock'" in node.driver.unregistered
    await servers[-1].stop()
    await until(lambda: node.driver.unregistered is None)
    await until(lambda: node.registrations == 2)
    assert set(asked) == {name for name, _ in plugins}
    for server in servers:
        await server.stop()
