"""The feature file over time: when it is written, renewed and removed, and who else may set the labels."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.cluster.deliveries import Deliveries
from nodeagent.features.gpu_labels import label_keeper
from nodeagent.features.gpu_labels.feature_file import FEATURE_FILE, FEATURES_FOLDER, FeatureFile
from nodeagent.features.gpu_labels.gfd_labels import GpusOfNode, gpu_labels
from nodeagent.features.gpu_labels.gfd_object import follow_gfd_object
from nodeagent.features.gpu_labels.label_keeper import (
    EXPIRY_S,
    LABELS_FIRST_S,
    LABELS_LOOK_S,
    RENEW_S,
    LabelKeeper,
)
from nodeagent.features.gpu_labels.labels_task import start_labels
from nodeagent.features.gpu_labels.nfd_settings import NfdSettings, OfferedGpus
from nodeagent.host.sysfs import Tree
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.features.gpu_labels.nodes import gpu, labels_by_nfd, of
from tests.support.agent_core import agent_core
from tests.support.nfd import node_feature_definition
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

ONE, TWO = of(gpu(0)), of(gpu(0), gpu(1))
GFD_TEXT = "nvidia.com/gfd.timestamp=1724632719\nnvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n"


class Place:
    """A machine with NFD's folder, and a keeper of it. ``writes`` counts the files that were put there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.folder = root / FEATURES_FOLDER.lstrip("/")
        self.folder.mkdir(parents=True)
        self.file = self.folder / FEATURE_FILE
        self.node: GpusOfNode = ONE
        self.deliveries = Deliveries()
        self.writes: list[float] = []
        self.keeper = self.new_keeper()
        write = FeatureFile.write

        def counted(file: FeatureFile, *written: object) -> None:
            self.writes.append(time.time())
            write(file, *written)

        monkeypatch.setattr(FeatureFile, "write", counted)

    def new_keeper(self) -> LabelKeeper:
        delivery = self.deliveries.of("gpu-labels", "Node Feature Discovery")
        return LabelKeeper(Tree(self.root), lambda: self.node, delivery)

    def labels(self) -> dict[str, str]:
        """The labels that NFD's worker reads now."""
        return labels_by_nfd(self.file.read_bytes(), time.time()) if self.file.exists() else {}

    def put(self, name: str, text: str = GFD_TEXT) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.keeper.run())
        try:
            await asyncio.sleep(LABELS_FIRST_S + 1)
            yield
        finally:
            task.cancel()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


async def test_the_first_look_writes_a_file_that_any_user_may_read(place: Place) -> None:
    old = os.umask(0o077)
    try:
        async with place.running():
            assert place.labels() == gpu_labels(ONE)
    finally:
        os.umask(old)
    assert place.file.stat().st_mode & 0o777 == 0o644
    assert place.deliveries.remarks() == ()
    assert [one.name for one in place.folder.iterdir()] == [FEATURE_FILE]


async def test_labels_that_do_not_change_are_renewed_before_they_end_and_not_more_often(place: Place) -> None:
    async with place.running():
        for _ in range(3):
            await asyncio.sleep(3600)
            assert place.labels() == gpu_labels(ONE)
    pauses = [later - earlier for earlier, later in zip(place.writes, place.writes[1:], strict=False)]
    assert min(pauses) >= RENEW_S
    assert max(pauses) <= RENEW_S + 2 * LABELS_LOOK_S
    assert max(pauses) < EXPIRY_S / 2


async def test_a_change_is_written_at_its_second_look(place: Place) -> None:
    async with place.running():
        place.node = TWO
        await asyncio.sleep(LABELS_LOOK_S)
        assert place.labels() == gpu_labels(ONE)
        await asyncio.sleep(LABELS_LOOK_S)
        assert place.labels() == gpu_labels(TWO)
        assert len(place.writes) == 2


async def test_labels_that_change_at_each_look_are_not_written(place: Place) -> None:
    async with place.running():
        for number in range(200):
            place.node = TWO if number % 2 else of(gpu(0), gpu(1), gpu(2))
            await asyncio.sleep(LABELS_LOOK_S)
    assert len(place.writes) <= 1 + 200 * LABELS_LOOK_S / RENEW_S


