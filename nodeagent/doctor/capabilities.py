"""Check the rights of this process: capabilities, writable directories, how /sys is mounted.

They are the rights of the process that runs the doctor, not the agent's: run the doctor where the agent runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from nodeagent.agent_config import Config
from nodeagent.attach import attach_files, host_names, plan_file, pod_plan
from nodeagent.base import kept_changes
from nodeagent.base.file_writing import nearest_folder, unwritable_because
from nodeagent.base.kept_changes import lost_because
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, shortened_list
from nodeagent.doctor.reads import Target
from nodeagent.dra import claim_files
from nodeagent.health import state_file
from nodeagent.host.kmsg import KernelLog, KernelLogError
from nodeagent.host.sysfs import Tree
from nodeagent.kinds.mps_clients import MPS_FOLDER
from nodeagent.kubelet import grown_requests, rail_memory, slice_sizes
from nodeagent.kubelet.device_info import DEVICE_INFO
from nodeagent.sharing import gpu_accounting, mps_files
from nodeagent.sources import infiniband_source, lldp_source, remembered_gpus
from nodeagent.sources.cordons_file import CORDONS_FORM as CORDONS

RIGHTS_TOPIC = Topic(
    "rights",
    "RIGHTS",
    {
        "capabilities": FACT,
        "net_raw_missing": Advice(
            "AF_PACKET sockets for LLDP need CAP_NET_RAW. Without it no switch is known.",
            "add NET_RAW to the container's capabilities, or set `lldp: {source: none}`",
        ),
        "net_admin_missing": Advice(
            "Reading transceivers and `nodeagent vfs apply` need CAP_NET_ADMIN. The other functions of the "
            "agent do not, so the shipped manifests withhold it from the daemon.",
            "add NET_ADMIN to read transceivers or to configure VFs; otherwise nothing",
        ),
        "syslog_missing": Advice(
            "The kernel log reports faults of NICs, NVLinks and NVSwitches. Reading it needs CAP_SYSLOG with "
            "kernel.dmesg_restrict=1 and, in a container, the host's /dev/kmsg. The shipped manifests give neither.",
            "nothing where another tool monitors the log, or set `samples: {kernelLog: false}`; otherwise add SYSLOG "
            "and the device /dev/kmsg",
        ),
        "not_root": Advice(
            "The kubelet's directories, the device nodes of NVML and the writable files of /sys belong to "
            "root.",
            "run as root (runAsUser: 0), with dropped capabilities",
        ),
        "sys_read_only": Advice(
            "The agent only reads /sys. Creating VFs writes to it.",
            "nothing for the agent; `nodeagent vfs apply` needs the host's /sys mounted read-write",
        ),
        "folders": FACT,
        "folder_unwritable": Advice(
            "The agent writes files there before it answers the kubelet. If it cannot, it refuses Allocate "
            "and the pod fails.",
            "mount the directory read-write below --root, or free disk space",
        ),
        "state": FACT,
        "state_unwritable": Advice(
            "A restart of the agent loses active faults, penalties, sizes of slices and known GPUs; rails come from "
            "the node's report and from held VFs.",
            "mount a writable host directory there, or set health.stateDirectory",
        ),
        "state_broken": Advice(
            "A file of an earlier agent cannot be read. The agent ignores it and writes a new one; what is lost is in "
            "docs/stored-files.md.",
            "nothing if it happened once; otherwise check the disk",
        ),
        "history_lost": Advice(
            "`history.file` is a path of the agent's container. What is on no volume, or read-only, ends with the "
            "container: a restart of the agent loses what changed before.",
            "write a name, `history: {file: history.json}`: it lies in health.stateDirectory; or mount a volume",
        ),
        "cordons_broken": Advice(
            "The file of the cordons cannot be read. An agent that starts offers the cordoned devices to new pods; one "
            "that runs keeps the cordons that it read before.",
            "move the file away; after a minute list the cordons (`nodeagent cordon`), and set again those that are "
            "missing",
        ),
    },
)

FORMS: tuple[StoredForm[Any], ...] = (
    state_file.HEALTH_FORM,
    rail_memory.RAILS_FORM,
    slice_sizes.SIZES_FORM,
    grown_requests.REQUESTS_FORM,
    remembered_gpus.GPUS_FORM,
    lldp_source.NEIGHBORS_FORM,
    infiniband_source.PEERS_FORM,
    gpu_accounting.ACCOUNTS_FORM,
    kept_changes.CHANGES_FORM,
    StoredForm(
        name=f"{MPS_FOLDER}/{mps_files.WANTED}",
        type=mps_files.WantedDaemons,
        content="list of the GPUs that need an MPS daemon",
        loss="nodeagent mps keeps its daemons without a list",
    ),
    StoredForm(
        name=f"{MPS_FOLDER}/{mps_files.STATES}",
        type=mps_files.DaemonStates,
        content="state of the MPS daemons",
        loss="slices of their GPUs are Unhealthy",
    ),
    StoredForm(
        name=plan_file.PLAN_FILE,
        type=pod_plan.AttachPlan,
        content="plan of netdevs in pods",
        loss="new pods with VFs wait until the agent writes it again",
    ),
    StoredForm(
        name=host_names.HOST_NAMES,
        type=host_names.StoredNames,
        content="names of VFs on the host",
        loss="VFs that are in pods come back under other names",
    ),
    StoredForm(
        name=attach_files.STATE_FILE,
        type=attach_files.AttachState,
        content="state of nodeagent attach",
        loss="the doctor does not see which pods wait",
    ),
)
"""The files with a name of their own; ``_of_claims`` has those of claims."""

_CLAIMS = claim_files.CLAIM_FORM.name.partition("/")[0]
"""The folder of the records of claims."""

# include/uapi/linux/capability.h
CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "SYSLOG": 34}


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """The state directory, why it is not writable (``refusal``), and why its files are unreadable, by their names
    (``broken``), or that of the cordons."""

    folder: str
    refusal: str | None = None
    broken: Mapping[str, str] = field(default_factory=dict)
    broken_cordons: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessRights:
    """``folders``: the directories that the agent writes, each with the reason why it cannot."""

    uid: int = 0
    capabilities: frozenset[str] = frozenset()
    sys_read_only: bool = False
    kernel_log: str | None = None
    """Why the kernel log cannot be read."""
    folders: Mapping[str, str | None] = field(default_factory=dict)
    state: StateDirectory | None = None
    lost_history: str | None = None
    """Why the file of the changes is lost at a restart."""


def read_rights(target: Target) -> ProcessRights:
    effective = 0
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    tree = target.tree
    return ProcessRights(
        uid=os.geteuid(),
        capabilities=frozenset(name for name, bit in CAPABILITIES.items() if effective >> bit & 1),
        sys_read_only=bool(os.statvfs(tree.path("/sys")).f_flag & os.ST_RDONLY),
        kernel_log=_kernel_log(),
        folders={path: _unwritable(tree.path(path)) for path in written(target.config)},
        state=_state(tree, target.config.health.state_directory),
        lost_history=_lost_history(target),
    )


def _lost_history(target: Target) -> str | None:
    """A name without a folder lies in the state folder, which has a finding of its own."""
    name = target.config.history.file
    if name is None or not name.startswith("/"):
        return None
    return lost_because(Path(name), in_pod=target.tree.root != Path("/") and not target.recorded)


def _kernel_log() -> str | None:
    try:
        KernelLog().close()
    except KernelLogError as error:
        return str(error)
    return None


def _state(tree: Tree, folder: str) -> StateDirectory:
    place = tree.path(folder)
    forms = (*FORMS, *_of_claims(place), CORDONS)
    files: list[StoredFile[Any]] = [StoredFile(place, form) for form in forms]
    for file in files:
        file.read()
    *others, cordons = files
    broken = {file.form.name: file.unreadable for file in others if file.unreadable is not None}
    return StateDirectory(folder, _unwritable(place), broken, cordons.unreadable)


def _of_claims(place: Path) -> Iterator[StoredForm[Any]]:
    """The records of the prepared claims: one file for each, whose name is the UID of the claim."""
    for path in sorted((place / _CLAIMS).glob("*.json")):
        yield structs.replace(claim_files.CLAIM_FORM, name=f"{_CLAIMS}/{path.name}")


def written(config: Config) -> tuple[str, ...]:
    """The directories of the machine in which the agent creates files."""
    cdi = [config.cdi.directory] if config.cdi.generate else []
    return (DEVICE_INFO, *cdi)


def rights_findings(rights: ProcessRights, config: Config) -> Iterator[Finding]:
    if rights.uid != 0:
        yield RIGHTS_TOPIC.warn("not_root", f"this is user {rights.uid}")
    held = ", ".join(sorted(rights.capabilities)) or "none of the relevant ones"
    yield RIGHTS_TOPIC.ok("capabilities", f"effective: {held}")
    if "NET_RAW" not in rights.capabilities and config.lldp.source == "socket":
        yield RIGHTS_TOPIC.fix("net_raw_missing", "no CAP_NET_RAW")
    if "NET_ADMIN" not in rights.capabilities:
        yield RIGHTS_TOPIC.note("net_admin_missing", "no CAP_NET_ADMIN")
    if rights.kernel_log is not None and config.samples.kernel_log:
        yield RIGHTS_TOPIC.note("syslog_missing", rights.kernel_log)
    if rights.sys_read_only:
        yield RIGHTS_TOPIC.note("sys_read_only", "/sys is mounted read-only")
    broken = {path: why for path, why in rights.folders.items() if why}
    for path, why in broken.items():
        yield RIGHTS_TOPIC.fix("folder_unwritable", f"{path}: {why}")
    if rights.state is not None:
        yield from _judge_state(rights.state)
    if rights.lost_history is not None:
        yield RIGHTS_TOPIC.warn("history_lost", f"{config.history.file}: {rights.lost_history}")
    if rights.folders and not broken:
        yield RIGHTS_TOPIC.ok("folders", f"writable: {shortened_list(list(rights.folders))}")


def _judge_state(state: StateDirectory) -> Iterator[Finding]:
    for name, why in state.broken.items():
        yield RIGHTS_TOPIC.warn("state_broken", f"{state.folder}/{name}: {why}")
    if state.broken_cordons is not None:
        yield RIGHTS_TOPIC.fix("cordons_broken", f"{state.folder}/{CORDONS.name}: {state.broken_cordons}")
    if state.refusal is not None:
        yield RIGHTS_TOPIC.warn("state_unwritable", f"{state.folder}: {state.refusal}")
    if not state.broken and state.broken_cordons is state.refusal is None:
        yield RIGHTS_TOPIC.ok("state", f"state is saved in {state.folder}")


def _unwritable(folder: Path) -> str | None:
    """The reason why the directory, or the nearest existing one above it, is not writable."""
    folder = nearest_folder(folder)
    return unwritable_because(folder) if folder.is_dir() else f"{folder} is not a directory"
