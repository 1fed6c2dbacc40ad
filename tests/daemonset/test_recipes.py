"""The parts of the examples that a rule of another project decides: the first policy that matches, a plugin that
must be on, a rendezvous that all pods find, quota that is borrowed.

Each rule is written here from its owner's source or documentation, which the docstring names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cli import main
from nodeagent.cluster.node_marks import LINKS_TAINT, OWN_MARKS, STARTING_TAINT
from nodeagent.kinds.volcano_vgpus import CORES, MEMORY, NUMBER
from tests.commands.test_plan import objects as cabled_nodes
from tests.support.fabrics import rails
from tests.support.findings import one_item
from tests.support.manifests import DAEMONSET, ROOT, Manifest, built, files, of_kind, parsed

EXAMPLES = DAEMONSET / "examples"


def objects(folder: str) -> list[Manifest]:
    return [
        one
        for path in files(EXAMPLES / folder)
        for one in parsed(path.read_text())
        if {"kind", "metadata"} <= one.keys()
    ]


def named(folder: str, kind: str, name: str) -> Manifest:
    (found,) = (one for one in of_kind(objects(folder), kind) if one["metadata"]["name"] == name)
    return found


# Ranks by switch


def test_the_containers_of_ranks_give_each_node_its_rank_and_the_address_of_the_first(tmp_path: Path) -> None:
    """The shell of the recipe itself, with the real verb; kubectl and torchrun are scripts that print."""
    reports = [{"kind": "NodeLinks", **one} for one in cabled_nodes(rails(2, 2))]
    nodes = ["su001-n001", "su000-n000", "su001-n000", "su000-n001"]
    pods = "\n".join(f"{node} 192.0.2.{number}" for number, node in enumerate(nodes))
    folder, bin_ = tmp_path / "ranks", tmp_path / "bin"
    for made in (folder, bin_):
        made.mkdir()
    (tmp_path / "links.json").write_text(json.dumps({"kind": "List", "items": reports}))
    for name, text in {
        "kubectl": f"echo '{pods}'",
        "nodeagent": f'exec {sys.executable} -m nodeagent "$@" --from {tmp_path}/links.json',
        "torchrun": 'echo "$@"',
        "sleep": "",
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    spec = named("kube-scheduler", "Job", "ranked")["spec"]["template"]["spec"]
    (worker,) = spec["containers"]

    def run(container: Manifest, node: str = "") -> str:
        script = container["args"][0].replace("/ranks/", f"{folder}/")
        path = f"{bin_}:{os.environ['PATH']}"
        env = {"PATH": path, "NODE_NAME": node, "PYTHONPATH": str(ROOT)}
        command = [*container["command"], script]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    for init in spec["initContainers"]:
        run(init)
    given = {node: dict(part[2:].split("=") for part in run(worker, node).split()[:-1]) for node in nodes}
    assert [int(given[node]["node-rank"]) for node in sorted(nodes)] == [0, 1, 2, 3]
    assert {one["master-addr"] for one in given.values()} == {"192.0.2.1"}
    assert {one["nnodes"] for one in given.values()} == {str(len(nodes))}


# Volcano


def action(job: Manifest, task: str, event: str, exit_code: int | None = None) -> str | None:
    """Return what Volcano does at this event: applyPolicies in pkg/controllers/job/job_controller_util.go.

    The policies of the task come first, then those of the job. In each list the first policy decides whose event is the
    event or ``*``, or whose exit code is the one of the container.
    """
    tasks = {one["name"]: one for one in job["spec"]["tasks"]}
    for policy in [*tasks[task].get("policies", []), *job["spec"].get("policies", [])]:
        events = {*policy.get("events", []), policy.get("event")}
        if events & {event, "*"} or (exit_code is not None and policy.get("exitCode") == exit_code):
            return str(policy["action"])
    return None


def test_the_rule_of_the_first_match_is_strict() -> None:
    shadowed = {
        "spec": {
            "tasks": [
                {
                    "name": "worker",
                    "policies": [
                        {"event": "PodFailed", "action": "RestartPod"},
                        {"exitCode": 3, "action": "RestartJob"},
                    ],
                }
            ]
        }
    }
    assert action(shadowed, "worker", "PodFailed", 3) == "RestartPod"


@one_item("job", ("pretrain", "finetune", "hall1", "hall2"))
def test_a_gang_is_restarted_as_a_whole_and_waiting_is_no_failure(job: str) -> None:
    """Volcano sends PodPending when a pod is created, before a node is chosen (addPod in job_controller_handler.go).
    Each restart raises RetryCount, which nothing lowers (running.go, pending.go)."""
    jobs = {one["metadata"]["name"]: one for one in of_kind(objects("volcano"), "Job")}
    for part in named("volcano-global", "HyperJob", "pretrain")["spec"]["replicatedJobs"]:
        jobs[part["name"]] = {"spec": part["templateSpec"]}
    for code in (1, 137):
        assert action(jobs[job], "worker", "PodFailed", code) == "RestartJob"
    assert action(jobs[job], "worker", "PodEvicted", 143) == "RestartJob"
    assert action(jobs[job], "worker", "PodPending") is None
    assert action(jobs[job], "worker", "TaskCompleted") == "CompleteJob"
    assert jobs[job]["spec"]["maxRetry"] >= 20


def test_a_job_of_kubernetes_counts_failures_per_index_and_no_evictions() -> None:
    """An eviction by the API writes the condition DisruptionTarget (Kubernetes, "Pod disruption conditions").

    The wait before the next pod is 10 s, doubled for each failed pod since the last that succeeded, those that the
    policy ignores included; with a limit per index for those of its index (``backoff_utils.go``). One gang of eight
    that ends makes ten minutes of it."""
    for folder in ("kueue", "kube-scheduler", "kai"):
        spec = named(folder, "Job", "pretrain")["spec"]
        assert "backoffLimit" not in spec
        assert spec["backoffLimitPerIndex"] >= 10
        assert spec["maxFailedIndexes"] == 0
        assert (
            spec["template"]["spec"]["restartPolicy"] == "Never"
        )  # Kubernetes demands it for a podFailurePolicy
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule == {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }


def test_every_torchrun_has_restarts_of_its_own() -> None:
    """Without them each agent ends some seconds after a worker of another pod died, and all pods fail."""
    for path, manifest, _, arguments in torchruns():
        if manifest["kind"] == "PyTorchJob":
            assert manifest["spec"]["elasticPolicy"]["maxRestarts"] > 0
        else:
            given = [one for one in arguments if one.startswith("--max-restarts=")]
            assert [int(one.partition("=")[2]) > 0 for one in given] == [True], path


def test_every_torchrun_that_restarts_meets_in_a_new_store() -> None:
    """The shared store of ``c10d`` keeps the addresses of the start before (pytorch issue 135712, torch 2.13): four
    agents used up three restarts in a minute, and the job failed."""
    for path, manifest, template, arguments in torchruns():
        elastic = manifest["spec"].get("elasticPolicy", {}).get("rdzvBackend") == "c10d"
        if elastic or "--rdzv-backend=c10d" in arguments:
            (container,) = template["spec"]["containers"]
            assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in container.get("env", []), (
                path
            )


def test_no_policy_of_a_volcano_job_is_unreachable() -> None:
    """Volcano reports a container that ends with an exit code as PodFailed."""
    for job in of_kind(objects("volcano"), "Job"):
        for task in job["spec"]["tasks"]:
            for policy in [*task.get("policies", []), *job["spec"]["policies"]]:
                code = policy.get("exitCode")
                happens = "PodFailed" if code is not None else policy["event"]
                assert action(job, task["name"], happens, code) == policy["action"], policy


def scheduler() -> tuple[list[str], dict[str, Any]]:
    """The actions and the plugins of the scheduler's configuration in the example."""
    (config,) = of_kind(objects("volcano"), "ConfigMap")
    text = yaml.safe_load(config["data"]["volcano-scheduler.conf"])
    plugins = {plugin["name"]: plugin for tier in text["tiers"] for plugin in tier["plugins"]}
    return [one.strip() for one in text["actions"].split(",")], plugins


