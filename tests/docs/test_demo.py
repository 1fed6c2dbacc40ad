"""README.md and docs/reference/demo.md show what ``nodeagent demo`` prints.

A block between ``<!-- demo: COMMAND -->`` and ``<!-- demo: end -->`` is held against the output of the command. A line
``…`` stands for lines left out, and only README.md leaves lines out. Measured times may differ.
`make golden` rewrites docs/reference/demo.md; the excerpt in README.md is edited by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import golden

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- demo: (nodeagent .+?) -->\n```\n(.*?)```\n<!-- demo: end -->", re.S)
MEASURED = re.compile(r"\b\d+ ms\b|\b\d+\.\d\d s\b")
OMITTED = "…"
README = BLOCK.findall((ROOT / "README.md").read_text())

pytestmark = pytest.mark.needs("root")  # without network namespaces the demo leaves out the switches


def output(command: str) -> str:
    program, *arguments = command.split()
    assert program == "nodeagent"
    argv = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def comparable(text: str) -> list[str]:
    return [MEASURED.sub("N", line).rstrip() for line in text.splitlines()]


COMMANDS = ("nodeagent demo --once", "nodeagent demo --nodes 64 --once", "nodeagent demo --dra --once")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.golden("docs/reference/demo.md")
def test_the_page_shows_all_of_the_output_and_the_readme_lines_of_it_in_this_order(command: str) -> None:
    printed = output(command)

    def with_output(page: str) -> str:
        (block,) = (match for match in BLOCK.finditer(page) if match[1] == command)
        same = comparable(block[2]) == comparable(printed)
        return page if same else page[: block.start(2)] + printed + page[block.end(2) :]

    golden.update(ROOT / "docs/reference/demo.md", with_output)
    for excerpt in (shown for shown_command, shown in README if shown_command == command):
        left = iter(comparable(printed))
        for line in comparable(excerpt):
            assert line.strip() in ("", OMITTED) or line in left, f"{command} does not print {line!r} there"


def test_the_readme_shows_commands_that_the_page_shows() -> None:
    assert README
    assert {command for command, _ in README} <= set(COMMANDS)
