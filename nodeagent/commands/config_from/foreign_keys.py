"""The keys of other programs' configurations, read from their sources, and what becomes of each. Pure data.

``HAS_COUNTERPART``: the key has a counterpart, or means nothing here. Any other text is the reason why it is lost, and
the remedy.
sriov-network-device-plugin 40b6f507 (pkg/types/types.go), sriov-network-operator 249e2001
(api/v1/sriovnetworknodepolicy_types.go), k8s-device-plugin 1b826acc (api/config/v1), k8s-rdma-shared-dev-plugin
410b0f32 (pkg/types/types.go).
"""

from __future__ import annotations

from collections.abc import Mapping

HAS_COUNTERPART = ""

SRIOVDP_RESOURCE: Mapping[str, str] = {
    "resourcePrefix": HAS_COUNTERPART,
    "resourceName": HAS_COUNTERPART,
    "deviceType": HAS_COUNTERPART,
    "excludeTopology": "the agent reports the NUMA node of a VF if the kernel has one; set the node's Topology Manager "
    "policy to none or best-effort if pods are refused for it",
    "selectors": HAS_COUNTERPART,
    "additionalInfo": "the agent sets no variables of your own; set them in the pod (env)",
}
SRIOVDP_SELECTORS: Mapping[str, str] = {
    "vendors": HAS_COUNTERPART,
    "devices": HAS_COUNTERPART,
    "drivers": HAS_COUNTERPART,
    "pciAddresses": HAS_COUNTERPART,
    "pfNames": HAS_COUNTERPART,
    "rootDevices": HAS_COUNTERPART,
    "linkTypes": HAS_COUNTERPART,
    "isRdma": HAS_COUNTERPART,
    "needVhostNet": HAS_COUNTERPART,
    "acpiIndexes": "nodeagent selects PFs by pciAddresses or netdevs; name them by these",
    "ddpProfiles": "nodeagent does not read DDP profiles; name the PFs with this profile by netdevs",
    "pKeys": "nodeagent does not read partition keys of VFs; name the VFs by netdevs and vfIndexes",
    "vdpaType": "nodeagent passes on a VF's vhost-vDPA device, and does not select by it; name the VFs by netdevs and "
    "vfIndexes",
    "auxTypes": "nodeagent offers no sub-functions; keep that plugin for them, under names of its own",
}
SRIOV_POLICY: Mapping[str, str] = {
    "resourceName": HAS_COUNTERPART,
    "nodeSelector": HAS_COUNTERPART,
    "priority": HAS_COUNTERPART,
    "mtu": HAS_COUNTERPART,
    "numVfs": HAS_COUNTERPART,
    "nicSelector": HAS_COUNTERPART,
    "deviceType": HAS_COUNTERPART,
    "isRdma": HAS_COUNTERPART,
    "needVhostNet": HAS_COUNTERPART,
    "linkType": HAS_COUNTERPART,
    "eSwitchMode": "`nodeagent vfs apply` leaves the mode of the embedded switch; set it at boot: devlink dev eswitch "
    "set pci/ADDRESS mode switchdev",
    "vdpaType": "`nodeagent vfs apply` makes no vDPA devices, and no resource selects by them; make them at boot "
    "(vdpa dev add), and the VF's vhost-vDPA device is passed on",
    "excludeTopology": SRIOVDP_RESOURCE["excludeTopology"],
    "externallyManaged": HAS_COUNTERPART,
    "bridge": "nodeagent makes no Open vSwitch bridge; make it at boot, or by your network configuration",
}
SRIOV_NIC_SELECTOR: Mapping[str, str] = {
    "vendor": HAS_COUNTERPART,
    "deviceID": HAS_COUNTERPART,
    "rootDevices": HAS_COUNTERPART,
    "pfNames": HAS_COUNTERPART,
    "netFilter": "nodeagent does not ask a cloud for the network of a NIC; name the NICs by netdevs",
}
_DEVICE_NODES = (
    "the agent passes on the GPU's own device nodes; mount {} in the pod, or give them by a CDI spec of yours"
)
RDMA_SHARED_RESOURCE: Mapping[str, str] = dict.fromkeys(
    ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors"), HAS_COUNTERPART
)
RDMA_SHARED_SELECTORS: Mapping[str, str] = dict.fromkeys(
    ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"), HAS_COUNTERPART
)
NVIDIA_TOP: Mapping[str, str] = dict.fromkeys(
    ("version", "flags", "resources", "sharing", "imex"), HAS_COUNTERPART
)
NVIDIA_FLAGS: Mapping[str, str] = {
    "migStrategy": HAS_COUNTERPART,
    "failOnInitError": HAS_COUNTERPART,
    "mpsRoot": HAS_COUNTERPART,
    "nvidiaDriverRoot": HAS_COUNTERPART,
    "nvidiaDevRoot": "the agent takes the device nodes from /dev of the host; leave it out if they are there",
    "gdrcopyEnabled": _DEVICE_NODES.format("/dev/gdrdrv"),
    "gdsEnabled": _DEVICE_NODES.format("/dev/nvidia-fs*"),
    "mofedEnabled": "the RDMA devices come with the VFs: a pod asks for nicN beside its GPU",
    "useNodeFeatureAPI": HAS_COUNTERPART,
    "deviceDiscoveryStrategy": HAS_COUNTERPART,
    "plugin": HAS_COUNTERPART,
    "gfd": HAS_COUNTERPART,
}
NVIDIA_PLUGIN: Mapping[str, str] = {
    "passDeviceSpecs": HAS_COUNTERPART,
    "deviceListStrategy": HAS_COUNTERPART,
    "deviceIDStrategy": HAS_COUNTERPART,
    "cdiAnnotationPrefix": HAS_COUNTERPART,
    "nvidiaCTKPath": HAS_COUNTERPART,
    "containerDriverRoot": HAS_COUNTERPART,
    "sharedDevicesAllocationPolicy": HAS_COUNTERPART,
}
NVIDIA_SHARING: Mapping[str, str] = dict.fromkeys(("timeSlicing", "mps"), HAS_COUNTERPART)
NVIDIA_REPLICATED: Mapping[str, str] = dict.fromkeys(
    ("renameByDefault", "failRequestsGreaterThanOne", "resources"), HAS_COUNTERPART
)
NVIDIA_REPLICA: Mapping[str, str] = dict.fromkeys(("name", "rename", "devices", "replicas"), HAS_COUNTERPART)
NVIDIA_IMEX: Mapping[str, str] = {
    "channelIDs": "the agent passes on no IMEX channel; NVIDIA's DRA driver does (ComputeDomains)",
    "required": HAS_COUNTERPART,
}

