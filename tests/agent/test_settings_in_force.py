"""Each setting of a running agent is in force after a change of its file, or the log names it as waiting for a restart.

The settings are read from the structs: one without a line in a table here fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.agent import Agent
from nodeagent.agent_config import Config
from nodeagent.doctor.agent_checks import read_agent
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import Snapshot
from nodeagent.host.sysfs import Tree
from nodeagent.kinds.rail_numbers import selection
from nodeagent.kinds.volcano_vgpus import NUMBER
from nodeagent.offering.device_offering import DeviceOffering
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.kept_sections import kept_beside
from tests.support.running_agent import Node, node, shorten_holdings
from tests.support.setting_leaves import another, changed, leaves
from tests.support.waiting import until

HEAD = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeAgentConfig"}
WAITS = "A changed setting takes effect when the agent is restarted. setting="
NOTHING = "ffff:00:00.0"
Text = dict[str, Any]
Shown = Callable[[Node, ApiServer], object]


def offered(n: Node, _server: ApiServer) -> object:
    """The devices of the kubelet and of the scheduler, and the remarks of /readyz."""
    offer = n.agent.offering
    return offer.offered, offer.withheld, offer.dra.current, offer.remarks, offer.shown().troubles


def selected(n: Node, _server: ApiServer) -> object:
    """The selections that number NICs."""
    return [selection(entry) for entry, _ in n.agent.offering._offer.in_force()]


def judged(n: Node, _server: ApiServer) -> object:
    """The health of each NIC, the rules that judge it, and the guards. A rule that has no reading yet is quiet."""
    nics, gpus = n.agent.health.nics, n.agent.health.gpus
    return (
        [
            (
                it.device,
                it.state,
                it.allocatable,
                [(rule.rule, rule.phase.replace("unknown", "quiet"), rule.threshold) for rule in it.rules],
            )
            for it in n.agent.health.explain()
        ],
        [(nic._rules, nic.losses.settle_s) for nic in nics.devices.values()],
        [(guard.share, guard.seconds) for guard in (nics._guard, gpus._guard)],
        nics.settings.vf_guids,
    )


def taints(_node: Node, server: ApiServer) -> object:
    """The taints of the devices of claims, as the scheduler sees them."""
    return sorted(
        (device["name"], taint["value"], taint["effect"])
        for one in server.objects("resourceslices")
        for device in one["spec"]["devices"]
        for taint in device.get("taints", ())
    )


def volcano(n: Node, server: ApiServer) -> object:
    """Whether Volcano's scheduler can place pods: the GPUs are registered, and their resource is offered."""
    notes = (server.find("nodes", "n1") or {})["metadata"].get("annotations", {})
    by_volcano = NUMBER in {kind.resource for kind in n.agent.offering.offered}
    return by_volcano and "volcano.sh/node-vgpu-register" in notes


def level(_node: Node, _server: ApiServer) -> object:
    return logging.getLogger().level


def of(kind: str, **settings: Any) -> Text:
    return {"resources": [{"kind": kind, **settings}]}


GPU = of("gpu", select={"indexes": ["0-7"]})
DOWN = {"rule": "carrier_down", "clearForSeconds": 0}
SLOW = {"rule": "speed_reduced", "enterForSeconds": 0, "clearForSeconds": 0}
SELECTED = {
    "vendors": ["10de"], "devices": ["ffff"], "drivers": ["none"], "pciAddresses": [NOTHING], "netdevs": ["none"],
    "exclude": ["*"], "linkTypes": ["infiniband"], "minSpeedMbps": 999_000, "rdma": False, "vfIndexes": ["0"],
    "defaultRoute": "bond",
}  # fmt: skip
GPUS = {"uuids": ["GPU-00000000-0000-0000-0000-000000000000"], "indexes": ["1"], "pciAddresses": [NOTHING],
        "models": ["none"]}  # fmt: skip
