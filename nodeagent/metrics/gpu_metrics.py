"""The GPUs: memory, errors, NVLink, and how near each is to the NICs."""

from collections.abc import Iterator

from nodeagent.affinity import affinity
from nodeagent.metrics.family import Series, described, live, row
from nodeagent.metrics.scrape_input import Scene, View, missing
from nodeagent.model import State

row(
    "gpu_memory_used_bytes",
    "gpu",
    "gpu_memory_used_bytes",
    help="Memory in use on the GPU, by everyone.",
    use="Against what pods have asked for: slices are a promise, not a wall, without the toolkit's limits.",
    peers="DCGM_FI_DEV_FB_USED (MiB)",
)
row(
    "gpu_memory_total_bytes",
    "gpu",
    "gpu_memory_total_bytes",
    help="Memory of the GPU.",
    use="Denominator of its use.",
    peers="DCGM_FI_DEV_FB_TOTAL (MiB)",
)
row(
    "gpu_temperature_celsius",
    "gpu,sensor",
    ("gpu_celsius", "gpu"),
    ("gpu_memory_celsius", "memory"),
    help="Temperature of the GPU and of its memory.",
    use="One GPU hotter than its neighbors under equal load: airflow or paste.",
    peers="DCGM_FI_DEV_GPU_TEMP; DCGM_FI_DEV_MEMORY_TEMP",
)
row(
    "gpu_utilization_ratio",
    "gpu",
    "gpu_utilization",
    help="Share of the last period in which a kernel ran.",
    use="1 may still be one small kernel after the other; 0 on an allocated GPU is a job that waits.",
    peers="DCGM_FI_DEV_GPU_UTIL (percent)",
)
row(
    "gpu_performance_state",
    "gpu",
    "gpu_performance_state",
    help="The P-state; 0 is the fastest.",
    use="PCIe speed is judged at 0 alone.",
    peers="DCGM_FI_DEV_PSTATE",
)
row(
    "gpu_ecc_errors_total",
    "gpu,type,location",
    ("gpu_ecc_correctable_sram", "correctable", "sram"),
    ("gpu_ecc_correctable_dram", "correctable", "dram"),
    ("gpu_ecc_uncorrectable_sram", "uncorrectable", "sram"),
    ("gpu_ecc_uncorrectable_dram", "uncorrectable", "dram"),
    help="ECC errors since the driver was loaded.",
    use="Uncorrectable in SRAM: the GPU is unhealthy until it was reset.",
    peers="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL; DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
)
row(
    "gpu_sram_threshold_exceeded",
    "gpu",
    "gpu_sram_threshold_exceeded",
    help="1 when the driver finds more SRAM errors than it accepts.",
    use="NVIDIA's own limit for returning the GPU.",
)
row(
    "gpu_remapped_rows",
    "gpu,cause",
    ("gpu_remapped_correctable", "correctable"),
    ("gpu_remapped_uncorrectable", "uncorrectable"),
    help="Rows of memory replaced by spare ones.",
    use="They never come back; more than 512 uncorrectable is the end of the GPU.",
    peers="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS; DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
)
row(
    "gpu_row_remap_pending",
    "gpu",
    "gpu_row_remap_pending",
    help="1 while a row waits for a reset to be replaced.",
    use="Drain and reset the GPU when it is idle.",
    peers="DCGM_FI_DEV_ROW_REMAP_PENDING",
)
row(
    "gpu_row_remap_failed",
    "gpu",
    "gpu_row_remap_failed",
    help="1 when a row could not be replaced.",
    use="The GPU has to be changed.",
    peers="DCGM_FI_DEV_ROW_REMAP_FAILURE",
)
row(
    "gpu_nvlink_up",
    "gpu,link",
    "gpu_nvlink_up",
    help="1 while the NVLink is up.",
    use="Any 0: alert NodeGpuNvlinkDown; jobs across GPUs fall back to PCIe or fail.",
    peers="DCGM_EXP_P2P_STATUS",
)
row(
    "gpu_nvlink_errors_total",
    "gpu,kind",
    ("gpu_nvlink_replays", "replay"),
    ("gpu_nvlink_recoveries", "recovery"),
    ("gpu_nvlink_crc_errors", "crc"),
    help="NVLink errors of the data link layer, all links.",
    use="Recoveries cost time, CRC errors alone are mended; a climb comes before a link that fails.",
    peers="DCGM_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL",
)
row(
    "gpu_nvlink_speed_bytes",
    "gpu",
    "gpu_nvlink_bytes_per_second",
    help="Speed of one NVLink in bytes per second.",
    use="Equal on all GPUs of a node.",
)
row(
    "gpu_pcie_replays_total",
    "gpu",
    "gpu_pcie_replays",
    help="PCIe packets sent again.",
    use="A steady rate: reseat; compare with nodeagent_pcie_aer_errors_total.",
    peers="DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
)
row(
    "gpu_pcie_generation",
    "gpu,which",
    ("gpu_pcie_generation", "current"),
    ("gpu_pcie_generation_max", "possible"),
    help="PCIe generation, at present and as GPU and slot could do.",
    use="Idle GPUs train down: judge it under load.",
    peers="DCGM_FI_DEV_PCIE_LINK_GEN; DCGM_FI_DEV_PCIE_MAX_LINK_GEN",
)
row(
    "gpu_pcie_width_lanes",
    "gpu,which",
    ("gpu_pcie_width", "current"),
    ("gpu_pcie_width_max", "possible"),
    help="PCIe width in lanes, at present and as GPU and slot could do.",
    use="Unequal: alert NodePcieWidthReduced.",
    peers="DCGM_FI_DEV_PCIE_LINK_WIDTH; DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
)

