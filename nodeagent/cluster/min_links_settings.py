"""Settings of the marks on Nodes with too few links, in the controller's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import Settings, setting


class NodesSettings(Settings, frozen=True, kw_only=True):
    """Marks on Nodes with fewer links up than minLinks. The controller needs a right of its own for them."""

    min_links_condition: Annotated[
        bool, setting("Set the condition nodeagent.io/FabricLinks to False on such a Node.")
    ] = False
    min_links_taint: Annotated[
        bool, setting("Set the taint nodeagent.io/links-below-minimum:NoSchedule on such a Node.")
    ] = False
    after_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=86400)],
        setting(
            "Seconds that a Node must be below the minimum before it is marked. The mark is removed at once "
            "when the Node has enough links."
        ),
    ] = 60.0
    taint_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        setting(
            "Maximum percentage of all Nodes with the taint, but at least one Node: a failed switch must not "
            "stop the cluster. 0: no taint."
        ),
    ] = 20


def min_links_conflicts(nodes: NodesSettings, min_links: int) -> Iterator[Conflict]:
    if (nodes.min_links_condition or nodes.min_links_taint) and not min_links:
        yield Conflict(((),), "nothing would be marked: minLinks is 0, give the least number of links")
