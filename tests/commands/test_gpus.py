"""`nodeagent gpus`: a line for each GPU and, below it, one for each pod; from the agent, or by a look of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli import main
from nodeagent.commands.gpus.gpu_listing import as_table
from nodeagent.commands.terminal import Screen
from nodeagent.facts.gpu_usage import OutsideProcess
from nodeagent.facts.model import Holding, MigDevice, Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.measurements.sample import Sample, Source
from nodeagent.metrics.scrape_input import DeviceCount
from nodeagent.sharing.gpu_accounts import PodAccount, accounts
from nodeagent.web.gpu_statuses import GpuStatus, GpuStatuses, gpu_statuses
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.cluster.test_agent_tasks import HEAD
from tests.sharing.test_gpu_accounting import ACCOUNTING, GIB, SCOPE, UID, process, use
from tests.support.kind_machines import gpu_of
from tests.support.running_agent import node

AT_0: dict[str, Any] = {"settings": GpuSettings(), "now": 0.0}
FIRST = GpuStatus(
    index=0,
    uuid="GPU-32203369-0000",
    memory_bytes=80 * GIB,
    state="unhealthy",
    reasons=("xid_79",),
    resource="x/gpu-mem",
    slices=79,
    slice_bytes=GIB,
    free=0,
    largest=0,
    granted_bytes=40 * GIB,
    used_bytes=47 * GIB,
    utilization=0.97,
    celsius=41.0,
    pods=(PodAccount("team", "llm-0", 40 * GIB, 45 * GIB, 0.5, 1), PodAccount("", UID, 0, None)),
    outside=(OutsideProcess(7, "X", GIB),),
)


def test_the_table_has_a_line_for_each_gpu_and_pod_and_marks_an_over_use() -> None:
    table = as_table(
        GpuStatuses((FIRST, GpuStatus(1, "GPU-8897a477-0000", 80 * GIB, "healthy")), "no hostPID")
    )
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "GPUS",
        "GPU UUID GRANTED USED FREE LARGEST LOAD TEMP HEALTH",
        "0 GPU-32203369-0000 40.0 GiB 47.0 GiB 0/79 0 97 % 41 °C unhealthy",
        "team/llm-0 40.0 GiB 45.0 GiB 50 % above its share",
        "pod 0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d 0.0 GiB - -",
        "X (7), in no pod 1.0 GiB",
        "1 GPU-8897a477-0000 - - - - - - healthy",
        "",
        "REMARKS",
        "the use by pods is not known: no hostPID",
        "GPU0: unhealthy: xid_79",
    ]
    assert "GPU-32203369  " in as_table(GpuStatuses((FIRST,)), Screen(80))


def test_a_pod_is_above_its_share_only_beyond_the_tolerance_of_the_rule() -> None:
    """A CUDA context alone is no over-use: it takes memory that no program asks for."""
    tolerance = GpuSettings().accounting.tolerance_mib << 20
    for used, marked in ((GIB + 1, False), (GIB + tolerance, False), (GIB + tolerance + 1, True)):
        gpu = replace(FIRST, pods=(PodAccount("team", "llm-0", GIB, used),))
        listed = gpu_statuses(Snapshot(gpus=(gpu_of(0),)), [], [], (), None, **AT_0)
        table = as_table(replace(listed, gpus=(gpu,)))
        assert ("above its share" in table) is marked


@pytest.mark.parametrize("lost", [True, False])
def test_the_last_values_of_a_gpu_that_is_not_measured_are_marked_with_their_age(lost: bool) -> None:
    gpu = replace(gpu_of(0), lost=lost)
    count = DeviceCount("x/gpu-mem", gpu.uuid, 79, 0 if lost else 79, 0 if lost else 79, GIB)
    values = {"gpu_memory_used_bytes": 2.0 * GIB, "gpu_utilization": 0.5, "gpu_celsius": 31.0}
    sample = Sample(100.0, gpu.uuid, Source.GPU, values)
    snapshot = Snapshot(gpus=(gpu,), holdings=())

    def at(now: float) -> GpuStatuses:
        return gpu_statuses(snapshot, [count], [sample], (), None, settings=GpuSettings(), now=now)

    gap_s = GpuSettings().health.gap_s
    (fresh,) = at(100.0 + gap_s).gpus
    assert (fresh.old_seconds, fresh.free) == ((gap_s, 0) if lost else (None, 79))
    (old,) = (listed := at(400.0)).gpus
    assert (old.old_seconds, old.celsius) == (300.0, 31.0)
    row, *_, remark = as_table(listed).splitlines()[2:]
    free = "0/79 0" if lost else "79/79 79"
    assert f"2.0 GiB (old) {free} 50 % (old) 31 °C (old)" in " ".join(row.split())
    assert remark.strip() == "GPU0: its values are 5 min old, because it is not measured any more"
    assert "\x1b[2m31 °C (old)" in as_table(listed, Screen(200, color=True))


def test_a_gpu_in_mig_mode_has_a_line_for_each_mig_device_with_its_pod() -> None:
    devices = tuple(MigDevice(f"MIG-{name}", "1g.10gb", 10 * 1024, 7, 0) for name in "ab")
    gpu = replace(gpu_of(0), mig=True, mig_devices=devices)
    held = Holding("team", "llm-0", "main", "x/mig-1g.10gb", ("MIG-a",))
    snapshot = Snapshot(gpus=(gpu,), holdings=(held,))
    count = DeviceCount("x/mig-1g.10gb", gpu.uuid, 2, 2, 1, None)
    (status,) = (whole := gpu_statuses(snapshot, [count], [], accounts(snapshot, {}, {}), None, **AT_0)).gpus
    assert (status.slices, status.granted_bytes) == (None, 10 * GIB)
    assert [" ".join(line.split()) for line in as_table(whole).splitlines()][2:] == [
        f"0 {gpu.uuid} 10.0 GiB - - - - - healthy",
        "MIG-a 10.0 GiB 1g.10gb, held by team/llm-0",
        "MIG-b 1g.10gb, free",
        "team/llm-0 10.0 GiB - -",
    ]


async def test_the_agent_answers_with_shares_use_and_pods(capsys) -> None:
    async with node() as n:
        process(n.root, 2, "0::/\n", "kthreadd")
        process(n.root, 11, SCOPE, "python3")
        (n.root / "var/log/pods" / f"default_p_{UID}").mkdir(parents=True)
        use(n.root, {"pid": 11, "memory_bytes": 41 * GIB, "utilization": 0.25})
        await n.kubelet.start()
        await n.start_agent(n.configure(ACCOUNTING))
        await n.allocatable(f"{HEAD}/gpu-mem", 158)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/gpu-mem": 40}))).admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        await n.until(lambda: n.agent.sharing.accounting.obstacle is None)

        async def gpus(*options: str) -> tuple[str, str]:
            code = await asyncio.to_thread(main, ["gpus", "--root", str(n.root), *options])
            assert code == 0
            return capsys.readouterr()

        out, err = await gpus("--json")
        assert "agent.sock answers" in err
        first, second = json.loads(out)["gpus"]
        assert (first["free"], first["largest"], first["slices"]) == (39, 39, 79)
        assert first["granted_bytes"] == 40 * GIB
        (pod,) = first["pods"]
        assert (pod["pod"], pod["used_bytes"], pod["utilization"]) == ("p", 41 * GIB, 0.25)
        assert (second["free"], second["pods"]) == (79, [])
        out, _ = await gpus()
        assert "default/p" in out
        assert "41.0 GiB" in out


@pytest.mark.slow
def test_without_an_agent_the_command_reads_the_machine_and_reports_it(tmp_path, capsys) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    assert main(["gpus", "--root", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "no agent runs here" in err
    assert "what pods hold" in err
    assert out.count("GPU-") == 2
    assert "gpu.health.processes is false" in out
