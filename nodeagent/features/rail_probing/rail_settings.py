"""The settings of the probes over the rails."""

from ipaddress import ip_network
from typing import Annotated

import msgspec

from nodeagent.config.file_errors import quote
from nodeagent.config.formats import form
from nodeagent.config.setting import ENTRIES_MAX, Settings, setting

PREFIX_LEAST = 8
"""A wider network has addresses that are no rails."""


def _network_complaint(text: str) -> str | None:
    try:
        network = ip_network(text)
    except ValueError as error:
        return f"{quote(text)} is no network such as 10.200.0.0/16: {error}"
    if network.prefixlen < PREFIX_LEAST:
        return f"{quote(text)} is too wide: name the networks of the rails, with {PREFIX_LEAST} bits of prefix or more"
    return None


_Network = Annotated[
    str,
    form(
        "[0-9a-fA-F.:]{2,39}/[0-9]{1,3}",
        "a network such as 10.200.0.0/16",
        at_most=43,
        check=_network_complaint,
    ),
]


class RailsSettings(Settings, frozen=True, kw_only=True):
    """How the agent probes its rails."""

    probe: Annotated[
        bool,
        setting(
            "Send small packets over each rail to the partners that the controller chose, and answer theirs. Needs "
            "`rails` of the controller, and components/rails. Off by default: nothing is sent."
        ),
    ] = False
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=32000)],
        setting(
            "UDP port of the answers, the same on all nodes; the 24 ports after it are source ports. Not 4791, which "
            "RoCE NICs keep for their RDMA engine."
        ),
    ] = 18514
    networks: Annotated[
        tuple[_Network, ...],
        setting(
            "Networks of the rails, such as 10.200.0.0/16. A partner outside a rail's own prefix is probed and "
            "answered only in these: rails of routed fabrics need them.",
            max_length=ENTRIES_MAX,
        ),
    ] = ()
    dscp: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=63)],
        setting(
            "DSCP of the probes. Use that of the RDMA traffic, so that they meet the same queues: often 26."
        ),
    ] = 0
