"""The demo of a fabric: it runs to its end, says what the API server has seen, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nodeagent.commands.demo.control_plane import CONTROLLER, Cluster
from nodeagent.commands.demo.fabric_show import FabricShow
from nodeagent.commands.demo.fold import fold
from nodeagent.commands.demo.request_log import Ledger
from nodeagent.commands.demo.run import DemoError
from nodeagent.kube.access import kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, LEASES
from nodeagent.sim.apiserver import ApiServer
from nodeagent.sim.machine import Machine
from nodeagent.sim.simulated_fabric import Fabric
from tests.support.needs import which

DEMO = [sys.executable, "-u", "-m", "nodeagent", "demo"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False, timeout=180)


def fabric(nodes: int = 8) -> Fabric:
    return Fabric(nodes, Machine.load("dgx-h100"))


# --- the show -----------------------------------------------------------------------------------------


def test_the_show_of_a_fabric_runs_to_its_end_and_shows_every_act():
    done = demo("--nodes", "8", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    acts = re.split(r"^(?=\d+\. )", done.stdout, flags=re.M)
    about, formed, miscabled, rebooted, replaced, reracked, followed, added = acts
    assert "Simulated:" in about
    assert "Real:" in about
    assert controller(formed) == ["3 create hypernodes", "8 patch nodes"]
    assert "gpu-001 … gpu-004  (4 nodes)" in formed
    assert "gpu-004  (nic3 foreign-leaf at hall1-su2-leaf3)" in miscabled
    assert "foreign-leaf: nic3 of gpu-004 goes to hall1-su2-leaf3" in miscabled
    assert miscabled.count("0 writes") == 2
    for quiet in (miscabled, rebooted, replaced, followed):
        assert controller(quiet) == ["nothing"]
        assert "0 writes: all 3 HyperNodes" in quiet
    assert agents(rebooted) == agents(replaced) == ["8 patch nodelinks"]
    assert re.search(r"chassis ID (\S+) before, (?!\1)\S+ now", replaced)
    shrink, grow = re.findall(r"nodeagent-t1-\S+: (\d) members before, (\d) now", reracked)
    assert (shrink, grow) == (("4", "3"), ("4", "5"))
    assert "nodeagent-controller-1 holds the Lease after nodeagent-controller-0" in followed
    assert "gpu-005 … gpu-009  (5 nodes)" in added


def agents(act: str) -> list[str]:
    return re.findall(r"^ +agents +(.+)$", act, re.M)


def controller(act: str) -> list[str]:
    return re.findall(r"^ +controller +(.+)$", act, re.M)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_show_that_is_ended_in_the_middle_leaves_no_process_and_no_folder(number: signal.Signals):
    with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as folder:
        environment = {**os.environ, "TMPDIR": folder}
        command = [*DEMO, "--nodes", "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert any(line.startswith("2. ") for line in process.stdout)
            assert len(running(folder)) == 2, "the two replicas"
            process.send_signal(number)
            process.communicate(timeout=30)
        assert process.returncode == 130
        assert not running(folder)
        assert os.listdir(folder) == []


def running(word: str) -> list[str]:
    """The command lines that hold the word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text())
    return [line for line in found if word in line]


def test_too_few_nodes_make_no_fabric():
    done = demo("--nodes", "3", "--once")
    assert done.returncode == 1
    assert done.stderr == "nodeagent: 3 nodes are no fabric to show: give --nodes 4 to 2048\n"


def test_a_machine_is_written_or_a_fabric_shown(tmp_path: Path):
    done = demo("--nodes", "8", "--write", str(tmp_path / "root"))
    assert done.returncode == 2
    assert "give one of the two" in done.stderr


# --- its claims ---------------------------------------------------------------------------------------


def hypernode(name: str, *nodes: str) -> dict[str, Any]:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in nodes]
    return {"metadata": {"name": name}, "spec": {"tier": 1, "members": members}}


@pytest.fixture
async def cluster(tmp_path: Path):
    async with Cluster(tmp_path, fabric(4), {}) as cluster:
        yield cluster


