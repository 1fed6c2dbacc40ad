"""The container runtime and what it reads of CDI: is the device that we name one that it can give?

Read from the runtimes' own files, which a container often does not see; what is not seen is not judged. Rules of
CDI's own reference (container-device-interface, pkg/cdi): folders further down the list go before those above,
and of two specs in one folder that define one device neither counts.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent import cdi
from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.target import Subject
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kinds.resource_settings import GpuMemResource, GpuResource, VfResource
from nodeagent.model import Gpu
from nodeagent.sources.host_paths import CDI_FOLDERS, VENDOR_KIND, parsed

TOPIC = Topic(
    "runtime",
    "CONTAINER RUNTIME",
    {
        "runtime": FACT,
        "runtime_unseen": Entry(
            "Whether CDI is switched on stands in the container runtime's own configuration, which is not to be seen "
            "from here.",
            "run the doctor on the host itself, or mount the host's /etc and /run below --root",
        ),
        "runtime_config_broken": Entry(
            "A runtime does not start with a configuration that it cannot read; what runs has another.",
            "mend the file, then restart the runtime",
        ),
        "cdi": FACT,
        "cdi_off": Entry(
            "The configuration hands out devices by their CDI names, which this runtime ignores: containers fail to "
            "start, or start without their device.",
            "enable_cdi = true in containerd's section of the CRI plugin, then restart containerd; or "
            "deviceListStrategy: envvar (nodes for VFs)",
        ),
        "cdi_maybe_off": Entry(
            "containerd 1.7 has CDI switched off unless its configuration says otherwise; containerd 2 has it on.",
            "set enable_cdi = true in the section of the CRI plugin, which is right for both",
        ),
        "cdi_folder_unread": Entry(
            "The runtime does not look where the agent writes its own CDI spec: what it defines does not exist.",
            "set `cdi.directory` to a folder of the runtime's cdi_spec_dirs, or add it there",
        ),
        "cdi_broken": Entry(
            "A spec that runtimes cannot read defines nothing.",
            "make it again (nvidia-ctk cdi generate --output=FILE), or remove it",
        ),
        "cdi_conflict": Entry(
            "Of two specs in one folder that define the same device neither counts: containers that are given it do "
            "not start.",
            "remove one of the two files",
        ),
        "cdi_stale": Entry(
            "A spec that names files which are not there keeps every container with that device from starting; a "
            "driver that was upgraded leaves such specs behind.",
            "make it again: nvidia-ctk cdi generate --output=FILE",
        ),
        "cdi_undefined": Entry(
            "The devices are handed out by names that no spec defines, and the agent is told to write none.",
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, or cdi.generate: true",
        ),
        "nvidia_runtime_absent": Entry(
            "deviceListStrategy: envvar is read by NVIDIA's runtime alone; under another a pod starts without a GPU.",
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
class Settings:
    """What one runtime's configuration says; ``None`` where it is silent and the default holds. ``version`` is
    that of containerd's file: 3 is containerd 2's own.
    """

    file: str
    version: int | None = None
    cdi: bool | None = None
    folders: tuple[str, ...] | None = None
    handlers: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI file. ``missing`` are host paths of its edits that are not there."""

    path: str
    kind: str | None = None
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """``running`` by their sockets. ``recorded``: of the host's paths only some were recorded."""

    running: tuple[str, ...] = ()
    settings: tuple[Settings, ...] = ()
    specs: tuple[Spec, ...] = ()
    recorded: bool = False


# --- looking --------------------------------------------------------------------------------------------


def look(subject: Subject) -> Runtime:
    tree = subject.tree
    crio = [
        path
        for place in _CRIO
        for path in (place, *(f"{place}/{n}" for n in _names(tree, place)))
        if path.endswith(".conf")
    ]
    settings = [containerd(tree, path) for path in _CONTAINERD] + [_crio(tree, crio)]
    told = tuple(one for one in settings if one is not None)
    named = (*CDI_FOLDERS, subject.config.cdi.directory, *(f for one in told for f in one.folders or ()))
    folders = {tree.real(folder) or folder: folder for folder in reversed(named)}  # /var/run is often /run
    return Runtime(
        running=tuple(
            name for name, sockets in _SOCKETS.items() if any(_is_socket(tree, path) for path in sockets)
        ),
        settings=told,
        specs=tuple(
            spec for folder in reversed(folders.values()) for spec in _specs(tree, folder, subject.recorded)
        ),
        recorded=subject.recorded,
    )


