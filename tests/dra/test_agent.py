"""The whole agent with mode dra: simulated hardware, a stand-in kubelet and a stand-in API server."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nodeagent.cluster import agent_events, agent_tasks
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.device_attributes import NUMA_NODES
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.host import numa_nodes
from nodeagent.host.sysfs import Tree
from nodeagent.kubelet import holdings
from nodeagent.kubelet.unix_server import UnixServer
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.resource_slices import LIST_ATTRIBUTES, SINCE_1_36
from nodeagent_lab.sim.kubelet import Container, PodSpec
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim, SandboxError
from tests.support.dra_node import claim_of, registering, result
from tests.support.running_agent import HEAD, PROMPT, shorten_holdings
from tests.support.running_agent import node as running_node
from tests.support.waiting import LIMIT_S


def kubeconfig(folder: Path, server: ApiServer) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server.url}}],
        "users": [{"name": "a", "user": {"token": server.token()}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


async def test_the_agent_prepares_a_claim_and_after_a_change_of_the_mode_its_hardware_waits_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_holdings(monkeypatch)
    server = await ApiServer().start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    cluster = f"cluster: {{{access}, report: false, events: false}}\n"
    by_claim = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"
    try:
        async with running_node() as node:
            config = node.configure(HEAD + PROMPT + cluster + by_claim)
            await node.kubelet.start()
            await node.start_agent(config, node_name="n1")
            kubelet, agent = node.kubelet, node.agent
            assert agent is not None
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            async with asyncio.timeout(20):
                while None in agent.offering.dra.current.pools.values():
                    await agent.offering.dra.changed(agent.offering.dra.revision)
            assert not kubelet.capacity(), "no device plugin offers the hardware"
            gpu, *_, pf = agent.offering.dra.current.devices()
            results = (result(gpu, 20480, "g"), result(pf, 1, "r"))
            claim = server.put(claim_of("c", *results, pod="trainer"))
            await kubelet.dra.prepare(
                "trainer", [PodClaim("default", "c", claim["metadata"]["uid"], (DRIVER,))]
            )
            held = [it for it in agent.inventory.snapshot.holdings or () if it.claim]
            assert [(it.pod, len(it.device_ids)) for it in held] == [
                ("trainer", 20),
                ("trainer", 1),
            ]
            await kubelet.admit(
                PodSpec("trainer", (Container("main", {}, claims=("c",)), Container("log", {})))
            )
            await node.until(lambda: agent.inventory.snapshot.claim_shares)
            (share,) = agent.inventory.snapshot.claim_shares
            assert (share.pod, share.container, share.size_bytes) == ("trainer", "main", 20 << 30)
            assert held == [it for it in agent.inventory.snapshot.holdings or () if it.claim]
            node.configure(HEAD + PROMPT + cluster)
            agent.reload()
            await kubelet.until(lambda: bool(kubelet.capacity()), 20)
            withheld = {entry.resource.partition("/")[2]: entry.reason for entry in agent.offering.withheld}
            assert set(withheld) == {"gpu-mem", f"nic{pf.rail}"}, "one slice and one VF are held"
            assert "the claim default/c still holds its devices" in withheld["gpu-mem"]
            await kubelet.dra.unprepare("trainer")
            await kubelet.until(lambda: any(name.endswith("/gpu-mem") for name in kubelet.capacity()), 20)
            await node.until(lambda: not agent.inventory.snapshot.claim_shares)
    finally:
        await server.stop()


BY_CLAIM = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"


async def test_another_driver_of_our_name_is_an_event_until_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_events, "STATE_LOOK_S", 0.05)
    server = await ApiServer().start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    config = f"{HEAD}{PROMPT}cluster: {{{access}, report: false}}\n{BY_CLAIM}"
    rival = UnixServer()

    def events() -> dict[str, str]:
        return {event["reason"]: event["message"] for event in server.objects("events")}

    try:
        async with running_node() as node:
            await node.kubelet.start()
            await node.start_agent(node.configure(config), node_name="n1")
            await node.kubelet.until(lambda: node.kubelet.dra.registered(DRIVER), 20)
            socket = node.folder / "k/plugins_registry/other.sock"
            await rival.start(socket, (registering(DRIVER, "DRAPlugin"),))
            await server.until(lambda: "ResourceTaken" in events())
            assert events()["ResourceTaken"].startswith(f"Another DRA driver registers the name {DRIVER} ")
            await rival.stop()
            await server.until(lambda: "Recovered" in events())
            assert f"DRA driver {DRIVER}" in events()["Recovered"]
    finally:
        await rival.stop()
        await server.stop()


async def test_a_claim_whose_files_cannot_be_written_is_not_ready_in_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its status when the kubelet has asked again and the files are there."""
    shorten_holdings(monkeypatch)
    write, faulty = ClaimFiles.write, {"a"}

    def write_others(files: ClaimFiles, claim: PreparedClaim) -> None:
        if claim.name in faulty:
            raise OSError(errno.EROFS, "Read-only file system", "/var/run/cdi/x.json")
        write(files, claim)

    monkeypatch.setattr(ClaimFiles, "write", write_others)
    server = await ApiServer().start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"

    def conditions(name: str) -> list[str]:
        status = (server.find("resourceclaims", name, "default") or {})["status"]
        return [
            f"{it['type']}={it['status']}" for one in status.get("devices", ()) for it in one["conditions"]
        ]

    try:
        async with running_node() as node:
            cluster = f"cluster: {{{access}, report: false, events: false}}\n"
            await node.kubelet.start()
            await node.start_agent(node.configure(HEAD + PROMPT + cluster + BY_CLAIM), node_name="n1")
            kubelet, agent = node.kubelet, node.agent
            assert agent is not None
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await server.until(lambda: len(server.objects("resourceslices")) == 2)
            gpu = next(iter(agent.offering.dra.current.devices()))
            claims = {}
            for name in ("a", "b"):
                claim = server.put(claim_of(name, result(gpu, 20480, "g"), pod=name))
                claims[name] = PodClaim("default", name, claim["metadata"]["uid"], (DRIVER,))
            await repeated(lambda: kubelet.dra.prepare("a", [claims["a"]]), "Read-only file system")
            await kubelet.dra.prepare("b", [claims["b"]])
            await server.until(lambda: "Ready=True" in conditions("b"))
            assert conditions("a") == []
            faulty.clear()
            await kubelet.dra.prepare("a", [claims["a"]])
            await server.until(lambda: "Ready=True" in conditions("a"), 20)
    finally:
        await server.stop()


