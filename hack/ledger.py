"""Print the size of the program: code, modules and imports of each room, and what is worth a look.

Code lines are lines with code: no blank lines, comments and docstrings. A module with one user is imported by exactly
one other module, which is in the same room: the two may be one. The ledger shows and never fails.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FUNCTION_LINES_MAX = 50
COMPOSITION = "composition"
"""The row of the modules beside the rooms: they put the rooms together."""

_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


@dataclass
class RoomSize:
    code_lines: int = 0
    import_lines: int = 0
    modules: int = 0
    one_user: int = 0
    long_functions: int = 0

    def add(self, other: RoomSize) -> None:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines with code."""
    documentation = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return lines - documentation


def function_lengths(tree: ast.Module, code: set[int]) -> Iterator[tuple[str, int]]:
    """Each function as ``Class.function`` with its code lines; those of inner functions count for the outer one too."""
    for name, node in definitions(tree):
        if not isinstance(node, ast.ClassDef):
            yield name, sum(line in code for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def definitions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each class and function at any depth, with its name in the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def imported(tree: ast.Module) -> Iterator[str]:
    """Each absolute name of an import: ``from a import b`` may be the module ``a.b`` or a name in ``a``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def import_lines(tree: ast.Module) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def ledger(package: Path) -> dict[str, RoomSize]:
    """A row for each folder of the package and one for its own modules, without generated ones."""
    paths = sorted(path for path in package.rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc")))
    modules = {module(path, package): path for path in paths}
    users: dict[str, set[str]] = {name: set() for name in modules}
    rows: dict[str, RoomSize] = {}
    for name, path in modules.items():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        code = code_lines(source, tree)
        rows.setdefault(room(path, package), RoomSize()).add(
            RoomSize(
                code_lines=len(code),
                import_lines=import_lines(tree),
                modules=1,
                long_functions=sum(lines > FUNCTION_LINES_MAX for _, lines in function_lengths(tree, code)),
            )
        )
        for used in set(imported(tree)) & modules.keys() - {name}:
            users[used].add(name)
    for name, (*others,) in users.items():
        path = modules[name]
        if len(others) == 1 and room(modules[others[0]], package) == room(path, package):
            rows[room(path, package)].one_user += path.name != "__init__.py"
    return rows


def module(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def room(path: Path, package: Path) -> str:
    folder, *rest = path.relative_to(package).parts
    return folder if rest else COMPOSITION


def table(rows: dict[str, RoomSize]) -> str:
    total = RoomSize()
    for row in rows.values():
        total.add(row)
    columns = [name.replace("_", " ") for name in vars(total)]
    lines = [f"{'room':<14}" + "".join(f"{column:>16}" for column in columns)]
    for name, row in [*sorted(rows.items()), ("total", total)]:
        lines.append(f"{name:<14}" + "".join(f"{count:>16}" for count in vars(row).values()))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(ledger(Path(__file__).parents[1] / "nodeagent")))