LIVE: dict[str, tuple[Text, Any, Shown]] = {
    "resourcePrefix": ({}, "example.org", offered),
    **{f"resources[vf].select.{key}": (of("vf"), value, offered) for key, value in SELECTED.items()},
    "resources[vf].name": (of("vf"), "rail{rail}", offered),
    "resources[vf].mode": (of("vf"), "dra", offered),
    "resources[vf].vfDevices": (of("vf", mode="dra"), True, offered),
    "resources[vf].tell": (of("vf"), ["vllm"], offered),
    "resources[vf].ncclIbHca": (of("vf"), True, offered),
    "resources[vf].vfDriver": (of("vf"), "vfio-pci", offered),
    "resources[vf].preferred": (of("vf"), "pack", offered),
    "resources[vf].deviceListStrategy": (of("vf"), "cdi", offered),
    "resources[vf].vhostNet": (of("vf"), True, offered),
    **{f"resources[gpu-mem].select.{key}": (of("gpu-mem"), value, offered) for key, value in GPUS.items()},
    "resources[gpu-mem].name": (of("gpu-mem"), "memory", offered),
    "resources[gpu-mem].mode": (of("gpu-mem"), "dra", offered),
    "resources[gpu-mem].sliceMiB": (of("gpu-mem"), 2048, offered),
    "resources[gpu-mem].reservedMiB": (of("gpu-mem"), 4096, offered),
    "resources[gpu-mem].preferred": (of("gpu-mem"), "spread", offered),
    "resources[gpu-mem].deviceListStrategy": (of("gpu-mem"), "envvar", offered),
    "resources[gpu-mem].passDeviceNodes": (of("gpu-mem", deviceListStrategy="envvar"), True, offered),
    "resources[gpu-mem].volcano": (of("gpu-mem", enforcement="none"), True, volcano),
    "resources[gpu-mem].enforcement": (of("gpu-mem", enforcement="none"), "auto", offered),
    **{f"resources[gpu].select.{key}": (GPU, value, offered) for key, value in GPUS.items()},
    "resources[gpu].name": (GPU, "whole", offered),
    "resources[gpu].deviceListStrategy": (GPU, "envvar", offered),
    "resources[gpu].passDeviceNodes": (
        of("gpu", select={"indexes": ["0-7"]}, deviceListStrategy="envvar"), True, offered,
    ),
    **{f"resources[mig].select.{key}": (of("mig"), value, offered) for key, value in GPUS.items()},
    "resources[mig].name": (of("mig"), "part-{profile}", offered),
    "resources[mig].mode": (of("mig"), "dra", offered),
    "resources[mig].deviceListStrategy": (of("mig"), "envvar", offered),
    "resources[mig].passDeviceNodes": (of("mig", deviceListStrategy="envvar"), True, offered),
    "offer.mode": (of("vf"), "dra", offered),
    "offer.enforcement": (of("gpu-mem"), "none", offered),
    "offer.volcano": (of("gpu-mem", enforcement="none"), True, volcano),
    "offer.mig": (of("gpu-mem"), "devicePlugin", offered),
    "expect.gpus": (of("gpu-mem"), 9, offered),
    "expect.nics": (of("vf"), 9, offered),
    "health.expected[].links": (
        {"health": {"rules": [SLOW], "expected": [{"links": ["none"], "speedMbps": 999_000}]}}, ["*"], judged,
    ),
    "health.expected[].speedMbps": ({"health": {"rules": [SLOW], "expected": [{"links": ["*"]}]}}, 999_000, judged),
    "health.unused": ({}, ["*"], judged),
    "health.rules[].rule": ({"health": {"rules": [DOWN]}}, "device_missing", judged),
    "health.rules[].enter": ({"health": {"rules": [{"rule": "flapping"}]}}, 4000, judged),
    "health.rules[].clear": ({"health": {"rules": [{"rule": "flapping"}]}}, 700, judged),
    "health.rules[].enterForSeconds": ({"health": {"rules": [DOWN]}}, 7, judged),
    "health.rules[].clearForSeconds": ({"health": {"rules": [DOWN]}}, 7, judged),
    "health.rules[].windowSeconds": ({"health": {"rules": [{"rule": "flapping"}]}}, 700, judged),
    "health.rules[].allocatable": ({"health": {"rules": [DOWN]}}, True, judged),
    "health.rules[].enabled": ({"health": {"rules": [DOWN]}}, False, judged),
    "health.settleSeconds": ({}, 7, judged),
    "health.guard.share": ({}, 0.9, judged),
    "health.guard.seconds": ({}, 7, judged),
    "health.vfGuids": ({}, "fromCni", judged),
    "health.noExecute": (of("vf", mode="dra"), ["carrier_down"], taints),
    "log.level": ({}, "error", level),
    **{
        f"resources[rdma].select.{key}": (of("rdma"), value, offered)
        for key, value in SELECTED.items()
        if key not in ("vfIndexes", "rdma", "defaultRoute")
    },
    "resources[rdma].select.defaultRoute": (of("rdma"), "bond", selected),
    "resources[rdma].name": (of("rdma"), "hca{rail}", offered),
    "resources[rdma].mode": (of("rdma"), "dra", offered),
    "resources[rdma].shares": (of("rdma"), 7, offered),
    "resources[rdma].umad": (of("rdma"), True, offered),
    **{
        f"resources[nic].select.{key}": (of("nic"), value, offered)
        for key, value in SELECTED.items()
        if key not in ("vfIndexes", "defaultRoute")
    },
    "resources[nic].name": (of("nic"), "rail{rail}", offered),
    "resources[nic].mode": (of("nic"), "dra", offered),
    "resources[nic].tell": (of("nic"), ["vllm"], offered),
    "resources[nic].driver": (of("nic"), "vfio-pci", offered),
    "resources[nic].preferred": (of("nic"), "pack", offered),
    "resources[nic].deviceListStrategy": (of("nic"), "cdi", offered),
    "resources[nic].vhostNet": (of("nic"), True, offered),
}  # fmt: skip
"""The settings that count at once: a file without the setting, its other value, and where the change is seen."""

