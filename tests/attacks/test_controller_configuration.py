"""The controller's ConfigMap changes while it leads: good content, bad content, no content, and a named pipe.

Conditions: a controller leads against the stand-in API server, and its files are swapped as the kubelet swaps a
ConfigMap. What must hold: good content is in force without a restart and without a change of the leader. Bad content
is refused with its lines, in the log, on /readyz and in the metric, and the running configuration stays. Many moves at
once are held.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.config import followed_configuration
from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import read_fabric
from nodeagent.kube.access import Access
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import FIRST, SECOND, cluster, groups, labels
from tests.support.waiting import until

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
TIMES = "hysteresis: {moveSeconds: 0.2, settleSeconds: 0, debounceSeconds: 0.05, holdSeconds: 300, holdNodes: 2}\n"
KEY = "topology.nodeagent.io/tier-1"
OTHER = "example.com/tier-1"
OTHER_KEYS = 'labels: {keys: ["example.com/tier-{tier}"]}\n'
DEFAULT_KEYS = 'labels: {keys: ["topology.nodeagent.io/tier-{tier}"]}\n'


class ConfigMap:
    """A mounted ConfigMap: each key is a link to ``..data/KEY``, and ``..data`` a link to a folder."""

    def __init__(self, folder: Path, **data: str) -> None:
        self.folder = folder
        self._swaps = 0
        folder.mkdir()
        self.swap(**data)
        for key in data:
            (folder / f"{key}.yaml").symlink_to(f"..data/{key}.yaml")

    @property
    def file(self) -> Path:
        return self.folder / "fabric.yaml"

    def swap(self, **data: str) -> None:
        self._swaps += 1
        version = self.folder / f"..{self._swaps}"
        version.mkdir()
        for key, text in data.items():
            (version / f"{key}.yaml").write_text(HEAD + TIMES + text if key == "fabric" else text)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")


@asynccontextmanager
async def leading(server: ApiServer, file: Path) -> AsyncIterator[Controller]:
    """A controller that follows the file and has written the tree and the labels."""
    settings = ReplicaSettings("nodeagent", "a", "127.0.0.1:0", None, 3.0, 2.0, 0.2)
    config, topology = read_fabric(file)
    controller = Controller(config, Access(server.url, token=server.token()), settings, topology)
    controller.fabric.follow(file)
    task = asyncio.create_task(controller.run())
    try:
        await until(lambda: groups(server) == [FIRST, SECOND], "the tree")
        await until(lambda: all(KEY in labels(server, node) for node in FIRST + SECOND), "the labels")
        yield controller
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled() or task.exception() is None


async def page(controller: Controller, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", await controller.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


def leader(server: ApiServer) -> tuple[str, int]:
    lease = server.find("leases", "nodeagent-controller", "nodeagent")
    assert lease is not None
    return lease["spec"]["holderIdentity"], lease["spec"].get("leaseTransitions", 0)


async def test_a_swapped_config_map_is_in_force_without_a_restart(tmp_path: Path) -> None:
    files = ConfigMap(tmp_path / "c", fabric="")
    async with cluster() as server, leading(server, files.file) as controller:
        before = leader(server)
        files.swap(fabric=OTHER_KEYS)
        await until(lambda: all(OTHER in labels(server, node) for node in FIRST + SECOND), "the other label")
        assert groups(server) == [FIRST, SECOND]
        assert controller.hypernodes.writes == {("create", "ok"): 2}
        parts = controller.fabric.parts
        files.swap(fabric="")
        await until(lambda: controller.fabric.parts is not parts)
        await until(lambda: controller.progress.outcome is not None, "a plan with the last configuration")
        assert leader(server) == before
        assert "nodeagent_configuration_in_force 1" in (await page(controller, "/metrics"))[1]


async def test_the_parts_of_a_configuration_that_was_replaced_are_freed(tmp_path: Path) -> None:
    files = ConfigMap(tmp_path / "c", fabric="")
    async with cluster() as server, leading(server, files.file) as controller:
        before = weakref.ref(controller.planner)
        files.swap(fabric="minLinks: 1\n")
        await until(lambda: controller.planner is not before() and controller.progress.outcome is not None)
        assert before() is None


async def test_a_changed_topology_file_is_in_force(tmp_path: Path) -> None:
    def known(*names: str) -> str:
        entries = "".join(f"- {{name: {name}, nodes: [node-0{i}]}}\n" for i, name in enumerate(names))
        return f"apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\ngroups:\n{entries}"

    def fabric(server: ApiServer) -> list[list[str]]:
        return [group for group in groups(server) if len(group) == 1]

    files = ConfigMap(tmp_path / "c", fabric="", topology=known("rack-a"))
    async with cluster() as server, leading(server, files.file):
        files.swap(fabric="topology: topology.yaml\n", topology=known("rack-a"))
        await until(lambda: fabric(server) == [["node-00"]], "the group of the topology file")
        files.swap(fabric="topology: topology.yaml\n", topology=known("rack-a", "rack-b"))
        await until(lambda: fabric(server) == [["node-00"], ["node-01"]], "the second group")


async def test_a_change_that_moves_many_nodes_is_held(tmp_path: Path) -> None:
    """The topology file puts half of each unit into the other."""
    moved = (
        "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\ngroups:\n"
        "- {name: a, nodes: [node-00, node-01, node-12, node-13]}\n"
        "- {name: b, nodes: [node-10, node-11, node-02, node-03]}\n"
    )
    files = ConfigMap(tmp_path / "c", fabric="", topology=moved)
    async with cluster() as server, leading(server, files.file) as controller:
        files.swap(fabric="topology: topology.yaml\n", topology=moved)
        await until(lambda: controller.progress.held, "the hold")
        outcome = controller.progress.outcome
        assert outcome is not None
        assert outcome.breaker is not None
        assert outcome.breaker.moves == 4
        assert groups(server) == [FIRST, SECOND]


async def test_bad_content_is_refused_with_its_lines_and_the_running_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ConfigMap(tmp_path / "c", fabric=DEFAULT_KEYS)
    async with cluster() as server, leading(server, files.file) as controller:
        before = controller.fabric.parts
        files.swap(fabric="minLink: 3\nforeign: sometimes\n")
        await until(lambda: controller.fabric.error)
        refused = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
        assert len(refused) == 2
        assert "fabric.yaml:4:1: minLink: " in refused[0]
        assert "did you mean minLinks?" in refused[0]
        assert "fabric.yaml:5:" in refused[1]
        status, text = await page(controller, "/readyz")
        assert status == 200
        assert "configuration: refused, the running one stays: " in text
        assert "minLink" in text
        assert "nodeagent_configuration_in_force 0" in (await page(controller, "/metrics"))[1]
        files.swap(fabric=DEFAULT_KEYS)
        await until(lambda: not controller.fabric.error)
        assert "configuration" not in (await page(controller, "/readyz"))[1]
        assert controller.fabric.parts is before, "nothing was replaced"


def deleted(file: Path) -> None:
    file.unlink()


def as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def without_its_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (deleted, "No such file"),
        (as_pipe, "a named pipe"),
        (as_folder, "no file in this folder ends in .yaml"),
        (without_its_folder, "No such file"),
    ],
)
async def test_a_file_that_cannot_be_read_changes_nothing_and_its_successor_is_in_force(
    attack: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_configuration, "CONFIG_RETRY_S", 0.2)
    file = tmp_path / "c" / "fabric.yaml"
    file.parent.mkdir()
    file.write_text(HEAD + TIMES)
    async with cluster() as server, leading(server, file) as controller:
        attack(file)
        await until(lambda: reason in controller.fabric.error, "the fault")
        assert (await page(controller, "/healthz"))[0] == 200
        assert controller.lease.leading
        if file.is_dir():
            file.rmdir()
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".tmp")
        part.write_text(HEAD + TIMES + OTHER_KEYS)
        part.replace(file)
        await until(lambda: all(OTHER in labels(server, node) for node in FIRST + SECOND), "the other label")
        assert not controller.fabric.error


async def test_fragments_come_change_break_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder ``fabric.d`` that appears beside the file, and a ConfigMap whose keys change in it."""
    caplog.set_level(logging.INFO)
    main = tmp_path / "c"
    main.mkdir()
    file = main / "fabric.yaml"
    file.write_text(HEAD + TIMES)
    async with cluster() as server, leading(server, file) as controller:
        before = leader(server)
        fragments = ConfigMap(main / "fabric.d", keys=OTHER_KEYS)
        await until(
            lambda: all(OTHER in labels(server, node) for node in FIRST + SECOND), "the fragment's label"
        )
        assert "The changed configuration is in force." in caplog.text
        fragments.swap(keys=OTHER_KEYS, more=OTHER_KEYS)
        (main / "fabric.d" / "more.yaml").symlink_to("..data/more.yaml")
        twice = (
            f"labels.keys: is set twice, in {main}/fabric.d/keys.yaml:1 and in {main}/fabric.d/more.yaml:1"
        )
        await until(lambda: twice in controller.fabric.error, "the refusal")
        assert (
            f"refused, the running one stays: {main}/fabric.d/more.yaml:1"
            in (await page(controller, "/readyz"))[1]
        )
        assert all(OTHER in labels(server, node) for node in FIRST + SECOND)
        fragments.swap(more="jobs: nonsense\n")
        await until(lambda: "more.yaml:1:7: jobs: must be true or false" in controller.fabric.error)
        fragments.swap(keys=DEFAULT_KEYS)
        await until(lambda: not controller.fabric.error, "the end of the fault")
        assert caplog.text.count("The changed configuration is in force.") == 2
        assert leader(server) == before


async def test_a_fault_that_stays_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_configuration, "CONFIG_RETRY_S", 0.01)
    caplog.set_level(logging.INFO)
    file = tmp_path / "fabric.yaml"
    file.write_text(HEAD)
    reads = 0

    def read() -> str:
        nonlocal reads
        reads += 1
        raise OSError("the disk does not answer")

    followed = followed_configuration.FollowedConfiguration("", read, lambda _text: (), lambda: [tmp_path])
    task = asyncio.create_task(followed.run())
    await until(lambda: reads > 5)
    task.cancel()
    await asyncio.wait((task,))
    assert caplog.text.count("the disk does not answer") == 1
