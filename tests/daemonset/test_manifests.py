"""The manifests match the code: configurations load and offer the documented resources, paths agree, and
no container has more rights than it needs."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
import yaml
from msgspec.structs import replace

from nodeagent import __version__, cli
from nodeagent.agent_config import Config, load
from nodeagent.commands.scan import listing
from nodeagent.controller import LEASE
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.kinds.mps_clients import SHARED_MEMORY
from nodeagent.kinds.resource_settings import GpuMemResource
from nodeagent.kubelet.device_info import DEVICE_INFO
from nodeagent.kubelet.node_lock import LOCK
from nodeagent.offering.offer import Offer, mps_shares
from nodeagent.sharing.container_cgroups import CONTAINER_LOGS
from nodeagent.sources import host_paths
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.support.findings import one_item
from tests.support.manifests import (
    BESIDE,
    DAEMONSET,
    INSTALLATIONS,
    ROOT,
    Manifest,
    built,
    by_key,
    configurations,
    named,
    of_kind,
    parsed,
    pod_specs,
    rendered,
)
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.needs("kubectl")

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
CONFIGS = {
    "base": DAEMONSET / "base" / "node" / "nodeagent.yaml",
    "kind": DAEMONSET / "overlays" / "kind" / "nodeagent.yaml",
    "observe": DAEMONSET / "overlays" / "observe" / "nodeagent.yaml",
    **{
        path.parent.name: path
        for path in sorted((DAEMONSET / "examples" / "node-pool").rglob("nodeagent.yaml"))
    },
}
"""The configuration files by the overlay, or by the pool, that has them."""
RESOURCES = {f"nvidia-dgx-h100/nic{rail}": 8 for rail in range(8)} | {"nvidia-dgx-h100/gpu-mem": 632}


def config(name: str = "base") -> Config:
    """The configuration of the agents in one of ``CONFIGS``, or with a component."""
    if name not in CONFIGS:
        return configurations(built(f"components/{name}"))[0]
    return load(CONFIGS[name].read_text(), name=str(CONFIGS[name].relative_to(DAEMONSET)))


@pytest.fixture(scope="module")
def pod() -> Manifest:
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    return spec


@pytest.fixture(scope="module")
def init(pod: Manifest) -> Manifest:
    (container,) = pod["initContainers"]
    return container


@pytest.fixture(scope="module")
def daemon(pod: Manifest) -> Manifest:
    (container,) = pod["containers"]
    return container


def arguments(container: Manifest) -> list[str]:
    """Return the arguments of the program, without its name."""
    if "args" in container:
        return container["args"]
    shell, option, script = container["command"]
    assert (shell, option) == ("sh", "-c")
    words = shlex.split(script)
    assert words[0] == "nodeagent"
    return words[1 : words.index("||")]


def mount_of(container: Manifest, path: str) -> Manifest:
    """Return the deepest mount that contains a path of the container."""
    found = [one for one in container["volumeMounts"] if PurePosixPath(path).is_relative_to(one["mountPath"])]
    assert found, f"{path} is in no mount of {container['name']}"
    return max(found, key=lambda one: len(one["mountPath"]))


def volume(pod: Manifest, name: str) -> Manifest:
    (one,) = (one for one in pod["volumes"] if one["name"] == name)
    return one


# Offered resources


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dgx")
    Machine.load("dgx-h100").write(folder)
    return folder


async def offered(name: str, root: Path) -> dict[str, int]:
    seen = await listing.scan_machine(config(name), root)
    assert not seen.troubles
    return {resource: sum(len(one.ids) for one in devices) for resource, devices in seen.resources}


@pytest.mark.parametrize("name", ["base", "dgx-h100"])
async def test_a_dgx_h100_offers_the_documented_resources(name: str, root: Path) -> None:
    assert await offered(name, root) == RESOURCES


async def test_the_simulated_laptop_offers_the_same_without_numa_nodes_that_a_laptop_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec,) = pod_specs(named(built("overlays/kind"), "DaemonSet", "nodeagent"))
    written = [str(tmp_path) if word == "/machine" else word for word in spec["initContainers"][0]["args"]]
    assert cli.main(written) == 0
    assert "a simulated dgx-h100: 8 GPUs, 13 NICs" in capsys.readouterr().out
    seen = await listing.scan_machine(config("kind"), tmp_path)
    assert {name: sum(len(one.ids) for one in devices) for name, devices in seen.resources} == RESOURCES
    assert not any(function.rdma for function in seen.snapshot.functions)
    for kind in Offer(config("kind")).kinds(seen.snapshot):
        first = next(one.ids[0] for one in kind.devices(seen.snapshot))
        given = kind.allocate(seen.snapshot, (first,))
        assert not given.device_nodes
        assert not given.cdi_devices
    # A second run of the init container finds its own VFs.
    assert cli.main(written) == 0
    assert "already" in capsys.readouterr().out


@pytest.mark.parametrize("name", CONFIGS)
def test_each_configuration_is_valid_and_stands_in_its_config_map(name: str) -> None:
    config(name)
    pool = CONFIGS[name].parents[1].name == "node-pool"
    installation = "" if name == "base" else "examples/node-pool" if pool else f"overlays/{name}"
    suffix = f"-{name}" if pool else ""
    held = named(built(installation), "ConfigMap", f"nodeagent{suffix}")["data"]["nodeagent.yaml"]
    assert held == CONFIGS[name].read_text(), (
        f"name it in configMapGenerator of the kustomization of {installation}"
    )


@pytest.mark.parametrize(
    ("text", "starts"), [("apiVersion: nonsense", False), (CONFIGS["base"].read_text(), True)]
)
def test_the_init_container_ends_the_start_of_an_agent_whose_configuration_has_faults(
    text: str, starts: bool, init: Manifest, tmp_path: Path, root: Path
) -> None:
    """The pod is then not available, and the rollout stops. The faults are in the status of the pod."""
    file, program = tmp_path / "nodeagent.yaml", tmp_path / "nodeagent"
    file.write_text(text)
    words = [sys.executable, "-m", "nodeagent", "vfs", "apply", "--root", str(root), "--config", str(file)]
    program.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    program.chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        init["command"], env=ENVIRONMENT | paths, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) is starts, done.stderr
    assert ("must be nodeagent.io/v1alpha1" in done.stderr) is not starts
    assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(("code", "starts"), [(0, True), (1, True), (137, True), (2, False)])
def test_a_pf_that_cannot_be_changed_does_not_end_the_start(
    code: int, starts: bool, init: Manifest, tmp_path: Path
) -> None:
    program = tmp_path / "nodeagent"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert (subprocess.run(init["command"], env=paths, check=False).returncode == 0) is starts


def test_the_base_changes_no_machine_and_needs_no_right_that_it_lacks() -> None:
    assert config().vfs == ()
    cluster = config().cluster
    assert not any((cluster.conditions, cluster.label, cluster.taint.enabled, cluster.evict.enabled))


def test_a_component_with_more_rights_enables_their_use_and_equals_the_base_otherwise() -> None:
    marks, evictions = config("node-conditions"), config("evictions")
    assert all((marks.cluster.conditions, marks.cluster.label, marks.cluster.taint.enabled))
    assert not marks.cluster.evict.enabled
    assert evictions.cluster.evict.enabled
    assert evictions.cluster.evict.taint
    assert not evictions.cluster.conditions
    for one in (marks, evictions):
        assert replace(one, cluster=config().cluster) == config()
    processes = config("gpu-processes")
    assert processes.gpu.health.processes
    assert not config().gpu.health.processes
    assert replace(processes, gpu=config().gpu) == config()


def test_health_events_go_to_a_socket_in_a_folder_of_the_host() -> None:
    (spec,) = pod_specs(named(built("components/nvsentinel"), "DaemonSet", "nodeagent"))
    (daemon,) = spec["containers"]
    settings = config("nvsentinel")
    assert replace(settings, nv_sentinel=config().nv_sentinel) == config()
    mount = mount_of(daemon, f"/host{settings.nv_sentinel.socket}")
    folder = str(PurePosixPath(settings.nv_sentinel.socket or "").parent)
    assert mount["mountPath"] == f"/host{folder}"
    assert volume(spec, mount["name"])["hostPath"]["path"] == folder
    token = PurePosixPath(settings.nv_sentinel.token_file or "")
    (source,) = volume(spec, mount_of(daemon, str(token))["name"])["projected"]["sources"]
    assert source["serviceAccountToken"]["path"] == token.name
    assert source["serviceAccountToken"]["audience"] == "platform-connector.nvsentinel.nvidia.com"


def test_agents_that_only_observe_offer_nothing_and_have_no_folder_of_the_kubelet() -> None:
    (spec,) = pod_specs(named(built("overlays/observe"), "DaemonSet", "nodeagent"))
    (daemon,) = spec["containers"]
    settings = config("observe")
    assert settings.resources == ()
    same = {"resources": config().resources, "resource_prefix": "auto", "kubelet": config().kubelet}
    assert replace(settings, **same) == config()
    assert spec["initContainers"] == [], "nothing makes VFs"
    paths = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    assert paths == {"/sys", "/proc/1/net", "/var/lib/nodeagent"}
    assert mount_of(daemon, f"/host{settings.health.state_directory}/x")["name"] == "state"


def test_memory_per_container_is_enabled_only_with_the_processes_of_the_host() -> None:
    (spec,) = pod_specs(named(built("components/gpu-processes"), "DaemonSet", "nodeagent"))
    (daemon,) = spec["containers"]
    assert spec["hostPID"] is True
    # It contains /proc/net, which shows the host in the host's network namespace.
    for path in ("/host/proc/17/cgroup", "/host/proc/net/route"):
        mount = mount_of(daemon, path)
        assert mount["readOnly"] is True
        assert volume(spec, mount["name"])["hostPath"]["path"] == "/proc"
    logs = mount_of(daemon, f"/host{config('gpu-processes').gpu.accounting.pod_logs}/x")
    assert logs["readOnly"] is True
    assert volume(spec, logs["name"])["hostPath"]["path"] == "/var/log/pods"
    assert spec["hostNetwork"] is True


def test_limits_on_containers_have_the_cgroups_and_the_folders_that_name_them() -> None:
    (spec,) = pod_specs(named(built("components/gpu-memory-limits"), "DaemonSet", "nodeagent"))
    (daemon,) = spec["containers"]
    for path in ("/sys/fs/cgroup/kubepods.slice", "/host/sys/fs/cgroup/kubepods.slice"):
        mount = mount_of(daemon, path)
        assert not mount.get("readOnly")
        assert volume(spec, mount["name"])["hostPath"]["path"] == "/sys/fs/cgroup"
    for folder in (config("gpu-memory-limits").gpu.accounting.pod_logs, CONTAINER_LOGS):
        logs = mount_of(daemon, f"/host{folder}/x")
        assert logs["readOnly"] is True
        assert volume(spec, logs["name"])["hostPath"]["path"] == folder
    assert config("gpu-memory-limits") == config(), "auto uses the rights where the node supports the level"


def test_the_mps_daemons_have_the_folders_that_the_agent_mounts_into_containers() -> None:
    manifests = built("components/gpu-mps")
    (spec,) = pod_specs(named(manifests, "DaemonSet", "nodeagent-mps"))
    (daemons,) = spec["containers"]
    settings = config("gpu-mps")
    shares = mps_shares(settings)
    assert daemons["args"] == ["mps"]
    mount = mount_of(daemons, f"{shares.folder}/GPU-x/pipe")
    assert volume(spec, mount["name"])["hostPath"]["path"] == mount["mountPath"] == shares.folder
    memory = mount_of(daemons, "/dev/shm/x")
    assert volume(spec, memory["name"])["hostPath"]["path"] == SHARED_MEMORY
    # The agent writes which GPUs need a daemon, and reads the states in its state directory.
    (agent,) = pod_specs(named(manifests, "DaemonSet", "nodeagent"))
    state = mount_of(agent["containers"][0], f"/host{shares.folder}/wanted.json")
    assert f"/host{volume(agent, state['name'])['hostPath']['path']}" == state["mountPath"]
    # An update of a pod ends its daemons: a person decides when.
    strategy = named(manifests, "DaemonSet", "nodeagent-mps")["spec"]["updateStrategy"]
    assert strategy == {"type": "OnDelete"}
    (resource,) = (one for one in settings.resources if isinstance(one, GpuMemResource))
    assert resource.enforcement == "mps"


def test_the_part_that_moves_netdevs_has_the_folders_of_agent_runtime_and_kubelet() -> None:
    manifests = built("components/attach")
    (spec,) = pod_specs(named(manifests, "DaemonSet", "nodeagent-attach"))
    (container,) = spec["containers"]
    assert container["args"] == ["attach"]
    assert spec["hostNetwork"] is True
    options = cli._parser("attach").parse_args(["attach"])
    for path in (
        options.directory / "attach/plan.json",
        options.directory / "claims/uid.json",
        options.cdi / "nodeagent-attached.json",
        options.nri,
        options.kubelet_dir / "pod-resources/kubelet.sock",
        Path("/var/run/netns/cni-1"),
    ):
        mount = mount_of(container, str(path))
        assert volume(spec, mount["name"])["hostPath"]["path"] == mount["mountPath"]
        written = path.parent in (options.directory / "attach", options.cdi)
        assert mount.get("readOnly", False) is not written
    # Sandboxes that begin later have namespaces that this container must see.
    assert mount_of(container, "/var/run/netns/x")["mountPropagation"] == "HostToContainer"
    (agent,) = pod_specs(named(manifests, "DaemonSet", "nodeagent"))
    state = mount_of(agent["containers"][0], f"/host{options.directory}/attach/plan.json")
    assert volume(agent, state["name"])["hostPath"]["path"] == str(options.directory)
    assert config("attach").attach.interface is not None
    assert config("attach").health.state_directory == str(options.directory)
    assert config("attach").cdi.directory == str(options.cdi)


def test_an_ipam_plugin_has_its_folders_under_the_paths_of_the_node() -> None:
    (spec,) = pod_specs(named(built("components/attach-ipam"), "DaemonSet", "nodeagent-attach"))
    (container,) = spec["containers"]
    plugins = cli._parser("attach").parse_args(["attach"]).plugins
    for path in (
        plugins / "host-local",
        "/etc/cni/net.d/nv-ipam.d/nv-ipam.conf",
        "/var/lib/cni/networks/nodeagent-rail0",
    ):
        mount = mount_of(container, str(path))
        assert volume(spec, mount["name"])["hostPath"]["path"] == mount["mountPath"]
        assert mount.get("readOnly", False) is (mount["mountPath"] != "/var/lib/cni")
    without = pod_specs(named(built("components/attach"), "DaemonSet", "nodeagent-attach"))[0]
    assert "/opt/cni/bin" not in {one["mountPath"] for one in without["containers"][0]["volumeMounts"]}


async def test_the_first_pod_requests_offered_resources() -> None:
    page = (ROOT / "docs" / "first-pod.md").read_text()
    (text,) = (
        one
        for one in re.findall(r"```yaml\n(.*?)```", page, re.S)
        if yaml.safe_load(one).get("kind") == "Pod"
    )
    asked = [c["resources"]["limits"] for c in yaml.safe_load(text)["spec"]["containers"]]
    assert asked
    for limits in asked:
        assert any("/" in name for name in limits)
        for name, count in limits.items():
            assert "/" not in name or 0 < int(count) <= RESOURCES[name]


# Command lines, mounts and probes


@one_item("installation", INSTALLATIONS)
def test_the_command_line_parser_accepts_the_command_lines(installation: str) -> None:
    for spec in (spec for one in of_kind(built(installation), "DaemonSet") for spec in pod_specs(one)):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            options = cli._parser().parse_args(arguments(container))
            if (file := getattr(options, "config", None)) is None:
                continue
            # The whole ConfigMap is mounted: a file mounted by subPath never changes.
            mount = mount_of(container, str(file))
            assert "subPath" not in mount
            held = named(built(installation), "ConfigMap", volume(spec, mount["name"])["configMap"]["name"])
            assert PurePosixPath(file).name in held["data"]


READ = (
    "/sys/bus/pci/devices",
    "/proc/net/route",
    host_paths.RDMA_CM,
    *host_paths.GPU_NODES,
    *host_paths.CDI_FOLDERS,
    *(f"{driver}/usr/lib64" for driver in ("", "/run/nvidia/driver")),
)


@pytest.mark.parametrize("path", READ)
def test_each_path_that_the_agent_reads_is_mounted_from_the_host(
    path: str, pod: Manifest, daemon: Manifest
) -> None:
    mount = mount_of(daemon, f"/host{path}")
    lies_at = volume(pod, mount["name"])["hostPath"]["path"]
    # /proc/net is a link to the namespace of the reader; process 1 of the host shows the host.
    assert f"/host{lies_at.replace('/proc/1/net', '/proc/net')}" == mount["mountPath"]


@pytest.mark.parametrize(
    "path",
    [
        f"/host{DEVICE_INFO}",
        f"/host{config().cdi.directory}",
        f"/host{config().health.state_directory}",
        f"/var/lib/kubelet/device-plugins/{LOCK}",
        "/var/lib/kubelet/plugins_registry/nodeagent.sock",
    ],
)
def test_each_path_that_the_agent_writes_is_writable(path: str, daemon: Manifest) -> None:
    assert not mount_of(daemon, path).get("readOnly", False)


def test_nothing_else_of_the_host_can_be_written(init: Manifest, daemon: Manifest) -> None:
    def writable(container: Manifest) -> set[str]:
        return {one["name"] for one in container["volumeMounts"] if not one.get("readOnly", False)}

    assert writable(daemon) == {"cni", "cdi", "state", "device-plugins", "plugins-registry", "dra"}
    assert writable(init) == {"sys"}


def test_probes_and_port_match_the_listening_address(daemon: Manifest) -> None:
    (port,) = daemon["ports"]
    for name in CONFIGS:
        assert config(name).listen == f":{port['containerPort']}"
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert daemon[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_an_ordinary_start_ends_before_the_first_probe(daemon: Manifest) -> None:
    """The kubelet probes from the moment on at which it sees the container run, and writes a Warning for each refusal.

    Liveness and readiness wait for the end of the startup probe."""
    startup = daemon["startupProbe"]
    assert startup["initialDelaySeconds"] == 2
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 60
    (spec,) = pod_specs(named(built("overlays/controller"), "Deployment", "nodeagent-controller"))
    (controller,) = spec["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert controller[probe]["initialDelaySeconds"] >= 2


def test_an_update_never_runs_two_agents_on_a_node() -> None:
    strategy = named(built(), "DaemonSet", "nodeagent")["spec"]["updateStrategy"]
    assert strategy["type"] == "RollingUpdate"
    assert strategy["rollingUpdate"]["maxSurge"] == 0


def test_the_manifest_has_no_stop_hook(daemon: Manifest) -> None:
    assert "lifecycle" not in daemon


# Every installation


ELSEWHERE = {"components/slurm": "slurm", "components/node-feature-groups": "node-feature-discovery"}
"""Components with a Role in the namespace of another program."""


@one_item("installation", INSTALLATIONS)
def test_objects_have_unique_names_and_our_labels(installation: str) -> None:
    for (_, kind, namespace, _), one in by_key(built(installation)).items():
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "nodeagent", kind
        assert namespace in ("", "nodeagent", ELSEWHERE.get(installation))


@one_item("installation", INSTALLATIONS)
def test_every_volume_is_mounted_and_every_mount_has_a_volume(installation: str) -> None:
    for spec in (spec for one in built(installation) for spec in pod_specs(one)):
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        mounted = {one["name"] for container in containers for one in container.get("volumeMounts", ())}
        assert mounted == {one["name"] for one in spec["volumes"]}


GRANTED = {"vfs": ["NET_ADMIN"], "nodeagent": ["NET_RAW"], "machine": [], "controller": []}
GRANTED_IN = {
    "overlays/kind": {"nodeagent": [], "machine": [], "faults": [], "controller": []},
    "overlays/observe": {"nodeagent": ["NET_RAW"]},
    "components/gpu-mps": GRANTED | {"mps": []},
    "components/attach": GRANTED | {"attach": ["NET_ADMIN", "SYS_ADMIN"]},
    "components/attach-ipam": GRANTED | {"attach": ["NET_ADMIN", "SYS_ADMIN"]},
    "components/gpu-memory-limits": {"vfs": ["NET_ADMIN"], "nodeagent": ["NET_RAW", "SYS_ADMIN"]},
    "components/mig": {"vfs": ["NET_ADMIN"], "nodeagent": ["NET_RAW", "SYS_ADMIN"]},
    "components/mig-claims": {"vfs": ["NET_ADMIN"], "nodeagent": ["NET_RAW", "SYS_ADMIN"]},
    "components/optics": {"vfs": ["NET_ADMIN"], "nodeagent": ["NET_RAW", "NET_ADMIN"]},
}

PRIVILEGED_IN = {("components/infiniband", "nodeagent"), ("components/gpu-mps", "mps")}
"""The only container that opens devices for the fabric, and the one of the MPS daemons (docs/security.md)."""


@one_item("installation", INSTALLATIONS)
def test_no_container_has_more_rights_than_listed_here(installation: str) -> None:
    for spec in (spec for one in built(installation) for spec in pod_specs(one)):
        daemons = any(container["name"] == "mps" for container in spec["containers"])
        assert spec.get("hostPID", False) is (installation == "components/gpu-processes" or daemons)
        assert not spec.get("hostIPC", False)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            context = spec["securityContext"] | container["securityContext"]
            assert context["capabilities"]["drop"] == ["ALL"]
            added = context["capabilities"].get("add", [])
            assert added == GRANTED_IN.get(installation, GRANTED)[container["name"]], "enter it in GRANTED_IN"
            privileged = (installation, container["name"]) in PRIVILEGED_IN
            assert context.get("privileged", False) is privileged
            assert context["allowPrivilegeEscalation"] is privileged
            assert context["readOnlyRootFilesystem"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            # The user is root, the owner of the kubelet's folders and of sysfs.
            assert (context["runAsUser"] == 0) is (container["name"] != "controller")
            assert context.get("runAsNonRoot", False) is (container["name"] == "controller")


def test_the_page_about_security_has_a_row_for_each_component_with_more_rights() -> None:
    page = (ROOT / "docs/security.md").read_text()
    fewer = {"overlays/kind", "overlays/observe"}
    more = {*GRANTED_IN, *(installation for installation, _ in PRIVILEGED_IN)} - fewer
    missing = [one for one in sorted(more) if f"\n| `{one.removeprefix('components/')}` |" not in page]
    assert not missing, f"docs/security.md needs a row: what it adds, and what an attacker can do: {missing}"


@one_item("installation", INSTALLATIONS)
def test_service_account_tokens_are_mounted_only_where_used(installation: str) -> None:
    for account in of_kind(built(installation), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for one in of_kind(built(installation), "DaemonSet"):
        (spec,) = pod_specs(one)
        assert spec["automountServiceAccountToken"] is False
        if one["metadata"]["name"] in BESIDE:
            assert "token" not in {volume["name"] for volume in spec["volumes"]}
            continue
        for container in spec["initContainers"]:
            assert "token" not in {mount["name"] for mount in container["volumeMounts"]}
        mount = mount_of(spec["containers"][0], "/var/run/secrets/kubernetes.io/serviceaccount/token")
        assert {key for source in volume(spec, mount["name"])["projected"]["sources"] for key in source} == {
            "serviceAccountToken",
            "configMap",
            "downwardAPI",
        }


@one_item("installation", INSTALLATIONS)
def test_the_image_tag_is_this_version(installation: str) -> None:
    images = {
        container["image"]
        for one in built(installation)
        for spec in pod_specs(one)
        for container in (*spec.get("initContainers", ()), *spec["containers"])
    }
    package = "nodeagent-lab" if installation == "overlays/kind" else "nodeagent"
    assert images == {f"{package}:{__version__}"}


@one_item("installation", INSTALLATIONS)
def test_the_parsers_accept_the_command_line_and_the_fabric_file_of_the_controller(installation: str) -> None:
    for one in of_kind(built(installation), "Deployment"):
        (spec,) = pod_specs(one)
        (container,) = spec["containers"]
        options = cli._parser().parse_args(arguments(container))
        assert options.verb.__name__ == "_controller"
        mount = mount_of(container, str(options.fabric))
        held = named(built(installation), "ConfigMap", volume(spec, mount["name"])["configMap"]["name"])[
            "data"
        ]
        load_fabric(held[options.fabric.name], name=installation)
        (port,) = container["ports"]
        assert options.listen == f":{port['containerPort']}"
        assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
            "/healthz",
            "/readyz",
        }


def test_the_controller_uses_the_lease_that_its_role_grants() -> None:
    (role,) = (
        one
        for one in of_kind(built("overlays/controller"), "Role")
        if "controller" in one["metadata"]["name"]
    )
    (names,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule)
    assert names == [LEASE]


def test_the_switch_credentials_are_readable_at_the_configured_path() -> None:
    """The files of a Secret belong to root and to the fsGroup of the pod."""
    (spec,) = pod_specs(named(built("overlays/controller"), "Deployment", "nodeagent-controller"))
    (container,) = spec["containers"]
    mount = mount_of(container, FabricConfig().switches.credentials)
    assert mount["mountPath"] == FabricConfig().switches.credentials
    assert mount["readOnly"] is True
    secret = volume(spec, mount["name"])["secret"]
    assert secret["optional"] is True
    user, group = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)[-1]
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user),
        int(group),
        int(group),
    )
    mode = secret["defaultMode"]
    assert mode & 0o440 == 0o440
    assert mode & 0o337 == 0, "only the controller reads a credential"


@one_item("installation", [one for one in INSTALLATIONS if one != "examples/node-pool"])
def test_only_the_component_with_the_right_to_mark_enables_marks(installation: str) -> None:
    _, fabric = configurations(built(installation))
    asked = (fabric.nodes.min_links_condition, fabric.nodes.min_links_taint)
    assert asked == ((installation == "components/marks"),) * 2


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="na-"))
    yield folder
    shutil.rmtree(folder)


async def test_in_the_kind_overlay_the_agent_registers_the_devices_of_the_machine(
    tmp_path: Path, short: Path
) -> None:
    """Run the command lines of the installation with a stand-in kubelet."""
    (spec,) = pod_specs(named(built("overlays/kind"), "DaemonSet", "nodeagent"))
    machine, kubelet = tmp_path / "machine", Kubelet(short, seed=1)

    def command(container: Manifest) -> list[str]:
        words = [str(machine) if word == "/machine" else word for word in container["args"]]
        config = str(CONFIGS["kind"])
        words = [config if word == "/etc/nodeagent/nodeagent.yaml" else word for word in words]
        return [sys.executable, "-m", "nodeagent", *words]

    assert cli.main(command(spec["initContainers"][0])[3:]) == 0
    await kubelet.start()
    agent = await asyncio.create_subprocess_exec(
        *command(spec["containers"][0]), "--kubelet-dir", str(kubelet.directory), "--listen", "127.0.0.1:0",
        stderr=asyncio.subprocess.DEVNULL, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        await kubelet.until(lambda: kubelet.allocatable() == RESOURCES, 30.0)
        pod = PodSpec.single("slice", {"nvidia-dgx-h100/gpu-mem": 40, "nvidia-dgx-h100/nic0": 1})
        admission = await kubelet.admit(pod)
        assert admission.admitted, admission.message
        (given,) = admission.given.values()
        assert dict(given.env)["NODEAGENT_GPU_MEM_MIB"] == "40960"
        assert not given.device_nodes
    finally:
        agent.terminate()
        await asyncio.wait_for(agent.wait(), LIMIT_S)
        await kubelet.stop()


def test_controllers_run_on_different_nodes_and_a_drain_keeps_one() -> None:
    manifests = built("overlays/controller")
    deployment = named(manifests, "Deployment", "nodeagent-controller")["spec"]
    assert deployment["replicas"] == 2
    (term,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = deployment["template"]["metadata"]["labels"]
    budget = named(manifests, "PodDisruptionBudget", "nodeagent-controller")["spec"]
    policy = named(manifests, "NetworkPolicy", "nodeagent-controller")["spec"]
    for selector in (
        term["labelSelector"],
        deployment["selector"],
        budget["selector"],
        policy["podSelector"],
    ):
        assert selector["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1


def test_the_mps_daemons_have_no_network() -> None:
    manifests = built("components/gpu-mps")
    pods = named(manifests, "DaemonSet", "nodeagent-mps")["spec"]["template"]
    assert "hostNetwork" not in pods["spec"], "to the host's network no NetworkPolicy applies"
    policy = named(manifests, "NetworkPolicy", "nodeagent-mps")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    agents = named(manifests, "DaemonSet", "nodeagent")["spec"]["template"]["metadata"]["labels"]
    assert not policy["podSelector"]["matchLabels"].items() <= agents.items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert not policy.keys() & {"ingress", "egress"}, "all connections are refused"


def test_selectors_of_agent_and_controller_do_not_overlap() -> None:
    manifests = built("overlays/controller")
    agent = named(manifests, "DaemonSet", "nodeagent")["spec"]["selector"]["matchLabels"]
    controller = named(manifests, "Deployment", "nodeagent-controller")["spec"]["template"]["metadata"]
    assert not agent.items() <= controller["labels"].items()
    one, other = (found["spec"] for found in of_kind(built("examples/node-pool"), "DaemonSet"))
    assert not one["selector"]["matchLabels"].items() <= other["template"]["metadata"]["labels"].items()


# docs/adoption.md

ADOPTION = (ROOT / "docs" / "adoption.md").read_text()


def test_the_commands_of_step_0_leave_agents_that_offer_nothing() -> None:
    """NVIDIA's device plugin stays there: a GPU that both offer is given away twice."""
    step = ADOPTION.partition("## 0. Observe")[2].partition("\n## ")[0]
    folders = re.findall(r"^kubectl apply -k daemonset/(\S*)", step, re.M)
    cluster = {key: one for folder in folders for key, one in by_key(built(folder)).items()}
    agents = named(list(cluster.values()), "ConfigMap", "nodeagent")
    assert load(agents["data"]["nodeagent.yaml"], name="nodeagent.yaml").resources == ()
    assert of_kind(list(cluster.values()), "Deployment"), "the controller"


