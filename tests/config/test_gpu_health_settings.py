"""Settings of the measured values of a GPU: their bounds, and their effect on the rules."""

import pytest

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError
from nodeagent.health.gpu_settings import GpuHealthSettings
from nodeagent.health.health_settings import GuardSettings, HealthSettings
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS, measured_rules
from nodeagent.health.service import HealthService

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def health(text):
    return load(f"{HEAD}gpu:\n  health: {text}\n", name="x.yaml").gpu


def test_the_defaults_withdraw_a_gpu_for_grave_faults_only():
    withdrawing = {rule.key for rule in measured_rules(GpuHealthSettings()) if rule.withdraws}
    assert withdrawing == set(GpuHealthSettings().unhealthy)
    mild = {"nvlink_errors", "remap_pending", "fabric_degraded", "pcie_width", "pcie_speed"}
    mild |= {
        "thermal_slowdown",
        "power_slowdown",
        "memory_temperature",
        "temperature_margin",
        "process_stuck",
    }
    mild |= {"nvlink_effective_ber", "nvlink_symbol_ber", "nvlink_symbol_errors", "nvswitch_error"}
    mild |= {"fabric_route_recovery", "fabric_access_timeout"}
    assert mild <= set(MEASURED_KEYS) - withdrawing


def test_every_setting_reaches_the_rules():
    gpu = health(
        "{readSeconds: 5, slowdownSeconds: 31, clearSeconds: 61, remappedRows: 1, sramUncorrectable: 2, nvlinks: 18, "
        "nvlinkDownSeconds: 60, nvlinkErrorsPerSecond: 3, fabricSeconds: 32, pcieWidthSeconds: 33, "
        "pcieSpeedSeconds: 34, pcieClearSeconds: 35, nvlinkErrorsPerTerabit: 2, nvlinkSymbolErrorsPerSecond: 4, "
        "stuckSeconds: 36, unhealthy: [pcie_width], ignore: [remap_pending], processes: true}"
    )
    assert gpu.health.processes
    rules = {rule.key: rule for rule in measured_rules(gpu.health)}
    assert {rule.gap_s for rule in rules.values()} == {20}
    assert [key for key, rule in rules.items() if rule.withdraws] == ["pcie_width"]
    assert [key for key, rule in rules.items() if not rule.enabled] == ["remap_pending"]
    expected = {
        "remap_failed": ("set", 0, 61),
        "remap_limit": ("≥ 2 rows", 0, 61),
        "sram_uncorrectable": ("≥ 2 errors", 0, 61),
        "sram_threshold": ("set", 0, 61),
        "fabric_not_ready": ("set for 32 s", 32, 32),
        "fabric_failed": ("set for 32 s", 32, 32),
        "fabric_misconfigured": ("set for 32 s", 32, 32),
        "nvlink_down": ("< 18 up for 1 min", 60, 61),
        "fabric_unhealthy": ("set for 32 s", 32, 61),
        "nvlink_errors": ("≥ 3 per second", 0, 61),
        "nvlink_effective_ber": ("≥ 2e-12 for 32 s", 32, 61),
        "nvlink_symbol_ber": ("≥ 2e-12 for 32 s", 32, 61),
        "nvlink_symbol_errors": ("≥ 4 per second for 32 s", 32, 61),
        "process_stuck": ("≥ 1 process for 36 s", 36, 61),
        "remap_pending": ("set", 0, 61),
        "fabric_degraded": ("set for 32 s", 32, 61),
        "thermal_slowdown": ("set for 31 s", 31, 61),
        "memory_temperature": ("≥ the driver's limit for 31 s", 31, 61),
        "pcie_width": ("less than possible for 33 s", 33, 35),
        "pcie_speed": ("less than possible under load for 34 s", 34, 35),
    }
    found = {key: (rule.limit, rule.enter_for_s, rule.clear_for_s) for key, rule in rules.items()}
    assert expected.items() <= found.items()


def test_the_guard_of_the_settings_covers_nics_and_gpus():
    service = HealthService(HealthSettings(guard=GuardSettings(share=0.25, seconds=7)))
    for judge in (service.nics, service.gpus):
        assert (judge._guard.share, judge._guard.seconds) == (0.25, 7)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{clearSeconds: 29}", "clearSeconds: must be at least nvlinkDownSeconds, 30"),
        ("{slowdownSeconds: 601}", "clearSeconds: must be at least slowdownSeconds, 601"),
        ("{stuckSeconds: 601}", "clearSeconds: must be at least stuckSeconds, 601"),
        ("{fabricSeconds: 700}", "clearSeconds: must be at least fabricSeconds, 700"),
        ("{pcieClearSeconds: 5}", "pcieClearSeconds: must be at least pcieWidthSeconds, 10"),
        ("{remappedRows: -1}", "remappedRows"),
        ("{clearSeconds: .nan}", "clearSeconds"),
        ("{nvlinks: 37}", "nvlinks"),
        ("{ignore: [pcie_with]}", "ignore"),
        ("{ignore: [pcie_with], clearSeconds: 1}", "must be at least nvlinkDownSeconds"),
        ("{readSeconds: 0}", "readSeconds"),
    ],
)
def test_an_impossible_value_is_refused_with_its_name(text, complaint):
    with pytest.raises(ConfigError) as error:
        health(text)
    assert complaint in str(error.value)


def test_a_refused_hold_is_not_compared():
    with pytest.raises(ConfigError) as error:
        health("{nvlinkDownSeconds: many, clearSeconds: 1}")
    assert "must be at least nvlinkDownSeconds" not in str(error.value)
    assert "must be at least fabricSeconds, 30" in str(error.value)
