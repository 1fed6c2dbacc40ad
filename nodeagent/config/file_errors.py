"""The errors of a settings file, each with its place.

Text from a file never reaches a terminal raw: ``quote`` shortens and escapes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

Path = tuple[str | int, ...]
"""Where a setting stands: keys, and indexes into lists."""

_ERRORS_MAX = 100
"""Errors reported for one file; more would bury the first."""
_SHOWN_MAX = 60  # characters of a value that a message repeats
_COMPARED_MAX = 64  # longer words are not compared: difflib takes quadratic time
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


class FilePlace(NamedTuple):
    """Where a value stands. ``line`` and ``column`` count from 1. ``file`` is empty where one file is read alone."""

    line: int
    column: int
    file: str = ""

    def seen_from(self, other: FilePlace) -> str:
        """The place in words, for a message at ``other``: with the file where it is another one."""
        return f"line {self.line}" if self.file == other.file else f"{self.file}:{self.line}"


class FileError(NamedTuple):
    """One error. ``path`` reads like ``resources[2].sliceMiB`` and is empty for the file as a whole.

    ``line`` and ``column`` count from 1 and are ``None`` where no text was read. ``file`` is empty where the
    configuration has one file.
    """

    path: str
    line: int | None
    column: int | None
    message: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Conflict(NamedTuple):
    """Settings that do not go together. The conflict stands at the first path and rests on the others.

    A conflict that rests on a setting with an error of its own is not reported: the correction may remove it.
    ``first`` is the path of an earlier entry, whose line the message gets.
    """

    paths: tuple[Path, ...]
    message: str
    first: Path | None = None

    def below(self, *section: str | int) -> Conflict:
        """The same conflict, with its paths counted from further up."""
        return self._replace(paths=tuple((*section, *path) for path in self.paths))


class ConfigError(Exception):
    """A settings file that cannot be used. ``errors`` holds all its errors in the file's order."""

    def __init__(self, name: str, errors: Iterable[FileError]) -> None:
        self.name = name
        self.errors = tuple(
            sorted(errors, key=lambda error: (error.file, error.line or 0, error.column or 0))
        )
        super().__init__(name, self.errors)

    def __str__(self) -> str:
        return "\n".join(
            ":".join(
                str(part) for part in (error.file or self.name, error.line, error.column) if part is not None
            )
            + f": {error}"
            for error in self.errors
        )


class HaltError(Exception):
    """Reading stops here: only the errors found so far can be reported."""


class FileErrors:
    """Collects the errors of one file while it is read."""

    def __init__(self) -> None:
        self._errors: list[FileError] = []
        self._known: set[tuple[FilePlace, Path, str]] = set()

    def __iter__(self) -> Iterator[FileError]:
        return iter(self._errors)

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, path: Path, at: FilePlace, message: str) -> None:
        """Add the error of one setting. An error that an alias repeats is added once."""
        key = (at, path[-1:], message)
        if key in self._known:
            return
        self._known.add(key)
        if len(self) >= _ERRORS_MAX:
            self.halt(at, f"more than {_ERRORS_MAX} errors; the rest is not listed")
        self._errors.append(FileError(dotted(path), at.line, at.column, message, at.file))

    def halt(self, at: FilePlace, message: str) -> NoReturn:
        """Add the last error, one of the file as a whole. Raises ``HaltError``."""
        self._errors.append(FileError("", at.line, at.column, message, at.file))
        raise HaltError(message)


def dotted(path: Path) -> str:
    """``("resources", 2, "sliceMiB")`` → ``resources[2].sliceMiB``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quote(part)}]"
    return text


def quote(text: str) -> str:
    """Text for a message: shortened, in double quotes, in plain ASCII."""
    return json.dumps(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The end of a message: the most similar option, or nothing where none is similar."""
    similar = most_similar(word, options)
    return f"; did you mean {similar}?" if similar else ""


def most_similar(word: str, options: Iterable[str]) -> str | None:
    if len(word) > _COMPARED_MAX:
        return None
    folded = {_fold(option): option for option in options}
    similar = get_close_matches(_fold(word), folded, n=1)
    return folded[similar[0]] if similar else None


def _fold(word: str) -> str:
    """``slice_mib``, ``slice-mib`` and ``sliceMiB`` count as one word."""
    return word.lower().replace("_", "").replace("-", "")
