"""Shared by the verbs: common options, exit codes, reading of configuration files."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.agent_config import Config

GOOD, FAILED, USAGE = 0, 1, 2

ALIGNED = re.compile(r"^ |\S  +\S", re.M)
"""Found in a paragraph of a description whose lines are indented or aligned, and so stay lines."""

ROOT = """\
use /sys, /proc, /dev, /var/run and the state directory below this directory: the root of a host mounted in a
container, a `nodeagent capture`, or a simulated machine (default: NODEAGENT_ROOT, which the manifest sets, or /)"""

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_LEVEL = """\
log records of this level and above, to stderr (default: `info` of `controller` and `vfs apply`, `log.level` of `run`,
otherwise `warning` or `error`)"""

KUBELET_DIR = "/var/lib/kubelet"

SECONDS_MAX = 7 * 86400
"""A week; a longer sleep may exceed what the clock can count."""

Verb = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


def common_options(parser: argparse.ArgumentParser, *, of_part: bool = False) -> None:
    """Options of every verb. Those of a verb's part have no default, which would override one before its name."""
    default = argparse.SUPPRESS if of_part else None
    parser.set_defaults(words=parser.prog.partition(" ")[2])
    parser.add_argument(
        "--root",
        type=Path,
        default=argparse.SUPPRESS if of_part else Path(os.environ.get("NODEAGENT_ROOT") or "/"),
        metavar="DIR",
        help=ROOT,
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default=default, help=LOG_LEVEL)


def config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("NODEAGENT_CONFIG") or None,
        metavar="FILE",
        help="configuration file (default: NODEAGENT_CONFIG, which the manifest sets, or what `nodeagent "
        "config defaults` prints)",
    )


def kubelet_dir_option(
    parser: argparse.ArgumentParser,
    *,
    default: Path | None = Path(KUBELET_DIR),
    otherwise: str = KUBELET_DIR,
) -> None:
    """``otherwise`` says what the default is."""
    root = os.environ.get("NODEAGENT_KUBELET_DIR")
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path(root) if root else default,
        metavar="DIR",
        help="the kubelet's --root-dir, with pod-resources/, plugins/ and plugins_registry/ (default: "
        f"NODEAGENT_KUBELET_DIR, which the manifest sets, or {otherwise})",
    )


def device_plugins_option(parser: argparse.ArgumentParser) -> None:
    plugins = os.environ.get("NODEAGENT_DEVICE_PLUGINS_DIR")
    parser.add_argument(
        "--device-plugins-dir",
        type=Path,
        default=Path(plugins) if plugins else None,
        metavar="DIR",
        help="the folder of kubelet.sock. Every kubelet has it in /var/lib/kubelet/device-plugins, whatever its "
        "--root-dir is (default: NODEAGENT_DEVICE_PLUGINS_DIR, which the manifest sets, or device-plugins/ in "
        "--kubelet-dir)",
    )


def json_option(parser: argparse._ActionsContainer) -> None:
    """``parser`` may also be a group of a parser, such as one of options that exclude each other."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def address(text: str) -> str:
    from nodeagent.config.formats import host_port

    try:
        host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= SECONDS_MAX:  # nan fails this too
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to {SECONDS_MAX}")
    return seconds


def load(path: Path | None) -> Config:
    """The agent's configuration; without a path the default. Raises ``ConfigError``."""
    from nodeagent.agent_config import Config
    from nodeagent.agent_config import load as parse

    return Config() if path is None else parse(text(path), name=str(path))


def text(path: Path) -> str:
    """The text of a configuration file. Raises ``ConfigError``."""
    from functools import partial

    from nodeagent.config.followed_configuration import configuration_text, read_at_start

    return read_at_start(path, partial(configuration_text, path))
