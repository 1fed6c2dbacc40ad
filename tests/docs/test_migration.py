"""docs/migration.md has a row for each option of the programs that people come from.

The names were read at these commits: HAMi 4707fb02 (``NvidiaConfig`` and ``DevicePluginConfigs`` of
``pkg/device/nvidia/device.go``, ``pkg/util/types.go``, ``charts/hami/values.yaml``), gpushare-device-plugin 45fb8b88
(``cmd/nvidia/main.go``, ``pkg/gpu/nvidia/const.go``), k8s-rdma-shared-dev-plugin 410b0f32 (``pkg/types/types.go``),
dra-driver-sriov cd9404f0 (``pkg/api``, ``pkg/consts/consts.go``). Those of the other three are the converter's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.commands.config_from import foreign_keys as keys

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
OPTIONS: dict[str, tuple[str, ...]] = {
    "NVIDIA device plugin (`nvidia.com/gpu`)": tuple(
        key
        for table in (
            *(keys.NVIDIA_FLAGS, keys.NVIDIA_PLUGIN, keys.NVIDIA_SHARING, keys.NVIDIA_REPLICATED),
            *(keys.NVIDIA_REPLICA, keys.NVIDIA_IMEX),
        )
        for key in table
        if key != "plugin"  # a heading of others
    ),
    "sriov-network-device-plugin": (*keys.SRIOVDP_RESOURCE, *keys.SRIOVDP_SELECTORS),
    "SR-IOV network operator": (*keys.SRIOV_POLICY, *keys.SRIOV_NIC_SELECTOR),
    "HAMi (`nvidia.com/gpu`, `nvidia.com/gpumem`)": (
        *("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
        *("nvidia.com/priority", "resourceCountName", "resourceMemoryName", "resourceCoreName"),
        *(
            "resourceMemoryPercentageName",
            "resourcePriorityName",
            "overwriteEnv",
            "defaultMemory",
            "defaultCores",
        ),
        *("defaultGPUNum", "memoryFactor", "disableCoreLimit", "migProfileAllowlist", "gpuCorePolicy"),
        *("runtimeClassName", "deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling"),
        *("preConfiguredDeviceMemory", "libCudaLogLevel", "enableNumaTopology", "nodeconfig", "name"),
        *("operatingmode", "migstrategy", "filterdevices", "uuid", "index", "enablegetpreferredallocation"),
        *(
            "nvidia.com/use-gputype",
            "nvidia.com/nouse-gputype",
            "nvidia.com/numa-bind",
            "nvidia.com/use-gpuuuid",
        ),
        *("nvidia.com/nouse-gpuuuid", "nvidia.com/vgpu-mode", "hami.io/device-cordon"),
        *("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy", "hami.io/device-scoring-weights"),
    ),
    "gpushare (`aliyun.com/gpu-mem`)": (
        *(
            "aliyun.com/gpu-mem",
            "aliyun.com/gpu-count",
            "mps",
            "health-check",
            "memory-unit",
            "query-kubelet",
        ),
        *("kubelet-address", "kubelet-port", "client-cert", "client-key", "token", "timeout"),
        *("cgpu.disable.isolation", "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"),
        *("ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_ASSIGNED"),
    ),
    "k8s-rdma-shared-dev-plugin": (
        *("periodicUpdateInterval", "configList", "resourceName", "resourcePrefix", "rdmaHcaMax", "devices"),
        *("selectors", "vendors", "deviceIDs", "drivers", "ifNames", "linkTypes", "use-cdi", "config-file"),
    ),
    "dra-driver-sriov": (
        *("nodeSelector", "configs", "deviceAttributesSelector", "resourceFilters", "vendors", "devices"),
        *(
            "pciAddresses",
            "pfNames",
            "pfPciAddresses",
            "drivers",
            "linkType",
            "driver",
            "addVhostMount",
            "ifName",
        ),
        *("netAttachDefName", "netAttachDefNamespace", "pciAddress", "PFName", "EswitchMode", "vendor"),
        *("deviceID", "pfDeviceID", "vfID", "resourceName", "rdmaCapable", "interfaceName", "pfPciAddress"),
        *("k8s.cni.cncf.io/deviceID", "k8s.cni.cncf.io/resourceName", "resource.kubernetes.io/pcieRoot"),
        *(
            "resource.kubernetes.io/pciBusID",
            "dra.net/numaNode",
            "configuration-mode",
            "enable-device-metadata",
        ),
        "default-interface-prefix",
    ),
}
"""The heading of each program's section, and the names of its options."""


def rows_of(heading: str) -> list[str]:
    """The first cells of the tables in a section."""
    sections = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
    (section,) = (text for text in sections if text.startswith(f"{heading}\n"))
    return [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("heading", OPTIONS)
def test_each_option_has_a_row(heading: str) -> None:
    quoted = {
        word
        for row in rows_of(heading)
        for code in re.findall("`([^`]+)`", row)
        for word in code.split(":")[:1]
    }
    assert not [option for option in OPTIONS[heading] if option not in quoted]


def test_an_option_without_a_row_is_found() -> None:
    assert "`nvidia.com/nothing`" not in rows_of("HAMi (`nvidia.com/gpu`, `nvidia.com/gpumem`)")
