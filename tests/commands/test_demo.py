"""The demo of a fabric: it runs to its end, prints the writes from the API server's log, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
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

from nodeagent.cli import main
from nodeagent.commands.plan.topology_picture import fold
from nodeagent.kube.access import kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, LEASES
from nodeagent_lab.demo.control_plane import CONTROLLER, DemoCluster, RequestLog
from nodeagent_lab.demo.demo_steps import DemoError
from nodeagent_lab.demo.fabric_show import FabricShow
from nodeagent_lab.demo.shows import memory_folder
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_fabric import Fabric
from tests.support import golden
from tests.support.default_signals import DEFAULT_SIGNALS
from tests.support.needs import which
from tests.support.waiting import LIMIT_S

DEMO = [sys.executable, "-u", "-m", "nodeagent", "demo"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False, timeout=180)


def fabric(nodes: int = 8) -> Fabric:
    return Fabric(nodes, Machine.load("dgx-h100"))


# --- the show -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_fabric_demo_runs_to_its_end_and_prints_every_step():
    done = demo("--nodes", "8")  # ends by itself, because its output is no terminal
    assert (done.returncode, done.stderr) == (0, "")
    steps = re.split(r"^(?=\d+\. )", done.stdout, flags=re.M)
    about, formed, miscabled, rebooted, survived, replaced, reracked, followed, added = steps
    assert "Simulated:" in about
    assert "Real:" in about
    assert controller(formed) == ["3 create hypernodes", "8 patch nodes"]
    assert "gpu-001 … gpu-004  (4 nodes)" in formed
    assert "gpu-004  (nic3 foreign-leaf at hall1-su2-leaf3)" in miscabled
    assert "foreign-leaf: nic3 of gpu-004 is cabled to hall1-su2-leaf3" in miscabled
    assert miscabled.count("0 writes") == 2
    for quiet in (miscabled, rebooted, survived, replaced, followed):
        assert controller(quiet) == ["nothing"]
        assert "0 writes: all 3 HyperNodes" in quiet
    assert agents(rebooted) == agents(replaced) == ["8 patch nodelinks"]
    assert "taint of gpu-003: nodeagent.io/device-failed:NoSchedule" in survived
    assert "train-2 is made again on gpu-004" in survived
    assert re.search(r"chassis ID (\S+) before, (?!\1)\S+ now", replaced)
    shrink, grow = re.findall(r"nodeagent-t1-\S+: (\d) members before, (\d) now", reracked)
    assert (shrink, grow) == (("4", "3"), ("4", "5"))
    assert "nodeagent-controller-1 holds the Lease instead of nodeagent-controller-0" in followed
    assert "gpu-005 … gpu-009  (5 nodes)" in added


def agents(step: str) -> list[str]:
    return re.findall(r"^ +agents +(.+)$", step, re.M)


def controller(step: str) -> list[str]:
    return re.findall(r"^ +controller +(.+)$", step, re.M)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--node gpu-1", "give --write without --nodes"),
        ("--faults FILE", "give --write without --nodes"),
        ("--no-rdma --nodes 8", "give --write without --nodes"),
        ("--node gpu-1 --nodes 8 --write DIR", "give --write without --nodes"),
        ("--unit-nodes 4 --write DIR", "give --node NAME too"),
        ("--dra --write DIR", "leave --dra, --ui and --once out"),
        ("--ui --nodes 8 --write DIR", "leave --dra, --ui and --once out"),
        ("--once --write DIR", "leave --dra, --ui and --once out"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *options.replace("DIR", str(tmp_path / "new")).split()]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_demo_of_an_infiniband_machine_shows_the_switch_of_each_rail():
    done = demo("--machine", "dgx-h100-infiniband", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^ +nic\d +(ibp\w+) +(\S+) +(leaf\d+) +1 .* live$", done.stdout, flags=re.M)
    assert len(rows) == 8
    assert [leaf for _, _, leaf in sorted(rows, key=lambda row: row[1])] == [f"leaf{n:02d}" for n in range(8)]


@pytest.mark.slow
def test_the_demo_of_claims_prepares_a_share_and_a_vf_beside_it_shows_a_fault_and_ends_a_claim():
    done = demo("--dra", "--once", "--machine", "two-gpu-two-nic")
    assert (done.returncode, done.stderr) == (0, "")
    steps = re.split(r"^(?=\d+\. )", done.stdout, flags=re.M)
    about, _slices, claims, prepared, fault, ended, restarted = steps
    assert "prepares claims" in about
    pairs = (
        r"claim (\S+):\n +gpu: gpu-(\S+), memory 40Gi, below (\S+)\n +near: nic-(\S+), vfs 1, below (\S+)\n"
    )
    pods = r"pod (\S+):\n.*?\bNODEAGENT_GPU_UUID=GPU-(\S+)\n.*?\bNODEAGENT_VFS_NEAR=(\S+)\n"
    for allocated, text in ((claims, prepared), (ended, ended)):
        wanted = {
            (name, gpu, pf.rpartition("-")[0].replace("-", ":", 2))
            for name, gpu, root, pf, other in re.findall(pairs, allocated)
            if root == other
        }
        given = {(name, gpu, vf.rpartition(".")[0]) for name, gpu, vf in re.findall(pods, text, re.S)}
        assert wanted
        assert given == wanted, "each pod has the GPU of its claim and a VF of its PF"
    ids = re.findall(r"CDI id nodeagent\.io/claim=(\S+)-\d\n", prepared + ended)
    assert len(set(ids)) == 3, "each claim has a name of its own"
    lost, found = fault.split("back: ")
    assert "has the taint nodeagent.io/unhealthy=gpu_lost:NoSchedule" in lost
    assert "claim:trainer-b/gpu: Unhealthy (gpu_lost: " in lost
    assert "claim:trainer-b/near: Healthy" in lost
    assert "claim trainer-c waits: 0/1 nodes are available" in lost, "the other GPU has not enough left"
    assert "claim:trainer-b/gpu: Healthy" in found
    assert "the CDI spec of trainer-b is removed" in ended
    assert "both are back" in restarted


@pytest.mark.slow
def test_the_demo_of_claims_joins_gpu_and_nic_by_numa_node_where_no_pcie_root_is_common():
    done = demo("--dra", "--once", "--machine", "gb200-nvl72-tray")
    assert (done.returncode, done.stderr) == (0, "")
    assert "matchAttribute: resource.kubernetes.io/numaNode" in done.stdout
    assert re.search(r"near: nic-\S+, vfs 1, on NUMA node 0\n", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_in_the_middle_leaves_no_process_and_no_folder(number: signal.Signals):
    with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as folder:
        environment = {**os.environ, "TMPDIR": folder}
        command = [*DEFAULT_SIGNALS, *DEMO, "--nodes", "4"]
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


def test_too_few_nodes_are_an_error():
    done = demo("--nodes", "3", "--once")
    assert done.returncode == 2
    assert done.stderr == "nodeagent: 3 nodes are too few or too many for the demo: give --nodes 4 to 2048\n"


@pytest.mark.golden("docs/samples/nodelinks.yaml")
def test_the_reports_of_a_fabric_are_written_for_plan(tmp_path: Path, capsys):
    assert main(["demo", "--nodes", "8", "--write", str(tmp_path / "new")]) == 0
    file = tmp_path / "new/nodelinks.yaml"
    assert f"Next: nodeagent plan --from {file}" in capsys.readouterr().out
    sample = Path(__file__).parents[2] / "docs/samples/nodelinks.yaml"
    golden.same(sample, file.read_text())
    assert main(["plan", "--json", "--from", str(file)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sum(hypernode["spec"]["tier"] == 1 for hypernode in plan["hypernodes"]) == 2
    assert [anomaly["kind"] for anomaly in plan["anomalies"]] == ["foreign-leaf"]


def test_without_a_cluster_plan_names_both_ways(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for verb in (["plan"], ["topology"], ["explain", "gpu-1"]):
        assert main(verb) == 2
        error = capsys.readouterr().err
        assert (
            f"{tmp_path}/nowhere: No such file or directory: name a cluster with --kubeconfig FILE" in error
        )
        assert "--from FILE" in error
        assert len(error.splitlines()) == 1


# --- its statements ---------------------------------------------------------------------------------------


def hypernode(name: str, *nodes: str) -> dict[str, Any]:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in nodes]
    return {"metadata": {"name": name}, "spec": {"tier": 1, "members": members}}


@pytest.fixture
async def cluster(tmp_path: Path):
    async with DemoCluster(tmp_path, fabric(4), {}) as cluster:
        yield cluster


@pytest.fixture
async def writer(cluster: DemoCluster):
    """A client with the controller's token."""
    client = ApiClient(kubeconfig(cluster.kubeconfig.parent / "controller.kubeconfig"))
    yield client
    await client.close()


