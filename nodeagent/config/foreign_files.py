"""Files of other programs that are given in place of ours: known by their keys, with the page that has the way from
there."""

from __future__ import annotations

from collections.abc import Collection

_SRIOV = "`nodeagent config from {} FILE` converts it (docs/migration.md#sriov-network-device-plugin)"
_NVIDIA = (
    "`nodeagent config from nvidia FILE` converts it (docs/migration.md#nvidia-device-plugin-nvidiacomgpu)"
)
_NIC_POLICY = (
    "a policy of NVIDIA's network operator: `nodeagent config from sriovdp FILE` converts its sriovDevicePlugin, "
    "`nodeagent config from rdma-shared FILE` its rdmaSharedDevicePlugin (docs/migration.md#convert-the-configuration)"
)
_BY_KIND = {
    "ConfigMap": "a ConfigMap: give the text of its key alone, as kubectl get configmap NAME -o jsonpath prints it",
    "NicClusterPolicy": _NIC_POLICY,
    "NicNodePolicy": _NIC_POLICY,
    "SriovNetworkNodePolicy": f"a policy of the SR-IOV network operator: {_SRIOV.format('sriov-operator')}",
}
_BY_KEYS = (
    ({"resourceList"}, f"the configuration of sriov-network-device-plugin: {_SRIOV.format('sriovdp')}"),
    ({"version", "sharing"}, f"the configuration of NVIDIA's device plugin: {_NVIDIA}"),
    ({"version", "flags"}, f"the configuration of NVIDIA's device plugin: {_NVIDIA}"),
    (
        {"configList"},
        "the configuration of k8s-rdma-shared-dev-plugin: `nodeagent config from rdma-shared FILE` converts it "
        "(docs/migration.md#k8s-rdma-shared-dev-plugin)",
    ),
)
"""sriov-network-device-plugin pkg/types/types.go (``resourceList``), k8s-device-plugin api/config/v1/config.go
(``version``, ``flags``, ``sharing``), k8s-rdma-shared-dev-plugin pkg/types/types.go (``configList``)."""


def other_program(keys: Collection[str], kind: object) -> str | None:
    """Return what a file with these keys at its top and this ``kind`` is, if another program reads it."""
    if isinstance(kind, str) and kind in _BY_KIND:
        return _BY_KIND[kind]
    return next((what for marks, what in _BY_KEYS if marks <= set(keys)), None)
