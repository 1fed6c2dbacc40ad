"""The fleet of overlays/kind: its command lines with a stand-in kubelet and a stand-in API server."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest
import yaml
from msgspec.structs import replace

from nodeagent import cli
from nodeagent.agent_config import Config, load
from nodeagent.cluster.node_report import body, report
from nodeagent.controller_config import load_fabric
from nodeagent.discovery import Discovery
from nodeagent.facts.inventory import Inventory
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import Kubelet
from tests.controller.test_controller import QUICK, groups, labels, running, tree, valid
from tests.support.manifests import DAEMONSET, ROOT, Manifest, built, named, pod_specs
from tests.support.running_agent import IN_MEMORY
from tests.support.waiting import LIMIT_S, until

pytestmark = pytest.mark.needs("kubectl")

OVERLAY = DAEMONSET / "overlays/kind"
NODES = ("kind-control-plane", "kind-worker", "kind-worker2", "kind-worker3")
RAILS = range(8)
FAULTS = "/etc/simulate/faults"


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, and short enough for the path of a socket."""
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as made:
        yield Path(made)


def pod() -> Manifest:
    (spec,) = pod_specs(named(built("overlays/kind"), "DaemonSet", "nodeagent"))
    return spec


def container(name: str) -> Manifest:
    (found,) = (one for one in (*pod()["initContainers"], *pod()["containers"]) if one["name"] == name)
    return found


def arguments(name: str, folder: Path, node: str) -> list[str]:
    """The arguments of a container, with the paths of this test."""
    places = {
        "/machine": str(folder / "machine"),
        "$(NODE_NAME)": node,
        FAULTS: str(folder / "simulate/faults"),
        "/etc/nodeagent/nodeagent.yaml": str(folder / "nodeagent.yaml"),
    }
    assert "NODE_NAME" in {one["name"] for one in container(name)["env"]}
    return [places.get(word, word) for word in container(name)["args"]]


def configured(folder: Path) -> Config:
    """The configuration of the overlay, with the path of this machine and without the hold of a link."""
    settings = yaml.safe_load(
        (OVERLAY / "nodeagent.yaml").read_text().replace("/machine", f"{folder}/machine")
    )
    settings["health"] = {"rules": [{"rule": "carrier_down", "clearForSeconds": 0}]}
    text = yaml.safe_dump(settings)
    (folder / "nodeagent.yaml").write_text(text)
    return load(text, name="kind")


def annotate(folder: Path, text: str) -> None:
    """As the kubelet writes the volume: the new files appear in a folder, and the link to it is replaced by a rename
    (pkg/volume/util/atomic_writer.go)."""
    place = folder / "simulate"
    place.mkdir(exist_ok=True)
    data = Path(mkdtemp(dir=place))
    (data / "faults").write_text(text)
    (place / "..data_tmp").symlink_to(data.name)
    (place / "..data_tmp").rename(place / "..data")
    if not (place / "faults").is_symlink():
        (place / "faults").symlink_to("..data/faults")


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nodeagent", *words,
        stdout=PIPE, stderr=DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield started
    finally:
        started.terminate()
        await asyncio.wait_for(started.communicate(), LIMIT_S)


async def line_of(process: Process, start: str) -> str:
    """The next line of the process that begins so."""
    assert process.stdout is not None
    async with asyncio.timeout(120):
        while not (line := (await process.stdout.readline()).decode()).startswith(start):
            assert line, f"the process ended before it printed {start!r}"
    return line.strip()


