"""The controller's own configuration: read where the controller reads it, in its ConfigMap.

The manifest and the chart give this ConfigMap two labels and put the file under one key. A second ConfigMap has the
fragments of components. A copy of it among the objects
of ``--from`` counts too. Verbs without it say so in one line, and plan with the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from nodeagent.config.config_files import FRAGMENT
from nodeagent.config.file_errors import ConfigError, FileError
from nodeagent.config.merged_tree import ConfigFile
from nodeagent.controller_config import FabricConfig, fabric_of
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS, Meta, Partial, Resource

LABELS = {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "controller"}
"""Of the ConfigMap, in the manifest and in the chart."""
KEY = "fabric.yaml"
CABLING_PLAN = "cabling-plan"
"""The ConfigMap among the objects of ``--from`` whose only file is the plan of ``nodeagent cabling --plan -``."""
FRAGMENTS = "-features"
"""The end of the name of the ConfigMap with the fragments, beside that of the ConfigMap itself."""
REMEDY = "the plan has the defaults, and gives up nothing that is published; name the file with --fabric"


class ConfigMap(msgspec.Struct):
    """A ConfigMap with texts."""

    metadata: Meta
    data: dict[str, str] = {}

    @property
    def is_of_controller(self) -> bool:
        return LABELS.items() <= (self.metadata.labels or {}).items() and KEY in self.data

    @property
    def name(self) -> str:
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


STORED_CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)


class FabricRead(NamedTuple):
    """``unknown_names``: why the controller's configuration is not known, and empty if it is; then ``config`` is the
    default."""

    config: FabricConfig
    topology: Topology = NO_TOPOLOGY
    unknown: str = ""


def unknown_names(why: str) -> FabricRead:
    return FabricRead(FabricConfig(), NO_TOPOLOGY, f"{why}: {REMEDY}")


def of_config_maps(found: Iterable[ConfigMap], where: str) -> FabricRead:
    """The configuration in the controller's ConfigMap among these. ``where`` they were found, in words."""
    known = list(found)
    maps = [one for one in known if one.is_of_controller]
    if not maps:
        return unknown_names(f"{where} has no ConfigMap of the controller")
    texts = {tuple(sorted(one.data.items())) for one in maps}
    if len(texts) > 1:
        names = ", ".join(sorted(one.name for one in maps))
        return unknown_names(f"{where} has several ConfigMaps of controllers, which differ ({names})")
    fragments = next((one for one in known if one.name == f"{maps[0].name}{FRAGMENTS}"), None)
    return _of(maps[0], fragments)


def _of(config_map: ConfigMap, fragments: ConfigMap | None) -> FabricRead:
    of_map = f"ConfigMap {config_map.name}"
    files = [ConfigFile(f"{of_map} {KEY}", config_map.data[KEY])]
    if fragments is not None:
        files += [
            ConfigFile(f"ConfigMap {fragments.name} {key}", text)
            for key, text in sorted(fragments.data.items())
            if key.endswith(FRAGMENT)
        ]

    def beside(name: str) -> tuple[str, str]:
        text = config_map.data.get(name.removeprefix("./"))
        if text is None:
            why = f"{name} is not among its files ({', '.join(sorted(config_map.data))})"
            raise ConfigError(of_map, [FileError("", None, None, why)])
        return f"{of_map} {name}", text

    try:
        return FabricRead(*fabric_of(tuple(files), of_map, beside))
    except ConfigError as error:
        first, *others = str(error).splitlines()
        more = f" (and {len(others)} more errors)" if others else ""
        return unknown_names(f"the controller's configuration has an error: {first}{more}")


class _FirstPage(Exception):  # noqa: N818 - no error
    """Enough of a list was read."""


async def from_cluster(client: ApiClient) -> FabricRead:
    """Read the ConfigMap of all namespaces, or where that is forbidden of those with reports. Raises ``ApiError``."""
    labels = ",".join(f"{key}={value}" for key, value in LABELS.items())
    try:
        everywhere = await client.list(STORED_CONFIG_MAPS, labels=labels)
        maps: Sequence[ConfigMap] = everywhere.items
        if sum(one.is_of_controller for one in maps) > 1:
            spaces = await _spaces_of_reports(client)
            maps = [one for one in maps if one.metadata.namespace in spaces] or maps
    except ApiError as error:
        if error.status != 403:
            raise
        maps = []
        try:
            for space in sorted(await _spaces_of_reports(client)) or [client.access.namespace]:
                maps += (await client.list(STORED_CONFIG_MAPS, namespace=space, labels=labels)).items
        except ApiError as forbidden:
            if forbidden.status != 403:
                raise
            return unknown_names(f"the controller's configuration may not be read ({forbidden})")
    return of_config_maps(maps, "the cluster")


async def _spaces_of_reports(client: ApiClient) -> set[str]:
    """The namespaces of the first page of reports: the agents write them beside the controller."""
    spaces: set[str] = set()
    count = 0

    def take(report: Partial) -> None:
        nonlocal count
        spaces.add(report.metadata.namespace or "")
        count += 1
        if count == 500:
            raise _FirstPage

    try:
        await client.list_each(NODELINKS.partial, take, spaces.clear)
    except _FirstPage:
        pass
    except ApiError as error:
        if not error.missing:
            raise
    return spaces - {""}