row(
    "gpu_fabric_fault",
    "gpu,fault",
    ("gpu_fabric_degraded_bandwidth", "degraded_bandwidth"),
    ("gpu_fabric_route_unhealthy", "route_unhealthy"),
    ("gpu_fabric_misconfigured", "misconfigured"),
    help="1 while the NVLink fabric has this fault, as the GPU sees it.",
    use="The fabric manager's log says which switch; jobs across GPUs are slow or fail.",
)
row(
    "gpu_processes",
    "gpu",
    "gpu_processes",
    help="Processes that compute on the GPU.",
    use="More than pods: somebody works past the kubelet.",
)
row(
    "gpu_pcie_errors_total",
    "gpu,error",
    "gpu_pcie_errors",
    help="PCIe errors by NVML's names.",
    use="As nodeagent_pcie_aer_errors_total, from the GPU's side.",
    peers="DCGM_FI_PROF_PCIE_*; DCGM_FI_DEV_PCIE_COUNT_*",
)
row(
    "gpu_sram_uncorrectable_errors_total",
    "gpu,part",
    "gpu_sram_uncorrectable_lifetime",
    help="Uncorrectable SRAM errors in the GPU's whole life.",
    use="Which part fails again and again; for the return to the vendor.",
)
row(
    "gpu_container_memory_used_bytes",
    "gpu,container_id",
    "gpu_container_memory_bytes",
    help="Memory of the GPU that a container's processes use.",
    use="Who takes more than asked for: join container_id of kube_pod_container_info (without its scheme). host is a "
    "process in no container. Only where gpu.health.processes is on; a pid is never shown.",
    peers="FB_USED by process in dcgm-exporter",
)


