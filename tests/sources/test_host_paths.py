"""The files of the driver that containers get: from the host's root, or from the operator's driver container."""

from __future__ import annotations

from pathlib import Path

from nodeagent.facts.model import Mount
from nodeagent.host.sysfs import Tree
from nodeagent.sources.host_paths import driver_files

LIBRARY, PROGRAM = "/usr/lib64/libcuda.so.1", "/usr/bin/nvidia-smi"
CONTAINER = "/run/nvidia/driver"


def installed(root: Path, *paths: str) -> Tree:
    for path in paths:
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return Tree(root)


def mounts(tree: Tree) -> list[tuple[str, str]]:
    assert all(isinstance(mount, Mount) and mount.read_only for mount in driver_files(tree))
    return [(mount.host_path, mount.container_path) for mount in driver_files(tree)]


def test_the_driver_of_the_host_comes_before_the_one_of_a_container(tmp_path: Path) -> None:
    both = (LIBRARY, PROGRAM, CONTAINER + LIBRARY, CONTAINER + PROGRAM)
    assert mounts(installed(tmp_path, *both)) == [(LIBRARY, LIBRARY), (PROGRAM, PROGRAM)]


def test_a_driver_in_a_container_has_its_files_at_their_usual_places(tmp_path: Path) -> None:
    """The host may have a program without a library: it is not of this driver."""
    found = mounts(installed(tmp_path, PROGRAM, CONTAINER + LIBRARY, CONTAINER + PROGRAM))
    assert found == [(CONTAINER + LIBRARY, LIBRARY), (CONTAINER + PROGRAM, PROGRAM)]


def test_a_driver_without_its_program_has_libraries_alone(tmp_path: Path) -> None:
    assert mounts(installed(tmp_path, LIBRARY)) == [(LIBRARY, LIBRARY)]
