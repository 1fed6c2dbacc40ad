"""Server-side apply in the stand-in: the owners of all fields after any sequence of writes."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent_lab.sim.apiserver.fields import MISSING, at, leaves, read
from nodeagent_lab.sim.apiserver.patches import json_patched, merge_patched
from nodeagent_lab.sim.apiserver.resource_types import ApiKind
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError
from nodeagent_lab.sim.apiserver.store import Store
from nodeagent_lab.sim.apiserver.write_verbs import WriteOptions, WriteVerbs

KIND = ApiKind(
    "x.io", "v1", "things", "Thing", False, keyed={("spec", "items"): ("name",), ("spec", "set"): ()}
)

scalars = st.sampled_from([0, 1, "a", "b", True])
items = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("pqr")}, optional={"v": scalars, "w": scalars}),
    unique_by=lambda one: one["name"],
    min_size=1,
    max_size=3,
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "a": scalars,
        "b": scalars,
        "map": st.dictionaries(st.sampled_from("xy"), scalars, min_size=1, max_size=2),
        "list": st.lists(scalars, max_size=2),
        "items": items,
        "set": st.lists(st.sampled_from("stu"), unique=True, min_size=1, max_size=3),
    },
).filter(bool)
writes = st.lists(st.tuples(st.sampled_from(["one", "two"]), specs, st.booleans()), min_size=1, max_size=6)


def write(manager):
    return WriteOptions(KIND, None, "t", "", manager)


def config(spec):
    return {"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": deepcopy(spec)}


def said(obj, path):
    """The value at a path; for an item of a list, whether it exists."""
    return at(obj, path) is not MISSING if path[-1] == "." else at(obj, path)


def encoded(obj):
    import json

    return json.dumps(obj).encode()


@given(writes)
def test_after_an_apply_the_object_has_the_applied_fields_and_the_manager_owns_them(sequence):
    verbs = WriteVerbs(Store(), seed=1)
    for manager, spec, force in sequence:
        before = verbs.store.get("x.io", "things", "t")
        try:
            obj = verbs.apply(write(manager), encoded(config(spec)), force=force)
        except ApiRefusedError as error:
            assert error.code == 409  # noqa: PT017 - an apply may succeed as well
            assert not force
            assert verbs.store.get("x.io", "things", "t") == before, "a conflict changes nothing"
            continue
        mine = leaves(KIND, config(spec))
        for path in mine:
            assert said(obj, path) == said(config(spec), path)
        owners = {one.name: one.fields for one in read(obj)}
        assert owners.get(manager, set()) == mine
        for name, fields in owners.items():
            if name != manager:
                assert all(said(obj, path) == said(before, path) for path in fields), (
                    "what another owns is untouched"
                )
        version = verbs.store.version
        assert verbs.apply(write(manager), encoded(config(spec)), force=force) == obj
        assert verbs.store.version == version, "the same again is no write"


@given(specs, specs)
def test_a_field_of_one_manager_is_removed_when_it_no_longer_applies_it(first, second):
    verbs = WriteVerbs(Store(), seed=1)
    verbs.apply(write("one"), encoded(config(first)), force=True)
    obj = verbs.apply(write("one"), encoded(config(second)), force=True)
    assert leaves(KIND, obj) - leaves(KIND, config(second)) <= {("f:spec",)}


def test_an_update_becomes_the_owner_of_the_fields_that_it_changes():
    verbs = WriteVerbs(Store(), seed=1)
    verbs.apply(write("one"), encoded(config({"a": 1, "b": 1})), force=True)
    obj = verbs.patch(write("kubectl"), "application/merge-patch+json", b'{"spec": {"a": 2}}')
    owners = {(one.name, one.operation): one.fields for one in read(obj)}
    assert owners == {
        ("one", "Apply"): {("f:spec", "f:b")},
        ("kubectl", "Update"): {("f:spec", "f:a")},
    }
    with pytest.raises(ApiRefusedError, match=r'conflict with "kubectl": \.spec\.a'):
        verbs.apply(write("one"), encoded(config({"a": 1, "b": 1})), force=False)


json_values = st.recursive(
    st.none() | scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
)


@given(json_values, json_values)
def test_merge_patches_follow_rfc_7386(target, patch):
    """RFC 7396, section 2, written down a second time."""

    def rfc(target, patch):
        if not isinstance(patch, dict):
            return patch
        result = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = rfc(result.get(name), value)
        return result

    assert merge_patched(target, patch) == rfc(target, patch)


def test_json_patches():
    live = {"a": {"b": [1, 2]}, "c~/": 1}
    operations = [
        {"op": "test", "path": "/a/b/0", "value": 1},
        {"op": "add", "path": "/a/b/-", "value": 3},
        {"op": "remove", "path": "/a/b/0"},
        {"op": "replace", "path": "/c~0~1", "value": 2},
        {"op": "copy", "from": "/a/b", "path": "/d"},
        {"op": "move", "from": "/a/b/0", "path": "/e"},
    ]
    assert json_patched(live, operations) == {"a": {"b": [3]}, "c~/": 2, "d": [2, 3], "e": 2}
    assert live == {"a": {"b": [1, 2]}, "c~/": 1}
    with pytest.raises(ApiRefusedError, match="testing value /a/b/0 failed"):
        json_patched(live, [{"op": "test", "path": "/a/b/0", "value": 9}])