@described(
    "gpu_recovery_action",
    "gpu,action",
    help="1 for what the driver asks for to mend the GPU.",
    source="gpu: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    use="gpu_reset: drain and reset; node_reboot: reboot; none: nothing.",
)
def gpu_recovery_action(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        if action := scene.text(gpu.uuid, "gpu_recovery_action"):
            yield (str(gpu.index), action), 1


@described(
    "gpu_info",
    "gpu,uuid,pci_address,model,serial,driver_version,vbios_version,numa_node",
    help="What is known of a GPU by name; always 1.",
    source="NVML",
    use="Join on gpu for anything descriptive.",
    peers="labels of every DCGM series",
)
def gpu_info(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        texts = scene.texts.get(gpu.uuid, {})
        numa = "" if gpu.numa_node is None else str(gpu.numa_node)
        named = (texts.get(name, "") for name in ("gpu_serial", "gpu_driver", "gpu_vbios"))
        yield (str(gpu.index), gpu.uuid, gpu.pci_address, gpu.name, *named, numa), 1


@described(
    "gpu_health_state",
    "gpu,state",
    help="1 for the state that the GPU is in, 0 for the others.",
    source="the rules",
    use="unhealthy: the kubelet gets no more pods for it; nodeagent_gpu_health_reason says why.",
    peers="DCGM_EXP_GPU_HEALTH_STATUS",
)
def gpu_health_state(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        for state in (State.HEALTHY, State.DEGRADED, State.UNHEALTHY, State.UNKNOWN):
            now = State.UNHEALTHY if gpu.health.state is State.DOWN else gpu.health.state
            yield (str(gpu.index), state.value), now is state


@described(
    "gpu_health_reason",
    "gpu,reason,severity",
    help="1 for each reason that is active.",
    source="the rules",
    use="The reason's section in docs/runbook.md says what to do.",
)
def gpu_health_reason(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        for reason in gpu.health.reasons:
            yield (str(gpu.index), reason.key, "warning" if reason.warning else "fault"), 1


@live(
    "gpu_health_transitions_total",
    "gpu,from,to",
    help="Changes of state since the agent began.",
    source="the rules",
    use="One that goes back and forth has a fault that a reset only hides.",
)
def gpu_health_transitions(view: View) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in view.snapshot.gpus}
    for device, judged in view.judged.items():
        if device in names:
            for (before, after), count in sorted(judged.transitions.items()):
                yield (names[device], before, after), count


row(
    "gpu_health_since_timestamp_seconds",
    "gpu",
    "gpu_since_unix",
    help="When the state changed last.",
    use="time() - this is how long it has lasted.",
)
row(
    "gpu_rule_value",
    "gpu,rule",
    "gpu_rule_value",
    help="The number that a rule compared with its threshold.",
    use="How near to a fault a GPU is.",
)


@described(
    "gpu_fabric_state",
    "gpu,state",
    help="1 for the state of the GPU in the NVLink fabric.",
    source="gpu: nvmlDeviceGetGpuFabricInfoV",
    use="Anything but completed on an NVSwitch system: the fabric manager has not done its work.",
)
def gpu_fabric_state(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        if state := scene.text(gpu.uuid, "gpu_fabric_state"):
            yield (str(gpu.index), state), 1


@live(
    "gpu_xid_errors_total",
    "gpu,xid",
    help="XIDs that the GPU reported since the agent began, ignored ones too.",
    source="nvmlEventSetWait_v2",
    use="Which ones condemn the GPU is in the README; the same one twice counts twice.",
    peers="DCGM_FI_DEV_XID_ERRORS (gauge: the last one); DCGM_EXP_XID_ERRORS_COUNT",
)
def gpu_xid_errors(view: View) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in view.snapshot.gpus}
    for (uuid, xid), count in sorted(view.xids.items()):
        yield (names.get(uuid, uuid), str(xid)), count


@live(
    "gpu_last_xid_timestamp_seconds",
    "gpu,xid",
    help="When the GPU reported this XID last.",
    source="nvmlEventSetWait_v2",
    use="For a line in a dashboard: what came first.",
)
def gpu_last_xid(view: View) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in view.snapshot.gpus}
    for (uuid, xid), at in sorted(view.xid_times.items()):
        yield (names.get(uuid, uuid), str(xid)), round(view.boot_unix + at, 3)


@described(
    "gpu_nic_affinity_info",
    "gpu,device,relation",
    help="How near a GPU and a link are: PIX, PXB, PHB, NODE or SYS, as in nvidia-smi topo -m; always 1.",
    source="the PCI paths under /sys/devices",
    use="Traffic of a GPU belongs on a NIC at PIX or PXB.",
)
def gpu_nic_affinity(scene: Scene) -> Iterator[Series]:
    for gpu in scene.snapshot.gpus:
        for pf in scene.pfs:
            if not missing(pf.health):
                relation = affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node)
                yield (str(gpu.index), scene.link_name(pf.pci_address), relation.name), 1
