"""hack/ledger.py counts the code, the imports and the users of a small package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from hack.ledger import COMPOSITION, RoomSize, code_lines, function_lengths, ledger, table

ROOT = Path(__file__).parents[2]
LONG = "def long():\n" + "".join(f"    x{n} = {n}\n" for n in range(50))
FILES = {
    "__init__.py": '"""The package."""\n',
    "agent.py": "from pack.lldp import frame\nfrom pack.fabric.tree import TREE\n\nprint(frame, TREE)\n",
    "lldp/__init__.py": "",
    "lldp/frame.py": "import pack.lldp.codec\nfrom pack.lldp.link import (\n    Link,\n)\n",
    "lldp/codec.py": f"# A comment\n\n{LONG}",
    "lldp/link.py": "class Link: ...\n",
    "fabric/__init__.py": "",
    "fabric/tree.py": "TREE = 1\n",
    "fabric/links.py": "from pack.lldp.link import Link\n",
    "fabric/links_pb2.py": "MADE = 1\n",
}


def package(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "pack"


def test_each_room_has_a_row(tmp_path: Path) -> None:
    rows = ledger(package(tmp_path))
    assert rows == {
        COMPOSITION: RoomSize(code_lines=3, import_lines=2, modules=2, one_user=0, long_functions=0),
        "fabric": RoomSize(code_lines=2, import_lines=1, modules=3, one_user=0, long_functions=0),
        # Only codec has one user in its room: frame is used by the composition, link also by another room.
        "lldp": RoomSize(code_lines=56, import_lines=4, modules=4, one_user=1, long_functions=1),
    }
    *_, total = table(rows).splitlines()
    assert total.split() == ["total", "61", "7", "9", "1", "1"]


def test_code_is_no_blank_line_no_comment_and_no_docstring() -> None:
    source = (
        '"""A module."""\n\nclass A:\n    """A class."""\n\n    # A comment\n    def f(self):  # another\n'
        '        """A function\n\n        of two lines.\n        """\n        return """a\n\n        # text"""\n'
    )
    tree = ast.parse(source)
    assert code_lines(source, tree) == {3, 7, 12, 13, 14}
    assert [*function_lengths(tree, code_lines(source, tree))] == [("A.f", 4)]


def test_it_prints_the_table_of_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "hack/ledger.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    head, *rows, total = done.stdout.splitlines()
    assert head.split()[:3] == ["room", "code", "lines"]
    assert {row.split()[0] for row in rows} >= {COMPOSITION, "kubelet", "lldp", "web"}
    assert int(total.split()[1]) == sum(int(row.split()[1]) for row in rows) > 10_000
