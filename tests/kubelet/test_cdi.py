"""CDI specs: their text, what a runtime would refuse, and the specs of vendors."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts import cdi
from nodeagent.facts.model import DeviceNode, Mount

UUID = "GPU-5d5ba0e2-d33d-2b2c-524d-9e3d8d2b8a77"


def node(path: str) -> DeviceNode:
    return DeviceNode(path, path)


def gpus() -> dict[str, object]:
    shared = cdi.ContainerEdits(
        env=cdi.GPU_ENV,
        device_nodes=(node("/dev/nvidiactl"), node("/dev/nvidia-uvm")),
        mounts=(
            Mount(
                "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                read_only=True,
            ),
        ),
    )
    return cdi.spec(cdi.GPU_KIND, {UUID: cdi.ContainerEdits(device_nodes=(node("/dev/nvidia0"),))}, shared)


def test_the_spec_of_one_gpu_has_this_text() -> None:
    assert cdi.spec_text(gpus()) == (
        """{
  "cdiVersion": "0.6.0",
  "containerEdits": {
    "deviceNodes": [
      {
        "path": "/dev/nvidiactl",
        "permissions": "rw"
      },
      {
        "path": "/dev/nvidia-uvm",
        "permissions": "rw"
      }
    ],
    "env": [
      "NVIDIA_VISIBLE_DEVICES=void"
    ],
    "mounts": [
      {
        "containerPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "hostPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
        "options": [
          "ro",
          "nosuid",
          "nodev",
          "bind"
        ]
      }
    ]
  },
  "devices": [
    {
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/nvidia0",
            "permissions": "rw"
          }
        ]
      },
      "name": "GPU-5d5ba0e2-d33d-2b2c-524d-9e3d8d2b8a77"
    }
  ],
  "kind": "nodeagent.io/gpu"
}
"""
    )


def test_a_vf_is_named_by_its_address_and_its_nodes_may_have_another_name_inside() -> None:
    edits = cdi.ContainerEdits(device_nodes=(DeviceNode("/dev/vfio/noiommu-3", "/dev/vfio/3", "rwm"),))
    document = cdi.spec(cdi.VF_KIND, {"0000:1a:00.3": edits}, cdi.ContainerEdits())
    assert document == {
        "cdiVersion": "0.6.0",
        "kind": "nodeagent.io/vf",
        "devices": [
            {
                "name": "0000:1a:00.3",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/vfio/3", "hostPath": "/dev/vfio/noiommu-3", "permissions": "rwm"}
                    ]
                },
            }
        ],
    }


def test_equal_devices_in_any_order_are_the_same_text() -> None:
    devices = {name: cdi.ContainerEdits(device_nodes=(node(f"/dev/{name}"),)) for name in ("b", "a", "c")}
    backwards = dict(reversed(devices.items()))
    assert cdi.spec_text(cdi.spec(cdi.GPU_KIND, devices)) == cdi.spec_text(cdi.spec(cdi.GPU_KIND, backwards))


FAULTS = {
    "the spec is not a mapping": lambda d: [],
    "cdiVersion is '0.3.0', not 0.6.0": lambda d: d | {"cdiVersion": "0.3.0"},
    "kind None is not <vendor>/<class>": lambda d: {k: v for k, v in d.items() if k != "kind"},
    "kind 'gpu' is not": lambda d: d | {"kind": "gpu"},
    "kind 'a/b/c' is not": lambda d: d | {"kind": "a/b/c"},
    "the vendor '0.io' is not a DNS name": lambda d: d | {"kind": "0.io/gpu"},
    "the vendor 'a..b' is not": lambda d: d | {"kind": "a..b/gpu"},
    "the vendor 'vendor.io-' is not": lambda d: d | {"kind": "vendor.io-/gpu"},
    "the class 'gpu-' is not": lambda d: d | {"kind": "v.io/gpu-"},
    "the class '' is not": lambda d: d | {"kind": "v.io/"},
    "the class 'c+' is not": lambda d: d | {"kind": "v.io/c+"},
    "at most 63": lambda d: d | {"kind": "v.io/" + "c" * 64},
    "devices is not a list": lambda d: d | {"devices": {}},
    "devices is empty": lambda d: d | {"devices": []},
    "devices[0] is not a mapping": lambda d: d | {"devices": [3]},
    "devices[0].name 'a=b'": lambda d: with_device(d, name="a=b"),
    "devices[0].name 'a:'": lambda d: with_device(d, name="a:"),
    "devices[0].name '.a'": lambda d: with_device(d, name=".a"),
    "devices[0].name 'a\\n'": lambda d: with_device(d, name="a\n"),
    "devices[0].name None": lambda d: with_device(d, name=None),
    "is defined twice": lambda d: d | {"devices": [*d["devices"], *d["devices"]]},
    "devices[0].containerEdits is empty": lambda d: with_device(d, containerEdits={"env": []}),
    "devices[0].containerEdits is not a mapping": lambda d: with_device(d, containerEdits=None),
    "containerEdits.netDevices is not of version": lambda d: d | {"containerEdits": {"netDevices": []}},
    "containerEdits.env[0] 'x' is not NAME=value": lambda d: d | {"containerEdits": {"env": ["x"]}},
    "containerEdits.env[0] '=x' is not": lambda d: d | {"containerEdits": {"env": ["=x"]}},
    "deviceNodes[0]: 'dev/x' is not an absolute": lambda d: with_node(d, path="dev/x"),
    "deviceNodes[0]: None is not an absolute": lambda d: with_node(d, path=None),
    "deviceNodes[0]: 'x' is not an absolute": lambda d: with_node(d, path="/dev/x", hostPath="x"),
    "deviceNodes[0].permissions 'rx' is not": lambda d: with_node(d, path="/dev/x", permissions="rx"),
    "mounts[0]: None is not an absolute": lambda d: d | {"containerEdits": {"mounts": [{"hostPath": "/a"}]}},
}


def with_device(document: dict[str, object], **changes: object) -> dict[str, object]:
    return document | {"devices": [document["devices"][0] | changes]}


def with_node(document: dict[str, object], **fields: object) -> dict[str, object]:
    return document | {"containerEdits": {"deviceNodes": [fields]}}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spec_that_a_runtime_would_refuse_is_refused_with_the_place(fault: str) -> None:
    document = gpus()
    cdi.validate(document)
    with pytest.raises(cdi.CdiError) as error:
        cdi.validate(FAULTS[fault](deepcopy(document)))
    assert fault in str(error.value)


def test_a_device_without_edits_cannot_be_in_a_spec() -> None:
    with pytest.raises(cdi.CdiError, match="a device without edits is invalid"):
        cdi.spec(cdi.VF_KIND, {"0000:1a:00.3": cdi.ContainerEdits()})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "cdiVersion", "devices", "name", "containerEdits", "env", "deviceNodes", "mounts"]
            ),
            inner | st.just("0.6.0") | st.just("nodeagent.io/gpu"),
            max_size=5,
        )
    ),
)


@given(json_values)
def test_any_document_is_valid_or_raises_cdi_error_and_can_be_searched(document: object) -> None:
    try:
        cdi.validate(document)
    except cdi.CdiError as error:
        assert str(error)  # noqa: PT017 - either outcome is right, a third one is not
    found = cdi.vendor_devices({"a.json": json.dumps(document), "b.yaml": document})
    assert all(isinstance(name, str) for names in found.values() for name in names)


def test_the_devices_of_a_vendor_are_found_in_json_and_in_parsed_yaml() -> None:
    nvidia = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": UUID}]}
    found = cdi.vendor_devices(
        {
            "nvidia.yaml": nvidia,
            "more.json": json.dumps(nvidia | {"devices": [{"name": "all"}, {}, 7, {"name": 3}]}),
            "ours.json": cdi.spec_text(gpus()),
            "nvidia.yaml.bak": nvidia | {"kind": "backup.com/gpu"},
            "half.json": '{"kind": "half.com/gpu", "devices": [{"name"',
            "deep.json": "[" * 100_000,
            "odd.json": '{"kind": "odd.com/gpu", "devices": 3}',
            "list.yaml": ["kind"],
        }
    )
    assert found == {"nvidia.com/gpu": {"0", UUID, "all"}, "nodeagent.io/gpu": {UUID}}
