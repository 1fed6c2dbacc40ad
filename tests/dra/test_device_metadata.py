"""The metadata files of a claim: as consumers of KEP-5304 find and read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.dra.claim_files import ClaimFiles
from nodeagent.dra.claim_preparation import prepare_claim
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.model import Mount
from nodeagent.kubelet.device_info import DeviceInfoFiles
from tests.dra.test_claim_preparation import ADMIN
from tests.dra.test_claim_status import MAC, with_macs
from tests.support.dra_node import NODE, claim_of, decoded, devices_of, gpus_of, machine, pfs_of, result

FACTS = with_macs(machine())
GPU, PF = gpus_of(FACTS)[0], pfs_of(FACTS)[0]
FOLDER = "/var/lib/kubelet/plugins/nodeagent.io/dra-device-metadata"
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"


def prepared(claim: dict[str, Any], folder: str = FOLDER) -> PreparedClaim:
    return prepare_claim(
        decoded(claim),
        node=NODE,
        devices=devices_of(FACTS),
        snapshot=FACTS,
        others=(),
        sequence=1,
        metadata_folder=folder,
    )


def versions(text: str) -> list[dict[str, Any]]:
    """The objects of a stream of JSON, as a reader in a container decodes them."""
    found, decoder = [], json.JSONDecoder()
    while text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].lstrip()
    return found


def mounts(record: PreparedClaim) -> list[Mount]:
    return [mount for edits in record.edits.values() for mount in edits.mounts]


def test_each_request_has_a_file_with_the_attributes_of_its_devices() -> None:
    claim = claim_of("pair", result(GPU, 1024, "g/small"), result(PF, 2, "r"))
    record = prepared(claim)
    assert set(record.metadata) == {"g", "r"}
    newest, oldest = versions(record.metadata["g"])
    assert newest["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    assert oldest == newest | {"apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert newest["kind"] == "DeviceMetadata"
    assert newest["metadata"] | {"name": "pair", "uid": record.uid} == newest["metadata"]
    (request,) = newest["requests"]
    assert request["name"] == "g/small"
    (device,) = request["devices"]
    assert (device["pool"], device["name"]) == (f"{NODE}/gpu", GPU.name)
    assert device["attributes"]["uuid"] == {"string": GPU.gpu.uuid}
    uid = record.uid
    assert mounts(record) == [
        Mount(
            f"{FOLDER}/{uid}/g.json", f"{IN_CONTAINER}/resourceclaims/pair/g/nodeagent.io-metadata.json", True
        ),
        Mount(
            f"{FOLDER}/{uid}/r.json", f"{IN_CONTAINER}/resourceclaims/pair/r/nodeagent.io-metadata.json", True
        ),
    ]


def test_each_vf_is_a_device_with_its_own_address() -> None:
    record = prepared(claim_of("pair", result(PF, 2, "r")))
    devices = versions(record.metadata["r"])[0]["requests"][0]["devices"]
    addresses = [it["attributes"]["resource.kubernetes.io/pciBusID"]["string"] for it in devices]
    assert addresses == list(PF.vfs[:2])
    assert {it["networkData"]["hardwareAddress"] for it in devices} == {MAC}
    assert {it["attributes"]["pciAddress"]["string"] for it in devices} == {PF.pf.pci_address}


def test_the_claim_of_a_template_is_found_by_its_name_in_the_pod() -> None:
    claim = claim_of("pair-x7k2f", result(GPU, 1024, "g"))
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "devices"}
    record = prepared(claim)
    (mount,) = mounts(record)
    path = f"{IN_CONTAINER}/resourceclaimtemplates/devices/g/nodeagent.io-metadata.json"
    assert mount.container_path == path
    assert versions(record.metadata["g"])[0]["podClaimName"] == "devices"


def test_a_hostile_name_leaves_no_path_of_the_folder() -> None:
    claim = claim_of("pair", result(GPU, 1024, "g"))
    for name in ("../../etc", "a/b", "", "..", "x" * 300):
        claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": name}
        assert mounts(prepared(claim)) == []
    assert prepared(claim_of("pair", result(GPU, 1024, "../x"))).metadata == {}


def test_an_administrator_reads_the_attributes_of_each_device() -> None:
    record = prepared(claim_of("m", result(GPU, 0, "all", **ADMIN), result(PF, 0, "nics", **ADMIN)))
    (nic,) = versions(record.metadata["nics"])[0]["requests"][0]["devices"]
    assert nic["attributes"]["pciAddress"] == {"string": PF.pf.pci_address}
    assert len(mounts(record)) == 2


def test_the_files_are_there_before_the_spec_and_go_with_the_claim(tmp_path: Path) -> None:
    folder = tmp_path / "dra-device-metadata"
    files = files_with(tmp_path, folder)
    record = prepared(claim_of("pair", result(GPU, 1024, "g")), str(folder))
    files.write(record)
    (spec,) = (tmp_path / "cdi").iterdir()
    (device,) = json.loads(spec.read_text())["devices"]
    (mount,) = device["containerEdits"]["mounts"]
    assert Path(mount["hostPath"]).read_text() == record.metadata["g"]
    assert "ro" in mount["options"]
    assert Path(mount["hostPath"]).stat().st_mode & 0o777 == 0o644
    assert files.read() == [record]
    files.remove(record)
    assert list(folder.iterdir()) == []
    files.write(record)
    files.remove_others(frozenset())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_in_the_place_of_a_file_keeps_no_claim_from_its_begin_or_end(
    tmp_path: Path, inside: bool
) -> None:
    folder = tmp_path / "dra-device-metadata"
    files = files_with(tmp_path, folder)
    record = prepared(claim_of("pair", result(GPU, 1024, "g"), result(PF, 1, "r")), str(folder))
    paths = [
        folder / record.uid / "g.json",
        tmp_path / "cdi" / f"nodeagent-claim-{record.uid}.json",
        tmp_path / "claims" / f"{record.uid}.json",
    ]
    assert record.device_info

    def obstruct() -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            (path / "inner" if inside else path).mkdir(parents=True)
            if inside:
                (path / "file").touch()

    obstruct()
    files.write(record)
    assert paths[0].read_text() == record.metadata["g"]
    assert all(path.is_file() for path in paths)
    obstruct()
    (tmp_path / "info" / record.device_info[0].name).unlink()
    (tmp_path / "info" / record.device_info[0].name).mkdir()
    files.remove(record)
    assert [path for path in tmp_path.rglob("*") if path.parent != tmp_path] == []
    obstruct()
    files.remove_others(frozenset())
    assert not any(path.exists() for path in paths)


def test_claims_of_an_agent_with_metadata_keep_and_lose_their_files_under_one_without(tmp_path: Path) -> None:
    folder = tmp_path / "dra-device-metadata"
    record = prepared(claim_of("pair", result(GPU, 1024, "g")), str(folder))
    files_with(tmp_path, folder).write(record)
    (folder / record.uid / "g.json").unlink()
    (folder / "of-a-claim-that-ended").mkdir()
    files = files_with(tmp_path, folder, gives_metadata=False)
    assert (files.new_metadata, files.read()) == (None, [record])
    files.write(record)
    assert (folder / record.uid / "g.json").exists(), "its CDI spec mounts it"
    files.remove_others(frozenset({record.uid}))
    assert [path.name for path in folder.iterdir()] == [record.uid]
    files.remove(record)
    assert list(folder.iterdir()) == []


def files_with(tmp_path: Path, folder: Path, *, gives_metadata: bool = True) -> ClaimFiles:
    return ClaimFiles(
        tmp_path / "claims",
        tmp_path / "cdi",
        DeviceInfoFiles(tmp_path / "info"),
        "boot-1",
        folder,
        gives_metadata=gives_metadata,
    )


def test_a_record_of_an_agent_without_metadata_is_read(tmp_path: Path) -> None:
    claim = claim_of("pair", result(GPU, 1024, "g"))
    bare = prepare_claim(
        decoded(claim), node=NODE, devices=devices_of(FACTS), snapshot=FACTS, others=(), sequence=1
    )
    assert (bare.metadata, mounts(bare)) == ({}, [])
    files = files_with(tmp_path, tmp_path / "none", gives_metadata=False)
    files.write(replace(bare))
    assert files.read() == [bare]
