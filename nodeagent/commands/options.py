"""What the verbs share: options that mean the same everywhere, exit codes, how a file is read."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.agent_config import Config

GOOD, FAILED, USAGE = 0, 1, 2

ROOT = """\
read and write this folder's /sys, /proc, /dev, /var/run and state instead of the machine's own: a host's
root mounted in a container, a `nodeagent capture`, or a simulated machine (default: /)"""

Verb = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


def config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration (default: the one that `nodeagent config defaults` prints)",
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON for programs instead of a table")


def address(text: str) -> str:
    from nodeagent.config.formats import host_port

    try:
        host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:  # which nan is not either
        raise argparse.ArgumentTypeError(f"{text} is no time to wait: give a number of seconds, 0 or more")
    return seconds


def load(path: Path | None) -> Config:
    from nodeagent.agent_config import Config
    from nodeagent.agent_config import load as parse

    return Config() if path is None else parse(text(path), name=str(path))


def text(path: Path) -> str:
    from nodeagent.config.faults import ConfigError, ConfigFault

    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), [ConfigFault("", None, None, why)]) from error


def terminal_width() -> int | None:
    """Columns of the terminal that reads stdout; ``None`` for a file or a pipe, which are wide enough."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )
