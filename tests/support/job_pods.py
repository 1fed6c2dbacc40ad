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
        **({} if index else {"training.kubeflow.org/job-role": "master"}),
    }
    return pod(f"{name}-worker-{index}", ("kubeflow.org/v1", "PyTorchJob", name), labels, **place)


def of_raycluster(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {
        "ray.io/is-ray-node": "yes", "ray.io/cluster": name, "ray.io/node-type": "worker", "ray.io/group": "gpus",
        "ray.io/identifier": f"{name}-worker", "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }  # fmt: skip
    return pod(f"{name}-gpus-worker-{index}x2", ("ray.io/v1", "RayCluster", name), labels, **place)


def submitter_of_rayjob(name: str, **place: Any) -> dict[str, Any]:
    """The pod of the Job by which a RayJob hands its program to its RayCluster."""
    labels = {
        **_batch(name), "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": name,
    }  # fmt: skip
    return pod(f"{name}-z8n2m", ("batch/v1", "Job", name), labels, **place)


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


def of_leaderworkerset(name: str, index: int = 0, group: int = 0, **place: Any) -> dict[str, Any]:
    """Pod ``index`` of a group; 0 is the leader, in whose name and StatefulSet the workers have theirs."""
    key, leader = "leaderworkerset.sigs.k8s.io", f"{name}-{group}"
    labels = {
        f"{key}/name": name, f"{key}/group-index": str(group), f"{key}/worker-index": str(index),
        f"{key}/group-key": "d1e0", f"{key}/template-revision-hash": "7d9f",
        "apps.kubernetes.io/pod-index": str(index or group),
    }  # fmt: skip
    annotations = {f"{key}/size": "2", **({f"{key}/leader-name": leader} if index else {})}
    of = leader if index else name
    pod_name = f"{leader}-{index}" if index else leader
    return pod(pod_name, ("apps/v1", "StatefulSet", of), labels, annotations=annotations, **place)


def of_disaggregatedset(
    name: str, role: str = "prefill", index: int = 0, slice_: int = 0, **place: Any
) -> dict[str, Any]:
    """A pod of one of the LeaderWorkerSets that a DisaggregatedSet makes for each role of each slice."""
    key = "disaggregatedset.x-k8s.io"
    made = of_leaderworkerset(f"{name}-{slice_}-6b8c-{role}", index, **place)
    made["metadata"]["labels"] |= {
        f"{key}/name": name, f"{key}/role": role, f"{key}/slice": str(slice_), f"{key}/revision": "6b8c",
        "app": f"{name}-{slice_}-{role}",
    }  # fmt: skip
    return made


def of_podcliqueset(
    name: str, role: str = "prefill", index: int = 0, replica: int = 0, group: str = "", **place: Any
) -> dict[str, Any]:
    """A pod of Grove: of a clique of the set, or of one of the first replica of a scaling ``group``."""
    key, scaled = "grove.io", f"{name}-{replica}-{group}"
    clique = f"{scaled}-0-{role}" if group else f"{name}-{replica}-{role}"
    labels = {
        "app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": name,
        "app.kubernetes.io/component": "pcs-podclique", "app.kubernetes.io/name": clique,
        f"{key}/podclique": clique, f"{key}/podcliqueset-replica-index": str(replica),
        f"{key}/podgang": f"{name}-{replica}", f"{key}/podclique-pod-index": str(index),
    }  # fmt: skip
    if group:
        labels |= {f"{key}/podcliquescalinggroup": scaled, f"{key}/podcliquescalinggroup-replica-index": "0"}
    return pod(f"{clique}-x{index}k2p", ("grove.io/v1alpha1", "PodClique", clique), labels, **place)


def of_trial(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """A pod of the PyTorchJob that a trial of Katib runs; Katib's webhook adds its labels."""
    made = of_pytorchjob(name, index, **place)
    made["metadata"]["labels"] |= {
        "katib.kubeflow.org/experiment": name.rpartition("-")[0], "katib.kubeflow.org/trial": name,
    }  # fmt: skip
    return made


def of_workflow(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """A step of a run of Kubeflow Pipelines, which is a workflow of Argo."""
    labels = {
        "workflows.argoproj.io/workflow": name, "workflows.argoproj.io/completed": "false", "pipeline/runid": UID,
    }  # fmt: skip
    step = f"{name}-system-container-impl-{index}"
    return pod(step, ("argoproj.io/v1alpha1", "Workflow", name), labels, **place)


def of_statefulset(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    labels = {"app": name, "statefulset.kubernetes.io/pod-name": f"{name}-{index}"}
    return pod(f"{name}-{index}", ("apps/v1", "StatefulSet", name), labels, **place)


def of_deployment(name: str, index: int = 0, **place: Any) -> dict[str, Any]:
    """Volcano makes a PodGroup for its ReplicaSet."""
    return pod(
        f"{name}-7c9f-{index}",
        ("apps/v1", "ReplicaSet", f"{name}-7c9f"),
        {"app": name, "pod-template-hash": "7c9f"},
        annotations={"scheduling.k8s.io/group-name": f"podgroup-{UID}"},
        **place,
    )


def of_daemonset(name: str, **place: Any) -> dict[str, Any]:
    """A pod of no job."""
    return pod(f"{name}-7k2px", ("apps/v1", "DaemonSet", name), {"app": name}, **place)
