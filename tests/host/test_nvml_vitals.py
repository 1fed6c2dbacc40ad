"""The vitals of a GPU with the real binding and the stand-in library: complete, partial, impossible, none."""

import pytest

from nodeagent.host.gpu_driver import GpuVitals
from nodeagent.host.nvml_vitals import CLOCK_REASONS, plausible_vitals
from tests.host import test_nvml as library
from tests.host.test_nvlink_domain import fabric
from tests.host.test_nvml import gpu

pytestmark = pytest.mark.needs("pynvml", "cc")

young, old, machine, start, nvml = (
    library.young,
    library.old,
    library.machine,
    library.start,
    library.nvml,
)

STATE, SPEED, REPLAY, RECOVERY, CRC = 165, 164, 161, 162, 163
EFFECTIVE_BER, SYMBOL_ERRORS, SYMBOL_BER, MEMORY_LIMIT = 220, 221, 222, 195
NOT_AVAILABLE = 2**64 - 1


def vital(index=0, **numbers):
    return [f"vital {index} {name} {value}" for name, value in numbers.items()]


def field(number, value, *, scope=0, index=0, kind=1):
    return f"field {index} {number}/{scope} {kind} {value}"


def links(count=18, *, down=(), index=0):
    for link in range(count):
        yield field(STATE, int(link not in down), scope=link, index=index)
        yield field(SPEED, 26562 if link not in down else 0, scope=link, index=index)


def vitals(nvml):
    nvml.gpus()
    return [GpuVitals(**one) for one in nvml.ask("vitals")]