def containerd(tree: Tree, path: str) -> Settings | None:
    """The file with those that it imports laid over it, as containerd does; ``None`` where there is none."""
    try:
        document = _toml(tree, path)
        if document is None:
            return None
        sections = [document]
        for pattern in _texts(document.get("imports")) or ():
            folder, _, glob = pattern.rpartition("/")
            imported = [name for name in _names(tree, folder) if fnmatchcase(name, glob)]
            sections += [_toml(tree, f"{folder}/{name}") or {} for name in imported]
    except (SysfsError, OSError, ValueError) as error:
        return Settings(path, broken=str(error))
    version, enabled, folders, handlers = document.get("version"), None, None, dict[str, None]()
    for section in sections:
        for plugin in _CRI_PLUGINS:
            cri = _at(section, "plugins", plugin)
            enabled = cri.get("enable_cdi", enabled)
            folders = cri.get("cdi_spec_dirs", folders)
            handlers |= dict.fromkeys(map(str, _at(cri, "containerd", "runtimes")))
    return Settings(
        path,
        version if isinstance(version, int) else 1,
        enabled if isinstance(enabled, bool) else None,
        _texts(folders),
        tuple(handlers),
    )


def _crio(tree: Tree, paths: Iterable[str]) -> Settings | None:
    """CRI-O has CDI switched on; its files lie over one another in the order of their names."""
    seen: list[str] = []
    folders, handlers = None, dict[str, None]()
    for path in paths:
        try:
            document = _toml(tree, path)
        except (SysfsError, OSError, ValueError) as error:
            return Settings(path, broken=str(error))
        if document is not None:
            seen.append(path)
            runtime = _at(document, "crio", "runtime")
            folders = runtime.get("cdi_spec_dirs", folders)
            handlers |= dict.fromkeys(map(str, _at(runtime, "runtimes")))
    return Settings(seen[0], None, True, _texts(folders), tuple(handlers)) if seen else None


def _specs(tree: Tree, folder: str, recorded: bool) -> Iterator[Spec]:
    for name in _names(tree, folder):
        path = f"{folder}/{name}"
        if not name.endswith((".json", ".yaml")):
            continue
        try:
            document = parsed(tree, path)
        except (SysfsError, OSError, ValueError) as error:
            yield Spec(path, broken=str(error))
            continue
        if not isinstance(document, Mapping):
            yield Spec(path, broken="it is not a mapping")
            continue
        kind = document.get("kind")
        devices = sorted(cdi.vendor_devices({path: document}).get(str(kind), ()))
        if not isinstance(kind, str) or not devices:
            yield Spec(path, broken="it has no kind" if not isinstance(kind, str) else "it defines no device")
            continue
        missing = () if recorded else tuple(p for p in _host_paths(document) if _is_missing(tree, p))
        yield Spec(path, kind, tuple(devices), missing)


def _host_paths(document: Mapping[str, object]) -> list[str]:
    """What the runtime will look for on the host, each once."""
    devices = document.get("devices")
    holders = [document, *(devices if isinstance(devices, list) else ())]
    found: dict[str, None] = {}
    for holder in holders:
        edits = holder.get("containerEdits") if isinstance(holder, Mapping) else None
        for part in ("deviceNodes", "mounts", "hooks"):
            entries = edits.get(part) if isinstance(edits, Mapping) else None
            for entry in entries if isinstance(entries, list) else ():
                path = (entry.get("hostPath") or entry.get("path")) if isinstance(entry, Mapping) else None
                if isinstance(path, str) and path.startswith("/"):
                    found[path] = None
    return list(found)[:_PATHS_MAX]


def _is_missing(tree: Tree, path: str) -> bool:
    """Below another root only parts of the host are to be seen: what is not, is not missed."""
    if tree.exists(path):
        return False
    return str(tree.root) == "/" or tree.exists(path.rpartition("/")[0])


def _toml(tree: Tree, path: str) -> dict[str, object] | None:
    if tree.path(path).is_file() and os.path.getsize(tree.path(path)) > _CONFIG_MAX_BYTES:
        raise ValueError(f"{path} is longer than any configuration")
    text = tree.text(path)
    try:
        return None if text is None else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _at(document: Mapping[str, object], *path: str) -> dict[str, object]:
    """The table at a path; an empty one where there is none."""
    here: object = document
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return dict(here) if isinstance(here, Mapping) else {}


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _names(tree: Tree, folder: str) -> tuple[str, ...]:
    try:
        return tree.names(folder)
    except SysfsError:
        return ()


