"""The health of links, and the numbers that the rules compare, of links and GPUs."""

from collections.abc import Iterator

from nodeagent.facts.model import LINK_STATES
from nodeagent.measurements.family import FROM_RULES, Family, row
from nodeagent.metrics.computed_family import fact_family, live_family
from nodeagent.metrics.scrape_input import FactIndex, ScrapeInput
from nodeagent.metrics.text_format import Series

# The exposition makes samples of the health figures; these names are the samples'.
LINK_FIGURES: tuple[Family, ...] = (
    row(
        "link_health_since_timestamp_seconds",
        "device",
        FROM_RULES,
        ("since_unix", "time of the last change of state"),
        help="Time of the last change of state.",
        use="time() - this is the time spent in the state.",
    ),
    row(
        "link_flap_penalty",
        "device",
        FROM_RULES,
        ("flap_penalty", "flap damping"),
        help="Penalty for flaps; it halves in each half-life.",
        use="Above the suppress limit the link is degraded until the penalty falls to the reuse limit.",
    ),
    row(
        "link_implausible_values_total",
        "device",
        FROM_RULES,
        ("implausible_values", "values of counters that the rules dropped"),
        help="Values of counters that the rules dropped: registers of ones, steps beyond the speed of the line.",
        use="Rising: PCI reads of the device fail; it is about to leave the bus, or its firmware is stuck.",
    ),
    row(
        "link_expected_speed_bytes",
        "device",
        FROM_RULES,
        ("expected_speed_mbps", "the speed that speed_reduced compares with"),
        scale=125000,
        help="The speed that the link should have, in bytes per second.",
        use="Set it in the configuration; otherwise the rules use the speed of its peers, or its own highest.",
    ),
    row(
        "link_pre_fec_bit_error_ratio",
        "device",
        FROM_RULES,
        ("pre_fec_ber", "the value that pre_fec_ber compares"),
        help="Bits that FEC corrected, as a share of all bits, over the rule's window.",
        use="The standard allows 2.4e-4 at 100G per lane; above 1e-4 the link is degraded.",
    ),
    row(
        "link_post_fec_bit_error_ratio",
        "device",
        FROM_RULES,
        ("post_fec_errors", "the value that post_fec_errors compares"),
        help="Symbol errors after FEC, as a share of all bits, over the rule's window.",
        use="The standard allows 1e-12; above it the link is degraded.",
    ),
    row(
        "link_rule_value",
        "device,rule",
        FROM_RULES,
        ("rule_value", "the value that each rule compares"),
        per="rule",
        help="The number that a rule compares with its threshold, unless it has no threshold or a family of its own.",
        use="Shows how near to a fault a link is; nodeagent health rules prints thresholds and units.",
    ),
)
GPU_FIGURES: tuple[Family, ...] = (
    row(
        "gpu_health_since_timestamp_seconds",
        "gpu",
        FROM_RULES,
        ("gpu_since_unix", "time of the last change of state"),
        help="Time of the last change of state.",
        use="time() - this is the time spent in the state.",
    ),
    row(
        "gpu_rule_value",
        "gpu,rule",
        FROM_RULES,
        ("gpu_rule_value", "the value that each rule compares"),
        per="rule",
        help="The number that a rule compares with its threshold.",
        use="Shows how near to a fault a GPU is.",
    ),
)


@fact_family(
    "link_health_state",
    "device,state",
    help="1 for the state that the link is in, 0 for the others.",
    source=FROM_RULES,
    use="Watch this one first: the families below show the cause. unknown never changes what pods can get; unused "
    "was never up; missing is a NIC of a rail that is gone.",
)
def link_health_state(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        for state in LINK_STATES:
            yield (facts.link_name(pf.pci_address), state), pf.link_state == state


@fact_family(
    "link_health_reason",
    "device,reason,severity",
    help="1 for each reason that is active; a warning does not change the state.",
    source=FROM_RULES,
    use="Several may be active at once; docs/runbook.md has the remedy for each.",
)
def link_health_reason(facts: FactIndex) -> Iterator[Series]:
    for pf in facts.pfs:
        for reason in pf.health.reasons:
            severity = "warning" if reason.warning else "fault"
            yield (facts.link_name(pf.pci_address), reason.key, severity), 1


@live_family(
    "link_health_transitions_total",
    "device,from,to",
    help="Changes of state since the agent started.",
    source=FROM_RULES,
    use="Many: the thresholds of a rule are too close to each other, or the link really flaps.",
)
def link_health_transitions(shown: ScrapeInput) -> Iterator[Series]:
    facts = shown.fact_index()
    for device, figures in shown.health_figures.items():
        if device in facts.present:
            for (before, after), count in sorted(figures.transitions.items()):
                yield (facts.link_name(device), before, after), count
