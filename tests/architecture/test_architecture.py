"""The architecture is a test: who may import whom, what no file may hold, and what the linters say.

The import contracts themselves stand in pyproject.toml (``tool.importlinter``); the reasons in docs/design.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 400
LONG = {
    "nodeagent/kubelet/registration.py": "one loop, whose parts make sense in one reading only",
}
"""Longer than LINES_MAX, and why that is better than a split."""
CATCH_ALL = {"nodeagent/supervise.py", "nodeagent/cli.py"}
"""The supervisor, whose job it is, and the outermost door of the command line."""
PURE = (
    "model.py",
    "offer.py",
    "affinity.py",
    "cdi.py",
    "health/",
    "lldp/",
    "kinds/",
    "config/",
    "fabric/",
    "kubelet/device_list.py",
)
LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X{3}|HA" + r"CK)\b")

SOURCES = sorted(path for path in (ROOT / "nodeagent").rglob("*.py") if "_pb2" not in path.name)
OTHERS = sorted(path for folder in ("tests", "hack") for path in (ROOT / folder).rglob("*.py"))

CHECKS = {
    "every import goes down": [
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-logo",
    ],
    "ruff finds nothing": ["-m", "ruff", "check", "."],
    "everything is formatted": ["-m", "ruff", "format", "--check", "."],
    "every type is strict": ["-m", "mypy"],
}


@pytest.mark.parametrize("arguments", CHECKS.values(), ids=CHECKS)
def test_the_linters_agree(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_file_begins_with_its_law() -> None:
    missing = [
        name(path)
        for path in (*SOURCES, *OTHERS)
        if path.stat().st_size and not ast.get_docstring(tree(path))
    ]
    assert not missing


def test_a_file_fits_in_one_reading() -> None:
    long = {name(path) for path in SOURCES if len(path.read_text().splitlines()) > LINES_MAX}
    assert long == set(LONG), "split the file, or say in LONG why it is better whole (or no more long)"


def test_nothing_is_left_for_later() -> None:
    written = [*SOURCES, *OTHERS, *(ROOT / "protos").iterdir(), ROOT / "Makefile", ROOT / "pyproject.toml"]
    assert not [name(path) for path in written if LATER.search(path.read_text())]


def test_everything_is_caught_in_two_places_only() -> None:
    assert {name(path) for path in SOURCES if any(catches_all(tree(path)))} == CATCH_ALL


def catches_all(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None or everything(node.type):
                yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            yield from filter(everything, node.args)


def everything(expression: ast.AST) -> bool:
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def test_pure_rooms_open_nothing_and_print_nothing() -> None:
    """Their imports are bound by contract; these names need none."""
    called = {
        (name(path), node.func.id)
        for path in SOURCES
        if path.relative_to(ROOT / "nodeagent").as_posix().startswith(PURE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {
        call for call in called if call[1] in {"open", "print", "input", "exec", "eval", "__import__"}
    }


def test_values_are_frozen() -> None:
    """A fact that could change would be two facts."""
    loose = [
        node.name
        for node in tree(ROOT / "nodeagent" / "model.py").body
        if isinstance(node, ast.ClassDef)
        and not node.bases
        and not any("frozen=True, slots=True" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert not loose


def test_tests_patch_nothing() -> None:
    """A stand-in is a small real thing; a patch is an opinion about the code it is put into."""
    guilty = [name(path) for path in OTHERS for module in imported(tree(path)) if "mock" in module.split(".")]
    assert not guilty


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


@pytest.mark.parametrize(
    ("module", "costs"),
    [
        ("nodeagent.cli", {"grpc", "msgspec", "yaml", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.config", {"grpc", "google", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.commands.scan.listing", {"grpc", "google", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.agent", {"google", "prometheus_client", "pyroute2", "pynvml"}),
    ],
)
def test_what_is_not_used_is_not_loaded(module: str, costs: set[str]) -> None:
    """``--help`` answers at once, and a node without GPUs never pays for NVML."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert not costs & set(done.stdout.split())