WHOLE_FIRST = "resources[nic].select.vendors"
"""The settings of NICs as a whole are the last ones: from there on the last NIC has no VFs."""

STARTED: Text = {
    "cluster": {"access": "kubeconfig", "events": False, "evict": {"enabled": True}},
    "gpu": {"health": {"processes": True}},
    "nvSentinel": {"socket": "/run/none.sock"},
    "vfs": [{"select": {"vendors": ["8086"]}, "count": 4}],
}  # fmt: skip
"""The start of a running agent, so that each other setting can be changed alone."""
OTHER: dict[str, Any] = {
    "attach.ipam": {"type": "host-local", "ranges": [[{"subnet": "10.{100+rail}.0.0/16"}]]},
    "cdi.directory": "/run/cdi",
    "cluster.kubeconfig": "/run/kubeconfig",
    "cluster.access": "auto",
    "gpu.health.unhealthy": ["pcie_speed"],
    "gpu.health.ignore": ["pcie_speed"],
    "health.cablingPlan": "/etc/plan.yaml",
    "health.stateDirectory": "/run/state",
    "history.file": "/run/history.json",
    "infiniband.nodeNames": "/etc/names",
    "listen": "127.0.0.1:1",
    "web.probeListen": "127.0.0.1:2",
    "web.runbook": "https://example.com/runbook",
    "nvSentinel.socket": "/run/other.sock",
    "nvSentinel.tokenFile": "/run/token",
    "links.select.pciAddresses": [NOTHING],
    "rails.networks": ["10.0.0.0/8"],
}
"""Another value of the settings for which ``another`` finds none."""

VFS: dict[str, Any] = {
    **{f"vfs[].select.{key}": SELECTED[key] for key in ("vendors", "devices", "drivers", "netdevs", "exclude")},
    "vfs[].select.linkTypes": ["infiniband"], "vfs[].select.pciAddresses": [NOTHING],
    "vfs[].count": 8, "vfs[].mtu": 9000, "vfs[].driver": "vfio-pci",
    "vfs[].trust": True, "vfs[].spoofCheck": False, "vfs[].linkState": "enable", "vfs[].minTxRateMbps": 100,
    "vfs[].maxTxRateMbps": 1000, "vfs[].vfIndexes": ["0-3"], "vfs[].guid": "auto",
}  # fmt: skip
"""Other values of the settings of the entry in ``STARTED``."""

TOGETHER = {
    "attach.addresses": ("attach.interface",),
    "attach.ipam": ("attach.interface",),
    "attach.numbers": ("attach.interface", "attach.addresses"),
    "web.keyFile": ("web.certificateFile",),
    "web.clientCaFile": ("web.certificateFile",),
    "web.tokenFile": ("web.certificateFile",),
}
"""Settings that need others beside them."""


