"""Check the container runtime and its CDI specs: can it provide the devices that the agent names?

The facts come from the runtime's own files, which a container often cannot read; without them there are no findings.
CDI's reference (container-device-interface, pkg/cdi) sets the rules: later directories have priority over earlier
ones, and if two specs in one directory define the same device, neither counts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.reads import Target, is_socket
from nodeagent.facts import cdi
from nodeagent.facts.model import Gpu
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.kinds.resource_settings import (
    network_entries,
)
from nodeagent.sources.host_paths import CDI_FOLDERS, VENDOR_KIND, parsed

_OWN_SPEC = (
    "the agent writes this file at its start: kubectl -n nodeagent rollout restart daemonset nodeagent; where no agent "
    "runs any more, remove the file"
)
"""NVIDIA's tool does not write our kinds."""

RUNTIME_TOPIC = Topic(
    "runtime",
    "CONTAINER RUNTIME",
    {
        "runtime": FACT,
        "runtime_unseen": Advice(
            "The container runtime's own configuration determines whether CDI is enabled. It cannot be read from "
            "here.",
            "run the doctor on the host itself, or mount the host's /etc and /run below --root",
        ),
        "runtime_config_broken": Advice(
            "A runtime does not start with a configuration that it cannot read; the running one uses "
            "another.",
            "correct the file, then restart the runtime",
        ),
        "cdi": FACT,
        "cdi_off": Advice(
            "The configuration allocates devices by CDI names, which this runtime ignores: containers fail "
            "to start, or start without their device.",
            "set enable_cdi = true in containerd's section of the CRI plugin, then restart containerd; or "
            "deviceListStrategy: envvar (nodes for VFs)",
        ),
        "cdi_maybe_off": Advice(
            "In containerd 1.7 CDI is disabled unless the configuration enables it; in containerd 2 it is "
            "enabled.",
            "set enable_cdi = true in the section of the CRI plugin, which is correct for both",
        ),
        "cdi_folder_unread": Advice(
            "The runtime does not read the directory of the agent's CDI spec, so the devices in it do not "
            "exist for the runtime.",
            "set `cdi.directory` to a directory in the runtime's cdi_spec_dirs, or add it there",
        ),
        "cdi_broken": Advice(
            "A spec that runtimes cannot read defines no device.",
            "generate it again (nvidia-ctk cdi generate --output=FILE), or remove it",
        ),
        "cdi_conflict": Advice(
            "If two specs in one directory define the same device, neither counts: containers with this "
            "device do not start.",
            "remove one of the two files",
        ),
        "cdi_stale": Advice(
            "A spec that names missing files prevents every container with this device from starting. A "
            "driver upgrade leaves such specs behind.",
            "generate it again: nvidia-ctk cdi generate --output=FILE; a spec of nodeagent.io: restart the "
            "agent, which writes it, or remove the file where no agent runs any more",
        ),
        "cdi_undefined": Advice(
            "Devices are allocated by names that no spec defines, and the configuration forbids the agent "
            "to write one.",
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, or set "
            "cdi.generate: true",
        ),
        "nvidia_runtime_absent": Advice(
            "Only NVIDIA's runtime reads deviceListStrategy: envvar; under another one a pod starts without "
            "a GPU.",
            "nvidia-ctk runtime configure, then restart the runtime; or deviceListStrategy: cdi",
        ),
    },
)

_SOCKETS = {
    "containerd": (
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
    ),
    "CRI-O": ("/run/crio/crio.sock",),
    "cri-dockerd": ("/run/cri-dockerd.sock",),
}
_CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
_CRI_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "cri")
_CONFIG_MAX_BYTES = 1 << 20
_PATHS_MAX = 4096


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The configuration of one runtime; ``None``: not set, the default applies. ``version`` is the version of
    containerd's file; 3 is the format of containerd 2.
    """

    file: str
    version: int | None = None
    cdi: bool | None = None
    folders: tuple[str, ...] | None = None
    handlers: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """One CDI file. ``missing``: host paths in its edits that do not exist."""

    path: str
    kind: str | None = None
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """``running``: runtimes with a socket. ``recorded``: only a part of the host's paths was recorded."""

    running: tuple[str, ...] = ()
    settings: tuple[RuntimeSettings, ...] = ()
    specs: tuple[CdiSpec, ...] = ()
    recorded: bool = False


# --- reading --------------------------------------------------------------------------------------------


