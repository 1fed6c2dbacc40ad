"""The rails of the hall as a feature of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.features.rail_probing.rail_keeping_settings import FabricRailsSettings
from nodeagent.metrics.computed_family import ComputedFamily, by_key, computed
from nodeagent.topology.parts import ControllerCore, ControllerPart

if TYPE_CHECKING:
    from nodeagent.features.rail_probing.rail_keeper import RailKeeper

RAIL_FAMILIES: tuple[ComputedFamily[RailKeeper], ...] = (
    computed("rail_legs", "state", "Legs between NICs that are probed; a bad one loses packets.",
        lambda rails: by_key(rails.legs)),
)  # fmt: skip


def start_rails(core: ControllerCore, settings: FabricRailsSettings) -> ControllerPart:
    if not (settings.probe or settings.numbers):
        return ControllerPart()
    from nodeagent.features.rail_probing.rail_keeper import RailKeeper  # noqa: PLC0415

    keeper = RailKeeper(core, settings)
    stays = "RailPartners are no longer kept, and agents that probe go on by them."
    return ControllerPart(
        {"rails": keeper.lead},
        shown=keeper,
        writes=lambda: (
            ((verb, "railpartners", result), count) for (verb, result), count in sorted(keeper.writes.items())
        ),
        stays={"kubectl delete railpartners --all": stays},
    )