@asynccontextmanager
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, ApiServer]]:
    """A node whose first link is down and whose second GPU has a MIG device, and an API server."""
    shorten_holdings(monkeypatch)
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    server = await ApiServer().start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    content = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server.url}}],
        "users": [{"name": "a", "user": {"token": server.token()}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    try:
        async with node() as n:
            n.machine.set_mig_mode(1, on=True)
            n.machine.make_mig_device(1, "MIG-a", "1g.10gb", 9856)
            await n.kubelet.start()
            await n.start_agent(write(n, {}), node_name="n1")
            Rounds(n.agent.offering)
            await n.agent.offering.begun.wait()
            await n.until(lambda: n.agent.inventory.snapshot.links)
            n.machine.set_link(0, up=False)
            await n.until(
                lambda: any(not it.health.allocatable for it in n.agent.inventory.snapshot.functions)
            )
            yield n, server
    finally:
        await server.stop()


def write(n: Node, text: Text) -> Config:
    return n.configure(yaml.safe_dump({**HEAD, **STARTED, **text}))


def test_each_setting_counts_at_once_or_waits_for_a_restart() -> None:
    live = {path for path, restart in leaves(Config).items() if not restart}
    assert live == LIVE.keys(), "a setting is in LIVE with what shows it, or is declared with restart=True"


@pytest.mark.slow
async def test_each_setting_that_needs_no_restart_is_in_force_in_the_running_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, monkeypatch) as (n, server):
        for path in LIVE:
            if path == WHOLE_FIRST:
                n.machine.set_vfs(max(it.address for it in n.machine.pfs if it.num_vfs), 0)
                await n.until(lambda: bool(n.agent.inventory.snapshot.whole_nics))
            await goes_and_returns(path, n, server)
    assert not [line for line in caplog.messages if WAITS in line or "refused" in line]


async def test_each_other_setting_is_named_as_waiting_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, monkeypatch) as (n, _server):
        in_force = n.agent._config
        for path, restart in leaves(Config).items():
            if not restart:
                continue
            caplog.clear()
            text, paths = with_change(path)
            await take(n, text)
            assert named(caplog) == paths == set(n.agent.file.waiting), path
            assert n.agent._config == in_force == n.agent.offering.config, path
        assert ", ".join(n.agent.file.waiting) in (await n.get("/readyz"))[1]
        target = Target(Tree(n.root), n.agent._config, recorded=True, kubelet_dir=None)
        assert (await asyncio.to_thread(read_agent, target)).waiting == n.agent.file.waiting
        caplog.clear()
        await take(n, {})
        assert not named(caplog), "the file is that of the start again"
        assert "restart" not in (await n.get("/readyz"))[1]


def with_change(path: str) -> tuple[Text, set[str]]:
    """A file with another value of a setting that waits for a restart, and the paths that the log names."""
    if path in VFS:  # a list waits as a whole
        return changed(STARTED, path, VFS[path]), {"vfs"}
    text, paths = STARTED, {path, *TOGETHER.get(path, ())}
    for one in paths:
        text = changed(text, one, OTHER.get(one) or another(Config, one, STARTED))
    return text, paths


def named(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {line.removeprefix(WAITS) for line in caplog.messages if line.startswith(WAITS)}


async def goes_and_returns(path: str, n: Node, server: ApiServer) -> None:
    base, value, shown = LIVE[path]
    await take(n, base)
    await until(lambda: shown is volcano or shown(n, server), f"what shows {path} is there")
    before = shown(n, server)
    await take(n, changed(base, path, value))
    if shown in (volcano, taints):  # another program is told later
        await until(lambda: shown(n, server) != before, f"{path} is in force")
    assert shown(n, server) != before, f"{path} is in force"
    assert not kept_beside((n.agent._config, n.agent.file._in_force), n.agent), (
        f"no part keeps what {path} had"
    )
    await take(n, base)
    await until(lambda: shown(n, server) == before, f"{path} is as before, after the holds of what recovers")


async def take(n: Node, text: Text) -> None:
    """Let the agent read this file, and offer what it says: then nothing but another change gives the agent work."""
    config = write(n, text)
    await until(lambda: n.agent.file._in_force == config or n.agent.file.error)
    assert not n.agent.file.error
    await until(lambda: is_done(n.agent))


def is_done(agent: Agent) -> bool:
    """Whether the latest news is judged, and its offer complete, with what it lacks."""
    offering = agent.offering
    judged = not agent.health._wake.is_set()
    return (
        judged and not offering._news.is_set() and offering.rounds.ended and offering._lacks._sought_by == inf
    )


class Rounds:
    """The rounds of an offering: whether the one that began last has ended."""

    def __init__(self, offering: DeviceOffering) -> None:
        self.ended, self._offer_now = True, offering.offer_now
        offering.rounds, offering.offer_now = self, self._round

    async def _round(self) -> Snapshot:
        self.ended = False
        snapshot = await self._offer_now()
        self.ended = True
        return snapshot