def show(tmp_path: Path, cluster: DemoCluster) -> FabricShow:
    demo_of_fabric = FabricShow("dgx-h100", tmp_path, 4)
    demo_of_fabric._cluster = cluster
    return demo_of_fabric


async def test_a_statement_that_the_log_contradicts_ends_the_demo(
    tmp_path: Path, cluster: DemoCluster, writer: ApiClient, capsys
):
    shown = show(tmp_path, cluster)
    shown._act("Nothing happens")
    shown._unchanged()
    assert "0 writes: all 0 HyperNodes" in capsys.readouterr().out
    await writer.create(HYPERNODES, hypernode("a", "gpu-001"))
    with pytest.raises(
        DemoError, match=r"this is not true: nothing was written; written: .*1 create hypernodes"
    ):
        shown._unchanged()


async def test_a_hypernode_that_another_client_has_changed_is_not_unchanged(
    tmp_path: Path, cluster: DemoCluster
):
    shown = show(tmp_path, cluster)
    cluster.server.put(
        {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", **hypernode("a", "gpu-001")}
    )
    with pytest.raises(DemoError, match="the HyperNodes are unchanged"):
        shown._unchanged()


async def test_the_log_counts_the_writes_of_one_user_since_the_mark_without_leases(
    cluster: DemoCluster, writer: ApiClient
):
    lease = {"metadata": {"name": "nodeagent-controller"}, "spec": {}}
    await writer.create(HYPERNODES, hypernode("a", "gpu-001"))
    cluster.request_log.mark()
    await writer.create(LEASES, lease, namespace="nodeagent")
    await writer.list(HYPERNODES)
    await writer.patch(HYPERNODES, "a", {"metadata": {"labels": {"x": "y"}}})
    assert cluster.by_controller().lines() == ["1 patch hypernodes: a"]
    assert cluster.by_agents().lines() == ["nothing"]


async def test_a_node_in_two_hypernodes_is_refused_and_logged(cluster: DemoCluster, writer: ApiClient):
    await writer.create(HYPERNODES, hypernode("a", "gpu-001", "gpu-002"))
    with pytest.raises(ApiError, match="gpu-002 would be in a too"):
        await writer.create(HYPERNODES, hypernode("b", "gpu-002", "gpu-003"))
    assert cluster.by_controller().lines()[-1].startswith("refused with 403: create hypernodes")


async def test_an_empty_log_is_nothing():
    assert RequestLog(ApiServer()).written(CONTROLLER).lines() == ["nothing"]


@pytest.mark.needs("openssl")
@pytest.mark.needs("kubectl")
async def test_kubectl_reads_the_cluster_with_the_printed_kubeconfig(cluster: DemoCluster):
    cluster.join("gpu-001")
    await cluster.until(lambda: cluster.server.counts["patch", "nodelinks"], "the report")
    kubectl = which("kubectl")
    assert kubectl is not None
    process = await asyncio.create_subprocess_exec(
        kubectl, "--kubeconfig", str(cluster.kubeconfig), "get", "nodelinks", "-o", "name",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert output.decode() == "nodelinks.nodeagent.io/gpu-001\n"


# --- folding --------------------------------------------------------------------------------------


def test_consecutive_nodes_are_one_line_and_a_node_with_a_remark_keeps_its_own():
    drawn = """\
fabric compute
├─ a (leaf): s0 … s3 (4 switches)
│  ├─ n-008
│  ├─ n-009
│  ├─ n-010
│  ├─ n-012
│  └─ n-013  (nic0 down)
└─ b (leaf): s4, s5
   ├─ n-014
   ├─ n-015
   └─ n-016"""
    assert fold(drawn.splitlines()) == [
        "fabric compute",
        "├─ a (leaf): s0 … s3 (4 switches)",
        "│  ├─ n-008 … n-010  (3 nodes)",
        "│  ├─ n-012",
        "│  └─ n-013  (nic0 down)",
        "└─ b (leaf): s4, s5",
        "   └─ n-014 … n-016  (3 nodes)",
    ]


def test_the_machine_is_written_to_memory_where_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert memory_folder(str(tmp_path / "none")) is None
    assert memory_folder("/proc") is None, "no room"
    found = os.statvfs("/dev/shm")
    if found.f_bavail * found.f_frsize > 1 << 30 and not found.f_flag & os.ST_NOEXEC:
        assert memory_folder() == "/dev/shm"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert memory_folder() is None
