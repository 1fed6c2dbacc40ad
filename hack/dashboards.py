"""Grafana dashboards as reviewable tables: ``fleet`` for all nodes, ``node`` for one, ``gpus`` for the GPUs of some.

A panel has a title, a hint, its queries and a unit; ``hack/grafana.py`` computes places, numbers and colors.
Written to ``daemonset/monitoring/dashboards/`` by ``hack/monitoring.py``.
"""

from __future__ import annotations

from grafana import STATES, Dashboard, Panel

BER_LIMITS = {"pre": 2.4e-4, "post": 1e-12}
"""IEEE 802.3 before FEC at 100G per lane, IBTA after it."""


def state_code(where: str) -> str:
    """The state of each link as a number; higher is worse."""
    parts = " or ".join(
        f'{number} * nodeagent_link_health_state{{{where}state="{state}"}}'
        for number, (state, _) in STATES.items()
        if number
    )
    return f"sum by (instance, device) ({parts})"


def links(where: str) -> tuple[Panel, ...]:
    """The panels for links of both dashboards; ``where`` is the selector, with its comma."""
    only = where.rstrip(",")
    selector = f"{{{only}}}"
    return (
        Panel(
            "Flaps per hour",
            "Three or more: cable, optic or switch port.",
            ((f"increase(nodeagent_link_carrier_down_total{selector}[1h]) > 0", "{{instance}} {{device}}"),),
            empty="no flap",
        ),
        Panel(
            "Speed as a share of the expected speed",
            "Below 100 %: renegotiate, then change the cable.",
            (
                (
                    f"nodeagent_link_speed_bytes{selector} / nodeagent_link_expected_speed_bytes{selector}",
                    "{{instance}} {{device}}",
                ),
            ),
            unit="percentunit",
            lines={1.0: "green"},
        ),
        Panel(
            "Bit error ratio before FEC",
            "FEC fails above the line. If one rail rises, check its optics.",
            (
                (
                    f"instance_device:nodeagent_link_pre_fec_bit_error_ratio:rate5m{selector} > 0",
                    "{{instance}} {{device}}",
                ),
            ),
            empty="no bit errors",
            unit="sci",
            logarithmic=True,
            lines={BER_LIMITS["pre"]: "red"},
        ),
        Panel(
            "Bit error ratio after FEC",
            "At or above the line, traffic is lost.",
            ((f"nodeagent_link_post_fec_bit_error_ratio{selector}", "{{instance}} {{device}}"),),
            unit="sci",
            logarithmic=True,
            lines={BER_LIMITS["post"]: "red"},
        ),
        Panel(
            "Paused by the network (PFC received)",
            "Congestion in the fabric, not caused by the node. The line is the threshold of the rule.",
            (
                (
                    f"max by (instance, device) "
                    f'(rate(nodeagent_link_pause_seconds_total{{{where}direction="receive"}}[5m]))',
                    "{{instance}} {{device}}",
                ),
            ),
            unit="percentunit",
            lines={0.25: "orange"},
        ),
        Panel(
            "Pausing the network (PFC sent)",
            "The host is too slow: PCIe, IOMMU, memory.",
            (
                (
                    f"max by (instance, device) "
                    f'(rate(nodeagent_link_pause_seconds_total{{{where}direction="transmit"}}[5m]))',
                    "{{instance}} {{device}}",
                ),
            ),
            unit="percentunit",
            lines={0.05: "red"},
        ),
        Panel(
            "Congestion and loss in RDMA",
            "Marks and CNPs are congestion; out of sequence and timeouts are loss.",
            (
                (
                    f"sum by (instance) (rate(nodeagent_rdma_cnp_handled_total{selector}[5m]))",
                    "{{instance}} CNP handled",
                ),
                (
                    f"sum by (instance) (rate(nodeagent_rdma_ecn_marked_packets_total{selector}[5m]))",
                    "{{instance}} marked",
                ),
                (
                    f"sum by (instance) (rate(nodeagent_rdma_out_of_sequence_packets_total{selector}[5m]))",
                    "{{instance}} out of sequence",
                ),
                (
                    f"sum by (instance) (rate(nodeagent_rdma_local_ack_timeouts_total{selector}[5m]))",
                    "{{instance}} timeouts",
                ),
            ),
            unit="pps",
        ),
        Panel(
            "Discards",
            "Packets that the adapter could not receive or send.",
            (
                (
                    f"rate(nodeagent_link_receive_discards_total{selector}[5m])",
                    "{{instance}} {{device}} received",
                ),
                (
                    f"rate(nodeagent_link_transmit_discards_total{selector}[5m])",
                    "{{instance}} {{device}} to send",
                ),
            ),
            unit="pps",
        ),
        Panel(
            "Received optical power, darkest lane",
            "Lanes and rails of the same kind differ by less than 2 dB.",
            (
                (
                    f"10 * log10(1000 * min by (instance, device) "
                    f"(nodeagent_transceiver_receive_power_watts{selector} > 0))",
                    "{{instance}} {{device}}",
                ),
                (
                    f"10 * log10(1000 * max(nodeagent_transceiver_threshold"
                    f'{{{where}sensor="receive_power_watts",level="low_alarm"}}))',
                    "highest alarm limit",
                ),
            ),
            unit="dBm",
        ),
        Panel(
            "Temperature of transceivers",
            "Compare with the module's own limits.",
            (
                (f"nodeagent_transceiver_temperature_celsius{selector}", "{{instance}} {{device}}"),
                (
                    f""
                    f'min(nodeagent_transceiver_threshold{{{where}sensor="temperature_celsius",level="high_warning"}})',
                    "lowest warning limit",
                ),
            ),
            unit="celsius",
        ),
        Panel(
            "PCIe lanes as a share of the possible lanes",
            "Below 100 %: reseat the card or the riser.",
            (
                (
                    f"nodeagent_pcie_link_width_lanes{selector} / nodeagent_pcie_expected_link_width_lanes{selector}",
                    "{{instance}} {{pci_address}}",
                ),
            ),
            unit="percentunit",
            lines={1.0: "green"},
        ),
        Panel(
            "PCIe errors and stalls",
            "Errors by severity, and the share of seconds with a stall.",
            (
                (
                    f"sum by (instance, severity) (increase(nodeagent_pcie_aer_errors_total{selector}[1h]))",
                    "{{instance}} {{severity}}",
                ),
                (
                    f"max by (instance, device) (rate(nodeagent_pcie_stalled_seconds_total{selector}[5m]))",
                    "{{instance}} {{device}} stalled",
                ),
            ),
        ),
    )


