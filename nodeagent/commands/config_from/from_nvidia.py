"""The configuration of NVIDIA's device plugin → a draft of ours. Pure.

Its replicas are devices without a size. Here a device is an amount of memory, so the memory of the GPUs decides how
large the slices are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.commands.config_from.draft import Draft, DraftEntry
from nodeagent.commands.config_from.foreign_documents import (
    Fields,
    UnreadableFile,
    documents,
    foreign_text,
    in_use,
    known,
    objects,
    of_config_map,
    texts,
    truth,
    whole_number,
)
from nodeagent.commands.config_from.foreign_keys import (
    NVIDIA_FLAGS,
    NVIDIA_IMEX,
    NVIDIA_PLUGIN,
    NVIDIA_REPLICA,
    NVIDIA_REPLICATED,
    NVIDIA_SHARING,
    NVIDIA_TOP,
)
from nodeagent.commands.config_from.from_sriovdp import lose_used, note_unknown
from nodeagent.config.file_errors import quote
from nodeagent.kinds.device_list_size import ASSUMED_MIB

_RESERVED_MIB = 512
_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
_GPU = "nvidia.com/gpu"


def draft_of_nvidia(files: Sequence[tuple[str, str]], memory_mib: int | None, key: str | None) -> Draft:
    """Return the draft for one file, given as name and text. ``memory_mib`` is that of the GPUs, ``None`` if it is not
    known. Raises ``UnreadableFile``."""
    if len(files) != 1:
        raise UnreadableFile("one configuration of NVIDIA's plugin becomes one of ours; give one file")
    place, fields = _configuration(*files[0], key)
    draft = Draft("Made by `nodeagent config from nvidia`.")
    draft.prefix = "nvidia.com"
    found, unknown = known(fields, place, NVIDIA_TOP)
    note_unknown(draft, place, unknown)
    version = foreign_text(found.get("version", "v1"), f"{place}: version")
    if version != "v1":
        raise UnreadableFile(f"{place}: version is {quote(version)}, must be v1")
    if in_use(found.get("resources", "")):
        draft.note(f"{place}: resources", "that plugin ignores it, and offers nvidia.com/gpu")
    imex, unknown = known(found.get("imex", {}), f"{place}: imex", NVIDIA_IMEX)
    note_unknown(draft, f"{place}: imex", unknown)
    lose_used(draft, f"{place}: imex", imex, NVIDIA_IMEX)
    handing, policy, mig = _flags(draft, f"{place}: flags", found.get("flags", {}))
    _offer(draft, f"{place}: sharing", found.get("sharing", {}), handing, policy, memory_mib)
    if mig == "mixed":
        draft.resources.append(
            DraftEntry(f"{place}: flags.migStrategy", {"kind": "mig", "name": "mig-{profile}", **handing})
        )
    return draft


def _configuration(name: str, text: str, key: str | None) -> tuple[str, Fields]:
    found = list(objects(text, name))
    if len(found) != 1:
        raise UnreadableFile(
            f"{name}: it has {len(found)} objects, and must be one configuration or one ConfigMap"
        )
    where, fields = found[0]
    if fields.get("kind") == "ConfigMap":
        key, inner = of_config_map(fields, where, key)
        where = f"{where}: {key}"
        inside = documents(inner, where)
        if len(inside) != 1 or not isinstance(inside[0], dict):
            raise UnreadableFile(f"{where} has no configuration")
        fields = inside[0]
    if not fields.keys() & {"version", "flags", "sharing"}:
        raise UnreadableFile(
            f"{where}: no version, flags or sharing; this is not a configuration of NVIDIA's plugin"
        )
    return where, fields


def _flags(draft: Draft, place: str, written: Any) -> tuple[dict[str, Any], str, str]:
    """Return the settings of each entry, the policy of shared devices and the strategy of MIG."""
    flags, unknown = known(written, place, NVIDIA_FLAGS)
    note_unknown(draft, place, unknown)
    lose_used(draft, place, flags, NVIDIA_FLAGS)
    mig = foreign_text(flags.get("migStrategy", "none"), f"{place}.migStrategy")
    if mig not in ("none", "single", "mixed"):
        raise UnreadableFile(f"{place}.migStrategy is {quote(mig)}, must be none, single or mixed")
    if mig == "single":
        draft.lose(
            f"{place}.migStrategy",
            "single: nodeagent names MIG devices by profile; use kind mig, and nvidia.com/mig-PROFILE in the pods",
        )
    else:
        draft.note(
            f"{place}.migStrategy",
            "a GPU in MIG mode is offered by its MIG devices alone, if at all (kind mig)",
        )
    if not truth(flags.get("failOnInitError", "true"), f"{place}.failOnInitError"):
        draft.note(
            f"{place}.failOnInitError", "as here: the agent goes on without GPUs, and says so (/readyz)"
        )
    root = foreign_text(flags.get("nvidiaDriverRoot", "/"), f"{place}.nvidiaDriverRoot")
    if root not in ("/", "/run/nvidia/driver"):
        draft.sections.setdefault("gpu", {})["driverRoot"] = root
        draft.note(f"{place}.nvidiaDriverRoot", f"gpu.driverRoot; the DaemonSet must mount {quote(root)}")
    if (
        foreign_text(flags.get("deviceDiscoveryStrategy", "auto"), f"{place}.deviceDiscoveryStrategy")
        == "tegra"
    ):
        draft.lose(
            f"{place}.deviceDiscoveryStrategy",
            "tegra: nodeagent reads GPUs by NVML alone; keep that plugin there",
        )
    if flags.keys() & {"gfd", "useNodeFeatureAPI"}:
        draft.note(
            f"{place}.gfd",
            "GPU Feature Discovery is a program of its own; keep it, its labels stay, or set nfd.gpuLabels",
        )
    handing, policy = _plugin(draft, f"{place}.plugin", flags.get("plugin", {}))
    return handing, policy, mig


def _plugin(draft: Draft, place: str, written: Any) -> tuple[dict[str, Any], str]:
    """Return the settings of each entry, and the policy of shared devices."""
    plugin, unknown = known(written, place, NVIDIA_PLUGIN)
    note_unknown(draft, place, unknown)
    handing: dict[str, Any] = {"deviceListStrategy": _strategy(draft, f"{place}.deviceListStrategy", plugin)}
    if truth(plugin.get("passDeviceSpecs", "false"), f"{place}.passDeviceSpecs"):
        handing["passDeviceNodes"] = True
    if foreign_text(plugin.get("deviceIDStrategy", "uuid"), f"{place}.deviceIDStrategy") == "index":
        draft.note(f"{place}.deviceIDStrategy", "containers get GPUs by UUID, which a reboot does not change")
    for key in sorted({"cdiAnnotationPrefix", "nvidiaCTKPath", "containerDriverRoot"} & plugin.keys()):
        draft.note(f"{place}.{key}", "not needed: the agent writes its own CDI spec (cdi.generate)")
    policy = foreign_text(
        plugin.get("sharedDevicesAllocationPolicy", "distributed"),
        f"{place}.sharedDevicesAllocationPolicy",
    )
    return handing, "pack" if policy == "packed" else "spread"


def _strategy(draft: Draft, place: str, plugin: Fields) -> str:
    written = plugin.get("deviceListStrategy", "envvar")
    strategies = texts([written] if isinstance(written, str) else written, place)
    strategies = [part.strip() for text in strategies for part in text.split(",")]
    for strategy in strategies:
        if strategy not in _STRATEGIES:
            raise UnreadableFile(f"{place} is {quote(strategy)}, must be one of {', '.join(_STRATEGIES)}")
    if "cdi-cri" in strategies:
        return "cdi"
    if "cdi-annotations" in strategies:
        draft.note(
            place, "cdi-annotations becomes cdi: the kubelet tells the runtime, and no annotation is needed"
        )
        return "cdi"
    if "envvar" not in strategies:
        draft.lose(
            place,
            "volume-mounts: written as envvar; set accept-nvidia-visible-devices-envvar-when-unprivileged, or cdi",
        )
    return "envvar"


def _offer(
    draft: Draft, place: str, written: Any, handing: Mapping[str, Any], policy: str, memory_mib: int | None
) -> None:
    sharing, unknown = known(written, place, NVIDIA_SHARING)
    note_unknown(draft, place, unknown)
    way = "mps" if "mps" in sharing else "timeSlicing"
    if sharing.keys() >= {"mps", "timeSlicing"}:
        raise UnreadableFile(f"{place}: mps and timeSlicing exclude each other")
    replicas: int | None = None
    if way in sharing:
        where = f"{place}.{way}"
        replicas, name = _replicas(draft, where, sharing[way])
    if replicas is None:
        settings = {"kind": "gpu", "name": "gpu", "select": {"pciAddresses": ["*"]}, **handing}
        draft.resources.append(DraftEntry("the GPUs without replicas", settings))
        return
    memory = memory_mib or ASSUMED_MIB[0]
    size = slice_size(memory, replicas)
    if size is None:
        raise UnreadableFile(f"{where}: {replicas} replicas do not fit into a GPU of {memory} MiB")
    if memory_mib is None:
        draft.lose(
            f"{where}.resources.replicas",
            f"a device is an amount of memory here: {replicas} of {size} MiB on a GPU of {memory} MiB, as assumed. "
            "Give the memory of your GPUs with --gpu-memory MIB, and nodes with other GPUs a pool of their own",
        )
    draft.note(where, "a container that asks for several gets them on one GPU, and as much more memory")
    settings = {
        "kind": "gpu-mem",
        "name": name,
        "sliceMiB": size,
        "reservedMiB": _RESERVED_MIB,
        "preferred": policy,
        **handing,
        "enforcement": "mps" if way == "mps" else "none",
    }
    if way == "mps":
        draft.sections.setdefault("gpu", {})["mps"] = {"threads": "share"}
        draft.note(where, "it needs `nodeagent mps` beside the agent (components/gpu-mps)")
    draft.resources.append(DraftEntry(where, settings))


def slice_size(memory_mib: int, replicas: int) -> int | None:
    """Return the largest slice in MiB of which a GPU has exactly ``replicas``; ``None`` if there is none."""
    size = (memory_mib - _RESERVED_MIB) // replicas
    return size if size > 0 and (memory_mib - _RESERVED_MIB) // size == replicas else None


def _replicas(draft: Draft, place: str, written: Any) -> tuple[int | None, str]:
    """Return the replicas of a whole GPU, ``None`` if there are none, and the name of their resource."""
    fields, unknown = known(written, place, NVIDIA_REPLICATED)
    note_unknown(draft, place, unknown)
    entries = fields.get("resources")
    if not isinstance(entries, list) or not entries:
        raise UnreadableFile(f"{place} has no resources; that plugin refuses it too")
    renames = truth(fields.get("renameByDefault", "false"), f"{place}.renameByDefault")
    if truth(fields.get("failRequestsGreaterThanOne", "false"), f"{place}.failRequestsGreaterThanOne"):
        draft.lose(
            f"{place}.failRequestsGreaterThanOne",
            "a container with two devices has twice the memory here, and is not refused; forbid it by a "
            "ValidatingAdmissionPolicy if it must be",
        )
    replicas: int | None = None
    for i, entry in enumerate(entries):
        where = f"{place}.resources[{i}]"
        found, unknown = known(entry, where, NVIDIA_REPLICA)
        note_unknown(draft, where, unknown)
        name = foreign_text(found.get("name", ""), f"{where}.name")
        name = name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"
        count = whole_number(found.get("replicas", "0"), f"{where}.replicas")
        if count < 2:
            raise UnreadableFile(f"{where}.replicas must be 2 or more; that plugin refuses it too")
        if name != _GPU:
            draft.lose(
                f"{where}.name", f"{quote(name)}: nodeagent offers MIG devices whole, each to one container"
            )
            continue
        if replicas is not None:
            draft.lose(where, "a second entry for the same GPUs; the first is written")
            continue
        replicas = count
        if in_use(found.get("rename", "")) and not (renames and found["rename"] == f"{_GPU}.shared"):
            draft.note(f"{where}.rename", "that plugin ignores it")
        if found.get("devices", "all") != "all":
            draft.note(f"{where}.devices", "that plugin ignores it: all GPUs have replicas")
    return replicas, "gpu.shared" if renames else "gpu"