def test_a_later_step_adds_components_that_keep_the_configuration_of_the_agents(tmp_path: Path) -> None:
    """The base would bring GPU memory, which NVIDIA's device plugin still offers."""
    last = ADOPTION.partition("## 3. Placement")[2]
    (block,) = re.findall(r"```yaml\n(.*?)```", last, re.S)
    names = re.findall(r"^\|[^|]*\| `([a-z-]+)`", last, re.M)
    assert {"evictions", "kueue", "dra"} == set(names)
    place = os.path.relpath(DAEMONSET, tmp_path.resolve())
    pool = block.replace("pools/rails", f"{place}/examples/node-pool/dgx-h100").replace(
        " daemonset", f" {place}"
    )
    pool = pool.replace("[daemonset", f"[{place}")
    components = ", ".join(f"{place}/components/{name}" for name in names)
    (tmp_path / "kustomization.yaml").write_text(
        re.sub(r"components: .*", f"components: [{components}]", pool)
    )
    found = parsed(rendered(tmp_path))
    text = named(found, "ConfigMap", "nodeagent")["data"]["nodeagent.yaml"]
    assert load(text, name="nodeagent.yaml").resources == ()
    assert named(found, "DaemonSet", "nodeagent-dgx-h100")
    config, _ = configurations(found)
    assert config.cluster.evict.enabled
    assert config.resources == ()
