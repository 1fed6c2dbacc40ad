"""Tables and sentences for people: the only door of rich, which each function imports when it draws.

In a file or a pipe a row is one line without color, whatever its length. On a terminal a table fits the width: cells
wrap between words and never inside one, and states have a color unless NO_COLOR is set. Foreign text is escaped.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.base.plain_text import one_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

GAP = "  "
_WIDTH_MIN = 40
"""Minimum number of columns of a table; the terminal wraps what is wider than itself."""

OLD = "(old)"
"""The end of a cell whose value is not measured any more: gray where there are colors."""

_COLORS = {
    "green": "healthy Healthy live current planned present unchanged ok up",
    "yellow": "degraded miscabled warning unknown stale expired entering clearing slow no-lldp held differs warn",
    "red": "unhealthy Unhealthy down deaf away active missing elsewhere failed refused fix",
}
_COLOR_OF = {word: color for color, words in _COLORS.items() for word in words.split()}
_WORD = re.compile(r"^\s*\S+ (?:s|min|h|d|%|°C|MiB|GiB|W|MHz)\b(?: \d+ (?:s|min|h)\b)?|^\s*\S+|\S+")
"""A word with the indent before it; a number and its unit, and a duration of two units, are one word."""
_STATE_HEADS = frozenset(("STATE", "KUBELET", "HEALTH", "PHASE", "LINK", "LLDP"))


class Screen(NamedTuple):
    """``width``: columns of the terminal; ``None``: a file or a pipe."""

    width: int | None = None
    color: bool = False


PLAIN = Screen()


def screen() -> Screen:
    """Describe stdout. Rich evaluates COLUMNS, NO_COLOR, FORCE_COLOR and TERM. A caller with a terminal elsewhere, as
    ``kubectl nodeagent``, gives its columns in NODEAGENT_COLUMNS."""
    from rich.console import Console

    console = Console()
    elsewhere = os.environ.get("NODEAGENT_COLUMNS", "")
    width = max(console.width, _WIDTH_MIN) if sys.stdout.isatty() else None
    if width is None and elsewhere.isdecimal() and len(elsewhere) < 5:
        width = max(int(elsewhere), _WIDTH_MIN)
    return Screen(width, color=console.color_system is not None and not console.no_color)


def columns(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    on: Screen = PLAIN,
    *,
    optional: Sequence[str] = (),
    shorter: Mapping[str, Sequence[str]] | None = None,
    below: Sequence[Sequence[str]] = (),
) -> list[str]:
    """The lines of a table; every row has one cell for each head. A cell without a value (``None``) is a hyphen.
    ``below``: the sentences below each row, if the table has any.

    A terminal may be narrower than the words of the table. ``shorter`` are other cells of a column for this case, one
    for each row. Then the columns ``optional`` are left out, in this order, and the last line names them.
    """
    cells = [["-" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
    shown = [*range(len(heads))]
    if on == PLAIN:
        widths = _natural(heads, cells, shown)
        return _with_below([[_padded(row, widths)] for row in (heads, *cells)], below, on)
    if on.width is not None and _width(_natural(heads, cells, shown)) > on.width:
        for head, texts in (shorter or {}).items():
            for row, text in zip(cells, texts, strict=True):
                row[heads.index(head)] = one_line(text)
        for head in optional:
            if _width(_longest_words(heads, cells, shown)) > on.width:
                shown.remove(heads.index(head))
    widths = _fitting(heads, cells, shown, on.width)
    blocks = [cells] if not below else [[], *([row] for row in cells)]
    drawn = [_block(heads, rows, shown, widths, on, with_heads=not i) for i, rows in enumerate(blocks)]
    lines = _with_below(drawn, below, on)
    left_out = [head for i, head in enumerate(heads) if i not in shown]
    if left_out:
        lines.append(f"not shown in this width: {', '.join(left_out)}")
    return lines


def _with_below(rows: Sequence[list[str]], below: Sequence[Sequence[str]], on: Screen) -> list[str]:
    """The lines of the heads and of each row, with the sentences below it."""
    sentences: list[Sequence[str]] = [(), *below, *[()] * len(rows)]
    return [
        line
        for row, texts in zip(rows, sentences, strict=False)
        for line in (*row, *(part for text in texts for part in wrapped(text, on, 2 * GAP)))
    ]


def _block(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[int],
    widths: Sequence[int],
    on: Screen,
    *,
    with_heads: bool,
) -> list[str]:
    """The lines of some rows of a table."""
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(
        *(Column(heads[i], width=width) for i, width in zip(shown, widths, strict=True)),
        box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold", show_header=with_heads,
    )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(row[i], style=_style(heads[i], row[i])) for i in shown))
    return _drawn(table, _width(widths) + len(GAP), on)


def screen_section(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    on: Screen = PLAIN,
    *,
    optional: Sequence[str] = (),
    shorter: Mapping[str, Sequence[str]] | None = None,
    absent: str = "none",
    below: Sequence[Sequence[str]] = (),
) -> str:
    """A table with a title, or the title and ``absent``; the other parameters are those of ``columns``."""
    inner = on if on.width is None else on._replace(width=on.width - len(GAP))
    rows = [*rows]
    lines = columns(heads, rows, inner, optional=optional, shorter=shorter, below=below) if rows else [absent]
    return "\n".join([_bold(title, on), *(f"{GAP}{line}" for line in lines), ""])


def remarks(title: str, lines: Sequence[str], on: Screen = PLAIN) -> str:
    """Sentences with a title; an empty text if there are none."""
    if not lines:
        return ""
    return "\n".join([_bold(title, on), *(part for line in lines for part in wrapped(line, on, GAP)), ""])


def joined(*parts: str) -> str:
    """The sections and remarks of a listing; those that are empty are left out."""
    return "\n".join(filter(None, parts))


def beginnings(uuids: Sequence[str], least: int = 12) -> list[str]:
    """The shortest unique prefixes of equal length; CUDA_VISIBLE_DEVICES accepts them.

    >>> beginnings(["GPU-3a3372fa-989f", "GPU-3a3372fa-1111", "GPU-61ba988e-3ee2"])
    ['GPU-3a3372fa-9', 'GPU-3a3372fa-1', 'GPU-61ba988e-3']
    """
    longest = max(map(len, uuids), default=0)
    for size in range(least, longest):
        if len({uuid[:size] for uuid in uuids}) == len(set(uuids)):
            return [uuid[:size] for uuid in uuids]
    return list(uuids)


def wrapped(sentence: str, on: Screen = PLAIN, indent: str = "") -> list[str]:
    """The lines of a sentence, the first one with ``indent`` and the others with two columns more."""
    sentence = indent + one_line(sentence)
    if on.width is None:
        return [sentence]
    margin = sentence[: len(sentence) - len(sentence.lstrip(" "))] + GAP
    return textwrap.wrap(
        sentence,
        on.width,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def note(sentence: str) -> None:
    """Print a sentence on stderr; on a terminal it wraps."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):  # a file, a pipe, or no file at all
        width = None
    print("\n".join(wrapped(f"nodeagent: {sentence}", Screen(width))), file=sys.stderr, flush=True)


