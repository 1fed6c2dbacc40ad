"""How the links do, in the words and numbers of the rules: what the kubelet was told and why."""

from collections.abc import Iterator

from nodeagent.metrics.family import Series, described, live, row
from nodeagent.metrics.scrape_input import Judged, Scene, View
from nodeagent.model import State

_STATES = (State.HEALTHY, State.DEGRADED, State.DOWN, State.MISCABLED, State.UNKNOWN, State.UNUSED)


@described(
    "link_health_state",
    "device,state",
    help="1 for the state that the link is in, 0 for the others.",
    source="the rules",
    use="The one to look at: everything below is why. unknown never changes what pods can get; unused was never up.",
)
def link_health_state(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        now = State.DOWN if pf.health.state is State.UNHEALTHY else pf.health.state
        for state in _STATES:
            yield (scene.link_name(pf.pci_address), state.value), now is state


@described(
    "link_health_reason",
    "device,reason,severity",
    help="1 for each reason that is active; a warning lessens no state.",
    source="the rules",
    use="Several may be active at once; docs/runbook.md says what to do about each.",
)
def link_health_reason(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        for reason in pf.health.reasons:
            severity = "warning" if reason.warning else "fault"
            yield (scene.link_name(pf.pci_address), reason.key, severity), 1


@live(
    "link_health_transitions_total",
    "device,from,to",
    help="Changes of state since the agent began.",
    source="the rules",
    use="Many: the thresholds of a rule are too near to each other, or the link really flaps.",
)
def link_health_transitions(view: View) -> Iterator[Series]:
    for name, judged in _links(view):
        for (before, after), count in sorted(judged.transitions.items()):
            yield (name, before, after), count


row(
    "link_health_since_timestamp_seconds",
    "device",
    "since_unix",
    help="When the state changed last.",
    use="time() - this is how long it has lasted.",
)
row(
    "link_flap_penalty",
    "device",
    "flap_penalty",
    help="Penalty for flaps; it decays by half in the half-life.",
    use="Above the suppress limit the link is degraded until it has fallen to the reuse limit.",
)
row(
    "link_expected_speed_bytes",
    "device",
    "expected_speed_mbps",
    scale=125000,
    help="The speed that the link should have, in bytes per second.",
    use="Set it in the configuration, or let the rules take what its peers have or what it once had.",
)
row(
    "link_pre_fec_bit_error_ratio",
    "device",
    "pre_fec_ber",
    help="Bits that FEC corrected, as a share of all bits, over the rule's window.",
    use="The standard allows 2.4e-4 at 100G per lane; above 1e-4 the link is degraded.",
)
row(
    "link_post_fec_bit_error_ratio",
    "device",
    "post_fec_errors",
    help="Symbol errors after FEC, as a share of all bits, over the rule's window.",
    use="The standard allows 1e-12; above it the link is degraded.",
)
row(
    "link_rule_value",
    "device,rule",
    "rule_value",
    help="The number that a rule compared with its threshold.",
    use="nodeagent health rules prints thresholds and units: how near to a fault a link is.",
)


def _links(view: View) -> Iterator[tuple[str, Judged]]:
    scene = view.names()
    for device, judged in view.judged.items():
        if device in scene.present:
            yield scene.link_name(device), judged