def test_the_scheduler_has_the_plugins_and_actions_that_the_volcano_example_needs() -> None:
    """The plugin ``capacity`` reads capability, deserved and guarantee of a queue. It excludes ``proportion``. The
    actions ``gangreclaim`` and ``gangpreempt`` (since 1.15) take back what exceeds ``deserved`` and what has a lower
    priority, and exclude ``reclaim`` and ``preempt`` (Volcano, "Gang-aware eviction"). The plugin
    ``network-topology-aware`` reads ``networkTopology`` of a job (Volcano, "Network topology aware scheduling").
    ``allocate`` is the action that places pods; without ``enqueue`` no PodGroup leaves Pending."""
    actions, plugins = scheduler()
    assert actions[:2] == ["enqueue", "allocate"]
    assert any("deserved" in queue["spec"] for queue in of_kind(objects("volcano"), "Queue"))
    assert {"gangpreempt", "gangreclaim"} <= {*actions}
    assert not {"preempt", "reclaim"} & {*actions}
    arguments = plugins["network-topology-aware"]["arguments"]
    packed = [one.strip() for one in arguments["hypernode.binpack.resources"].split(",")]
    limits = named("volcano", "Job", "pretrain")["spec"]["tasks"][0]["template"]["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert {*packed} <= limits.keys()
    assert all(
        arguments[f"hypernode.binpack.resources.{one}"] > arguments["hypernode.binpack.cpu"] for one in packed
    )
    assert "capacity" in plugins
    assert "proportion" not in plugins
    assert any("networkTopology" in job["spec"] for job in of_kind(objects("volcano"), "Job"))
    assert "network-topology-aware" in plugins
    assert "gang" in plugins


def test_the_plugin_capacity_decides_which_gangs_are_evicted() -> None:
    """Volcano asks the plugins of the next tier only if those of the first name no victim (``UnifiedEvictable`` of
    session_plugins.go), and ``gang``, ``priority`` and ``conformance`` name all. Below them ``capacity`` was not asked,
    and a gang within the share and guarantee of its queue was evicted twice in half a minute (seen with ed72c7c8)."""
    (config,) = of_kind(objects("volcano"), "ConfigMap")
    first, *_ = yaml.safe_load(config["data"]["volcano-scheduler.conf"])["tiers"]
    assert {"gang", "priority", "conformance", "capacity"} <= {plugin["name"] for plugin in first["plugins"]}


def test_a_queue_deserves_one_resource() -> None:
    """Volcano's plugin ``capacity`` lets a queue reclaim while one of its deserved resources is below its share, and
    takes from a queue that exceeds one (``LessEqualPartly…``, ``GreaterPartly…`` in resource_info.go). With a second
    one that jobs use less of, two queues evicted each other's gangs without end (seen with ed72c7c8). A guarantee is
    part of what is deserved."""
    queues = [one for folder in ("volcano", "volcano-global") for one in of_kind(objects(folder), "Queue")]
    assert queues
    for queue in queues:
        shares = [queue["spec"].get("deserved"), queue["spec"].get("guarantee", {}).get("resource")]
        assert {one for share in shares if share for one in share} <= {"nvidia-dgx-h100/gpu-mem"}, queue


def test_the_deviceshare_example_turns_the_plugin_on_and_locks_nodes() -> None:
    """The arguments are those of volcano, pkg/scheduler/plugins/deviceshare: ``VGPUEnable`` turns on the annotations,
    ``NodeLockEnable`` the lock, ``SchedulePolicy`` is ``binpack`` or ``spread``. Only pods with ``schedulerName:
    volcano`` get a choice, and a container with ``vgpu-number`` is placed (``checkVGPUResourcesInPod``)."""
    (config,) = of_kind(objects("volcano-deviceshare"), "ConfigMap")
    text = yaml.safe_load(config["data"]["volcano-scheduler.conf"])
    plugins = {plugin["name"]: plugin for tier in text["tiers"] for plugin in tier["plugins"]}
    arguments = plugins["deviceshare"]["arguments"]
    assert arguments["deviceshare.VGPUEnable"] is True
    assert arguments["deviceshare.NodeLockEnable"] is True
    assert arguments["deviceshare.SchedulePolicy"] in ("binpack", "spread")
    assert {"predicates", "proportion"} <= plugins.keys()
    pod = named("volcano-deviceshare", "Deployment", "half-gpu")["spec"]["template"]["spec"]
    assert pod["schedulerName"] == "volcano"
    (limits,) = (container["resources"]["limits"] for container in pod["containers"])
    assert {NUMBER, MEMORY, CORES} <= limits.keys()
    assert 2 * limits[MEMORY] <= 79
    assert 2 * limits[CORES] <= 100


# torchrun


def torchruns() -> Iterator[tuple[Path, Manifest, dict[str, Any], list[str]]]:
    """Each container that starts torchrun on more than one node: its file, object, pod template and arguments."""

    def templates(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
                yield value
            for one in value.values():
                yield from templates(one)
        elif isinstance(value, list):
            for one in value:
                yield from templates(one)

    for path in (path for folder in sorted(EXAMPLES.iterdir()) if folder.is_dir() for path in files(folder)):
        for manifest in parsed(path.read_text()):
            for template in templates(manifest):
                for container in template["spec"]["containers"]:
                    arguments = [*container.get("command", []), *container.get("args", [])]
                    if arguments[:1] == ["torchrun"]:
                        yield path, manifest, template, arguments


def test_every_torchrun_of_several_nodes_has_a_rendezvous_that_each_pod_finds() -> None:
    """torchrun's defaults are ``--rdzv-backend=static`` and an endpoint at 127.0.0.1 (torch/distributed/run.py): with
    them each pod waits for itself. The Training Operator and the Trainer pass theirs in PET_ variables.

    The name of a pod resolves as POD.SUBDOMAIN through a headless Service with the subdomain's name that selects the
    pod (Kubernetes, "DNS for Services and Pods"). Pods of an Indexed Job have the host name JOB-INDEX and the label
    batch.kubernetes.io/job-name. Volcano's plugin svc makes JOB-TASK-INDEX.JOB.
    """
    seen = 0
    for path, manifest, template, arguments in torchruns():
        if manifest["kind"] in ("PyTorchJob", "TrainJob", "TrainingRuntime", "HyperJob"):
            continue  # the operators pass theirs; the HyperJob has a test of its own
        seen += 1
        given = dict(one.removeprefix("--").split("=", 1) for one in arguments if one.startswith("--rdzv-"))
        assert given["rdzv-backend"] == "c10d", path
        host, _, port = given["rdzv-endpoint"].partition(":")
        name, job = host.split("."), manifest["metadata"]["name"]
        if manifest["kind"] == "JobTemplate":
            (flow,) = of_kind(parsed(path.read_text()), "JobFlow")
            job = f"{flow['metadata']['name']}-{job}"
        if "volcano.sh" in manifest["apiVersion"]:
            assert "svc" in manifest["spec"]["plugins"]
            (task,) = manifest["spec"]["tasks"]
            assert name == [f"{job}-{task['name']}-0", job]
            continue
        assert manifest["spec"]["completionMode"] == "Indexed"
        assert manifest["spec"]["completions"] == manifest["spec"]["parallelism"]
        assert f"--nnodes={manifest['spec']['completions']}" in arguments
        assert name == [f"{job}-0", template["spec"]["subdomain"]]
        (service,) = (
            one
            for one in of_kind(parsed(path.read_text()), "Service")
            if one["metadata"]["name"] == template["spec"]["subdomain"]
        )
        assert service["metadata"].get("namespace") == manifest["metadata"].get("namespace")
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job}
        # A pod is Ready when torchrun runs, which waits for the address.
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert int(port) in [one["port"] for one in service["spec"]["ports"]]
    assert seen == 6


def test_a_readme_that_searches_the_log_for_the_network_has_a_program_that_logs_it() -> None:
    """NCCL prints ``NET/IB`` only with NCCL_DEBUG=INFO or higher (NCCL, "Environment variables")."""
    searching = [folder for folder in EXAMPLES.iterdir() if folder.is_dir() and "NET/IB" in _readme(folder)]
    assert {folder.name for folder in searching} == {"mpi-operator", "training-operator"}
    for folder in searching:
        for path in files(folder):
            text = path.read_text()
            assert "NCCL_DEBUG=INFO" in text or "{name: NCCL_DEBUG, value: INFO}" in text, path


def _readme(folder: Path) -> str:
    return (folder / "README.md").read_text()


# Kueue


def quantity(text: str | int) -> float:
    """A quantity of Kubernetes in its base unit."""
    units = {"": 1, "m": 1e-3, "Gi": 2**30, "Ti": 2**40}
    number, unit = re.fullmatch(r"(\d+)(\w*)", str(text)).groups()
    return int(number) * units[unit]


def requested(job: Manifest) -> dict[str, float]:
    """Return the requests of all pods of an MPIJob together."""
    total: dict[str, float] = {}
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        for container in replica["template"]["spec"]["containers"]:
            resources = container["resources"]["limits"] | container["resources"]["requests"]
            for name, amount in resources.items():
                total[name] = total.get(name, 0) + quantity(amount) * replica["replicas"]
    return total


def flavor(queue: Manifest, name: str) -> dict[str, dict[str, Any]]:
    """The quotas of one flavor, by resource."""
    (group,) = queue["spec"]["resourceGroups"]
    (found,) = (one for one in group["flavors"] if one["name"] == name)
    return {one["name"]: one for one in found["resources"]}


def test_the_mpijob_fits_only_with_what_its_queue_borrows() -> None:
    """A queue may use its nominal quota and what others of its cohort do not use, up to its ``borrowingLimit`` and
    their ``lendingLimit`` (Kueue, "ClusterQueue", "Cohort"). A workload with a resource that is not covered is never
    admitted."""
    queues = {one["metadata"]["name"]: one for one in of_kind(objects("kueue"), "ClusterQueue")}
    own, other = flavor(queues["pretraining"], "h100"), flavor(queues["inference"], "h100")
    needed = requested(named("kueue", "MPIJob", "all-reduce"))
    assert needed.keys() <= own.keys()
    borrowed = set()
    for name, amount in needed.items():
        nominal = quantity(own[name]["nominalQuota"])
        lent = quantity(other[name].get("lendingLimit", other[name]["nominalQuota"]))
        limit = min(lent, quantity(own[name].get("borrowingLimit", 10**15)))
        assert amount <= nominal + limit, name
        if amount > nominal:
            borrowed.add(name)
    assert borrowed == {"nvidia-dgx-h100/gpu-mem"}
    assert queues["pretraining"]["spec"]["cohortName"] == queues["inference"]["spec"]["cohortName"]


def test_no_quota_refuses_the_pods_of_a_job_that_kueue_has_admitted() -> None:
    """With tenant.yaml in the namespace of a queue 16 jobs were admitted and had no pod (``exceeded quota``)."""
    recipe = objects("gpu-service")
    made = {one["metadata"]["name"] for one in of_kind(recipe, "Namespace")}
    limited = {one["metadata"]["namespace"] for one in of_kind(recipe, "ResourceQuota")}
    queued = {one["metadata"]["namespace"] for one in of_kind(recipe, "LocalQueue")}
    assert queued <= made
    assert limited
    assert not queued & limited
    for queue in of_kind(recipe, "ClusterQueue"):
        labels = queue["spec"]["namespaceSelector"]["matchLabels"]
        assert labels["kubernetes.io/metadata.name"] in queued


@pytest.mark.parametrize("folder", ["mpi-operator", "kueue"])
def test_the_launcher_of_an_mpijob_waits_for_its_workers(folder: str) -> None:
    """MPI Operator starts it with the first worker otherwise: where two of four workers found no node, mpirun ended
    and used up its ``backoffLimit``, so a job that had to wait failed."""
    job = named(folder, "MPIJob", "all-reduce")
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"


def test_each_queue_of_the_cohort_gets_back_what_it_lent() -> None:
    """mpijob.yaml says so. With ``reclaimWithinCohort: LowerPriority`` a gang of the priority of the borrower waited
    for its own quota (seen with Kueue ff69552e)."""
    for queue in of_kind(objects("kueue"), "ClusterQueue"):
        assert queue["spec"]["preemption"]["reclaimWithinCohort"] == "Any"


def test_kueue_starts_with_the_configuration_of_the_readme() -> None:
    """apis/config/v1beta2/configuration_types.go: Kueue ends at an unknown field, and v1beta2 has no ``enable``."""
    snippet = re.search(r"```yaml\n(apiVersion: config.*?)```", _readme(EXAMPLES / "kueue"), re.DOTALL)
    assert snippet is not None
    config = yaml.safe_load(snippet[1])
    assert config["apiVersion"] == "config.kueue.x-k8s.io/v1beta2"
    waits = config["waitForPodsReady"]
    assert waits.keys() <= {"timeout", "recoveryTimeout", "blockAdmission", "requeuingStrategy"}


def test_the_two_jobs_of_the_kueue_example_do_not_fit_at_the_same_time() -> None:
    """README.md: the MPIJob waits while the other runs."""
    queues = of_kind(objects("kueue"), "ClusterQueue")
    all_slices = sum(flavor(queue, "h100")["nvidia-dgx-h100/gpu-mem"]["nominalQuota"] for queue in queues)
    job = named("kueue", "Job", "pretrain")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    of_the_job = container["resources"]["limits"]["nvidia-dgx-h100/gpu-mem"] * job["spec"]["parallelism"]
    of_the_mpijob = requested(named("kueue", "MPIJob", "all-reduce"))["nvidia-dgx-h100/gpu-mem"]
    assert of_the_job + of_the_mpijob > all_slices


def test_the_admission_check_names_its_configuration_and_a_resource_of_the_queue() -> None:
    """Kueue, "Provisioning Admission Check", apis/kueue/v1beta2/provisioningrequestconfig_types.go: the check names
    the controller and a ProvisioningRequestConfig. The request contains only the pods that ask for a managed resource;
    if none does, the workload starts without a request. The Cluster Autoscaler has the two classes."""
    (check,) = of_kind(objects("kueue"), "AdmissionCheck")
    assert check["spec"]["controllerName"] == "kueue.x-k8s.io/provisioning-request"
    parameters = check["spec"]["parameters"]
    assert (parameters["apiGroup"], parameters["kind"]) == ("kueue.x-k8s.io", "ProvisioningRequestConfig")
    config = named("kueue", "ProvisioningRequestConfig", parameters["name"])
    assert config["spec"]["provisioningClassName"] in (
        "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "check-capacity.autoscaling.x-k8s.io",
    )
    (container,) = named("kueue", "Job", "pretrain")["spec"]["template"]["spec"]["containers"]
    assert set(config["spec"]["managedResources"]) & set(container["resources"]["limits"])
    queue = named("kueue", "ClusterQueue", "pretraining")
    (group,) = queue["spec"]["resourceGroups"]
    assert set(config["spec"]["managedResources"]) <= set(group["coveredResources"])
    patch = re.search(r"--type merge -p '(.*?)'", _readme(EXAMPLES / "kueue"), re.DOTALL)
    assert patch is not None
    strategy = yaml.safe_load(patch[1])["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert strategy == [{"name": check["metadata"]["name"], "onFlavors": ["h100"]}]
    assert "h100" in [one["name"] for one in group["flavors"]]


def counts_as_failed(taints: list[dict[str, str]], tolerated: set[str], phases: set[str]) -> bool:
    """Whether Kueue replaces a node of a running workload (kubernetes-sigs/kueue, pull requests 8929 and 8964).

    An untolerated NoExecute taint counts at once. An untolerated NoSchedule taint counts when no pod of the workload
    on the node runs on: each has failed, ends or waits.
    """
    untolerated = {taint["effect"] for taint in taints if taint["key"] not in tolerated}
    return "NoExecute" in untolerated or ("NoSchedule" in untolerated and "Running" not in phases)


def test_kueue_replaces_a_node_with_failed_links_after_the_eviction_and_not_by_the_taint_alone() -> None:
    """Also a rule of Kueue: replacement needs kubernetes.io/hostname as the last level of the Topology."""
    key = LINKS_TAINT.key
    taints = [{"key": key, "effect": LINKS_TAINT.effect}]
    assert not counts_as_failed(taints, set(), {"Running"})
    assert counts_as_failed(taints, set(), {"Terminating"})
    assert not counts_as_failed(taints, {key}, {"Terminating"})
    (topology,) = of_kind(
        parsed((DAEMONSET / "components/kueue/objects/topology.yaml").read_text()), "Topology"
    )
    assert topology["spec"]["levels"][-1] == {"nodeLabel": "kubernetes.io/hostname"}
    taint = yaml.safe_load((DAEMONSET / "components/node-conditions/nodeagent.yaml").read_text())
    assert taint["cluster"]["taint"]["enabled"]
    evictions = yaml.safe_load((DAEMONSET / "components/evictions/nodeagent.yaml").read_text())
    assert evictions["cluster"]["evict"]["enabled"]
    for job in (named("kueue", "Job", "pretrain"), named("kueue", "MPIJob", "all-reduce")):
        assert key not in str(job), "a toleration would keep the failed node"


# KAI Scheduler


def test_kai_takes_the_job_as_one_gang_in_one_leaf_group() -> None:
    """KAI Scheduler sees pods with its name as scheduler alone. It reads the topology from the annotations of the top
    owner (``default_grouper.go``, d5bc503a), and places the pods of a Job one by one unless the Job has the annotation
    kai.scheduler/batch-min-member (``calcMinMember`` in ``job_grouper.go``)."""
    job, topology = named("kai", "Job", "pretrain"), named("kai", "Topology", "nodeagent")
    levels = [one["nodeLabel"] for one in topology["spec"]["levels"]]
    annotations = job["metadata"]["annotations"]
    assert job["spec"]["template"]["spec"]["schedulerName"] == "kai-scheduler"
    assert job["metadata"]["labels"]["kai.scheduler/queue"]
    assert annotations["kai.scheduler/batch-min-member"] == str(job["spec"]["parallelism"])
    assert annotations["kai.scheduler/topology"] == topology["metadata"]["name"]
    assert annotations["kai.scheduler/topology-required-placement"] == levels[-2]
    assert levels[-1] == "kubernetes.io/hostname"


def test_a_set_of_grove_names_the_queue_of_kai() -> None:
    """Grove refuses one without: ``resolveQueueNameForPodCliqueSet`` in ``scheduler/kai/backend.go``, fcc3b3bb."""
    assert named("grove", "PodCliqueSet", "chat")["metadata"]["labels"]["kai.scheduler/queue"]


# Cluster Autoscaler


def test_no_taint_of_ours_on_one_node_keeps_the_autoscaler_from_its_whole_group() -> None:
    """The template of a group is one of its Nodes, with the taints of that Node but those named by ``--startup-taint``
    and ``--status-taint`` (``SanitizeTaints`` in ``taints.go``, 33c3f97b)."""
    text = (EXAMPLES / "autoscaling/README.md").read_text()
    ours = {one.key for one in OWN_MARKS if one.kind == "taint"}
    assert re.findall(r"--startup-taint=([\w./-]+\w)", text) == [STARTING_TAINT]
    assert set(re.findall(r"--status-taint=([\w./-]+\w)", text)) == ours - {STARTING_TAINT}


def test_no_node_group_has_the_label_by_which_a_cloud_waits_for_gpus() -> None:
    """A Node with ``GPULabel`` of its provider and without nvidia.com/gpu is not ready, whatever it offers, and its use
    is 0 (``gpu_processor.go``, ``utilization/info.go``, 33c3f97b)."""
    labels = (
        "k8s.amazonaws.com/accelerator",
        "kubernetes.azure.com/accelerator",
        "cloud.google.com/gke-accelerator",
    )
    text = (EXAMPLES / "autoscaling/README.md").read_text()
    tags = yaml.safe_load((EXAMPLES / "autoscaling/node-group-tags.yaml").read_text())
    for label in labels:
        assert f"`{label}`" in text
        assert not [tag for tag in tags if tag.endswith(label)]


# Vertical Pod Autoscaler


def test_the_recommender_can_recommend_what_the_agent_requests() -> None:
    """Its own minimum for a pod is 250 MiB unless a flag says otherwise (``PodMinMemoryMb`` in ``recommender/config``,
    55c37cd5), which is more than the agent requests: each recommendation would exceed the requests."""
    (daemonset,) = of_kind(built(), "DaemonSet")
    containers = daemonset["spec"]["template"]["spec"]["containers"]
    (requests,) = (one["resources"]["requests"] for one in containers if one["name"] == "nodeagent")
    text = (EXAMPLES / "autoscaling/README.md").read_text()
    assert f"({requests['memory']}, {requests['cpu']})" in text
    (least,) = re.findall(r"--pod-recommendation-min-memory-mb=(\d+)", text)
    assert f"{least}Mi" == requests["memory"]


# Node Problem Detector


def test_each_rule_of_the_plugin_has_a_condition_a_command_and_time_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """kubernetes/node-problem-detector, docs/custom_plugin_monitor.md: a permanent rule names one of the conditions,
    and its time-out is at most the global one. The exit code is 0 without a problem, 1 with one, else unknown."""
    (config,) = of_kind(objects("node-problem-detector"), "ConfigMap")
    plugin = json.loads(config["data"]["nodeagent.json"])
    assert plugin["plugin"] == "custom"
    conditions = {one["type"] for one in plugin["conditions"]}
    assert {rule["condition"] for rule in plugin["rules"]} == conditions
    for rule in plugin["rules"]:
        assert rule["type"] == "permanent"
        assert float(rule["timeout"].removesuffix("s")) <= float(
            plugin["pluginConfig"]["timeout"].removesuffix("s")
        )
        assert Path(rule["path"]).name == "nodeagent"
        assert main([*rule["args"], "--root", "/nonexistent"]) == 2
        line = capsys.readouterr().out
        assert line.startswith("no agent: ")
        assert len(line) <= plugin["pluginConfig"]["max_output_length"] + 1
    # The message of a lasting condition follows the devices that it names.
    assert plugin["pluginConfig"]["enable_message_change_based_condition_update"] is True


# Volcano Global


def volcano_jobs(hyperjob: Manifest) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """The Volcano jobs of a HyperJob: name, clusters that may run it, and specification.

    volcano-sh/volcano-global, docs/proposals/hyperjob-controller-design.md: the names are HYPERJOB-PART-INDEX, and
    the policy of each job has all clusters of its part and spreads over exactly one of them.
    """
    for part in hyperjob["spec"]["replicatedJobs"]:
        for index in range(part.get("replicas", 1)):
            name = f"{hyperjob['metadata']['name']}-{part['name']}-{index}"
            yield name, part["clusterNames"], part["templateSpec"]


def test_each_part_of_the_hyperjob_runs_in_one_cluster_with_a_rendezvous_of_its_own() -> None:
    (hyperjob,) = of_kind(objects("volcano-global"), "HyperJob")
    jobs = [*volcano_jobs(hyperjob)]
    assert len(jobs) == hyperjob["spec"]["minAvailable"] == 2
    assert [clusters for _, clusters, _ in jobs] == [["hall1"], ["hall2"]]
    for name, _, spec in jobs:
        (task,) = spec["tasks"]
        (container,) = task["template"]["spec"]["containers"]
        assert f"--nnodes={task['replicas']}" in container["command"]
        assert f"--rdzv-endpoint={name}-{task['name']}-0.{name}:29500" in container["args"]
        assert "svc" in spec["plugins"]
        assert spec["minAvailable"] == task["replicas"]
        # A HyperJob has no highestTierName; nodeagent's first tier is the leaf groups.
        assert spec["networkTopology"] == {"mode": "hard", "highestTierAllowed": 1}
        assert spec["queue"] in [
            queue["metadata"]["name"] for queue in of_kind(objects("volcano-global"), "Queue")
        ]


def test_the_hub_propagates_queues_alone_and_each_cluster_has_its_share() -> None:
    """Karmada, FAQ: a PropagationPolicy selects objects of its own namespace, so a cluster-scoped object needs a
    ClusterPropagationPolicy. ``Duplicated`` gives each cluster a whole copy (Karmada, "Resource Propagating"), so a
    quota counts once for each cluster unless an override replaces it."""
    everything = objects("volcano-global")
    assert not of_kind(everything, "PropagationPolicy")
    (policy,) = of_kind(everything, "ClusterPropagationPolicy")
    assert [one["kind"] for one in policy["spec"]["resourceSelectors"]] == ["Queue"]
    placement = policy["spec"]["placement"]
    assert placement["replicaScheduling"] == {"replicaSchedulingType": "Duplicated"}
    clusters = placement["clusterAffinity"]["clusterNames"]
    (hyperjob,) = of_kind(everything, "HyperJob")
    assert {one for _, names, _ in volcano_jobs(hyperjob) for one in names} <= set(clusters)
    (queue,) = of_kind(everything, "Queue")
    (override,) = of_kind(everything, "ClusterOverridePolicy")
    share = dict.fromkeys(clusters, queue["spec"]["deserved"])
    for rule in override["spec"]["overrideRules"]:
        (change,) = rule["overriders"]["plaintext"]
        assert (change["path"], change["operator"]) == ("/spec/deserved", "replace")
        share |= dict.fromkeys(rule["targetCluster"]["clusterNames"], change["value"])
    slices = [one["nvidia-dgx-h100/gpu-mem"] for one in share.values()]
    own = named("volcano", "Queue", "pretraining")["spec"]
    assert sum(slices) == own["capability"]["nvidia-dgx-h100/gpu-mem"]
    for _, (cluster,), spec in volcano_jobs(hyperjob):
        (task,) = spec["tasks"]
        (container,) = task["template"]["spec"]["containers"]
        asked = container["resources"]["limits"]["nvidia-dgx-h100/gpu-mem"] * task["replicas"]
        assert asked <= share[cluster]["nvidia-dgx-h100/gpu-mem"]


def test_equal_halls_have_equal_names_unless_each_cluster_names_its_fabric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """README.md: the key of a HyperNode at the hub is cluster and name."""
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
    snippet = re.search(r"```yaml\n(fabric: hall1\n.*?)```", _readme(EXAMPLES / "volcano-global"), re.DOTALL)
    assert snippet is not None

    def hypernodes(rules: str) -> dict[str, list[str]]:
        file = tmp_path / "fabric.yaml"
        file.write_text(head + rules)
        arguments = [
            "plan",
            "--json",
            "--from",
            str(ROOT / "docs/samples/nodelinks.yaml"),
            "--fabric",
            str(file),
        ]
        assert main(arguments) == 0
        planned = json.loads(capsys.readouterr().out)["hypernodes"]
        return {one["metadata"]["name"]: one["spec"]["members"] for one in planned}

    first, second = hypernodes(""), hypernodes("")
    assert first.keys() == second.keys()
    hall1, hall2 = hypernodes(snippet[1]), hypernodes(snippet[1].replace("hall1", "hall2"))
    assert not hall1.keys() & hall2.keys()
    members = [sorted(map(str, tree.values())) for tree in (first, hall1, hall2)]
    assert members[0] == members[1] == members[2]


# Kubeflow Trainer


def test_a_trainjob_names_a_runtime_with_the_container_that_the_trainer_fills() -> None:
    """The trainer sets command, image and variables of the container ``node`` in the job that is labeled
    ``trainer.kubeflow.org/trainjob-ancestor-step: trainer`` (Kubeflow Trainer, "Runtime guide")."""
    (job,) = of_kind(objects("training-operator"), "TrainJob")
    reference = job["spec"]["runtimeRef"]
    runtime = named("training-operator", reference["kind"], reference["name"])
    assert runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "torch"
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")


def test_the_programs_of_a_trainjob_can_meet_again() -> None:
    """The Trainer's own rendezvous is torchrun's ``static``, which has one store for all starts
    (``static_tcp_rendezvous.py`` of torch 2.13): four agents ended a minute after the death of one program."""
    (job,) = of_kind(objects("training-operator"), "TrainJob")
    arguments = [*job["spec"]["trainer"]["command"], *job["spec"]["trainer"]["args"]]
    assert {"--rdzv-backend=c10d", "--rdzv-endpoint=$(PET_MASTER_ADDR):29500"} <= {*arguments}
    runtime = named("training-operator", "TrainingRuntime", job["spec"]["runtimeRef"]["name"])
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in container["env"]


def test_every_queue_that_a_recipe_names_is_in_the_namespace_of_its_workload() -> None:
    """A Kueue LocalQueue is namespaced: a workload with the name of another namespace's queue waits forever."""
    paths = sorted(EXAMPLES.glob("*/*.yaml"))
    made = [one for path in paths for one in parsed(path.read_text()) if {"kind", "metadata"} <= one.keys()]
    queues = {
        (one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in made
        if one["kind"] == "LocalQueue"
    }
    wanted = [
        (one["metadata"].get("namespace"), queue)
        for one in made
        if (queue := one["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name"))
    ]
    assert len(wanted) >= 3
    assert {*wanted} <= queues


# Rails before a job


@pytest.mark.parametrize(
    ("statuses", "ends", "asked"),
    [("0 0", 0, 2), ("0 1", 1, 2), ("2 0 2 2 0", 0, 5), ("2 2 2 2 2", 1, 5), ("1", 1, 1)],
)
def test_the_container_that_checks_the_rails_waits_only_for_what_cannot_be_checked(
    tmp_path: Path, statuses: str, ends: int, asked: int
) -> None:
    """The shell of the documentation itself; nodeagent is a script that ends with the given statuses."""
    text = (ROOT / "docs" / "rail-probes.md").read_text()
    pod = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    (container,) = pod["spec"]["initContainers"]
    (tmp_path / "statuses").write_text(statuses.replace(" ", "\n") + "\n")
    for name, lines in {
        "nodeagent": 'echo "$@" >> asked; status=$(head -1 statuses); sed -i 1d statuses; exit $status',
        "sleep": "echo $1 >> slept",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        container["command"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_NAME": "b", "CHECK_NODES": "a b c"},
        check=False,
    )
    assert done.returncode == ends
    lines = (tmp_path / "asked").read_text().splitlines()
    assert len(lines) == asked
    assert set(lines) <= {"rails check b a", "rails check b c"}
    assert not (tmp_path / "slept").exists() or set((tmp_path / "slept").read_text().split()) == {"15"}
