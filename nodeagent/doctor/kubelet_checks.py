"""The kubelet: its folders and sockets, who else sits in them, and what it counts under our names.

A look connects to sockets and asks the podresources API, which changes nothing; a plugin's own socket is never
asked for its devices, for a second stream upsets some plugins. Who holds the agent's lock is told by a shared
lock that is given back at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.target import Subject
from nodeagent.host.file_writing import unwritable_because
from nodeagent.kubelet.node_lock import LOCK
from nodeagent.model import Snapshot
from nodeagent.offer import Offer

TOPIC = Topic(
    "kubelet",
    "KUBELET",
    {
        "kubelet": FACT,
        "kubelet_none": Entry(
            "Devices are offered to a kubelet, and there is no folder of one here.",
            "nothing on a machine that is no node; elsewhere name the kubelet's root folder with --kubelet-dir",
        ),
        "kubelet_forbidden": Entry(
            "The kubelet's folders are root's, mode 0750; who cannot enter cannot register.",
            "run as root, with the folder mounted",
        ),
        "kubelet_silent": Entry(
            "Without the kubelet's socket nothing is registered; the agent waits for it.",
            "systemctl status kubelet; in a container mount the folder, never the socket in it",
        ),
        "kubelet_folder_unwritable": Entry(
            "The agent binds its sockets and its lock in this folder.",
            "mount it read-write; free the disk where it is full",
        ),
        "agent": FACT,
        "agent_absent": Entry(
            "No agent of ours serves this node now.",
            "nothing before it is installed; afterwards look at its pod's log",
        ),
        "plugins": FACT,
        "plugin_stale": Entry(
            "A socket that nobody listens on was left by a plugin that was killed: the kubelet keeps its resource at "
            "0 allocatable, then drops it.",
            "restart that plugin, or remove the socket if it is gone for good",
        ),
        "plugin_rival": Entry(
            "Another plugin for the same kind of device runs here. Two that offer one device promise it twice.",
            "remove it from this node, or let the two select different devices",
        ),
        "resource_claimed": Entry(
            "The kubelet keeps one plugin for each resource name: the last that registers wins, and the devices of "
            "the other are gone.",
            "remove the other plugin from this node, or give ours another resourcePrefix or name",
        ),
        "device_promised_twice": Entry(
            "The scheduler counts the device under both names and sends pods for both to it.",
            "take it out of the other plugin's selection, or out of ours",
        ),
        "podresources": FACT,
        "podresources_absent": Entry(
            "Only this API tells which pod holds what: without it health is told without the pods it hurts, and the "
            "number of VFs in use is not known.",
            "mount the host's /var/lib/kubelet/pod-resources, which every kubelet since 1.15 makes",
        ),
        "podresources_refused": Entry(
            "Only this API tells which pod holds what.",
            "look at the kubelet's log; it limits how often it is asked",
        ),
    },
)

SOCKET = "kubelet.sock"
_OURS = "nodeagent-"
_CONNECT_S = 1.0
_RIVALS = (
    ("nvidia", "GPUs"),
    ("hami", "GPUs"),
    ("vgpu", "GPUs"),
    ("gpushare", "GPUs"),
    ("aliyungpushare", "GPUs"),
    ("volcano", "GPUs"),
    ("sriov", "VFs"),
    ("rdma", "VFs"),
    ("mellanox", "VFs"),
)
"""What the sockets of other device plugins are called, and what they offer."""


@dataclass(frozen=True, slots=True)
class Kubelet:
    """``folder`` is ``None`` where no kubelet is to be looked for. ``refused`` is why the folder cannot be used,
    ``deaf`` why the kubelet's socket cannot. ``sockets`` are the plugins' by name, and whether somebody listens.
    ``offered`` are the device IDs by resource as the kubelet lists them, ``None`` where it was not asked.
    """

    folder: str | None = None
    exists: bool = False
    forbidden: str | None = None
    deaf: str | None = None
    unwritable: str | None = None
    locked: bool | None = None
    sockets: Mapping[str, bool] = field(default_factory=dict)
    podresources: bool = False
    podresources_error: str | None = None
    offered: Mapping[str, tuple[str, ...]] | None = None


# --- looking --------------------------------------------------------------------------------------------


async def look(subject: Subject) -> Kubelet:
    base = subject.kubelet_dir
    if base is None:
        return Kubelet()
    folder = base / "device-plugins"
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return Kubelet(str(base), exists=base.is_dir(), deaf="it has no device-plugins")
    except OSError as error:
        return Kubelet(str(base), exists=True, forbidden=f"{folder}: {error.strerror}")
    sockets = {name: connects(folder / name) for name in names if _is_socket(folder / name)}
    registry = base / "plugins_registry"
    if registry.is_dir() and os.access(registry, os.R_OK | os.X_OK):
        sockets |= {
            name: connects(registry / name)
            for name in sorted(os.listdir(registry))
            if _is_socket(registry / name)
        }
    listens = sockets.pop(SOCKET, None)
    asks = base / "pod-resources" / SOCKET
    offered, no_answer = await _offered(asks)
    return Kubelet(
        folder=str(base),
        exists=True,
        deaf=None if listens else "nobody listens on it" if listens is False else "it is not there",
        unwritable=unwritable_because(folder),
        locked=_locked(folder / LOCK),
        sockets=sockets,
        podresources=_is_socket(asks),
        podresources_error=no_answer,
        offered=offered,
    )


async def _offered(socket: Path) -> tuple[dict[str, tuple[str, ...]] | None, str | None]:
    if not _is_socket(socket):
        return None, None
    from nodeagent.kubelet import holdings  # noqa: PLC0415

    try:
        return dict(await holdings.offered(socket)), None
    except holdings.PodResourcesError as error:
        return None, str(error)


def connects(path: Path) -> bool:
    """Whether somebody listens on a socket; nothing is said to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _locked(path: Path) -> bool | None:
    """Whether an agent holds the node's lock; ``None`` where that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
    finally:
        os.close(descriptor)
    return False


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


# --- judging --------------------------------------------------------------------------------------------


def judge(seen: Kubelet, config: Config, snapshot: Snapshot | None) -> Iterator[Finding]:
    if seen.folder is None:
        return
    if seen.forbidden is not None:
        yield TOPIC.fix("kubelet_forbidden", seen.forbidden)
        return
    if not seen.exists:
        yield TOPIC.note("kubelet_none", f"{seen.folder} is not there")
        return
    if seen.deaf is not None:
        yield TOPIC.fix("kubelet_silent", f"{seen.folder}/device-plugins/{SOCKET}: {seen.deaf}")
    else:
        yield TOPIC.ok("kubelet", f"it listens in {seen.folder}")
    if seen.unwritable is not None:
        yield TOPIC.fix("kubelet_folder_unwritable", f"{seen.folder}/device-plugins: {seen.unwritable}")
    yield from _plugins(seen)
    if snapshot is not None:
        yield from _claims(seen, config, snapshot)
    yield from _podresources(seen, config)


def _plugins(seen: Kubelet) -> Iterator[Finding]:
    ours = [name for name, listens in seen.sockets.items() if name.startswith(_OURS) and listens]
    if seen.locked:
        yield TOPIC.ok("agent", f"an agent holds the node's lock and serves {count(len(ours), 'socket')}")
    elif ours:
        yield TOPIC.note("agent_absent", f"nobody holds {LOCK}, and {some(ours)} is served by somebody else")
    else:
        yield TOPIC.note("agent_absent", f"nobody holds {LOCK}")
    others = [name for name in seen.sockets if not name.startswith(_OURS)]
    stale = [name for name, listens in seen.sockets.items() if not listens]
    if stale:
        yield TOPIC.warn("plugin_stale", f"nobody listens on {some(stale)}")
    for name in others:
        what = next((what for word, what in _RIVALS if word in name.lower()), None)
        if what is not None and seen.sockets[name]:
            yield TOPIC.warn("plugin_rival", f"{name} offers {what}")
    if others:
        yield TOPIC.ok("plugins", f"other plugins' sockets: {some(others)}")


def _claims(seen: Kubelet, config: Config, snapshot: Snapshot) -> Iterator[Finding]:
    """What the kubelet lists against what we would offer: by our names, and the same devices by others'."""
    if seen.offered is None:
        return
    ours = {
        kind.resource: {device for devices in kind.devices(snapshot) for device in devices.ids}
        for kind in Offer(config).kinds(snapshot)
    }
    parents = {_parent(device): resource for resource, ids in ours.items() for device in ids}
    for resource, ids in sorted(seen.offered.items()):
        if resource in ours:
            foreign = [device for device in ids if _parent(device) not in parents]
            if foreign:
                yield TOPIC.fix(
                    "resource_claimed",
                    f"{resource} has {len(foreign)} devices that are not ours: {some(foreign, 2)}",
                )
            elif ids and not seen.locked:
                yield TOPIC.fix(
                    "resource_claimed",
                    f"{resource} has {count(len(ids), 'device')} and no agent of ours runs",
                )
            continue
        twice: dict[str, list[str]] = {}
        for device in ids:
            if (parent := _parent(device)) in parents:
                twice.setdefault(parents[parent], []).append(device)
        for mine, devices in twice.items():
            yield TOPIC.fix(
                "device_promised_twice", f"{resource} and {mine} both offer {some(sorted(devices), 2)}"
            )


def _podresources(seen: Kubelet, config: Config) -> Iterator[Finding]:
    if not config.kubelet.pod_resources:
        return
    if not seen.podresources:
        yield TOPIC.warn("podresources_absent", f"{seen.folder}/pod-resources/{SOCKET} is not there")
    elif seen.podresources_error is not None:
        yield TOPIC.warn("podresources_refused", seen.podresources_error)
    elif seen.offered is not None:
        names: Sequence[str] = sorted(seen.offered)
        yield TOPIC.ok("podresources", f"the kubelet counts {some(names) if names else 'no devices'}")


def _parent(device: str) -> str:
    """The hardware behind a device: a GPU's UUID without the number of a slice or a replica, a PCI address."""
    return device.partition("::")[0]
