"""Access to the guest without the agent: kernel, third-party tools, QEMU; and the command line of the agent.

Raises ``OSError`` if the machine is not in the state that a step expects.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

log = logging.getLogger("guest")

HERE = Path(__file__).parent
SITE = (str(HERE / "agent"), str(HERE / "deps"))
PLAN = json.loads((HERE / "plan.json").read_text())
OUT = Path("/out")
PCI = Path("/sys/bus/pci")
DEVICES = PCI / "devices"
CONFIG = Path("/etc/nodeagent.yaml")
LISTEN = "127.0.0.1:9808"
ENVIRONMENT = {**os.environ, "PYTHONPATH": ":".join(SITE), "NODE_NAME": "vm"}
AGENT = (sys.executable, str(HERE / "agent/bin/nodeagent"))

Json = Any


def find_pfs() -> list[str]:
    """Return the functions with SR-IOV in PCI order, read from the kernel without the agent."""
    return sorted(path.parent.name for path in DEVICES.glob("*/sriov_totalvfs"))


class Qmp:
    """The monitor of QEMU, on a virtio serial port."""

    def __init__(self) -> None:
        port = next(p.parent.name for p in Path("/sys/class/virtio-ports").glob("*/name") if read(p) == "qmp")
        self._file = Path(f"/dev/{port}").open("r+b", buffering=0)  # noqa: SIM115 - for life
        self._text = b""
        self._events: list[Json] = []
        self._line()
        self._ask("qmp_capabilities", {})

    async def ask(self, command: str, **arguments: Json) -> Json:
        return await asyncio.to_thread(self._ask, command, arguments)

    async def deleted(self, device: str) -> None:
        """Wait until QEMU has removed the device: `device_del` only asks the guest to let it go."""
        async with asyncio.timeout(60):
            while not any(
                event["event"] == "DEVICE_DELETED" and event["data"].get("device") == device
                for event in self._events
            ):
                await self.ask("query-status")  # events stand before its answer
                await asyncio.sleep(0.1)

    def _ask(self, command: str, arguments: Json) -> Json:
        self._file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._line()
            if "error" in answer:
                raise OSError(f"{command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]
            self._events.append(answer)

    def _line(self) -> Json:
        while b"\n" not in self._text:
            self._text += self._file.read(65536)
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)


async def sh(*command: str) -> Json:
    """Run a program and wait for its end. Raises ``OSError`` if it fails."""
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
    began = time.monotonic()
    result = await program(*AGENT, *arguments)
    log.info("  nodeagent %s: %.1f s", " ".join(arguments[:2]), time.monotonic() - began)
    return result


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
    return {function["pciAddress"]: function for function in (await scan())["functions"]}


async def links() -> Json:
    return json.loads((await sh("ip", "-j", "-d", "link"))["out"])


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


async def write(path: Path, text: str) -> float:
    """Return the seconds that the kernel took. The kubelet runs meanwhile."""
    began = time.monotonic()
    await asyncio.to_thread(path.write_text, text)
    return time.monotonic() - began


def integer(pf: str, name: str) -> int:
    return int(read(DEVICES / pf / name))


def virtual_functions(pf: str) -> list[str]:
    """Return them in the order of the kernel."""
    links = sorted((DEVICES / pf).glob("virtfn*"), key=lambda path: int(path.name[6:]))
    return [os.readlink(path).rpartition("/")[2] for path in links]


def netdev_of(function: str) -> str:
    return next((DEVICES / function / "net").iterdir()).name


async def rebind(vf: str, driver: str) -> None:
    await write(DEVICES / vf / "driver_override", driver)
    await write(DEVICES / vf / "driver" / "unbind", vf)
    await write(PCI / "drivers_probe", vf)
    await write(DEVICES / vf / "driver_override", "\n")


def network_functions() -> list[str]:
    return sorted(path.name for path in DEVICES.iterdir() if re.match("0x02(00|07|80)", read(path / "class")))


def sysfs(name: str) -> Json:
    """Read one function without code of the agent."""
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
