"""NICs as a whole on this kernel: PFs without VFs, and a function that the host of this machine gave it."""

from __future__ import annotations

import json
from pathlib import Path

from ground import DEVICES, LISTEN, Json, integer, sysfs, write

NAMESPACE = "whole"


def configuration(pf_driver: str, others: list[str]) -> str:
    """Return the configuration as JSON. ``others`` are the drivers of functions without SR-IOV."""
    of_pfs = {"drivers": [pf_driver]}
    entries: list[Json] = [
        {"kind": "vf", "name": "nic{rail}", "select": of_pfs},
        {"kind": "nic", "name": "whole{rail}", "select": of_pfs},
    ]
    if others:
        entries.append({"kind": "nic", "name": "guest", "select": {"drivers": others}})
    rules = [{"rule": "carrier_down", "clearForSeconds": 0}]
    return json.dumps(
        {
            "apiVersion": "nodeagent.io/v1alpha1",
            "kind": "NodeAgentConfig",
            "resources": entries,
            "gpu": {"driver": "none"},
            "health": {"rules": rules, "stateDirectory": "/tmp/whole"},
            "scanSeconds": 1,
            "listen": LISTEN,
        }
    )


def without_sriov(names: list[str]) -> dict[str, Json]:
    """The functions that a guest got whole: neither able to have VFs, nor a VF that shows its PF."""
    return {
        name: facts
        for name in names
        if not (DEVICES / name / "sriov_totalvfs").exists()
        and (facts := sysfs(name))["physfn"] is None
        and facts["driver"] is not None
    }


async def divide(pf: str, count: int) -> None:
    if integer(pf, "sriov_numvfs") != count:
        await write(DEVICES / pf / "sriov_numvfs", "0")
        if count:
            await write(DEVICES / pf / "sriov_numvfs", str(count))


def information() -> dict[str, str]:
    folder = Path("/var/run/k8s.cni.cncf.io/devinfo/dp")
    return {path.name: path.read_text() for path in folder.iterdir() if "whole" in path.name}
