"""Parts of a report that the API server refuses: removed by the path that the server names, and nothing else."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.refused_fields import leave_out, refused_fields
from nodeagent.kube.api_request import ApiRequest
from nodeagent.kube.failure import ApiError, RefusedField, error_of_answer
from nodeagent_lab.sim.apiserver.schema import apply_schema
from tests.lab.test_shipped_definition import LINK, REPORT, SCHEMA


def report() -> dict[str, Any]:
    one = deepcopy(REPORT)
    one["links"] = [deepcopy(LINK) | {"name": f"nic{n}"} for n in range(3)]
    return one


@pytest.mark.parametrize(
    ("field", "why", "name"),
    [
        ("links[1].state", "Unsupported value", "nic1.state"),
        ("links[1].neighbor.systemName", "Too long", "nic1.neighbor.systemName"),
        ("links[1].neighbor.chassisID.value", "Too long", "nic1.neighbor"),
        ("links[1].reasons[0]", "Too long", "nic1.reasons[0]"),
        ("links[1].name", "Too long", "nic1"),
        ("summary.links", "Too long", "summary.links"),
        ('links[name="nic1"].rail', "Invalid value", "nic1.rail"),
    ],
)
def test_the_named_part_is_removed_and_nothing_else(field: str, why: str, name: str) -> None:
    one = report()
    assert leave_out(one, [RefusedField(field, why)]) == [name]
    whole = json.dumps(report())
    link = len(json.dumps(report()["links"][1])) + len(", ")
    assert 0 < len(whole) - len(json.dumps(one)) <= link
    if name != "nic1":
        assert [link["name"] for link in one["links"]] == ["nic0", "nic1", "nic2"]


def test_a_field_that_the_definition_lacks_is_removed_from_every_link() -> None:
    one = report()
    names = leave_out(one, [RefusedField('links[name="nic1"].rail', "field not declared in schema")])
    assert sorted(names) == ["nic0.rail", "nic1.rail", "nic2.rail"]
    assert [link["name"] for link in one["links"]] == ["nic0", "nic1", "nic2"]
    assert not any("rail" in link for link in one["links"])


def test_several_links_are_removed_by_their_own_places() -> None:
    one = report()
    fields = [RefusedField(f"links[{n}].name", "Invalid value") for n in (0, 2)]
    assert sorted(leave_out(one, fields)) == ["nic0", "nic2"]
    assert [link["name"] for link in one["links"]] == ["nic1"]


def test_a_long_list_is_cut_and_an_unknown_state_becomes_an_older_one() -> None:
    one = report()
    one["links"][0]["state"] = "missing"
    fields = [
        RefusedField("links", "Too many: 3: must have at most 2 items"),
        RefusedField("links[0].state", "Unsupported value"),
    ]
    assert leave_out(one, fields) == ["links (of 3)", "nic0.state (missing)"]
    assert [(link["name"], link["state"]) for link in one["links"]] == [("nic0", "down"), ("nic1", "healthy")]


@pytest.mark.parametrize(
    "field", ["nodeName", "metadata.name", "", "<nil>", "links[9]", "links[", "]", "links[-1]"]
)
def test_a_part_that_cannot_be_left_out_changes_nothing(field: str) -> None:
    one = report()
    assert leave_out(one, [RefusedField(field, "no")]) == []
    assert one["nodeName"] == "dgx-001"


@given(st.lists(st.text(alphabet='links[]0123.name"=stateneighbor', max_size=30), max_size=5))
def test_no_path_of_a_server_raises(fields: list[str]) -> None:
    one = report()
    leave_out(one, [RefusedField(field, "Too many: must have at most 1 items") for field in fields])
    assert one["nodeName"] == "dgx-001"
    json.dumps(one)


def test_the_causes_of_a_status_are_read_and_garbage_is_none() -> None:
    request = ApiRequest("patch", "PATCH", "/x", "nodelinks", "nodeagent.io")

    def error(details: object) -> ApiError:
        body = json.dumps({"kind": "Status", "message": "no", "details": details}).encode()
        return error_of_answer(request, 422, {}, body)

    causes = [
        {"field": "links[0].state", "message": "Unsupported value", "reason": "x"},
        {"field": 3},
        7,
        None,
    ]
    assert refused_fields(error({"causes": causes})) == (RefusedField("links[0].state", "Unsupported value"),)
    for garbage in ({"causes": 7}, {"causes": {}}, {}, {"retryAfterSeconds": "x"}, {"retryAfterSeconds": -7}):
        assert error(garbage).causes == ()
        assert error(garbage).retry_after_s is None
    message = 'failed to create typed patch object: .links[name="nic0"].new: field not declared in schema'
    undeclared = error_of_answer(request, 500, {}, json.dumps({"message": message}).encode())
    assert [field.field for field in refused_fields(undeclared)] == ['links[name="nic0"].new']


def test_what_is_left_passes_the_definition() -> None:
    one = report()
    one["links"][1] |= {"state": "fine", "rail": -1, "netdev": "x" * 300, "reasons": ["x" * 64]}
    errors = apply_schema(SCHEMA, deepcopy(one))
    leave_out(one, [RefusedField(field, why) for field, why in errors])
    assert apply_schema(SCHEMA, one) == []
    assert len(one["links"]) == 3