def test_all_values_of_a_hopper_are_read(nvml, machine):
    machine.set(
        gpu(0, mib=81559),
        *vital(memory_used=1 << 30, ecc_0_0_7=3, ecc_0_0_2=4, ecc_1_0_7=1, ecc_1_0_2=2),
        *vital(pcie_generation=4, pcie_generation_max=5, pcie_width=8, pcie_width_max=16),
        *vital(pstate=0, utilization=37, celsius=41, sram_threshold=1, sram_l2=7),
        *vital(memory_reserved=600 << 20, ecc_0_1_7=30, ecc_0_1_2=40, ecc_1_1_7=10, ecc_1_1_2=20),
        *vital(
            power_mw=692_500,
            power_limit_mw=700_000,
            energy_mj=5_250_000_000_001,
            ecc=1,
            clock_1=1755,
            clock_2=2619,
        ),
        *vital(threshold_1=90, threshold_2=105, margin=-3),
        field(MEMORY_LIMIT, -5, kind=5),
        *vital(clock_reasons=0x4 | 0x40, encoder=50, decoder=0, memory_utilization=22),
        field(197, 1 << 40, kind=3),
        field(198, 1 << 41, kind=3),
        field(138, 1 << 30, scope=2**32 - 1, kind=3),
        field(139, 1 << 31, scope=2**32 - 1, kind=3),
        *vital(fabric_state=3, fabric_health=1 | 1 << 2 | 1 << 4 | 2 << 6 | 1 << 8),
        field(82, 52),
        field(94, 11),
        field(142, 5),
        field(143, 6),
        field(144, 1),
        field(145, 0),
        field(173, 9, kind=3),
        field(180, 0, kind=2),
        *links(down=(17,)),
        *(field(REPLAY, 2, scope=link) for link in range(18)),
        field(RECOVERY, 3, scope=12),
        field(CRC, 2**40, scope=13, kind=3),
        "text 0 serial 1654922000123",
        "text 0 vbios 96.00.74.00.01",
        "vital 0 compute 90",
        "vital -1 cuda 13020",
        "process 0 4242 1048576",
        f"process 0 4243 {NOT_AVAILABLE}",
    )
    (reading,) = vitals(nvml)
    assert reading.absurd == []
    assert reading.texts == {
        "gpu_serial": "1654922000123",
        "gpu_vbios": "96.00.74.00.01",
        "gpu_compute_capability": "9.0",
        "gpu_cuda_version": "13.2",
        "gpu_mig_capable": "yes",
        "gpu_fabric_state": "completed",
    }
    assert reading.processes == [
        {"pid": 4242, "memory_bytes": 1048576, "utilization": 0.0},
        {"pid": 4243, "memory_bytes": None, "utilization": 0.0},
    ]
    states = {f"gpu_nvlink_up/{link}": float(link != 17) for link in range(18)}
    assert {name: reading.values.pop(name) for name in states} == states
    assert reading.values == {
        "gpu_memory_used_bytes": 1 << 30,
        "gpu_memory_total_bytes": 81559 << 20,
        "gpu_ecc_correctable_sram": 3,
        "gpu_ecc_correctable_dram": 4,
        "gpu_ecc_uncorrectable_sram": 1,
        "gpu_ecc_uncorrectable_dram": 2,
        "gpu_memory_reserved_bytes": 600 << 20,
        "gpu_ecc_correctable_sram_lifetime": 30,
        "gpu_ecc_correctable_dram_lifetime": 40,
        "gpu_ecc_uncorrectable_sram_lifetime": 10,
        "gpu_ecc_uncorrectable_dram_lifetime": 20,
        "gpu_power_watts": 692.5,
        "gpu_power_limit_watts": 700,
        "gpu_ecc_mode": 1,
        "gpu_energy_joules": 5_250_000_000.001,
        "gpu_limit_celsius": 90,
        "gpu_memory_limit_celsius": 105,
        "gpu_margin_celsius": -3,
        "gpu_memory_least_margin_celsius": -5,
        "gpu_sm_hertz": 1755e6,
        "gpu_memory_hertz": 2619e6,
        **{
            f"gpu_clock_reason/{reason}": float(reason in ("power_cap", "hardware_thermal"))
            for reason in CLOCK_REASONS
        },
        "gpu_encoder_utilization": 0.5,
        "gpu_decoder_utilization": 0,
        "gpu_memory_utilization": 0.22,
        "gpu_pcie_bytes/transmit": 1 << 40,
        "gpu_pcie_bytes/receive": 1 << 41,
        "gpu_nvlink_bytes/transmit": 1 << 40,
        "gpu_nvlink_bytes/receive": 1 << 41,
        "gpu_pcie_generation": 4,
        "gpu_pcie_generation_max": 5,
        "gpu_pcie_width": 8,
        "gpu_pcie_width_max": 16,
        "gpu_performance_state": 0,
        "gpu_utilization": 0.37,
        "gpu_celsius": 41,
        "gpu_memory_celsius": 52,
        "gpu_sram_threshold_exceeded": 1,
        **{f"gpu_sram_uncorrectable_lifetime/{part}": 0 for part in ("sm", "pcie", "mcu", "other")},
        "gpu_sram_uncorrectable_lifetime/l2": 7,
        "gpu_remapped_correctable": 5,
        "gpu_remapped_uncorrectable": 6,
        "gpu_row_remap_pending": 1,
        "gpu_row_remap_failed": 0,
        "gpu_pcie_replays": 11,
        "gpu_pcie_errors/correctable": 9,
        "gpu_pcie_errors/fatal": 0,
        "gpu_nvlink_bytes_per_second": 26562e6,
        "gpu_nvlink_replays": 36,
        "gpu_nvlink_recoveries": 3,
        "gpu_nvlink_crc_errors": 2**40,
        "gpu_fabric_degraded_bandwidth": 1,
        "gpu_fabric_route_recovery": 1,
        "gpu_fabric_route_unhealthy": 1,
        "gpu_fabric_access_timeout": 0,
        "gpu_fabric_misconfigured": 0,
        "gpu_fabric_not_ready": 0,
        "gpu_fabric_failed": 0,
    }


KINDS_OF_CONFIGURATION = range(2, 16)
"""Incorrect ones by nvml.h of CUDA 13.4: 2 to 8; the field has four bits."""


