"""The screen of ``--watch``: the latest text of a verb, and a line that says what is shown and which keys work.

Nothing is cut without a word: longer lines continue on the next one, and the last line counts those above and below.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NoReturn

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_STEPS = {"j": 1, "\x1b[B": 1, "\x1bOB": 1, "k": -1, "\x1b[A": -1, "\x1bOA": -1, "\r": 1}
_PAGES = {" ": 1, "\x1b[6~": 1, "b": -1, "\x1b[5~": -1}
_ENDS = {"g": 0, "\x1b[H": 0, "\x1b[1~": 0, "G": sys.maxsize, "\x1b[F": sys.maxsize, "\x1b[4~": sys.maxsize}
_KEYS = ("arrows, space: scroll | /: filter | q: end", "/: filter | q: end", "q: end")


class WatchScreen:
    """A context in which ``show`` draws; a thread of its own reads the keys."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        """By the key q."""
        self._at = 0
        self._filter = ""
        self._typed: str | None = None
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> WatchScreen:
        self._stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))
        sys.stdout.write(_ENTER)
        self._stack.callback(sys.stdout.write, _LEAVE)
        if sys.stdin.isatty():
            fd = sys.stdin.fileno()
            self._stack.callback(termios.tcsetattr, fd, termios.TCSANOW, termios.tcgetattr(fd))
            tty.setcbreak(fd)
            end, stop = os.pipe()
            reader = threading.Thread(target=self._read_keys, args=(fd, end), name="keys", daemon=True)
            self._stack.callback(os.close, end)
            self._stack.callback(reader.join)
            self._stack.callback(os.close, stop)
            reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._stack.close()

    def show(self, text: str) -> None:
        """Draw the text, at the same place of it as before."""
        with self._lock:
            self.text = text
            self._draw()

    def _draw(self) -> None:
        width, height = _size()
        found = [*matching(self.text.splitlines(), self._filter)]
        lines = [part for line in found for part in _folded(line, width)]
        rows = max(1, height - 1)
        self._at = max(0, min(self._at, len(lines) - rows))
        shown = lines[self._at : self._at + rows]
        status = self._status(len(shown), len(lines), width)
        body = "".join(f"{line}\x1b[K\r\n" for line in [*shown, *[""] * (rows - len(shown))])
        sys.stdout.write(f"\x1b[H{body}\x1b[7m{status}\x1b[0m\x1b[K")
        sys.stdout.flush()

    def _status(self, shown: int, count: int, width: int) -> str:
        if self._typed is not None:
            return f"/{self._typed}"[: width - 1]
        words = f"lines {self._at + 1}-{self._at + shown} of {count}" if shown else "no line"
        words += f" with {self._filter} (Esc: all)" if self._filter else ""
        if not sys.stdin.isatty():
            return words[: width - 1]
        return next((text for keys in _KEYS if len(text := f"{words} | {keys}") < width), words[: width - 1])

    def _read_keys(self, fd: int, end: int) -> None:
        while True:
            ready, _, _ = select.select([fd, end], [], [])
            if end in ready:
                return
            with suppress(OSError):
                typed = os.read(fd, 256)
                for key in _keys(typed.decode(errors="replace")):
                    with self._lock:
                        self._press(key)
                        self._draw()
                if typed and not self.ended:
                    continue
            if self.ended:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return  # ended, or the terminal is gone

    def _press(self, key: str) -> None:
        if self._typed is not None:
            self._type(key)
        elif key == "q":
            self.ended = True
        elif key == "/":
            self._typed = ""
        elif key == "\x1b":
            self._filter = ""
        page = max(1, _size().lines - 2)
        if self._typed is None:
            self._at = _ENDS.get(key, self._at + _STEPS.get(key, 0) + page * _PAGES.get(key, 0))

    def _type(self, key: str) -> None:
        """The filter holds while it is typed; the Enter key keeps it."""
        typed = self._typed or ""
        if key in ("\r", "\n"):
            self._typed = None
            return
        if key == "\x1b":
            self._typed, self._filter = None, ""
            return
        self._typed = typed[:-1] if key in ("\x7f", "\b") else typed + (key if key.isprintable() else "")
        self._filter, self._at = self._typed, 0


def _size() -> os.terminal_size:
    """The size of the terminal; one that does not know it, as at the start of `kubectl exec --tty`, has 80 x 24."""
    width, height = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((width or 80, height or 24))


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _keys(typed: str) -> Iterator[str]:
    """The keys in what a terminal has sent: an escape sequence is one."""
    while typed:
        size = 1
        if typed[:2] in ("\x1b[", "\x1bO"):
            size = next((i + 1 for i, char in enumerate(typed) if i > 1 and "@" <= char <= "~"), len(typed))
        yield typed[:size]
        typed = typed[size:]


def matching(lines: Sequence[str], term: str) -> Iterator[str]:
    """The lines that contain ``term``, each with its heading and with the lines below it that are indented further.

    >>> [*matching(["NICS", "  NIC  STATE", "  nic0 up", "  nic7 down", "      no carrier"], "carrier")]
    ['NICS', '  NIC  STATE', '  nic7 down', '      no carrier']
    """
    if not term:
        yield from lines
        return
    plain = [_plain(line) for line in lines]
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and _indent(plain[end]) > _indent(plain[start]):
            end += 1
        if plain[start].isupper():  # a title with its table, or the heads of a table
            yield lines[start]
            yield from matching(lines[start + 1 : end], term)
        elif any(term.lower() in line.lower() for line in plain[start:end]):
            yield from lines[start:end]
        start = end


def _plain(line: str) -> str:
    return _STYLE.sub("", line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _folded(line: str, width: int) -> list[str]:
    plain = _plain(line)
    return [line] if len(plain) <= width else [plain[i : i + width] for i in range(0, len(plain), width)]
