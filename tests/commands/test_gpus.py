"""`nodeagent gpus`: a line for each GPU and, below it, one for each pod; from the agent, or by a look of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli import main
from nodeagent.commands.gpus.gpu_listing import LIMITED_BY, as_table
from nodeagent.console.terminal import Screen
from nodeagent.facts.gpu_usage import NamedProcess
from nodeagent.facts.model import ContainerLimit, Holding, MigDevice, Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.host.nvml_vitals import CLOCK_REASONS
from nodeagent.measurements.sample import Sample, Source
from nodeagent.metrics.scrape_input import DeviceCount
from nodeagent.sharing.gpu_accounts import PodAccount, accounts
from nodeagent.web.gpu_statuses import GpuStatus, GpuStatuses, MigStatus, gpu_statuses
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.cluster.test_agent_tasks import HEAD
from tests.commands.test_plan import GOLDEN
from tests.sharing.test_gpu_accounting import ACCOUNTING, GIB, SCOPE, UID, process, use
from tests.support import golden
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
    model="NVIDIA H100 80GB HBM3",
    power_watts=512.4,
    power_limit_watts=700.0,
    sm_hertz=1410e6,
    memory_hertz=2619e6,
    clock_reasons=("power_cap", "hardware_slowdown"),
    ecc_correctable=5,
    ecc_uncorrectable=1,
    limits=(
        ContainerLimit(
            "team", "llm-0", "main", "GPU-32203369-0000", 40 * GIB, "not in force", 1.8e9, "none is set"
        ),
    ),
    pods=(
        PodAccount(
            *("team", "llm-0", 40 * GIB, 45 * GIB, 0.5, 1),
            members=(NamedProcess(11, "python3", 44 * GIB), NamedProcess(12, "", GIB)),
        ),
        PodAccount("", UID, 0, None),
    ),
    outside=(NamedProcess(7, "X", GIB),),
)
SECOND = GpuStatus(
    index=1,
    uuid="GPU-8897a477-0000",
    memory_bytes=80 * GIB,
    state="healthy",
    model="NVIDIA H100 80GB HBM3",
    clock_reasons=(),
    ecc_correctable=0,
    ecc_uncorrectable=0,
    mig=(
        MigStatus("MIG-41b36259-7f51-5c6f-9d27-0a4b29bd1b04", "1g.10gb", 10 * GIB, "team/small-1"),
        MigStatus("MIG-5b2b6b7a-3d60-5b0e-8f3e-1d2e3f405162", "3g.40gb", 40 * GIB),
    ),
)


def test_the_table_has_a_line_for_each_gpu_and_pod_and_marks_an_over_use() -> None:
    table = as_table(
        GpuStatuses(
            (FIRST, GpuStatus(1, "GPU-8897a477-0000", 80 * GIB, "healthy")), "no hostPID", driver="580.95"
        ),
        now=1.8e9 + 7200,
    )
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "GPUS: 1 x NVIDIA H100 80GB HBM3, driver 580.95",
        "GPU UUID GRANTED USED FREE LARGEST LOAD HEALTH",
        "0 GPU-32203369-0000 40.0 GiB 47.0/80.0 GiB 0/79 0 97 % unhealthy",
        "1 GPU-8897a477-0000 - - - - - healthy",
        "",
        "HARDWARE",
        "GPU POWER TEMP SM CLOCK MEM CLOCK ECC ERRORS SLOWED BY",
        "0 512/700 W 41 °C 1410 MHz 2619 MHz 5 corrected, 1 uncorrected power limit, hardware slowdown",
        "1 - - - - - -",
        "",
        "USERS",
        "GPU POD OR PROCESS GRANTED USED LOAD REMARK",
        "0 team/llm-0 40.0 GiB 45.0 GiB 50 % above its share, limit not in force for 2 h",
        "0 pod 0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d 0.0 GiB - -",
        "0 X (7) 1.0 GiB in no pod",
        "",
        "REMARKS",
        "the use by pods is not known: no hostPID",
        "GPU0: unhealthy: xid_79",
        "team/llm-0, container main: its limit on GPU0 is not in force: none is set",
    ]


@pytest.mark.golden("tests/golden/gpus-*")
@pytest.mark.parametrize("width", [80, None])
def test_the_tables_fit_a_terminal_of_80_columns(width: int | None) -> None:
    listed = GpuStatuses((FIRST, SECOND), driver="580.95.05")
    said = as_table(listed, Screen(width), processes=True, now=1.8e9 + 7200)
    golden.same(GOLDEN / f"gpus-{width or 'wide'}.txt", said)
    assert max(map(len, said.splitlines())) <= (width or 200)


def test_gpus_of_several_models_are_named_one_by_one() -> None:
    other = replace(SECOND, model="NVIDIA L40S", mig=())
    said = as_table(GpuStatuses((FIRST, other)))
    assert said.startswith("GPUS: 1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA L40S\n")
    assert "  GPU1 (NVIDIA L40S): healthy\n" in said


def test_each_reason_of_the_driver_has_words() -> None:
    assert LIMITED_BY.keys() == CLOCK_REASONS.keys()


def test_what_is_measured_of_a_gpu_is_in_its_status() -> None:
    values = {
        "gpu_memory_used_bytes": 3.0 * GIB, "gpu_power_watts": 95.5, "gpu_power_limit_watts": 700.0,
        "gpu_sm_hertz": 345e6, "gpu_memory_hertz": 1593e6, "gpu_ecc_correctable_sram": 2.0,
        "gpu_ecc_correctable_dram": 3.0, "gpu_ecc_uncorrectable_dram": 1.0, "gpu_clock_reason/idle": 1.0,
        "gpu_clock_reason/thermal": 0.0,
    }  # fmt: skip
    sample = Sample(0.0, gpu_of(0).uuid, Source.GPU, values)
    limits = tuple(ContainerLimit("ns", "p", "c", gpu_of(n).uuid, GIB, "in force", 1.0) for n in (0, 1))
    snapshot = Snapshot(gpus=(gpu_of(0),), gpu_driver="580.95.05", gpu_limits=limits)
    listed = gpu_statuses(snapshot, [], [sample], (), None, **AT_0)
    (gpu,) = listed.gpus
    assert (gpu.used_bytes, gpu.power_watts, gpu.power_limit_watts) == (3 * GIB, 95.5, 700.0)
    assert (gpu.sm_hertz, gpu.memory_hertz, gpu.clock_reasons) == (345e6, 1593e6, ("idle",))
    assert (gpu.ecc_correctable, gpu.ecc_uncorrectable, gpu.limits) == (5, 1, limits[:1])
    assert (gpu.model, listed.driver) == (gpu_of(0).name, "580.95.05")
    (unmeasured,) = gpu_statuses(snapshot, [], [], (), None, **AT_0).gpus
    assert (unmeasured.clock_reasons, unmeasured.ecc_correctable) == (None, None), "unknown is not nothing"


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
    row, _, _, _, hardware, *_, remark = as_table(listed).splitlines()[2:]
    free = "0/79 0" if lost else "79/79 79"
    assert f"2.0/79.6 GiB (old) {free} 50 % (old)" in " ".join(row.split())
    assert "0 - 31 °C (old) -" in " ".join(hardware.split())
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
    table = [" ".join(line.split()) for line in as_table(whole).splitlines()]
    assert table[2:5] == [
        f"0 {gpu.uuid} 10.0 GiB - - - - healthy",
        "MIG-a 10.0 GiB 1g.10gb, held by team/llm-0",
        "MIG-b 1g.10gb, free",
    ]
    assert table[-1] == "0 team/llm-0 10.0 GiB - -"


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
        assert first["grantedBytes"] == 40 * GIB
        (pod,) = first["pods"]
        assert (pod["pod"], pod["usedBytes"], pod["utilization"]) == ("p", 41 * GIB, 0.25)
        assert (second["free"], second["pods"]) == (79, [])
        assert pod["members"] == [{"pid": 11, "name": "python3", "memoryBytes": 41 * GIB}]
        out, _ = await gpus()
        assert "default/p" in out
        assert "41.0 GiB" in out
        assert "python3 (11)" not in out
        out, _ = await gpus("--processes")
        assert "python3 (11)" in out


@pytest.mark.slow
def test_without_an_agent_the_command_reads_the_machine_and_reports_it(tmp_path, capsys) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    assert main(["gpus", "--root", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "no agent runs here" in err
    assert "what pods hold" in err
    assert out.count("GPU-") == 2
    assert "gpu.health.processes is false" in out