@pytest.mark.parametrize("hangs", [False, True])
async def test_the_table_of_numa_nodes_is_read_in_a_thread_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    shorten_holdings(monkeypatch)
    monkeypatch.setattr(agent_tasks, "NUMA_S", 0.1 if hangs else 20.0)
    released = threading.Event()

    def near_nodes(_tree: Tree) -> dict[int, tuple[int, ...]]:
        if hangs:
            released.wait(LIMIT_S)
        return {0: (0, 7), 1: (1, 7)}

    monkeypatch.setattr(numa_nodes, "near_nodes", near_nodes)
    server = await ApiServer(gates=(*SINCE_1_36, LIST_ATTRIBUTES)).start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    cluster = f"cluster: {{{access}, report: false, events: false, numaNodeList: true}}\n"
    try:
        async with running_node() as node:
            await node.kubelet.start()
            await node.start_agent(node.configure(HEAD + PROMPT + cluster + BY_CLAIM), node_name="n1")
            await server.until(lambda: len(server.objects("resourceslices")) == 2)
            found = [
                device["attributes"][NUMA_NODES[0]]
                for one in server.objects("resourceslices")
                for device in one["spec"]["devices"]
            ]
            assert found
            assert all(("int" if hangs else "ints") in it for it in found)
    finally:
        released.set()
        await server.stop()
    assert caplog.text.count("cluster.numaNodeList") == hangs


