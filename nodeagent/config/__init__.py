"""The configuration: YAML text → frozen structs, or all of its faults at once.

``load`` reads a file, ``Config()`` is the default. ``defaults``, ``schema`` and ``table`` show the settings
to people and editors; they are made from ``structs``, where each setting is declared once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nodeagent.config.cluster_settings import ClusterSettings, idle
from nodeagent.config.faults import ConfigError, Fault, Faults, HaltError, Path, dotted
from nodeagent.config.formats import host_port, index_range, name_complaint, prefix_complaint
from nodeagent.config.gpu_health_settings import GpuHealthSettings, looser
from nodeagent.config.health_settings import (
    ExpectedLinks,
    GuardSettings,
    HealthSettings,
    RuleSettings,
    override,
)
from nodeagent.config.list_size import (
    LIMIT,
    device_size,
    list_size,
    size_fault,
    size_findings,
    slices_complaint,
)
from nodeagent.config.reference import defaults, schema, table
from nodeagent.config.rules import findings
from nodeagent.config.structs import (
    CdiSettings,
    Config,
    GpuMemResource,
    GpuResource,
    GpuSelect,
    GpuSettings,
    KubeletSettings,
    LinkSelect,
    LinksSettings,
    LldpSettings,
    LogSettings,
    PfSelect,
    Resource,
    VfResource,
    VfSelect,
    VfsEntry,
)
from nodeagent.config.validate import BAD, fit
from nodeagent.config.web_settings import WebSettings, complaints
from nodeagent.config.yaml_tree import Node, locate, parse

__all__ = [
    "LIMIT",
    "CdiSettings",
    "ClusterSettings",
    "Config",
    "ConfigError",
    "ExpectedLinks",
    "Fault",
    "GpuMemResource",
    "GpuResource",
    "GpuSelect",
    "GpuSettings",
    "GuardSettings",
    "HealthSettings",
    "KubeletSettings",
    "LinkSelect",
    "LinksSettings",
    "LldpSettings",
    "LogSettings",
    "PfSelect",
    "Resource",
    "RuleSettings",
    "VfResource",
    "VfSelect",
    "VfsEntry",
    "WebSettings",
    "check",
    "defaults",
    "device_size",
    "host_port",
    "index_range",
    "list_size",
    "load",
    "name_complaint",
    "override",
    "prefix_complaint",
    "schema",
    "size_fault",
    "slices_complaint",
    "table",
]


HEALTH = "health"


def load(text: str, *, name: str) -> Config:
    """The configuration in a file's text. Raises ``ConfigError`` with everything that is wrong with it."""
    return _read(text, name)[0]


def check(text: str, *, name: str, gpu_memories_mib: Sequence[int] | None = None) -> Config:
    """``load``, and the size of the device lists on the GPUs given, or on assumed ones."""
    config, root = _read(text, name)
    sizes = [
        Fault(dotted(path), *locate(root, path), complaint)
        for path, complaint in size_findings(config, gpu_memories_mib)
    ]
    if sizes:
        raise ConfigError(name, sizes)
    return config


def _read(text: str, name: str) -> tuple[Config, Node]:
    faults = Faults()
    try:
        root = parse(text, faults)
        built = fit(root, faults)
        _cross(root, built, faults)
    except HaltError:
        raise ConfigError(name, faults) from None
    if faults:
        raise ConfigError(name, faults)
    return msgspec.convert(built, Config), root


def _cross(root: Node, built: dict[str, Any], faults: Faults) -> None:
    """The rules over what could be read; a setting with a fault of its own stands at its default here."""
    spoiled = [fault.path for fault in faults]
    resources = list(_placed(built, "resources", Resource, Config().resources))
    vfs = list(_placed(built, "vfs", VfsEntry, ()))
    judged = [
        ((HEALTH, *path), entry) for path, entry in _placed(built.get(HEALTH, {}), "rules", RuleSettings, ())
    ]
    for finding in findings(resources, vfs, judged):
        if not any(_touches(dotted(path), other) for path in finding.paths for other in spoiled):
            faults.add(finding.paths[0], locate(root, finding.paths[0]), finding.message)
    web = msgspec.convert(built.get("web", {}), WebSettings)
    for keys, message in complaints(web):
        if not any(_touches(dotted(("web", key)), other) for key in keys for other in spoiled):
            faults.add(("web", keys[0]), locate(root, ("web", keys[0])), message)
    cluster = msgspec.convert(_sound(built.get("cluster", {})), ClusterSettings)
    for keys, message in idle(cluster):
        if not any(_touches(dotted(("cluster", key)), other) for key in keys for other in spoiled):
            faults.add(("cluster", keys[0]), locate(root, ("cluster", keys[0])), message)
    for keys, message in looser(_times(built.get("gpu", {}).get("health", {}))):
        where: list[Path] = [("gpu", "health", key) for key in keys]
        if not any(_touches(dotted(path), other) for path in where for other in spoiled):
            faults.add(where[0], locate(root, where[0]), message)


def _sound(settings: Any) -> dict[str, Any]:
    """Without what could not be read."""
    if not isinstance(settings, dict):
        return {}
    return {
        key: _sound(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if value is not BAD
    }


def _times(health: dict[str, Any]) -> GpuHealthSettings:
    """The numbers alone: a list may hold what could not be read."""
    numbers = {key: value for key, value in health.items() if isinstance(value, int | float)}
    return msgspec.convert(numbers, GpuHealthSettings)


def _placed(
    built: dict[str, Any], key: str, type_: Any, default: tuple[Any, ...]
) -> Iterator[tuple[Path, Any]]:
    items = built.get(key)
    for i, item in enumerate(default if items is None else items):
        if item is not BAD:
            yield (key, i), item if items is None else msgspec.convert(item, type_)


def _touches(path: str, other: str) -> bool:
    """One of the paths is the other, or leads to it."""
    short, long = sorted((path, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")
