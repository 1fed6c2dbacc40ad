"""`--watch` and the listing of `health` in terminals of tmux, whose pictures are in docs/samples."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from nodeagent.console.watch_screen import matching
from tests.support import golden
from tests.support.needs import which
from tests.support.waiting import until

HERE = Path(__file__).parents[2]
PICTURES = HERE / "docs" / "samples"
WATCHED = """
import asyncio, sys
from pathlib import Path
import msgspec
from nodeagent.commands.health.device_health import as_table
from nodeagent.console.terminal import screen, watching
from nodeagent.health.explain import DeviceView
views = msgspec.json.decode(Path("tests/golden/health-faults.json").read_bytes(), type=tuple[DeviceView, ...])
async def main():
    with watching() as show:
        while True:
            show(as_table(views, screen()))
            await asyncio.sleep(0.2)
    return "ended by q"
print(asyncio.run(main()))
"""


class Tmux:
    """A terminal in a server of its own, which runs one program."""

    def __init__(self, width: int, height: int, script: str) -> None:
        self._socket = f"nodeagent-{uuid4().hex[:8]}"
        program = f"unset COLUMNS LINES; trap : INT; NO_COLOR=1 {sys.executable} -c '{script}'; echo code $?; read end"
        size = ("-x", str(width), "-y", str(height))
        self("-f", "/dev/null", "new-session", "-d", *size, "-c", str(HERE), "sh", "-c", program)

    def __call__(self, *words: str) -> str:
        tmux = which("tmux") or "tmux"
        return subprocess.run(
            [tmux, "-L", self._socket, *words], capture_output=True, text=True, timeout=30, check=True
        ).stdout

    def screen(self, *, shows: str, without: str = "\0") -> str:
        """The screen once it contains the text ``shows``, and no text ``without``."""
        shown = [""]

        def reached() -> bool:
            shown[0] = self("capture-pane", "-p")
            return shows in shown[0] and without not in shown[0]

        asyncio.run(until(reached))
        return shown[0]

    def press(self, *keys: str) -> None:
        self("send-keys", *keys)


@pytest.fixture
def small() -> Iterator[Tmux]:
    yield from _terminal(80, 24)


def _terminal(width: int, height: int) -> Iterator[Tmux]:
    terminal = Tmux(width, height, WATCHED)
    try:
        yield terminal
    finally:
        terminal("kill-server")


pytestmark = pytest.mark.needs("tmux")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
@pytest.mark.golden("docs/samples/health-*.txt")
def test_health_with_faults_fits_the_terminal_and_cuts_nothing(width: int, height: int) -> None:
    for terminal in _terminal(width, height):
        shown = terminal.screen(shows="q: end")
        lines = shown.splitlines()
        assert all(len(line) <= width for line in lines)
        assert lines[2].split()[:2] == ["GPU2", "-"], "a fault comes first"
        picture = PICTURES / f"health-{width}x{height}.txt"
        golden.same(picture, shown.rstrip() + "\n")


def test_every_line_is_reached_by_keys(small: Tmux) -> None:
    assert "GPU7" not in small.screen(shows="lines 1-23 of")
    small.press("G")
    assert "GPU7" in small.screen(shows="GPU7")
    small.press("g")
    small.screen(shows="lines 1-23 of")
    small.press("j")
    small.screen(shows="lines 2-24 of")
    small.press("Space")
    assert "GPU7" in small.screen(shows="GPU7")


def test_a_filter_keeps_the_reasons_of_a_device_and_the_heads(small: Tmux) -> None:
    small.screen(shows="q: end")
    small.press("/", "c", "a", "r", "r", "i", "e", "r", "Enter")
    shown = small.screen(shows="with carrier", without="GPU2")
    assert "nic7" in shown
    assert "no carrier" in shown
    assert shown.splitlines()[1].split()[0] == "DEVICE"
    small.press("/", "n", "o", "n", "e", "BSpace", "x", "y", "Enter")
    small.screen(shows="with nonxy", without="nic7")
    small.press("Escape")
    small.screen(shows="GPU2", without="with nonxy")


def test_q_ends_with_the_code_of_the_verb_and_leaves_the_last_text(small: Tmux) -> None:
    small.screen(shows="q: end")
    small.press("q")
    shown = small.screen(shows="code 0")
    assert "ended by q" in shown
    assert "q: end" not in shown


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_terminal_without_a_size_is_drawn_and_a_signal_gives_it_back(stop: signal.Signals) -> None:
    """A terminal of `kubectl exec --tty` may have no size at first."""
    main, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=terminal, stdout=terminal, stderr=terminal, cwd=HERE
    ) as program:
        shown = b""
        while b"q: end" not in shown:
            shown += os.read(main, 65536)
            assert b"Error" not in shown
        program.send_signal(stop)
        while b"\x1b[?1049l" not in shown:
            shown += os.read(main, 65536)
        os.set_blocking(main, False)
        while program.poll() is None:
            with contextlib.suppress(BlockingIOError):
                os.read(main, 65536)
    assert b"\x1b[?25h" in shown
    assert termios.tcgetattr(terminal) == before
    os.close(main)
    os.close(terminal)


def test_the_interrupt_key_ends_as_ever(small: Tmux) -> None:
    small.screen(shows="q: end")
    small.press("C-c")
    assert "ended by q" not in small.screen(shows="code 1")


def test_a_filter_looks_into_tables_and_lists() -> None:
    lines = ["a: one", "  detail x", "b: two", "  detail y", "", "2 troubles"]
    assert [*matching(lines, "Y")] == ["b: two", "  detail y"]
    assert [*matching(lines, "")] == lines