def test_the_annotation_of_the_pod_reaches_the_container_that_applies_faults() -> None:
    spec = pod()
    (mount,) = (one for one in container("faults")["volumeMounts"] if FAULTS.startswith(one["mountPath"]))
    (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
    (item,) = volume["downwardAPI"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == FAULTS
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['simulate.nodeagent.io/faults']"
    assert "subPath" not in mount, "a file mounted by subPath never changes"
    machine, faults = container("machine")["args"], container("faults")["args"]
    assert faults == [*machine, "--faults", FAULTS], "both make the same machine"
    assert spec["containers"][0]["name"] == "nodeagent"
    readme = (OVERLAY / "README.md").read_text()
    assert "simulate.nodeagent.io/faults='nic3=down, gpu2=xid79'" in readme
    labels = named(built("overlays/kind"), "DaemonSet", "nodeagent")["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "agent", "the label that README selects"


@pytest.mark.slow
async def test_an_annotation_withdraws_devices_and_its_end_returns_them(folder: Path) -> None:
    kubelet = Kubelet(folder / "k", seed=1)
    configured(folder)
    annotate(folder, "")
    assert await asyncio.to_thread(cli.main, arguments("machine", folder, "kind-worker2")) == 0
    await kubelet.start()

    async def offers(nic3: int, memory: int) -> None:
        wanted = {f"nvidia-dgx-h100/nic{rail}": 8 for rail in RAILS}
        wanted |= {"nvidia-dgx-h100/nic3": nic3, "nvidia-dgx-h100/gpu-mem": memory}
        await kubelet.until(lambda: kubelet.allocatable() == wanted, 60.0)

    agent_words = arguments("nodeagent", folder, "kind-worker2")
    try:
        async with (
            process(*arguments("faults", folder, "kind-worker2")) as simulator,
            process(
                *agent_words, "--kubelet-dir", str(kubelet.directory), "--listen", "127.0.0.1:0"
            ) as agent,
        ):
            assert await line_of(simulator, "Faults") == "Faults of this machine: none"
            await offers(8, 632)
            annotate(folder, "nic3=down, gpu2=xid79, gpu8=xid79")
            refusal = await line_of(simulator, "Fault not applied")
            assert "'gpu8=xid79' is not a fault of this machine: nic0 to nic7 can be" in refusal
            assert await line_of(simulator, "Faults") == "Faults of this machine: gpu2=xid79, nic3=down"
            await offers(0, 632 - 79)
            annotate(folder, "nic3=down")
            await offers(0, 632)
            annotate(folder, "")
            await offers(8, 632)
            assert (simulator.returncode, agent.returncode) == (None, None)
        assert simulator.returncode == 0, "SIGTERM ends it"
    finally:
        await kubelet.stop()


async def node_report(folder: Path, node: str) -> Manifest:
    """The report of the overlay's agent on the machine of this node."""
    folder.mkdir()
    await asyncio.to_thread(cli.main, arguments("machine", folder, node))
    inventory = Inventory()
    discovery = Discovery(inventory, partial(configured, folder), folder / "machine", node_name=node)
    task = asyncio.create_task(discovery.run())
    try:
        async with asyncio.timeout(120):
            while len(inventory.snapshot.neighbors) < len(RAILS):
                await inventory.changed(inventory.snapshot.revision)
    finally:
        task.cancel()
        await asyncio.wait((task,))
    pfs = [one.pci_address for one in inventory.snapshot.functions if one.parent is None and one.num_vfs]
    rails = {address: rail for rail, address in enumerate(pfs)}
    made = report(inventory.snapshot, node, rails, None, now=1_767_225_600.0, namespace="nodeagent")
    return {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", **body(made, None)}


@pytest.mark.slow
async def test_the_controller_of_the_overlay_builds_the_tree_of_four_machines(folder: Path) -> None:
    (data,) = (one["data"] for one in built("overlays/kind") if "fabric.yaml" in (one.get("data") or {}))
    rules = replace(load_fabric(data["fabric.yaml"], name="kind"), hysteresis=QUICK)
    server = await ApiServer().start()
    try:
        for node in NODES:
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {}}})
            server.put(await node_report(folder / node, node))
        async with running(server, rules):
            await until(lambda: groups(server) == [list(NODES[:2]), list(NODES[2:])], "a group for each unit")
            valid(server)
            await until(lambda: len(tree(server)) == 3, "one HyperNode above the units")
            (above,) = (members for members in tree(server).values() if members[0] == "2")
            assert len(above) == 3
            key = "topology.nodeagent.io/tier-1"
            await until(lambda: all(key in labels(server, node) for node in NODES), "labels")
            assert (
                labels(server, NODES[0])[key]
                == labels(server, NODES[1])[key]
                != labels(server, NODES[2])[key]
            )
    finally:
        await server.stop()
