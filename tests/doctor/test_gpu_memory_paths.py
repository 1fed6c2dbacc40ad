"""The doctor finds, in the files of a machine, GPUDirect RDMA, IMEX channels and persistence mode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.agent_config import Config
from nodeagent.doctor import gpu_checks, machine_checks
from nodeagent.doctor.reads import Target
from nodeagent.host.recorded_gpus import PATH
from nodeagent.host.sysfs import Tree
from nodeagent_lab.sim.machine import Machine

TAINT, PEERMEM, KERNEL = (
    "sys/module/nvidia/taint",
    "sys/module/nvidia_peermem/refcnt",
    "proc/sys/kernel/osrelease",
)
CHANNEL = "dev/nvidia-caps-imex-channels/channel0"
DOMAIN = "01020304-0506-0708-090a-0b0c0d0e0f10.3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    return tmp_path


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / {"taint": TAINT, "peermem": PEERMEM, "kernel": KERNEL, "channel": CHANNEL}[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def gpus(root: Path, **fields: object) -> None:
    """Change the first GPU of the recording."""
    path = root / PATH.lstrip("/")
    recording = json.loads(path.read_text())
    recording["gpus"][0] |= fields
    path.write_text(json.dumps(recording))


def found(root: Path) -> dict[str, tuple[str, str]]:
    target = Target(Tree(root), Config(), recorded=True, kubelet_dir=None)
    kernel = machine_checks.read(target).kernel
    findings = gpu_checks.findings(gpu_checks.read(target), Config(), kernel)
    return {one.key: (one.level.value, one.what) for one in findings}


@pytest.mark.parametrize(
    ("files", "level", "words"),
    [
        ({"taint": "POE\n", "kernel": "6.8.0-60-generic\n"}, "warn", "nvidia-peermem is not loaded"),
        ({"taint": "OE\n", "kernel": "5.11.22\n"}, "warn", "there is no DMA-BUF"),
        ({"taint": "OE\n", "kernel": "5.12.0\n"}, "ok", "by DMA-BUF"),
        ({"taint": "\n", "kernel": "6.8.0\n"}, None, ""),
        ({"taint": "POE\n", "kernel": "6.8.0\n", "peermem": "0\n"}, "ok", "nvidia-peermem is loaded"),
        ({"peermem": "0\n"}, "ok", "nvidia-peermem is loaded"),
        ({}, None, ""),
    ],
)
def test_gpudirect_needs_peermem_or_the_open_modules_with_dma_buf(
    root: Path, files: dict[str, str], level: str | None, words: str
) -> None:
    put(root, **files)
    shown = found(root)
    key = "gpudirect" if level == "ok" else "gpudirect_missing"
    if level is None:
        assert not {"gpudirect", "gpudirect_missing"} & shown.keys(), "what is not seen is not missing"
    else:
        assert shown[key][0] == level
        assert words in shown[key][1]


def test_a_machine_without_rdma_devices_needs_no_gpudirect(root: Path) -> None:
    put(root, taint="POE\n")
    assert "gpudirect_missing" in found(root)
    for device in (root / "sys/class/infiniband").iterdir():
        device.unlink()
    assert "gpudirect_missing" not in found(root)


def test_gpus_of_an_nvlink_domain_need_an_imex_channel(root: Path) -> None:
    assert not {"imex", "imex_missing"} & found(root).keys()
    gpus(root, nvlink_domain=DOMAIN)
    assert found(root)["imex_missing"] == ("note", "/dev/nvidia-caps-imex-channels has no channel")
    put(root, channel="")
    assert found(root)["imex"] == ("ok", "1 IMEX channel for the NVLink domain")


@pytest.mark.parametrize(("mode", "noted"), [(0, True), (1, False), (None, False)])
def test_persistence_mode_that_is_off_is_noted(root: Path, mode: int | None, noted: bool) -> None:
    gpus(root, values={} if mode is None else {"gpu_persistence_mode": mode})
    shown = found(root)
    assert ("persistence_off" in shown) is noted
    if noted:
        assert shown["persistence_off"] == ("note", "persistence mode is off on GPU 0")
