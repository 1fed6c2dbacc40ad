"""Shared by the verbs: common options, exit codes, reading of configuration files."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.config.merged_tree import ConfigText

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

_SECONDS_MAX = 7 * 86400
"""A week; a longer sleep may exceed what the clock can count."""

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PERIOD = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?) ?(?P<unit>|s|m|min|h)")

_ITS_OWN = "its own"
"""The time of ``--watch`` without one."""

VerbFunction = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


def common_options(parser: argparse.ArgumentParser, *, of_part: bool = False) -> None:
    """Options of every verb. Those of a verb's part have no default, which would override one before its name."""
    default = argparse.SUPPRESS if of_part else None
    parser.set_defaults(words=parser.prog.partition(" ")[2])
    every = parser.add_argument_group("options of every verb")
    every.add_argument(
        "--root",
        type=Path,
        default=argparse.SUPPRESS if of_part else Path(os.environ.get("NODEAGENT_ROOT") or "/"),
        metavar="DIR",
        help=ROOT,
    )
    every.add_argument("--log-level", choices=LOG_LEVELS, default=default, help=LOG_LEVEL)


def config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("NODEAGENT_CONFIG") or None,
        metavar="FILE",
        help="configuration file, with the fragments in the folder beside it (nodeagent.d/*.yaml of nodeagent.yaml), "
        "or a folder of fragments (default: NODEAGENT_CONFIG, which the manifest sets, or what `nodeagent config "
        "defaults` prints)",
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


def json_option(parser: argparse._ActionsContainer, *, of_part: bool = False) -> None:
    """``-o FORM``, and ``--json``. ``options.json``: the verb prints its document; ``cli`` does the rest. ``parser``
    may also be a group of a parser, such as one of options that exclude each other. Those of a verb's part have no
    default, which would override one before its name."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if of_part else False,
        help="print JSON instead of a table, as -o json",
    )
    parser.add_argument(
        "-o",
        "--output",
        action=_Output,
        default=argparse.SUPPRESS if of_part else None,
        choices=("table", "wide", "json", "yaml"),
        metavar="FORM",
        help="table, wide, json or yaml (default: table). wide shortens nothing for a narrow terminal; yaml has "
        "the document of json",
    )


class _Output(argparse.Action):
    """Sets ``output``, and ``json`` with it."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        namespace.output, namespace.json = values, values in ("json", "yaml")


def watch_option(parser: argparse._ActionsContainer, what: str = "print again", every_s: float = 5.0) -> None:
    """``--watch [TIME]``: ``options.watch`` is the time between two looks in seconds, ``None`` without it. ``what``
    says what is printed then."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=lambda text: every_s if text == _ITS_OWN else period(text),
        const=every_s,
        metavar="TIME",
        help=f"look again after each TIME, as 5s or 1min, and {what}, until Ctrl-C (default: {every_s:g}s)",
    )


def with_watch_apart(words: Sequence[str]) -> list[str]:
    """The words with a value of ``--watch`` where no time follows: argparse would take the name that does."""
    following = (*words[1:], "-") if words else ()
    return [
        f"{word}={_ITS_OWN}"
        if word == "--watch" and not (_PERIOD.fullmatch(then) or then.startswith("-"))
        else word
        for word, then in zip(words, following, strict=True)
    ]


def period(text: str) -> float:
    """A time as ``5s``, ``1.5min`` or ``2h`` in seconds; a number alone is seconds."""
    found = _PERIOD.fullmatch(text)
    seconds = float(found["number"]) * _UNITS_S[found["unit"]] if found else 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 5s, 1min or 2h, a week at most")
    return seconds


def agent_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--agent",
        dest="listen",
        type=address,
        metavar="[HOST]:PORT",
        help="ask the daemon that serves there (default: the agent that serves the machine below --root)",
    )


def cluster_options(parser: argparse._ActionsContainer) -> None:
    """How a verb reaches the cluster."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the cluster (default: as kubectl does)",
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="the context of the kubeconfig (default: its current one)",
    )


def address(text: str) -> str:
    from nodeagent.config.formats import host_port

    try:
        host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= _SECONDS_MAX:  # nan fails this too
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to {_SECONDS_MAX}")
    return seconds


def load_config(path: Path | None) -> Config:
    """The agent's configuration; without a path the default. Raises ``ConfigError``."""
    from nodeagent.agent_config import Config
    from nodeagent.agent_config import load as parse

    return Config() if path is None else parse(config_files(path), name=str(path))


def config_files(path: Path) -> ConfigText:
    """The files of a configuration. Raises ``ConfigError``."""
    from functools import partial

    from nodeagent.config.followed_configuration import configuration_files, read_at_start

    return read_at_start(path, partial(configuration_files, path))
