"""``Tree``: absent is None, broken is an exception, and no path leaves the root."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.sysfs import SysfsError, Tree
from tests.support.drawn_trees import BROKEN, Link, grow


def test_an_absent_file_is_none_and_an_absent_folder_is_empty(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.text("/sys/a") is None
    assert tree.integer("/sys/a") is None
    assert tree.link("/sys/a") is None
    assert tree.real("/sys/a") is None
    assert tree.names("/sys") == ()
    assert not tree.exists("/sys")


def test_a_file_in_place_of_a_folder_has_no_names(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"sys/a": "1"}))
    assert tree.text("/sys/a/b") is None
    assert tree.names("/sys/a") == ()


def test_text_loses_only_its_newline(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"a": " DGX H100 "}))
    assert tree.text("/a") == " DGX H100 "
    assert tree.data("/a") == b" DGX H100 \n"


def test_bytes_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\xfeNIC\n")
    text = Tree(tmp_path).text("/a")
    assert text is not None
    assert text.encode("utf-8", "surrogateescape") == b"\xff\xfeNIC"


@pytest.mark.parametrize(("text", "number"), [("-1", -1), ("0x020000", 0x020000), (" 7 ", 7)])
def test_numbers_are_decimal_or_hex(tmp_path: Path, text: str, number: int) -> None:
    assert Tree(grow(tmp_path, {"a": text})).integer("/a") == number


@pytest.mark.parametrize("text", ["", "many", "1.5", "4: ACTIVE"])
def test_a_file_without_a_number_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    tree = Tree(grow(tmp_path, {"sys/a": text}))
    with pytest.raises(SysfsError, match=r"/sys/a holds .*, not a number"):
        tree.integer("/sys/a")


def test_an_unreadable_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"sys/a": BROKEN}))
    with pytest.raises(SysfsError, match=r"^/sys/a cannot be read: Is a directory") as error:
        tree.text("/sys/a")
    assert str(tmp_path) not in str(error.value)


def test_a_file_read_as_a_link_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="/sys/a cannot be read"):
        Tree(grow(tmp_path, {"sys/a": "1"})).link("/sys/a")


def test_relative_links_are_followed(tmp_path: Path) -> None:
    drawing = {"sys/devices/pci0000:00/0000:00:03.0/class": "0x020000"}
    bus = {"sys/bus/pci/devices/0000:00:03.0": Link("../../../devices/pci0000:00/0000:00:03.0")}
    tree = Tree(grow(tmp_path, drawing | bus))
    assert tree.real("/sys/bus/pci/devices/0000:00:03.0") == "/sys/devices/pci0000:00/0000:00:03.0"
    assert tree.integer("/sys/bus/pci/devices/0000:00:03.0/class") == 0x020000
    assert tree.link("/sys/bus/pci/devices/0000:00:03.0") == "0000:00:03.0"


def test_an_absolute_link_starts_at_the_root_given(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"etc/hostname": "captured", "a": Link("/etc/hostname")}))
    assert tree.text("/a") == "captured"
    assert tree.real("/a") == "/etc/hostname"


def test_dots_never_leave_the_root(tmp_path: Path) -> None:
    grow(tmp_path, {"secret": "of the host", "root/sys/a": Link("../../../../secret")})
    tree = Tree(tmp_path / "root")
    assert tree.text("/sys/a") is None
    assert tree.real("/sys/a") is None
    assert tree.text("/../secret") is None
    grow(tmp_path, {"root/secret": "of the machine"})
    assert tree.text("/sys/a") == "of the machine"


def test_a_dangling_link_is_absent_but_has_a_name(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"sys/physfn": Link("../0000:1a:00.0")}))
    assert tree.real("/sys/physfn") is None
    assert tree.text("/sys/physfn") is None
    assert not tree.exists("/sys/physfn")
    assert tree.link("/sys/physfn") == "0000:1a:00.0"


def test_links_in_a_loop_are_an_error_and_not_a_hang(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"sys": {"a": Link("b"), "b": Link("a")}}))
    for read in (tree.text, tree.names, tree.real, tree.exists):
        with pytest.raises(SysfsError, match="/sys/a has too many levels of symbolic links"):
            read("/sys/a")


def test_the_root_may_itself_be_a_link(tmp_path: Path) -> None:
    grow(tmp_path, {"real/a": "1", "root": Link("real")})
    assert Tree(tmp_path / "root").text("/a") == "1"


def test_real_paths_of_the_host_are_those_of_realpath(tmp_path: Path) -> None:
    root = grow(
        tmp_path, {"a/b/file": "1", "near": Link("a/b"), "far": Link("near/../b"), "gone": Link("a/c")}
    )
    (root / "loop").symlink_to(root / "loop")
    for name in ("near", "far", "near/file", "gone", "loop", "absent/file", "a/./b/../b"):
        path = f"{root}/{name}"
        real = os.path.realpath(path)
        assert Tree().real(path) == (real if os.path.lexists(real) else None), name
    assert Tree().real("/proc/self/fd/0/absent") is None


def test_the_host_itself_can_be_read() -> None:
    tree = Tree()
    assert tree.text("/proc/sys/kernel/ostype") == "Linux"
    assert "self" in tree.names("/proc")
    assert tree.real("/proc/mounts") == f"/proc/{tree.link('/proc/self')}/mounts"


_NAMES = st.sampled_from(["a", "b", "c"])
_PATHS = st.lists(_NAMES | st.just(".."), min_size=1, max_size=4).map("/".join)


@given(
    links=st.dictionaries(
        st.lists(_NAMES, min_size=1, max_size=3).map("/".join), _PATHS | _PATHS.map("/{}".format)
    ),
    asked=_PATHS,
)
def test_the_kernel_and_the_walk_resolve_to_the_same_path(links: dict[str, str], asked: str) -> None:
    """Links out of the root, absolute ones and loops included."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(f"{folder}/outer/root")
        for link, target in links.items():
            at = tree.root / link
            with suppress(OSError, RuntimeError):  # in the way of another link, or in a loop
                if at.parent.resolve().is_relative_to(tree.root):
                    at.parent.mkdir(parents=True, exist_ok=True)
                    at.symlink_to(target)
        try:
            walked = tree._walk(f"/{asked}")
        except SysfsError:
            with pytest.raises(SysfsError):
                tree._resolve(f"/{asked}")
        else:
            assert tree._resolve(f"/{asked}") == walked
