"""The stand-in API server refuses the ResourceClaims and DeviceClasses that the real one refuses."""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import RESOURCE_CLAIMS, Resource
from nodeagent_lab.sim.apiserver import ApiServer

Json = dict[str, Any]
CLASSES: Resource[Json] = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, dict)
LONG = 10 * 1024


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = await ApiServer(seed=1).start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    client = ApiClient(Access(server.url, token=server.token()))
    yield client
    await client.close()


def request(name: str = "gpu", **more: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu-share", **more}}


def opaque(size: int, **more: Any) -> Json:
    """A configuration whose parameters have ``size`` bytes as JSON without spaces."""
    text = "x" * (size - len('{"a":""}'))
    return {"opaque": {"driver": "nodeagent.io", "parameters": {"a": text}}, **more}


def match(*requests: str, **more: Any) -> Json:
    return {"requests": list(requests), "matchAttribute": "resource.kubernetes.io/pcieRoot", **more}


def selector(size: int) -> Json:
    return {"cel": {"expression": "true" + " " * (size - 4)}}


def claim(*requests: Json, **devices: Any) -> Json:
    listed = list(requests or (request(),))
    return {"metadata": {"name": "pair"}, "spec": {"devices": {"requests": listed, **devices}}}


def result(request: str = "gpu", **more: Any) -> Json:
    place = {"driver": "nodeagent.io", "pool": "gpu-1/gpu", "device": "gpu-0"}
    return {"request": request, **place, "consumedCapacity": {"memory": "40Gi"}, **more}


def consumer(number: int = 0) -> Json:
    return {"resource": "pods", "name": f"pod-{number}", "uid": str(uuid.UUID(int=number))}


def allocated(*results: Json, pods: int = 1, **devices: Any) -> Json:
    return {
        "allocation": {"devices": {"results": list(results or (result(),)), **devices}},
        "reservedFor": [consumer(number) for number in range(pods)],
    }


async def create(client: ApiClient, obj: Json) -> Json:
    return await client.create(RESOURCE_CLAIMS, obj, namespace="default")


async def write_status(client: ApiClient, status: Json) -> Json:
    return await client.patch(
        RESOURCE_CLAIMS, "pair", {"status": status}, namespace="default", subresource="status"
    )


def fields(error: ApiError) -> list[tuple[str, str]]:
    return [(cause.field, cause.message) for cause in error.causes]


SUB = {"name": "pair", "firstAvailable": [{"name": f"s{n}", "deviceClassName": "nic"} for n in range(8)]}
FITTING: dict[str, Json] = {
    "32 requests": claim(*(request(f"r{n}") for n in range(32))),
    "32 constraints": claim(constraints=[match("gpu")] * 32),
    "32 configurations": claim(config=[opaque(100)] * 32),
    "10 KiB of parameters": claim(config=[opaque(LONG)]),
    "10 KiB of CEL": claim(request(selectors=[selector(LONG)])),
    "32 selectors": claim(request(selectors=[selector(9)] * 32)),
    "8 alternatives": claim(SUB, constraints=[match("pair/s7")]),
    "a name of 63 characters": claim(request("a" * 63)),
    "16 tolerations": claim(request(tolerations=[{"operator": "Exists"}] * 16)),
    "no request": {"metadata": {"name": "pair"}, "spec": {}},
}


@pytest.mark.parametrize("obj", FITTING.values(), ids=FITTING)
async def test_a_claim_at_the_limit_is_stored(client: ApiClient, obj: Json) -> None:
    await create(client, obj)


D = "spec.devices"
E = f"{D}.requests[0].exactly"
REFUSED: dict[str, tuple[Json, str, str]] = {
    "33 requests": (
        claim(*(request(f"r{n}") for n in range(33))),
        f"{D}.requests",
        "Too many: 33: must have at most 32 items",
    ),
    "33 constraints": (claim(constraints=[match("gpu")] * 33), f"{D}.constraints", "Too many: 33"),
    "33 configurations": (claim(config=[opaque(100)] * 33), f"{D}.config", "Too many: 33"),
    "parameters of 10 KiB and a byte": (
        claim(config=[opaque(LONG + 1)]),
        f"{D}.config[0].opaque.parameters",
        "Too long: may not be more than 10240 bytes",
    ),
    "parameters that are a list": (
        claim(config=[{"opaque": {"driver": "nodeagent.io", "parameters": []}}]),
        f"{D}.config[0].opaque.parameters",
        "must be a valid JSON object",
    ),
    "a configuration without a driver": (
        claim(config=[{"opaque": {"parameters": {}}}]),
        f"{D}.config[0].opaque.driver",
        "Required value",
    ),
    "CEL of 10 KiB and a byte": (
        claim(request(selectors=[selector(LONG + 1)])),
        f"{E}.selectors[0].cel.expression",
        "Too long: may not be more than 10240 bytes",
    ),
    "33 selectors": (claim(request(selectors=[selector(9)] * 33)), f"{E}.selectors", "Too many: 33"),
    "9 alternatives": (
        claim({**SUB, "firstAvailable": [*SUB["firstAvailable"], {"name": "x", "deviceClassName": "nic"}]}),
        f"{D}.requests[0].firstAvailable",
        "Too many: 9",
    ),
    "17 tolerations": (
        claim(request(tolerations=[{"operator": "Exists"}] * 17)),
        f"{E}.tolerations",
        "Too many: 17",
    ),
    "a toleration without key and operator": (
        claim(request(tolerations=[{}])),
        f"{E}.tolerations[0].operator",
        "must be Exists when `key` is empty",
    ),
    "a PCI address as name": (
        claim(request("0000:18:00.1")),
        f"{D}.requests[0].name",
        "must be a lower case RFC 1123 label",
    ),
    "a name of 64 characters": (claim(request("a" * 64)), f"{D}.requests[0].name", "RFC 1123 label"),
    "a class with a capital": (
        claim({"name": "gpu", "exactly": {"deviceClassName": "GPU"}}),
        f"{E}.deviceClassName",
        "must be a lower case RFC 1123 subdomain",
    ),
    "no class": (claim({"name": "gpu", "exactly": {}}), f"{E}.deviceClassName", "Required value"),
    "a request of neither form": (claim({"name": "gpu"}), f"{D}.requests[0]", "exactly one of"),
    "one name twice": (claim(request(), request()), f"{D}.requests[1]", 'Duplicate value: "gpu"'),
    "a count for all devices": (
        claim(request(allocationMode="All", count=2)),
        f"{E}.count",
        "must not be specified when allocationMode is 'All'",
    ),
    "a constraint of an unknown request": (
        claim(constraints=[match("gpu", "nic")]),
        f"{D}.constraints[0].requests[1]",
        "must be the name of a request in the claim",
    ),
    "a constraint without an attribute": (
        claim(constraints=[{"requests": ["gpu"]}]),
        f"{D}.constraints[0]",
        "Required value",
    ),
    "an attribute without a domain": (
        claim(constraints=[match("gpu", matchAttribute="pcieRoot")]),
        f"{D}.constraints[0]",
        "must include a domain",
    ),
    "an amount that is no quantity": (
        claim(request(capacity={"requests": {"memory": "forty"}})),
        f"{E}.capacity.requests[memory]",
        "must be a quantity",
    ),
}


@pytest.mark.parametrize(("obj", "field", "reason"), REFUSED.values(), ids=REFUSED)
async def test_a_claim_beyond_a_limit_is_refused_with_its_field(
    server: ApiServer, client: ApiClient, obj: Json, field: str, reason: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await create(client, copy.deepcopy(obj))
    assert caught.value.status == 422
    ((name, message),) = fields(caught.value)
    assert name == field
    assert reason in message
    assert not server.objects("resourceclaims")


async def test_the_server_sets_the_defaults_and_the_same_spec_again_is_no_change(client: ApiClient) -> None:
    obj = claim(request(capacity={"requests": {"memory": "40960Mi"}}))
    stored = await create(client, obj)
    (exactly,) = (it["exactly"] for it in stored["spec"]["devices"]["requests"])
    assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)
    assert exactly["capacity"]["requests"] == {"memory": "40Gi"}
    again = await client.apply(RESOURCE_CLAIMS, {**obj, "metadata": {"name": "pair", "namespace": "default"}})
    assert again["spec"] == stored["spec"]


async def test_the_spec_of_a_claim_never_changes(client: ApiClient) -> None:
    await create(client, claim())
    with pytest.raises(ApiError) as caught:
        await client.patch(
            RESOURCE_CLAIMS,
            "pair",
            {"spec": {"devices": {"requests": [request("nic")]}}},
            namespace="default",
        )
    assert fields(caught.value) == [("spec", "Invalid value: field is immutable")]


async def test_a_claim_is_allocated_by_its_status_alone(server: ApiServer, client: ApiClient) -> None:
    stored = await create(client, {**claim(), "status": allocated()})
    assert "status" not in stored
    await client.patch(RESOURCE_CLAIMS, "pair", {"status": allocated()}, namespace="default")
    assert "status" not in server.objects("resourceclaims")[0]
    stored = await write_status(client, allocated())
    assert stored["status"] == allocated()


@pytest.mark.parametrize(
    "status",
    [
        allocated(*[result()] * 32),
        allocated(pods=256),
        allocated(config=[opaque(LONG, source="FromClass")] * 64),
        allocated(result(shareID=str(uuid.UUID(int=1)))),
    ],
    ids=["32 results", "256 pods", "64 configurations", "a share"],
)
async def test_a_status_at_the_limit_is_stored(client: ApiClient, status: Json) -> None:
    await create(client, claim())
    assert (await write_status(client, status))["status"] == status


R = "status.allocation.devices"
BAD_STATUS: dict[str, tuple[Json, str, str]] = {
    "33 results": (
        allocated(*[result()] * 33),
        f"{R}.results",
        "Too many: 33: must have at most 32 items",
    ),
    "257 pods": (allocated(pods=257), "status.reservedFor", "Too many: 257: must have at most 256 items"),
    "65 configurations": (
        allocated(config=[opaque(9, source="FromClaim")] * 65),
        f"{R}.config",
        "Too many: 65",
    ),
    "parameters of 10 KiB and a byte": (
        allocated(config=[opaque(LONG + 1, source="FromClass")]),
        f"{R}.config[0].opaque.parameters",
        "Too long",
    ),
    "an unknown source": (
        allocated(config=[opaque(9, source="FromPod")]),
        f"{R}.config[0].source",
        "Unsupported value",
    ),
    "a result of an unknown request": (
        allocated(result("nic")),
        f"{R}.results[0].request",
        "must be the name of a request in the claim",
    ),
    "a PCI address as device": (
        allocated(result(device="0000:18:00.1")),
        f"{R}.results[0].device",
        "must be a lower case RFC 1123 label",
    ),
    "a pool with a capital": (allocated(result(pool="Node/gpu")), f"{R}.results[0].pool", "DNS subdomains"),
    "a share that is no UID": (allocated(result(shareID="1")), f"{R}.results[0].shareID", "RFC 4122"),
    "one pod twice": (
        {**allocated(), "reservedFor": [consumer(), consumer()]},
        "status.reservedFor[1]",
        "Duplicate value",
    ),
    "a pod without an allocation": (
        {"reservedFor": [consumer()]},
        "status.reservedFor",
        "may not be specified when `allocated` is not set",
    ),
}


@pytest.mark.parametrize(("status", "field", "reason"), BAD_STATUS.values(), ids=BAD_STATUS)
async def test_a_status_beyond_a_limit_is_refused_with_its_field(
    server: ApiServer, client: ApiClient, status: Json, field: str, reason: str
) -> None:
    await create(client, claim())
    with pytest.raises(ApiError) as caught:
        await write_status(client, status)
    ((name, message),) = fields(caught.value)
    assert name == field
    assert reason in message
    assert "status" not in server.objects("resourceclaims")[0]


async def test_an_allocation_can_be_removed_but_not_changed(client: ApiClient) -> None:
    await create(client, claim())
    await write_status(client, allocated())
    with pytest.raises(ApiError) as caught:
        await write_status(client, allocated(result(device="gpu-1")))
    assert fields(caught.value) == [("status.allocation", "Invalid value: field is immutable")]
    await write_status(client, {"allocation": None, "reservedFor": None})
    stored = await write_status(client, allocated(result(device="gpu-1")))
    assert stored["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-1"


async def test_a_claim_that_is_being_deleted_takes_no_more_pods(client: ApiClient) -> None:
    obj = claim()
    obj["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    await create(client, obj)
    await write_status(client, allocated(pods=2))
    await client.delete(RESOURCE_CLAIMS, "pair", namespace="default")
    with pytest.raises(ApiError, match="no entries may be added"):
        await write_status(client, allocated(pods=3))
    stored = await write_status(client, allocated(pods=1))
    assert len(stored["status"]["reservedFor"]) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"selectors": [selector(LONG + 1)]}, "Too long"),
        ({"selectors": [selector(9)] * 33}, "Too many"),
        ({"config": [opaque(LONG + 1)]}, "Too long"),
        ({"extendedResourceName": "nic0"}, "must be an extended resource name"),
    ],
)
async def test_a_class_has_the_same_limits(client: ApiClient, spec: Json, reason: str) -> None:
    with pytest.raises(ApiError, match=reason):
        await client.create(CLASSES, {"metadata": {"name": "gpu-share"}, "spec": spec})


async def test_a_server_of_1_35_drops_what_its_gates_turn_off() -> None:
    server = await ApiServer(minor=35).start()
    client = ApiClient(Access(server.url, token=server.token()))
    try:
        more = {"capacity": {"requests": {"memory": "40Gi"}}, "tolerations": [{"operator": "Exists"}]}
        stored = await create(client, claim(request(**more)))
        (exactly,) = (it["exactly"] for it in stored["spec"]["devices"]["requests"])
        assert not {"capacity", "tolerations"} & set(exactly)
    finally:
        await client.close()
        await server.stop()
