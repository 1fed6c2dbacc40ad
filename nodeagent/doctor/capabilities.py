"""What this process may do: capabilities, what it must be able to write, how /sys is mounted.

Of the process that runs the doctor, not of the agent: run it where the agent runs, with what the agent has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, some
from nodeagent.doctor.target import Subject
from nodeagent.host.file_writing import unwritable_because
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kubelet.device_info import DEVICE_INFO
from nodeagent.sources.state_file import NAME

TOPIC = Topic(
    "rights",
    "RIGHTS",
    {
        "capabilities": FACT,
        "net_raw_missing": Entry(
            "LLDP frames come in on AF_PACKET sockets, which take CAP_NET_RAW; without it no switch is known.",
            "add NET_RAW to the container's capabilities, or set `lldp: {source: none}`",
        ),
        "net_admin_missing": Entry(
            "Optics are read, and VFs are set up by `nodeagent vfs apply`, with CAP_NET_ADMIN; the daemon runs "
            "without.",
            "add NET_ADMIN where modules are to be read or VFs set up; nothing otherwise",
        ),
        "syslog_missing": Entry(
            "The kernel's log tells of device faults; with kernel.dmesg_restrict=1 reading it takes CAP_SYSLOG.",
            "add SYSLOG, or set kernel.dmesg_restrict=0; nothing where the log is watched by something else",
        ),
        "not_root": Entry(
            "The kubelet's folders, NVML's device nodes and most of /sys that is written are root's.",
            "run as root (runAsUser: 0), with capabilities dropped",
        ),
        "sys_read_only": Entry(
            "The daemon only reads /sys; making VFs writes it.",
            "nothing for the daemon; `nodeagent vfs apply` takes the host's /sys mounted read-write",
        ),
        "folders": FACT,
        "folder_unwritable": Entry(
            "The agent writes files there before it answers the kubelet; where it cannot, Allocate is refused and "
            "the pod fails.",
            "mount the folder read-write below --root, or free the disk",
        ),
        "state": FACT,
        "state_unwritable": Entry(
            "Penalties of flapping links and faults that stand are forgotten whenever the agent restarts.",
            "mount a writable host folder there, or set health.stateDirectory",
        ),
        "state_broken": Entry(
            "What an earlier agent remembered cannot be read; the agent leaves it out and writes the file anew.",
            "nothing, if it happened once; else look at the disk",
        ),
    },
)

# include/uapi/linux/capability.h
CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "SYSLOG": 34}


@dataclass(frozen=True, slots=True)
class State:
    """The folder in which the agent remembers, why it could not be written, and why its file cannot be read."""

    folder: str
    refusal: str | None = None
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Rights:
    """``folders`` are those that the agent writes, each with why it could not."""

    uid: int = 0
    capabilities: frozenset[str] = frozenset()
    sys_read_only: bool = False
    dmesg_restricted: bool = False
    folders: Mapping[str, str | None] = field(default_factory=dict)
    state: State | None = None


def look(subject: Subject) -> Rights:
    effective = 0
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    tree = subject.tree
    return Rights(
        uid=os.geteuid(),
        capabilities=frozenset(name for name, bit in CAPABILITIES.items() if effective >> bit & 1),
        sys_read_only=bool(os.statvfs(tree.path("/sys")).f_flag & os.ST_RDONLY),
        dmesg_restricted=Path("/proc/sys/kernel/dmesg_restrict").read_text(encoding="ascii").strip() == "1",
        folders={path: _unwritable(tree.path(path)) for path in written(subject.config)},
        state=_state(tree, subject.config.health.state_directory),
    )


def _state(tree: Tree, folder: str) -> State:
    broken = None
    try:
        text = tree.data(f"{folder}/{NAME}")
        if text is not None and not isinstance(json.loads(text), dict):
            broken = "it is no JSON object"
    except (SysfsError, ValueError, RecursionError) as error:
        broken = str(error)
    return State(folder, _unwritable(tree.path(folder)), broken)


def written(config: Config) -> tuple[str, ...]:
    """The folders of the machine in which the agent makes files."""
    cdi = [config.cdi.directory] if config.cdi.generate else []
    return (DEVICE_INFO, *cdi)


def judge(rights: Rights, config: Config) -> Iterator[Finding]:
    if rights.uid != 0:
        yield TOPIC.warn("not_root", f"this is user {rights.uid}")
    held = ", ".join(sorted(rights.capabilities)) or "none that matters here"
    yield TOPIC.ok("capabilities", f"effective: {held}")
    if "NET_RAW" not in rights.capabilities and config.lldp.source == "socket":
        yield TOPIC.fix("net_raw_missing", "no CAP_NET_RAW")
    if "NET_ADMIN" not in rights.capabilities:
        yield TOPIC.note("net_admin_missing", "no CAP_NET_ADMIN")
    if rights.dmesg_restricted and "SYSLOG" not in rights.capabilities:
        yield TOPIC.note("syslog_missing", "kernel.dmesg_restrict is 1, and there is no CAP_SYSLOG")
    if rights.sys_read_only:
        yield TOPIC.note("sys_read_only", "/sys is mounted read-only")
    broken = {path: why for path, why in rights.folders.items() if why}
    for path, why in broken.items():
        yield TOPIC.fix("folder_unwritable", f"{path}: {why}")
    if rights.state is not None:
        yield from _judge_state(rights.state)
    if rights.folders and not broken:
        yield TOPIC.ok("folders", f"writable: {some(list(rights.folders))}")


def _judge_state(state: State) -> Iterator[Finding]:
    if state.broken is not None:
        yield TOPIC.warn("state_broken", f"{state.folder}/{NAME}: {state.broken}")
    if state.refusal is not None:
        yield TOPIC.warn("state_unwritable", f"{state.folder}: {state.refusal}")
    if state.broken is None and state.refusal is None:
        yield TOPIC.ok("state", f"remembered in {state.folder}")


def _unwritable(folder: Path) -> str | None:
    """Of the folder, or of the nearest one above it in which it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return unwritable_because(folder) if folder.is_dir() else f"{folder} is no folder"
