"""Check the kubelet: its directories and sockets, other plugins, and what it counts under our resource names.

A read connects to sockets and calls the podresources API; neither changes anything. The devices of another plugin
are not requested from its socket, because a second stream disturbs some plugins. A shared lock, released at once,
shows whether an agent holds the node's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from nodeagent.agent_config import Config
from nodeagent.base.file_writing import unwritable_because
from nodeagent.console.options import KUBELET_DIR
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened
from nodeagent.doctor.reads import Target, is_socket
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.kubelet.node_lock import LOCK
from nodeagent.offering.offer import Offer

TOPIC = Topic(
    "kubelet",
    "KUBELET",
    {
        "kubelet": FACT,
        "kubelet_none": Advice(
            "The agent offers devices to a kubelet, but this machine has no kubelet directory.",
            "nothing on a machine that is not a node; otherwise set the kubelet's root directory with "
            "--kubelet-dir (k0s, MicroK8s)",
        ),
        "kubelet_forbidden": Advice(
            "The kubelet's directories belong to root (mode 0750). Without access the agent cannot register.",
            "run as root, with the directory mounted",
        ),
        "kubelet_silent": Advice(
            "Without the kubelet's socket no resource is registered; the agent waits for it.",
            "systemctl status kubelet; in a container mount the directory, never the socket in it. Every kubelet has "
            "it in /var/lib/kubelet/device-plugins, whatever its --root-dir is: --device-plugins-dir",
        ),
        "kubelet_folder_unwritable": Advice(
            "The agent creates its sockets and its lock in this directory.",
            "mount it read-write; free disk space if it is full",
        ),
        "agent": FACT,
        "agent_absent": Advice(
            "No nodeagent serves this node now.",
            "nothing before the agent is installed; afterwards check the log of its pod",
        ),
        "plugins": FACT,
        "plugin_stale": Advice(
            "A plugin that was killed has left its socket: the kubelet keeps its resource at 0 allocatable "
            "and removes it later.",
            "restart that plugin, or remove the socket if the plugin is uninstalled",
        ),
        "plugin_rival": Advice(
            "Another plugin for the same type of device runs here. Two plugins that offer one device "
            "allocate it twice.",
            "remove it from this node, or let the two select different devices",
        ),
        "resource_claimed": Advice(
            "The kubelet keeps one plugin for each resource name. The last registration wins, and the "
            "devices of the other plugin are gone.",
            "remove the other plugin from this node, or give our resource another resourcePrefix or name",
        ),
        "device_promised_twice": Advice(
            "The scheduler counts the device under both names and assigns it to pods of both.",
            "remove the device from the other plugin's selection, or from nodeagent's",
        ),
        "podresources": FACT,
        "podresources_absent": Advice(
            "Only this API shows which pod holds what. Without it faults are reported without the affected "
            "pods, and the number of VFs in use is unknown.",
            "mount the host's /var/lib/kubelet/pod-resources, which every kubelet since 1.15 creates; with another "
            "--root-dir of the kubelet it is there: --kubelet-dir",
        ),
        "podresources_refused": Advice(
            "Only this API shows which pod holds what.",
            "check the kubelet's log; the kubelet limits the rate of calls",
        ),
        "podresources_off": Advice(
            "Only this API shows what the kubelet counts. Without it the agent does not notice another device plugin "
            "that takes a resource name of ours, and when that one has gone the resource stays at 0 allocatable until "
            "the agent starts again.",
            "set kubelet.podResources: true",
        ),
    },
)

SOCKET = "kubelet.sock"
ROOTS = (KUBELET_DIR, "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
"""The usual --root-dir, and those of k0s and MicroK8s."""
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
"""Parts of the socket names of other device plugins, and the devices that they offer."""


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """``folder``: its root, ``None`` where no kubelet is expected. ``plugins``: the folder of the plugins' sockets.
    ``forbidden``: why it cannot be read. ``unreachable``: why the kubelet's socket cannot be used. ``sockets``: the
    plugins' sockets by name, and whether a process listens. ``offered``: device IDs by resource as the kubelet lists
    them; ``None``: not asked.
    ``sockets_elsewhere``: other folders in which a kubelet listens; ``roots_elsewhere``: other roots with podresources.
    """

    folder: str | None = None
    plugins: str = ""
    exists: bool = False
    forbidden: str | None = None
    unreachable: str | None = None
    unwritable: str | None = None
    locked: bool | None = None
    sockets: Mapping[str, bool] = field(default_factory=dict)
    podresources: bool = False
    podresources_error: str | None = None
    offered: Mapping[str, tuple[str, ...]] | None = None
    sockets_elsewhere: tuple[str, ...] = ()
    roots_elsewhere: tuple[str, ...] = ()


# --- reading --------------------------------------------------------------------------------------------


async def read(target: Target) -> KubeletFacts:
    base = target.kubelet_dir
    if base is None:
        return KubeletFacts()
    folder = target.device_plugins_dir or base / "device-plugins"
    sockets_elsewhere, roots_elsewhere = _elsewhere(target, base, folder)
    asks = base / "pod-resources" / SOCKET
    offered, no_answer = await _offered(asks)
    facts = KubeletFacts(
        str(base),
        plugins=str(folder),
        exists=base.is_dir(),
        sockets_elsewhere=sockets_elsewhere,
        roots_elsewhere=roots_elsewhere,
        podresources=is_socket(asks),
        podresources_error=no_answer,
        offered=offered,
    )
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return replace(facts, unreachable="the directory is missing")
    except OSError as error:
        return replace(facts, exists=True, forbidden=f"{folder}: {error.strerror}")
    sockets = {name: connects(folder / name) for name in names if is_socket(folder / name)}
    registry = base / "plugins_registry"
    if registry.is_dir() and os.access(registry, os.R_OK | os.X_OK):
        sockets |= {
            name: connects(registry / name)
            for name in sorted(os.listdir(registry))
            if is_socket(registry / name)
        }
    listens = sockets.pop(SOCKET, None)
    return replace(
        facts,
        exists=True,
        unreachable=None
        if listens
        else "no process listens on it"
        if listens is False
        else "it does not exist",
        unwritable=unwritable_because(folder),
        locked=_locked(folder / LOCK),
        sockets=sockets,
    )


def _elsewhere(target: Target, base: Path, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Other usual places, below ``--root`` too, with a kubelet that listens, and with podresources."""
    roots = dict.fromkeys(it for root in ROOTS for it in (Path(root), target.tree.path(root)))
    listening = [str(it / "device-plugins") for it in roots if connects(it / "device-plugins" / SOCKET)]
    answering = [str(it) for it in roots if connects(it / "pod-resources" / SOCKET)]
    return (
        tuple(it for it in listening if it != str(folder)),
        tuple(it for it in answering if it != str(base)),
    )


