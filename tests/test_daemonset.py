"""The manifest fits the code: its configuration loads and offers what it says, its paths are the agent's own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath

import pytest
import yaml

from nodeagent import cli, scan
from nodeagent.config import Config, load
from nodeagent.sim.machine import Machine
from nodeagent.sinks.files import DEVICE_INFO
from nodeagent.sinks.registration import LOCK
from nodeagent.sources import paths

ROOT = Path(__file__).parents[1]
MANIFEST = list(yaml.safe_load_all((ROOT / "daemonset" / "nodeagent.yaml").read_text()))
BY_KIND = {document["kind"]: document for document in MANIFEST}
POD = BY_KIND["DaemonSet"]["spec"]["template"]["spec"]
INIT, DAEMON = POD["initContainers"][0], POD["containers"][0]
RESOURCES = {f"nvidia-dgx-h100/nic{rail}": 8 for rail in range(8)} | {"nvidia-dgx-h100/gpu-mem": 632}


def config_text() -> str:
    return BY_KIND["ConfigMap"]["data"]["nodeagent.yaml"]


def config() -> Config:
    return load(config_text(), name="the ConfigMap")


def arguments(container: dict) -> list[str]:
    """What the program is called with, its own name left out."""
    if "args" in container:
        return container["args"]
    shell, option, script = container["command"]
    assert (shell, option) == ("sh", "-c")
    words = shlex.split(script)
    assert words[0] == "nodeagent"
    return words[1 : words.index("||")]


def mount_of(container: dict, path: str) -> dict:
    """The mount that a path of the container lies in: the deepest one."""
    found = [one for one in container["volumeMounts"] if PurePosixPath(path).is_relative_to(one["mountPath"])]
    assert found, f"{path} is in no mount of {container['name']}"
    return max(found, key=lambda one: len(one["mountPath"]))


def host_path(name: str) -> str | None:
    (volume,) = (one for one in POD["volumes"] if one["name"] == name)
    return volume.get("hostPath", {}).get("path")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dgx")
    Machine.load("dgx-h100").write(folder)
    return folder


async def test_its_configuration_offers_what_pods_are_told_to_ask_for(root: Path) -> None:
    seen = await scan.once(config(), root)
    assert {name: sum(len(one.ids) for one in devices) for name, devices in seen.resources} == RESOURCES
    assert not seen.troubles


async def test_the_pod_in_the_readme_asks_for_what_is_offered(root: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (text,) = (
        one
        for one in re.findall(r"```yaml\n(.*?)```", readme, re.S)
        if yaml.safe_load(one).get("kind") == "Pod"
    )
    asked = [c["resources"]["limits"] for c in yaml.safe_load(text)["spec"]["containers"]]
    assert asked
    for limits in asked:
        assert any("/" in name for name in limits)
        for name, count in limits.items():
            assert "/" not in name or 0 < int(count) <= RESOURCES[name]


@pytest.mark.parametrize(
    ("container", "verb"), [(INIT, "_vfs_apply"), (DAEMON, "_run")], ids=["vfs", "nodeagent"]
)
def test_its_command_lines_are_understood(container: dict, verb: str) -> None:
    options = cli._parser().parse_args(arguments(container))
    assert options.verb.__name__ == verb
    assert options.root == Path("/host")
    # The whole ConfigMap is mounted: a file mounted by subPath would never change.
    mount = mount_of(container, str(options.config))
    assert "subPath" not in mount
    assert options.config.name in BY_KIND["ConfigMap"]["data"]
    assert (
        next(one for one in POD["volumes"] if one["name"] == mount["name"])["configMap"]["name"]
        == "nodeagent"
    )


READ = (
    "/sys/bus/pci/devices",
    "/proc/net/route",
    paths.RDMA_CM,
    *paths.GPU_NODES,
    *paths.CDI_FOLDERS,
    *(f"{driver}/usr/lib64" for driver in ("", "/run/nvidia/driver")),
)


@pytest.mark.parametrize("path", READ)
def test_what_is_read_is_mounted_from_where_it_lies(path: str) -> None:
    mount = mount_of(DAEMON, f"/host{path}")
    lies_at = host_path(mount["name"])
    # /proc/net is a link to the reader's own; the first process of the host has the host's.
    assert lies_at is not None
    assert f"/host{lies_at.replace('/proc/1/net', '/proc/net')}" == mount["mountPath"]


@pytest.mark.parametrize(
    "path",
    [
        f"/host{DEVICE_INFO}",
        f"/host{config().cdi.directory}",
        f"/var/lib/kubelet/device-plugins/{LOCK}",
        "/var/lib/kubelet/plugins_registry/nodeagent.sock",
    ],
)
def test_what_is_written_can_be(path: str) -> None:
    assert not mount_of(DAEMON, path).get("readOnly", False)


def test_nothing_else_of_the_host_can_be_written() -> None:
    writable = {one["name"] for one in DAEMON["volumeMounts"] if not one.get("readOnly", False)}
    assert writable == {"cni", "cdi", "device-plugins", "plugins-registry"}
    assert {one["name"] for one in INIT["volumeMounts"] if not one.get("readOnly", False)} == {"sys"}


def test_every_volume_is_mounted_and_every_mount_has_one() -> None:
    mounted = {one["name"] for container in (INIT, DAEMON) for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in POD["volumes"]}


def test_it_has_no_more_rights_than_it_says() -> None:
    for container, added in ((INIT, ["NET_ADMIN"]), (DAEMON, ["NET_RAW"])):
        context = container["securityContext"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add") == added
        assert not context.get("privileged", False)
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
    assert not POD["automountServiceAccountToken"]


def test_its_probes_and_its_port_are_where_it_listens() -> None:
    (port,) = DAEMON["ports"]
    assert config().listen == f":{port['containerPort']}"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert DAEMON[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_an_update_never_runs_two_agents_on_a_node() -> None:
    assert BY_KIND["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_image_is_of_this_version() -> None:
    from nodeagent import __version__

    assert {container["image"] for container in (INIT, DAEMON)} == {f"nodeagent:{__version__}"}
    assert f"ARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()


def test_the_images_packages_are_those_that_are_tested() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / "hack" / name).read_text(), re.M))

    assert pins("requirements-run.txt") <= pins("requirements.txt")
    assert len(pins("requirements-run.txt")) > 6
