"""The folders of the files of claims take no file.

What must hold: as long as the last attempt to write failed, every device of the claims has a taint that keeps new
claims away, `/readyz` and a metric name the path, the errno and the remedy, and both end when the file can be written.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.dra import DRIVER, claim_writes
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim, SandboxError
from tests.attacks.test_unwritable_folders import fill, own_mounts
from tests.dra.test_agent import BY_CLAIM, kubeconfig
from tests.support.dra_node import claim_of, result
from tests.support.own_mounts import remount, run_in_own_mounts, tmpfs
from tests.support.running_agent import HEAD, PROMPT, Node
from tests.support.running_agent import node as running_node
from tests.support.waiting import until

CDI, RECORDS, METADATA = (
    "r/var/run/cdi",
    "r/var/lib/nodeagent/claims",
    f"k/plugins/{DRIVER}/dra-device-metadata",
)


@asynccontextmanager
async def by_claim() -> AsyncIterator[tuple[Node, ApiServer]]:
    """A node of mode dra whose slices are published."""
    claim_writes.WRITES_CHECK_S = 0.2  # of this process alone
    server = await ApiServer().start()
    with tempfile.TemporaryDirectory() as folder:
        access = f"access: kubeconfig, kubeconfig: {kubeconfig(Path(folder), server)}"
        cluster = f"cluster: {{{access}, report: false, events: false}}\n"
        async with running_node() as n:
            await n.kubelet.start()
            await n.start_agent(n.configure(HEAD + PROMPT + cluster + BY_CLAIM), node_name="n1")
            await n.kubelet.until(lambda: n.kubelet.dra.registered(DRIVER), 20)
            await until(lambda: len(server.objects("resourceslices")) == 2)
            await ready(n, server)
            yield n, server
    await server.stop()


def taints(server: ApiServer) -> set[str]:
    """The value of the first taint of each published device, "" for one without."""
    devices = [it for one in server.objects("resourceslices") for it in one["spec"]["devices"]]
    return {(it.get("taints") or [{"value": ""}])[0]["value"] for it in devices}


async def ready(n: Node, server: ApiServer) -> None:
    await until(lambda: taints(server) == {""})
    async with asyncio.timeout(20):
        while (await n.get("/readyz"))[0] != 200:
            await asyncio.sleep(0.05)


async def kept_away(n: Node, server: ApiServer, folder: Path, errno: str, remedy: str) -> None:
    await until(lambda: taints(server) == {"file_unwritable"})
    status, body = await n.get("/readyz")
    assert status == 503
    lines = [line for line in body.splitlines() if " (dra): " in line]
    assert len(lines) == 2
    for line in lines:
        assert str(folder) in line
        assert errno in line
        assert remedy in line
    _, metrics = await n.get("/metrics")
    assert f'error="{errno}"' in metrics


def allocated(n: Node, server: ApiServer, name: str) -> PodClaim:
    gpu = next(iter(n.agent.offering.dra.current.devices()))
    claim = server.put(claim_of(name, result(gpu, 1024, "g"), pod=name))
    return PodClaim("default", name, claim["metadata"]["uid"], (DRIVER,))


async def a_full_folder(name: str) -> None:
    claim_writes.WRITES_CHECK_S = 600.0  # the failed Prepare is what tells
    async with by_claim() as (n, server):
        claim_writes.WRITES_CHECK_S = 600.0
        folder = n.folder / name
        with tmpfs(folder, "size=64k"):
            filler = fill(folder)
            claim = allocated(n, server, "c")
            with pytest.raises(SandboxError, match="No space left on device"):
                await n.kubelet.dra.prepare("c", [claim])
            await kept_away(n, server, folder, "ENOSPC", "free space")
            await n.kubelet.dra.unprepare("c")
            await kept_away(n, server, folder, "ENOSPC", "free space")
            filler.unlink()
            await ready(n, server)
            await n.kubelet.dra.prepare("d", [allocated(n, server, "d")])


async def full_cdi() -> None:
    await a_full_folder(CDI)


async def full_records() -> None:
    await a_full_folder(RECORDS)


async def full_metadata() -> None:
    await a_full_folder(METADATA)


async def a_folder_that_becomes_read_only_without_a_claim() -> None:
    async with by_claim() as (n, server):
        folder = n.folder / RECORDS
        with tmpfs(folder):
            remount(folder, "ro")
            await kept_away(n, server, folder, "EROFS", "read-write")
            remount(folder, "rw")
            await ready(n, server)


@own_mounts
@pytest.mark.parametrize(
    "scenario", [full_cdi, full_records, full_metadata], ids=["CDI", "records", "metadata"]
)
def test_a_full_folder_keeps_new_claims_away_until_it_has_room(scenario) -> None:
    run_in_own_mounts(scenario)


@own_mounts
def test_a_folder_that_becomes_read_only_is_noticed_before_a_claim_fails() -> None:
    run_in_own_mounts(a_folder_that_becomes_read_only_without_a_claim)
