"""The NVLink domain of a GPU: the calls of NVML in their versions, against the stand-in library."""

from __future__ import annotations

import uuid

import pytest

from tests.host.test_nvml import Machine, Remote, gpu, machine, old, young

__all__ = ["machine", "old", "young"]
pytestmark = pytest.mark.needs("pynvml", "cc")

CLUSTER = "9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa"
ZERO = str(uuid.UUID(int=0))
COMPLETED, IN_PROGRESS, NOT_STARTED, UNSUPPORTED = 3, 2, 1, 0
INSUFFICIENT_RESOURCES = 18


def fabric(
    index: int = 0,
    *,
    newest: int = 3,
    state: int = COMPLETED,
    status: int = 0,
    clique: int = 4026,
    cluster=CLUSTER,
) -> str:
    return f"fabric {index} {newest} {state} {status} {clique} {uuid.UUID(cluster).hex}"


@pytest.fixture
def driver(machine: Machine, young: object):
    remote = Remote(machine, young)
    remote.open()
    yield remote
    remote.end()


def domains(driver: Remote) -> list[str | None]:
    return [reading.nvlink_domain for reading in driver.gpus()]


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_each_version_of_the_call_gives_the_same_domain(
    driver: Remote, machine: Machine, newest: int
) -> None:
    machine.set(gpu(0), gpu(1), fabric(0, newest=newest), fabric(1, newest=newest, clique=0))
    assert domains(driver) == [
        f"{CLUSTER}.4026",
        f"{CLUSTER}.0",
    ]


@pytest.mark.parametrize(
    ("line", "domain"),
    [
        (fabric(newest=0), ""),  # H100 PCIe, or one GPU passed through
        (fabric(cluster=ZERO), ""),  # HGX H100
        (fabric(cluster=ZERO, clique=0, status=INSUFFICIENT_RESOURCES), ""),
        (fabric(status=INSUFFICIENT_RESOURCES), ""),
        (fabric(state=UNSUPPORTED, clique=0), ""),  # a tray that is not registered
        (fabric(state=NOT_STARTED), None),
        (fabric(state=IN_PROGRESS), None),
        (fabric(state=9), None),
        ("fail nvmlDeviceGetGpuFabricInfoV 999 0", None),
    ],
)
def test_a_domain_needs_a_completed_registration_and_a_uuid(
    driver: Remote, machine: Machine, line: str, domain: object
) -> None:
    machine.set(gpu(0), line)
    (reading,) = driver.gpus()
    assert (reading.nvlink_domain, reading.fault, reading.uuid) == (domain, None, "GPU-0")


def test_a_lost_gpu_has_no_known_domain(driver: Remote, machine: Machine) -> None:
    machine.set(gpu(0, lost=1), gpu(1), fabric(0), fabric(1))
    assert [domain is None for domain in domains(driver)] == [True, False]


def test_a_driver_without_these_calls_has_no_domains(machine: Machine, old: object) -> None:
    remote = Remote(machine, old)
    remote.open()
    try:
        assert domains(remote) == ["", ""]
    finally:
        remote.end()


# --- the ends of NVLinks ------------------------------------------------------------------------------------


def test_the_ends_of_nvlinks_have_the_kernels_addresses_and_are_read_once(
    driver: Remote, machine: Machine
) -> None:
    links = ["nvlink 0 0 00000000:06:00.0", "nvlink 0 17 00000000:0A:00.0", "nvlink 0 4 00000000:06:00.0"]
    hidden = "nvlink 1 0 00000000:00:00.0"
    machine.set(gpu(0), gpu(1), *links, hidden)
    assert [one.nvlink_ends for one in driver.gpus()] == [("0000:06:00.0", "0000:0a:00.0"), ()]
    machine.set(gpu(0), gpu(1))
    assert [one.nvlink_ends for one in driver.gpus()] == [("0000:06:00.0", "0000:0a:00.0"), ()]


def test_the_ends_are_unknown_while_the_fabric_registers_or_a_call_fails(
    driver: Remote, machine: Machine
) -> None:
    link = "nvlink 0 0 00000000:06:00.0"
    machine.set(gpu(0), link, fabric(0, state=IN_PROGRESS))
    assert driver.gpus()[0].nvlink_ends is None
    machine.set(gpu(0), link, "fail nvmlDeviceGetNvLinkRemotePciInfo_v2 999 0")
    (reading,) = driver.gpus()
    assert (reading.nvlink_ends, reading.fault) == (None, None)
    machine.set(gpu(0), link)
    assert driver.gpus()[0].nvlink_ends == ("0000:06:00.0",)
    machine.set(gpu(0, lost=1), link)
    assert driver.gpus()[0].lost
