"""``docs/metrics.md``, made from the catalog: what each family means, and what to do with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.metrics.family import CATALOG, Family

TOPICS = {
    "Links": ("link",),
    "Transceivers": ("transceiver",),
    "PCIe, firmware and kernel": ("pcie", "devlink", "kernel"),
    "RDMA": ("rdma",),
    "VFs": ("vf", "pf"),
    "Neighbors": ("lldp",),
    "GPUs": ("gpu",),
    "Pods and what is free": ("device", "resource"),
    "The agent": (
        "build",
        "rpc",
        "rpcs",
        "kubelet",
        "source",
        "task",
        "collector",
        "netlink",
        "series",
        "web",
    ),
}

HEAD = """\
# Metrics

Made from the catalog (`nodeagent/metrics/`); a test compares. Do not edit: declare.

`GET /metrics` answers in Prometheus' text format 0.0.4, or in OpenMetrics to whoever prefers it, gzipped to
whoever takes that. A scrape shows the newest numbers that the collectors have; it never causes a read of a
driver, a firmware or an EEPROM. How old they are is told by `nodeagent_collector_last_success_timestamp_seconds`;
what nobody has measured for 15 minutes is not shown.

How to read it:

* Series of a link carry `device` alone, the name of its netdev; of a GPU `gpu`, its index; of a VF `pf`, `vf` and
  `pci_address`. Everything descriptive stands in the `_info` families and is joined:
  `nodeagent_link_carrier * on (instance, device) group_left (rail, pci_address) nodeagent_link_info`.
* Pods stand in `nodeagent_device_pod_info` alone. A VF's traffic by pod:
  `rate(nodeagent_vf_receive_bytes_total[5m]) * on (instance, pci_address) group_left (namespace, pod)
  label_replace(nodeagent_device_pod_info{device_id=~"[0-9a-f]+:.+"}, "pci_address", "$1", "device_id", "(.+)")`.
  Without the matcher GPUs are in it too, which several pods hold, and Prometheus refuses to join.
* What a machine does not have or a driver does not tell is absent, never 0.
* A health state is one series for each word it may be, exactly one of which is 1. Reasons, and what hardware says
  of itself in words (a module's, a fabric's or an RDMA port's state), are there while they hold.
* Receive and transmit are this node's: received pauses are the peer's wish that we wait, transmitted ones ours.
* Texts from the wire or from an EEPROM are made one printable line and cut at 128 characters. A family has at most
  `web.seriesMax` series; what is left out is counted in `nodeagent_series_dropped_total`.
* A VF, a NIC or a pod that has gone takes its series with it. Of a NIC its verdict stays, so that somebody hears.

## Who may scrape

Everybody who reaches the port, unless the configuration says otherwise:

```yaml
web:
  certificateFile: /etc/nodeagent/tls/tls.crt  # TLS; renewed without a restart, a broken renewal changes nothing
  keyFile: /etc/nodeagent/tls/tls.key
  tokenFile: /etc/nodeagent/token/token        # one of these bearer tokens, one a line
  clientCaFile: /etc/nodeagent/ca/ca.crt       # and a client certificate of this CA
  probeListen: ":9809"                         # probes in the clear, for a certificate may be late
```

The kubelet has neither token nor client certificate: `/healthz` and `/readyz` ask for none (`probesOpen`). At most 32
connections are open, each request has 10 s, and the connection that is idle for longest makes room for a new one.

Prometheus without the operator:

```yaml
rule_files: [rules.yaml]                       # daemonset/monitoring/rules.yaml
scrape_configs:
- job_name: nodeagent
  kubernetes_sd_configs: [{role: pod, namespaces: {names: [nodeagent]}}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_component], regex: agent, action: keep}
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics, action: keep}
  - {source_labels: [__meta_kubernetes_pod_node_name], target_label: instance}
```

With the operator and Grafana's sidecar: `kubectl apply -k daemonset/monitoring/`.

## What it says

`elsewhere` is the name of the same datum at node_exporter, sriov-network-metrics-exporter, dcgm-exporter or
rdma_exporter.

Where this differs from what others do, on purpose: XIDs are a counter, not the number of the last one; pauses are
seconds, so that `rate()` is a share of time; an expected PCIe speed is the least of the function's and the port's
above it; bit error ratios are the numbers that the rules compared, not a second opinion; every GPU is shown with
every link in `nodeagent_gpu_nic_affinity_info`, for the matrix; slices of a GPU are one block, so its free slices
are the largest request that it can serve, and `nodeagent_resource_largest_free_block` is the node's. RDMA counters
are a PF's: those of a VF would cost the firmware a command each, and its PF counts its traffic. What a container uses
of a GPU stands under its container's ID, not its pod: NVML knows processes, their cgroups name containers, and
`kube_pod_container_info` joins the two.
"""


def markdown() -> str:
    return HEAD + "".join(_sections())


def topic_of(family: Family) -> str:
    word = family.name.split("_")[1]
    return next(topic for topic, words in TOPICS.items() if word in words)


def _sections() -> Iterator[str]:
    for topic in TOPICS:
        yield f"\n### {topic}\n\n"
        yield "| name | labels | type, unit | meaning | source | what to do with it | elsewhere |\n"
        yield "|---|---|---|---|---|---|---|\n"
        for family in CATALOG.values():
            if topic_of(family) == topic:
                kind = f"{family.type}, {family.unit}" if family.unit else family.type
                labels = ", ".join(f"`{label}`" for label in family.labels if label != "le")
                cells = (
                    f"`{family.name}`",
                    labels,
                    kind,
                    family.help,
                    family.source,
                    family.use,
                    family.peers,
                )
                yield "| " + " | ".join(map(_cell, cells)) + " |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*") or "-"