def tell(text: str) -> bool:
    """Print what a verb has written, once all is written. If the reader of stdout has gone, stderr gets it, and the
    result is ``False``."""
    if not text:
        return True
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_stdout()
        note("the reader of the output has gone; this is written all the same:")
        print(text, file=sys.stderr, flush=True)
        return False
    return True


def discard_stdout() -> None:
    """The reader of stdout (`head`, a pager) has ended; the flush at exit would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def colored(word: str, on: Screen) -> str:
    """A state in its color."""
    from rich.text import Text

    return word if not on.color else _drawn(Text(word, style=_style("STATE", word)), len(word), on)[0]


@contextmanager
def watching(*, in_place: bool = True) -> Iterator[Callable[[str], object]]:
    """A function that shows the text of each moment: in place on a terminal, one below the other elsewhere.

    The terminal returns to what it showed before, with the last text below it. The key q ends the block.
    """
    if not (in_place and sys.stdout.isatty()):
        yield lambda text: print(text, flush=True)
        return
    from nodeagent.console.watch_screen import WatchScreen

    watch = WatchScreen()
    try:
        with watch:
            yield watch.show
    except (KeyboardInterrupt, CancelledError):
        if not watch.ended:
            raise
    finally:
        print(watch.text, flush=True)


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    """A row as rich draws it without wrapping and color, in a tenth of the time: a plan may have 30,000 rows."""
    from rich.cells import cell_len

    padded = (text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True))
    return GAP.join(padded).rstrip()


def _natural(heads: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    """The widths without a line break."""
    from rich.cells import cell_len

    return [max(cell_len(text) for text in (heads[i], *(row[i] for row in cells))) for i in shown]


def _longest_words(heads: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    from rich.cells import cell_len

    return [
        max(
            cell_len(word)
            for text in (heads[i], *(row[i] for row in cells))
            for word in _WORD.findall(text) or [""]
        )
        for i in shown
    ]


def _fitting(
    heads: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int], room: int | None
) -> list[int]:
    """Widths whose sum fits, if words allow it: the widest column that can become narrower does, first."""
    widths = _natural(heads, cells, shown)
    least = _longest_words(heads, cells, shown)
    while room is not None and _width(widths) > room:
        reducible = [i for i, width in enumerate(widths) if width > least[i]]
        if not reducible:
            break
        widths[max(reducible, key=lambda i: widths[i])] -= 1
    return widths


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _style(head: str, text: str) -> str:
    if text.endswith(OLD):
        return "dim"
    word = re.match(r"[\w-]*", text)
    return _COLOR_OF.get(word.group(), "") if word and head in _STATE_HEADS else ""


def _bold(title: str, on: Screen) -> str:
    from rich.text import Text

    return _drawn(Text(title, style="bold"), len(title) + 1, on)[0] if on.color else title


def _drawn(what: Table | Text, width: int, on: Screen) -> list[str]:
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=on.color, no_color=not on.color, legacy_windows=False,
        color_system="standard" if on.color else None, highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    console.print(what, soft_wrap=False)
    return [line.rstrip() for line in file.getvalue().splitlines()]
