"""GPU families beside those of samples: names, health, XIDs, and the distance to each NIC."""

from collections.abc import Iterator

from nodeagent.facts.affinity import affinity
from nodeagent.facts.model import Health, State
from nodeagent.measurements.family import FROM_RULES
from nodeagent.metrics.computed_family import fact_family, live_family
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import Series
from nodeagent.sharing.gpu_accounts import PodAccount


def _judged(facts: FactIndex) -> Iterator[tuple[str, Health]]:
    """The GPUs by index, then those that no resource can offer by their PCI address."""
    for gpu in facts.snapshot.gpus:
        yield str(gpu.index), gpu.health
    for unusable in facts.snapshot.unusable_gpus:
        yield unusable.place, unusable.health


@fact_family(
    "gpus",
    "state",
    help="GPUs of the node: on_bus, on the PCI bus; named, reached by the driver; lost, known and not reached.",
    source="/sys/bus/pci/devices and NVML",
    use="on_bus above named: a GPU is lost or is not offered; nodeagent_gpu_health_reason gives the reason.",
)
def gpus(facts: FactIndex) -> Iterator[Series]:
    snapshot = facts.snapshot
    lost = sum(gpu.lost for gpu in snapshot.gpus)
    if snapshot.gpu_functions or snapshot.gpus:
        yield ("on_bus",), len(snapshot.gpu_functions)
        yield ("named",), len(snapshot.gpus) - lost
        yield ("lost",), lost


@fact_family(
    "gpu_recovery_action",
    "gpu,action",
    help="1 for the recovery action that the driver requests for the GPU.",
    source="gpu: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    use="gpu_reset: drain and reset; node_reboot: reboot; none: nothing.",
)
def gpu_recovery_action(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        if action := facts.text(gpu.uuid, "gpu_recovery_action"):
            yield (str(gpu.index), action), 1


@fact_family(
    "gpu_info",
    "gpu,uuid,pci_address,model,serial,driver_version,vbios_version,numa_node",
    help="Names and versions of a GPU; always 1.",
    source="NVML",
    use="Join on gpu for anything descriptive.",
    peers="labels of every DCGM series",
)
def gpu_info(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        texts = facts.texts.get(gpu.uuid, {})
        numa = "" if gpu.numa_node is None else str(gpu.numa_node)
        names = (texts.get(name, "") for name in ("gpu_serial", "gpu_driver", "gpu_vbios"))
        yield (str(gpu.index), gpu.uuid, gpu.pci_address, gpu.name, *names, numa), 1
    for unusable in facts.snapshot.unusable_gpus:
        yield (unusable.place, "", unusable.place, "", "", "", "", ""), 1


@fact_family(
    "gpu_health_state",
    "gpu,state",
    help="1 for the state that the GPU is in, 0 for the others.",
    source=FROM_RULES,
    use="unhealthy: the kubelet starts no new pods on it; nodeagent_gpu_health_reason gives the reason.",
    peers="DCGM_EXP_GPU_HEALTH_STATUS",
)
def gpu_health_state(facts: FactIndex) -> Iterator[Series]:
    for name, health in _judged(facts):
        for state in (State.HEALTHY, State.DEGRADED, State.UNHEALTHY, State.UNKNOWN, State.UNUSED):
            yield (name, state.value), health.state is state


@fact_family(
    "gpu_health_reason",
    "gpu,reason,severity",
    help="1 for each reason that is active.",
    source=FROM_RULES,
    use="The reason's section in docs/runbook.md has the remedy.",
)
def gpu_health_reason(facts: FactIndex) -> Iterator[Series]:
    for name, health in _judged(facts):
        for reason in health.reasons:
            yield (name, reason.key, "warning" if reason.warning else "fault"), 1


@live_family(
    "gpu_health_transitions_total",
    "gpu,from,to",
    help="Changes of state since the agent started.",
    source=FROM_RULES,
    use="A GPU that changes back and forth has a fault that a reset only hides.",
)
def gpu_health_transitions(shown: ScrapeInput) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}
    for device, figures in shown.health_figures.items():
        if device in names:
            for (before, after), count in sorted(figures.transitions.items()):
                yield (names[device], before, after), count


@fact_family(
    "gpu_fabric_state",
    "gpu,state",
    help="1 for the state of the GPU in the NVLink fabric.",
    source="gpu: nvmlDeviceGetGpuFabricInfoV",
    use="Anything but completed on an NVSwitch system: the fabric manager did not finish.",
)
def gpu_fabric_state(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        if state := facts.text(gpu.uuid, "gpu_fabric_state"):
            yield (str(gpu.index), state), 1


@live_family(
    "gpu_xid_errors_total",
    "gpu,xid",
    help="XIDs that the GPU reported since the agent started, ignored ones included.",
    source="nvmlEventSetWait_v2",
    use="docs/reference/gpu-rules.md lists the XIDs that make a GPU unhealthy; repeated XIDs count each time.",
    peers="DCGM_FI_DEV_XID_ERRORS (gauge: the last one); DCGM_EXP_XID_ERRORS_COUNT",
)
def gpu_xid_errors(shown: ScrapeInput) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}
    for (uuid, xid), count in sorted(shown.xids.items()):
        yield (names.get(uuid, uuid), str(xid)), count


@live_family(
    "gpu_last_xid_timestamp_seconds",
    "gpu,xid",
    help="Time at which the GPU last reported this XID.",
    source="nvmlEventSetWait_v2",
    use="Shows in a dashboard which XID came first.",
)
def gpu_last_xid(shown: ScrapeInput) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}
    for (uuid, xid), at in sorted(shown.xid_times.items()):
        yield (names.get(uuid, uuid), str(xid)), round(shown.boot_unix + at, 3)


