"""The switches as a feature of the controller: the leader reads their LLDP neighbors, from its first plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nodeagent.base.supervise import Fatal
from nodeagent.features.switches.switch_settings import SwitchesSettings
from nodeagent.metrics.computed_family import ComputedFamily, by_key, computed, single
from nodeagent.topology.parts import ControllerCore, ControllerPart

if TYPE_CHECKING:
    from nodeagent.features.switches.switch_poller import SwitchPoller, SwitchReader

SWITCH_FAMILIES: tuple[ComputedFamily[SwitchPoller], ...] = (
    computed("switch_reads_total", "result", "Readings of a switch's LLDP neighbors.",
        lambda switches: by_key(switches.reads)),
    computed("switches", "state", "Switches by the result of their last reading.",
        lambda switches: (((state,), switches.states[state]) for state in ("read", "silent", "no-address"))),
    computed("switch_rounds_total", "", "Rounds of readings of all switches.",
        lambda switches: single(switches.rounds)),
    computed("switch_round_duration_seconds", "", "Duration of the last round.",
        lambda switches: single(switches.round_s)),
)  # fmt: skip


def start_switches(
    core: ControllerCore, settings: SwitchesSettings, generic_names: Iterable[str]
) -> ControllerPart:
    """Raises ``Fatal`` if the package for SNMP is missing."""
    if settings.method == "none":
        return ControllerPart()
    from nodeagent.features.switches.switch_poller import SwitchPoller  # noqa: PLC0415

    poller = SwitchPoller(settings, _reader(settings), core.planner, core.mirror.stir, generic_names)

    async def ask() -> None:
        await core.plans.first()
        await poller.run()

    return ControllerPart({"switches": ask}, shown=poller)


def _reader(settings: SwitchesSettings) -> SwitchReader:
    """SNMP is an extra, and loaded only if it is used."""
    from nodeagent.features.switches import snmp  # noqa: PLC0415

    reader = snmp.SnmpReader(settings.snmp, settings.port, timeout_s=settings.timeout_seconds)
    try:
        reader.check()
    except snmp.SnmpMissingError as error:
        raise Fatal(str(error)) from None
    return reader