@pytest.mark.parametrize("stays", [1, 2, 3, 5])
async def test_no_series_of_changes_is_written_more_often_than_at_every_second_look(
    place: Place, stays: int
) -> None:
    async with place.running():
        for number in range(120):
            place.node = TWO if number // stays % 2 else ONE
            await asyncio.sleep(LABELS_LOOK_S)
    assert len(place.writes) <= 1 + 120 / 2


async def test_a_restarted_agent_leaves_a_file_that_is_right(place: Place) -> None:
    async with place.running():
        pass
    place.keeper = place.new_keeper()
    async with place.running():
        await asyncio.sleep(RENEW_S / 2)
    assert len(place.writes) == 1


async def test_while_no_gpu_answers_the_file_stays_until_it_ends(place: Place) -> None:
    place.node = of()
    FeatureFile(place.folder).write(gpu_labels(ONE), time.time() + 20 * LABELS_LOOK_S)
    place.writes.clear()
    async with place.running():
        await asyncio.sleep(18 * LABELS_LOOK_S)
        assert place.labels() == gpu_labels(ONE)
        await asyncio.sleep(3 * LABELS_LOOK_S)
        assert place.labels() == {}
        assert place.writes == []


async def test_a_clock_that_was_set_back_does_not_leave_labels_that_end_late(place: Place) -> None:
    FeatureFile(place.folder).write(gpu_labels(ONE), time.time() + 30 * 86400)
    async with place.running():
        assert place.labels() == gpu_labels(ONE)
        found = FeatureFile(place.folder).read()
        assert found is not None
        assert found.expires - time.time() <= EXPIRY_S


async def test_a_file_of_another_form_is_replaced(place: Place) -> None:
    place.put(FEATURE_FILE, "nvidia.com/gpu.count=9\n")
    async with place.running():
        assert place.labels() == gpu_labels(ONE)


# GPU Feature Discovery


@pytest.mark.parametrize("name", ["gfd", "another-name"])
async def test_beside_a_file_with_our_labels_nothing_is_written(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.put(name)
    async with place.running():
        await asyncio.sleep(10 * LABELS_LOOK_S)
        assert not place.file.exists()
        remark = (
            f"cluster gpu-labels: not written, because {FEATURES_FOLDER}/{name} sets the labels of the GPUs. Remove "
            "GPU Feature Discovery and what it has left, or set nfd.gpuLabels: false"
        )
        assert place.deliveries.remarks() == (remark,)
        assert len([one for one in caplog.records if "are not written" in one.message]) == 1
        (place.folder / name).unlink()
        await asyncio.sleep(LABELS_LOOK_S)
        assert place.labels() == gpu_labels(ONE)
        assert place.deliveries.remarks() == ()


async def test_a_file_that_comes_later_ends_ours(place: Place) -> None:
    async with place.running():
        assert place.file.exists()
        place.put("gfd")
        await asyncio.sleep(LABELS_LOOK_S)
        assert not place.file.exists()


async def test_gfd_without_gpus_of_its_own_counts_too(place: Place) -> None:
    place.node = of()
    FeatureFile(place.folder).write(gpu_labels(ONE), time.time() + EXPIRY_S)
    place.put("gfd")
    async with place.running():
        assert not place.file.exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other", "example.com/rack=7\n"),
        ("comment", "# nvidia.com/gpu.product=X\n"),
        (".gfd", GFD_TEXT),
        ("ended", f"# +expiry-time=2020-01-01T00:00:00Z\n{GFD_TEXT}"),
        ("too-large", GFD_TEXT + "#" * 65536),
    ],
)
async def test_files_that_set_none_of_our_labels_do_not_matter(place: Place, name: str, text: str) -> None:
    place.put(name, text)
    (place.folder / "folder").mkdir()
    os.mkfifo(place.folder / "pipe")
    (place.folder / "nowhere").symlink_to("/nonexistent")
    async with place.running():
        assert place.labels() == gpu_labels(ONE)


NODE_FEATURE = {
    "apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
    "metadata": {"name": "nvidia-features-for-gpu-0", "namespace": "gpu-operator"},
    "spec": {"labels": {"nvidia.com/gpu.count": "8"}},
}  # fmt: skip


@asynccontextmanager
async def asked(place: Place, client: ApiClient) -> AsyncIterator[None]:
    place.keeper.asking = True
    task = asyncio.ensure_future(follow_gfd_object(client, "gpu-0", place.keeper))
    try:
        async with place.running():
            yield
    finally:
        task.cancel()


