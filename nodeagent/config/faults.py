"""What is wrong with a configuration file: one fault per problem, each with its place.

Nothing that stands in a file reaches a terminal raw: ``quote`` shortens and escapes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

Path = tuple[str | int, ...]

FAULTS_MAX = 100
"""Faults that are told of one file; more would bury the first."""
_SHOWN = 60  # characters of a value that a message repeats
_COMPARED = 64  # longer words are not compared: difflib takes quadratic time
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem. ``path`` is as in ``resources[2].sliceMiB``, empty for the file as a whole.

    ``line`` and ``column`` count from 1 and are ``None`` where no text was read.
    """

    path: str
    line: int | None
    column: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; ``faults`` holds all that is wrong, in the file's order."""

    def __init__(self, name: str, faults: Iterable[Fault]) -> None:
        self.name = name
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.line or 0, fault.column or 0)))
        super().__init__(name, self.faults)

    def __str__(self) -> str:
        return "\n".join(
            ":".join(str(part) for part in (self.name, fault.line, fault.column) if part is not None)
            + f": {fault}"
            for fault in self.faults
        )


class HaltError(Exception):
    """No more can be told of a file than the faults that were found so far."""


class Faults(list[Fault]):
    """The faults of one file while it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[tuple[int, int], Path, str]] = set()

    def add(self, path: Path, at: tuple[int, int], message: str) -> None:
        """One fault of the setting that ``path`` names; what an alias repeats is told once."""
        key = (at, path[-1:], message)
        if key in self._told:
            return
        self._told.add(key)
        if len(self) >= FAULTS_MAX:
            self.halt(at, f"more than {FAULTS_MAX} faults; the rest is not told")
        self.append(Fault(dotted(path), *at, message))

    def halt(self, at: tuple[int, int], message: str) -> NoReturn:
        """The last fault, of the file as a whole."""
        self.append(Fault("", *at, message))
        raise HaltError(message)


def dotted(path: Path) -> str:
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
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The end of a message: the nearest of the options, or nothing where none is near."""
    if len(word) > _COMPARED:
        return ""
    folded = {_fold(option): option for option in options}
    near = get_close_matches(_fold(word), folded, n=1)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def _fold(word: str) -> str:
    """``slice_mib``, ``slice-mib`` and ``sliceMiB`` are one word to a person."""
    return word.lower().replace("_", "").replace("-", "")
