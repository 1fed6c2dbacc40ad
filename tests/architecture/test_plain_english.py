"""Everything that people read is plain English: no archaic words, no personification, no long sentences.

The test checks comments, docstrings, texts and test names of Python files, comments and descriptions of YAML files, and
the pages. It leaves out code: code blocks and code spans of pages, identifiers, and generated parts of pages, whose
source is checked instead.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = {
    "docs/metrics.md": "generated from nodeagent/",
    "docs/verified.md": "generated from the names of the tests",
    "daemonset/chart/templates": "generated from the kustomization",
    "daemonset/monitoring/prometheusrule.yaml": "generated from rules.yaml",
    "daemonset/monitoring/dashboards": "generated from hack/dashboards.py",
    "tests/golden": "outputs, whose texts are checked in nodeagent/",
    "tests/architecture/test_plain_english.py": "contains the words that this test refuses",
}
"""Files and folders that are not checked, and why. All others in the repository are."""
ALLOWED = {
    "The user nobody": "the name of a user in every Unix system",
    "runs as nobody": "the same user",
    "nobody (65532)": "the same user",
    "silent: check address": "a value of the label state of nodeagent_switches",
    '"said":': "a field of state files",
}
"""Phrases that are removed before a sentence is checked, with the reason."""
WORDS_MAX = 40
"""In a sentence. About 20 is the aim; the limit allows lists."""

WORDS = {
    r"whoever|whomever|whosoever": "name the subject: the program, the node, the caller",
    r"whom": "name the object",
    r"anew": "again",
    r"lest": "so that … not",
    r"nought|naught": "nothing, zero",
    r"hither|thither|thereof|whence": "an archaic word",
    r"for ever": "forever, without limit",
    r"nobody|somebody": "name the part: no pod, another owner, an administrator",
    r"told": "receives, is informed, configured: say who gets which data",
    r"tells?|telling": "reports, shows, distinguishes",
    r"speaks?|spoken|speaking|spoke": "uses a protocol, sends, publishes",
    r"silent|silence|falls? silent": "does not answer, has no data",
    r"hears?|hearing|heard": "receives",
    r"says?|said|saying": "shows, contains, reports",
    r"wants|wanted to|wishes": "needs, is configured",
    r"knows": "has, contains, detects",
    r"remembers?|forgets": "stores, keeps, loses",
    r"condemns?|condemned|vouch(?:es)?": "marks as failed; confirms",
    r"believes?|believed": "accepts, uses",
    r"judges?|judged|judging|verdicts?": "evaluates; health, state, result",
    r"wears? out|mercy|taken leave|struck off|aloud": "a figure of speech",
    r"stands? against|what stands": "active fault",
    r"word (?:by|for) word|without a word": "unchanged; silently",
    r"mends?|mended": "fix, correct",
    r"goes on|go on": "continues",
    r"ours|of our own": "nodeagent's",
    r"save for": "except",
    r"in vain|at last|by and by|nay|ere|thus|hence": "an archaic word",
}
WORD = re.compile("|".join(rf"(?P<w{n}>\b(?:{words})\b)" for n, words in enumerate(WORDS)), re.IGNORECASE)
RIDDLE = re.compile(r"\s*(What|Whoever|Whatever|Who|Those that|That which)\s")


@dataclass(frozen=True)
class Text:
    """A text with the line on which it starts."""

    path: str
    line: int
    text: str
    docstring: bool = False
    prose: bool = True
    """Whether the length of its sentences is checked: not that of a literal of a program."""


@dataclass(frozen=True)
class Finding:
    text: Text
    sentence: str
    problem: str

    def __str__(self) -> str:
        return f"{self.text.path}:{self.text.line}: {self.problem}\n    {self.sentence}"


# Texts of each kind of file


def python(path: str, source: str) -> Iterator[Text]:
    documentation = set()
    for node in ast.walk(ast.parse(source)):  # a statement comes before its value
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test_"):
                yield Text(path, node.lineno, node.name.replace("_", " "))
            case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                documentation.add(constant)
                yield Text(path, node.lineno, text, docstring=True)
            case ast.Constant(value=str(text)) if node not in documentation and len(text.split()) > 1:
                yield Text(path, node.lineno, text, prose=False)
    if "#" in source:
        yield from comments(path, python_comments(source))


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#!|#\s*(noqa|type:|fmt:|ruff:)", token.string):
            yield token.start[0], re.sub(r"#\s*(noqa|type:|fmt:).*", "", token.string.lstrip("# "))


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
    for allowed in ALLOWED:
        plain = plain.replace(allowed, "X")
    for paragraph in re.split(r"\n\s*\n|\n\s*[*-] |\n(?=\S[^\n]*\S {3})", plain):  # also lists in columns
        joined = " ".join(paragraph.split())
        yield from (part for part in re.split(r"(?<=[.!?:])\)?\s+|\s[\u2013\u2014]\s", joined) if part)


def problems(text: Text) -> Iterator[Finding]:
    if text.docstring and (match := RIDDLE.match(text.text)) is not None:
        yield Finding(
            text, text.text.strip().splitlines()[0], f"a docstring starts with {match[1]!r}: name the thing"
        )
    for sentence in sentences(text):
        for match in WORD.finditer(sentence):
            advice = list(WORDS.values())[int(str(match.lastgroup)[1:])]
            yield Finding(text, sentence, f"{match[0]!r}: {advice}")
        count = len(re.findall(r"\S*[^\W\d]\S*", sentence))  # without numbers
        if text.prose and count > WORDS_MAX:
            yield Finding(text, sentence, f"{count} words in a sentence, {WORDS_MAX} at most")


def files() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        path
        for path in done.stdout.splitlines()
        if not any(path == out or path.startswith(f"{out}/") for out in LEFT_OUT)
    ]


@pytest.mark.parametrize("path", files())
def test_a_file_is_plain_english(path: str) -> None:
    if found := [str(finding) for text in texts(path) for finding in problems(text)]:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        ("a.py", '"""What it is."""', "starts with 'What'"),
        ("a.py", "# The agent is told\n# of it.", "'told'"),
        ("a.py", 'def f():\n    """Begin.\n\n    It is told.\n    """', "'told'"),
        ("a.py", 'x = f"{x} is silent: {y}"', "'silent'"),
        ("a.py", "x = 'the driver speaks again'", "'speaks'"),
        ("a.py", "def test_nobody_is_here(): ...", "'nobody'"),
        ("a.md", "A line\nto whom it concerns.", "'whom'"),
        ("a.md", "| a | is heard |", "'heard'"),
        ("a.md", " ".join(["word"] * 41), "41 words"),
        ("a.yaml", "a: 1  # mended", "'mended'"),
        ("a.yaml", "description: >-\n  nobody\n  comes", "'nobody'"),
        ("a.proto", "// Says so.", "'Says'"),
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
        ("a.py", "told = 1  # noqa: E501 told"),
        ("a.md", "The label `silent` and\n\n```\nnobody\n```\n"),
        ("a.md", "<!-- x: begin -->\nnobody\n<!-- x: end -->\n"),
        ("a.py", f'x = "{" ".join(["word"] * 60)}"'),
        ("a.md", f"| {', '.join(map(str, range(60)))} | ignored |"),
    ],
)
def test_it_leaves_out_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: str) -> None:
    (tmp_path / path).write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [finding for text in texts(path) for finding in problems(text)] == []
