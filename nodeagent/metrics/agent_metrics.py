"""Families of the agent's own numbers: calls of the kubelet, readers, tasks, GPU memory of pods, and lost series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from nodeagent import __version__
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.metrics.computed_family import ComputedFamily, by_key, computed, single
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import Series
from nodeagent.sharing.gpu_accounts import PodAccount

# --- the kubelet and the cluster ----------------------------------------------------------------------------


def _rpc_duration(shown: ScrapeInput) -> Iterator[Series]:
    for method, durations in sorted(shown.rpc_stats.durations.items()):
        buckets = durations.buckets()
        for bound, count in buckets:
            yield (method, bound), count
        yield (method, "sum"), durations.sum_s
        yield (method, "count"), buckets[-1][1]


def _registered(shown: ScrapeInput) -> Iterator[Series]:
    for status in shown.statuses:
        yield (status.resource,), status.registered
    for entry in shown.withheld:
        if entry.named:
            yield (entry.resource,), False


def _devices(shown: ScrapeInput) -> Iterator[Series]:
    for status in shown.statuses:
        yield (status.resource, "healthy"), status.healthy
        yield (status.resource, "unhealthy"), status.devices - status.healthy


def _cluster_writes(shown: ScrapeInput) -> Iterator[Series]:
    for writes in shown.cluster_writes:
        for result, count in sorted(writes.results.items()):
            yield (writes.part, result), count


# --- the agent's readers and tasks --------------------------------------------------------------------------


def _readers(number: Callable[[ReaderStatus], float | None]) -> Callable[[ScrapeInput], Iterator[Series]]:
    """A number of each reader that has finished or failed a reading."""

    def series(shown: ScrapeInput) -> Iterator[Series]:
        for status in shown.reader_statuses:
            attempted = status.succeeded_at is not None or status.reason is not None
            if attempted and (value := number(status)) is not None:
                yield (status.name,), value

    return series


def _reader_last_success(shown: ScrapeInput) -> Iterable[Series]:
    return _readers(
        lambda status: _unix(shown, status.succeeded_at) if status.succeeded_at is not None else None
    )(shown)


def _unix(shown: ScrapeInput, boottime: float) -> float:
    """The Unix time of a CLOCK_BOOTTIME."""
    return round(shown.boot_unix + boottime, 3)


# --- GPUs and health ----------------------------------------------------------------------------------------


def _gpu_names(shown: ScrapeInput) -> dict[str, str]:
    return {gpu.uuid: str(gpu.index) for gpu in shown.snapshot.gpus}


def _transitions(shown: ScrapeInput, names: Mapping[str, str]) -> Iterator[Series]:
    """Changes of the state of each device that has a name."""
    for device, figures in shown.health_figures.items():
        if device in names:
            for (before, after), count in sorted(figures.transitions.items()):
                yield (names[device], before, after), count


def _link_transitions(shown: ScrapeInput) -> Iterator[Series]:
    facts = shown.fact_index()
    return _transitions(
        shown, {device: facts.link_name(device) for device in shown.health_figures if device in facts.present}
    )


def _of_xids(shown: ScrapeInput, numbers: Mapping[tuple[str, int], float]) -> Iterator[Series]:
    names = _gpu_names(shown)
    for (uuid, xid), number in sorted(numbers.items()):
        yield (names.get(uuid, uuid), str(xid)), number


def _pods(number: Callable[[PodAccount], float | None]) -> Callable[[ScrapeInput], Iterator[Series]]:
    """A number of each pod on each GPU."""

    def series(shown: ScrapeInput) -> Iterator[Series]:
        names = _gpu_names(shown)
        for account in shown.gpu_accounts:
            for pod in account.pods:
                if (value := number(pod)) is not None:
                    yield (names.get(account.uuid, account.uuid), pod.namespace, pod.pod), value

    return series


def _outside_memory(shown: ScrapeInput) -> Iterator[Series]:
    names = _gpu_names(shown)
    for account in shown.gpu_accounts:
        used = sum(process.memory_bytes for process in account.outside)
        yield (names.get(account.uuid, account.uuid),), used


def _mps_daemon_ends(shown: ScrapeInput) -> Iterator[Series]:
    for uuid, _ in shown.snapshot.mps_obstacles:
        yield (shown.fact_index().gpu_name(uuid),), shown.mps_ends.get(uuid, 0)


AGENT_FAMILIES: tuple[ComputedFamily[ScrapeInput], ...] = (
    computed("build_info", "version", "The version of the agent; always 1.", lambda _: [((__version__,), 1)]),
    computed("rpc_duration_seconds", "method,le", "Time to answer a call of the kubelet.",
        _rpc_duration, histogram=True),
    computed("rpcs_total", "resource,method,result", "Calls of the kubelet by gRPC result.",
        lambda shown: sorted(shown.rpc_stats.calls.items())),
    computed("claims_prepared", "", "ResourceClaims whose devices the agent holds for pods (mode dra).",
        lambda shown: single(None if shown.claims is None else shown.claims.prepared)),
    computed("claim_conflicts_total", "", "ResourceClaims refused because other claims or pods held their devices.",
        lambda shown: single(None if shown.claims is None else shown.claims.conflicts)),
    computed("kubelet_registrations_total", "resource,result", "Registrations with the kubelet by result.",
        lambda shown: sorted(shown.rpc_stats.registrations.items())),
    computed("resource_registered", "resource", "1 while the resource is registered with the kubelet.", _registered),
    computed("file_unwritable", "file,error",
        "1 while a file that containers need cannot be written; error is the name of the errno.",
        lambda shown: (((file.path, file.error), 1) for file in shown.unwritable)),
    computed("state_unwritable", "file", "1 while a file of the state folder cannot be written, or read.",
        lambda shown: (((str(file.path),), 1) for file in shown.unwritable_state)),
    computed("resource_devices", "resource,health", "Devices in the list that the agent sends to the kubelet.",
        _devices),
    computed("source_silent", "source", "1 while a source of facts fails.",
        lambda shown: (((entry.source,), 1) for entry in shown.snapshot.stale_sources)),
    computed("hanging_call_seconds", "source", "Time since a call that does not return began.",
        lambda shown: (((source,), round(seconds, 1)) for source, seconds in shown.hanging.items())),
    computed("task_restarts_total", "task", "Tasks of the agent that failed and were restarted.",
        lambda shown: by_key(shown.restarts)),
    computed("cluster_writes_total", "part,result",
        "Writes to the API server or NVSentinel by the part of the agent that made them, and their result.",
        _cluster_writes),
    computed("cluster_writes_failing", "part",
        "1 while the writes of this part of the agent do not reach their server, or are refused.",
        lambda shown: (((writes.part,), writes.reason is not None) for writes in shown.cluster_writes)),
    computed("cluster_objects_removed_total", "part",
        "Objects of this part of the agent that another client deleted. A kubelet that starts deletes ResourceSlices.",
        lambda shown: (((part.part,), part.removed) for part in shown.cluster_writes if part.part == "slices")),
    computed("cluster_report_left_out", "",
        "Parts of this node's NodeLinks report that the API server refused; the rest is published.",
        lambda shown: (((), len(part.left_out)) for part in shown.cluster_writes if part.part == "nodelinks")),
    computed("configuration_in_force", "",
        "1 while the content of the configuration file is in force, 0 while the file is refused or unreadable.",
        lambda shown: single(not shown.configuration_fault)),
    computed("gpu_driver_stuck_threads", "", "Threads that hang in the GPU driver.",
        lambda shown: single(shown.stuck_threads)),
    computed("collector_up", "collector", "1 when the last reading of a collector succeeded.",
        _readers(lambda status: status.up)),
    computed("collector_duration_seconds", "collector", "Duration of the last reading of a collector.",
        _readers(lambda status: status.duration_s and round(status.duration_s, 6))),
    computed("collector_last_success_timestamp_seconds", "collector",
        "Time of the last successful reading of a collector.", _reader_last_success),
    computed("collector_errors_total", "collector", "Readings of a collector that failed.",
        _readers(lambda status: status.errors)),
    computed("netlink_overruns_total", "socket",
        "Times that the kernel dropped messages because the socket buffer was full; the agent then rescans.",
        lambda shown: by_key(shown.overruns)),
    computed("lldp_last_received_timestamp_seconds", "device", "Time at which the last LLDP frame arrived.",
        lambda shown: by_key({link: _unix(shown, at) for link, at in shown.last_lldp.items()})),
    computed("web_certificate_expiry_timestamp_seconds", "",
        "Expiry of the certificate that serves this page; absent without TLS.",
        lambda shown: single((shown.certificate and shown.certificate[0]) or None)),
    computed("web_certificate_fresh", "",
        "1 when the last load of the certificate files succeeded; 0 while the old certificate stays in use.",
        lambda shown: single(shown.certificate and shown.certificate[1])),
    computed("series_dropped_total", "family", "Series left out of a scrape because their family has too many.",
        lambda shown: by_key(shown.dropped)),
    computed("gpu_health_transitions_total", "gpu,from,to", "Changes of state since the agent started.",
        lambda shown: _transitions(shown, _gpu_names(shown))),
    computed("gpu_xid_errors_total", "gpu,xid",
        "XIDs that the GPU reported since the agent started, ignored ones included.",
        lambda shown: _of_xids(shown, shown.xids)),
    computed("gpu_last_xid_timestamp_seconds", "gpu,xid", "Time at which the GPU last reported this XID.",
        lambda shown: _of_xids(shown, {xid: _unix(shown, at) for xid, at in shown.xid_times.items()})),
    computed("nvswitch_sxid_errors_total", "pci_address,sxid",
        "SXids that an NVSwitch reported in the kernel log since the agent started.",
        lambda shown: (((address, str(sxid)), count) for (address, sxid), count in sorted(shown.sxids.items()))),
    computed("gpu_accounting_on", "", "1 while the agent can attribute GPU memory to pods, else 0.",
        lambda shown: single(shown.accounting_obstacle is None)),
    computed("gpu_pod_memory_granted_bytes", "gpu,namespace,pod",
        "GPU memory that the kubelet has granted to a pod; 0 if it uses the GPU without a grant.",
        _pods(lambda pod: pod.granted_bytes)),
    computed("gpu_pod_memory_used_bytes", "gpu,namespace,pod", "GPU memory that the processes of a pod use.",
        _pods(lambda pod: pod.used_bytes)),
    computed("gpu_pod_utilization_ratio", "gpu,namespace,pod",
        "Part of the time in which the SMs of the GPU ran kernels of a pod.", _pods(lambda pod: pod.utilization)),
    computed("gpu_outside_memory_used_bytes", "gpu", "GPU memory of processes that are in no pod.", _outside_memory),
    computed("gpu_memory_limits", "state",
        "Shares of GPU memory whose hard limits the agent sets itself, by state: set, waiting (the container does not "
        "run), failed.", lambda shown: (((state,), count) for state, count in shown.limit_counts.items())),
    computed("gpu_memory_limit_writes_total", "", "Hard limits of GPU memory that the agent has set.",
        lambda shown: single(shown.limit_writes if shown.limit_counts else None)),
    computed("gpu_mps_daemon_ends_total", "gpu", "Ends of the MPS daemon of a GPU since the agent started.",
        _mps_daemon_ends),
    computed("link_health_transitions_total", "device,from,to", "Changes of state since the agent started.",
        _link_transitions),
)  # fmt: skip
"""In the order of the page. They are computed at each scrape."""
