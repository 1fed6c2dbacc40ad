"""`nodeagent attach`: the netdevs of VFs come into the pods that hold them."""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, USAGE, Add, config_option, kubelet_dir_option, load_config
from nodeagent.console.terminal import note

if TYPE_CHECKING:
    from nodeagent.agent_config import Config

log = logging.getLogger(__name__)

_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.2, 5.0


def add(add: Add) -> None:
    parser = add(
        "attach",
        _attach,
        "move the netdevs of VFs into the pods that hold them, with a name and an address for each rail",
        "A plugin of the container runtime's NRI, with the agent's configuration, whose section `attach` has the\n"
        "names and addresses. A container that holds a VF starts only once the VF's netdev is in its pod. This\n"
        "process may end and start again at any time. It needs CAP_SYS_ADMIN, CAP_NET_ADMIN and the NRI socket.",
    )
    config_option(parser)
    kubelet_dir_option(parser)


def _attach(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    if config.attach.interface is None:
        note(
            "attach.interface is not set: there is nothing to do. Name the netdevs in pods, such as rail{rail}"
        )
        return USAGE
    log_to_stderr(options.log_level or config.log.level, daemon=True)
    asyncio.run(_run(config, options.root, options.kubelet_dir))
    return GOOD


async def _run(config: Config, root: Path, kubelet_dir: Path) -> None:
    """Run until SIGTERM or SIGINT."""
    import signal

    from nodeagent.attach.attached_spec import AttachedSpec
    from nodeagent.attach.attachments import Attachments, HoldingsError
    from nodeagent.attach.host_names import HostNames
    from nodeagent.attach.nri_plugin import NriError, NriPlugin, Runtime
    from nodeagent.attach.plan_writer import read_plan
    from nodeagent.base.backoff import Backoff
    from nodeagent.base.ending import end_at
    from nodeagent.base.supervise import ending_signals
    from nodeagent.facts.model import Holding
    from nodeagent.host.sysfs import Tree
    from nodeagent.kube.podresources_client import PodResources, PodResourcesError

    tree = Tree(root)
    folder = tree.path(config.health.state_directory)
    kubelet = PodResources(kubelet_dir / "pod-resources" / "kubelet.sock", timeout_s=1.0)

    async def holdings() -> tuple[Holding, ...]:
        try:
            return await kubelet.list()
        except PodResourcesError as error:
            raise HoldingsError(str(error)) from error

    attachments = Attachments(
        lambda: read_plan(folder), holdings, AttachedSpec(tree.path(config.cdi.directory)), HostNames(folder)
    )
    backoff = Backoff(_AGAIN_FIRST_S, _AGAIN_MAX_S)

    def registered(runtime: Runtime) -> None:
        backoff.reset()
        log.info("Following the sandboxes. runtime=%s version=%s", runtime.name, runtime.version)

    async def follow() -> None:
        plugin = NriPlugin(tree.path(config.attach.nri_socket), attachments, registered)
        last = ""
        while True:
            try:
                await plugin.run()
            except NriError as error:
                if str(error) != last:
                    log.warning("%s", error)
                last = str(error)
            await asyncio.sleep(backoff.next_s())

    end_at(ending_signals(signal.SIGINT))
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            group.create_task(attachments.tend())
