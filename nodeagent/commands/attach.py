"""`nodeagent attach`: the netdevs of VFs come into the pods that hold them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, Add, kubelet_dir_option

log = logging.getLogger(__name__)

_KUBELET_S = 1.0
"""A sandbox waits for the kubelet's list no longer than this: the runtime's own limit is two seconds."""
_LOCK_S, _REPORT_S = 0.5, 2.0
_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.2, 5.0


def add(add: Add) -> None:
    parser = add(
        "attach",
        _attach,
        "move the netdevs of VFs into the pods that hold them, with a name and an address for each rail",
        "A plugin of the container runtime's NRI beside the agent, whose settings `attach` have the names and the\n"
        "addresses. A container that holds a VF starts only once the VF's netdev is in its pod. This process may end\n"
        "and start again at any time. It needs CAP_SYS_ADMIN, CAP_NET_ADMIN and the NRI socket (docs/attach.md).",
    )
    kubelet_dir_option(parser)
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/var/lib/nodeagent"),
        metavar="DIR",
        help="`health.stateDirectory` of the agent, whose folder `attach` has its plan (default: %(default)s)",
    )
    parser.add_argument(
        "--cdi",
        type=Path,
        default=Path("/var/run/cdi"),
        metavar="DIR",
        help="the folder of CDI specs that the container runtime reads (default: %(default)s)",
    )
    parser.add_argument(
        "--nri",
        type=Path,
        default=Path("/var/run/nri/nri.sock"),
        metavar="SOCKET",
        help="the socket of the container runtime's NRI (default: %(default)s)",
    )


def _attach(options: argparse.Namespace) -> int:
    log_to_stderr(options.log_level or "info", daemon=True)
    asyncio.run(_run(options.directory, options.kubelet_dir, options.cdi, options.nri))
    return GOOD


async def _run(folder: Path, kubelet_dir: Path, cdi: Path, nri: Path) -> None:
    """Run until SIGTERM or SIGINT. Pods keep their netdevs."""
    from nodeagent.attach.attach_files import AttachFiles, AttachState
    from nodeagent.attach.attached_spec import AttachedSpec
    from nodeagent.attach.attachments import Attachments, HoldingsError
    from nodeagent.attach.host_names import HostNames
    from nodeagent.attach.nri_plugin import NriError, NriPlugin, Runtime
    from nodeagent.attach.plan_writer import read_plan
    from nodeagent.base.backoff import Backoff
    from nodeagent.base.bounded_calls import in_thread
    from nodeagent.base.ending import end_at
    from nodeagent.base.supervise import ending_signals, keep
    from nodeagent.facts.model import Holding
    from nodeagent.kube.podresources_client import PodResources, PodResourcesError

    end_at(ending_signals(signal.SIGINT))
    kubelet = PodResources(kubelet_dir / "pod-resources" / "kubelet.sock", timeout_s=_KUBELET_S)

    async def holdings() -> tuple[Holding, ...]:
        try:
            return await kubelet.list()
        except PodResourcesError as error:
            raise HoldingsError(str(error)) from error

    files = AttachFiles(folder)
    if await in_thread(files.take_lock) is None:
        log.info("Another `nodeagent attach` runs on this node; waiting for its end. folder=%s", files.folder)
        while await in_thread(files.take_lock) is None:  # noqa: ASYNC110 - a lock of another process sets no event
            await asyncio.sleep(_LOCK_S)
    attachments = Attachments(lambda: read_plan(folder), holdings, AttachedSpec(cdi), HostNames(folder))
    backoff = Backoff(_AGAIN_FIRST_S, _AGAIN_MAX_S)
    said = ""

    async def report() -> None:
        """Keep the file that the doctor reads."""
        while True:
            runtime = plugin.runtime
            state = AttachState(
                "" if runtime is None else f"{runtime.name} {runtime.version}".strip(),
                said,
                attachments.pods,
                attachments.waiting,
            )
            await in_thread(partial(files.write_state, state))
            await asyncio.sleep(_REPORT_S)

    def registered(runtime: Runtime) -> None:
        nonlocal said
        said = ""
        backoff.reset()
        log.info("Following the pod sandboxes. runtime=%s version=%r", runtime.name, runtime.version)

    async def follow() -> None:
        nonlocal said
        while True:
            try:
                await plugin.run()
            except NriError as error:
                if str(error) != said:
                    log.warning("The pod sandboxes are not followed. reason=%r", str(error))
                said = str(error)
            await asyncio.sleep(backoff.next_s())

    plugin = NriPlugin(nri, attachments, registered)
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            group.create_task(keep("attach", follow))
            group.create_task(keep("tend", attachments.tend))
            group.create_task(keep("report", report))