_ACCOUNTING = "NVML's processes, /proc/PID/cgroup, the kubelet's podresources API"


def _pods(shown: ScrapeInput) -> Iterator[tuple[tuple[str, str, str], PodAccount]]:
    """The label values and the account of each pod on each GPU."""
    names = {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}
    for account in shown.gpu_accounts:
        for pod in account.pods:
            yield (names.get(account.uuid, account.uuid), pod.namespace, pod.pod), pod


@live_family(
    "gpu_accounting_on",
    help="1 while the agent can attribute GPU memory to pods, else 0.",
    source="the agent",
    use="0 with gpu.health.processes on: the log and nodeagent gpus name what is missing.",
)
def gpu_accounting_on(shown: ScrapeInput) -> Iterator[Series]:
    yield (), shown.accounting_obstacle is None


@live_family(
    "gpu_pod_memory_granted_bytes",
    "gpu,namespace,pod",
    help="GPU memory that the kubelet has granted to a pod; 0 if it uses the GPU without a grant.",
    source=_ACCOUNTING,
    use="Compare with nodeagent_gpu_pod_memory_used_bytes. Only where gpu.health.processes is on.",
)
def gpu_pod_memory_granted(shown: ScrapeInput) -> Iterator[Series]:
    for labels, pod in _pods(shown):
        yield labels, pod.granted_bytes


@live_family(
    "gpu_pod_memory_used_bytes",
    "gpu,namespace,pod",
    help="GPU memory that the processes of a pod use.",
    source=_ACCOUNTING,
    use="Above the grant: the pod takes memory of its neighbors. Only where gpu.health.processes is on.",
    peers="FB_USED by pod in dcgm-exporter, for whole GPUs",
)
def gpu_pod_memory_used(shown: ScrapeInput) -> Iterator[Series]:
    for labels, pod in _pods(shown):
        if pod.used_bytes is not None:
            yield labels, pod.used_bytes


@live_family(
    "gpu_pod_utilization_ratio",
    "gpu,namespace,pod",
    help="Part of the time in which the SMs of the GPU ran kernels of a pod.",
    source="nvmlDeviceGetProcessUtilization",
    use="Which of the pods on a shared GPU uses it. Only where gpu.health.processes is on.",
    peers="none; dcgm-exporter has it for the GPU (dcgm-exporter#307)",
)
def gpu_pod_utilization(shown: ScrapeInput) -> Iterator[Series]:
    for labels, pod in _pods(shown):
        if pod.utilization is not None:
            yield labels, pod.utilization


@live_family(
    "gpu_outside_memory_used_bytes",
    "gpu",
    help="GPU memory of processes that are in no pod.",
    source=_ACCOUNTING,
    use="nodeagent gpus names the processes: a display server, an MPS server, a program that a person has started.",
)
def gpu_outside_memory_used(shown: ScrapeInput) -> Iterator[Series]:
    names = {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}
    for account in shown.gpu_accounts:
        used = sum(process.memory_bytes for process in account.outside)
        yield (names.get(account.uuid, account.uuid),), used


@live_family(
    "gpu_memory_limits",
    "state",
    help="Shares of GPU memory whose hard limits the agent sets itself, by state: set, waiting (the container does not "
    "run), failed.",
    source="nvmlDeviceGetMemoryLimits_v1 for the cgroup of each container",
    use="failed: a container can use more than its share; its Event names the cause.",
    peers="none",
)
def gpu_memory_limits(shown: ScrapeInput) -> Iterator[Series]:
    for state, count in shown.limit_counts.items():
        yield (state,), count


@live_family(
    "gpu_memory_limit_writes_total",
    help="Hard limits of GPU memory that the agent has set.",
    source="nvmlDeviceSetMemoryLimits_v1",
    use="One for each start of a container. A steady growth: another program changes the limits.",
    peers="none",
)
def gpu_memory_limit_writes(shown: ScrapeInput) -> Iterator[Series]:
    if shown.limit_counts:
        yield (), shown.limit_writes


@fact_family(
    "gpu_mps_ready",
    "gpu",
    help="1 while the MPS daemon of a GPU answers, else 0; absent where no daemon is needed.",
    source="`nodeagent mps`, which probes the daemon",
    use="0: the slices of the GPU are Unhealthy, with the reason mps_daemon. Only with enforcement mps.",
    peers="none",
)
def gpu_mps_ready(facts: FactIndex) -> Iterator[Series]:
    for uuid, obstacle in facts.snapshot.mps_obstacles:
        yield (facts.gpu_name(uuid),), not obstacle


@live_family(
    "gpu_mps_daemon_ends_total",
    "gpu",
    help="Ends of the MPS daemon of a GPU since the agent started.",
    source="`nodeagent mps`",
    use="Each end takes the GPU from all its programs; the log and Events name the pods. Only with enforcement mps.",
    peers="none",
)
def gpu_mps_daemon_ends(shown: ScrapeInput) -> Iterator[Series]:
    for uuid, _ in shown.snapshot.mps_obstacles:
        yield (shown.fact_index().gpu_name(uuid),), shown.mps_ends.get(uuid, 0)


@fact_family(
    "gpu_nic_affinity_info",
    "gpu,device,relation",
    help="Distance between a GPU and a link: PIX, PXB, PHB, NODE or SYS, as in nvidia-smi topo -m; always 1.",
    source="the PCI paths under /sys/devices",
    use="A GPU should use a NIC at PIX or PXB.",
)
def gpu_nic_affinity(facts: FactIndex) -> Iterator[Series]:
    for gpu in facts.snapshot.gpus:
        for pf in facts.pfs:
            if not pf.missing:
                relation = affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node)
                yield (str(gpu.index), facts.link_name(pf.pci_address), relation.name), 1