def read_runtimes(target: Target) -> RuntimeFacts:
    tree = target.tree
    crio = [
        path
        for place in _CRIO
        for path in (place, *(f"{place}/{n}" for n in SysfsScan(tree).names(place)))
        if path.endswith(".conf")
    ]
    settings = [containerd(tree, path) for path in _CONTAINERD] + [_crio(tree, crio)]
    known = tuple(runtime for runtime in settings if runtime is not None)
    named = (
        *CDI_FOLDERS,
        target.config.cdi.directory,
        *(f for runtime in known for f in runtime.folders or ()),
    )
    folders = {tree.real(folder) or folder: folder for folder in reversed(named)}  # /var/run is often /run
    return RuntimeFacts(
        running=tuple(
            name for name, sockets in _SOCKETS.items() if any(is_socket(tree.path(path)) for path in sockets)
        ),
        settings=known,
        specs=tuple(
            spec for folder in reversed(folders.values()) for spec in _specs(tree, folder, target.recorded)
        ),
        recorded=target.recorded,
    )


def containerd(tree: Tree, path: str) -> RuntimeSettings | None:
    """The file, overlaid with its imports as containerd does; ``None`` where it does not exist."""
    try:
        document = _toml(tree, path)
        if document is None:
            return None
        sections = [document]
        for pattern in _texts(document.get("imports")) or ():
            folder, _, glob = pattern.rpartition("/")
            imported = [name for name in SysfsScan(tree).names(folder) if fnmatchcase(name, glob)]
            sections += [_toml(tree, f"{folder}/{name}") or {} for name in imported]
    except (SysfsError, OSError, ValueError) as error:
        return RuntimeSettings(path, broken=str(error))
    version, enabled, folders, handlers = document.get("version"), None, None, dict[str, None]()
    for section in sections:
        for plugin in _CRI_PLUGINS:
            cri = _at(section, "plugins", plugin)
            enabled = cri.get("enable_cdi", enabled)
            folders = cri.get("cdi_spec_dirs", folders)
            handlers |= dict.fromkeys(map(str, _at(cri, "containerd", "runtimes")))
    return RuntimeSettings(
        path,
        version if isinstance(version, int) else 1,
        enabled if isinstance(enabled, bool) else None,
        _texts(folders),
        tuple(handlers),
    )


def _crio(tree: Tree, paths: Iterable[str]) -> RuntimeSettings | None:
    """CRI-O always has CDI enabled; its files overlay each other in the order of their names."""
    facts: list[str] = []
    folders, handlers = None, dict[str, None]()
    for path in paths:
        try:
            document = _toml(tree, path)
        except (SysfsError, OSError, ValueError) as error:
            return RuntimeSettings(path, broken=str(error))
        if document is not None:
            facts.append(path)
            runtime = _at(document, "crio", "runtime")
            folders = runtime.get("cdi_spec_dirs", folders)
            handlers |= dict.fromkeys(map(str, _at(runtime, "runtimes")))
    return RuntimeSettings(facts[0], None, True, _texts(folders), tuple(handlers)) if facts else None


def _specs(tree: Tree, folder: str, recorded: bool) -> Iterator[CdiSpec]:
    for name in SysfsScan(tree).names(folder):
        path = f"{folder}/{name}"
        if not name.endswith((".json", ".yaml")):
            continue
        try:
            document = parsed(tree, path)
        except (SysfsError, OSError, ValueError) as error:
            yield CdiSpec(path, broken=str(error))
            continue
        if not isinstance(document, Mapping):
            yield CdiSpec(path, broken="not a mapping")
            continue
        kind = document.get("kind")
        devices = sorted(cdi.vendor_devices({path: document}).get(str(kind), ()))
        if not isinstance(kind, str) or not devices:
            yield CdiSpec(path, broken="no kind" if not isinstance(kind, str) else "it defines no device")
            continue
        missing = () if recorded else tuple(p for p in _host_paths(document) if _is_missing(tree, p))
        yield CdiSpec(path, kind, tuple(devices), missing)


def _host_paths(document: Mapping[str, object]) -> list[str]:
    """The host paths that the runtime needs, each once."""
    devices = document.get("devices")
    holders = [document, *(devices if isinstance(devices, list) else ())]
    paths: dict[str, None] = {}
    for holder in holders:
        edits = holder.get("containerEdits") if isinstance(holder, Mapping) else None
        for part in ("deviceNodes", "mounts", "hooks"):
            entries = edits.get(part) if isinstance(edits, Mapping) else None
            for entry in entries if isinstance(entries, list) else ():
                path = (entry.get("hostPath") or entry.get("path")) if isinstance(entry, Mapping) else None
                if isinstance(path, str) and path.startswith("/"):
                    paths[path] = None
    return list(paths)[:_PATHS_MAX]


def _is_missing(tree: Tree, path: str) -> bool:
    """Below another root only a part of the host is visible: a path counts as missing if its directory is visible."""
    if tree.exists(path):
        return False
    return str(tree.root) == "/" or tree.exists(path.rpartition("/")[0])


def _toml(tree: Tree, path: str) -> dict[str, object] | None:
    if tree.path(path).is_file() and os.path.getsize(tree.path(path)) > _CONFIG_MAX_BYTES:
        raise ValueError(f"{path} is larger than {_CONFIG_MAX_BYTES} bytes")
    text = tree.text(path)
    try:
        return None if text is None else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _at(document: Mapping[str, object], *path: str) -> dict[str, object]:
    """The table at a path; empty where there is none."""
    here: object = document
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return dict(here) if isinstance(here, Mapping) else {}


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


