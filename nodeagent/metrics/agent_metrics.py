"""The agent itself: calls of the kubelet, readers, tasks, and series that it left out."""

from collections.abc import Iterator

from nodeagent import __version__
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.metrics.computed_family import live_family
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import Series


@live_family(
    "build_info",
    "version",
    help="The version of the agent; always 1.",
    source="the agent",
    use="Follow a rollout.",
)
def build_info(_shown: ScrapeInput) -> Iterator[Series]:
    yield (__version__,), 1


@live_family(
    "rpc_duration_seconds",
    "method,le",
    type="histogram",
    help="Time to answer a call of the kubelet.",
    source="the agent",
    use="The kubelet admits pods one after another and waits for Allocate: above 0.1 s check the disk.",
)
def rpc_duration(shown: ScrapeInput) -> Iterator[Series]:
    for method, durations in sorted(shown.rpc_stats.durations.items()):
        buckets = durations.buckets()
        for bound, count in buckets:
            yield (method, bound), count
        yield (method, "sum"), durations.sum_s
        yield (method, "count"), buckets[-1][1]


@live_family(
    "rpcs_total",
    "resource,method,result",
    help="Calls of the kubelet by gRPC result.",
    source="the agent",
    use="Any result but OK: a pod was refused; its event gives the reason.",
)
def rpcs(shown: ScrapeInput) -> Iterator[Series]:
    yield from sorted(shown.rpc_stats.calls.items())


@live_family(
    "claims_prepared",
    help="ResourceClaims whose devices the agent holds for pods (mode dra).",
    source="the agent",
    use="Compare with the pods of the node: a claim without a pod is ended after two comparisons with the API server.",
)
def claims_prepared(shown: ScrapeInput) -> Iterator[Series]:
    if shown.claims is not None:
        yield (), shown.claims.prepared


@live_family(
    "claim_conflicts_total",
    help="ResourceClaims refused because other claims or pods held their devices.",
    source="the agent",
    use="It grows for a moment when pods are deleted by force; if it continues to grow, several schedulers overbook.",
)
def claim_conflicts(shown: ScrapeInput) -> Iterator[Series]:
    if shown.claims is not None:
        yield (), shown.claims.conflicts


@live_family(
    "kubelet_registrations_total",
    "resource,result",
    help="Registrations with the kubelet by result.",
    source="the agent",
    use="More than the restarts of the kubelet: another plugin registers the same resource.",
)
def kubelet_registrations(shown: ScrapeInput) -> Iterator[Series]:
    yield from sorted(shown.rpc_stats.registrations.items())


@live_family(
    "resource_registered",
    "resource",
    help="1 while the resource is registered with the kubelet.",
    source="the agent",
    use="0: /readyz gives the reason.",
)
def resource_registered(shown: ScrapeInput) -> Iterator[Series]:
    for status in shown.statuses:
        yield (status.resource,), status.registered
    for entry in shown.withheld:
        if entry.named:
            yield (entry.resource,), False


@live_family(
    "file_unwritable",
    "file,error",
    help="1 while a file that containers need cannot be written; error is the name of the errno.",
    source="the agent",
    use="The resources that need it are withheld: alert NodeAgentFileUnwritable.",
)
def file_unwritable(shown: ScrapeInput) -> Iterator[Series]:
    for file in shown.unwritable:
        yield (file.path, file.error), 1


@live_family(
    "state_unwritable",
    "file",
    help="1 while a file of the state folder cannot be written.",
    source="the agent",
    use="A restart of the agent loses what the file has; /readyz has the remedy: alert NodeAgentStateUnwritable.",
)
def state_unwritable(shown: ScrapeInput) -> Iterator[Series]:
    for file in shown.unwritable_state:
        yield (str(file.path),), 1


