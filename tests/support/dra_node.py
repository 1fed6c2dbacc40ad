"""A node with GPUs and PFs in mode dra, and claims that a scheduler has allocated, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec

from nodeagent.agent_config import load
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claim_mig import ClaimMig
from nodeagent.dra.claims import ClaimReference, PreparedClaims
from nodeagent.dra.devices import DraDevice
from nodeagent.dra.gpu_device import GpuDevice
from nodeagent.dra.offered import DraOffer, OfferedPools
from nodeagent.dra.pf_device import PfDevice
from nodeagent.dra.resource_claim import ResourceClaim
from nodeagent.facts.model import Snapshot
from nodeagent.kube import pluginregistration_pb2
from nodeagent.kube.failure import ApiError
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.offering.offer import Offer
from tests.support.kind_machines import WITH_DRIVER, gpu_of, pf_of, vf_of

T = TypeVar("T")

NODE = "n1"
CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resourcePrefix: nvidia-dgx-h100
resources:
- {kind: vf, mode: dra, select: {drivers: [mlx5_core]}}
- {kind: gpu-mem, mode: dra}
"""


def registering(name: str, kind: str, asked: list[str] | None = None) -> grpc.GenericRpcHandler:
    """The registration of another plugin, for a socket in ``plugins_registry``. ``asked`` gets the name at each
    question."""

    async def get_info(_request: bytes, _context: Any) -> bytes:
        if asked is not None:
            asked.append(name)
        return pluginregistration_pb2.PluginInfo(
            type=kind, name=name, endpoint="/other/dra.sock", supported_versions=["v1.DRAPlugin"]
        ).SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(get_info)
    return grpc.method_handlers_generic_handler("pluginregistration.Registration", {"GetInfo": handler})


def machine(rails: int = 2, gpus: int = 2, vfs: int = 4, **facts: Any) -> Snapshot:
    pfs = [pf_of(rail, vfs) for rail in range(rails)]
    functions = [function for pf in pfs for function in (pf, *(vf_of(pf, i) for i in range(vfs)))]
    return Snapshot(
        functions=tuple(sorted(functions, key=lambda function: function.pci_address)),
        gpus=tuple(gpu_of(index) for index in range(gpus)),
        holdings=(),
        **{"paths": WITH_DRIVER, **facts},
    )


def devices_of(snapshot: Snapshot, text: str = CONFIG) -> tuple[DraDevice, ...]:
    return Offer(load(text, name="test.yaml")).dra_devices(snapshot)


def gpus_of(snapshot: Snapshot) -> list[GpuDevice]:
    return [device for device in devices_of(snapshot) if isinstance(device, GpuDevice)]


def pfs_of(snapshot: Snapshot) -> list[PfDevice]:
    return [device for device in devices_of(snapshot) if isinstance(device, PfDevice)]


def offer_of(snapshot: Snapshot, text: str = CONFIG) -> DraOffer:
    offer = DraOffer()
    publish(offer, snapshot, text)
    return offer


def publish(offer: DraOffer, snapshot: Snapshot, text: str = CONFIG) -> None:
    devices = devices_of(snapshot, text)
    pools = {
        name: tuple(device for device in devices if device.pool == name) for name in ("gpu", "mig", "nic")
    }
    offer.update(OfferedPools(pools), snapshot)


_numbers = count(1)


def uid_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def result(device: DraDevice, amount: int, request: str, /, **more: Any) -> dict[str, Any]:
    """An entry of ``status.allocation.devices.results`` as the scheduler writes it."""
    capacity = device.capacity
    return {
        "request": request,
        "driver": DRIVER,
        "pool": f"{NODE}/{device.pool}",
        "device": device.name,
        "shareID": uid_of(next(_numbers) + 10**6),
        "consumedCapacity": {capacity.name: capacity.quantity(amount)},
        **more,
    }


def claim_of(name: str, *results: dict[str, Any], uid: str | None = None, pod: str = "") -> dict[str, Any]:
    """A ResourceClaim that is allocated and reserved for one pod."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": uid or uid_of(next(_numbers))},
        "spec": {"devices": {"requests": []}},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": []}},
            "reservedFor": [{"resource": "pods", "name": pod or f"pod-{name}", "uid": uid_of(7)}],
        },
    }


def decoded(claim: dict[str, Any]) -> ResourceClaim:
    return msgspec.json.decode(msgspec.json.encode(claim), type=ResourceClaim)


def reference(claim: dict[str, Any]) -> ClaimReference:
    meta = claim["metadata"]
    return ClaimReference(meta["namespace"], meta["name"], meta["uid"])


def missing(name: str) -> ApiError:
    return ApiError("get", f"/{name}", 404, "NotFound", "not found")


class ClaimStore:
    """The claims of an API server, without one. ``failure`` is raised by each read, ``failures`` by those of a name."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.failure: ApiError | None = None
        self.failures: dict[str, ApiError] = {}
        self.reads = 0

    def put(self, claim: dict[str, Any]) -> dict[str, Any]:
        self.claims[claim["metadata"]["name"]] = claim
        return claim

    async def read(self, namespace: str, name: str) -> ResourceClaim:
        assert namespace == "default"
        self.reads += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if name in self.failures:
            raise self.failures[name]
        if name not in self.claims:
            raise missing(name)
        return decoded(self.claims[name])


class StepCalls:
    """A disk on the event loop: each call is one step, and a crash may come before and after it.

    ``failure``: raised ``before`` the work, or ``after`` it, as by a disk that is full at the second file.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.after = False

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        await asyncio.sleep(0)
        if self.failure is not None and not self.after:
            raise self.failure
        value = work(*arguments)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return value


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def files_of(folder: Path, boot_id: str = "boot-1") -> ClaimFiles:
    return ClaimFiles(
        folder / "claims",
        folder / "cdi",
        DeviceInfoFiles(folder / "devinfo"),
        boot_id,
        folder / "metadata",
        gives_metadata=False,
    )


def claims_of(
    folder: Path,
    offer: DraOffer,
    store: ClaimStore,
    *,
    calls: StepCalls | None = None,
    clock: Callable[[], float] | None = None,
    boot_id: str = "boot-1",
    mig: ClaimMig | None = None,
) -> PreparedClaims:
    files = files_of(folder, boot_id)
    calls, now = calls or StepCalls(), clock or Clock()
    claims = PreparedClaims(NODE, offer, files, calls, store.read, now=now, mig=mig)
    claims.take(files.read())
    return claims
