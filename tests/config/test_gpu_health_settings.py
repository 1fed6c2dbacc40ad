"""When measured values stand against a GPU: what may be set, and that the agent judges by it."""

import pytest

from nodeagent import discovery
from nodeagent.agent_config import load
from nodeagent.config.faults import ConfigError
from nodeagent.health.gpu_health_settings import GpuHealthSettings
from nodeagent.health.gpu_rules import WITHDRAWING, GpuLimits, MeasuredFault
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.xids import GpuTerms

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def health(text):
    return load(f"{HEAD}gpu:\n  health: {text}\n", name="x.yaml").gpu


def test_the_defaults_of_settings_and_rules_agree():
    assert discovery.gpu_terms(health("{}"), GuardSettings()) == GpuTerms()
    assert {MeasuredFault(name) for name in GpuHealthSettings().unhealthy} == WITHDRAWING


def test_every_setting_reaches_the_rules():
    gpu = health(
        "{readSeconds: 5, clearSeconds: 61, remappedRows: 1, sramUncorrectable: 2, nvlinks: 18, "
        "nvlinkDownSeconds: 61, fabricSeconds: 32, pcieWidthSeconds: 33, pcieSpeedSeconds: 34, "
        "pcieClearSeconds: 35, unhealthy: [pcie_width], ignore: [remap_pending], processes: true}"
    )
    terms = discovery.gpu_terms(gpu, GuardSettings(share=0.25, seconds=7))
    assert (terms.guard_share, terms.guard_s) == (0.25, 7)
    assert terms.limits == GpuLimits(
        remapped_rows=1,
        sram_uncorrectable=2,
        nvlinks=18,
        nvlink_down_s=61,
        fabric_s=32,
        pcie_width_s=33,
        pcie_speed_s=34,
        pcie_clear_s=35,
        clear_s=61,
        gap_s=20,
        withdrawing=frozenset({MeasuredFault.PCIE_WIDTH}),
        ignore=frozenset({MeasuredFault.REMAP_PENDING}),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{clearSeconds: 29}", "clearSeconds: must be at least nvlinkDownSeconds, 30"),
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
