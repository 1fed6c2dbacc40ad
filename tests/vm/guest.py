"""What happens inside the guest: the installed agent and the stand-in kubelet on a kernel with real VFs.

Runs as the guest's only program, with nothing but the wheel and its dependencies beside Python. It does one
thing after the other to the machine and writes down what the kernel, the agent and the kubelet then say, in
``/out/results.json``. It judges nothing: the tests do, outside. A step that fails is written down with its
traceback, and the next one runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

SITE = ("/share/agent", "/share/deps")
sys.path[:0] = SITE

from nodeagent.sim.kubelet import Kubelet, PodSpec  # noqa: E402

OUT = Path("/out")
PCI = Path("/sys/bus/pci")
DEVICES = PCI / "devices"
CONFIG = Path("/etc/nodeagent.yaml")
LISTEN = "127.0.0.1:9808"
PREFIX = "nodeagent.io"
PLAN = json.loads(Path("/share/plan.json").read_text())
PATIENCE_S = 60.0  # software emulation on a busy machine

Json = Any


def config(counts: list[int], **changes: Json) -> str:
    """JSON is YAML. One entry for each PF, so that each may have another number of VFs."""
    entries = [
        {"select": {"pciAddresses": [pf]}, "count": count}
        for pf, count in zip(PFS, counts, strict=True)
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
            "listen": LISTEN,
            **changes,
        }
    )


PFS: list[str] = []


def find_pfs() -> list[str]:
    """The functions with SR-IOV, in PCI order: what the kernel itself says, without the agent."""
    return sorted(path.parent.name for path in DEVICES.glob("*/sriov_totalvfs"))


class Guest:
    def __init__(self) -> None:
        self.kubelet = Kubelet(Path("/var/lib/kubelet"), seed=1)
        self.agent: asyncio.subprocess.Process | None = None
        self.qmp = Qmp()

    # --- steps, in this order ---------------------------------------------------------------------------

    async def facts(self) -> Json:
        """Of the machine, before anything is done to it."""
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
        """PFs without VFs. The driver of VFs is not loaded yet."""
        await sh("modprobe", PLAN["pf_driver"])
        PFS[:] = find_pfs()
        for pf in PFS:
            await self.up(pf)
        CONFIG.write_text(config(PLAN["vfs"]))
        return {"pfs": PFS, "config": await agent("config", "check", str(CONFIG)), "scan": await scan()}

    async def apply(self) -> Json:
        """Twice; and what is there in between and afterwards."""
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
            "ip": json.loads((await sh("ip", "-j", "-d", "link"))["out"]),
            "offset": {pf: (integer(pf, "sriov_offset"), integer(pf, "sriov_stride")) for pf in PFS},
        }

    async def late(self) -> Json:
        """The agent is there before the driver of the VFs is."""
        await self.kubelet.start()
        began = time.monotonic()
        await self.start_agent()
        resources = self.resources()
        await self.kubelet.until(lambda: all(self.kubelet.devices(one) for one in resources), PATIENCE_S)
        registered_s = time.monotonic() - began
        before = self.told()
        began = time.monotonic()
        await sh("modprobe", PLAN["vf_driver"])
        modprobe_s = time.monotonic() - began
        await self.until_healthy(lambda _pf: True)
        return {
            "registered_s": registered_s,
            "before": before,
            "modprobe_s": modprobe_s,
            "healthy_s": time.monotonic() - began,
            "after": self.told(),
            "capacity": self.kubelet.capacity(),
            "ready": await http("/readyz"),
        }

    async def agree(self) -> Json:
        """The same machine in the agent's words and in those of three others."""
        return {
            "scan": await scan(),
            "table": (await agent("scan", "--config", str(CONFIG)))["out"],
            "lspci": (await sh("lspci", "-D", "-vmm", "-n", "-k"))["out"],
            "ip": json.loads((await sh("ip", "-j", "-d", "link"))["out"]),
            "sysfs": {name: sysfs(name) for name in network_functions()},
        }

    async def pod(self) -> Json:
        """A pod takes two VFs, and nobody takes them from it."""
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
        """A VF is given to vfio-pci and back."""
        resource, vf = self.resources()[0], virtual_functions(PFS[0])[1]
        await sh("modprobe", "vfio-pci")
        mark = len(self.kubelet.updates)
        rebind(vf, "vfio-pci")
        seen = await self.until_scan(lambda functions: functions[vf]["vfio_group"] is not None)
        group = os.readlink(DEVICES / vf / "iommu_group").rpartition("/")[2]
        pod = PodSpec.single("dpdk", {resource: PLAN["vfs"][0]})
        admission = await self.kubelet.admit(pod)
        given = admission.given["main"] if admission.given else None
        self.kubelet.remove(pod)
        with open(f"/dev/vfio/{group}", "rb"):
            opened = await self.apply_counts(0, 1)
        numvfs = integer(PFS[0], "sriov_numvfs")
        rebind(vf, PLAN["vf_driver"])
        await self.until_healthy(lambda _pf: True)
        return {
            "vf": vf,
            "function": seen[vf],
            "group": group,
            "node": os.path.exists(f"/dev/vfio/{group}"),
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
        """A VF's netdev goes into a network namespace, as a CNI plugin moves it, and comes back."""
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
            "told": self.told(),
        }

    async def cable(self) -> Json:
        """QEMU takes the link of a PF away and gives it back."""
        rounds = []
        for _ in range(3):
            mark = len(self.kubelet.updates)
            began = time.monotonic()
            await self.qmp.ask("set_link", name="pf0", up=False)
            await self.until_healthy(lambda pf: pf != 0)
            down_s, down = time.monotonic() - began, self.told()
            began = time.monotonic()
            await self.qmp.ask("set_link", name="pf0", up=True)
            await self.until_healthy(lambda _pf: True)
            up_s = time.monotonic() - began
            rounds.append({"down_s": down_s, "up_s": up_s, "down": down, "updates": self.updates_since(mark)})
        return rounds

    async def removed(self) -> Json:
        """The VFs of a PF go under the agent, while a pod has one of them, and come back."""
        resource = self.resources()[1]
        pod = PodSpec.single("victim", {resource: 1})
        admission = await self.kubelet.admit(pod)
        before = self.told()
        began = time.monotonic()
        write(DEVICES / PFS[1] / "sriov_numvfs", "0")
        await self.until_healthy(lambda pf: pf != 1)
        gone_s, gone, seen = time.monotonic() - began, self.told(), await scan()
        health = self.kubelet.resource_health(pod)
        began = time.monotonic()
        write(DEVICES / PFS[1] / "sriov_numvfs", str(PLAN["vfs"][1]))
        await self.until_healthy(lambda _pf: True)
        back_s = time.monotonic() - began
        self.kubelet.remove(pod)
        return {
            "phase": admission.phase,
            "before": before,
            "gone": gone,
            "gone_s": gone_s,
            "scan": seen,
            "health": health,
            "back": self.told(),
            "back_s": back_s,
            "panics": [str(panic) for panic in self.kubelet.panics],
        }

    async def unbound(self) -> Json:
        """The driver leaves a PF, which takes its VFs along, and returns without them."""
        pf = PFS[2]
        before = self.told()
        began = time.monotonic()
        write(PCI / "drivers" / PLAN["pf_driver"] / "unbind", pf)
        await self.until_healthy(lambda one: one != 2)
        gone_s, gone = time.monotonic() - began, self.told()
        reasons = (await functions())[pf]["health"]
        write(PCI / "drivers" / PLAN["pf_driver"] / "bind", pf)
        bound = (await functions())[pf]
        rebound = self.told()
        await self.up(pf)
        applied = await agent_json("vfs", "apply", "--json", "--config", str(CONFIG))
        began = time.monotonic()
        await self.until_healthy(lambda _pf: True)
        return {
            "before": before,
            "gone": gone,
            "gone_s": gone_s,
            "reasons": reasons,
            "bound": bound,
            "rebound": rebound,
            "applied": applied,
            "back": self.told(),
            "back_s": time.monotonic() - began,
        }

    async def metrics(self) -> Json:
        return {"metrics": await http("/metrics"), "ready": await http("/readyz"), "told": self.told()}

    async def restart(self) -> Json:
        """The agent ends by SIGTERM while a pod holds a VF, and starts again."""
        assert self.agent is not None
        resource = self.resources()[0]
        pod = PodSpec.single("holder", {resource: 1})
        await self.kubelet.admit(pod)
        held = self.kubelet.held(pod)["main"][resource]
        began = time.monotonic()
        self.agent.terminate()
        code = await self.agent.wait()
        stopped_s = time.monotonic() - began
        mark = len(self.kubelet.registrations)
        began = time.monotonic()
        await self.start_agent()
        await self.kubelet.until(
            lambda: len(self.kubelet.registrations) >= mark + len(PFS)
            and self.kubelet.allocatable() == self.kubelet.capacity(),
            PATIENCE_S,
        )
        return {
            "code": code,
            "stopped_s": stopped_s,
            "again_s": time.monotonic() - began,
            "held": sorted(held),
            "still": sorted(self.kubelet.held(pod)["main"][resource]),
            "told": self.told(),
            "registrations": [one.error for one in self.kubelet.registrations[mark:]],
        }

    async def stop(self) -> Json:
        assert self.agent is not None
        self.agent.terminate()
        code = await self.agent.wait()
        await self.kubelet.stop()
        return {"code": code}

    # --- what the steps are made of -----------------------------------------------------------------------

    async def up(self, pf: str) -> None:
        await sh("ip", "link", "set", netdev_of(pf), "up")

    async def start_agent(self) -> None:
        self.agent = await asyncio.create_subprocess_exec(
            *AGENT, "run", "--config", str(CONFIG), env=ENVIRONMENT, stderr=open(OUT / "agent.log", "ab")
        )

    def resources(self) -> list[str]:
        return [f"{PREFIX}/nic{rail}" for rail in range(len(PFS))]

    def told(self) -> Json:
        """What the kubelet has been told: resource, device, health and NUMA nodes."""
        return {
            resource: {
                name: {"health": seen.health, "numa": list(seen.numa_nodes)}
                for name, seen in sorted(self.kubelet.devices(resource).items())
            }
            for resource in self.resources()
        }

    def updates_since(self, mark: int) -> Json:
        return [
            {"resource": one.resource, "healthy": one.healthy, "unhealthy": one.unhealthy, "repeated": one.repeated}
            for one in self.kubelet.updates[mark:]
        ]

    async def until_healthy(self, wanted: Callable[[int], bool]) -> None:
        """Until the kubelet has, of each PF, all VFs Healthy or all Unhealthy, as ``wanted`` says."""

        def so() -> bool:
            for rail, resource in enumerate(self.resources()):
                healths = [seen.health == "Healthy" for seen in self.kubelet.devices(resource).values()]
                if not healths or set(healths) != {wanted(rail)}:
                    return False
            return True

        await self.kubelet.until(so, PATIENCE_S)

    async def until_scan(self, holds: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(seen := await functions()):
                pass
        return seen

    async def apply_counts(self, rail: int, count: int) -> Json:
        """Ask for another number of VFs of one PF, in a file of its own: the agent's stays."""
        counts = list(PLAN["vfs"])
        counts[rail] = count
        other = Path("/tmp/other.yaml")
        other.write_text(config(counts))
        return await agent_json("vfs", "apply", "--json", "--config", str(other))


class Qmp:
    """QEMU's monitor, on a virtio serial port."""

    def __init__(self) -> None:
        port = next(p.parent.name for p in Path("/sys/class/virtio-ports").glob("*/name") if read(p) == "qmp")
        self._file = open(f"/dev/{port}", "r+b", buffering=0)
        self._text = b""
        self._line()
        self._ask("qmp_capabilities", {})

    async def ask(self, command: str, **arguments: Json) -> Json:
        return await asyncio.to_thread(self._ask, command, arguments)

    def _ask(self, command: str, arguments: Json) -> Json:
        self._file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._line()
            if "error" in answer:
                raise OSError(f"{command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]

    def _line(self) -> Json:
        while b"\n" not in self._text:
            self._text += self._file.read(65536)
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)


ENVIRONMENT = {**os.environ, "PYTHONPATH": ":".join(SITE), "NODE_NAME": "vm"}
AGENT = (sys.executable, "/share/agent/bin/nodeagent")


async def sh(*command: str) -> Json:
    """Run and wait; a program that fails raises, for the machine is then not what a step thinks it is."""
    result = await program(*command)
    if result["code"]:
        raise OSError(f"{' '.join(command)}: {result['code']}: {result['err']}")
    return result


async def program(*command: str) -> Json:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    out, err = await process.communicate()
    return {"code": process.returncode, "out": out.decode(), "err": err.decode()}


async def agent(*arguments: str) -> Json:
    return await program(*AGENT, *arguments)


async def agent_json(*arguments: str) -> Json:
    result = await agent(*arguments)
    answer = json.loads(result["out"]) if result["out"].startswith("{") else result["out"]
    return {"code": result["code"], "err": result["err"], "answer": answer}


async def scan() -> Json:
    result = await agent("scan", "--json", "--config", str(CONFIG))
    if result["code"]:
        raise OSError(result["err"])
    return json.loads(result["out"])


async def functions() -> Json:
    return {function["pci_address"]: function for function in (await scan())["functions"]}


async def http(path: str) -> Json:
    def get() -> Json:
        try:
            with urllib.request.urlopen(f"http://{LISTEN}{path}", timeout=10) as answer:
                return {"status": answer.status, "body": answer.read().decode()}
        except urllib.error.HTTPError as error:
            return {"status": error.code, "body": error.read().decode()}

    return await asyncio.to_thread(get)


def read(path: str | Path) -> str:
    return Path(path).read_text().strip()


def write(path: Path, text: str) -> None:
    path.write_text(text)


def integer(pf: str, name: str) -> int:
    return int(read(DEVICES / pf / name))


def virtual_functions(pf: str) -> list[str]:
    """As the kernel lists them, in their own order."""
    links = sorted((DEVICES / pf).glob("virtfn*"), key=lambda path: int(path.name[6:]))
    return [os.readlink(path).rpartition("/")[2] for path in links]


def netdev_of(function: str) -> str:
    return next((DEVICES / function / "net").iterdir()).name


def rebind(vf: str, driver: str) -> None:
    write(DEVICES / vf / "driver_override", driver)
    write(DEVICES / vf / "driver" / "unbind", vf)
    write(PCI / "drivers_probe", vf)
    write(DEVICES / vf / "driver_override", "\n")


def network_functions() -> list[str]:
    return sorted(path.name for path in DEVICES.iterdir() if re.match("0x02(00|07|80)", read(path / "class")))


def sysfs(name: str) -> Json:
    """One function, read with nothing of the agent's."""
    folder = DEVICES / name

    def link(of: str) -> str | None:
        return os.readlink(folder / of).rpartition("/")[2] if (folder / of).is_symlink() else None

    names = sorted(path.name for path in (folder / "net").iterdir()) if (folder / "net").exists() else []
    return {
        "vendor": read(folder / "vendor"),
        "device": read(folder / "device"),
        "numa_node": int(read(folder / "numa_node")),
        "driver": link("driver"),
        "physfn": link("physfn"),
        "iommu_group": link("iommu_group"),
        "net": names,
        "real": os.path.realpath(folder),
    }


async def main() -> None:
    guest = Guest()
    results: Json = {}
    for step in PLAN["steps"]:
        began = time.monotonic()
        try:
            results[step] = {"data": await getattr(guest, step)()}
        except Exception:  # noqa: BLE001 - it is written down and judged outside
            results[step] = {"error": traceback.format_exc(), "told": guest.told() if PFS else None}
        results[step]["seconds"] = time.monotonic() - began
        print(f"{step}: {results[step]['seconds']:.1f} s", results[step].get("error", ""), flush=True)
        (OUT / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main())
