"""The controller's settings of probes over the rails."""

from typing import Annotated

import msgspec

from nodeagent.config.setting import Settings, setting


class FabricRailsSettings(Settings, frozen=True, kw_only=True):
    """Probes between the rails of the nodes, which agents with `rails.probe` send."""

    probe: Annotated[
        bool,
        setting(
            "Choose partners for each rail, write them as RailPartners objects, and name the link, leaf switch or tier "
            "that loses packets. Off by default: it needs rights and a definition of its own (components/rails)."
        ),
    ] = False
    numbers: Annotated[
        bool,
        setting(
            "Give each node a number on each rail, for the addresses of its VFs in pods (`attach.numbers` of the "
            "agents): that of its PF's address, or the lowest free one, once. RailPartners objects have them. Off by "
            "default: it needs rights and a definition of its own (components/rails)."
        ),
    ] = False
    per_second: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=1.3)],
        setting(
            "Packets a second to each partner. A link has three, and answers as many: 3 a second at the default."
        ),
    ] = 0.5
