"""The settings of the health events for NVSentinel."""

from collections.abc import Iterator
from typing import Annotated

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import AbsolutePath, Settings, setting


class NvSentinelSettings(Settings, frozen=True, kw_only=True):
    """Health events for NVSentinel's platform connector on this node."""

    socket: Annotated[
        AbsolutePath | None,
        setting(
            "Send the health of NICs and GPUs to the connector that listens on this socket of the host. NVSentinel's "
            "chart makes /var/run/nvsentinel/nvsentinel.sock. null: send nothing."
        ),
    ] = None
    store_only: Annotated[
        bool,
        setting(
            "Mark the events with STORE_ONLY: NVSentinel stores them and changes nothing in the cluster. Use it for a "
            "trial."
        ),
    ] = False
    token_file: Annotated[
        AbsolutePath | None,
        setting(
            "Present the token in this file of the agent's container, if the connector requires one. The file is read "
            "at each call, because the kubelet renews it. null: no token."
        ),
    ] = None


def nvsentinel_conflicts(nvsentinel: NvSentinelSettings) -> Iterator[Conflict]:
    """Settings that have no effect without another one."""
    if nvsentinel.socket is None:
        for key, on in (("storeOnly", nvsentinel.store_only), ("tokenFile", nvsentinel.token_file)):
            if on:
                yield Conflict(((key,), ("socket",)), "needs socket; nothing is sent without it")
