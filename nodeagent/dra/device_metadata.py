"""The metadata of a claim's devices for its containers, as files (KEP-5304). Pure.

Each request has a file. A container that uses the request finds it below ``/var/run/kubernetes.io``, by the name of the
claim in the pod's spec: a program knows it without the API server. The file has the attributes of the ResourceSlice.
Each VF is a device of its own there: ``resource.kubernetes.io/pciBusID`` is its address, not that of the PF.

A file is a stream of JSON objects, one for each version of the format, the newest first; a reader takes the first one
that it knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nodeagent.dra import DRIVER
from nodeagent.dra.claim_status import network_data
from nodeagent.dra.device_attributes import PCI_BUS_ID
from nodeagent.dra.prepared_claim import PreparedDevice
from nodeagent.facts.model import Mount

_Json = dict[str, Any]

_VERSIONS = ("v1beta1", "v1alpha1")
"""Kubernetes 1.37 has both, 1.36 has v1alpha1; the fields are the same."""
CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made from a template: its name in the pod's spec."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Of a claim or request: a name that is a part of a path."""


class ClaimName(NamedTuple):
    """How a claim is named. ``pod_claim`` is its name in the pod's spec, if it was made from a template."""

    namespace: str
    name: str
    uid: str
    pod_claim: str | None = None


def metadata_files(
    claim: ClaimName, devices: Iterable[tuple[str, PreparedDevice]], attributes: Mapping[str, _Json]
) -> dict[str, str]:
    """Return the text of the file of each request. Each device comes with the name of its request and sub-request;
    ``attributes`` are those of the ResourceSlice by the name of the device."""
    requests: dict[str, tuple[str, list[_Json]]] = {}
    for reference, device in devices:
        entries = requests.setdefault(device.request, (reference, []))[1]
        entries += _entries(device, attributes.get(device.device, {}))
    return {
        request: _stream(claim, reference, entries)
        for request, (reference, entries) in requests.items()
        if _NAME.fullmatch(request)
    }


def metadata_mount(claim: ClaimName, request: str, host_path: str) -> Mount | None:
    """Return the mount of the file of a request; ``None`` if a name of the claim is no part of a path."""
    folder, name = "resourceclaims", claim.name
    if claim.pod_claim is not None:
        folder, name = "resourceclaimtemplates", claim.pod_claim
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(request):
        return None
    path = f"{CONTAINER_FOLDER}/{folder}/{name}/{request}/{DRIVER}-metadata.json"
    return Mount(host_path, path, read_only=True)


def _entries(device: PreparedDevice, attributes: _Json) -> Iterable[_Json]:
    entry = {"driver": DRIVER, "pool": device.pool, "name": device.device}
    known = {it.pci_address: it for it in device.interfaces}
    for vf in device.vfs:
        own = {**attributes, PCI_BUS_ID: {"string": vf}}
        network = network_data(known[vf]) if vf in known else {}
        yield {**entry, "attributes": own, **({"networkData": network} if network else {})}
    if not device.vfs:
        yield {**entry, "attributes": attributes}


def _stream(claim: ClaimName, reference: str, devices: list[_Json]) -> str:
    body: _Json = {
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1},
        **({"podClaimName": claim.pod_claim} if claim.pod_claim is not None else {}),
        "requests": [{"name": reference, "devices": devices}],
    }
    versions = (
        {"kind": "DeviceMetadata", "apiVersion": f"metadata.resource.k8s.io/{version}", **body}
        for version in _VERSIONS
    )
    return "".join(json.dumps(version, separators=(",", ":")) + "\n" for version in versions)
