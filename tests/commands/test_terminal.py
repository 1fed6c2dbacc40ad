"""Tables and sentences on terminals of any width, in color, and redrawn in place."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.console.terminal import Screen, columns, remarks, screen_section
from tests.support.waiting import await_bytes

HEADS = ("NAME", "PCI ADDRESS", "STATE", "NOTE")
WORDS = st.text("abcxyz-:.0", min_size=1, max_size=14)
CELLS = st.lists(WORDS, max_size=6).map(" ".join)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@given(ROWS, st.integers(40, 120))
def test_a_table_that_can_fit_does_and_no_word_is_broken(rows: list[tuple[str, ...]], width: int) -> None:
    table = columns(HEADS, rows, Screen(width), optional=("NOTE", "NAME"))
    left_out = table[-1].partition("not shown in this width: ")[2].split(", ")
    shown = [i for i, head in enumerate(HEADS) if head not in left_out]
    words = sorted(word for row in (HEADS, *rows) for i in shown for word in row[i].split())
    lines = table[:-1] if left_out != [""] else table
    assert sorted(word for line in lines for word in line.split()) == words
    longest = [
        max((len(word) for row in (HEADS, *rows) for word in row[i].split()), default=0) for i in shown
    ]
    fits = sum(longest) + 2 * (len(longest) - 1) <= width
    assert all(len(line) <= width for line in lines) is fits
    assert fits or "NAME" in left_out, "a column is left out before a line is too long"


@given(ROWS)
def test_without_a_terminal_a_row_is_one_line(rows: list[tuple[str, ...]]) -> None:
    assert len(columns(HEADS, rows)) == 1 + len(rows)


FOREIGN = st.text(st.characters(), max_size=12)


@given(st.lists(st.tuples(FOREIGN, CELLS, FOREIGN, CELLS), min_size=1, max_size=5))
def test_a_file_gets_the_lines_of_a_wide_terminal(rows: list[tuple[str, ...]]) -> None:
    assert columns(HEADS, rows) == columns(HEADS, rows, Screen(10_000))


def test_a_narrow_terminal_gets_the_shorter_cells_first_and_then_less_columns() -> None:
    rows, short = [("GPU-3a3372fa-989f", "ab cd", "down", "-")], {"NAME": ["GPU-3a33"]}
    wide = columns(HEADS, rows, Screen(80), shorter=short, optional=("NOTE",))
    assert wide == columns(HEADS, rows)
    assert "GPU-3a33 " in columns(HEADS, rows, Screen(40), shorter=short, optional=("NOTE",))[1]
    assert columns(HEADS, rows, Screen(24), shorter=short, optional=("NOTE",))[-1].endswith("width: NOTE")


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    table = columns(("RULE", "FOR"), [("a rule with a long name of many words", "15 min")], Screen(20))
    assert any(line.endswith("15 min") for line in table)


def test_foreign_text_cannot_set_colors_and_is_no_markup() -> None:
    row = ("[red]x[/red]", "\x1b[31mred", ":smile:", "https://a.b")
    (line,) = columns(HEADS, [row], Screen(200, color=True))[1:]
    assert ESCAPE.sub("", line).split() == ["[red]x[/red]", "\\x1b[31mred", ":smile:", "https://a.b"]


def test_states_have_colors_where_the_screen_has() -> None:
    rows = [("a", "0000:18:00.0", "healthy", "down"), ("b", "0000:40:00.0", "down (held)", "-")]
    text = screen_section("NICS", HEADS, rows, Screen(80, color=True))
    assert "\x1b[32mhealthy" in text
    assert "\x1b[31mdown (held)" in text
    assert "\x1b[31mdown\x1b" not in text, "the word in a note is no state"
    assert ESCAPE.sub("", text).split() == screen_section("NICS", HEADS, rows).split()


def test_sentences_wrap_below_their_beginning() -> None:
    text = remarks(
        "REASONS", ["GPU0: unhealthy: xid_79: the GPU has fallen off the bus", "    for 3 s"], Screen(40)
    )
    assert text.splitlines() == [
        "REASONS", "  GPU0: unhealthy: xid_79: the GPU has", "    fallen off the bus", "      for 3 s",
    ]  # fmt: skip


def _on_terminal(script: str, width: int = 80, **environment: str) -> str:
    """Return the output of a program on a terminal of this width."""
    end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    inherited = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.Popen(
        [sys.executable, "-c", script], stdin=terminal, stdout=terminal, stderr=subprocess.PIPE,
        env=inherited | {"TERM": "xterm"} | environment, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(terminal)
    written = b""
    while True:
        await_bytes(end)
        try:
            part = os.read(end, 65536)
        except OSError:  # EIO: the program has closed its side
            break
        if not part:
            break
        written += part
    os.close(end)
    _, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors.decode()
    return written.decode()


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colors_are_for_terminals_that_want_them(environment: dict[str, str], colored: bool) -> None:
    rules = "from nodeagent.cli import main; raise SystemExit(main(['health', 'rules']))"
    written = _on_terminal(rules, **environment)
    assert bool(ESCAPE.search(written)) is colored
    assert all(len(line) <= 80 for line in ESCAPE.sub("", written).splitlines())


LEFT_OUT = ("not", "shown", "in", "this", "width:", "RAIL,", "RAIL", "GROUP", "PLANNED")


@pytest.mark.parametrize(
    "arguments",
    ["topology", "topology --whole", "plan", "explain gpu-004", "explain hall1-su1-leaf3", "cabling"],
)
def test_the_shipped_sample_fits_80_columns_and_no_word_is_broken(arguments: str) -> None:
    words = [*arguments.split(), "--from", "docs/samples/nodelinks.yaml"]
    written = _on_terminal(f"from nodeagent.cli import main; main({words})", NO_COLOR="1")
    assert [line for line in written.splitlines() if len(line) > 80] == []
    piped = subprocess.run(
        [sys.executable, "-m", "nodeagent", *words], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert piped.stdout
    assert set(written.split()) <= {*piped.stdout.split(), *LEFT_OUT}


def test_a_sentence_on_stderr_wraps_on_a_terminal_only() -> None:
    sentence = "a sentence on stderr that is longer than the forty columns of this terminal"
    script = f"import os, sys; os.dup2(1, 2); from nodeagent.console.terminal import note; note({sentence!r})"
    written = _on_terminal(script, width=40).splitlines()
    assert len(written) > 1
    assert all(len(line) <= 40 for line in written)
    assert " ".join(" ".join(written).split()) == f"nodeagent: {sentence}"
    piped = subprocess.run(
        [sys.executable, "-c", script.replace("os.dup2(1, 2); ", "")], capture_output=True, text=True,
        check=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert piped.stderr == f"nodeagent: {sentence}\n"


WATCH = """
from nodeagent.console.terminal import watching
with watching() as show:
    for i in range(3):
        show(f"state {i}")
