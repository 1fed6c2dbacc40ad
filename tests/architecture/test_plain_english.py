"""Everything that people read is plain English: no long sentence, no docstring that starts with a riddle.

The test checks comments, docstrings and test names of Python files, comments and descriptions of YAML files, and
the pages. It leaves out code: code blocks and code spans of pages, identifiers, and generated parts of pages, whose
source is checked instead.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.syntax_trees import no_garbage_collection

ROOT = Path(__file__).parents[2]
LEFT_OUT = {
    "docs/reference/metrics.md": "generated from nodeagent/",
    "daemonset/chart/templates": "generated from the kustomization",
    "daemonset/monitoring/prometheusrule.yaml": "generated from rules.yaml",
    "daemonset/monitoring/dashboards": "generated from hack/dashboards.py",
    "docs/pictures": "made by tests/web/test_pictures.py",
    "tests/golden": "outputs, whose texts are checked in nodeagent/",
}
"""Files and folders that are not checked, and why. All others in the repository are."""
WORDS_MAX = 45
"""In a sentence. About 20 is the aim; the limit allows lists."""
RIDDLE = re.compile(r"\s*(What|Whoever|Whatever|Who|Those that|That which)\s")


@dataclass(frozen=True)
class Text:
    """A text with the line on which it starts."""

    path: str
    line: int
    text: str
    docstring: bool = False


@dataclass(frozen=True)
class Finding:
    text: Text
    sentence: str
    problem: str

    def __str__(self) -> str:
        return f"{self.text.path}:{self.text.line}: {self.problem}\n    {self.sentence}"


# Texts of each kind of file


STRING_OR_COMMENT = re.compile(
    r"""'{3}(?:[^\\]|\\.)*?'{3}|"{3}(?:[^\\]|\\.)*?"{3}|'(?:[^\\\n']|\\.)*'|"(?:[^\\\n"]|\\.)*"|(?P<comment>\#[^\n]*)""",
    re.S,
)
"""A string of Python 3.11, whose f-strings hold no quotes of their own kind. ``tokenize`` takes ten times as long."""


