"""Settings of the marks on Nodes with too few links, in the controller's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import Settings, setting


class NodesSettings(Settings, frozen=True, kw_only=True):
    """What becomes of nodes with fewer links up than minLinks, beyond being told of. Needs a right of its own."""

    min_links_condition: Annotated[
        bool, setting("Set the condition nodeagent.io/FabricLinks to False on such a Node.")
    ] = False
    min_links_taint: Annotated[
        bool, setting("Put the taint nodeagent.io/links-below-minimum:NoSchedule on such a Node.")
    ] = False
    after_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=86400)],
        setting(
            "A node is marked when it has been below for so long. The mark goes at once when it no longer is."
        ),
    ] = 60.0
    taint_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        setting(
            "No more than so many percent of all nodes, but one in any case, are tainted: when a switch fails, a "
            "cluster must not stop. 0 taints none."
        ),
    ] = 20


def min_links_conflicts(nodes: NodesSettings, min_links: int) -> Iterator[Conflict]:
    if (nodes.min_links_condition or nodes.min_links_taint) and not min_links:
        yield Conflict(((),), "nothing would be marked: minLinks is 0, give the least number of links")
