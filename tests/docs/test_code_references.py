"""CONTRIBUTING.md and the pages about the code name files, functions and classes that exist.

A reference is text in backticks: a path such as `nodeagent/kubelet/plugin.py`, or a path and a name, such as
`kubelet/plugin.py:Plugin.allocate`. Paths start at the root of the repository or at the package.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.manifests import ROOT

PAGES = (
    *("CONTRIBUTING.md", "docs/design.md", "docs/invariants.md", "docs/recipes.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "decisions").glob("*.md")),
)
PATH = re.compile(
    r"(?<![\w/*])((?:[\w.-]+/)*[\w-]+\.(?:py|toml|yaml|proto|md|sh))(?::([A-Za-z_][\w.]*))?(?!\w)"
)


def references(page: str) -> list[tuple[str, str]]:
    """Each (path, name) of the page; the name is empty where the page names a file only."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = [*re.findall(r"```.*?```", text, re.S), *re.findall(r"`[^`\n]+`", text)]
    return sorted({(path, name) for block in code for path, name in PATH.findall(block)})


def located(path: str) -> Path | None:
    candidates = (ROOT / path, ROOT / "nodeagent" / path, ROOT / "docs" / path)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def names(path: Path) -> frozenset[str]:
    """Every definition of a module: `function`, `Class`, `Class.method`, `CONSTANT`."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
            elif isinstance(child, ast.If | ast.Try):
                visit(child, prefix)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_each_file_and_name_that_the_page_mentions_exists(page: str) -> None:
    missing = []
    for path, name in references(page):
        file = located(path)
        if file is None:
            missing.append(path)
        elif name and name not in names(file):
            missing.append(f"{path}:{name}")
    assert not missing
