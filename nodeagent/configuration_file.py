"""Read the text of a configuration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nodeagent.bounded_wait import Unanswered, within
from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.regular_file import read_regular

T = TypeVar("T")

START_S = 10.0


def configuration_text(path: Path) -> str:
    """Read the text of a configuration file. Blocks. Raises ``ConfigError``."""
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), [ConfigFault("", None, None, why)]) from error


def read_at_start(path: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` makes of the file, before the event loop runs. Raises ``ConfigError``, also if the file does
    not answer: a process that hangs here would show no reason, and SIGTERM does not end the first process of a pod."""
    try:
        return within("configuration", START_S, read)
    except Unanswered as error:
        why = f"cannot be read: no answer within {START_S:g} s; mount its file system again"
        raise ConfigError(str(path), [ConfigFault("", None, None, why)]) from error
