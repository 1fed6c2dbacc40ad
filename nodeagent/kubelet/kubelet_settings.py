"""Settings of the agent's side of the kubelet: registration, podresources and CDI specs."""

from __future__ import annotations

from typing import Annotated, Literal

from nodeagent.config.setting import AbsolutePath, Settings, setting


class KubeletSettings(Settings, frozen=True, kw_only=True):
    """How the agent talks to the kubelet."""

    registration: Annotated[
        Literal["socket", "plugins_registry"],
        setting("Register at the kubelet's own socket, or be found by it in its plugins_registry directory."),
    ] = "socket"
    pod_resources: Annotated[
        bool, setting("Ask the kubelet's podresources API which pod holds what, after a restart above all.")
    ] = True


class CdiSettings(Settings, frozen=True, kw_only=True):
    """Container Device Interface specs."""

    generate: Annotated[
        bool, setting("Write our own spec where an entry wants CDI and no vendor's spec is on the host.")
    ] = True
    directory: Annotated[
        AbsolutePath, setting("Where our spec is written; the container runtime must read this directory.")
    ] = "/var/run/cdi"