async def _offered(socket: Path) -> tuple[dict[str, tuple[str, ...]] | None, str | None]:
    if not is_socket(socket):
        return None, None
    from nodeagent.kubelet import holdings

    try:
        return dict(await holdings.offered(socket)), None
    except holdings.PodResourcesError as error:
        return None, str(error)


def connects(path: Path) -> bool:
    """Whether a process listens on a socket. Nothing is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _locked(path: Path) -> bool | None:
    """Whether an agent holds the node's lock; ``None`` where this is not known."""
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


# --- findings -------------------------------------------------------------------------------------------


def findings(
    facts: KubeletFacts,
    config: Config,
    snapshot: Snapshot | None,
    numbering: Numbering = MappingProxyType({}),
) -> Iterator[Finding]:
    if facts.folder is None:
        return
    if facts.forbidden is not None:
        yield TOPIC.fix("kubelet_forbidden", facts.forbidden)
        return
    if not facts.exists:
        yield TOPIC.note("kubelet_none", f"{facts.folder} does not exist")
        return
    if facts.unreachable is not None:
        other = facts.sockets_elsewhere[0] if facts.sockets_elsewhere else ""
        hint = f", but one listens in {other}: --device-plugins-dir {other}" if other else ""
        yield TOPIC.fix("kubelet_silent", f"{facts.plugins}/{SOCKET}: {facts.unreachable}{hint}")
    else:
        yield TOPIC.ok("kubelet", f"the kubelet listens in {facts.plugins}")
    if facts.unwritable is not None:
        yield TOPIC.fix("kubelet_folder_unwritable", f"{facts.plugins}: {facts.unwritable}")
    yield from _plugins(facts)
    if snapshot is not None:
        yield from _claims(facts, Offer(config, numbering), snapshot)
    yield from _podresources(facts, config)