VF_DEVICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("8086", "154c"): ("158a", "158b", "1572", "1589", "1581", "15ff", "0d58", "1583"),
    ("8086", "1889"): (
        *(
            "1592",
            "1593",
            "159b",
            "1599",
            "1591",
            "188a",
            "124d",
            "124c",
            "579c",
            "579d",
            "579e",
            "12d2",
            "12d3",
        ),
        *("1249", "124a"),
    ),
    ("8086", "1565"): ("1563",),
    ("8086", "1515"): ("1528", "1560"),
    ("8086", "10ed"): (
        *(
            "10f7",
            "1514",
            "1517",
            "151c",
            "10f9",
            "10fb",
            "152a",
            "1529",
            "1507",
            "154d",
            "1557",
            "10fc",
            "10f8",
        ),
        *("154f", "154a", "1558"),
    ),
    ("8086", "10ca"): ("10c9",),
    ("1dd8", "1003"): ("1002",),
    ("15b3", "1014"): ("1013",),
    ("15b3", "1016"): ("1015",),
    ("15b3", "1018"): ("1017",),
    ("15b3", "101a"): ("1019",),
    ("15b3", "101c"): ("101b",),
    ("15b3", "101e"): ("101d", "101f", "1021", "1023", "1025", "a2d6", "a2dc"),
    ("14e4", "16dc"): ("16d7",),
    ("14e4", "1806"): ("1750",),
    ("1077", "1664"): ("1654",),
}
"""Vendor and device ID of VFs → the device IDs of the PFs that have them: the operator's supported-nic-ids
(deployment/sriov-network-operator-chart/templates/configmap.yaml), and for 82599, X540 and AMD's Pensando cards Linux'
drivers/net/ethernet/intel/ixgbe/ixgbe_type.h and drivers/net/ethernet/pensando/ionic/ionic.h."""

VF_DRIVERS: Mapping[str, tuple[str, ...]] = {
    "iavf": ("i40e", "ice"),
    "i40evf": ("i40e",),
    "ixgbevf": ("ixgbe",),
    "igbvf": ("igb",),
    "mlx5_core": ("mlx5_core",),
    "mlx4_core": ("mlx4_core",),
    "bnxt_en": ("bnxt_en",),
    "qede": ("qede",),
    "ionic": ("ionic",),
}
"""A network driver of VFs → those of their PFs."""

UIO_DRIVERS = frozenset(("igb_uio", "uio_pci_generic"))

NO_PCI_DRIVERS = frozenset(("mlx5_ib", "mlx4_ib", "mlx4_en"))
"""Names of modules that some write as drivers. They bind to devices on the auxiliary bus, or to none."""
