"""The stand-in API server has the shipped definition of NodeLinks, and refuses what the definition refuses.

The definition in the package is a copy of daemonset/base/cluster/nodelinks.yaml, because the image has no daemonset/.
``jsonschema`` checks single changes to a report independently.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.fabric.nodelinks import GPU_TROUBLES
from nodeagent.facts.model import LINK_STATES
from nodeagent_lab.sim import apiserver
from nodeagent_lab.sim.apiserver.schema import apply_schema
from tests.support import golden

SOURCE = Path(__file__).parents[2] / "daemonset" / "base" / "cluster" / "nodelinks.yaml"
COPY = Path(apiserver.__file__).with_name("nodelinks.json")
DEFINITION = yaml.safe_load(SOURCE.read_text())
SCHEMA = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

LINK = {
    "name": "nic0",
    "netdev": "enp24s0np0",
    "pciAddress": "0000:18:00.0",
    "mac": "b8:3f:d2:00:00:01",
    "linkType": "infiniband",
    "rdmaDevice": "mlx5_0",
    "fabric": "compute",
    "rail": 0,
    "speedMbps": 400000,
    "state": "healthy",
    "reasons": ["carrier_down"],
    "lastTransitionTime": "2026-11-21T12:00:00Z",
    "neighbor": {
        "chassisID": {"subtype": "mac", "value": "1c:34:da:00:00:01"},
        "portID": {"subtype": "ifname", "value": "swp1"},
        "systemName": "su01-leaf-r0",
        "managementAddresses": ["192.0.2.1"],
        "stale": False,
        "contested": True,
        "contenders": [
            {
                "chassisID": {"subtype": "mac", "value": "02:00:00:00:00:01"},
                "portID": {"subtype": "ifname", "value": "p0"},
                "systemName": "other",
                "managementAddresses": ["192.0.2.9"],
            }
        ],
    },
}
REPORT = {
    "nodeName": "dgx-001",
    "summary": {"links": "1/1", "switches": 1, "health": "healthy"},
    "nvlinkDomains": [
        {"clusterUUID": "9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa", "cliqueID": 4026, "gpus": [0, 1, 2]},
        {"gpus": [3]},
    ],
    "gpus": [
        {
            "index": 3,
            "pciAddress": "0000:5e:00.0",
            "state": "unhealthy",
            "reasons": ["xid_79"],
            "reasonDetails": ["XID 79: the GPU has fallen off the bus."],
            "since": "2026-11-21T12:00:00Z",
            "pods": ["ml/train-0"],
        }
    ],
    "links": [LINK],
}


@pytest.mark.golden("hack/lab/nodeagent_lab/sim/apiserver/nodelinks.json")
def test_the_copy_in_the_package_is_the_shipped_definition() -> None:
    golden.same(COPY, json.dumps(DEFINITION, indent=1) + "\n")


def enums(schema: dict[str, Any], path: str = "") -> dict[str, list[str]]:
    found = {path: schema["enum"]} if "enum" in schema else {}
    for name, inner in schema.get("properties", {}).items():
        found |= enums(inner, f"{path}.{name}")
    if "items" in schema:
        found |= enums(schema["items"], f"{path}[]")
    return found


def test_each_enum_of_the_definition_has_the_words_of_the_code() -> None:
    assert {path: set(words) for path, words in enums(SCHEMA).items()} == {
        ".summary.health": set(LINK_STATES),
        ".links[].state": set(LINK_STATES),
        ".gpus[].state": set(GPU_TROUBLES),
    }


PATHS = [
    ("nodeName",), ("summary", "links"), ("summary", "switches"), ("summary", "health"), ("links",),
    *(("links", 0, name) for name in LINK),
    ("gpus",), *(("gpus", 0, name) for name in REPORT["gpus"][0]),
    *(("links", 0, "neighbor", *rest) for rest in (
        ("chassisID",), ("chassisID", "subtype"), ("portID", "value"), ("systemName",), ("stale",),
        ("managementAddresses",),
    )),
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([*LINK_STATES, "fine", "", True, 0, -1, 1.5, "x" * 64, "x" * 256, "x" * 1025, [], {}]),
    st.sampled_from([["x"] * 65, ["x" * 64], [{}], [{"name": "a"}], [{"name": "a"}] * 1025]),
    st.integers(-(2**40), 2**40),
)


@given(st.sampled_from(PATHS), VALUES)
@example(("gpus", 0, "since"), "missing")
def test_it_refuses_what_an_independent_validator_refuses(path: tuple[str | int, ...], value: object) -> None:
    report: Any = deepcopy(REPORT)
    holder = report
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = deepcopy(value)
    independent = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(report))
    own = [error for error in apply_schema(SCHEMA, report) if not error[1].startswith("Duplicate")]
    if path[-1] in ("lastTransitionTime", "since") and isinstance(value, str):
        return  # jsonschema checks no formats by default
    assert bool(own) == bool(independent), (own, independent)


def test_unknown_fields_are_dropped() -> None:
    report: Any = deepcopy(REPORT)
    report["links"][0]["later"] = 1
    assert apply_schema(SCHEMA, report) == []
    assert report == REPORT
