"""``make quick`` finds the tests of each file: the table "Which tests" of CONTRIBUTING.md is whole."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "hack"))

import quick  # noqa: E402


def test_each_room_has_tests_and_each_folder_of_tests_belongs_to_a_room() -> None:
    rooms = quick.tests_of_rooms()
    assert not [room for room in rooms if not (ROOT / room).exists()]
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert not {test for tests in rooms.values() for test in tests} - {f"tests/{name}" for name in folders}
    own = {path for path in (ROOT / "nodeagent").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert not {path.name for path in own} - {Path(room).name for room in rooms}
    assert folders - {"vm", "real_gpu"} <= {Path(test).name for tests in rooms.values() for test in tests}


def test_the_longest_path_decides_and_a_path_is_no_start_of_a_name() -> None:
    rooms = {
        "nodeagent": ["tests/agent"],
        "nodeagent/kube": ["tests/kube"],
        "tests/golden": ["tests/metrics"],
        "Dockerfile": ["tests/daemonset"],
    }
    for path, tests in {
        "nodeagent/kube/client.py": {"tests/kube"},
        "nodeagent/kubelet/plugin.py": {"tests/agent"},
        "tests/kubelet/test_plugin.py": {"tests/kubelet"},
        "tests/golden/metrics.txt": {"tests/metrics"},
        "Dockerfile": {"tests/daemonset"},
    }.items():
        assert quick.tests_for([path], rooms) == (tests, set()), path
    assert quick.tests_for(["LICENSE"], rooms) == (set(), {"LICENSE"})


def test_a_moved_file_counts_in_both_rooms_and_a_new_one_without_git(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words], cwd=tmp_path, check=True
        )

    (tmp_path / "old").mkdir()
    (tmp_path / "old/file.py").write_text("text = 1\n" * 20)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("mv", "old", "new")
    (tmp_path / "untracked").touch()
    assert quick.changed_files("HEAD", tmp_path) == {"old/file.py", "new/file.py", "untracked"}
