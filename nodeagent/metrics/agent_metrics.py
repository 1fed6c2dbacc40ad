"""The agent itself: what it does for the kubelet, how its parts do, and what it left out."""

from collections.abc import Iterator

from nodeagent import __version__
from nodeagent.metrics.family import Series, live
from nodeagent.metrics.scrape_input import View


@live(
    "build_info", "version", help="The version of the agent; always 1.", source="the agent", use="Roll-outs."
)
def build_info(_view: View) -> Iterator[Series]:
    yield (__version__,), 1


@live(
    "rpc_duration_seconds",
    "resource,method,le",
    type="histogram",
    help="Time to answer a call of the kubelet.",
    source="the agent",
    use="Pods are admitted one after the other while Allocate is answered: above 0.1 s look at the disk.",
)
def rpc_duration(view: View) -> Iterator[Series]:
    for labels, durations in sorted(view.measure.durations.items()):
        buckets = durations.buckets()
        for bound, count in buckets:
            yield (*labels, bound), count
        yield (*labels, "sum"), durations.sum_s
        yield (*labels, "count"), buckets[-1][1]


@live(
    "rpcs_total",
    "resource,method,result",
    help="Calls of the kubelet by gRPC result.",
    source="the agent",
    use="Anything but OK is a pod that was refused; its event says why.",
)
def rpcs(view: View) -> Iterator[Series]:
    yield from sorted(view.measure.calls.items())


@live(
    "kubelet_registrations_total",
    "resource,result",
    help="Registrations with the kubelet by result.",
    source="the agent",
    use="More than the kubelet's restarts: something else registers the same resource.",
)
def kubelet_registrations(view: View) -> Iterator[Series]:
    yield from sorted(view.measure.registrations.items())


@live(
    "resource_registered",
    "resource",
    help="1 while the kubelet has the resource.",
    source="the agent",
    use="0: /readyz says why.",
)
def resource_registered(view: View) -> Iterator[Series]:
    for status in view.statuses:
        yield (status.resource,), status.registered


@live(
    "resource_devices",
    "resource,health",
    help="Devices as the kubelet was told.",
    source="the agent",
    use="Unhealthy ones are not handed out to new pods.",
)
def resource_devices(view: View) -> Iterator[Series]:
    for status in view.statuses:
        yield (status.resource, "healthy"), status.healthy
        yield (status.resource, "unhealthy"), status.devices - status.healthy


@live(
    "source_silent",
    "source",
    help="1 while a source of facts cannot speak.",
    source="the agent",
    use="What it last said stands; the log says why it is silent: alert NodeAgentSourceSilent.",
)
def source_silent(view: View) -> Iterator[Series]:
    for entry in view.snapshot.silent:
        yield (entry.source,), 1


@live(
    "task_restarts_total",
    "task",
    help="Parts of the agent that failed and were started again.",
    source="the agent",
    use="A climb: the log has the reason of each.",
)
def task_restarts(view: View) -> Iterator[Series]:
    for task, count in sorted(view.restarts.items()):
        yield (task,), count


@live(
    "gpu_driver_stuck_threads",
    help="Threads that hang in the GPU driver.",
    source="the agent",
    use="Not 0 for long: the driver hangs; nvidia-smi will too. Reset the GPU or reboot.",
)
def stuck_threads(view: View) -> Iterator[Series]:
    yield (), view.stuck_threads


@live(
    "collector_up",
    "collector",
    help="1 when the last look of a collector went well.",
    source="the agent",
    use="0 for long: alert NodeAgentCollectorStale.",
    peers="node_scrape_collector_success",
)
def collector_up(view: View) -> Iterator[Series]:
    for one in view.collectors:
        yield (one.name,), one.up


@live(
    "collector_duration_seconds",
    "collector",
    help="How long the last look of a collector took.",
    source="the agent",
    use="Firmware that answers slowly shows here first. Not part of a scrape.",
    peers="node_scrape_collector_duration_seconds",
)
def collector_duration(view: View) -> Iterator[Series]:
    for one in view.collectors:
        if one.seconds is not None:
            yield (one.name,), round(one.seconds, 6)


@live(
    "collector_last_success_timestamp_seconds",
    "collector",
    help="When a collector last looked with success.",
    source="the agent",
    use="time() - this is the age of its numbers.",
)
def collector_last_success(view: View) -> Iterator[Series]:
    for one in view.collectors:
        if one.succeeded_at is not None:
            yield (one.name,), round(view.boot_unix + one.succeeded_at, 3)


@live(
    "collector_errors_total",
    "collector",
    help="Looks of a collector that failed.",
    source="the agent",
    use="The log has the reason of the first of each kind.",
    peers="rdma_scrape_errors_total",
)
def collector_errors(view: View) -> Iterator[Series]:
    for one in view.collectors:
        yield (one.name,), one.errors


@live(
    "netlink_overruns_total",
    "socket",
    help="Times that the kernel had more to say than the socket could hold; everything was read anew.",
    source="ENOBUFS",
    use="None is lost by it; many: something changes links in a loop.",
)
def netlink_overruns(view: View) -> Iterator[Series]:
    for socket, count in sorted(view.overruns.items()):
        yield (socket,), count


@live(
    "lldp_last_received_timestamp_seconds",
    "device",
    help="When the last LLDP frame came in.",
    source="AF_PACKET, EtherType 88cc",
    use="Older than two intervals of the switch (60 s): it has gone silent.",
)
def lldp_last_received(view: View) -> Iterator[Series]:
    for link, at in sorted(view.heard_at.items()):
        yield (link,), round(view.boot_unix + at, 3)


@live(
    "web_certificate_expiry_timestamp_seconds",
    help="When the certificate that this page is served with ends; absent without TLS.",
    source="the agent",
    use="Alert some days before; NodeAgentCertificateExpiring does.",
)
def certificate_expiry(view: View) -> Iterator[Series]:
    if view.certificate is not None and view.certificate[0]:
        yield (), view.certificate[0]


@live(
    "web_certificate_fresh",
    help="1 when the last look at the certificate's files went well; 0 while the old one is kept.",
    source="the agent",
    use="0: the files are missing, half written, expired or do not belong together; the log says which.",
)
def certificate_fresh(view: View) -> Iterator[Series]:
    if view.certificate is not None:
        yield (), view.certificate[1]


@live(
    "series_dropped_total",
    "family",
    help="Series left out of a scrape because their family has too many.",
    source="the agent",
    use="Should not exist: raise web.seriesMax, or find what makes up so many names.",
)
def series_dropped(view: View) -> Iterator[Series]:
    for family, count in sorted(view.dropped.items()):
        yield (family,), count
