"""Run the steps inside the guest: the installed agent and the stand-in kubelet on a kernel with real VFs.

This is the only program of the guest, with the wheel, its dependencies and Python. Each step changes the machine
and writes the state of kernel, agent and kubelet to ``/out/results.json``. The tests outside the guest check it.
A failed step is recorded with its traceback, and the next step runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import os
import platform
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from ground import (
    AGENT,
    CONFIG,
    DEVICES,
    ENVIRONMENT,
    LISTEN,
    OUT,
    PCI,
    PLAN,
    SITE,
    Json,
    Qmp,
    agent,
    agent_json,
    find_pfs,
    functions,
    http,
    integer,
    links,
    netdev_of,
    network_functions,
    program,
    read,
    rebind,
    scan,
    sh,
    sysfs,
    virtual_functions,
    write,
)

sys.path[:0] = SITE

import attached  # noqa: E402 - they need the installed wheel
import rails  # noqa: E402
import whole  # noqa: E402

from nodeagent_lab.sim.kubelet import Admission, Kubelet, PodSpec  # noqa: E402

log = logging.getLogger("guest")

PREFIX = "nodeagent.io"
PATIENCE_S = 300.0
"""The longest wait of a step. Each wait ends with its event; this ends a step whose event never comes. A guest that is
emulated beside the tests may have a tenth of a core, and waited 60 s in vain."""
PFS: list[str] = []


def config(counts: list[int], **changes: Json) -> str:
    """Return the configuration as JSON (a subset of YAML), with one entry for each PF."""
    entries = [
        {"select": {"pciAddresses": [pf]}, "count": count} for pf, count in zip(PFS, counts, strict=True)
    ]
    entries[2]["trust"] = True
    entries[2]["mtu"] = 1600
    return json.dumps(
        {
            "apiVersion": "nodeagent.io/v1alpha1",
            "kind": "NodeAgentConfig",
            "resources": [{"kind": "vf", "name": "nic{rail}"}],
            "gpu": {"driver": "none"},
            "vfs": entries,
            # Without hold times, because each step would wait for a minute; all rules are in force.
            "health": {
                "rules": [
                    {"rule": "carrier_down", "clearForSeconds": 0},
                    {"rule": "device_missing", "clearForSeconds": 0},
                ]
            },
            "listen": LISTEN,
            **changes,
        }
    )


async def measured(pf: str) -> Json:
    """Return the counters of a PF as ethtool, ip and sysfs show them."""
    netdev = netdev_of(pf)
    (link,) = json.loads((await sh("ip", "-s", "-s", "-j", "link", "show", netdev))["out"])
    folder = DEVICES / pf
    return {
        "pf": pf,
        "netdev": netdev,
        "link": link,
        "carrier_changes": int(read(f"/sys/class/net/{netdev}/carrier_changes")),
        "driver": (await sh("ethtool", "-i", netdev))["out"],
        "settings": (await sh("ethtool", netdev))["out"],
        "width": read(folder / "current_link_width"),
        "speed": read(folder / "current_link_speed"),
        "aer": {name: read(folder / name) for name in AER if (folder / name).exists()},
        "vfs": virtual_functions(pf),
    }


async def settings(pf: str) -> Json:
    """The settings of a PF that nodes are compared by, as ethtool and sysfs show them."""
    netdev = netdev_of(pf)
    parts = {}
    for name, option in (("rings", "-g"), ("channels", "-l"), ("pause", "-a"), ("driver", "-i")):
        shown = (await sh("ethtool", option, netdev))["out"].rpartition("Current hardware settings:")[2]
        lines = (line.partition(":") for line in shown.splitlines())
        parts[name] = {key.strip(): value.strip() for key, _, value in lines if value.strip()}
    folder = DEVICES / pf
    files = (
        "iommu_group/type",
        "current_link_speed",
        "current_link_width",
        f"net/{netdev}/mtu",
        "sriov_numvfs",
    )
    return {**parts, **{Path(file).name: read(folder / file) for file in files}}


AER = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")


class Guest:
    def __init__(self) -> None:
        self.kubelet = Kubelet(Path("/var/lib/kubelet"), seed=1)
        self.agent: asyncio.subprocess.Process | None = None
        self.qmp = Qmp()

    # --- steps, in this order ---------------------------------------------------------------------------

    async def facts(self) -> Json:
        """Record the machine before the first change."""
        version = await agent("--version")
        return {
            "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
            "kernel": platform.release(),
            "build": platform.version(),
            "python": platform.python_version(),
            "product": read("/sys/class/dmi/id/product_name"),
            "nodeagent": version["out"].strip(),
            "qemu": await self.qmp.ask("query-version"),
            "nodes": read("/sys/devices/system/node/online"),
        }

    async def bare(self) -> Json:
        """PFs without VFs; the driver of the VFs is not loaded yet."""
        await sh("modprobe", PLAN["pf_driver"])
        PFS[:] = find_pfs()
        for pf in PFS:
            await self.up(pf)
        CONFIG.write_text(config(PLAN["vfs"]))
        return {"pfs": PFS, "config": await agent("config", "check", str(CONFIG)), "scan": await scan()}

    async def apply(self) -> Json:
        """Run ``vfs apply`` twice and record the VFs after each run."""
        show = await agent_json("vfs", "show", "--json", "--config", str(CONFIG))
        first = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        there = {pf: virtual_functions(pf) for pf in PFS}
        second = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        return {
            "show": show,
            "first": first,
            "second": second,
            "there": there,
            "after": {pf: virtual_functions(pf) for pf in PFS},
            "ip": await links(),
            "offset": {pf: (integer(pf, "sriov_offset"), integer(pf, "sriov_stride")) for pf in PFS},
        }

    async def compared(self) -> Json:
        """Capture the machine before and after rings, pause frames and MTU of one PF change, and compare both."""
        before = [await settings(pf) for pf in PFS]
        captures = [await agent("capture", "/tmp/before")]
        changed = netdev_of(PFS[1])
        await sh("ethtool", "-G", changed, "rx", "512")
        await sh("ethtool", "-A", changed, "autoneg", "off", "rx", "off", "tx", "off")
        await sh("ip", "link", "set", changed, "mtu", "1450")
        after = [await settings(pf) for pf in PFS]
        captures.append(await agent("capture", "/tmp/after"))
        same = await agent_json("diff", "/tmp/before", "/tmp/before", "--all", "--json")
        differ = await agent_json("diff", "/tmp/before", "/tmp/after", "--json")
        await sh("ethtool", "-G", changed, "rx", str(before[1]["rings"]["RX"]))
        await sh("ethtool", "-A", changed, "autoneg", "on", "rx", "on", "tx", "on")
        await sh("ip", "link", "set", changed, "mtu", "1500")
        return {
            "captures": captures,
            "before": before,
            "after": after,
            "same": same,
            "differ": differ,
            "command_line": read("/proc/cmdline"),
        }

    async def late(self) -> Json:
        """Start the agent before the driver of the VFs is loaded."""
        await self.kubelet.start()
        began = time.monotonic()
        await self.start_agent()
        resources = self.resources()
        await self.kubelet.until(lambda: all(self.kubelet.devices(one) for one in resources), PATIENCE_S)
        registered_s = time.monotonic() - began
        before = self.kubelet_devices()
        began = time.monotonic()
        await sh("modprobe", PLAN["vf_driver"])
        modprobe_s = time.monotonic() - began
        await self.until_healthy(lambda _pf: True)
        return {
            "registered_s": registered_s,
            "before": before,
            "modprobe_s": modprobe_s,
            "healthy_s": time.monotonic() - began,
            "after": self.kubelet_devices(),
            "capacity": self.kubelet.capacity(),
            "ready": await http("/readyz"),
        }

    async def agree(self) -> Json:
        """Record the machine as the agent and three other tools show it."""
        return {
            "scan": await scan(),
            "table": (await agent("scan", "--config", str(CONFIG)))["out"],
            "lspci": (await sh("lspci", "-D", "-vmm", "-n", "-k"))["out"],
            "ip": await links(),
            "sysfs": {name: sysfs(name) for name in network_functions()},
        }

    async def pod(self) -> Json:
        """A pod gets two VFs and keeps them."""
        resource = self.resources()[3]
        pod = PodSpec.single("trainer", {resource: 2})
        admission = await self.kubelet.admit(pod)
        held = sorted(self.kubelet.held(pod)["main"][resource])
        info = {path.name: path.read_text() for path in Path("/var/run/k8s.cni.cncf.io/devinfo/dp").iterdir()}
        fewer = await self.apply_counts(3, 2)
        numvfs = integer(PFS[3], "sriov_numvfs")
        self.kubelet.remove(pod)
        return {
            "phase": admission.phase,
            "message": admission.message,
            "env": dict(admission.given["main"].env) if admission.given else None,
            "held": held,
            "info": info,
            "fewer": fewer,
            "numvfs": numvfs,
        }

    async def vfio(self) -> Json:
        """Bind a VF to vfio-pci and back."""
        resource, vf = self.resources()[0], virtual_functions(PFS[0])[1]
        await sh("modprobe", "vfio-pci")
        mark = len(self.kubelet.updates)
        await rebind(vf, "vfio-pci")
        seen = await self.until_scan(lambda functions: functions[vf]["vfioGroup"] is not None)
        group = os.readlink(DEVICES / vf / "iommu_group").rpartition("/")[2]
        pod = PodSpec.single("dpdk", {resource: PLAN["vfs"][0]})
        admission = await self.kubelet.admit(pod)
        given = admission.given["main"] if admission.given else None
        self.kubelet.remove(pod)
        held = os.open(f"/dev/vfio/{group}", os.O_RDWR)
        opened = await self.apply_counts(0, 1)
        os.close(held)
        numvfs = integer(PFS[0], "sriov_numvfs")
        await rebind(vf, PLAN["vf_driver"])
        await self.until_healthy(lambda _pf: True)
        return {
            "vf": vf,
            "function": seen[vf],
            "group": group,
            "phase": admission.phase,
            "message": admission.message,
            "env": dict(given.env) if given else None,
            "device_nodes": [node.host_path for node in given.device_nodes] if given else None,
            "open": opened,
            "numvfs": numvfs,
            "updates": self.updates_since(mark),
            "after": (await functions())[vf],
        }

    async def namespace(self) -> Json:
        """Move the netdev of a VF into a network namespace, as a CNI plugin does, and back."""
        vf = virtual_functions(PFS[1])[0]
        netdev = netdev_of(vf)
        mark = len(self.kubelet.updates)
        await sh("ip", "netns", "add", "pod")
        await sh("ip", "link", "set", netdev, "netns", "pod")
        await self.until_scan(lambda functions: functions[vf]["netdev"] is None)
        away = (await functions())[vf]
        inside = await sh("ip", "-n", "pod", "-br", "link")
        fewer = await self.apply_counts(1, 1)
        numvfs = integer(PFS[1], "sriov_numvfs")
        await sh("ip", "-n", "pod", "link", "set", netdev, "netns", "1")
        await sh("ip", "netns", "delete", "pod")
        back = await self.until_scan(lambda functions: functions[vf]["netdev"] is not None)
        return {
            "vf": vf,
            "netdev": netdev,
            "inside": inside["out"],
            "away": away,
            "back": back[vf],
            "fewer": fewer,
            "numvfs": numvfs,
            "updates": self.updates_since(mark),
            "devices": self.kubelet_devices(),
        }

    async def attached(self) -> Json:
        """Move VFs into pods as `nodeagent attach` does; the agent and the kubelet look on."""
        data = await attached.steps(PFS, PLAN["vf_driver"])
        await self.until_healthy(lambda _pf: True)
        return data

    async def held(self) -> Json:
        """Set two VFs as SR-IOV CNI does, one for a pod and one in a namespace; then apply the configuration."""
        pf, resource = PFS[2], self.resources()[2]
        pod, _, (taken, *_) = await self.admit("cni", resource, 1)
        vfs = virtual_functions(pf)
        free, away = [index for index, vf in enumerate(vfs) if vf != taken][:2]
        netdev = netdev_of(vfs[away])
        await sh("ip", "netns", "add", "cni")
        await sh("ip", "link", "set", netdev, "netns", "cni")
        for index in (free, away, vfs.index(taken)):
            vf = ("ip", "link", "set", netdev_of(pf), "vf", str(index))
            await sh(*vf, "trust", "off")
            await sh(*vf, "spoofchk", "off")
            await sh(*vf, "vlan", "100")
        before = await links()
        answer = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        after = await links()
        await sh("ip", "-n", "cni", "link", "set", netdev, "netns", "1")
        await sh("ip", "netns", "delete", "cni")
        for index in range(len(vfs)):
            await sh("ip", "link", "set", netdev_of(pf), "vf", str(index), "vlan", "0")
        self.kubelet.remove(pod)
        again = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        await self.until_healthy(lambda _pf: True)
        return {
            "pf": pf,
            "index": {"free": free, "away": away, "taken": vfs.index(taken)},
            "before": before,
            "answer": answer,
            "after": after,
            "again": again,
        }

    async def cable(self) -> Json:
        """QEMU takes the link of a PF down and up again; a third loss of one link would be flapping."""
        rounds = []
        for rail in (0, 1, 0):
            mark = len(self.kubelet.updates)
            began = time.monotonic()
            await self.qmp.ask("set_link", name=f"pf{rail}", up=False)
            await self.until_healthy(partial(operator.ne, rail))
            down_s, down = time.monotonic() - began, self.kubelet_devices()
            began = time.monotonic()
            await self.qmp.ask("set_link", name=f"pf{rail}", up=True)
            await self.until_healthy(lambda _pf: True)
            up_s = time.monotonic() - began
            updates = self.updates_since(mark)
            rounds.append({"rail": rail, "down_s": down_s, "up_s": up_s, "down": down, "updates": updates})
        return rounds

    async def administered(self) -> Json:
        """An administrator changes settings of a PF; the driver drops the carrier to apply most of them."""
        pf = PFS[3]
        netdev = netdev_of(pf)
        before = await links()
        changes = [
            ("ip", "link", "set", netdev, "mtu", "1400"),
            ("ip", "link", "set", netdev, "mtu", "1500"),
            ("ethtool", "-G", netdev, "rx", "512"),
            ("ethtool", "-L", netdev, "combined", "1"),
            ("ethtool", "-A", netdev, "rx", "off"),
            ("ip", "link", "set", netdev, "down"),
            ("ip", "link", "set", netdev, "up"),
        ]
        done = []
        for change in changes:
            answer = await program(*change)
            done.append({"change": " ".join(change[:-1]), "code": answer["code"], "err": answer["err"]})
            await asyncio.sleep(0.3)
        for count in (0, PLAN["vfs"][3] - 2, 0, PLAN["vfs"][3]):
            await write(DEVICES / pf / "sriov_numvfs", str(count))
        await sh("ip", "link", "set", netdev_of(pf), "up")
        await self.until_healthy(lambda _pf: True)
        await asyncio.sleep(6)  # the next reading of all counters
        page = (await http("/metrics"))["body"]
        return {
            "done": done,
            "netdev": netdev,
            "before": before,
            "after": await links(),
            "penalties": [
                line for line in page.splitlines() if line.startswith("nodeagent_link_flap_penalty{")
            ],
            "changes": [
                line
                for line in page.splitlines()
                if line.startswith("nodeagent_link_administration_changes_total{")
                and float(line.rpartition(" ")[2])
            ],
            "health": (await functions())[pf]["health"],
        }

    async def unplugged(self) -> Json:
        """QEMU removes a PF from its slot, and plugs it in again."""
        pf, before = PFS[3], self.kubelet_devices()
        await self.qmp.ask("device_del", id="pf3")
        await self.until_healthy(lambda rail: rail != 3)
        await self.qmp.deleted("pf3")  # its VFs go before it

        async def health() -> Json:
            return json.loads((await agent("health", "--json"))["out"])

        seen = await self.until_json(
            health,
            lambda views: any(
                view["device"] == pf and [reason["key"] for reason in view["reasons"]] == ["device_missing"]
                for view in views
            ),
        )
        gone = self.kubelet_devices()
        nic = {"driver": PLAN["model"], "id": "pf3", "bus": "port3", "netdev": "cable3"}
        await self.qmp.ask("device_add", **nic, mac="02:00:00:00:03:00", romfile="")
        async with asyncio.timeout(PATIENCE_S):
            while not (DEVICES / pf / "net").exists():
                await asyncio.sleep(0.2)
        await self.up(pf)
        applied = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        await self.until_healthy(lambda _pf: True)
        return {
            "before": before,
            "gone": gone,
            "seen": seen,
            "applied": applied,
            "back": self.kubelet_devices(),
        }

    async def removed(self) -> Json:
        """Remove and re-create the VFs of a PF while a pod holds one of them."""
        resource = self.resources()[1]
        pod = PodSpec.single("victim", {resource: 1})
        admission = await self.kubelet.admit(pod)
        before = self.kubelet_devices()
        began = time.monotonic()
        kernel_s = await write(DEVICES / PFS[1] / "sriov_numvfs", "0")
        await self.until_healthy(lambda pf: pf != 1)
        gone_s, gone, seen = time.monotonic() - began, self.kubelet_devices(), await scan()
        health = self.kubelet.resource_health(pod)
        began = time.monotonic()
        await write(DEVICES / PFS[1] / "sriov_numvfs", str(PLAN["vfs"][1]))
        await self.until_healthy(lambda _pf: True)
        back_s = time.monotonic() - began
        self.kubelet.remove(pod)
        return {
            "phase": admission.phase,
            "before": before,
            "kernel_s": kernel_s,
            "gone": gone,
            "gone_s": gone_s,
            "scan": seen,
            "health": health,
            "back": self.kubelet_devices(),
            "back_s": back_s,
            "panics": [str(panic) for panic in self.kubelet.panics],
        }

    async def unbound(self) -> Json:
        """Unbind the driver of a PF, which removes its VFs, and bind it again."""
        pf = PFS[2]
        before = self.kubelet_devices()
        began = time.monotonic()
        kernel_s = await write(PCI / "drivers" / PLAN["pf_driver"] / "unbind", pf)
        try:
            await self.until_healthy(lambda one: one != 2)
            gone_s, gone = time.monotonic() - began, self.kubelet_devices()
            health = (await functions())[pf]["health"]
        finally:  # each later step needs it
            await write(PCI / "drivers" / PLAN["pf_driver"] / "bind", pf)
        bound, rebound = (await functions())[pf], self.kubelet_devices()
        await self.up(pf)
        applied = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        await self.until_healthy(lambda _pf: True)
        return {
            "before": before,
            "kernel_s": kernel_s,
            "gone": gone,
            "gone_s": gone_s,
            "health": health,
            "bound": bound,
            "rebound": rebound,
            "applied": applied,
            "back": self.kubelet_devices(),
        }

    async def metrics(self) -> Json:
        """Scrape the NIC metrics between two readings of the same counters without the agent."""
        before = [await measured(pf) for pf in PFS]
        seen = {"at": time.monotonic()}
        # The slowest of these readers runs every 30 s.
        while (page := await http("/metrics"))["body"].count("nodeagent_pcie_link_width_lanes{") < len(PFS):
            if time.monotonic() - seen["at"] > PATIENCE_S:
                break
            await asyncio.sleep(1)
        return {
            "metrics": page,
            "ready": await http("/readyz"),
            "devices": self.kubelet_devices(),
            "before": before,
            "after": [await measured(pf) for pf in PFS],
        }

    async def doctor(self) -> Json:
        """Run the doctor beside the running agent."""
        return await agent_json("doctor", "--json", "--config", str(CONFIG), "--timeout", "60")

    async def restart(self) -> Json:
        """End the agent by SIGTERM while a pod holds a VF, and start it again."""
        resource = self.resources()[0]
        pod, _, held = await self.admit("holder", resource, 1)
        stopped = await self.stop_agent()
        mark, began = len(self.kubelet.registrations), time.monotonic()
        await self.start_agent_again()
        await self.until_healthy(lambda _pf: True)
        again_s = time.monotonic() - began
        still = sorted(self.kubelet.held(pod)["main"][resource])
        self.kubelet.remove(pod)
        return {
            **stopped,
            "again_s": again_s,
            "held": held,
            "still": still,
            "devices": self.kubelet_devices(),
            "errors": [one.error for one in self.kubelet.registrations[mark:]],
        }

    async def bereft(self) -> Json:
        """Start the agent while the VFs of a PF are removed, one of them held by a pod; then create them again."""
        resource = self.resources()[1]
        pod, _, held = await self.admit("orphan", resource, 1)
        before = self.kubelet_devices()
        await self.stop_agent()
        await write(DEVICES / PFS[1] / "sriov_numvfs", "0")
        await self.start_agent_again()
        await self.kubelet.until(lambda: set(self.kubelet.devices(resource)) == set(held), PATIENCE_S)
        gone = self.kubelet_devices()
        await write(DEVICES / PFS[1] / "sriov_numvfs", str(PLAN["vfs"][1]))
        await self.kubelet.until(
            lambda: set(self.kubelet.devices(resource)) == set(before[resource]), PATIENCE_S
        )
        await self.until_healthy(lambda _pf: True)
        self.kubelet.remove(pod)
        return {
            "held": held,
            "before": before,
            "gone": gone,
            "back": self.kubelet_devices(),
            "panics": [str(panic) for panic in self.kubelet.panics],
        }

    async def lldp(self) -> Json:
        """A real lldpd sends frames on the cable of the first PF, as a leaf does."""
        port = next(one["ifname"] for one in await links() if one["address"] == PLAN["switch_mac"])
        await sh("ip", "netns", "add", "leaf")
        await sh("ip", "link", "set", port, "netns", "leaf", "name", "swp1")
        await sh("ip", "-n", "leaf", "link", "set", "swp1", "up")
        settings = Path("/run/lldpd.conf")
        settings.write_text("configure system hostname leaf01\nconfigure lldp tx-interval 1\n")
        command = ("lldpd", "-d", "-u", "/run/lldpd.socket", "-O", str(settings), "-I", "swp1")
        with (OUT / "lldpd.log").open("wb") as log:
            lldpd = await asyncio.create_subprocess_exec(
                "ip", "netns", "exec", "leaf", *command, stderr=log, stdout=log
            )
        try:
            neighbors = await agent_json("neighbors", "--json", "--wait", "4", "--config", str(CONFIG))
            scanned = await agent_json("scan", "--json", "--wait", "4", "--config", str(CONFIG))
        finally:
            lldpd.terminate()
            await lldpd.wait()
        return {"neighbors": neighbors, "scan": scanned, "pf": netdev_of(PFS[0])}

    async def stop(self) -> Json:
        stopped = await self.stop_agent()
        await self.kubelet.stop()
        return stopped

    # --- NICs as a whole; another agent and kubelet than before ---------------------------------------------

    async def whole(self) -> Json:
        """Offer PFs without VFs as a whole: a pod takes one into its namespace, VFs come meanwhile, a cable is lost."""
        await sh("modprobe", PLAN["vf_driver"])
        for pf in PFS:
            await whole.divide(pf, 0)
            await self.up(pf)
        given = whole.without_sriov(network_functions())
        drivers = sorted({facts["driver"] for facts in given.values()})
        CONFIG.write_text(whole.configuration(PLAN["pf_driver"], drivers))
        self.kubelet = Kubelet(Path("/var/lib/kubelet"), seed=2)
        await self.kubelet.start()
        await self.start_agent()
        names = [f"{PREFIX}/whole{rail}" for rail in range(len(PFS))]
        found: Json = {"given": given, "config": await agent("config", "check", str(CONFIG))}

        def healths(name: str) -> dict[str, str]:
            return {id_: seen.health for id_, seen in sorted(self.kubelet.devices(name).items())}

        async def until(name: str, *wanted: str) -> None:
            await self.kubelet.until(lambda: sorted(healths(name).values()) == sorted(wanted), PATIENCE_S)

        for name in names:
            await until(name, "Healthy")
        await self.kubelet.until(lambda: bool(healths(f"{PREFIX}/guest")), PATIENCE_S)
        found["offered"] = {name: healths(name) for name in (*names, f"{PREFIX}/guest")}

        # A CNI plugin sets the netdev of a pod's NIC down and moves it.
        pod, admission, held = await self.admit("trainer", names[0], 1)
        netdev, pf = netdev_of(PFS[0]), PFS[0]
        found |= {"held": held, "env": dict(admission.given["main"].env), "info": whole.information()}
        mark = len(self.kubelet.updates)
        await sh("ip", "netns", "add", whole.NAMESPACE)
        await sh("ip", "link", "set", netdev, "down")
        await sh("ip", "link", "set", netdev, "netns", whole.NAMESPACE)
        away = await self.until_scan(lambda functions: functions[pf]["netdev"] is None)
        await asyncio.sleep(6)  # the next reading of all counters
        found |= {
            "away": away[pf],
            "away_healths": healths(names[0]),
            "away_updates": self.updates_since(mark),
        }

        # Somebody makes VFs of the PF that the pod has.
        await whole.divide(pf, 2)
        await until(f"{PREFIX}/nic0", "Unhealthy", "Unhealthy")
        refused = await self.kubelet.admit(PodSpec.single("thief", {f"{PREFIX}/nic0": 1}))
        found |= {
            "vfs_of_held": healths(f"{PREFIX}/nic0"),
            "thief": refused.phase,
            "stays": healths(names[0]),
        }
        await whole.divide(pf, 0)

        # The namespace ends: the kernel returns the netdev, set down.
        await sh("ip", "netns", "delete", whole.NAMESPACE)
        back = await self.until_scan(lambda functions: functions[pf]["netdev"] is not None)
        self.kubelet.remove(pod)
        await until(names[0], "Healthy")
        found |= {"back": back[pf], "netdev": netdev}
        again, _, _ = await self.admit("next", names[0], 1)
        self.kubelet.remove(again)
        await self.up(pf)
        await self.until_scan(lambda functions: functions[pf]["health"]["state"] == "healthy")
        await until(names[0], "Healthy")

        await self.qmp.ask("set_link", name="pf1", up=False)
        await until(names[1], "Unhealthy")
        found["lost"] = {name: healths(name) for name in names}
        await self.qmp.ask("set_link", name="pf1", up=True)
        await until(names[1], "Healthy")

        await whole.divide(PFS[2], 2)
        await until(f"{PREFIX}/nic2", "Healthy", "Healthy")
        await until(names[2], "Unhealthy")
        found["divided"] = {name: healths(name) for name in (names[2], f"{PREFIX}/nic2")}
        await whole.divide(PFS[2], 0)
        await until(names[2], "Healthy")
        found["stopped"] = await self.stop_agent()
        await self.kubelet.stop()
        return found

    async def whole_pods(self) -> Json:
        """Move PFs without VFs into pods as `nodeagent attach` does. A cable joins two of them meanwhile."""
        cable, place = [], {"type": "unix", "path": f"nodeagent-cable-{time.time_ns()}", "abstract": True}
        for number, end in ((2, True), (3, False)):
            await self.qmp.ask("netdev_add", type="stream", id=f"end{number}", server=end, addr=place)
            await self.qmp.ask(
                "netdev_add", type="hubport", id=f"joined{number}", hubid=number, netdev=f"end{number}"
            )
            cable += [f"joined{number}", f"end{number}"]
        try:
            return await attached.whole_nics(PFS[2], PFS[3])
        finally:
            for netdev in cable:
                await self.qmp.ask("netdev_del", id=netdev)

    # --- probes over rails; the agent has ended -----------------------------------------------------------

    async def rail_netem(self) -> Json:
        """Packets that are late, out of order, doubled or lost."""
        await sh("modprobe", "veth")
        with rails.wired() as there:
            return await rails.netem(there)

    async def rail_rxe(self) -> Json:
        with rails.wired() as there:
            return await rails.rxe(there)

    async def rail_vrf(self) -> Json:
        with rails.wired() as there:
            return await rails.vrf(there)

    async def rail_bond(self) -> Json:
        return await rails.bond(PFS[2])

    # --- parts of the steps ---------------------------------------------------------------------------------

    async def admit(self, name: str, resource: str, count: int) -> tuple[PodSpec, Admission, list[str]]:
        """Admit a pod that must run; return its status and its devices."""
        pod = PodSpec.single(name, {resource: count})
        admission = await self.kubelet.admit(pod)
        if admission.phase != "Running":
            raise OSError(f"pod {name} is {admission.phase}: {admission.message}")
        return pod, admission, sorted(self.kubelet.held(pod)["main"][resource])

    async def up(self, pf: str) -> None:
        await sh("ip", "link", "set", netdev_of(pf), "up")

    async def start_agent(self) -> None:
        with (OUT / "agent.log").open("ab") as log:
            self.agent = await asyncio.create_subprocess_exec(
                *AGENT, "run", "--config", str(CONFIG), env=ENVIRONMENT, stderr=log
            )

    async def stop_agent(self) -> Json:
        assert self.agent is not None
        began = time.monotonic()
        self.agent.terminate()
        return {"code": await self.agent.wait(), "stopped_s": time.monotonic() - began}

    async def start_agent_again(self) -> None:
        """Wait until every resource is registered with a device list: before that the kubelet allocates
        no device of it."""
        registrations, updates = len(self.kubelet.registrations), len(self.kubelet.updates)

        def so() -> bool:
            registered = {one.resource for one in self.kubelet.registrations[registrations:] if not one.error}
            return set(self.resources()) <= registered & {
                one.resource for one in self.kubelet.updates[updates:]
            }

        await self.start_agent()
        await self.kubelet.until(so, PATIENCE_S)

    def resources(self) -> list[str]:
        return [f"{PREFIX}/nic{rail}" for rail in range(len(PFS))]

    def kubelet_devices(self) -> Json:
        """Return the device lists that the kubelet received: resource, device, health and NUMA nodes."""
        return {
            resource: {
                name: {"health": seen.health, "numa": list(seen.numa_nodes)}
                for name, seen in sorted(self.kubelet.devices(resource).items())
            }
            for resource in self.resources()
        }

    def updates_since(self, mark: int) -> Json:
        return [
            {
                "resource": one.resource,
                "healthy": one.healthy,
                "unhealthy": one.unhealthy,
                "repeated": one.repeated,
            }
            for one in self.kubelet.updates[mark:]
        ]

    async def until_healthy(self, wanted: Callable[[int], bool]) -> None:
        """Wait until the kubelet lists the VFs of each PF as Healthy or Unhealthy, as ``wanted`` requires."""

        def so() -> bool:
            for rail, resource in enumerate(self.resources()):
                healths = [seen.health == "Healthy" for seen in self.kubelet.devices(resource).values()]
                if not healths or set(healths) != {wanted(rail)}:
                    return False
            return True

        await self.kubelet.until(so, PATIENCE_S)

    async def until_scan(self, holds: Callable[[Json], bool]) -> Json:
        return await self.until_json(functions, holds)

    async def until_json(self, ask: Callable[[], Awaitable[Json]], holds: Callable[[Json], bool]) -> Json:
        """Return the answer once the condition holds; each try is a new process."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(seen := await ask()):
                pass
        return seen

    async def apply_counts(self, rail: int, count: int) -> Json:
        """Apply another number of VFs for one PF, with a file of its own; the file of the agent is unchanged."""
        counts = list(PLAN["vfs"])
        counts[rail] = count
        other = Path("/tmp/other.yaml")
        other.write_text(config(counts))
        return await agent_json("vfs", "apply", "--json", "--config", str(other))


async def main() -> None:
    guest = Guest()
    results: Json = {}
    for step in PLAN["steps"]:
        began = time.monotonic()
        try:
            results[step] = {"data": await getattr(guest, step)()}
        except Exception:  # noqa: BLE001 - it is written down and judged outside
            results[step] = {
                "error": traceback.format_exc(),
                "devices": guest.kubelet_devices() if PFS else None,
            }
        results[step]["seconds"] = time.monotonic() - began
        log.info("%s: %.1f s %s", step, results[step]["seconds"], results[step].get("error", ""))
        (OUT / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    asyncio.run(main())
