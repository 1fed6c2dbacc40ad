"""An IPAM plugin of CNI for tests, as a program of its own that imports little: ``ipam_plugin.py`` installs it.

It refuses what ``skel.go`` and host-local refuse, and what the specification forbids the caller.
"""

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

_KNOWN = (
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_IFNAME",
    "CNI_NETNS",
    "CNI_ARGS",
    "CNI_PATH",
    "PATH",
    "LC_CTYPE",
)
Held = dict[str, dict[str, Any]]
"""The addresses of a network, with the configuration of the ADD, by container and interface."""


class Refused(Exception):  # noqa: N818 - it is an answer
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(versions: tuple[str, ...]) -> None:
    try:
        answer = _answer(os.environ.get("CNI_COMMAND", ""), versions)
    except Refused as refused:
        sys.stdout.write(json.dumps({"cniVersion": "1.0.0", "code": refused.code, "msg": str(refused)}))
        sys.exit(1)
    if answer is not None:
        sys.stdout.write(json.dumps(answer))


def _answer(command: str, versions: tuple[str, ...]) -> dict[str, Any] | None:
    if command == "VERSION":
        return {"cniVersion": versions[-1], "supportedVersions": versions}
    if unexpected := set(os.environ) - set(_KNOWN):
        raise Refused(4, f"unexpected variables: {sorted(unexpected)}")
    config = json.load(sys.stdin)
    refuse(command, os.environ, config, versions)
    data = config["ipam"]["dataDir"]
    fault = ""
    if os.access(f"{data}/faults", os.R_OK):
        with open(f"{data}/faults") as told:
            fault = json.load(told).get(command, "")
    container, interface = os.environ.get("CNI_CONTAINERID", ""), os.environ.get("CNI_IFNAME", "")
    with open(f"{data}/calls", "a") as log:
        log.write(f"{command} {container} {interface}\n")
    _fail(fault)
    with open(f"{data}/{config['name']}.network", "a+") as store:
        fcntl.flock(store, fcntl.LOCK_EX)
        store.seek(0)
        held = json.loads(store.read() or "{}")
        answer = do(command, config, held, f"{container} {interface}")
        store.seek(0)
        store.truncate()
        store.write(json.dumps(held))
    if fault.startswith("late"):
        _fail(fault.removeprefix("late") or "error")
    return answer


def refuse(command: str, given: Any, config: dict[str, Any], versions: tuple[str, ...]) -> None:
    """Raise ``Refused`` for variables and a configuration that are not those of the specification."""
    if command not in ("ADD", "CHECK", "DEL"):
        raise Refused(4, f"unknown CNI_COMMAND: {command}")
    needed = ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"]
    needed += ["CNI_NETNS"] if command in ("ADD", "CHECK") else []
    if missing := [name for name in needed if not given.get(name)]:
        raise Refused(4, f"required env variables [{','.join(missing)}] missing")
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", given["CNI_CONTAINERID"]):
        raise Refused(4, "invalid characters in containerID")
    if len(given["CNI_IFNAME"]) > 15 or re.search(r"[/:\s]", given["CNI_IFNAME"]):
        raise Refused(4, "interface name is invalid")
    arguments = dict(one.split("=") for one in given["CNI_ARGS"].split(";"))
    if not arguments.get("K8S_POD_NAME") or not arguments.get("K8S_POD_NAMESPACE"):
        raise Refused(7, "no pod in CNI_ARGS")
    if given.get("CNI_NETNS") and not os.access(given["CNI_NETNS"], os.F_OK):
        raise Refused(999, f"no network namespace {given['CNI_NETNS']}")
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", config.get("name", "")) or not config.get("type"):
        raise Refused(7, "missing network name")
    if config.get("cniVersion") not in versions:
        raise Refused(1, "incompatible CNI versions")


def do(command: str, config: dict[str, Any], held: Held, key: str) -> dict[str, Any] | None:
    """Carry out a command on the addresses of a network, for ``CONTAINER INTERFACE``. Raises ``Refused``."""
    ipam, previous = config["ipam"], config.pop("prevResult", None)
    if command == "ADD":
        if key in held:
            raise Refused(999, f"{key} has an address, duplicate allocation is not allowed")
        taken = {address for one in held.values() for address in one["addresses"]} | {ipam.get("gateway")}
        free = next((one for one in _hosts(ipam["subnet"]) if one not in taken), None)
        if free is None:
            raise Refused(
                999, f"failed to allocate for range 0: no IP addresses available in {ipam['subnet']}"
            )
        held[key] = {"addresses": [free], "config": config}
        address = {"address": f"{free}/{ipam['subnet'].partition('/')[2]}"}
        if ipam.get("gateway"):
            address["gateway"] = ipam["gateway"]
        routes = ipam.get("routes", [])
        return {"cniVersion": config["cniVersion"], "ips": [address], "routes": routes, "dns": {}}
    if command == "CHECK":
        if previous is None:
            raise Refused(7, "required prevResult missing")
        if key not in held:
            raise Refused(999, f"failed to find address added by container {key}")
    elif command == "DEL":
        if key in held and held[key]["config"] != config:
            raise Refused(7, f"the configuration is not that of the ADD: {config}")
        held.pop(key, None)
    return None


def _hosts(subnet: str) -> Iterator[str]:
    """The addresses of a subnet without its first and last one."""
    text, _, bits = subnet.partition("/")
    first = int.from_bytes(bytes(map(int, text.split("."))), "big")
    for number in range(first + 1, first + (1 << 32 - int(bits)) - 1):
        yield ".".join(map(str, number.to_bytes(4, "big")))


def _fail(fault: str) -> None:
    if fault == "error":
        raise Refused(11, "try again\nlater")
    if fault == "hang":
        time.sleep(3600)
    if fault == "flood":
        sys.stdout.write("x" * 10_000_000)
        sys.stdout.flush()
    if fault == "garbage":
        sys.stdout.write("no JSON")
        sys.exit(0)
    if fault == "silent":
        sys.exit(3)
