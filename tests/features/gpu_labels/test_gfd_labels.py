"""The labels of GPUs: names and forms of GPU Feature Discovery, for known machines and for any."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.features.gpu_labels import gfd_labels
from nodeagent.features.gpu_labels.feature_file import FEATURE_FILE_MAX, FeatureFile
from nodeagent.features.gpu_labels.gfd_labels import GpusOfNode, GpuTexts, gpu_labels
from nodeagent.host import nvml_vitals
from tests.features.gpu_labels.nodes import (
    A100,
    H100,
    LABEL_NAME,
    LABEL_VALUE,
    MODE_3D,
    MODE_VGA,
    a100,
    gpu,
    labels_by_nfd,
    mig,
    of,
)
from tests.support import golden

GOLDEN = Path(__file__).parents[2] / "golden" / "features.d"
NOON = 1_796_126_400.0  # 2026-12-01T12:00:00Z
CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
DGX_A100 = of(
    *(a100(index) for index in range(6)),
    a100(6, mig=True, mig_devices=tuple(mig(f"6{n}") for n in range(7))),
    a100(7, mig=True, mig_devices=(mig("70", "3g.20gb", 19968), mig("71", "1c.3g.20gb+me", 19968))),
    texts=A100, machine="DGXA100 920-23687-2530-000", driver="550.163",
)  # fmt: skip
MACHINES = {
    "dgx-h100": of(*(gpu(index, nvlink_domain="") for index in range(8)), by_profile=False),
    "dgx-a100-mig": DGX_A100,
    "gb200-tray": of(
        *(gpu(index, name="NVIDIA GB200", memory_mib=189471, nvlink_domain=CLIQUE) for index in range(4)),
        texts=GpuTexts("10.0", "13.0", "yes", MODE_3D), machine="GB200 NVL",
    ),
}  # fmt: skip


@pytest.mark.golden("tests/golden/features.d/*")
@pytest.mark.parametrize("machine", MACHINES)
def test_the_file_of_a_known_machine(machine: str, tmp_path: Path) -> None:
    labels = gpu_labels(MACHINES[machine])
    file = FeatureFile(tmp_path)
    file.write(labels, NOON)
    golden.same(GOLDEN / machine, file.path.read_text())
    assert labels_by_nfd(file.path.read_bytes(), NOON) == labels
    assert labels_by_nfd(file.path.read_bytes(), NOON + 1) == {}


def test_the_words_of_the_examples() -> None:
    for module in (gfd_labels, nvml_vitals):
        assert doctest.testmod(module).failed == 0


def gpu_part(node: GpusOfNode) -> dict[str, str]:
    """The labels that describe the resource ``nvidia.com/gpu``."""
    names = ("product", "count", "replicas", "sharing-strategy")
    return {name: value for name in names if (value := gpu_labels(node).get(f"nvidia.com/gpu.{name}"))}


PLAIN = {"product": "NVIDIA-H100-80GB-HBM3", "count": "2", "replicas": "1", "sharing-strategy": "none"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, PLAIN),
        ({"replicas": {"GPU-0": 1, "GPU-1": 1}}, PLAIN),
        ({"replicas": {"GPU-0": 4, "GPU-1": 4}},
         PLAIN | {"product": "NVIDIA-H100-80GB-HBM3-SHARED", "replicas": "4", "sharing-strategy": "time-slicing"}),
        ({"replicas": {"GPU-0": 4, "GPU-1": 4}, "renamed": True, "mps": True},
         PLAIN | {"replicas": "4", "sharing-strategy": "mps"}),
        ({"mps": True}, PLAIN),
    ],
    ids=["alone", "whole GPUs", "shared", "renamed, by MPS", "MPS under another name"],
)  # fmt: skip
def test_a_shared_resource_is_told_as_its_replicas(
    changed: dict[str, object], expected: dict[str, str]
) -> None:
    assert gpu_part(of(gpu(0), gpu(1), **changed)) == expected


def test_gpus_with_different_replicas_have_no_number_of_them() -> None:
    shown = gpu_part(of(gpu(0), gpu(1), replicas={"GPU-0": 4}))
    assert shown == {
        "product": "NVIDIA-H100-80GB-HBM3-SHARED", "count": "2", "sharing-strategy": "time-slicing",
    }  # fmt: skip


def test_gpus_in_mig_mode_alone_have_no_replicas() -> None:
    divided = of(gpu(0, mig=True), gpu(1, mig=True), mps=True, replicas={"GPU-0": 4})
    assert gpu_part(divided) == PLAIN | {"replicas": "0"}
    assert gpu_labels(divided)["nvidia.com/mps.capable"] == "false"
    assert gpu_labels(of(gpu(0), mps=True))["nvidia.com/mps.capable"] == "true"


def test_of_several_models_the_one_with_most_gpus_is_named_and_an_undivided_one_first() -> None:
    mixed = of(a100(0), gpu(1), gpu(2))
    assert gpu_part(mixed) == PLAIN
    divided = of(a100(0), gpu(1, mig=True), gpu(2, mig=True))
    assert gpu_part(divided)["product"] == "NVIDIA-A100-SXM4-40GB"
    assert gpu_part(divided)["count"] == "1"


def test_without_mig_resources_there_is_no_strategy_and_no_profile() -> None:
    labels = gpu_labels(DGX_A100._replace(by_profile=False))
    assert [key for key in labels if key.startswith(("nvidia.com/mig.strategy", "nvidia.com/mig-"))] == []
    assert labels["nvidia.com/gpu.count"] == "8"


def test_the_clique_is_that_of_all_gpus_that_have_one() -> None:
    def clique(*domains: str | None) -> str | None:
        gpus = (gpu(index, nvlink_domain=domain) for index, domain in enumerate(domains))
        return gpu_labels(of(*gpus)).get("nvidia.com/gpu.clique")

    other = CLIQUE.replace(".1", ".2")
    assert [clique(CLIQUE, CLIQUE), clique(CLIQUE, "", None)] == [CLIQUE, CLIQUE]
    assert [clique(CLIQUE, other), clique(""), clique(None)] == [None, None, None]


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ((MODE_3D, MODE_3D), "compute"),
        ((MODE_VGA,), "graphics"),
        ((MODE_3D, MODE_VGA), "unknown"),
        ((MODE_3D, None), "unknown"),
        ((0x020000,), "unknown"),
    ],
)
def test_the_mode_is_the_pci_class_of_all_gpus(classes: tuple[int | None, ...], mode: str) -> None:
    gpus = tuple(gpu(index) for index, _ in enumerate(classes))
    texts = {f"GPU-{index}": H100._replace(pci_class=one) for index, one in enumerate(classes)}
    assert gpu_labels(of(*gpus)._replace(texts=texts))["nvidia.com/gpu.mode"] == mode


def test_what_is_not_known_leaves_its_labels_out() -> None:
    labels = gpu_labels(GpusOfNode((gpu(0, memory_mib=0),), {}))
    assert labels == {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.machine": "unknown",
        "nvidia.com/gpu.mode": "unknown",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mps.capable": "false",
    }
    assert gpu_labels(of()) == {}


def test_a_driver_without_a_revision_has_an_empty_one() -> None:
    labels = gpu_labels(of(gpu(), driver="550.163"))
    assert labels["nvidia.com/cuda.driver-version.revision"] == labels["nvidia.com/cuda.driver.rev"] == ""
    assert "nvidia.com/cuda.driver-version.full" not in gpu_labels(of(gpu(), driver="550"))


def test_a_product_that_is_no_label_value_is_left_out_and_not_cut() -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    made = mig("0", "1g.24gb+me.all", 24064)
    labels = gpu_labels(of(gpu(name=name, mig=True, mig_devices=(made,))))
    assert labels["nvidia.com/gpu.product"] == name.replace(" ", "-")
    assert labels["nvidia.com/mig-1g.24gb.me.all.count"] == "1"
    assert "nvidia.com/mig-1g.24gb.me.all.product" not in labels


PROFILE = st.from_regex(r"[0-9a-z][-+.0-9a-z]{0,22}[0-9a-z]", fullmatch=True)
"""As ``host/plausible_gpus.py`` lets it through."""
TEXT = st.text(max_size=96)
MIGS = st.lists(
    st.builds(lambda uuid, profile, mib: mig(str(uuid), profile, mib), st.integers(), PROFILE, st.integers(0, 1 << 22)),
    max_size=3,
).map(tuple)  # fmt: skip
GPUS = st.lists(
    st.fixed_dictionaries({
        "name": TEXT, "memory_mib": st.integers(0, 4 << 20), "mig": st.booleans(), "mig_devices": MIGS,
        "nvlink_domain": st.sampled_from([None, "", CLIQUE, f"{CLIQUE}9"]),
    }),
    max_size=4,
).map(lambda found: tuple(gpu(index, **one) for index, one in enumerate(found)))  # fmt: skip
TEXTS = st.builds(
    GpuTexts, TEXT, TEXT, st.sampled_from(["", "yes", "no"]), st.none() | st.integers(0, 1 << 24)
)


@st.composite
def nodes(draw: st.DrawFn) -> GpusOfNode:
    gpus = draw(GPUS)
    return GpusOfNode(
        gpus,
        {one.uuid: draw(TEXTS) for one in gpus},
        draw(st.none() | TEXT),
        draw(st.none() | TEXT),
        {one.uuid: draw(st.integers(1, 80_000)) for one in gpus},
        *(draw(st.booleans()) for _ in ("renamed", "mps", "by_profile")),
    )


@given(nodes())
@example(of(gpu(name="-")))
@example(of(gpu(name="\ud800" * 3)))
@example(of(gpu(name="a" * 64), driver="٥٨٠.٩٥"))
def test_each_label_is_valid_and_nfd_reads_the_same(node: GpusOfNode) -> None:
    made = gpu_labels(node)
    for key, value in made.items():
        prefix, slash, name = key.partition("/")
        assert (prefix, slash) == ("nvidia.com", "/")
        assert LABEL_NAME.fullmatch(name), key
        assert len(name) <= 63, key
        assert LABEL_VALUE.fullmatch(value), (key, value)
        assert len(value) <= 63, (key, value)
    assert bool(made) == bool(node.gpus)
    text = "".join(f"{key}={value}\n" for key, value in made.items()).encode()
    assert labels_by_nfd(text, 0.0) == made
    assert len(text) < FEATURE_FILE_MAX
