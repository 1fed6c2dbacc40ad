"""Settings of the agent's side of the kubelet: registration, podresources and CDI specs."""

from typing import Annotated, Literal

from nodeagent.config.setting import AbsolutePath, Settings, setting


class KubeletSettings(Settings, frozen=True, kw_only=True):
    """How the agent registers with the kubelet and reads what pods hold."""

    registration: Annotated[
        Literal["socket", "plugins_registry"] | None,
        setting(
            "Without effect, and refused by the next release: the agent registers at the kubelet's socket. Remove "
            "this setting.",
            retired=True,
        ),
    ] = None
    pod_resources: Annotated[
        bool,
        setting(
            "Ask the kubelet's podresources API which pod holds which device. On by default: after a restart "
            "of the agent there is no other source."
        ),
    ] = True


class CdiSettings(Settings, frozen=True, kw_only=True):
    """Container Device Interface specs."""

    generate: Annotated[
        bool, setting("Write a CDI spec where a resource uses CDI and no vendor's spec defines the device.")
    ] = True
    directory: Annotated[
        AbsolutePath,
        setting(
            "Absolute path of the directory for the agent's CDI spec. The container runtime must read this "
            "directory."
        ),
    ] = "/var/run/cdi"
    device_metadata: Annotated[
        bool,
        setting(
            "Give the containers of claims a file with the attributes of their devices (KEP-5304): "
            "/var/run/kubernetes.io/dra-device-attributes/. Programs such as KubeVirt read the PCI address there."
        ),
    ] = True