@live_family(
    "resource_devices",
    "resource,health",
    help="Devices in the list that the agent sends to the kubelet.",
    source="the agent",
    use="The kubelet gives unhealthy devices to no new pod.",
)
def resource_devices(shown: ScrapeInput) -> Iterator[Series]:
    for status in shown.statuses:
        yield (status.resource, "healthy"), status.healthy
        yield (status.resource, "unhealthy"), status.devices - status.healthy


@live_family(
    "source_silent",
    "source",
    help="1 while a source of facts fails.",
    source="the agent",
    use="Its last facts stay valid; the log gives the reason: alert NodeAgentSourceSilent.",
)
def source_silent(shown: ScrapeInput) -> Iterator[Series]:
    for entry in shown.snapshot.stale_sources:
        yield (entry.source,), 1


@live_family(
    "hanging_call_seconds",
    "source",
    help="Time since a call that does not return began.",
    source="the agent",
    use="A read of the machine or a write to a disk hangs in the kernel; `/readyz` and the log name it.",
)
def hanging_call_seconds(shown: ScrapeInput) -> Iterator[Series]:
    for source, seconds in shown.hanging.items():
        yield (source,), round(seconds, 1)


@live_family(
    "task_restarts_total",
    "task",
    help="Tasks of the agent that failed and were restarted.",
    source="the agent",
    use="Rising: the log has the reason of each restart.",
)
def task_restarts(shown: ScrapeInput) -> Iterator[Series]:
    for task, count in sorted(shown.restarts.items()):
        yield (task,), count


@live_family(
    "cluster_writes_total",
    "part,result",
    help="Writes to the API server or NVSentinel by the part of the agent that made them, and their result.",
    source="the agent",
    use="refused rises: the API server rejects what the agent writes; /readyz gives the reason.",
)
def cluster_writes(shown: ScrapeInput) -> Iterator[Series]:
    for writes in shown.cluster_writes:
        for result, count in sorted(writes.results.items()):
            yield (writes.part, result), count


@live_family(
    "cluster_writes_failing",
    "part",
    help="1 while the writes of this part of the agent do not reach their server, or are refused.",
    source="the agent",
    use="1 for long: alert NodeAgentClusterWritesFailing; /readyz gives the reason.",
)
def cluster_writes_failing(shown: ScrapeInput) -> Iterator[Series]:
    for writes in shown.cluster_writes:
        yield (writes.part,), writes.reason is not None


@live_family(
    "cluster_objects_removed_total",
    "part",
    help="Objects of this part of the agent that another client deleted. A kubelet that starts deletes ResourceSlices.",
    source="the agent",
    use="Rises without a restart of the kubelet: another client deletes them, or the driver is not registered.",
)
def cluster_objects_removed(shown: ScrapeInput) -> Iterator[Series]:
    for writes in shown.cluster_writes:
        if writes.part == "slices":
            yield (writes.part,), writes.removed


@live_family(
    "cluster_report_left_out",
    help="Parts of this node's NodeLinks report that the API server refused; the rest is published.",
    source="the agent",
    use="Above 0: the definition of NodeLinks is older than the agent; apply it again.",
)
def cluster_report_left_out(shown: ScrapeInput) -> Iterator[Series]:
    for writes in shown.cluster_writes:
        if writes.part == "nodelinks":
            yield (), len(writes.left_out)


@live_family(
    "configuration_in_force",
    help="1 while the content of the configuration file is in force, 0 while the file is refused or unreadable.",
    source="the agent",
    use="0: the running configuration stays; /readyz and the log have the fault.",
)
def configuration_in_force(shown: ScrapeInput) -> Iterator[Series]:
    yield (), not shown.configuration_fault


@live_family(
    "gpu_driver_stuck_threads",
    help="Threads that hang in the GPU driver.",
    source="the agent",
    use="Above 0 for long: the driver hangs, and nvidia-smi hangs too. Reset the GPU or reboot.",
)
def stuck_threads(shown: ScrapeInput) -> Iterator[Series]:
    yield (), shown.stuck_threads