def _is_socket(tree: Tree, path: str) -> bool:
    try:
        return stat.S_ISSOCK(tree.path(path).stat().st_mode)
    except OSError:
        return False


# --- judging --------------------------------------------------------------------------------------------


def judge(seen: Runtime, config: Config, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for one in seen.settings:
        if one.broken is not None:
            yield TOPIC.fix("runtime_config_broken", one.broken)
    told = [one for one in seen.settings if one.broken is None]
    if seen.running or told:
        files = ", ".join(one.file for one in told) or "its configuration is not seen"
        yield TOPIC.ok("runtime", f"{', '.join(seen.running) or 'no socket is seen'}; {files}")
    if not told and not any(one.broken for one in seen.settings):
        yield TOPIC.note("runtime_unseen", "no configuration of containerd or CRI-O is seen")
    strategies = {entry.device_list_strategy for entry in config.resources}
    if "cdi" in strategies:
        yield from _cdi_on(told, config)
        yield from _defined(seen, config, gpus)
    if "envvar" in strategies and told and not any("nvidia" in h for one in told for h in one.handlers):
        yield TOPIC.fix("nvidia_runtime_absent", f"{told[0].file} has no runtime called nvidia")
    yield from _of_specs(seen)


def _cdi_on(told: Iterable[Settings], config: Config) -> Iterator[Finding]:
    writes = config.cdi.generate or any(
        isinstance(e, VfResource) and e.device_list_strategy == "cdi" for e in config.resources
    )
    for one in told:
        if one.cdi is False:
            yield TOPIC.fix("cdi_off", f"{one.file}: enable_cdi = false")
        elif one.cdi is None and (one.version or 0) < 3:
            yield TOPIC.note(
                "cdi_maybe_off", f"{one.file} does not say enable_cdi and is of version {one.version}"
            )
        folders = [_canonical(folder) for folder in one.folders or CDI_FOLDERS]
        if writes and one.cdi is not False and _canonical(config.cdi.directory) not in folders:
            yield TOPIC.fix("cdi_folder_unread", f"{one.file} reads {', '.join(folders) or 'no folder'}")


def _defined(seen: Runtime, config: Config, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether the GPUs have names under the vendor's kind, and who else would write some."""
    wants = [
        entry
        for entry in config.resources
        if isinstance(entry, GpuMemResource | GpuResource) and entry.device_list_strategy == "cdi"
    ]
    if not wants or not gpus:
        return
    defined = {name for spec in seen.specs if spec.kind == VENDOR_KIND for name in spec.devices}
    missing = [gpu.uuid for gpu in gpus if gpu.uuid not in defined]
    if not missing:
        yield TOPIC.ok("cdi", f"{VENDOR_KIND} defines {count(len(gpus), 'GPU')} by UUID")
    elif config.cdi.generate:
        yield TOPIC.ok(
            "cdi",
            f"the agent writes {cdi.GPU_KIND} to {config.cdi.directory}: no vendor's spec names the GPUs",
        )
    else:
        yield TOPIC.fix("cdi_undefined", f"no spec of {VENDOR_KIND} defines {some(missing, 2)}")


def _of_specs(seen: Runtime) -> Iterator[Finding]:
    definers: dict[tuple[str, str], list[str]] = {}
    for spec in seen.specs:
        if spec.broken is not None:
            yield TOPIC.warn("cdi_broken", f"{spec.path}: {spec.broken}")
        if spec.missing:
            yield TOPIC.fix("cdi_stale", f"{spec.path}: {some(spec.missing, 2)}: not there")
        folder = _canonical(spec.path.rpartition("/")[0])
        for device in spec.devices:
            definers.setdefault((folder, f"{spec.kind}={device}"), []).append(spec.path)
    clashes: dict[tuple[str, ...], list[str]] = {}
    for (_, device), paths in definers.items():
        if len(paths) > 1:
            clashes.setdefault(tuple(paths), []).append(device)
    for files, devices in clashes.items():
        yield TOPIC.fix("cdi_conflict", f"{' and '.join(files)} both define {some(devices, 2)}")


def _canonical(folder: str) -> str:
    """/var/run is /run."""
    path = os.path.normpath(folder)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
