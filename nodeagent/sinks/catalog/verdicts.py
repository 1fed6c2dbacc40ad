"""How the links do, in the words and numbers of the rules: what the kubelet was told and why."""

from collections.abc import Iterator

from nodeagent.model import State
from nodeagent.sinks.catalog.family import Series, described, live
from nodeagent.sinks.view import Judged, Scene, View

_STATES = (State.HEALTHY, State.DEGRADED, State.DOWN, State.MISCABLED, State.UNKNOWN)


@described(
    "link_health_state",
    "device,state",
    help="1 for the state that the link is in, 0 for the others.",
    source="the rules",
    use="The one to look at: everything below is why. unknown never changes what pods can get.",
)
def link_health_state(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        now = State.DOWN if pf.health.state is State.UNHEALTHY else pf.health.state
        for state in _STATES:
            yield (scene.link_name(pf.pci_address), state.value), now is state


@described(
    "link_health_reason",
    "device,reason",
    help="1 for each reason that is active.",
    source="the rules",
    use="Several may be active at once; docs/runbook.md says what to do about each.",
)
def link_health_reason(scene: Scene) -> Iterator[Series]:
    for pf in scene.pfs:
        for key in dict.fromkeys(reason.key for reason in pf.health.reasons):
            yield (scene.link_name(pf.pci_address), key), 1


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


@live(
    "link_health_since_timestamp_seconds",
    "device",
    help="When the state changed last.",
    source="the rules",
    use="time() - this is how long it has lasted.",
)
def link_health_since(view: View) -> Iterator[Series]:
    for name, judged in _links(view):
        if judged.since is not None:
            yield (name,), round(view.boot_unix + judged.since, 3)


@live(
    "link_flap_penalty",
    "device",
    help="Penalty for flaps; it decays by half in the half-life.",
    source="the rules: flap damping",
    use="Above the suppress limit the link is degraded until it has fallen to the reuse limit.",
)
def link_flap_penalty(view: View) -> Iterator[Series]:
    for name, judged in _links(view):
        if judged.penalty is not None:
            yield (name,), round(judged.penalty, 1)


def _value(noun: str, key: str, scale: float, help_: str, use: str) -> None:
    @live(noun, "device", help=help_, source=f"the rules: {key}, the value that was compared", use=use)
    def read(view: View) -> Iterator[Series]:
        for name, judged in _links(view):
            if (value := judged.values.get(key)) is not None:
                yield (name,), value * scale


_value(
    "link_expected_speed_bytes",
    "expected_speed_mbps",
    125000,
    "The speed that the link should have, in bytes per second.",
    "Set it in the configuration, or let the rules take what port and peers can do.",
)
_value(
    "link_pre_fec_bit_error_ratio",
    "pre_fec_ber",
    1,
    "Bits that FEC corrected, as a share of all bits, over the rule's window.",
    "The standard allows 2.4e-4 at 100G per lane; above 1e-4 the link is degraded.",
)
_value(
    "link_post_fec_bit_error_ratio",
    "post_fec_ber",
    1,
    "Symbol errors after FEC, as a share of all bits, over the rule's window.",
    "The standard allows 1e-12; above it the link is degraded.",
)


def _links(view: View) -> Iterator[tuple[str, Judged]]:
    scene = view.names()
    for device, judged in view.judged.items():
        if device not in scene.gpus and (device in scene.functions or scene.there(device)):
            yield scene.link_name(device), judged