def gpus(where: str) -> tuple[Panel, ...]:
    selector = f"{{{where.rstrip(',')}}}"
    return (
        Panel(
            "XIDs",
            "Since the start of the agents; a repeated XID counts each time.",
            (
                (
                    f"sum by (instance, gpu, xid) (nodeagent_gpu_xid_errors_total{selector})",
                    "{{instance}} GPU {{gpu}} XID {{xid}}",
                ),
            ),
            empty="no XID",
        ),
        Panel(
            "NVLinks down",
            "Any NVLink down: jobs across GPUs fail.",
            (
                (
                    f"count by (instance, gpu) (nodeagent_gpu_nvlink_up{selector} == 0)",
                    "{{instance}} GPU {{gpu}}",
                ),
            ),
            empty="no NVLink is down",
        ),
        Panel(
            "Unhealthy GPUs",
            "Withheld from new pods.",
            (
                (
                    f'sum by (instance) (nodeagent_gpu_health_state{{{where}state="unhealthy"}})',
                    "{{instance}}",
                ),
            ),
        ),
    )


FLEET = Dashboard(
    "nodeagent-fleet",
    "nodeagent: fleet",
    "The rails of every node, and their faults.",
    {
        "Now": (
            Panel(
                "Links by state",
                "All nodes.",
                (("sum by (state) (instance_state:nodeagent_links:count) > 0", "{{state}}"),),
                empty="no link is reported",
                kind="stat",
                height=5,
            ),
            Panel(
                "Free devices",
                "By resource, over all nodes.",
                (
                    (
                        "sum by (resource) (nodeagent_link_device_free or nodeagent_gpu_device_free)",
                        "{{resource}}",
                    ),
                ),
                kind="stat",
                height=5,
            ),
            Panel(
                "Agents that cannot be scraped",
                "Faults of these nodes are not reported.",
                (('count(up{job=~"(.*/)?nodeagent"} == 0) or vector(0)', "agents"),),
                kind="stat",
                height=5,
            ),
            Panel(
                "Rails",
                "One row per node, one column per rail.",
                (
                    (
                        f"max by (instance, rail) ({state_code('')} * on (instance, device) group_left (rail) "
                        'nodeagent_link_info{rail!=""})',
                        "",
                    ),
                ),
                kind="table",
                columns="rail",
                states=True,
                width=24,
                height=12,
            ),
        ),
        "Links": links(""),
        "GPUs": gpus(""),
        "Agents": (
            Panel(
                "Largest free block",
                "The most slices that one GPU of a node still has free.",
                (("nodeagent_resource_largest_free_block", "{{instance}} {{resource}}"),),
            ),
            Panel(
                "Age of the values",
                "High for a collector that hangs.",
                (
                    (
                        "max by (collector) (time() - nodeagent_collector_last_success_timestamp_seconds)",
                        "{{collector}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Restarts of parts",
                "The log of the agent has the reason.",
                (
                    (
                        "sum by (instance, task) (increase(nodeagent_task_restarts_total[1h])) > 0",
                        "{{instance}} {{task}}",
                    ),
                ),
                empty="no restart",
            ),
        ),
        "Controller": (
            Panel(
                "Replicas that lead",
                "Exactly one leads and writes; 0 for some seconds when the leader changes.",
                (("sum(nodeagent_controller_leader)", "leaders"),),
                kind="stat",
                height=6,
                lines={0: "red", 1: "green", 2: "red"},
                empty="no controller is scraped",
            ),
            Panel(
                "Moves are held",
                "1: more than a fifth of the nodes would move at once; docs/runbook.md, NodeFabricBreakerOpen.",
                (("max(nodeagent_fabric_breaker_open)", "held"),),
                kind="stat",
                height=6,
                lines={0: "green", 1: "red"},
                empty="no plan yet",
            ),
            Panel(
                "Nodes of the fabric",
                "By state of their report and place.",
                (
                    (
                        "sum by (state) (nodeagent_fabric_nodes and on (instance) (nodeagent_controller_leader == 1))",
                        "{{state}}",
                    ),
                ),
                kind="stat",
                height=6,
                empty="no controller leads",
            ),
            Panel(
                "Writes",
                "HyperNodes, labels and marks, by result; a fabric at rest causes none.",
                (
                    (
                        "sum by (object, verb, result) (increase(nodeagent_controller_writes_total[10m])) > 0",
                        "{{object}} {{verb}} {{result}}",
                    ),
                ),
                empty="no writes",
            ),
            Panel(
                "Writes held back",
                "Moves that wait for stable evidence, and writes that another owner prevents.",
                (("increase(nodeagent_fabric_suppressed_writes_total[10m]) > 0", "{{instance}}"),),
                empty="none",
            ),
            Panel(
                "Anomalies of the cabling",
                "`nodeagent plan` names the cable of each.",
                (("max by (kind) (nodeagent_fabric_anomalies) > 0", "{{kind}}"),),
                empty="no anomaly",
            ),
        ),
    },
    one_node=False,
)

HERE = 'instance="$instance",'
VF_PODS = (
    # Without GPUs: several pods hold one, and Prometheus refuses a join with several matches.
    "max by (instance, pci_address, namespace, pod) (label_replace("
    f'nodeagent_device_pod_info{{{HERE}device_id=~"[0-9a-f]+:.+"}}, "pci_address", "$1", "device_id", "(.+)"))'
)
NODE = Dashboard(
    "nodeagent-node",
    "nodeagent: node",
    "One node: its links with their neighbors, its GPUs, and the pods that hold them.",
    {
        "Now": (
            Panel(
                "Links",
                "State by rail.",
                ((state_code(HERE), "{{device}}"),),
                kind="stat",
                states=True,
                width=12,
                height=6,
            ),
            Panel(
                "Reasons",
                "docs/runbook.md has a section for each.",
                (
                    (f"nodeagent_link_health_reason{{{HERE[:-1]}}}", "{{device}}: {{reason}}"),
                    (f"nodeagent_gpu_health_reason{{{HERE[:-1]}}}", "GPU {{gpu}}: {{reason}}"),
                ),
                empty="no fault",
                kind="stat",
                width=12,
                height=6,
            ),
            Panel(
                "Links and their neighbors",
                "The switch port of each link.",
                (
                    (
                        f"nodeagent_lldp_neighbor_info{{{HERE[:-1]}}} * on (instance, device) "
                        f"group_left (rail, pci_address, "
                        f"firmware_version) nodeagent_link_info{{{HERE[:-1]}}}",
                        "",
                    ),
                ),
                kind="table",
                width=12,
            ),
            Panel(
                "Devices of pods",
                "VFs by PCI address, slices by GPU.",
                ((f"nodeagent_device_pod_devices{{{HERE[:-1]}}}", ""),),
                kind="table",
                width=12,
                empty="no pod holds a device",
            ),
        ),
        "Links": links(HERE),
        "Traffic": (
            Panel(
                "On the wire",
                "With RDMA traffic if the driver counts it.",
                (
                    (
                        f"8 * rate(nodeagent_link_phy_receive_bytes_total{{{HERE[:-1]}}}[5m])",
                        "{{device}} received",
                    ),
                    (
                        f"8 * rate(nodeagent_link_phy_transmit_bytes_total{{{HERE[:-1]}}}[5m])",
                        "{{device}} sent",
                    ),
                ),
                unit="bps",
            ),
            Panel(
                "VFs by pod",
                "Received and sent.",
                (
                    (
                        f"8 * sum by (namespace, pod, pf) "
                        f"(rate(nodeagent_vf_receive_bytes_total{{{HERE[:-1]}}}[5m]) "
                        f"* on (instance, pci_address) group_left (namespace, pod) {VF_PODS})",
                        "{{namespace}}/{{pod}} {{pf}} received",
                    ),
                    (
                        f"8 * sum by (namespace, pod, pf) "
                        f"(rate(nodeagent_vf_transmit_bytes_total{{{HERE[:-1]}}}[5m]) "
                        f"* on (instance, pci_address) group_left (namespace, pod) {VF_PODS})",
                        "{{namespace}}/{{pod}} {{pf}} sent",
                    ),
                ),
                unit="bps",
            ),
            Panel(
                "Bit errors by lane",
                "One lane much worse than the next: clean the connector.",
                (
                    (
                        f"rate(nodeagent_link_lane_bit_errors_total{{{HERE[:-1]}}}[5m])",
                        "{{device}} lane {{lane}}",
                    ),
                ),
                logarithmic=True,
            ),
        ),
        "GPUs": (
            *gpus(HERE),
            Panel(
                "Memory in use",
                "Used memory, and the memory allocated to pods.",
                (
                    (f"nodeagent_gpu_memory_used_bytes{{{HERE[:-1]}}}", "GPU {{gpu}}"),
                    (
                        "sum by (device_id) (nodeagent_device_pod_devices{"
                        + HERE[:-1]
                        + "} * on (instance, resource) "
                        "group_left () nodeagent_resource_device_bytes{" + HERE[:-1] + "})",
                        "allocated of {{device_id}}",
                    ),
                ),
                unit="bytes",
            ),
            Panel(
                "Temperature",
                "If one is hotter than the others, check the airflow.",
                ((f"nodeagent_gpu_temperature_celsius{{{HERE[:-1]}}}", "GPU {{gpu}} {{sensor}}"),),
                unit="celsius",
            ),
            Panel(
                "Free slices",
                "The largest request that each GPU can serve.",
                ((f"nodeagent_gpu_device_free{{{HERE[:-1]}}}", "GPU {{gpu}} {{resource}}"),),
            ),
            Panel(
                "GPU and NIC",
                "Their PCIe distance; PIX is best.",
                ((f"nodeagent_gpu_nic_affinity_info{{{HERE[:-1]}}}", ""),),
                kind="table",
                width=24,
            ),
        ),
        "Agent": (
            Panel(
                "Calls of the kubelet, 99th percentile",
                "Pods wait for these calls.",
                (
                    (
                        f"histogram_quantile(0.99, sum by (le, method) "
                        f"(rate(nodeagent_rpc_duration_seconds_bucket"
                        f"{{{HERE[:-1]}}}[10m])))",
                        "{{method}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Duration of collectors",
                "Not part of a scrape.",
                ((f"nodeagent_collector_duration_seconds{{{HERE[:-1]}}}", "{{collector}}"),),
                unit="s",
            ),
            Panel(
                "Age of the values",
                "High for a collector that hangs.",
                (
                    (
                        f"time() - nodeagent_collector_last_success_timestamp_seconds{{{HERE[:-1]}}}",
                        "{{collector}}",
                    ),
                ),
                unit="s",
            ),
        ),
    },
    one_node=True,
)

SOME = 'instance=~"$instance",'
PER_GPU = "{{instance}} GPU {{gpu}}"
PROFILED = "not measured: gpu.profiling is off"


def of_gpus(name: str, labels: str = "") -> str:
    """The series of the chosen nodes."""
    return f"nodeagent_gpu_{name}{{{(SOME + labels).rstrip(',')}}}"


def activity(unit: str) -> str:
    return of_gpus("activity_ratio", f'unit="{unit}"')


def rate_of(name: str, direction: str) -> str:
    labels = f'direction="{direction}"'
    return f"sum by (instance, gpu) (rate({of_gpus(name, labels)}[5m]))"


HEAT = of_gpus("temperature_celsius", 'sensor="gpu"')
SLOWED = of_gpus("clock_reason", 'reason!="idle"')
UNCORRECTABLE = of_gpus("ecc_errors_total", 'type="uncorrectable"')
GPUS = Dashboard(
    "nodeagent-gpus",
    "nodeagent: GPUs",
    "What the GPUs do, what holds them back, and their errors.",
    {
        "Load": (
            Panel(
                "Utilization",
                "Share of the time in which any kernel ran.",
                ((of_gpus("utilization_ratio"), PER_GPU),),
                unit="percentunit",
            ),
            Panel(
                "Tensor cores",
                "Low beside a high utilization: the kernels do not use them.",
                ((activity("tensor"), PER_GPU),),
                unit="percentunit",
                empty=PROFILED,
            ),
            Panel(
                "SMs",
                "Busy SMs, and their occupancy: active warps of those that fit.",
                ((activity("sm"), f"{PER_GPU} busy"), (activity("sm_occupancy"), f"{PER_GPU} occupancy")),
                unit="percentunit",
                empty=PROFILED,
            ),
            Panel(
                "Bandwidth of the memory",
                "Near 100 %: the kernels wait for memory.",
                ((activity("memory"), PER_GPU),),
                unit="percentunit",
                empty=PROFILED,
            ),
            Panel(
                "NVLink",
                "Sent and received over all links.",
                (
                    (rate_of("nvlink_bytes_total", "transmit"), f"{PER_GPU} sent"),
                    (rate_of("nvlink_bytes_total", "receive"), f"{PER_GPU} received"),
                ),
                unit="Bps",
            ),
            Panel(
                "PCIe",
                "Sent and received.",
                (
                    (rate_of("pcie_bytes_total", "transmit"), f"{PER_GPU} sent"),
                    (rate_of("pcie_bytes_total", "receive"), f"{PER_GPU} received"),
                ),
                unit="Bps",
            ),
        ),
        "Memory": (
            Panel(
                "Memory in use",
                "As nvidia-smi shows it.",
                ((of_gpus("memory_used_bytes"), PER_GPU),),
                unit="bytes",
                width=12,
            ),
            Panel(
                "Containers without their limit",
                "They can take the memory of their neighbors; the Event GpuMemoryNotLimited has the cause.",
                (
                    (
                        f"{of_gpus('container_limit_in_force')} == 0",
                        "{{namespace}}/{{pod}} {{container}} on {{instance}} GPU {{gpu}}",
                    ),
                ),
                width=12,
                empty="none",
            ),
        ),
        "Heat and power": (
            Panel(
                "Average temperature",
                "Of the chosen nodes.",
                ((f"avg({HEAT})", "average"),),
                unit="celsius",
                kind="stat",
                width=12,
                height=5,
            ),
            Panel(
                "Power of all",
                "Of the chosen nodes, without CPUs, NICs and fans.",
                ((f"sum({of_gpus('power_watts')})", "sum"),),
                unit="watt",
                kind="stat",
                width=12,
                height=5,
            ),
            Panel(
                "Temperature",
                "If one is hotter than the others, check the airflow.",
                ((of_gpus("temperature_celsius"), f"{PER_GPU} {{{{sensor}}}}"),),
                unit="celsius",
            ),
            Panel(
                "Power",
                "Less than that of the others under equal load: this GPU waits.",
                ((of_gpus("power_watts"), PER_GPU),),
                unit="watt",
            ),
            Panel(
                "SM clock",
                "One GPU slower than the others under equal load slows the whole job down.",
                ((of_gpus("clock_hertz", 'clock="sm"'), PER_GPU),),
                unit="hertz",
            ),
            Panel(
                "Slowed down",
                "Reasons that the clocks are not higher, without idle GPUs.",
                (
                    (
                        f"sum by (instance, gpu, reason) ({SLOWED}) > 0",
                        f"{PER_GPU} {{{{reason}}}}",
                    ),
                ),
                width=24,
                empty="no GPU is slowed down",
            ),
        ),
        "Errors": (
            *gpus(SOME),
            Panel(
                "Uncorrectable ECC errors",
                "Since the driver was loaded. Any: reset the GPU; see the runbook.",
                (
                    (
                        f"sum by (instance, gpu) ({UNCORRECTABLE}) > 0",
                        PER_GPU,
                    ),
                ),
                empty="none",
            ),
            Panel(
                "Remapped rows",
                "Spare rows in use; pending ones need a reset.",
                (
                    (f"sum by (instance, gpu) ({of_gpus('remapped_rows')}) > 0", f"{PER_GPU} remapped"),
                    (f"{of_gpus('row_remap_pending')} > 0", f"{PER_GPU} pending"),
                ),
                empty="none",
            ),
            Panel(
                "PCIe replays",
                "Packets that were sent again: a growing rate is a bad slot or riser.",
                ((f"rate({of_gpus('pcie_replays_total')}[5m])", PER_GPU),),
            ),
        ),
    },
    one_node=False,
    some_nodes=True,
)

DASHBOARDS = {"fleet": FLEET, "node": NODE, "gpus": GPUS}