@pytest.mark.parametrize(
    ("line", "health", "state", "values"),
    [
        (fabric(state=1), 0, "not_started", {"not_ready": 1}),
        (fabric(state=2), 0, "in_progress", {"not_ready": 1}),
        (
            fabric(state=2, status=999),
            0,
            "in_progress",
            {"not_ready": 1},
        ),  # a status counts only when completed
        (fabric(), 0, "completed", {"not_ready": 0, "failed": 0}),
        (fabric(status=3), 0, "failed", {"not_ready": 0, "failed": 1}),
        (fabric(status=999), 0, "failed", {"not_ready": 0, "failed": 1}),
        (fabric(), 1 << 8, "completed", {"not_ready": 0, "failed": 0, "misconfigured": 0}),
        *(
            (fabric(), kind << 8, "completed", {"not_ready": 0, "failed": 0, "misconfigured": 1})
            for kind in KINDS_OF_CONFIGURATION
        ),
        (fabric(), 1 << 2, "completed", {"not_ready": 0, "failed": 0, "route_recovery": 1}),
        (fabric(), 2 << 4, "completed", {"not_ready": 0, "failed": 0, "route_unhealthy": 0}),
        (fabric(), 1 << 6, "completed", {"not_ready": 0, "failed": 0, "access_timeout": 1}),
        (fabric(), 2 << 6, "completed", {"not_ready": 0, "failed": 0, "access_timeout": 0}),
        (fabric(newest=2, state=2), 0, "in_progress", {"not_ready": 1}),
        (fabric(newest=1, state=2), 0, "in_progress", {"not_ready": 1}),  # driver r535
        (fabric(newest=1, status=3), 4 << 8, "failed", {"not_ready": 0, "failed": 1}),
        (fabric(state=0), 0, None, {}),
        (fabric(newest=0), 0, None, {}),  # a PCIe card
        (fabric(state=9), 0, "state_9", {}),
        ("fail nvmlDeviceGetGpuFabricInfoV 999", 0, None, {}),
        ("fail nvmlDeviceGetGpuFabricInfoV 15", 0, None, {}),
    ],
)
def test_each_answer_about_the_fabric(nvml, machine, line, health, state, values):
    machine.set(gpu(0), line, *vital(fabric_health=health))
    (reading,) = vitals(nvml)
    found = {
        name.removeprefix("gpu_fabric_"): value for name, value in reading.values.items() if "fabric" in name
    }
    assert (reading.texts.get("gpu_fabric_state"), found) == (state, values)
    pending = None if "not_ready" not in values else values["not_ready"] == 1
    assert nvml.gpus()[0].fabric_pending is pending


def test_a_gpu_without_measured_values_has_only_its_memory(nvml, machine):
    machine.set(gpu(0))
    (reading,) = vitals(nvml)
    assert reading.values == {"gpu_memory_used_bytes": 0, "gpu_memory_total_bytes": 81559 << 20}
    assert (reading.texts, reading.absurd, reading.processes) == ({"gpu_mig_capable": "yes"}, [], [])


def test_a_gpu_without_a_mig_mode_cannot_be_divided(nvml, machine):
    machine.set(gpu(0), gpu(1), "fail nvmlDeviceGetMigMode 3 0", "fail nvmlDeviceGetMigMode 999 1")
    first, second = vitals(nvml)
    assert (first.texts, second.texts) == ({"gpu_mig_capable": "no"}, {})


@pytest.mark.parametrize("ones", [2**32 - 1, 2**64 - 1])
def test_all_ones_are_no_reason_of_the_clocks(nvml, machine, ones):
    """A GPU that has left the bus is not slowed down by heat and power at once."""
    machine.set(gpu(0), *vital(clock_reasons=ones))
    (reading,) = vitals(nvml)
    assert not [name for name in reading.values if name.startswith("gpu_clock_reason")]
    assert sorted(reading.absurd) == sorted(f"gpu_clock_reason/{reason}" for reason in CLOCK_REASONS)


GPM = {1: 97.5, 2: 90, 3: 45, 5: 62.5, 10: 71, 11: 0, 12: 5, 13: 6, 61: 1024, 60: 512}
"""By nvmlGpmMetricId_t of nvml.h."""


def gpm(index=0):
    return [f"gpm {index} {number} {value}" for number, value in GPM.items()]


def profiled(reading):
    return {
        name: value
        for name, value in reading.values.items()
        if name.startswith(("gpu_act", "gpu_nvlink_rate"))
    }


def test_what_the_units_of_a_gpu_do_is_the_mean_between_two_readings(nvml, machine):
    machine.set(gpu(0), gpu(1), *gpm(0))
    assert [profiled(one) for one in vitals(nvml)] == [{}, {}], "one sample alone has no mean"
    first, second = vitals(nvml)
    assert profiled(first) == pytest.approx(
        {
            "gpu_activity/graphics": 0.975,
            "gpu_activity/sm": 0.9,
            "gpu_activity/sm_occupancy": 0.45,
            "gpu_activity/tensor": 0.625,
            "gpu_activity/memory": 0.71,
            "gpu_activity/fp64": 0.0,
            "gpu_activity/fp32": 0.05,
            "gpu_activity/fp16": 0.06,
            "gpu_nvlink_rate/transmit": 2**30,
            "gpu_nvlink_rate/receive": 2**29,
        }
    )
    assert profiled(second) == {}, "a metric that a GPU lacks is absent"
    nvml.close()  # the stand-in ends the process if a sample is left
    nvml.open()
    assert [profiled(one) for one in vitals(nvml)] == [{}, {}], "a session begins with its first sample"


