"""The wire contracts: what is committed is what protos/ generate, and the numbers are the kubelet's."""

# ruff: noqa: E501  (a message of the table is one line, to be compared at a glance)

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor

from nodeagent.features.nvsentinel import health_event_pb2
from nodeagent.kube import (
    deviceplugin_pb2,
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    pluginregistration_pb2,
    podresources_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
DRA = {"dra_v1": dra_v1_pb2}
DRA_HEALTH = {"dra_health_v1alpha1": dra_health_v1alpha1_pb2, "dra_health_v1": dra_health_v1_pb2}
PROTOS = ("deviceplugin", "pluginregistration", "podresources", *DRA, *DRA_HEALTH, "health_event")
PACKAGE = dict.fromkeys(PROTOS, "nodeagent/kube") | {
    "health_event": "nodeagent/features/nvsentinel",
}
MODULES = {
    "deviceplugin": deviceplugin_pb2,
    "pluginregistration": pluginregistration_pb2,
    "podresources": podresources_pb2,
    "health_event": health_event_pb2,
    **DRA,
    **DRA_HEALTH,
}

_DRA_FIELDS = """
        NodePrepareResourcesRequest: claims r Claim 1
        NodePrepareResourcesResponse: claims map<string,NodePrepareResourceResponse> 1
        NodePrepareResourceResponse: devices r Device 1; error string 2
        Device: request_names r string 1; pool_name string 2; device_name string 3; cdi_device_ids r string 4; share_id optional string 5
        NodeUnprepareResourcesRequest: claims r Claim 1
        NodeUnprepareResourcesResponse: claims map<string,NodeUnprepareResourceResponse> 1
        NodeUnprepareResourceResponse: error string 1
        Claim: namespace string 1; uid string 2; name string 3
    """
_HEALTH_FIELDS = """
        NodeWatchResourcesRequest:
        NodeWatchResourcesResponse: devices r DeviceHealth 1
        DeviceHealth: device DeviceIdentifier 1; health HealthStatus 2; last_updated_time int64 3; health_check_timeout_seconds int64 4; message string 5
        DeviceIdentifier: pool_name string 1; device_name string 2
    """

# Transcribed from the kubelet's API and NVIDIA/NVSentinel, not from our protos: "name type number", r = repeated.
FIELDS = {
    "health_event": """
        HealthEvents: version uint32 1; events r HealthEvent 2
        Entity: entityType string 1; entityValue string 2
        HealthEvent: version uint32 1; agent string 2; componentClass string 3; checkName string 4; isFatal bool 5; isHealthy bool 6; message string 7; recommendedAction RecommendedAction 8; errorCode r string 9; entitiesImpacted r Entity 10; generatedTimestamp Timestamp 12; nodeName string 13; processingStrategy ProcessingStrategy 16
    """,
    "deviceplugin": """
        DevicePluginOptions: pre_start_required bool 1; get_preferred_allocation_available bool 2
        RegisterRequest: version string 1; endpoint string 2; resource_name string 3; options DevicePluginOptions 4
        ListAndWatchResponse: devices r Device 1
        Device: ID string 1; health string 2; topology TopologyInfo 3
        TopologyInfo: nodes r NUMANode 1
        NUMANode: ID int64 1
        PreStartContainerRequest: devices_ids r string 1
        PreStartContainerResponse:
        PreferredAllocationRequest: container_requests r ContainerPreferredAllocationRequest 1
        ContainerPreferredAllocationRequest: available_deviceIDs r string 1; must_include_deviceIDs r string 2; allocation_size int32 3
        PreferredAllocationResponse: container_responses r ContainerPreferredAllocationResponse 1
        ContainerPreferredAllocationResponse: deviceIDs r string 1
        AllocateRequest: container_requests r ContainerAllocateRequest 1
        ContainerAllocateRequest: devices_ids r string 1
        AllocateResponse: container_responses r ContainerAllocateResponse 1
        ContainerAllocateResponse: envs map<string,string> 1; mounts r Mount 2; devices r DeviceSpec 3; annotations map<string,string> 4; cdi_devices r CDIDevice 5
        Mount: container_path string 1; host_path string 2; read_only bool 3
        DeviceSpec: container_path string 1; host_path string 2; permissions string 3
        CDIDevice: name string 1
        Empty:
    """,
    "pluginregistration": """
        InfoRequest:
        PluginInfo: type string 1; name string 2; endpoint string 3; supported_versions r string 4
        RegistrationStatus: plugin_registered bool 1; error string 2
        RegistrationStatusResponse:
    """,
    "podresources": """
        ListPodResourcesRequest:
        ListPodResourcesResponse: pod_resources r PodResources 1
        AllocatableResourcesRequest:
        AllocatableResourcesResponse: devices r ContainerDevices 1; cpu_ids r int64 2; memory r ContainerMemory 3
        GetPodResourcesRequest: pod_name string 1; pod_namespace string 2
        GetPodResourcesResponse: pod_resources PodResources 1
        PodResources: name string 1; namespace string 2; containers r ContainerResources 3; cpu_ids r int64 4; memory r ContainerMemory 5
        ContainerResources: name string 1; devices r ContainerDevices 2; cpu_ids r int64 3; memory r ContainerMemory 4; dynamic_resources r DynamicResource 5
        ContainerDevices: resource_name string 1; device_ids r string 2; topology TopologyInfo 3
        ContainerMemory: memory_type string 1; size uint64 2; topology TopologyInfo 3
        DynamicResource: claim_name string 2; claim_namespace string 3; claim_resources r ClaimResource 4
        ClaimResource: cdi_devices r CDIDevice 1; driver_name string 2; pool_name string 3; device_name string 4; share_id optional string 5
        TopologyInfo: nodes r NUMANode 1
        NUMANode: ID int64 1
        CDIDevice: name string 1
    """,
    "dra_v1": _DRA_FIELDS,
    **dict.fromkeys(DRA_HEALTH, _HEALTH_FIELDS),
}
METHODS = {
    "dra_v1": {
        f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{verb}Resources": (
            f"Node{verb}ResourcesRequest",
            f"Node{verb}ResourcesResponse",
        )
        for verb in ("Prepare", "Unprepare")
    },
    **{
        f"dra_health_{version}": {
            f"/{version}.DRAResourceHealth/NodeWatchResources": (
                "NodeWatchResourcesRequest",
                "stream NodeWatchResourcesResponse",
            )
        }
        for version in ("v1", "v1alpha1")
    },
    "deviceplugin": {
        "/v1beta1.Registration/Register": ("RegisterRequest", "Empty"),
        "/v1beta1.DevicePlugin/GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
        "/v1beta1.DevicePlugin/ListAndWatch": ("Empty", "stream ListAndWatchResponse"),
        "/v1beta1.DevicePlugin/GetPreferredAllocation": (
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
        ),
        "/v1beta1.DevicePlugin/Allocate": ("AllocateRequest", "AllocateResponse"),
        "/v1beta1.DevicePlugin/PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse"),
    },
    "pluginregistration": {
        "/pluginregistration.Registration/GetInfo": ("InfoRequest", "PluginInfo"),
        "/pluginregistration.Registration/NotifyRegistrationStatus": (
            "RegistrationStatus",
            "RegistrationStatusResponse",
        ),
    },
    "podresources": {
        "/v1.PodResourcesLister/List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
        "/v1.PodResourcesLister/GetAllocatableResources": (
            "AllocatableResourcesRequest",
            "AllocatableResourcesResponse",
        ),
        "/v1.PodResourcesLister/Get": ("GetPodResourcesRequest", "GetPodResourcesResponse"),
    },
    "health_event": {
        "/datamodels.PlatformConnector/HealthEventOccurredV1": ("HealthEvents", "Empty"),
    },
}