# --- findings -------------------------------------------------------------------------------------------


def runtime_findings(facts: RuntimeFacts, config: Config, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for runtime in facts.settings:
        if runtime.broken is not None:
            yield RUNTIME_TOPIC.fix("runtime_config_broken", runtime.broken)
    readable = [runtime for runtime in facts.settings if runtime.broken is None]
    if facts.running or readable:
        files = ", ".join(runtime.file for runtime in readable) or "no configuration found"
        yield RUNTIME_TOPIC.ok("runtime", f"{', '.join(facts.running) or 'no socket found'}; {files}")
    if not readable and not any(runtime.broken for runtime in facts.settings):
        yield RUNTIME_TOPIC.note("runtime_unseen", "no configuration of containerd or CRI-O found")
    strategies = {entry.device_list_strategy for entry in config.resources}
    if "cdi" in strategies:
        yield from _cdi_on(readable, config)
        yield from _defined(facts, config, gpus)
    if (
        "envvar" in strategies
        and readable
        and not any("nvidia" in h for runtime in readable for h in runtime.handlers)
    ):
        yield RUNTIME_TOPIC.fix("nvidia_runtime_absent", f"{readable[0].file} has no runtime named nvidia")
    yield from _of_specs(facts)


def _cdi_on(readable: Iterable[RuntimeSettings], config: Config) -> Iterator[Finding]:
    writes = config.cdi.generate or any(
        entry.device_list_strategy == "cdi" for entry in network_entries(config.resources)
    )
    for runtime in readable:
        if runtime.cdi is False:
            yield RUNTIME_TOPIC.fix("cdi_off", f"{runtime.file}: enable_cdi = false")
        elif runtime.cdi is None and (runtime.version or 0) < 3:
            yield RUNTIME_TOPIC.note(
                "cdi_maybe_off", f"{runtime.file} does not set enable_cdi and has version {runtime.version}"
            )
        folders = [_canonical(folder) for folder in runtime.folders or CDI_FOLDERS]
        if writes and runtime.cdi is not False and _canonical(config.cdi.directory) not in folders:
            yield RUNTIME_TOPIC.fix(
                "cdi_folder_unread", f"{runtime.file} reads {', '.join(folders) or 'no directory'}"
            )


def _defined(facts: RuntimeFacts, config: Config, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether the vendor's spec defines the GPUs, or the agent writes one."""
    wants = [
        entry for entry in config.resources if entry.source == "gpus" and entry.device_list_strategy == "cdi"
    ]
    if not wants or not gpus:
        return
    defined = {name for spec in facts.specs if spec.kind == VENDOR_KIND for name in spec.devices}
    missing = [gpu.uuid for gpu in gpus if gpu.uuid not in defined]
    if not missing:
        yield RUNTIME_TOPIC.ok("cdi", f"{VENDOR_KIND} defines {count(len(gpus), 'GPU')} by UUID")
    elif config.cdi.generate:
        yield RUNTIME_TOPIC.ok(
            "cdi",
            f"the agent writes {cdi.GPU_KIND} to {config.cdi.directory}: no vendor spec defines the GPUs",
        )
    else:
        yield RUNTIME_TOPIC.fix(
            "cdi_undefined", f"no spec of {VENDOR_KIND} defines {shortened_list(missing, 2)}"
        )


def _of_specs(facts: RuntimeFacts) -> Iterator[Finding]:
    definers: dict[tuple[str, str], list[str]] = {}
    for spec in facts.specs:
        if spec.broken is not None:
            yield RUNTIME_TOPIC.warn("cdi_broken", f"{spec.path}: {spec.broken}")
        if spec.missing:
            remedy = _OWN_SPEC if spec.kind in (cdi.GPU_KIND, cdi.VF_KIND) else ""
            yield RUNTIME_TOPIC.fix(
                "cdi_stale", f"{spec.path}: {shortened_list(spec.missing, 2)}: missing", remedy
            )
        folder = _canonical(spec.path.rpartition("/")[0])
        for device in spec.devices:
            definers.setdefault((folder, f"{spec.kind}={device}"), []).append(spec.path)
    clashes: dict[tuple[str, ...], list[str]] = {}
    for (_, device), paths in definers.items():
        if len(paths) > 1:
            clashes.setdefault(tuple(paths), []).append(device)
    for files, devices in clashes.items():
        yield RUNTIME_TOPIC.fix(
            "cdi_conflict", f"{' and '.join(files)} both define {shortened_list(devices, 2)}"
        )


def _canonical(folder: str) -> str:
    """The same directory with /run for /var/run."""
    path = os.path.normpath(folder)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