async def repeated(call: Callable[[], Awaitable[object]], expected: str = "") -> None:
    """Repeat a call of the kubelet until it succeeds or is refused for the expected reason. Until the kubelet has the
    registration of a new agent, it asks the former one."""
    async with asyncio.timeout(20):
        while True:
            try:
                await call()
            except SandboxError as error:
                if expected and expected in str(error):
                    return
            else:
                assert not expected, "the call succeeded"
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_after_a_restart_with_another_mode_a_claim_keeps_its_driver_and_no_slice_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet deletes the slices of a driver that is away. The claim needs the driver, so the agent does it."""
    shorten_holdings(monkeypatch)
    server = await ApiServer().start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    cluster = f"cluster: {{{access}, report: false, events: false}}\n"
    by_claim = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"
    try:
        async with running_node() as node:
            await node.kubelet.start()
            await node.start_agent(node.configure(HEAD + PROMPT + cluster + by_claim), node_name="n1")
            kubelet, agent = node.kubelet, node.agent
            assert agent is not None
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await server.until(
                lambda: (
                    [len(it["spec"]["devices"]) > 0 for it in server.objects("resourceslices")]
                    == [True, True]
                )
            )
            pf = tuple(agent.offering.dra.current.devices())[-1]
            claim = server.put(claim_of("c", result(pf, 1, "r"), pod="trainer"))
            pod_claim = PodClaim("default", "c", claim["metadata"]["uid"], (DRIVER,))
            await kubelet.dra.prepare("trainer", [pod_claim])
            await node.stop_agent()
            await node.start_agent(node.configure(HEAD + PROMPT + cluster), node_name="n1")
            await kubelet.until(lambda: any(name.endswith("/gpu-mem") for name in kubelet.capacity()), 20)
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await server.until(lambda: not server.objects("resourceslices"))
            # Without an API server too, the hardware of the claim is withheld, and its pod can end.
            await node.stop_agent()
            without = HEAD + PROMPT + "cluster: {access: none}\n"
            await node.start_agent(node.configure(without), node_name="n1")
            agent = node.agent
            assert agent is not None
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await node.until(lambda: any(f"/nic{pf.rail}" in it.resource for it in agent.offering.withheld))
            other = PodClaim("default", "d", "u-d", (DRIVER,))
            await repeated(lambda: kubelet.dra.prepare("other", [other]), "it has none: set cluster.access")
            await repeated(lambda: kubelet.dra.unprepare("trainer"))
            await kubelet.until(
                lambda: any(name.endswith(f"/nic{pf.rail}") for name in kubelet.capacity()), 20
            )
            assert "dra-claims" not in caplog.text, "there is no API server to compare the records with"
    finally:
        await server.stop()


@pytest.mark.slow
async def test_an_update_of_the_agent_keeps_slices_and_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two agents the kubelet gets no answer for a claim. It asks again, and nothing was lost."""
    monkeypatch.setitem(holdings.watch.__kwdefaults__, "own_stands_s", 0.1)
    own = PodSpec("nodeagent-x7k2p", (Container("agent", {}),), namespace="nodeagent")
    server = await ApiServer().start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    cluster = f"cluster: {{{access}, report: false, events: false}}\n"
    by_claim = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"

    def versions() -> list[str]:
        return [it["metadata"]["resourceVersion"] for it in server.objects("resourceslices")]

    try:
        async with running_node() as node:
            config = node.configure(HEAD + PROMPT + cluster + by_claim)
            await node.kubelet.start()
            await node.kubelet.admit(own)
            await node.start_agent(config, node_name="n1", own_pod=(own.namespace, own.name))
            kubelet, agent = node.kubelet, node.agent
            assert agent is not None
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await server.until(lambda: len(versions()) == 2)
            before = versions()
            gpu, *_, pf = agent.offering.dra.current.devices()
            claims = {}
            for name in ("running", "starting"):
                claim = server.put(claim_of(name, result(gpu, 20480, "g"), result(pf, 1, "r"), pod=name))
                claims[name] = PodClaim("default", name, claim["metadata"]["uid"], (DRIVER,))
            await kubelet.dra.prepare("running", [claims["running"]])
            given = kubelet.dra.states["default/running"].devices
            await node.stop_agent()
            await kubelet.until(lambda: not kubelet.dra.registered(DRIVER), 20)
            with pytest.raises(SandboxError, match="is not registered"):
                await kubelet.dra.prepare("starting", [claims["starting"]])
            with pytest.raises(SandboxError, match="is not registered"):
                await kubelet.dra.unprepare("running")
            await node.start_agent(config, node_name="n1", own_pod=(own.namespace, own.name))
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER), 20)
            await kubelet.dra.prepare("starting", [claims["starting"]])
            vfs = [
                node.agent.claims.driver.claims.records[claim.uid].devices[1].vfs
                for claim in claims.values()
                if node.agent is not None and node.agent.claims.driver is not None
            ]
            assert len(set(vfs)) == 2, "the record of the first claim holds its VF"
            assert kubelet.dra.states["default/running"].devices == given
            await kubelet.dra.unprepare("running")
            await kubelet.dra.unprepare("starting")
            assert versions() == before, "no slice was deleted or written"
    finally:
        await server.stop()