@pytest.fixture
async def writer(cluster: Cluster):
    """Who writes with the controller's token."""
    client = ApiClient(kubeconfig(cluster.kubeconfig.parent / "controller.kubeconfig"))
    yield client
    await client.close()


def show(tmp_path: Path, cluster: Cluster) -> FabricShow:
    made = FabricShow("dgx-h100", tmp_path, 4)
    made._cluster = cluster
    return made


async def test_nothing_is_claimed_that_the_log_does_not_bear_out(
    tmp_path: Path, cluster: Cluster, writer: ApiClient, capsys
):
    shown = show(tmp_path, cluster)
    shown._act("Nothing happens")
    shown._unchanged()
    assert "0 writes: all 0 HyperNodes" in capsys.readouterr().out
    await writer.create(HYPERNODES, hypernode("a", "gpu-001"))
    with pytest.raises(DemoError, match=r"it is not so that nothing was written.*1 create hypernodes"):
        shown._unchanged()


async def test_a_hypernode_that_somebody_else_has_changed_is_not_called_unchanged(
    tmp_path: Path, cluster: Cluster
):
    shown = show(tmp_path, cluster)
    cluster.server.put(
        {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", **hypernode("a", "gpu-001")}
    )
    with pytest.raises(DemoError, match="as they were"):
        shown._unchanged()


async def test_the_log_counts_what_one_user_wrote_since_the_mark_without_leases_and_reads(
    cluster: Cluster, writer: ApiClient
):
    lease = {"metadata": {"name": "nodeagent-controller"}, "spec": {}}
    await writer.create(HYPERNODES, hypernode("a", "gpu-001"))
    cluster.ledger.mark()
    await writer.create(LEASES, lease, namespace="nodeagent")
    await writer.list(HYPERNODES)
    await writer.patch(HYPERNODES, "a", {"metadata": {"labels": {"x": "y"}}})
    assert cluster.by_controller().lines() == ["1 patch hypernodes: a"]
    assert cluster.by_agents().lines() == ["nothing"]


async def test_a_node_in_two_hypernodes_is_refused_and_the_log_says_so(cluster: Cluster, writer: ApiClient):
    await writer.create(HYPERNODES, hypernode("a", "gpu-001", "gpu-002"))
    with pytest.raises(ApiError, match="gpu-002 would stand in a too"):
        await writer.create(HYPERNODES, hypernode("b", "gpu-002", "gpu-003"))
    assert cluster.by_controller().lines()[-1].startswith("refused with 403: create hypernodes")


async def test_an_empty_log_is_nothing():
    assert Ledger(ApiServer()).written(CONTROLLER).lines() == ["nothing"]


@pytest.mark.needs("openssl")
@pytest.mark.needs("kubectl")
async def test_kubectl_reads_the_cluster_with_the_file_that_the_show_names(cluster: Cluster):
    cluster.join("gpu-001")
    await cluster.until(lambda: cluster.server.counts["patch", "nodelinks"], "the report")
    kubectl = which("kubectl")
    assert kubectl is not None
    process = await asyncio.create_subprocess_exec(
        kubectl, "--kubeconfig", str(cluster.kubeconfig), "get", "nodelinks", "-o", "name",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert told.decode() == "nodelinks.nodeagent.io/gpu-001\n"


# --- the picture --------------------------------------------------------------------------------------


def test_nodes_in_a_row_are_one_line_and_whoever_is_odd_keeps_its_own():
    drawn = """\
fabric compute
├─ a (leaf): s0, s1, s2, s3
│  ├─ n-008
│  ├─ n-009
│  ├─ n-010
│  ├─ n-012
│  └─ n-013  (nic0 silent)
└─ b (leaf): s4, s5
   ├─ n-014
   ├─ n-015
   └─ n-016"""
    assert fold(drawn) == [
        "fabric compute",
        "├─ a (leaf): s0 … s3 (4 switches)",
        "│  ├─ n-008 … n-010  (3 nodes)",
        "│  ├─ n-012",
        "│  └─ n-013  (nic0 silent)",
        "└─ b (leaf): s4, s5",
        "   └─ n-014 … n-016  (3 nodes)",
    ]
