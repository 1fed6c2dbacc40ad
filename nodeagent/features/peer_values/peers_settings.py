"""The settings of the comparison of nodes."""

from typing import Annotated

from nodeagent.config.setting import Settings, setting


class PeersSettings(Settings, frozen=True, kw_only=True):
    """Comparison of this node with others of its model."""

    compare: Annotated[
        bool,
        setting(
            "Report drivers, firmware, settings of GPUs and links, kernel and boot parameters, so that `nodeagent "
            "trouble` names the nodes that differ from their peers. Off by default: the definition of NodeLinks must "
            "be of this version, or the report is incomplete."
        ),
    ] = False