"""


def test_a_watch_draws_each_moment_at_the_same_place_and_leaves_the_last_one() -> None:
    written = _on_terminal(WATCH)
    inside, _, after = written.rpartition("\x1b[?1049l")
    assert inside.count("state") == 3
    home = inside.split("state")[1:]
    assert all("\x1b[H" in between for between in home[:-1]), (
        "the cursor returns to the top before each moment"
    )
    assert ESCAPE.sub("", after).split() == ["state", "2"]


def test_a_watch_in_a_pipe_prints_one_moment_below_the_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH], capture_output=True, text=True, check=True, timeout=60,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.splitlines() == ["state 0", "state 1", "state 2"]


@pytest.mark.parametrize(
    ("columns", "longest"),
    [("60", 60), ("", 200), ("wide", 200), ("100000", 200)],
    ids=["60", "none", "text", "huge"],
)
def test_a_terminal_elsewhere_has_the_width_that_its_caller_gives(columns: str, longest: int) -> None:
    """`kubectl nodeagent` passes the columns of its terminal: the verb writes into a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "topology", "--from", "docs/samples/nodelinks.yaml"],
        capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[2],
        env=dict(os.environ) | {"NODEAGENT_COLUMNS": columns},
    )  # fmt: skip
    most = max(map(len, done.stdout.splitlines()))
    assert (most <= 60) is (longest == 60)
