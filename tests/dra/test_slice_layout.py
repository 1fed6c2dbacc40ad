"""The slices of a pool: names, generations, and the writes between any two states."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.dra import DRIVER
from nodeagent.dra.slice_layout import (
    DEVICES_MAX,
    AnsweredDevices,
    SliceWrite,
    dropped_fields,
    slice_name,
    wanted_slices,
    writes,
)
from nodeagent_lab.sim.apiserver import resource_slices

Json = dict[str, Any]
NODE = "gpu-7"
NIC, GPU = f"{NODE}/nic", f"{NODE}/gpu"


def device(name: str, value: int = 0, **more: Any) -> Json:
    return {"name": name, "attributes": {"rail": {"int": value}}, **more}


def stored_of(write: SliceWrite, before: Json | None = None) -> Json:
    spec = {**(before or {"spec": {}})["spec"], **copy.deepcopy(write.spec)}
    return {"kind": "ResourceSlice", "metadata": {"name": write.name}, "spec": spec}


def execute(stored: dict[str, Json], planned: list[SliceWrite]) -> dict[str, Json]:
    """The slices after these writes, as the API server stores them. It refuses none."""
    after = dict(stored)
    for write in planned:
        assert (write.name in after) == (write.verb != "create")
        if write.verb == "delete":
            del after[write.name]
            continue
        obj = stored_of(write, after.get(write.name))
        resource_slices.prepare(obj, resource_slices.SINCE_1_36)
        assert list(resource_slices.errors(obj, after.get(write.name))) == []
        after[write.name] = obj
    return after


def read(stored: dict[str, Json], pool: str) -> list[str] | None:
    """The devices that the scheduler sees: those of the highest generation, if all its slices are there."""
    mine = [obj["spec"] for _, obj in sorted(stored.items()) if obj["spec"]["pool"]["name"] == pool]
    highest = max((spec["pool"]["generation"] for spec in mine), default=0)
    current = [spec for spec in mine if spec["pool"]["generation"] == highest]
    if not current or len(current) != current[0]["pool"]["resourceSliceCount"]:
        return None
    return [
        f"{one['name']}={one['attributes']['rail']['int']}" for spec in current for one in spec["devices"]
    ]


pools = st.dictionaries(
    st.sampled_from([NIC, GPU]),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 2)), unique_by=lambda pair: pair[0], max_size=140
    ).map(lambda pairs: [device(f"nic-{name}", value) for name, value in pairs]),
)


@given(pools, pools, st.randoms())
def test_the_scheduler_sees_exactly_the_wanted_devices_after_the_writes_and_then_nothing_is_written(
    first: dict[str, list[Json]], second: dict[str, list[Json]], chance: Any
) -> None:
    stored: dict[str, Json] = {}
    for wanted in (first, second):
        stored = execute(stored, list(writes(NODE, wanted_slices(NODE, wanted), stored)))
        for pool, devices in wanted.items():
            assert read(stored, pool) == [
                f"{one['name']}={one['attributes']['rail']['int']}" for one in devices
            ]
        assert {obj["spec"]["pool"]["name"] for obj in stored.values()} == set(wanted)
        assert list(writes(NODE, wanted_slices(NODE, wanted), stored)) == []
        for name in list(stored):  # the kubelet has deleted some
            if chance.random() < 0.5:
                del stored[name]


def test_a_change_within_one_slice_keeps_the_generation_and_a_change_of_two_raises_it_everywhere() -> None:
    devices = [device(f"nic-{n}") for n in range(2 * DEVICES_MAX)]
    stored = execute({}, list(writes(NODE, wanted_slices(NODE, {NIC: devices}), {})))
    assert [obj["spec"]["pool"]["generation"] for obj in stored.values()] == [1, 1]
    devices[0] = device("nic-0", 5)
    planned = list(writes(NODE, wanted_slices(NODE, {NIC: devices}), stored))
    assert [(write.verb, write.spec["pool"]["generation"]) for write in planned] == [("patch", 1)]
    devices[-1] = device("nic-last")
    planned = list(writes(NODE, wanted_slices(NODE, {NIC: devices}), stored))
    assert [(write.verb, write.spec["pool"]["generation"]) for write in planned] == [("patch", 2)] * 2


def test_a_wiped_pool_comes_back_with_its_generation() -> None:
    wanted = wanted_slices(NODE, {NIC: [device("nic-0")]})
    (write,) = writes(NODE, wanted, {}, generations={NIC: 7})
    assert (write.verb, write.spec["pool"]["generation"]) == ("create", 7)


def test_slices_of_a_pool_whose_facts_are_unknown_stay_and_those_of_a_pool_without_entry_go() -> None:
    stored = execute(
        {}, list(writes(NODE, wanted_slices(NODE, {NIC: [device("a")], GPU: [device("b")]}), {}))
    )
    assert list(writes(NODE, {}, stored, kept_pools=(NIC, GPU))) == []
    assert [(write.verb, write.pool) for write in writes(NODE, {}, stored, kept_pools=(NIC,))] == [
        ("delete", GPU)
    ]


def test_an_empty_pool_is_one_empty_slice() -> None:
    (write,) = writes(NODE, wanted_slices(NODE, {GPU: []}), {})
    assert write.spec["devices"] == []
    assert write.spec["driver"] == DRIVER


def test_quantities_in_the_form_of_the_server_and_times_of_taints_are_no_difference() -> None:
    taint = {"key": "nodeagent.io/unhealthy", "value": "carrier_down", "effect": "NoSchedule"}
    memory = {
        "value": "80896Mi",
        "requestPolicy": {
            "default": "80896Mi",
            "validRange": {"min": "0", "max": "80896Mi", "step": "1024Mi"},
        },
    }
    one = device("gpu-0", taints=[taint], capacity={"memory": memory}, allowMultipleAllocations=True)
    wanted = wanted_slices(NODE, {GPU: [one]})
    stored = execute({}, list(writes(NODE, wanted, {})))
    (obj,) = stored.values()
    assert obj["spec"]["devices"][0]["capacity"]["memory"]["value"] == "79Gi"
    assert "timeAdded" in obj["spec"]["devices"][0]["taints"][0]
    assert list(writes(NODE, wanted, stored)) == []
    obj["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    changed = {**one, "attributes": {"rail": {"int": 9}}}
    (write,) = writes(NODE, wanted_slices(NODE, {GPU: [changed]}), stored)
    assert write.spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    for part, kept in (({"value": "gpu_lost"}, True), ({"effect": "NoExecute"}, False)):
        (write,) = writes(NODE, wanted_slices(NODE, {GPU: [{**one, "taints": [taint | part]}]}), stored)
        assert ("timeAdded" in write.spec["devices"][0]["taints"][0]) is kept, "tolerations count from it"


def test_fields_that_the_server_drops_are_named_and_are_no_difference_afterwards() -> None:
    taint = {"key": "nodeagent.io/unhealthy", "value": "x", "effect": "NoSchedule"}
    devices = [device(f"nic-{n}", taints=[taint], allowMultipleAllocations=True) for n in range(100)]
    wanted = wanted_slices(NODE, {NIC: devices})
    stored, answered = {}, {}
    for write in writes(NODE, wanted, {}):
        obj = stored_of(write)
        resource_slices.prepare(obj, ())
        stored[write.name] = obj
        assert dropped_fields(write.spec, obj["spec"]) == {
            "devices.taints",
            "devices.allowMultipleAllocations",
        }
        answered[write.name] = AnsweredDevices(write.spec["devices"], obj["spec"]["devices"])
    assert list(writes(NODE, wanted, stored, answered=answered)) == []
    assert [write.verb for write in writes(NODE, wanted, stored)] == ["patch", "patch"]


def test_long_names_of_nodes_stay_distinct_and_valid() -> None:
    long = "n" * 245
    a, b = slice_name(f"{long}a", f"{long}a/gpu", 0), slice_name(f"{long}b", f"{long}b/gpu", 0)
    assert a != b
    assert max(len(a), len(b)) <= 253
