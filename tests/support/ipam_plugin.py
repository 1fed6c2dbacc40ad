"""An IPAM plugin of CNI that is as strict as those of the CNI project, for tests: a program of its own.

It gives the lowest free address of ``subnet``, and keeps what it gave in ``dataDir``, a file for each network. It
refuses what ``skel.go`` and host-local refuse: a missing variable, a second ADD for one container and interface, a
version that it does not know; and what the specification forbids the caller: a CHECK without ``prevResult``, a DEL with
another configuration than the ADD. Tests tell it in ``dataDir/faults`` how a command is to fail: ``error``, ``hang``,
``flood``, ``garbage``, ``late`` (an error after the address was given), ``latehang``.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any

VERSIONS = ("0.4.0", "1.0.0", "1.1.0")


def install(folder: Path, name: str = "stand-in", versions: tuple[str, ...] = VERSIONS) -> None:
    """Put the plugin into a folder of CNI plugins."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    call = (
        f"#!{sys.executable} -SE\nimport sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        f"import ipam_plugin\nipam_plugin.main({versions!r})\n"
    )
    path.write_text(call)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def given(data: Path) -> dict[tuple[str, str, str], list[str]]:
    """The addresses that are given: by network, container and interface."""
    return {
        (store.stem, *key.split(" ", 1)): value["addresses"]  # type: ignore[misc]
        for store in data.glob("*.network")
        for key, value in json.loads(store.read_text() or "{}").items()
    }


def calls(data: Path) -> list[list[str]]:
    """Command, container and interface of each call."""
    log = data / "calls"
    return [line.split(" ") for line in log.read_text().splitlines()] if log.exists() else []


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(versions: tuple[str, ...]) -> None:
    try:
        answer = _answer(os.environ.get("CNI_COMMAND", ""), versions)
    except _Refused as refused:
        print(json.dumps({"cniVersion": "1.0.0", "code": refused.code, "msg": str(refused)}))
        sys.exit(1)
    if answer is not None:
        print(json.dumps(answer))


def _answer(command: str, versions: tuple[str, ...]) -> dict[str, Any] | None:
    if command == "VERSION":
        return {"cniVersion": versions[-1], "supportedVersions": versions}
    if command not in ("ADD", "CHECK", "DEL", "GC"):
        raise _Refused(4, f"unknown CNI_COMMAND: {command}")
    needed = ["CNI_PATH"] if command == "GC" else ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"]
    needed += ["CNI_NETNS"] if command in ("ADD", "CHECK") else []
    if missing := [name for name in needed if not os.environ.get(name)]:
        raise _Refused(4, f"required env variables [{','.join(missing)}] missing")
    if set(os.environ) - {*needed, "CNI_NETNS", "CNI_COMMAND", "CNI_ARGS", "PATH", "LC_CTYPE"}:
        raise _Refused(4, f"unexpected variables: {sorted(os.environ)}")
    container, interface = os.environ.get("CNI_CONTAINERID", ""), os.environ.get("CNI_IFNAME", "")
    if command != "GC":
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", container):
            raise _Refused(4, "invalid characters in containerID")
        if not interface or len(interface) > 15 or re.search(r"[/:\s]", interface):
            raise _Refused(4, "interface name is invalid")
        arguments = dict(one.split("=") for one in os.environ["CNI_ARGS"].split(";"))
        if not arguments.get("K8S_POD_NAME") or not arguments.get("K8S_POD_NAMESPACE"):
            raise _Refused(7, "no pod in CNI_ARGS")
        if os.environ.get("CNI_NETNS") and not Path(os.environ["CNI_NETNS"]).exists():
            raise _Refused(999, f"no network namespace {os.environ['CNI_NETNS']}")
    config = json.load(sys.stdin)
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", config.get("name", "")) or not config.get("type"):
        raise _Refused(7, "missing network name")
    if config.get("cniVersion") not in versions:
        raise _Refused(1, "incompatible CNI versions")
    if command == "GC" and config["cniVersion"] != "1.1.0":
        raise _Refused(1, "config version does not allow GC")
    ipam = config["ipam"]
    data = Path(ipam["dataDir"])
    data.mkdir(parents=True, exist_ok=True)
    fault = json.loads(faults.read_text()).get(command, "") if (faults := data / "faults").exists() else ""
    with (data / "calls").open("a") as log:
        log.write(f"{command} {container} {interface}\n")
    _fail(fault)
    with (data / f"{config['name']}.network").open("a+") as store:
        fcntl.flock(store, fcntl.LOCK_EX)
        store.seek(0)
        held = json.loads(store.read() or "{}")
        answer = _do(command, config, held, f"{container} {interface}")
        store.seek(0)
        store.truncate()
        store.write(json.dumps(held))
    if fault.startswith("late"):
        _fail(fault.removeprefix("late") or "error")
    return answer


def _do(command: str, config: dict[str, Any], held: dict[str, Any], key: str) -> dict[str, Any] | None:
    ipam, previous = config["ipam"], config.pop("prevResult", None)
    valid = config.pop("cni.dev/valid-attachments", None)
    if command == "ADD":
        if key in held:
            raise _Refused(999, f"{key} has an address, duplicate allocation is not allowed")
        subnet = ipaddress.ip_network(ipam["subnet"])
        taken = {address for one in held.values() for address in one["addresses"]} | {ipam.get("gateway")}
        free = next((one for one in map(str, subnet.hosts()) if one not in taken), None)
        if free is None:
            raise _Refused(999, f"failed to allocate for range 0: no IP addresses available in {subnet}")
        held[key] = {"addresses": [free], "config": config}
        address = {"address": f"{free}/{subnet.prefixlen}"}
        if ipam.get("gateway"):
            address["gateway"] = ipam["gateway"]
        return {"cniVersion": config["cniVersion"], "ips": [address], "routes": ipam.get("routes", []), "dns": {}}
    if command == "CHECK":
        if previous is None:
            raise _Refused(7, "required prevResult missing")
        if key not in held:
            raise _Refused(999, f"failed to find address added by container {key}")
    elif command == "DEL":
        if key in held and held[key]["config"] != config:
            raise _Refused(7, f"the configuration is not that of the ADD: {config}")
        held.pop(key, None)
    else:
        if valid is None:
            raise _Refused(7, "no cni.dev/valid-attachments")
        kept = {f"{one['containerID']} {one['ifname']}" for one in valid}
        for lost in held.keys() - kept:
            del held[lost]
    return None


def _fail(fault: str) -> None:
    if fault == "error":
        raise _Refused(11, "try again\nlater")
    if fault == "hang":
        time.sleep(3600)
    if fault == "flood":
        sys.stdout.write("x" * 10_000_000)
        sys.stdout.flush()
    if fault == "garbage":
        print("no JSON")
        sys.exit(0)
    if fault == "silent":
        sys.exit(3)
