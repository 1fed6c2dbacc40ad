"""Kubelets with another --root-dir: pod-resources, plugins and plugins_registry follow it, device-plugins does not."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from nodeagent.agent_config import Config
from nodeagent.commands.vfs.vf_users import PodHolders
from nodeagent.doctor import kubelet_checks
from nodeagent.doctor.finding import Finding
from nodeagent.doctor.reads import Target
from nodeagent.dra import DRIVER
from nodeagent.facts.model import Snapshot
from nodeagent.host.sysfs import Tree
from nodeagent.kubelet import registration
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.kubelet.test_registration import Lamps, World
from tests.support.kind_machines import pf_of, vf_of
from tests.support.manifests import DAEMONSET, ROOT, Manifest, by_key, named, parsed, rendered
from tests.support.running_agent import HEAD, IN_MEMORY, SMALL
from tests.support.waiting import until

NIC0 = "two-gpus-and-two-nics/nic0"
CONFIG = f"{HEAD}resources:\n- {{kind: vf}}\n- {{kind: gpu-mem, mode: dra}}\n"
K0S = "var/lib/k0s/kubelet"


@asynccontextmanager
async def k0s() -> AsyncIterator[tuple[Path, Kubelet]]:
    """A machine's root with the folders of a kubelet of k0s, and that kubelet."""
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY, ignore_cleanup_errors=True) as name:
        root = Path(name)
        kubelet = Kubelet(root / K0S, device_plugins=root / "var/lib/kubelet/device-plugins", seed=1)
        await kubelet.start()
        try:
            yield root, kubelet
        finally:
            await kubelet.stop()


@asynccontextmanager
async def agent(root: Path, *words: str, **environment: str) -> AsyncIterator[None]:
    (root / "config.yaml").write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nodeagent", "run", "--root", root / "machine", "--listen", "127.0.0.1:0"),
        *("--config", root / "config.yaml", *words),
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("by", ["options", "environment"])
async def test_the_agent_serves_a_kubelet_of_k0s(by: str) -> None:
    async with k0s() as (root, kubelet):
        Machine.load(SMALL).write(root / "machine")
        folders = (str(root / K0S), str(root / "var/lib/kubelet/device-plugins"))
        words: tuple[str, ...] = ("--kubelet-dir", folders[0], "--device-plugins-dir", folders[1])
        environment = {}
        if by == "environment":
            environment = {"NODEAGENT_KUBELET_DIR": folders[0], "NODEAGENT_DEVICE_PLUGINS_DIR": folders[1]}
            words = ()
        async with agent(root, *words, **environment):
            await kubelet.until(lambda: kubelet.allocatable().get(NIC0) == 4)
            await kubelet.until(lambda: kubelet.dra.registered(DRIVER))
            assert (await kubelet.admit(PodSpec.single("p", {NIC0: 1}))).admitted
        assert not (root / K0S / "device-plugins").exists()


async def test_pods_that_hold_vfs_are_read_from_the_root_of_the_kubelet() -> None:
    async with k0s() as (root, kubelet):
        Machine.load(SMALL).write(root / "machine")
        folders = ("--kubelet-dir", str(root / K0S))
        async with agent(
            root, *folders, "--device-plugins-dir", str(root / "var/lib/kubelet/device-plugins")
        ):
            await kubelet.until(lambda: kubelet.allocatable().get(NIC0) == 4)
            held = (await kubelet.admit(PodSpec.single("p", {NIC0: 4}))).pod
        ids = kubelet.held(held)["main"][NIC0]
        tree = Tree(root)
        told = await asyncio.to_thread(PodHolders(tree, 0.0, Path("/") / K0S)._read)
        assert told == dict.fromkeys(ids, "is held by pod default/p (container main)")
        unknown = PodHolders(tree)
        assert await asyncio.to_thread(unknown.of, vf_of(pf_of(0), 0)) is None
        assert "--kubelet-dir takes another --root-dir of the kubelet" in (unknown.error or "")


