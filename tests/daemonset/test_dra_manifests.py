"""The part of the manifests for claims: rights, policy, DeviceClasses, examples."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml

from nodeagent.cli import main
from nodeagent.cluster.slice_publisher import LeafGroupLabel, SlicePublisher
from nodeagent.dra import DRIVER
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.claim_allocator import AllocationError, PoolDevice, allocate, matches
from tests.cluster.test_slice_publisher import NODE as STAGE_NODE
from tests.cluster.test_slice_publisher import OWNER as STAGE_OWNER
from tests.cluster.test_slice_publisher import Stage
from tests.dra.test_published_pools import DOWN, Node, with_health
from tests.support.admission import NODE, UID, Request, refusals
from tests.support.findings import one_item
from tests.support.kind_machines import dgx
from tests.support.manifests import DAEMONSET, INSTALLATIONS, Manifest, built, files, of_kind, parsed
from tests.support.needs import need
from tests.support.waiting import until

pytestmark = pytest.mark.needs("kubectl")

AGENT = "system:serviceaccount:nodeagent:nodeagent"
EXAMPLES = DAEMONSET / "examples" / "dra"
MAPPED = re.compile(r"nvidia-dgx-h100/nic[0-7]")


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return built("components/dra")


# The policy

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "dgx-001", "uid": "6a1f", "controller": True}


def published(node: str = "dgx-001", driver: str = DRIVER, pool: str | None = None, **meta: Any) -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"00000-{driver}-{node}-gpu", "ownerReferences": [OWNER], **meta},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or f"{node}/gpu", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def write(obj: Manifest, operation: str = "CREATE", old: Manifest | None = None) -> Request:
    extra = {NODE: ["dgx-001"], UID: ["6a1f"]}
    name = obj["metadata"]["name"]
    return Request(operation, "resource.k8s.io:resourceslices", name, AGENT, extra, obj, old)


def removed(obj: Manifest) -> Request:
    return replace(write(obj, "DELETE", obj), object=None)


NAMELESS = published("", pool="/gpu")
del NAMELESS["metadata"]["ownerReferences"]
OF_ALL_NODES = published()
OF_ALL_NODES["spec"] = {**OF_ALL_NODES["spec"], "allNodes": True}
del OF_ALL_NODES["spec"]["nodeName"]
WRONG_SLICES = {
    "without a node in the token": replace(write(published()), extra={}),
    "an empty node": replace(write(NAMELESS), extra={NODE: [""]}),
    "for another node": write(published("dgx-002", pool="dgx-001/gpu")),
    "for all nodes": write(OF_ALL_NODES),
    "deleted on another node": removed(published("dgx-002", pool="dgx-001/gpu")),
    "taken from another node": write(published(), "UPDATE", published("dgx-002", pool="dgx-001/gpu")),
    "of another driver": write(published(driver="gpu.nvidia.com")),
    "of another driver, deleted": removed(published(driver="gpu.nvidia.com")),
    "in the pool of another node": write(published(pool="dgx-002/gpu")),
    "in the pool of a node with a longer name": write(published(pool="dgx-0012/gpu")),
    "with another owner": write(published(ownerReferences=[OWNER | {"name": "dgx-002"}])),
    "with an owner of another life": write(published(ownerReferences=[OWNER | {"uid": "0000"}])),
    "with a finalizer": write(published(finalizers=["x.io/stay"])),
    "with labels without end": write(published(labels={f"x.io/{n}": "" for n in range(17)})),
    "with a long annotation": write(published(annotations={"x": "a" * 1024})),
}


OTHERS_ENTRY = {"driver": "gpu.nvidia.com", "pool": "dgx-001", "device": "gpu-0"}
OWN_ENTRY = {"driver": DRIVER, "pool": "dgx-001/gpu", "device": "gpu-0", "conditions": []}
RESULTS = {"devices": {"results": [{"driver": DRIVER, "pool": "dgx-001/gpu", "device": "gpu-0"}]}}


def claim_written(*devices: Manifest, **status: Any) -> Request:
    """An agent writes the status of a claim that has an entry of its own and one of another driver."""
    before = {"allocation": RESULTS, "reservedFor": [{"uid": "1"}], "devices": [OTHERS_ENTRY, OWN_ENTRY]}
    claims = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "status": one,
        }
        for one in (before, before | {"devices": list(devices)} | status)
    ]
    resource, extra = "resource.k8s.io:resourceclaims/status", {NODE: ["dgx-001"], UID: ["6a1f"]}
    return Request("UPDATE", resource, "c", AGENT, extra, claims[1], claims[0], "default")


NEW_ENTRY = OWN_ENTRY | {"conditions": [{"type": "Ready"}]}
WRONG_CLAIMS = {
    "without a node in the token": replace(claim_written(OTHERS_ENTRY, NEW_ENTRY), extra={}),
    "an empty node": replace(
        claim_written(OTHERS_ENTRY, OWN_ENTRY, OWN_ENTRY | {"pool": "/gpu"}), extra={NODE: [""]}
    ),
    "another allocation": claim_written(OTHERS_ENTRY, OWN_ENTRY, allocation={"devices": {"results": []}}),
    "no allocation": claim_written(OTHERS_ENTRY, OWN_ENTRY, allocation=None),
    "another pod": claim_written(OTHERS_ENTRY, OWN_ENTRY, reservedFor=[{"uid": "2"}]),
    "another driver's entry": claim_written(OTHERS_ENTRY | {"data": {}}, OWN_ENTRY),
    "another driver's entry removed": claim_written(OWN_ENTRY),
    "the pool of another node": claim_written(OTHERS_ENTRY, OWN_ENTRY, OWN_ENTRY | {"pool": "dgx-0012/gpu"}),
}


@pytest.mark.needs("cel_expr_python")
@one_item("case", WRONG_CLAIMS)
def test_a_forged_status_of_a_claim_is_refused(case: str, manifests: list[Manifest]) -> None:
    assert refusals(manifests, WRONG_CLAIMS[case])


@pytest.mark.needs("cel_expr_python")
def test_an_agent_writes_the_status_of_its_devices_alone(manifests: list[Manifest]) -> None:
    for devices in ((OTHERS_ENTRY, NEW_ENTRY), (OTHERS_ENTRY, OWN_ENTRY), (OTHERS_ENTRY,)):
        assert refusals(manifests, claim_written(*devices)) == []
    fresh = claim_written(NEW_ENTRY)
    assert fresh.old is not None
    del fresh.old["status"]["devices"], fresh.old["status"]["reservedFor"]
    assert fresh.object is not None
    del fresh.object["status"]["reservedFor"]
    assert refusals(manifests, fresh) == []
    scheduler = replace(WRONG_CLAIMS["another allocation"], user="system:kube-scheduler", extra={})
    assert refusals(manifests, scheduler) == []


@pytest.mark.needs("cel_expr_python")
@one_item("case", WRONG_SLICES)
def test_a_forged_slice_is_refused(case: str, manifests: list[Manifest]) -> None:
    assert refusals(manifests, WRONG_SLICES[case])


@pytest.mark.needs("cel_expr_python")
def test_an_agent_writes_the_slices_of_its_node(manifests: list[Manifest]) -> None:
    for request in (write(published()), write(published(), "UPDATE", published()), removed(published())):
        assert refusals(manifests, request) == []
    kubelet = replace(removed(published("dgx-002")), user="system:node:dgx-002", extra={})
    assert refusals(manifests, kubelet) == []


# Rights


@asynccontextmanager
async def publishing(manifests: list[Manifest]) -> Any:
    """An API server with the shipped rights, and an agent at it."""
    server = await ApiServer(rbac=True).start()
    for one in manifests:
        try:
            server.put(one)
        except LookupError:
            continue
    try:
        async with publishing_to(server) as work:
            yield work
    finally:
        await server.stop()


@asynccontextmanager
async def publishing_to(server: ApiServer) -> Any:
    """An agent that publishes slices and reads its leaf group."""
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": STAGE_NODE, "uid": STAGE_OWNER.uid, "labels": {"topology.nodeagent.io/tier-1": "su1"},
    }})  # fmt: skip
    client = ApiClient(Access(server.url, token=server.token(AGENT)))
    stage = Stage(server)
    groups: list[str | None] = []
    publisher = SlicePublisher(
        client, STAGE_NODE, stage, owner=STAGE_OWNER, delivery=stage.delivery, gap_s=0.01
    )
    label = LeafGroupLabel(client, STAGE_NODE, groups.append)
    tasks = [asyncio.create_task(job()) for job in (publisher.run, label.run)]
    try:
        yield stage, groups
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def change_slices(stage: Stage) -> None:
    """Two slices are created, one changes, and the other one is deleted."""
    server = stage.server
    await server.until(lambda: len(server.objects("resourceslices")) == 2)
    stage.devices[f"{STAGE_NODE}/nic"] = []
    stage.stir()
    await server.until(lambda: not stage.spec("nic")["devices"])
    stage.devices.pop(f"{STAGE_NODE}/gpu")
    stage.stir()
    await server.until(lambda: len(server.objects("resourceslices")) == 1)


async def test_the_rights_are_enough_to_create_change_and_delete_slices(manifests: list[Manifest]) -> None:
    async with publishing(manifests) as (stage, groups):
        server = stage.server
        await change_slices(stage)
        await server.until(lambda: groups == ["su1"])
        assert not [seen for seen in server.requests if seen.status == 403]
        used = {(seen.group, seen.resource, seen.verb) for seen in server.requests}
        used |= (
            {("resource.k8s.io", "resourceslices", "watch")} if server.watching["resourceslices"] else set()
        )
    role = next(
        one for one in of_kind(manifests, "ClusterRole") if one["metadata"]["name"] == "nodeagent-dra"
    )
    granted = {
        (rule["apiGroups"][0], rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"]
    }
    # The driver reads a claim when the kubelet names it, and writes its status.
    claims = {("resourceclaims", "get"), ("resourceclaims/status", "patch")}
    claims |= {("resourceclaims/driver", "associated-node:patch")}
    assert granted - used == {("resource.k8s.io", *right) for right in claims}


@pytest.mark.parametrize("verb", ["list", "watch", "create"])
async def test_without_a_right_nothing_is_published_and_the_reason_is_named(
    verb: str, manifests: list[Manifest], caplog: pytest.LogCaptureFixture
) -> None:
    weaker = json.loads(json.dumps(manifests))
    for role in of_kind(weaker, "ClusterRole"):
        for rule in role["rules"]:
            if "resourceslices" in rule["resources"]:
                rule["verbs"].remove(verb)
    async with publishing(weaker) as (stage, _):
        await stage.server.until(
            lambda: any(seen.status == 403 and seen.verb == verb for seen in stage.server.requests)
        )
        await until(lambda: f"cannot {verb}" in caplog.text)


# DeviceClasses


def all_classes() -> list[Manifest]:
    """Every DeviceClass of the overlays, the chart and the examples."""
    found = [one for overlay in INSTALLATIONS for one in of_kind(built(overlay), "DeviceClass")]
    for path in files(DAEMONSET / "examples"):
        found += [one for one in parsed(path.read_text()) if one.get("kind") == "DeviceClass"]
    return found


def test_no_class_has_a_name_whose_amount_is_no_number_of_devices() -> None:
    """A class with the name of the GPU memory breaks the pods that ask for it in the whole cluster."""
    names = [one["spec"].get("extendedResourceName") for one in all_classes()]
    assert len(names) >= 10
    assert all(name is None or MAPPED.fullmatch(name) for name in names)
    shipped = [path for path in DAEMONSET.rglob("*") if path.suffix in (".yaml", ".tpl", ".txt", ".json")]
    assert len(shipped) > 50
    for path in shipped:
        for line in path.read_text().splitlines():
            if "extendedResourceName:" in line.partition("#")[0]:
                assert re.search(r"/nic[0-7]$", line.strip()), f"{path}: {line}"


def listed(facts: Any = None) -> list[PoolDevice]:
    node = Node(facts or dgx())
    return [
        PoolDevice(DRIVER, f"gpu-7/{pool}", device)
        for pool in ("gpu", "nic")
        for device in node.devices(pool)
    ]


def test_each_class_selects_its_devices(manifests: list[Manifest]) -> None:
    divided = {"name": "mig-x", "attributes": {"kind": {"string": "mig"}, "profile": {"string": "1g.10gb"}}}
    devices = [*listed(), *[PoolDevice(DRIVER, "gpu-7/mig", divided)] * 8]
    other = PoolDevice("gpu.nvidia.com", "x", {"name": "gpu-0", "attributes": {}})
    for one in of_kind(manifests, "DeviceClass"):
        (selector,) = one["spec"]["selectors"]
        chosen = [device for device in (*devices, other) if matches(selector["cel"]["expression"], device)]
        name = one["metadata"]["name"]
        kinds = {"gpu-share": ("gpu", None), "mig": ("mig", None)}
        kind, rail = kinds.get(name, ("nic", name[3:] or None))
        assert chosen
        assert {device.attribute(f"{DRIVER}/kind") for device in chosen} == {kind}
        assert len(chosen) == (8 if rail is None else 1)
        assert rail is None or chosen[0].attribute(f"{DRIVER}/rail") == int(rail)
        if rail is not None:
            assert one["spec"]["extendedResourceName"] == f"nvidia-dgx-h100/nic{rail}"


@pytest.mark.needs("cel_expr_python")
def test_the_stand_in_and_a_cel_library_evaluate_the_classes_alike(manifests: list[Manifest]) -> None:
    evaluate = _cel_evaluator()
    without_rail = {"name": "nic-x", "attributes": {"kind": {"string": "nic"}}}
    devices = [*listed(), PoolDevice(DRIVER, "p", without_rail), PoolDevice("x.io", "p", {"name": "a"})]
    for one in of_kind(manifests, "DeviceClass"):
        expression = one["spec"]["selectors"][0]["cel"]["expression"]
        for device in devices:
            assert evaluate(expression, device) == matches(expression, device)


def _cel_evaluator() -> Callable[[str, PoolDevice], bool]:
    need("cel_expr_python")
    from cel_expr_python import cel

    environment = cel.NewEnv(variables={"device": cel.Type.DYN})

    def evaluate(expression: str, device: PoolDevice) -> bool:
        domains: dict[str, dict[str, Any]] = {DRIVER: {}}
        for name, value in (device.body.get("attributes") or {}).items():
            domain, _, short = name.rpartition("/")
            domains.setdefault(domain or device.driver, {})[short] = next(iter(value.values()))
        facts = {"device": {"driver": device.driver, "attributes": domains}}
        return bool(environment.compile(expression).eval(data=facts).value())

    return evaluate


# Examples and the verb that prints them

PRINTED = sorted(path for path in files(EXAMPLES) if path.read_text().startswith("# nodeagent claim"))


def test_most_examples_are_printed_by_the_verb() -> None:
    assert [path.name for path in PRINTED] == [
        "any-pair.yaml",
        "near-pair.yaml",
        "pinned-pair.yaml",
        "shared-gpu.yaml",
    ]


@one_item("path", PRINTED, ids=lambda path: path.name)
def test_an_example_is_the_output_of_its_command(path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, rest = path.read_text().partition("\n")
    _, _, output = rest.partition("\n")
    assert main(shlex.split(first.removeprefix("# nodeagent "))) == 0
    assert capsys.readouterr().out == output


def claims_of(path: Any) -> list[Manifest]:
    return [
        {"metadata": {"name": one["metadata"]["name"]}, "spec": one["spec"]["spec"]}
        for one in of_kind(parsed(path.read_text()), "ResourceClaimTemplate")
    ]


MONITORING = EXAMPLES / "monitoring.yaml"


@one_item("path", [path for path in files(EXAMPLES) if path != MONITORING], ids=lambda path: path.name)
def test_the_claim_of_each_example_is_allocated_on_a_dgx(path: Any, manifests: list[Manifest]) -> None:
    slices = Node(dgx()).stored()
    classes = of_kind(manifests, "DeviceClass")
    roots = {device.key: device.attribute("resource.kubernetes.io/pcieRoot") for device in listed()}
    allocated: list[Manifest] = []
    for _ in range(8):
        (claim,) = claims_of(path)
        node, allocation = allocate(claim, slices, classes, allocated)
        assert node == "gpu-7"
        allocated.append({**claim, "status": {"allocation": allocation}})
        results = allocation["devices"]["results"]
        by_request = {result["request"]: result for result in results}
        assert by_request["gpu"]["consumedCapacity"] == {"memory": "40Gi"}
        if path.name in ("near-pair.yaml", "any-pair.yaml", "pinned-pair.yaml"):
            beside = by_request.get("near") or by_request["rail3"]
            keys = [(one["driver"], one["pool"], one["device"]) for one in (by_request["gpu"], beside)]
            assert roots[keys[0]] == roots[keys[1]]
        if path.name == "pinned-pair.yaml":
            break  # rail 3 has one GPU, which holds one share of 40 GiB
    if path.name in ("any-pair.yaml", "pinned-pair.yaml"):
        results = allocated[0]["status"]["allocation"]["devices"]["results"]
        assert len({one["device"] for one in results if one["pool"].endswith("/nic")}) == 8


@pytest.mark.parametrize("folder", ["grove", "lws"])
def test_the_pairs_of_prefill_and_decode_fill_a_dgx(folder: str, manifests: list[Manifest]) -> None:
    """Each of eight pods has a whole GPU and the NIC beside it; the ninth waits."""
    slices, classes = Node(dgx()).stored(), of_kind(manifests, "DeviceClass")
    roots = {device.key: device.attribute("resource.kubernetes.io/pcieRoot") for device in listed()}
    (claim,) = claims_of(EXAMPLES.parent / folder / "prefill-decode.yaml")
    allocated: list[Manifest] = []
    for _ in range(8):
        _, allocation = allocate(claim, slices, classes, allocated)
        allocated.append({**claim, "status": {"allocation": allocation}})
        gpu, near = allocation["devices"]["results"]
        assert len({roots[one["driver"], one["pool"], one["device"]] for one in (gpu, near)}) == 1
    with pytest.raises(AllocationError):
        allocate(claim, slices, classes, allocated)


def test_the_ninth_share_of_40_gib_does_not_fit(manifests: list[Manifest]) -> None:
    (claim,) = claims_of(EXAMPLES / "shared-gpu.yaml")
    slices, classes, allocated = Node(dgx()).stored(), of_kind(manifests, "DeviceClass"), []
    for _ in range(8):
        _, allocation = allocate(claim, slices, classes, allocated)
        allocated.append({**claim, "status": {"allocation": allocation}})
    with pytest.raises(AllocationError, match="0/1 nodes"):
        allocate(claim, slices, classes, allocated)


def test_a_monitoring_pod_gets_all_devices_of_a_full_node_and_takes_nothing(
    manifests: list[Manifest],
) -> None:
    """As Kubernetes 1.36 does it: without an amount of 0 the devices in use are left out silently."""
    slices, classes = Node(with_health(dgx(), DOWN, pfs=1)).stored(), of_kind(manifests, "DeviceClass")
    (whole,) = claims_of(EXAMPLES / "shared-gpu.yaml")
    del whole["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    allocated: list[Manifest] = []

    def give(claim: Manifest) -> list[Manifest]:
        _, allocation = allocate(claim, slices, classes, allocated)
        allocated.append({**claim, "status": {"allocation": allocation}})
        results: list[Manifest] = allocation["devices"]["results"]
        return results

    (claim,) = claims_of(MONITORING)
    for _ in range(7):
        give(whole)
    results = give(claim)
    assert [result["request"] for result in results] == ["gpus"] * 8 + ["nics"] * 8
    assert all(result["adminAccess"] for result in results)
    assert {str(amount) for result in results for amount in result["consumedCapacity"].values()} == {"0"}
    give(whole)
    with pytest.raises(AllocationError):
        give(whole)
    careless = json.loads(json.dumps(claim))
    del careless["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    with pytest.raises(AllocationError):
        give(careless)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --gpu-mem or --mig, --nics, or both"),
        (["--mig", "1g"], "is no profile"),
        (["--mig", "1g.10gb", "--near"], "--near needs"),
        (["--gpu-mem", "lots"], "is no amount of memory"),
        (["--gpu-mem", "40", "--near"], "--near needs"),
        (["--gpu-mem", "40", "--near-by", "numa-node"], "--near needs"),
        (["--nics", "9"], "must be 0 to 8"),
        (["--gpu-mem", "1", "--nics", "2", "--near-rail", "2"], "needs --nics 3"),
        (["--nics", "1", "--name", "A b"], "is no name"),
        (["--nics", "1", "--image", ""], "--image '' is no name of an image"),
        (["--nics", "1", "--image", "a: b"], "is no name of an image"),
        (["--nics", "1", "sleep", "600"], "needs --image"),
    ],
)
def test_a_wrong_request_is_refused_with_the_option(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claim", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["true", "null", "on", "y", "123", "1e3", "1e-3", "0x1f", "2001-01-01", "abc"]
)
def test_every_name_is_a_string_for_kubectl(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claim", "--gpu-mem", "4", "--name", name]) == 0
    text = capsys.readouterr().out
    template, pod = yaml.safe_load_all(text)
    assert template["metadata"]["name"] == pod["metadata"]["name"] == name
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == name
    assert f"name: {name}\n" not in text, "YAML libraries disagree about words such as y and 1e3"


@pytest.mark.parametrize(
    ("words", "image", "command"),
    [
        ([], "REGISTRY/training:1", None),
        (["--image", "busybox"], "busybox", None),
        (["--image", "123"], "123", None),
        (["--image", "registry:5000/a/b@sha256:01", "sleep", "600"], "registry:5000/a/b@sha256:01", ["sleep", "600"]),
        (["--image", "busybox", "--", "sh", "-c", "env; echo \"a: b\""], "busybox", ["sh", "-c", "env; echo \"a: b\""]),
    ],
    ids=["default", "image", "number", "command", "hyphen"],
)  # fmt: skip
def test_the_container_has_the_image_and_the_command_of_the_options(
    words: list[str], image: str, command: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claim", "--nics", "1", *words]) == 0
    _, pod = yaml.safe_load_all(capsys.readouterr().out)
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container.get("command")) == (image, command)


def test_a_gpu_and_a_vf_may_be_joined_by_their_numa_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claim", "--gpu-mem", "4", "--nics", "2", "--near-by", "numa-node"]) == 0
    template, _ = yaml.safe_load_all(capsys.readouterr().out)
    assert template["metadata"]["name"] == "gpu-4gi-2-nics-near-numa-node"
    assert template["spec"]["spec"]["devices"]["constraints"] == [
        {"requests": ["gpu", "near"], "matchAttribute": "resource.kubernetes.io/numaNode"},
        {"requests": ["near", "nic1"], "distinctAttribute": "nodeagent.io/rail"},
    ]


def test_vfs_alone_are_on_different_rails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claim", "--nics", "2"]) == 0
    template, _ = yaml.safe_load_all(capsys.readouterr().out)
    (constraint,) = template["spec"]["spec"]["devices"]["constraints"]
    assert constraint == {"requests": ["nic0", "nic1"], "distinctAttribute": "nodeagent.io/rail"}
    assert main(["claim", "--nics", "8"]) == 0
    template, _ = yaml.safe_load_all(capsys.readouterr().out)
    devices = template["spec"]["spec"]["devices"]
    assert "constraints" not in devices
    assert [one["exactly"]["deviceClassName"] for one in devices["requests"]] == [f"nic{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("name", "message"), [("pinned-pair.yaml", "0/1 nodes are available"), ("any-pair.yaml", "timed out")]
)
def test_a_failed_rail_costs_the_pinned_pair_little_and_any_pair_the_whole_search(
    name: str, message: str, manifests: list[Manifest]
) -> None:
    node = Node(with_health(dgx(), DOWN, pfs=1))
    (claim,) = claims_of(EXAMPLES / name)
    with pytest.raises(AllocationError, match=message):
        allocate(claim, node.stored(), of_kind(manifests, "DeviceClass"), [], steps_max=50_000)