def _plugins(facts: KubeletFacts) -> Iterator[Finding]:
    ours = [name for name, listens in facts.sockets.items() if name.startswith(_OURS) and listens]
    if facts.locked:
        yield TOPIC.ok("agent", f"an agent holds the node's lock and serves {count(len(ours), 'socket')}")
    elif ours:
        yield TOPIC.note(
            "agent_absent", f"no process holds {LOCK}, but another process serves {shortened(ours)}"
        )
    else:
        yield TOPIC.note("agent_absent", f"no process holds {LOCK}")
    others = [name for name in facts.sockets if not name.startswith(_OURS)]
    stale = [name for name, listens in facts.sockets.items() if not listens]
    if stale:
        yield TOPIC.warn("plugin_stale", f"no process listens on {shortened(stale)}")
    for name in others:
        what = next((what for word, what in _RIVALS if word in name.lower()), None)
        if what is not None and facts.sockets[name]:
            yield TOPIC.warn("plugin_rival", f"{name} offers {what}")
    if others:
        yield TOPIC.ok("plugins", f"other plugins' sockets: {shortened(others)}")


def _claims(facts: KubeletFacts, offer: Offer, snapshot: Snapshot) -> Iterator[Finding]:
    """Compare the kubelet's list with our offer: foreign devices under our names, our devices under other names."""
    if facts.offered is None:
        return
    ours = {kind.resource: _ids(kind, snapshot) for kind in offer.kinds(snapshot)}
    parents = {_parent(device): resource for resource, ids in ours.items() for device in ids}
    for kind in dict.fromkeys(device.kind for device in offer.dra_devices(snapshot)):
        parents.update(
            (_parent(device), "the ResourceSlices of nodeagent") for device in _ids(kind, snapshot)
        )
    for resource, ids in sorted(facts.offered.items()):
        if resource in ours:
            foreign = [device for device in ids if _parent(device) not in parents]
            if foreign:
                yield TOPIC.fix(
                    "resource_claimed",
                    f"{resource} has {len(foreign)} devices that are not of this agent: {shortened(foreign, 2)}",
                )
            elif ids and not facts.locked:
                yield TOPIC.fix(
                    "resource_claimed",
                    f"{resource} has {count(len(ids), 'device')} but no nodeagent runs",
                )
            continue
        twice: dict[str, list[str]] = {}
        for device in ids:
            if (parent := _parent(device)) in parents:
                twice.setdefault(parents[parent], []).append(device)
        for mine, devices in twice.items():
            yield TOPIC.fix(
                "device_promised_twice", f"{resource} and {mine} both offer {shortened(sorted(devices), 2)}"
            )


def _podresources(facts: KubeletFacts, config: Config) -> Iterator[Finding]:
    if not config.kubelet.pod_resources:
        if config.resources:
            yield TOPIC.note("podresources_off", "kubelet.podResources is off")
        return
    if not facts.podresources:
        other = facts.roots_elsewhere[0] if facts.roots_elsewhere else ""
        hint = f", but {other} has one: --kubelet-dir {other}" if other else ""
        yield TOPIC.warn("podresources_absent", f"{facts.folder}/pod-resources/{SOCKET} does not exist{hint}")
    elif facts.podresources_error is not None:
        yield TOPIC.warn("podresources_refused", facts.podresources_error)
    elif facts.offered is not None:
        names: Sequence[str] = sorted(facts.offered)
        yield TOPIC.ok("podresources", f"the kubelet counts {shortened(names) if names else 'no devices'}")


def _ids(kind: DeviceKind, snapshot: Snapshot) -> set[str]:
    return {device for devices in kind.devices(snapshot) for device in devices.ids}


def _parent(device: str) -> str:
    """The hardware of a device: a PCI address, or a GPU's UUID without the number of a slice or replica."""
    return device.partition("::")[0]
