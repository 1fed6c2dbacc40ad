"""Settings of the agent's side of the kubelet: podresources and CDI specs."""

from typing import Annotated

from nodeagent.config.setting import AbsolutePath, Settings, setting


class KubeletSettings(Settings, frozen=True, kw_only=True):
    """How the agent reads what pods hold."""

    pod_resources: Annotated[
        bool,
        setting(
            "Ask the kubelet's podresources API which pod holds which device, and which devices it counts. On by "
            "default: after a restart of the agent there is no other source. false: another device plugin that takes "
            "a resource name of the agent is not noticed."
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
            "Absolute path of the host: the directory for the agent's CDI spec. The container runtime must read it."
        ),
    ] = "/var/run/cdi"
    device_metadata: Annotated[
        bool,
        setting(
            "Give the containers of claims a file with the attributes of their devices (KEP-5304): "
            "/var/run/kubernetes.io/dra-device-attributes/. Programs such as KubeVirt read the PCI address there."
        ),
    ] = True
