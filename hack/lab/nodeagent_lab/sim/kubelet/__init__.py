"""A stand-in for the kubelet: the device manager as plugins see it, with its races and leaks.

It serves the real gRPC interfaces on real sockets (``device-plugins/kubelet.sock``, ``plugins_registry/``,
``pod-resources/kubelet.sock`` under one directory). Its sets, orders, races and leaks are those of kubelet 1.36. It
runs no container: an admitted pod counts as started with the answers of the plugins.

Compared with kubelet 1.36.2: by its source (pkg/kubelet/cm/devicemanager, pkg/kubelet/cm/dra), and by hand with the
real one at registration, allocation, restart and podresources until 2026-11-24 (docs/reference/verified.md).

It lacks:

* a scheduler beyond ``insufficient``, and the predicates after the allocation ("OutOf<resource>");
* the status period of the Node (about two seconds; here the Node changes at once);
* CPU and memory hints of the Topology Manager;
* claims in ``admit``: they are prepared and unprepared by ``Kubelet.dra``;
* CPUs and memory in podresources, and the kubelet's checkpoint checksum;
* fsnotify on plugins_registry (it polls), and the bounded channel of health updates;
* the re-allocation of PreStartContainer after a reboot.
"""

from nodeagent_lab.sim.kubelet.daemon import Kubelet
from nodeagent_lab.sim.kubelet.pods import (
    Admission,
    AdmissionError,
    Container,
    DeviceListUpdate,
    KubeletPanic,
    ListedDevice,
    PluginCall,
    PodSpec,
    RegistrationAttempt,
    StreamEnd,
)

__all__ = [
    "Admission",
    "AdmissionError",
    "Container",
    "DeviceListUpdate",
    "Kubelet",
    "KubeletPanic",
    "ListedDevice",
    "PluginCall",
    "PodSpec",
    "RegistrationAttempt",
    "StreamEnd",
]