async def test_beside_the_object_of_gfd_nothing_is_written(
    place: Place, server: ApiServer, client: ApiClient
) -> None:
    server.put(node_feature_definition())
    server.put(NODE_FEATURE)
    async with asked(place, client):
        await until(lambda: place.keeper.gfd_object)
        (look,) = (one for one in server.requests if one.verb == "list")
        assert "resourceVersion=0" in look.query.split("&"), "a read of etcd by each agent"
        await asyncio.sleep(LABELS_LOOK_S)
        assert not place.file.exists()
        (remark,) = place.deliveries.remarks()
        assert "because NodeFeature gpu-operator/nvidia-features-for-gpu-0 sets the labels" in remark


async def test_the_object_of_another_node_does_not_matter(
    place: Place, server: ApiServer, client: ApiClient
) -> None:
    server.put(node_feature_definition())
    server.put({**NODE_FEATURE, "metadata": {"name": "nvidia-features-for-gpu-01", "namespace": "a"}})
    async with asked(place, client):
        await until(place.file.exists)


@pytest.mark.parametrize("status", [403, 404])
async def test_without_the_right_or_the_definition_the_file_is_the_only_sign(
    place: Place, server: ApiServer, client: ApiClient, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    if status == 403:
        server.put(node_feature_definition())
        server.fail("403", verb="list", resource="nodefeatures", times=None)
    with caplog.at_level("INFO"):
        async with asked(place, client):
            await until(place.file.exists)
    told = [one for one in caplog.records if "by its file alone" in one.message]
    assert len(told) == (1 if status == 403 else 0)


async def test_nothing_is_written_before_the_api_server_has_answered(
    place: Place, server: ApiServer, client: ApiClient
) -> None:
    server.put(node_feature_definition())
    server.fail("500", verb="list", resource="nodefeatures", times=None)
    async with asked(place, client):
        await asyncio.sleep(10 * LABELS_LOOK_S)
        assert not place.file.exists()
        server.heal()
        await until(place.file.exists)


# Faults


async def test_without_the_folder_the_remedy_is_on_the_page(place: Place) -> None:
    place.folder.rmdir()
    async with place.running():
        assert place.deliveries.remarks() == (
            f"cluster gpu-labels: does not reach Node Feature Discovery: {label_keeper.NO_FOLDER}",
        )
        assert not place.folder.exists(), "NFD alone makes it"
        place.folder.mkdir()
        await asyncio.sleep(LABELS_LOOK_S)
        assert place.labels() == gpu_labels(ONE)
        assert place.deliveries.remarks() == ()


async def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.running():
        before = place.file.read_bytes()
        place.node = TWO

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", full)
            await asyncio.sleep(2 * LABELS_LOOK_S)
            assert place.file.read_bytes() == before
            assert [one.name for one in place.folder.iterdir()] == [FEATURE_FILE]
            (remark,) = place.deliveries.remarks()
            assert "No space left on device" in remark
        await asyncio.sleep(LABELS_LOOK_S)
        assert place.labels() == gpu_labels(TWO)


# Switched off


async def test_switched_off_the_file_is_removed_and_those_of_others_stay(place: Place) -> None:
    FeatureFile(place.folder).write(gpu_labels(ONE), time.time() + EXPIRY_S)
    place.put("gfd")
    core = agent_core()._replace(tree=Tree(place.root))
    part = start_labels(core, NfdSettings(), lambda: OfferedGpus(mps=False, by_profile=False))
    assert (part.writers, [*part.tasks]) == ({}, ["gpu-labels"])
    core.settled.set()
    task = asyncio.ensure_future(part.tasks["gpu-labels"](None))
    try:
        await until(lambda: not place.file.exists())
        assert [one.name for one in place.folder.iterdir()] == ["gfd"]
    finally:
        task.cancel()


async def test_switched_off_without_the_folder_nothing_happens(tmp_path: Path) -> None:
    core = agent_core()._replace(tree=Tree(tmp_path))
    part = start_labels(core, NfdSettings(), lambda: OfferedGpus(mps=False, by_profile=False))
    core.settled.set()
    task = asyncio.ensure_future(part.tasks["gpu-labels"](None))
    await asyncio.sleep(60)
    assert not task.done()
    assert [*tmp_path.iterdir()] == []
    task.cancel()
