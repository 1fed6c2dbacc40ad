"""A stand-in for the kubelet: its device manager as plugins meet it, the unpleasant parts included.

It is not a kubelet. It speaks the real gRPC interfaces on real sockets (``device-plugins/kubelet.sock``,
``plugins_registry/``, ``pod-resources/kubelet.sock`` under one directory) and keeps the device manager's
sets, orders, races and leaks as kubelet 1.36 has them. It runs no container: a pod that is admitted counts
as started with what the plugins answered.

What it does not have: a scheduler beyond ``insufficient``, the predicates that follow the allocation
("OutOf<resource>"), the Node's status period (about two seconds; here the Node hears at once), CPU and memory
hints, pod-level topology scope, DRA, CPUs and memory in podresources, the kubelet's checkpoint checksum,
fsnotify on plugins_registry (it polls), the bounded channel of health updates, and PreStartContainer's
re-allocation after a reboot.
"""

from nodeagent.sim.kubelet.daemon import Kubelet
from nodeagent.sim.kubelet.pods import (
    Admission,
    AdmissionError,
    Call,
    Container,
    KubeletPanic,
    PodSpec,
    Registration,
    Seen,
    StreamEnd,
    Update,
)

__all__ = [
    "Admission",
    "AdmissionError",
    "Call",
    "Container",
    "Kubelet",
    "KubeletPanic",
    "PodSpec",
    "Registration",
    "Seen",
    "StreamEnd",
    "Update",
]
