"""Pods as the controllers of jobs make them: names, owners, labels and annotations from the source of each.

docs/reference/verified.md has the commits and files.
"""

from __future__ import annotations

from typing import Any

UID = "5b7b6e5c-2a6b-4c55-9d5a-3a1b8a9c0d11"
STARTED = "2027-01-15T06:00:00Z"


def pod(
    name: str,
    owner: tuple[str, str, str],
    labels: dict[str, str],
    *,
    annotations: dict[str, str] | None = None,
    namespace: str = "ml",
    node: str = "",
    phase: str = "Running",
    started: str = STARTED,
) -> dict[str, Any]:
    """``owner``: apiVersion, kind and name of the controller."""
    version, kind, of = owner
    references = [
        {
            "apiVersion": version, "kind": kind, "name": of, "uid": UID, "controller": True,
            "blockOwnerDeletion": True,
        }
    ]  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "creationTimestamp": started,
            "labels": labels,
            **({"annotations": annotations} if annotations else {}),
            **({"ownerReferences": references} if kind else {}),
        },
        "spec": {"containers": [{"name": "main", "image": "x"}], **({"nodeName": node} if node else {})},
        "status": {"phase": phase, **({"startTime": started} if node else {})},
    }


def _batch(name: str) -> dict[str, str]:
    """pkg/controller/job of Kubernetes: both forms of each label."""
    return {
        "batch.kubernetes.io/controller-uid": UID,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": UID,
        "job-name": name,
    }


def of_job(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {**_batch(name), "batch.kubernetes.io/job-completion-index": str(index)}
    return pod(f"{name}-{index}-x7k2p", ("batch/v1", "Job", name), labels, **place)


def of_jobset(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """A pod of a JobSet; a TrainJob makes a JobSet of its own name, whose replicated job is ``node``."""
    child = f"{name}-node-{index}"
    key = "jobset.sigs.k8s.io"
    labels = {
        f"{key}/jobset-name": name, f"{key}/jobset-uid": UID, f"{key}/replicatedjob-name": "node",
        f"{key}/restart-attempt": "0", f"{key}/replicatedjob-replicas": "2", f"{key}/global-replicas": "2",
        f"{key}/job-index": str(index), f"{key}/job-key": "0f", f"{key}/job-global-index": str(index),
        f"{key}/group-name": "default", f"{key}/group-replicas": "2", f"{key}/job-group-index": str(index),
    }  # fmt: skip
    return pod(
        f"{child}-0-abcde",
        ("batch/v1", "Job", child),
        {**_batch(child), **labels},
        annotations=labels,
        **place,
    )


def of_mpijob(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    return pod(f"{name}-worker-{index}", ("kubeflow.org/v2beta1", "MPIJob", name), labels, **place)


def launcher_of_mpijob(name: str, **place: Any) -> dict[str, Any]:
    """The launcher is the pod of a Job that the MPIJob owns."""
    child = f"{name}-launcher"
    labels = {
        **_batch(child),
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/job-role": "launcher",
    }
    return pod(f"{child}-q5z8w", ("batch/v1", "Job", child), labels, **place)


def of_pytorchjob(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    return pod(f"{name}-worker-{index}", ("kubeflow.org/v1", "PyTorchJob", name), labels, **place)


def of_raycluster(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "ray.io/is-ray-node": "yes", "ray.io/cluster": name, "ray.io/node-type": "worker", "ray.io/group": "gpus",
        "ray.io/identifier": f"{name}-worker", "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }  # fmt: skip
    return pod(f"{name}-gpus-worker-{index}x2", ("ray.io/v1", "RayCluster", name), labels, **place)


def of_volcano_job(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "volcano.sh/task-index": str(index), "volcano.sh/job-name": name, "volcano.sh/task-spec": "worker",
        "volcano.sh/job-namespace": "ml", "volcano.sh/queue-name": "default",
    }  # fmt: skip
    annotations = {
        "scheduling.k8s.io/group-name": f"{name}-{UID}", "volcano.sh/job-name": name, "volcano.sh/job-version": "0",
        "volcano.sh/task-spec": "worker", "volcano.sh/template-uid": f"{name}-worker",
    }  # fmt: skip
    owner = ("batch.volcano.sh/v1alpha1", "Job", name)
    return pod(f"{name}-worker-{index}", owner, labels, annotations=annotations, **place)


def of_kueue_group(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "kueue.x-k8s.io/pod-group-name": name, "kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/managed": "true",
        "kueue.x-k8s.io/podset": "a1b2c3d4",
    }  # fmt: skip
    annotations = {"kueue.x-k8s.io/pod-group-total-count": "2", "kueue.x-k8s.io/role-hash": "a1b2c3d4"}
    return pod(f"{name}-{index}", ("", "", ""), labels, annotations=annotations, **place)


def of_volcano_group(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """A pod that names a PodGroup of Volcano itself."""
    return pod(
        f"{name}-{index}",
        ("", "", ""),
        {"app": "x"},
        annotations={"scheduling.k8s.io/group-name": name},
        **place,
    )


def of_deployment(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """A pod of no job. Volcano makes a PodGroup for its ReplicaSet."""
    return pod(
        f"{name}-7c9f-{index}",
        ("apps/v1", "ReplicaSet", f"{name}-7c9f"),
        {"app": name, "pod-template-hash": "7c9f"},
        annotations={"scheduling.k8s.io/group-name": f"podgroup-{UID}"},
        **place,
    )