def _attempted(shown: ScrapeInput) -> Iterator[ReaderStatus]:
    """The collectors that have finished or failed a reading."""
    for collector in shown.reader_statuses:
        if collector.succeeded_at is not None or collector.reason is not None:
            yield collector


@live_family(
    "collector_up",
    "collector",
    help="1 when the last reading of a collector succeeded.",
    source="the agent",
    use="0 for long: alert NodeAgentCollectorStale.",
    peers="node_scrape_collector_success",
)
def collector_up(shown: ScrapeInput) -> Iterator[Series]:
    for collector in _attempted(shown):
        yield (collector.name,), collector.up


@live_family(
    "collector_duration_seconds",
    "collector",
    help="Duration of the last reading of a collector.",
    source="the agent",
    use="Slow firmware shows here first. Not part of the scrape time.",
    peers="node_scrape_collector_duration_seconds",
)
def collector_duration(shown: ScrapeInput) -> Iterator[Series]:
    for collector in _attempted(shown):
        if collector.duration_s is not None:
            yield (collector.name,), round(collector.duration_s, 6)


@live_family(
    "collector_last_success_timestamp_seconds",
    "collector",
    help="Time of the last successful reading of a collector.",
    source="the agent",
    use="time() - this is the age of its values.",
)
def collector_last_success(shown: ScrapeInput) -> Iterator[Series]:
    for collector in _attempted(shown):
        if collector.succeeded_at is not None:
            yield (collector.name,), round(shown.boot_unix + collector.succeeded_at, 3)


@live_family(
    "collector_errors_total",
    "collector",
    help="Readings of a collector that failed.",
    source="the agent",
    use="The log has the reason of each kind of error once.",
    peers="rdma_scrape_errors_total",
)
def collector_errors(shown: ScrapeInput) -> Iterator[Series]:
    for collector in _attempted(shown):
        yield (collector.name,), collector.errors


@live_family(
    "netlink_overruns_total",
    "socket",
    help="Times that the kernel dropped messages because the socket buffer was full; the agent then rescans.",
    source="ENOBUFS",
    use="No change is lost. Many: a program changes links in a loop.",
)
def netlink_overruns(shown: ScrapeInput) -> Iterator[Series]:
    for socket, count in sorted(shown.overruns.items()):
        yield (socket,), count


@live_family(
    "lldp_last_received_timestamp_seconds",
    "device",
    help="Time at which the last LLDP frame arrived.",
    source="AF_PACKET, EtherType 88cc",
    use="Older than two intervals of the switch (60 s): the switch stopped sending.",
)
def lldp_last_received(shown: ScrapeInput) -> Iterator[Series]:
    for link, at in sorted(shown.last_lldp.items()):
        yield (link,), round(shown.boot_unix + at, 3)


@live_family(
    "web_certificate_expiry_timestamp_seconds",
    help="Expiry of the certificate that serves this page; absent without TLS.",
    source="the agent",
    use="Alert some days before: NodeAgentCertificateExpiring.",
)
def certificate_expiry(shown: ScrapeInput) -> Iterator[Series]:
    if shown.certificate is not None and shown.certificate[0]:
        yield (), shown.certificate[0]


@live_family(
    "web_certificate_fresh",
    help="1 when the last load of the certificate files succeeded; 0 while the old certificate stays in use.",
    source="the agent",
    use="0: the files are missing, incomplete, expired or do not match; the log names the cause.",
)
def certificate_fresh(shown: ScrapeInput) -> Iterator[Series]:
    if shown.certificate is not None:
        yield (), shown.certificate[1]


@live_family(
    "series_dropped_total",
    "family",
    help="Series left out of a scrape because their family has too many.",
    source="the agent",
    use="Should not exist: raise web.seriesMax, or find the cause of so many names.",
)
def series_dropped(shown: ScrapeInput) -> Iterator[Series]:
    for family, count in sorted(shown.dropped.items()):
        yield (family,), count
