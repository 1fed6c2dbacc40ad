"""``nodeagent mps`` is privileged, and the agent, which is not, may write to its folder; clients write to the pipes.

Each attack puts something else in the place of a file or a folder. None is followed, waited for or written to.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.base.file_writing import replace_file
from nodeagent.host.foreign_folder import ForeignFolder
from nodeagent.host.mps_control import LOG, LOG_MAX
from nodeagent.sharing.mps_files import DaemonState, DaemonStates, MpsFiles, WantedDaemons
from tests.sharing.mps_node import GPUS, MpsNode, ended, mps_node

ONE = GPUS[0]
SECRET = b'{"gpus": ["GPU-5ec4e7"], "daemons": [{"uuid": "GPU-5ec4e7"}]}'

Put = Callable[[Path, Path], object]
ATTACKS: dict[str, Put] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "second name": lambda path, victim: path.hardlink_to(victim),
    "named pipe": lambda path, _: os.mkfifo(path),
    "endless device": lambda path, _: path.symlink_to("/dev/zero"),
    "folder": lambda path, _: path.mkdir(),
    "socket": lambda path, _: bind(path),
}


def bind(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MpsNode]:
    with mps_node(tmp_path) as node:
        yield node


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    path.chmod(0o640)
    return path


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_in_the_place_of_a_file_is_not_read(node: MpsNode, victim: Path, attack: str) -> None:
    files, put = node.files, ATTACKS[attack]
    for name, use in {
        "wanted.json": files.read_wanted,
        "daemons.json": files.read_states,
        "lock": files.is_locked,
    }.items():
        put(node.folder / name, victim)
        with pytest.raises(OSError, match=name):
            use()
    with pytest.raises(OSError, match="lock"):
        files.take_lock()
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (SECRET, 0o640)


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_not_read(node: MpsNode) -> None:
    node.want(ONE)
    os.chown(node.folder / "wanted.json", 1000, 1000)
    with pytest.raises(OSError, match="user 1000 owns it"):
        node.files.read_wanted()


def test_a_large_file_is_not_read(node: MpsNode) -> None:
    (node.folder / "wanted.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(OSError, match="larger than"):
        node.files.read_wanted()


@pytest.mark.parametrize("attack", ["link", "second name", "named pipe", "endless device", "socket"])
def test_what_is_in_the_place_of_a_file_is_replaced_by_a_write(
    node: MpsNode, victim: Path, attack: str
) -> None:
    for name in ("wanted.json", "daemons.json"):
        ATTACKS[attack](node.folder / name, victim)
    node.files.write_wanted(WantedDaemons((ONE,)))
    node.files.write_states(DaemonStates((DaemonState(ONE, pid=7),)))
    assert node.files.read_wanted().gpus == (ONE,)
    assert node.files.read_states().daemons[0].pid == 7
    assert victim.read_bytes() == SECRET


@pytest.mark.parametrize(
    "change",
    [{"pid": 0}, {"pid": -1}, {"pid": 1 << 23}, {"pid": 10**40}, {"pid": 1.5}, {"obstacle": "x" * 5000}],
)
def test_a_state_with_a_value_out_of_bounds_is_no_state(node: MpsNode, change: dict[str, object]) -> None:
    text = json.dumps({"daemons": [{"uuid": ONE} | change]})
    replace_file(node.folder / "daemons.json", text.encode())
    assert node.files.read_states() == DaemonStates()


def test_a_link_in_the_place_of_the_whole_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "mps").symlink_to("victim")
    files = MpsFiles(tmp_path / "mps")
    for use in (files.read_wanted, files.read_states, files.is_locked, files.take_lock, files.guard):
        with pytest.raises(OSError, match="mps"):
            use()
    with pytest.raises(OSError, match="mps"):
        files.write_states(DaemonStates())
    assert list((tmp_path / "victim").iterdir()) == []


async def test_states_that_cannot_be_read_keep_no_daemon_from_its_start(node: MpsNode) -> None:
    os.mkfifo(node.folder / "daemons.json")
    node.files.write_wanted(WantedDaemons((ONE,)))
    task = asyncio.create_task(node.supervisor().run())
    async with asyncio.timeout(30):
        while not node.processes():
            await asyncio.sleep(0.01)
    await node.until(lambda: (node.folder / "daemons.json").is_file() and node.state().pid)
    await ended(task)


@pytest.mark.parametrize("name", ["", "pipe", "log"])
def test_a_link_in_the_place_of_a_folder_starts_no_daemon(node: MpsNode, tmp_path: Path, name: str) -> None:
    """And one below it makes and deletes nothing."""
    victim = tmp_path / "victim"
    for folder in ("", "pipe", "log"):
        (victim / folder).mkdir(parents=True)
        (victim / folder / "control").touch()
    link = node.folder / ONE / name if name else node.folder / ONE
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    control = node.control(ONE)
    with pytest.raises(OSError, match=ONE):
        control.start()
    if name != "log":
        with pytest.raises(OSError, match=ONE):
            control.clear()
    found = {str(path.relative_to(victim)) for path in victim.rglob("*")}
    assert found == {"control", "pipe", "pipe/control", "log", "log/control"}
    assert node.processes() == []


@pytest.mark.parametrize("attack", ["link", "second name", "named pipe"])
def test_the_log_of_a_daemon_is_a_new_file(node: MpsNode, victim: Path, attack: str) -> None:
    control = node.control(ONE)
    control.logs.mkdir(parents=True)
    ATTACKS[attack](control.logs / LOG, victim)
    control.start()
    assert (control.logs / LOG).is_file()
    assert victim.read_bytes() == SECRET


def test_a_long_log_is_emptied_and_nothing_in_its_place(node: MpsNode, victim: Path) -> None:
    control = node.control(ONE)
    control.start()
    log = control.logs / LOG
    with log.open("ab") as file:
        file.write(b"x" * (LOG_MAX + 1))
    control.cut_log()
    assert log.stat().st_size == 0
    log.unlink()
    with victim.open("ab") as file:
        file.truncate(LOG_MAX + 1)
    log.hardlink_to(victim)
    with pytest.raises(OSError, match="second name"):
        control.cut_log()
    assert victim.stat().st_size == LOG_MAX + 1


def test_clients_cannot_make_the_pipes_too_deep_to_delete(node: MpsNode, victim: Path) -> None:
    control = node.control(ONE)
    control.pipes.mkdir(parents=True)
    before = control.pipes.stat().st_ino
    folder = os.open(control.pipes, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("control", dir_fd=folder)
        below = os.open("control", os.O_DIRECTORY, dir_fd=folder)
        os.symlink(victim, "link", dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    try:
        control.clear()
        assert list(control.pipes.iterdir()) == []
    finally:  # pytest cannot delete it either
        subprocess.run(["rm", "-rf", str(control.pipes / "control")], check=True)
    assert control.pipes.stat().st_ino == before, "running containers have this folder mounted"
    assert victim.read_bytes() == SECRET


def test_a_folder_that_is_swapped_after_it_was_opened_changes_nothing(tmp_path: Path) -> None:
    real, victim, moved = tmp_path / "real", tmp_path / "victim", tmp_path / "moved"
    for folder in (real, victim, victim / "pipe"):
        folder.mkdir()
    (victim / "pipe/control").touch()
    with ForeignFolder.at(real) as folder, folder.below("pipe", 0o755) as pipe:
        real.rename(moved)
        real.symlink_to(victim)
        folder.replace("file", b"text")
        pipe.empty()
        assert folder.read("file", 10) == b"text"
    assert {path.name for path in victim.rglob("*")} == {"pipe", "control"}
    assert (moved / "file").read_bytes() == b"text"


@pytest.mark.needs("root")
async def test_a_folder_that_no_agent_writes_to_keeps_its_owner(node: MpsNode) -> None:
    """A link on the host may have led the container runtime to another folder than the agent's."""
    task = asyncio.create_task(node.supervisor().run())
    await node.until(node.files.is_locked)
    assert node.folder.stat().st_uid == 0
    node.want(ONE)
    await node.ready()
    assert (node.folder.stat().st_uid, node.folder.stat().st_mode & 0o7777) == (65534, 0o1771)
    await ended(task)


@pytest.mark.needs("root", "setpriv")
def test_root_without_capabilities_swaps_no_folder_of_a_daemon(node: MpsNode) -> None:
    """The daemon opens its files by path, so nobody with fewer rights may change the path below it."""
    node.files.guard()
    node.control(ONE).start()
    swap = (
        "import os, sys\n"
        "failed = []\n"
        "for name in sys.argv[2:]:\n"
        "    try:\n"
        "        os.rename(f'{sys.argv[1]}/{name}', f'{sys.argv[1]}/moved')\n"
        "    except PermissionError:\n"
        "        failed.append(name)\n"
        "os.close(os.open(f'{sys.argv[1]}/new', os.O_CREAT | os.O_WRONLY))\n"
        "os.rename(f'{sys.argv[1]}/new', f'{sys.argv[1]}/wanted.json')\n"
        "print(*failed)"
    )
    names = [ONE, f"{ONE}/pipe", f"{ONE}/log"]
    confined = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    arguments = [*confined, sys.executable, "-c", swap, node.folder, *names]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, names, "")