def python(path: str, source: str) -> Iterator[Text]:
    for node in statements(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test_"):
                yield Text(path, node.lineno, node.name.replace("_", " "))
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Text(path, node.lineno, text, docstring=True)
    yield from comments(path, python_comments(source))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement at any depth; most nodes are in expressions, which are left out."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    line = at = 0
    for found in STRING_OR_COMMENT.finditer(source):
        comment = found["comment"]
        if comment and not re.match(r"#!|#\s*(noqa|type:|fmt:|ruff:)", comment):
            line, at = line + source.count("\n", at, found.start()), found.start()
            yield line + 1, re.sub(r"#\s*(noqa|type:|fmt:).*", "", comment.lstrip("# "))


def line_comments(source: str, sign: str) -> Iterator[tuple[int, str]]:
    pattern = re.compile(rf"(?:^|\s){sign}+\s(.*)$")
    for number, line in enumerate(source.splitlines(), 1):
        if (match := pattern.search(line)) is not None:
            yield number, match[1]


def comments(path: str, found: Iterator[tuple[int, str]]) -> Iterator[Text]:
    """Comments on consecutive lines are one text; an indented one is code."""
    block: list[str] = []
    first = last = 0
    for line, comment in found:
        if comment.startswith(" "):
            continue
        if block and line != last + 1:
            yield Text(path, first, " ".join(block))
            block = []
        first = first if block else line
        block.append(comment)
        last = line
    if block:
        yield Text(path, first, " ".join(block))


def yaml(path: str, source: str) -> Iterator[Text]:
    yield from comments(path, line_comments(source, "#"))
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        match = re.search(r"\b(?:description|summary|message|messageExpression): *(.*)$", line)
        if match is None:
            continue
        text, indent = match[1], len(line) - len(line.lstrip())
        if text in ("|", ">", ">-", "|-"):
            body = []
            for more in lines[number:]:
                if more.strip() and len(more) - len(more.lstrip()) <= indent:
                    break
                body.append(more.strip())
            text = " ".join(body)
        yield Text(path, number, text)


def markdown(path: str, source: str) -> Iterator[Text]:
    """Paragraphs, list items and cells, without code and generated parts."""
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731 - keeps the line numbers
    source = re.sub(r"<!-- ([\w ]+): begin -->.*?<!-- \1: end -->", blank, source, flags=re.S)
    source = re.sub(r"<!-- rules -->.*?<!-- end -->", blank, source, flags=re.S)
    source = re.sub(r"^(\s*)```.*?^\s*```", blank, source, flags=re.S | re.M)
    block: list[str] = []
    first = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        starts = re.match(r"\s*(?:[-*] |\d+\. |#|\|)", line)
        if block and (starts or not line.strip()):
            yield Text(path, first, " ".join(block))
            block = []
        if line.startswith("|"):
            yield from (Text(path, number, cell) for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -"))
        elif line.strip() and not line.startswith("    "):
            first = first if block else number
            block.append(line.strip())


def texts(path: str) -> Iterator[Text]:
    source = (ROOT / path).read_text()
    if path.endswith(".py"):
        yield from python(path, source)
    elif path.endswith((".yaml", ".toml")):
        yield from yaml(path, source)
    elif path.endswith((".md", "NOTES.txt")):
        yield from markdown(path, source)
    elif path.endswith((".proto", ".c")):
        yield from comments(path, line_comments(source, "//"))
    elif Path(path).suffix in ("", ".sh"):
        yield from comments(path, line_comments(source, "#"))


# What is wrong with a text


def sentences(text: Text) -> Iterator[str]:
    plain = text.text
    if text.docstring:  # indented blocks are code
        plain = re.sub(r"\n\n((?:    .*\n|\n)+)", "\n\n", inspect.cleandoc(plain))
    plain = re.sub(r"``[^`]*``|`[^`]*`", "X", plain)
    plain = re.sub(r"\]\([^)]*\)", "]", plain)
    for paragraph in re.split(r"\n\s*\n|\n\s*[*-] |\n(?=\S[^\n]*\S {3})", plain):  # also lists in columns
        joined = " ".join(paragraph.split())
        yield from (part for part in re.split(r"(?<=[.!?:])\)?\s+|\s[\u2013\u2014]\s", joined) if part)


def problems(text: Text) -> Iterator[Finding]:
    if text.docstring and (match := RIDDLE.match(text.text)) is not None:
        yield Finding(
            text, text.text.strip().splitlines()[0], f"a docstring starts with {match[1]!r}: name the thing"
        )
    if len(text.text.split()) <= WORDS_MAX:
        return
    for sentence in sentences(text):
        count = len(re.findall(r"\S*[^\W\d]\S*", sentence))  # without numbers
        if count > WORDS_MAX:
            yield Finding(text, sentence, f"{count} words in a sentence, {WORDS_MAX} at most")


def files() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        path
        for path in done.stdout.splitlines()
        if not any(path == out or path.startswith(f"{out}/") for out in LEFT_OUT)
    ]


def test_files_are_plain_english() -> None:
    with no_garbage_collection():
        found = [str(finding) for path in files() for text in texts(path) for finding in problems(text)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


LONG = " ".join(["word"] * 46)


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        ("a.py", '"""What it is."""', "starts with 'What'"),
        ("a.py", f"# {' '.join(['word'] * 23)}\n# {' '.join(['word'] * 23)}", "46 words"),
        ("a.py", f'def f():\n    """Begin.\n\n    {LONG}.\n    """', "46 words"),
        ("a.py", f"def test_{LONG.replace(' ', '_')}(): ...", "47 words"),
        ("a.md", LONG.replace(" ", "\n", 1), "46 words"),
        ("a.md", f"| a | {LONG} |", "46 words"),
        ("a.yaml", f"a: 1  # {LONG}", "46 words"),
        ("a.yaml", f"description: >-\n  {LONG.replace(' ', chr(10) + '  ', 1)}", "46 words"),
        ("a.proto", f"// {LONG}", "46 words"),
    ],
)
def test_it_finds_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: str, problem: str
) -> None:
    (tmp_path / path).write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    found = [str(finding) for text in texts(path) for finding in problems(text)]
    assert len(found) == 1, found
    assert problem in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", f"x = 1  # noqa: E501 {LONG}"),
        ("a.md", f"The label `{LONG}` and\n\n```\n{LONG}\n```\n"),
        ("a.md", f"<!-- x: begin -->\n{LONG}\n<!-- x: end -->\n"),
        ("a.md", " ".join(["word"] * 45)),
        ("a.py", f'x = "{LONG}"'),
        ("a.md", f"| {', '.join(map(str, range(60)))} | ignored |"),
    ],
)
def test_it_leaves_out_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: str) -> None:
    (tmp_path / path).write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [finding for text in texts(path) for finding in problems(text)] == []
