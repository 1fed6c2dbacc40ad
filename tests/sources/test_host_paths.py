"""The files of the driver that containers get: from the host's root, or from the operator's driver container."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

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


def mounts(tree: Tree, driver_root: str | None = None) -> list[tuple[str, str]]:
    found = list(driver_files(tree, driver_root))
    assert all(isinstance(mount, Mount) and mount.read_only for mount in found)
    return [(mount.host_path, mount.container_path) for mount in found]


def test_the_driver_of_the_host_comes_before_the_one_of_a_container(tmp_path: Path) -> None:
    both = (LIBRARY, PROGRAM, CONTAINER + LIBRARY, CONTAINER + PROGRAM)
    assert mounts(installed(tmp_path, *both)) == [(LIBRARY, LIBRARY), (PROGRAM, PROGRAM)]


def test_a_driver_in_a_container_has_its_files_at_their_usual_places(tmp_path: Path) -> None:
    """The host may have a program without a library: it is not of this driver."""
    found = mounts(installed(tmp_path, PROGRAM, CONTAINER + LIBRARY, CONTAINER + PROGRAM))
    assert found == [(CONTAINER + LIBRARY, LIBRARY), (CONTAINER + PROGRAM, PROGRAM)]


def test_a_driver_without_its_program_has_libraries_alone(tmp_path: Path) -> None:
    assert mounts(installed(tmp_path, LIBRARY)) == [(LIBRARY, LIBRARY)]


TALOS = "/usr/local/glibc/usr/lib/libcuda.so.1"
GKE = "/home/kubernetes/bin/nvidia"


def in_both(library: str) -> list[tuple[str, str]]:
    """Where the images of Debian's and of Red Hat's family look for it."""
    folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
    return [(library, f"{folder}/libcuda.so.1") for folder in folders]


def test_the_libraries_of_talos_are_where_programs_look_for_them(tmp_path: Path) -> None:
    assert mounts(installed(tmp_path, TALOS)) == in_both(TALOS)


@pytest.mark.parametrize("root", [GKE, f"{GKE}/", f"{GKE}/lib64"])
def test_a_driver_elsewhere_is_found_by_its_folder_or_the_one_above(tmp_path: Path, root: str) -> None:
    library, program = f"{GKE}/lib64/libcuda.so.1", f"{GKE}/bin/nvidia-smi"
    tree = installed(tmp_path, library, program)
    assert mounts(tree) == []
    with_program = [(program, PROGRAM)] if not root.endswith("lib64") else []
    assert mounts(tree, root) == in_both(library) + with_program


def test_a_driver_root_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    assert mounts(installed(tmp_path, LIBRARY), GKE) == []