def fields_of_table(name: str) -> dict[str, set[tuple[str, str, int]]]:
    table: dict[str, set[tuple[str, str, int]]] = {}
    for line in FIELDS[name].strip().splitlines():
        message, _, rest = line.strip().partition(":")
        table[message] = set()
        for field in filter(None, (part.strip() for part in rest.split(";"))):
            label, kind, number = field.split(" ", 1)[0], *field.split(" ", 1)[1].rsplit(" ", 1)
            table[message].add((label, kind, int(number)))
    return table


def fields_of_proto(name: str) -> dict[str, set[tuple[str, str, int]]]:
    text = re.sub(r"//.*", "", (ROOT / "protos" / f"{name}.proto").read_text())
    text = re.sub(r"enum\s+\w+\s*\{[^}]*\}", "", text)
    found: dict[str, set[tuple[str, str, int]]] = {}
    for message, body in re.findall(r"message\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL):
        found[message] = set()
        for statement in filter(None, (part.strip() for part in body.split(";"))):
            match = re.fullmatch(r"(.+?)\s+(\w+)\s*=\s*(\d+)", statement, re.DOTALL)
            assert match, f"{name}.proto: {statement!r} is no field"
            kind = match[1].replace(", ", ",").replace("google.protobuf.", "").replace("repeated ", "r ")
            found[message].add((match[2], kind, int(match[3])))
    return found


def kind_of(field: FieldDescriptor) -> str:
    names = {
        getattr(FieldDescriptor, n): n[5:].lower() for n in dir(FieldDescriptor) if n.startswith("TYPE_")
    }
    if field.message_type is None:
        kind = names[field.type] if field.enum_type is None else field.enum_type.name
        if field.has_presence:
            kind = "optional " + kind
    elif field.message_type.GetOptions().map_entry:
        return "map<" + ",".join(kind_of(part) for part in field.message_type.fields) + ">"
    else:
        kind = field.message_type.name
    return "r " + kind if field.is_repeated else kind


@pytest.mark.parametrize("name", PROTOS)
def test_the_proto_has_the_field_numbers_and_types_of_the_api(name):
    assert fields_of_proto(name) == fields_of_table(name)


@pytest.mark.parametrize("name", PROTOS)
def test_the_generated_messages_have_the_field_numbers_and_types_of_the_api(name):
    messages = MODULES[name].DESCRIPTOR.message_types_by_name
    found = {m.name: {(f.name, kind_of(f), f.number) for f in m.fields} for m in messages.values()}
    assert found == fields_of_table(name)


@pytest.mark.parametrize("name", PROTOS)
def test_the_methods_have_the_paths_of_the_api(name):
    found = {
        f"/{service.full_name}/{method.name}": (
            ("stream " if method.client_streaming else "") + method.input_type.name,
            ("stream " if method.server_streaming else "") + method.output_type.name,
        )
        for service in MODULES[name].DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert found == METHODS[name]


@pytest.mark.parametrize("name", PROTOS)
def test_a_proto_lies_in_the_pool_under_the_packages_own_path(name):
    path = f"{PACKAGE[name]}/{name}.proto"
    assert MODULES[name].DESCRIPTOR.name == path
    assert descriptor_pool.Default().FindFileByName(path) == MODULES[name].DESCRIPTOR


def test_the_enums_of_nvsentinel_have_their_numbers():
    enums = health_event_pb2.DESCRIPTOR.enum_types_by_name.items()
    assert {name: {v.name: v.number for v in enum.values} for name, enum in enums} == {
        "ProcessingStrategy": {"UNSPECIFIED": 0, "EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2},
        "RecommendedAction": {"NONE": 0, "CONTACT_SUPPORT": 5},
    }


@pytest.mark.parametrize("name", DRA_HEALTH)
def test_the_health_of_dra_devices_has_its_numbers(name):
    (enum,) = MODULES[name].DESCRIPTOR.enum_types_by_name.values()
    assert {value.name: value.number for value in enum.values} == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


def test_no_two_protos_share_a_name():
    names = [
        descriptor.full_name
        for module in MODULES.values()
        for descriptor in (
            *module.DESCRIPTOR.message_types_by_name.values(),
            *module.DESCRIPTOR.services_by_name.values(),
        )
    ]
    assert len(names) == len(set(names))


def test_the_committed_modules_are_what_the_protos_generate(tmp_path):
    assert version("grpcio-tools") == "1.85.1", "regenerate with the version that pyproject.toml pins"
    subprocess.run(
        [ROOT / "hack" / "protos.sh", tmp_path],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=60,
    )
    for package in set(PACKAGE.values()):
        names = [name for name in PROTOS if PACKAGE[name] == package]
        fresh = {path.name: path.read_bytes() for path in (tmp_path / package).iterdir()}
        committed = {path.name: path.read_bytes() for path in (ROOT / package).glob("*_pb2*")}
        assert sorted(fresh) == sorted(f"{name}_pb2.{end}" for name in names for end in ("py", "pyi"))
        assert committed == fresh, "run hack/protos.sh and commit what it writes"
