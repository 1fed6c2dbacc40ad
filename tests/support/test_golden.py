"""Golden files: a test declares its file, `make golden` finds the test by it, and a difference names the command."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import golden

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "hack"))

import golden as make_golden  # noqa: E402
import quick  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The top folder, with a page that the running test declares."""
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    monkeypatch.setattr(golden, "_DECLARED", ["page-*.md"])
    monkeypatch.delenv("NODEAGENT_GOLDEN", raising=False)
    (tmp_path / "page-1.md").write_text("before\n<!-- begin -->\nold\n<!-- end -->\nafter\n")
    return tmp_path


def test_each_declared_file_is_there() -> None:
    assert not [pattern for pattern in make_golden.pages() if not [*ROOT.glob(pattern)]]


def test_tests_read_the_variable_in_one_place_so_that_none_writes_without_its_mark() -> None:
    listed = subprocess.run(
        ["git", "grep", "-l", "environ.*NODEAGENT_GOLDEN", "tests", ":!tests/support/test_golden.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert {one for one in listed if not one.startswith("tests/vm/")} == {"tests/support/golden.py"}


def test_a_difference_names_the_command_and_the_lines_and_writes_nothing(folder: Path) -> None:
    page = folder / "page-1.md"
    before = page.read_text()
    with pytest.raises(golden.GoldenDiffersError) as caught:
        golden.same_between(page, "<!-- begin -->\n", "<!-- end -->\n", "new\n")
    first, *lines = str(caught.value).splitlines()
    assert first == "page-1.md differs: make golden ROOM=page-1.md, and read the difference"
    assert {"-old", "+new"} <= {*lines}
    assert page.read_text() == before


def test_a_part_is_written_where_its_marks_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = folder / "page-1.md"
    monkeypatch.setenv("NODEAGENT_GOLDEN", "write")
    golden.same_between(page, "<!-- begin -->\n", "<!-- end -->\n", "new\n")
    assert page.read_text() == "before\n<!-- begin -->\nnew\n<!-- end -->\nafter\n"
    golden.same(folder / "page-2.md", "a new file\n")
    assert (folder / "page-2.md").read_text() == "a new file\n"
    with pytest.raises(AssertionError, match="has no 'absent'"):
        golden.same_between(page, "absent", "<!-- end -->", "")


def test_a_file_that_the_test_does_not_declare_is_neither_compared_nor_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODEAGENT_GOLDEN", "write")
    with pytest.raises(AssertionError, match=r'the test needs @pytest.mark.golden\("other.md"\)'):
        golden.same(folder / "other.md", "text")
    assert not (folder / "other.md").exists()


def test_a_room_a_folder_of_tests_a_page_and_a_folder_of_pages_name_their_tests() -> None:
    found = {
        "docs/reference/a.md": {"tests/health/test_a.py", "tests/docs/test_b.py"},
        "docs/samples/b-*.txt": {"tests/docs/test_b.py"},
        "tests/golden/c.txt": {"tests/kube/test_c.py"},
    }
    rooms = {"nodeagent/health": ["tests/health"], "docs/reference/a.md": ["tests/kube"]}
    for name, tests in {
        "nodeagent/health": {"tests/health/test_a.py"},
        "tests/health/": {"tests/health/test_a.py"},
        "tests/docs/test_b.py": {"tests/docs/test_b.py"},
        "docs/reference/a.md": {"tests/health/test_a.py", "tests/docs/test_b.py"},
        "docs/samples/b-1.txt": {"tests/docs/test_b.py"},
        "docs/samples": {"tests/docs/test_b.py"},
        "docs": {"tests/health/test_a.py", "tests/docs/test_b.py"},
        "tests/he": set(),
    }.items():
        assert make_golden.writers(name, found, rooms) == tests, name
    assert make_golden.writers("tests", found, rooms) == set().union(*found.values())
    assert make_golden.writers("nodeagent/health", make_golden.pages(), quick.tests_of_rooms())


def test_a_room_without_golden_files_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_golden.main(["tests/nowhere"]) == 2
    first, *files = capsys.readouterr().out.splitlines()
    assert first.startswith("golden: no test writes a golden file of tests/nowhere")
    assert [one.strip() for one in files] == sorted(make_golden.pages())