@pytest.mark.parametrize("call", ["nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
@pytest.mark.parametrize("result", [3, 4, 999])
def test_without_a_sample_the_other_values_are_read_and_profiling_begins_again(nvml, machine, call, result):
    machine.set(gpu(0), *gpm(0), *vital(celsius=41))
    vitals(nvml)
    machine.set(gpu(0), *gpm(0), *vital(celsius=41), f"fail {call} {result}")
    for _ in range(2):
        (reading,) = vitals(nvml)
        assert (profiled(reading), reading.values["gpu_celsius"]) == ({}, 41)
    machine.set(gpu(0), *gpm(0))
    vitals(nvml)
    (reading,) = vitals(nvml)
    assert len(profiled(reading)) == len(GPM)
    nvml.close()
    nvml.open()


def test_a_driver_before_535_has_the_reasons_of_the_clocks_by_their_former_name(nvml, machine):
    machine.set(gpu(0), *vital(clock_reasons=0x40), "fail nvmlDeviceGetCurrentClocksEventReasons 13")
    (reading,) = vitals(nvml)
    assert reading.values["gpu_clock_reason/hardware_thermal"] == 1


@pytest.mark.parametrize(
    ("encoded", "ratio"),
    [
        ([0xFFF] * 18, 15e-255),  # no errors
        ([0xFFF, 0x50D, 0x60C] + [0xFFF] * 15, 6e-12),
        ([0x000] * 18, 0),
        ([0x50C, 0x1000] + [0xFFF] * 16, None),  # more than 12 bits
        ([0xF00] + [0xFFF] * 17, None),  # 15 of 1
        ([0x50C], 5e-12),  # the other links do not report it
    ],
)
def test_the_bit_error_ratio_is_that_of_the_worst_link(nvml, machine, encoded, ratio):
    machine.set(
        gpu(0),
        *(field(EFFECTIVE_BER, value, scope=link, kind=3) for link, value in enumerate(encoded)),
        field(SYMBOL_BER, 0x10E, scope=7, kind=3),
        *(field(SYMBOL_ERRORS, 2, scope=link, kind=3) for link in range(18)),
    )
    (reading,) = vitals(nvml)
    found = reading.values.get("gpu_nvlink_bit_error_ratio/effective")
    assert found is None if ratio is None else found == pytest.approx(ratio, rel=1e-9, abs=0)
    assert reading.absurd == (["gpu_nvlink_bit_error_ratio/effective"] if ratio is None else [])
    assert reading.values["gpu_nvlink_bit_error_ratio/symbol"] == pytest.approx(1e-14)
    assert reading.values["gpu_nvlink_symbol_errors"] == 36


def test_what_no_link_that_is_up_supports_is_asked_once(nvml, machine):
    """A hundred values for eight GPUs are most of the work of a reading."""
    machine.set(gpu(0), *links(), *(field(SYMBOL_ERRORS, 1, scope=link) for link in range(18)))
    (first,) = vitals(nvml)
    late = [field(CRC, 1, scope=0), *(field(SYMBOL_ERRORS, 2, scope=link) for link in range(18))]
    machine.set(gpu(0), *links(), *late)
    (second,) = vitals(nvml)
    assert (first.values["gpu_nvlink_symbol_errors"], second.values["gpu_nvlink_symbol_errors"]) == (18, 36)
    assert "gpu_nvlink_crc_errors" not in second.values
    nvml.close()
    nvml.open()
    (third,) = vitals(nvml)
    assert third.values["gpu_nvlink_crc_errors"] == 1


def test_while_all_links_are_down_every_value_is_asked_again(nvml, machine):
    machine.set(gpu(0), *links(down=range(18)))
    vitals(nvml)
    machine.set(gpu(0), *links(), field(CRC, 1, scope=0))
    (reading,) = vitals(nvml)
    assert reading.values["gpu_nvlink_crc_errors"] == 1


def test_the_energy_that_is_not_available_is_none(nvml, machine):
    machine.set(gpu(0), *vital(energy_mj=NOT_AVAILABLE))
    (reading,) = vitals(nvml)
    assert ("gpu_energy_joules" in reading.values, reading.absurd) == (False, ["gpu_energy_joules"])


@pytest.mark.parametrize("result", [3, 13, 25])
def test_without_the_second_version_of_the_call_the_first_gives_the_memory(nvml, machine, result):
    """NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH."""
    used = vital(memory_used=7 << 20, memory_reserved=1 << 20)
    machine.set(gpu(0), *used, f"fail nvmlDeviceGetMemoryInfo_v2 {result}")
    (reading,) = vitals(nvml)
    assert reading.values == {"gpu_memory_used_bytes": 7 << 20, "gpu_memory_total_bytes": 81559 << 20}


def test_an_old_driver_returns_the_values_that_it_supports(start, old, machine):
    machine.set(gpu(0), *vital(ecc_1_0_7=1, pcie_width=16, celsius=40, fabric_state=3), field(145, 1))
    (reading,) = vitals(start(old))
    assert reading.values.keys() == {
        "gpu_ecc_uncorrectable_sram",
        "gpu_pcie_width",
        "gpu_celsius",
        "gpu_memory_used_bytes",
        "gpu_memory_total_bytes",
    }
    assert (reading.texts, reading.processes) == ({"gpu_mig_capable": "no"}, None)


def test_a_process_is_counted_once_and_has_its_own_part_of_the_sms(nvml, machine):
    """The driver fills its answer with samples of no process, and lists a process in each list that it belongs to."""
    processes = ["process 0 11 100", "graphics 0 11 100", "mps 0 12 70", "process 0 12 70", "graphics 0 13 5"]
    machine.set(gpu(0), *processes, "sample 0 11 1000 40", "sample 0 11 2000 60", "sample 0 12 1500 30")
    (reading,) = vitals(nvml)
    assert reading.processes == [
        {"pid": 11, "memory_bytes": 100, "utilization": 0.6},
        {"pid": 12, "memory_bytes": 70, "utilization": 0.3},
        {"pid": 13, "memory_bytes": 5, "utilization": 0.0},
    ]
    (reading,) = vitals(nvml)
    assert [process["utilization"] for process in reading.processes] == [0.0, 0.0, 0.0], "no newer sample"
    machine.set(gpu(0), *processes, "sample 0 11 1000 40", "sample 0 13 2001 101", "sample 0 12 2002 99")
    (reading,) = vitals(nvml)
    assert [process["utilization"] for process in reading.processes] == [0.0, 0.99, 0.0]


@pytest.mark.parametrize("result", [3, 13])
def test_without_a_list_or_the_utilization_the_other_processes_are_known(nvml, machine, result):
    machine.set(
        gpu(0),
        "process 0 11 100",
        "graphics 0 13 5",
        f"fail nvmlDeviceGetGraphicsRunningProcesses_v3 {result}",
        f"fail nvmlDeviceGetProcessUtilization {result}",
    )
    (reading,) = vitals(nvml)
    assert reading.processes == [{"pid": 11, "memory_bytes": 100, "utilization": None}]


CALLS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("result", [3, 13, 999])  # NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN
def test_a_failed_call_affects_only_its_own_values(nvml, machine, call, result):
    numbers = vital(ecc_1_0_7=1, pcie_width=16, pstate=0, utilization=1, celsius=40, sram_threshold=0)
    machine.set(gpu(0), *numbers, *vital(fabric_state=3), field(145, 1), "text 0 serial 1")
    (whole,) = vitals(nvml)
    nvml.close()
    nvml.open()
    machine.set(
        gpu(0), *numbers, *vital(fabric_state=3), field(145, 1), "text 0 serial 1", f"fail {call} {result}"
    )
    (reading,) = vitals(nvml)
    assert reading.values.items() <= whole.values.items()
    assert reading.texts.items() <= whole.texts.items()
    missing = len(whole.values) - len(reading.values) + len(whole.texts) - len(reading.texts)
    assert missing >= 1 or reading.processes is None


def test_impossible_values_are_dropped_and_named(nvml, machine):
    machine.set(
        gpu(0),
        *vital(pcie_width=0xFFFFFFFF, pcie_generation=0, celsius=4294967295, utilization=101, pstate=32),
        *vital(power_mw=0xFFFFFFFF, clock_1=0xFFFFFFFF, memory_utilization=101),
        *vital(ecc_1_0_7=NOT_AVAILABLE, memory_used=1 << 60),
        field(82, "nan", kind=0),
        field(143, 0xFFFFFFFF),
        field(144, 7),
        field(94, -1, kind=5),
        field(173, 1, kind=99),
        field(REPLAY, NOT_AVAILABLE, scope=3, kind=3),
        field(REPLAY, 1, scope=4),
        field(STATE, 2, scope=5),
    )
    (reading,) = vitals(nvml)
    assert set(reading.absurd) == {
        "gpu_pcie_width",
        "gpu_power_watts",
        "gpu_sm_hertz",
        "gpu_memory_utilization",
        "gpu_pcie_generation",
        "gpu_celsius",
        "gpu_utilization",
        "gpu_ecc_uncorrectable_sram",
        "gpu_memory_used_bytes",
        "gpu_memory_celsius",
        "gpu_remapped_uncorrectable",
        "gpu_row_remap_pending",
        "gpu_pcie_replays",
        "gpu_pcie_errors/correctable",
        "gpu_nvlink_replays",
        "gpu_nvlink_up/5",
    }
    assert reading.values == {"gpu_memory_total_bytes": 81559 << 20}


def test_a_value_that_is_not_available_is_no_count(nvml, machine):
    """NVML_VALUE_NOT_AVAILABLE is -1, which an unsigned value shows as all ones."""
    ones = 0xFFFFFFFF
    machine.set(
        gpu(0),
        field(94, ones),
        field(173, ones),
        field(REPLAY, ones, scope=3),
        field(CRC, ones, scope=4, kind=3),  # a wide counter may have this value
        *(field(STATE, 1, scope=link) for link in range(2)),
        field(SPEED, ones, scope=0),
        field(SPEED, 26562, scope=1),
    )
    (reading,) = vitals(nvml)
    assert set(reading.absurd) == {"gpu_pcie_replays", "gpu_pcie_errors/correctable", "gpu_nvlink_replays"}
    assert reading.values["gpu_nvlink_crc_errors"] == ones
    assert reading.values["gpu_nvlink_bytes_per_second"] == 26562e6


def test_invalid_texts_are_absent(start, young, machine):
    nvml = start(young)
    machine.path.write_bytes(f"driver 1\n{gpu(0)}\ntext 0 serial \xff\xfe\n".encode("latin-1"))
    (reading,) = vitals(nvml)
    assert "gpu_serial" not in reading.texts


def test_a_gpu_lost_during_the_reading_does_not_affect_the_others(nvml, machine):
    machine.set(gpu(0), gpu(1), *vital(0, celsius=40), *vital(1, celsius=41))
    nvml.gpus()
    machine.set(gpu(0, lost=1), gpu(1), *vital(0, celsius=40), *vital(1, celsius=41))
    first, second = (GpuVitals(**one) for one in nvml.ask("vitals"))
    assert (first.uuid, first.values) == ("GPU-0", {})
    assert second.values["gpu_celsius"] == 41


def test_the_number_of_nvlinks_follows_the_driver(nvml, machine):
    machine.set(gpu(0), field(91, 12), *links(12))
    (reading,) = vitals(nvml)
    assert sum(name.startswith("gpu_nvlink_up/") for name in reading.values) == 12
    machine.set(gpu(0), field(91, 36), *links(36))
    vitals(nvml)
    (reading,) = vitals(nvml)
    assert sum(name.startswith("gpu_nvlink_up/") for name in reading.values) == 36


def test_an_unavailable_gpu_is_not_an_xid(nvml, machine):
    nvml.gpus()
    machine.set(gpu(0), gpu(1), "event 1 1 16384 0", "event 2 0 8 13", "event 3 0 32768 1")
    reading = nvml.ask("wait", 5)
    assert [(one["uuid"], one["xid"], one["unavailable"]) for one in reading] == [
        ("GPU-1", None, True),
        ("GPU-0", 13, False),
        ("GPU-0", None, False),
    ]


@pytest.mark.parametrize("name", ["gpu_nvlink_up/x", "gpu_nvlink_up/36", "gpu_nvlink_up/", "gpu_nvlink_up/²"])
def test_a_link_without_a_number_is_ignored(name):
    assert plausible_vitals("GPU-0", {name: 1.0}, {}) == GpuVitals("GPU-0", {}, {}, (name,))
