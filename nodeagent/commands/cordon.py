"""The verbs `cordon` and `uncordon`: keep new pods away from a NIC or a GPU, and offer it again."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import FAILED, GOOD, USAGE, Add, config_option, json_option, load

if TYPE_CHECKING:
    from nodeagent.agent_config import Config
    from nodeagent.base.stored_file import StoredFile
    from nodeagent.health.cordons import Cordon
    from nodeagent.sources.cordons_file import CordonsFile

TAKEN_S = 5.0
REASON_MAX = 200


def add_cordon(add: Add) -> None:
    parser = add(
        "cordon",
        _cordon,
        "keep new pods away from a NIC or a GPU until it is uncordoned; without a name, list what is cordoned",
        "  nodeagent cordon                                    every cordoned device, by whom, since when and why\n"
        "  nodeagent cordon nic3 --reason 'swap the optics'    a rail, netdev, PCI or MAC address\n"
        "  nodeagent cordon gpu2 --reason 'case 4711'          a GPU by index, UUID or PCI address\n"
        "  nodeagent uncordon nic3                             offer it again\n\n"
        "The kubelet gets the devices as Unhealthy, or claims get a taint NoSchedule: no new pod has them. Pods that\n"
        "hold them are neither evicted nor disturbed. The cordon is stored on the node (`health.stateDirectory`) and\n"
        "lasts over restarts and reboots. It hides no fault. docs/planned-work.md has the limits.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--reason", metavar="TEXT", help="why, for the next person who looks")
    parser.add_argument(
        "--author",
        metavar="NAME",
        default=os.environ.get("NODEAGENT_AUTHOR") or os.environ.get("SUDO_USER"),
        help="who (default: NODEAGENT_AUTHOR, which `kubectl nodeagent` sets, or the user of this shell)",
    )
    parser.add_argument("device", nargs="*", metavar="DEVICE", help="nic3, gpu2, or another name of it")


def add_uncordon(add: Add) -> None:
    parser = add("uncordon", _uncordon, "offer cordoned NICs or GPUs to pods again")
    config_option(parser)
    parser.add_argument("device", nargs="+", metavar="DEVICE", help="nic3, gpu2, or another name of it")


def _cordon(options: argparse.Namespace) -> int:
    from nodeagent.base.plain_text import one_line
    from nodeagent.base.rfc3339 import rfc3339
    from nodeagent.commands.remembered.stored_devices import device_names
    from nodeagent.console.terminal import tell
    from nodeagent.health.cordons import Cordon
    from nodeagent.sources.cordons_file import CordonsFile

    config = load(options.config)
    log_to_stderr(options.log_level or "error")
    _need_machine(options)
    if not options.device:
        return _list(_stored(config, options)[1], options)
    if not (options.reason or "").strip():
        print("nodeagent: give --reason: the next person who looks must know why", file=sys.stderr)
        return USAGE
    names = device_names(config, options.root)
    if unknown := [name for name in options.device if name.lower() not in names]:
        shown = ", ".join(dict.fromkeys(found.name for found in names.values())) or "none"
        print(f"nodeagent: {unknown[0]}: no such device here; there are: {shown}", file=sys.stderr)
        return USAGE
    author, reason = one_line(options.author or getpass.getuser(), 64), one_line(options.reason, REASON_MAX)
    found = {names[name.lower()] for name in options.device}
    new = tuple(
        Cordon(it.device, it.name, rfc3339(time.time()), author, reason, it.identity)
        for it in sorted(found, key=lambda it: it.name)
    )
    with _alone(config, options):
        file, cordons = _stored(config, options, aside=True)
        kept = tuple(it for it in cordons if not any(it.is_of(one.device, one.identity) for one in new))
        file.write(CordonsFile(cordons=(*kept, *new)))
    said = tell(
        "\n".join(
            f"{cordon.name} ({cordon.device}) is cordoned: no new pod gets it; pods that hold it keep it"
            for cordon in new
        )
    )
    code = _taken(config, options, {cordon.device: True for cordon in new})
    return code if said else FAILED


def _uncordon(options: argparse.Namespace) -> int:
    from nodeagent.commands.remembered.stored_devices import device_names
    from nodeagent.console.terminal import tell
    from nodeagent.sources.cordons_file import CordonsFile

    config = load(options.config)
    log_to_stderr(options.log_level or "error")
    _need_machine(options)
    wanted = {name.lower() for name in options.device}
    with _alone(config, options):
        file, cordons = _stored(config, options, aside=True)
        ended = [it for it in cordons if wanted & _keys(it)]
        if others := wanted - {key for it in ended for key in _keys(it)}:
            names = device_names(config, options.root)
            of = {
                name: [it for it in cordons if it.is_of(device.device, device.identity)]
                for name in others
                if (device := names.get(name)) is not None
            }
            if unknown := [name for name in sorted(others) if not of.get(name)]:
                shown = ", ".join(it.name for it in cordons) or "none"
                print(f"nodeagent: {unknown[0]}: it is not cordoned; cordoned are: {shown}", file=sys.stderr)
                return USAGE
            ended += (it for found in of.values() for it in found if it not in ended)
        file.write(CordonsFile(cordons=tuple(it for it in cordons if it not in ended)))
    said = tell(
        "\n".join(
            f"{cordon.name} ({cordon.device}) is offered again, unless a fault withdraws it"
            for cordon in ended
        )
    )
    code = _taken(config, options, {cordon.device: False for cordon in ended})
    return code if said else FAILED


def _need_machine(options: argparse.Namespace) -> None:
    """Raise ``SysfsError`` if the root is no machine: it has no cordons, and is not to get a state folder."""
    from nodeagent.host.sysfs import SysfsError, Tree

    if not Tree(options.root).exists("/sys"):
        raise SysfsError(f"{options.root} has no /sys: it is not the root folder of a machine")


def _keys(cordon: Cordon) -> set[str]:
    return {key.lower() for key in (cordon.name, cordon.device, cordon.identity) if key}


def _alone(config: Config, options: argparse.Namespace) -> AbstractContextManager[None]:
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.cordons_file import one_at_a_time

    return one_at_a_time(Tree(options.root).path(config.health.state_directory))


def _stored(
    config: Config, options: argparse.Namespace, *, aside: bool = False
) -> tuple[StoredFile[CordonsFile], tuple[Cordon, ...]]:
    """The file and the cordons in it. A broken file is moved away with ``aside``, never replaced: a running agent that
    has read it before writes its cordons again. Raises ``RememberedError``."""
    from nodeagent.base.stored_file import RESTORE_S
    from nodeagent.commands.remembered.stored_devices import RememberedError, read_stored
    from nodeagent.host.sysfs import Tree
    from nodeagent.sources.cordons_file import FORM, CordonsFile

    again = f"a running agent that knows the cordons writes them again within {RESTORE_S:g} s"
    try:
        file, content = read_stored(
            config, options.root, FORM, f"`nodeagent cordon NAME` moves it away, and {again}"
        )
    except RememberedError as error:
        if not aside:
            raise
        path = Tree(options.root).path(config.health.state_directory) / FORM.name
        broken = path.replace(path.with_name(f"{FORM.name}.broken"))
        fault = str(error).partition("; ")[0]
        raise RememberedError(
            f"{fault}; it is now {broken}, and nothing else has changed; {again}: list them then, and repeat this"
        ) from None
    return file, (content or CordonsFile()).cordons


def _list(cordons: tuple[Cordon, ...], options: argparse.Namespace) -> int:
    from nodeagent.console.json_document import document
    from nodeagent.console.terminal import screen, section

    if options.json:
        print(document({"cordons": cordons}, options.root, None))
    elif not cordons:
        print("Nothing is cordoned.")
    else:
        rows = ((it.name, it.device, it.since, it.author or None, it.reason) for it in cordons)
        print(section("CORDONED", ("DEVICE", "ID", "SINCE", "BY", "REASON"), rows, screen()), end="")
    return GOOD


def _taken(config: Config, options: argparse.Namespace, wanted: Mapping[str, bool]) -> int:
    """Wait until the running agent has taken the cordons over. Return the exit code."""
    import asyncio
    from functools import partial

    import msgspec

    from nodeagent.console.agent_query import ask_for, wait_for
    from nodeagent.console.terminal import note
    from nodeagent.facts.model import CORDONED
    from nodeagent.health.explain import DeviceView

    decoder = msgspec.json.Decoder(tuple[DeviceView, ...])

    def late(views: tuple[DeviceView, ...] | None) -> Iterator[str]:
        for view in views or ():
            cordoned = any(reason.key == CORDONED for reason in view.reasons)
            if wanted.get(view.device, cordoned) != cordoned:
                yield view.name

    fetch = partial(ask_for, decoder, "/health", config, options.root)
    views, source = fetch()
    if views is None:
        note(f"no agent runs here ({source}); it takes this over when it starts")
        return GOOD
    views = asyncio.run(wait_for(views, fetch, TAKEN_S, lambda seen: any(late(seen))))
    if missing := ", ".join(late(views)):
        note(f"the agent at {source} has not taken this over within {TAKEN_S:g} s for {missing}: see its log")
        return FAILED
    return GOOD
