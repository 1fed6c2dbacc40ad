"""`nodeagent health`: the health of the devices, the rules, and a replay of recorded samples."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import (
    FAILED,
    GOOD,
    USAGE,
    Add,
    address,
    config_option,
    json_option,
    load,
)
from nodeagent.commands.terminal import note, screen, watching

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.commands.health.answers import DeviceHealth

ALONE = "this is a short look of the command itself, without earlier samples, holds and penalties"

RECORDING = "a recording, as `nodeagent capture --samples SECONDS FILE` writes it"


def add(add: Add) -> None:
    parser = add(
        "health",
        _health,
        "show the health of each device, with values, thresholds, durations and what would clear a fault",
        "  nodeagent health               every NIC and GPU, from the agent that runs here\n"
        "  nodeagent health --html        the page of this node as one HTML file\n"
        "  nodeagent health --html replay FILE   the same from recorded samples: the health at their end, and curves\n"
        "  nodeagent health DEVICE        one device with every rule: ens1np0, 0000:1a:00.0, GPU0, a UUID\n"
        "  nodeagent health rules         the rules in force, with --config those of that file\n"
        "  nodeagent health replay FILE   every change of health that the rules make on recorded samples\n\n"
        "The agent that serves the machine below --root answers, wherever the command runs. If there is none, the\n"
        "command reads the machine for two seconds. A line on stderr shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--html", action="store_true", help="print the node page as one HTML file, to attach to a ticket"
    )
    parser.add_argument("--watch", action="store_true", help="print again every second, until interrupted")
    parser.add_argument(
        "--listen", type=address, metavar="[HOST]:PORT", help="where the agent serves (default: `listen:`)"
    )
    parser.add_argument(
        "--problem",
        choices=("links", "gpus"),
        help="print one line for Node Problem Detector; the exit code is 0 without a problem, 1 with one, and 2 if\n"
        "the agent does not answer",
    )
    parser.add_argument("target", nargs="*", metavar="DEVICE | rules | replay FILE", help="see above")


def _health(options: argparse.Namespace) -> int:
    config = load(options.config)
    log_to_stderr(options.log_level or "warning")
    match options.target:
        case [] if options.html:
            return _page(options, config)
        case [] if options.problem:
            return _problem(options, config)
        case []:
            return _show(options, config, None)
        case ["rules"]:
            return _rules(options, config)
        case ["replay", file] if options.html:
            return _recording_page(config, file)
        case ["replay", file]:
            return _replay(options, config, file)
        case [device] if device != "replay":
            return _show(options, config, device)
    print(
        "nodeagent: health takes one DEVICE, `rules`, or `replay FILE`; see nodeagent health --help",
        file=sys.stderr,
    )
    return USAGE


def _show(options: argparse.Namespace, config: Config, device: str | None) -> int:
    from nodeagent.commands.health import answers

    if options.watch:
        return asyncio.run(_watch(options, config, device))
    views, source = answers.fetch(config, options.root, options.listen)
    _explain(None if views is None else source, source)
    if views is None:
        health = asyncio.run(answers.read_machine(config, options.root))
    else:
        silent = () if options.listen else answers.silent_of_agent(config, options.root)
        health = answers.DeviceHealth(views, silent)
    print(_text(options, health, device), flush=True)
    return FAILED if views is None and health.silent else GOOD


def _problem(options: argparse.Namespace, config: Config) -> int:
    """Only the state that the agent has derived counts: a look of the command itself has no holds."""
    from nodeagent.commands.agent_query import AgentQueryError
    from nodeagent.commands.health import answers
    from nodeagent.commands.health.problem_line import UNKNOWN, cut, problem_line

    try:
        views, source = answers.fetch(config, options.root, options.listen)
    except AgentQueryError as error:
        views, source = None, str(error)
    code, line = (
        (UNKNOWN, cut(f"no agent: {source}")) if views is None else problem_line(views, options.problem)
    )
    print(line)
    return code


def _page(options: argparse.Namespace, config: Config) -> int:
    from nodeagent.commands.health import answers, machine_page
    from nodeagent.web.ui_files import self_contained

    answer = answers.fetch_page("/ui/document.json", config, options.root, options.listen)
    _explain(None if answer.body is None else answer.source, answer.source)
    document, silent = answer.body, False
    if document is None:
        document, silent = asyncio.run(machine_page.read_document(config, options.root))
    print(self_contained("node", document))
    return FAILED if silent else GOOD


def _recording_page(config: Config, file: str) -> int:
    from nodeagent.commands import user_files
    from nodeagent.commands.health.recording_page import recording_document
    from nodeagent.commands.user_files import UserFileError
    from nodeagent.health.recording import RecordingError, decode, lines
    from nodeagent.web.ui_files import self_contained

    name = user_files.STDIN if file == "-" else file
    try:
        with user_files.opened(file, RECORDING) as recorded:
            document = recording_document(*decode(lines(recorded)), config, Path(name).name)
    except RecordingError as error:
        raise UserFileError(name, error.fault, RECORDING, error.line) from error
    print(self_contained("node", document))
    return GOOD


async def _watch(options: argparse.Namespace, config: Config, device: str | None) -> int:
    from nodeagent.commands.health import answers

    with watching(in_place=not options.json) as show:
        async for health in answers.watch(config, options.root, options.listen, _explain):
            show(_text(options, health, device))
    return GOOD


def _explain(agent: str | None, why: str) -> None:
    line = f"no agent runs here ({why}); {ALONE}" if agent is None else f"the agent at {agent} answers"
    note(line)


def _text(options: argparse.Namespace, health: DeviceHealth, device: str | None) -> str:
    import msgspec

    from nodeagent.commands.health import answers, tables
    from nodeagent.commands.running_sources import sentences

    view = None if device is None else answers.find(health, device)
    silent = sentences(health.silent)
    if options.json:
        for sentence in silent:
            note(sentence)
        return msgspec.json.encode(health.views if view is None else view).decode()
    if view is not None:
        return tables.as_detail(view, screen())
    return tables.as_table(health.views, screen(), silent)


def _rules(options: argparse.Namespace, config: Config) -> int:
    from nodeagent.commands.health import tables
    from nodeagent.health.nic_rules import effective

    rules = effective(config.health.rules)
    if not options.json:
        print(tables.rules_table(rules, screen()))
        return GOOD
    keys = ("rule", "state", "kubelet", "enter", "enterFor", "clear", "clearFor", "window", "enabled")
    rows = [
        dict(zip(keys, tables.rule_row(rule), strict=True)) | {"meaning": rule.meaning, "source": rule.origin}
        for rule in rules
    ]
    print(json.dumps(rows))
    return GOOD


def _replay(options: argparse.Namespace, config: Config, file: str) -> int:
    from nodeagent.commands import user_files
    from nodeagent.commands.health import replay
    from nodeagent.commands.user_files import UserFileError
    from nodeagent.health.recording import RecordingError, decode, lines

    tally = replay.Tally()
    try:
        with user_files.opened(file, RECORDING) as recorded:
            header, samples = decode(lines(recorded))
            for transition in replay.replay(header, tally.follow(samples), config.health, config.gpu):
                tally.count(transition)
                if options.json:
                    print(json.dumps(replay.as_object(transition)))
                else:
                    print(replay.describe(transition, header))
    except RecordingError as error:
        raise UserFileError(
            user_files.STDIN if file == "-" else file, error.fault, RECORDING, error.line
        ) from error
    tally.finish()
    if not options.json:
        print(f"\n{replay.summary(tally, screen())}", end="")
    return GOOD
