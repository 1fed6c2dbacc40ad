"""What each verb of the command line takes and does. Answers go to stdout, logs to stderr.

Each verb imports what it needs when it runs, so that ``--help`` and ``config check`` never pay for gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.config import Config

GOOD, FAILED, USAGE = 0, 1, 2

ROOT = """\
read and write this folder's /sys, /proc, /dev, /var/run and state instead of the machine's own: a host's
root mounted in a container, a `nodeagent capture`, or a simulated machine (default: /)"""

Verb = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration (default: the one that `nodeagent config defaults` prints)",
    )


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON for programs instead of a table")


# --- run ----------------------------------------------------------------------------------------------


def _add_run(add: Add) -> None:
    parser = add(
        "run",
        _run,
        "the daemon: discover, register with the kubelet, hand out devices, tell it of health",
        "Serves /metrics, /healthz and /readyz on one port; /readyz is true when every configured resource is\n"
        "registered. A change of the configuration file, or SIGHUP, is taken up without losing allocations; a\n"
        "file with faults is refused and the running configuration stays.",
    )
    _config_option(parser)
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path("/var/lib/kubelet"),
        metavar="DIR",
        help="the kubelet's folder, which holds device-plugins/ and pod-resources/ (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="[HOST]:PORT",
        help="where metrics and probes are served (default: `listen:`)",
    )


def _run(options: argparse.Namespace) -> int:
    from nodeagent import agent  # noqa: PLC0415

    config = _load(options.config)
    _log_to_stderr(config.log.level)
    place = agent.Place(
        options.root,
        options.kubelet_dir,
        options.config,
        options.listen,
        os.environ.get("NODE_NAME"),
    )
    asyncio.run(agent.run(config, place))
    return GOOD


# --- scan ---------------------------------------------------------------------------------------------


def _add_scan(add: Add) -> None:
    parser = add(
        "scan",
        _scan,
        "look at this machine: GPUs, NICs and VFs, and what would be offered",
        "No cluster is needed. Health comes with its reasons; the GPU-NIC table says how far they are from each\n"
        "other in the words of `nvidia-smi topo -m`: PIX (one PCIe switch), PXB (several), PHB (host bridge),\n"
        "NODE (same NUMA node), SYS (across NUMA nodes).",
    )
    _config_option(parser)
    _json_option(parser)
    parser.add_argument("--watch", action="store_true", help="print again at every change, until interrupted")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="listen to LLDP for so long, or until every link was heard (default: 0; a switch speaks every 30 s)",
    )


def _scan(options: argparse.Namespace) -> int:
    from nodeagent import scan  # noqa: PLC0415

    config = _load(options.config)
    _log_to_stderr("warning")
    render = scan.as_json if options.json else scan.as_table
    if not options.watch:
        print(render(asyncio.run(scan.once(config, options.root, options.wait))))
        return GOOD

    async def watch() -> None:
        async for seen in scan.watch(config, options.root):
            print(render(seen), flush=True)

    asyncio.run(watch())
    return GOOD


# --- neighbors and decode -----------------------------------------------------------------------------


def _add_neighbors(add: Add) -> None:
    parser = add(
        "neighbors",
        _neighbors,
        "listen to LLDP and say which switch port is at the other end of each link",
        "Listens until every link with carrier has been heard, a switch speaks every 30 s. Needs CAP_NET_RAW and no\n"
        "running agent. Which netdevs are links is `links.select` of the configuration.",
    )
    _config_option(parser)
    _json_option(parser)
    parser.add_argument(
        "--wait", type=_seconds, metavar="SECONDS", help="listen for no longer than this (default: 35)"
    )
    parser.add_argument("--watch", action="store_true", help="print again at every change, until interrupted")


def _neighbors(options: argparse.Namespace) -> int:
    from nodeagent import neighbors, node  # noqa: PLC0415

    config = _load(options.config)
    _log_to_stderr("warning")
    wanted, settings = node.link_select(config), node.lldp_settings(config, os.environ.get("NODE_NAME"))
    render = neighbors.as_json if options.json else neighbors.as_table

    async def watch() -> None:
        async for seen in neighbors.watch(wanted, settings, options.root):
            print(render(seen), flush=True)

    async def once() -> None:
        wait_s = neighbors.WAIT_S if options.wait is None else options.wait
        seen = await neighbors.once(
            wanted, settings, options.root, wait_s, lambda line: print(line, file=sys.stderr, flush=True)
        )
        print(render(seen))

    asyncio.run(watch() if options.watch else once())
    return GOOD


def _add_decode(add: Add) -> None:
    parser = add(
        "decode",
        _decode,
        "print the LLDP frames of a pcap or pcapng file",
        "One line for each LLDP frame among other traffic, VLAN tags and Linux cooked captures included; with\n"
        "--json one object on each line. A frame that is no valid LLDPDU is a line that says why.",
    )
    _json_option(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="the capture")


def _decode(options: argparse.Namespace) -> int:
    from nodeagent.lldp.describe import lines  # noqa: PLC0415
    from nodeagent.lldp.pcap import PcapError  # noqa: PLC0415

    try:
        for line in lines(options.file.read_bytes(), options.json):
            print(line)
    except PcapError as error:
        print(f"nodeagent: {options.file}: {error}", file=sys.stderr)
        return FAILED
    return GOOD


# --- config -------------------------------------------------------------------------------------------


def _add_config(add: Add) -> None:
    parser = add(
        "config", _config_check, "validate a configuration, print the default, print the JSON schema"
    )
    parser.set_defaults(root=None)  # a file is judged without a machine, unless one is named
    parts = parser.add_subparsers(title="parts", metavar="check|defaults|schema", required=True)
    check = parts.add_parser(
        "check",
        help="validate FILE: one line for each fault, with its place and what was meant",
        description="Validate FILE: one line for each fault, with its place and what was meant.",
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--root", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=ROOT)
    check.set_defaults(verb=_config_check)
    defaults = parts.add_parser("defaults", help="print the commented default configuration")
    defaults.set_defaults(verb=_config_defaults)
    schema = parts.add_parser("schema", help="print the JSON schema, for editors and CI")
    schema.set_defaults(verb=_config_schema)


def _config_check(options: argparse.Namespace) -> int:
    from nodeagent import scan  # noqa: PLC0415

    config = scan.check(_text(options.file), options.root, name=str(options.file))
    print(f"{options.file}: good, {len(config.resources)} resources configured")
    return GOOD


def _config_defaults(_options: argparse.Namespace) -> int:
    from nodeagent.config import defaults  # noqa: PLC0415

    print(defaults(), end="")
    return GOOD


def _config_schema(_options: argparse.Namespace) -> int:
    from nodeagent.config import schema  # noqa: PLC0415

    print(json.dumps(schema(), indent=2))
    return GOOD


# --- vfs ----------------------------------------------------------------------------------------------


def _add_vfs(add: Add) -> None:
    parser = add(
        "vfs",
        _vfs_show,
        "create and set up virtual functions, or show them",
        "`apply` makes the machine match the `vfs` section of the configuration and may be run again at any\n"
        "time: what is already so is left alone. The number of VFs of a PF is never changed while one of them is\n"
        "in use. Run it as an init container; the daemon itself then needs no write access to /sys.",
    )
    parts = parser.add_subparsers(title="parts", metavar="apply|show", required=True)
    for name, verb, summary in (
        ("apply", _vfs_apply, "make the VFs match the configuration"),
        ("show", _vfs_show, "show each PF with its VFs, and how they differ from the configuration"),
    ):
        part = parts.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        part.set_defaults(verb=verb)
        # Suppressed: a default here would win over a --root that stands before the part's name.
        part.add_argument("--root", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=ROOT)
        _config_option(part)
        _json_option(part)


def _vfs_apply(options: argparse.Namespace) -> int:
    from nodeagent import vfs  # noqa: PLC0415

    config = _load(options.config)
    _log_to_stderr("info")
    outcome = vfs.apply(config, options.root)
    print(vfs.as_json(outcome) if options.json else vfs.as_table(outcome))
    return GOOD if outcome.good else FAILED


def _vfs_show(options: argparse.Namespace) -> int:
    from nodeagent import vfs  # noqa: PLC0415

    config = _load(options.config)
    _log_to_stderr("warning")
    outcome = vfs.show(config, options.root)
    print(vfs.as_json(outcome) if options.json else vfs.as_table(outcome))
    return GOOD


# --- capture and demo -----------------------------------------------------------------------------------


def _add_capture(add: Add) -> None:
    parser = add(
        "capture",
        _capture,
        "record what the agent reads of this node, to be replayed with --root",
        "Writes the parts of /sys, /proc and /dev that the agent reads, and what the GPU driver says, below DIR.\n"
        "`nodeagent scan --root DIR` then shows this machine anywhere: a bug report becomes a fixture.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a folder that is empty or not there yet")
    parser.add_argument(
        "--scramble",
        action="store_true",
        help="replace serial numbers, MAC addresses and GPU UUIDs, consistently",
    )


def _capture(options: argparse.Namespace) -> int:
    from nodeagent import capture  # noqa: PLC0415

    _log_to_stderr("warning")
    print(capture.capture(options.root, options.directory, scramble=options.scramble))
    return GOOD


def _add_demo(add: Add) -> None:
    parser = add(
        "demo",
        _demo,
        "a simulated machine, a stand-in kubelet and the real agent between them",
        "Nothing of this machine is touched: the simulated one lies in a temporary folder. The kubelet is a\n"
        "stand-in that behaves as the real one does, its races included.",
    )
    parser.add_argument(
        "--machine", default="dgx-h100", metavar="NAME|FILE", help="a model (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="end after the show instead of staying up")


def _demo(options: argparse.Namespace) -> int:
    from nodeagent import demo  # noqa: PLC0415

    return demo.main(options.machine, once=options.once)


def _address(text: str) -> str:
    from nodeagent.config import host_port  # noqa: PLC0415

    try:
        host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:  # which nan is not either
        raise argparse.ArgumentTypeError(f"{text} is no time to wait: give a number of seconds, 0 or more")
    return seconds


# --- shared ---------------------------------------------------------------------------------------------


def _load(path: Path | None) -> Config:
    from nodeagent.config import Config, load  # noqa: PLC0415

    return Config() if path is None else load(_text(path), name=str(path))


def _text(path: Path) -> str:
    from nodeagent.config import ConfigError, Fault  # noqa: PLC0415

    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), [Fault("", None, None, why)]) from error


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )


VERBS: tuple[Callable[[Add], None], ...] = (
    _add_run,
    _add_scan,
    _add_neighbors,
    _add_decode,
    _add_config,
    _add_vfs,
    _add_capture,
    _add_demo,
)
"""In the order of the help."""