async def found(root: Path, kubelet_dir: str, device_plugins_dir: Path | None = None) -> dict[str, str]:
    """The findings of the doctor about the kubelet, by key."""
    target = Target(
        Tree(root),
        Config(),
        recorded=False,
        kubelet_dir=root / kubelet_dir,
        device_plugins_dir=device_plugins_dir,
    )
    facts = await kubelet_checks.read_kubelet(target)
    findings: list[Finding] = list(kubelet_checks.kubelet_findings(facts, Config(), None))
    return {finding.key: finding.what for finding in findings}


async def test_the_doctor_names_the_folder_that_has_the_sockets() -> None:
    async with k0s() as (root, _):
        plugins = root / "var/lib/kubelet/device-plugins"
        usual = await found(root, "var/lib/kubelet")
        assert usual["podresources_absent"] == (
            f"{root}/var/lib/kubelet/pod-resources/kubelet.sock does not exist, but {root}/{K0S} has one: "
            f"--kubelet-dir {root}/{K0S}"
        )
        assert "kubelet_silent" not in usual
        one = await found(root, K0S)
        assert one["kubelet_silent"] == (
            f"{root}/{K0S}/device-plugins/kubelet.sock: the directory is missing, but one listens in {plugins}: "
            f"--device-plugins-dir {plugins}"
        )
        assert "podresources_absent" not in one
        both = await found(root, K0S, plugins)
        assert both["kubelet"] == f"the kubelet listens in {plugins}"
        assert not {"kubelet_silent", "podresources_absent"} & both.keys()


async def test_an_agent_with_the_root_alone_names_the_other_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is missing, or is there without a socket: a volume of a pod makes it."""
    async with k0s() as (root, kubelet):
        monkeypatch.setattr(registration, "USUAL", kubelet.socket.parent)
        hint = f", but {kubelet.socket.parent} has kubelet.sock: --device-plugins-dir {kubelet.socket.parent}"
        w = World(root / K0S)
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        try:
            await until(
                lambda: w.plugins.statuses()[0].reason == f"the folder of kubelet.sock does not exist{hint}"
            )
            (root / K0S / "device-plugins").mkdir()
            await until(lambda: w.plugins.statuses()[0].reason == f"the kubelet does not listen{hint}")
        finally:
            await w.end()


# --- manifests ------------------------------------------------------------------------------------------


def folders(daemonset: Manifest) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Host paths and mounts by volume, and the environment."""
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    hosts = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
    return hosts, mounts, {it["name"]: it["value"] for it in container["env"] if "value" in it}


def check(daemonset: Manifest, root: str) -> None:
    hosts, mounts, environment = folders(daemonset)
    below = {
        "plugins-registry": "plugins_registry",
        "dra": "plugins/nodeagent.io",
        "pod-resources": "pod-resources",
    }
    for name, path in below.items():
        assert hosts[name] == mounts[name] == f"{root}/{path}"
    assert environment["NODEAGENT_KUBELET_DIR"] == root
    plugins = "/var/lib/kubelet/device-plugins"
    assert hosts["device-plugins"] == mounts["device-plugins"] == plugins
    assert environment["NODEAGENT_DEVICE_PLUGINS_DIR"] == plugins
    (init,) = daemonset["spec"]["template"]["spec"]["initContainers"]
    assert "/host/var/lib/kubelet/pod-resources" in [mount["mountPath"] for mount in init["volumeMounts"]]


@pytest.mark.needs("kubectl")
def test_the_manifest_and_the_patch_of_the_page_have_the_folders(tmp_path: Path) -> None:
    check(named(parsed(rendered(DAEMONSET)), "DaemonSet", "nodeagent"), "/var/lib/kubelet")
    page = (ROOT / "docs/install.md").read_text()
    (text,) = re.findall(r"  ```yaml\n  # kustomization.yaml\n(  patches:\n.*?)  ```", page, re.S)
    patch = yaml.safe_load("\n".join(line.removeprefix("  ") for line in text.splitlines()))
    base = os.path.relpath(DAEMONSET, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [base], **patch}))
    made = parsed(rendered(tmp_path))
    assert len(by_key(made)) == len(parsed(rendered(DAEMONSET)))
    check(named(made, "DaemonSet", "nodeagent"), "/var/lib/k0s/kubelet")
