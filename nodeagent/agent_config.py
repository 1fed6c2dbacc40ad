"""The agent's configuration: the settings of all rooms, composed to one file of kind ``NodeAgentConfig``.

``load`` reads a file, ``Config()`` is the default. The settings themselves stand in the rooms that use them.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from nodeagent.attach.attach_settings import AttachSettings, attach_conflicts
from nodeagent.cluster.cluster_settings import ClusterSettings, cluster_conflicts
from nodeagent.config.file_errors import ConfigError, Conflict, FileError, dotted
from nodeagent.config.merged_tree import ConfigText
from nodeagent.config.setting import ENTRIES_MAX, SECONDS_MAX, Address, Prefix, Settings, setting
from nodeagent.config.settings_file import Built, entries, read_settings, section
from nodeagent.config.yaml_tree import YamlNode, locate
from nodeagent.features.gpu_labels.nfd_settings import NfdSettings
from nodeagent.features.nvsentinel.sentinel_settings import NvSentinelSettings, nvsentinel_conflicts
from nodeagent.features.peer_values.peers_settings import PeersSettings
from nodeagent.features.pod_traffic.traffic_settings import TrafficSettings
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.health.gpu_settings import (
    GpuAccountingSettings,
    GpuHealthSettings,
    GpuSettings,
    accounting_conflicts,
    gpu_health_conflicts,
)
from nodeagent.health.health_settings import HealthSettings, RuleSettings, rule_conflicts
from nodeagent.kinds.device_list_size import size_conflicts
from nodeagent.kinds.resource_conflicts import (
    claim_conflicts,
    enforcement_conflicts,
    expect_conflicts,
    resource_conflicts,
    volcano_conflicts,
)
from nodeagent.kinds.resource_settings import (
    EXAMPLE_GPU,
    EXAMPLE_VFS,
    ExpectSettings,
    GpuMemResource,
    MigResource,
    OfferSettings,
    ResourceSettings,
    VfResource,
    VfsEntry,
    attached_shares,
    memory_entries,
)
from nodeagent.kubelet.kubelet_settings import CdiSettings, KubeletSettings
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources.source_settings import InfinibandSettings, LinksSettings, LldpSettings
from nodeagent.web.web_settings import AgentHistorySettings, WebSettings, history_conflicts, web_conflicts

AUTO = "auto"
ABOUT = """\
The configuration of nodeagent, with all settings at their defaults.
Every setting except apiVersion and kind is optional. `nodeagent config check FILE`
lists all errors of a file, `nodeagent config schema` prints a JSON schema for editors.
"""
"""The head of the commented default."""


class LogSettings(Settings, frozen=True, kw_only=True):
    """Log lines on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], setting("Least severe level that is logged.")
    ] = "info"


class Config(Settings, frozen=True, kw_only=True):
    """The configuration of one node's agent."""

    misplaced: ClassVar[Mapping[str, str]] = {
        "mode": "it is a setting of the entries of resources of kind gpu-mem, vf, nic, rdma and mig",
    }
    when_empty: ClassVar[str] = "`nodeagent config defaults` prints one to start from"
    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("Version of this file's format.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["NodeAgentConfig"], setting("Kind of this file.", required=True)] = (
        "NodeAgentConfig"
    )
    resource_prefix: Annotated[
        Prefix,
        setting(
            "DNS subdomain before the slash in the names of all resources. auto: derived from the DMI product "
            "name of the machine (nvidia-dgx-h100 on a DGX H100), or nodeagent.io where there is none."
        ),
    ] = AUTO
    resources: Annotated[
        tuple[ResourceSettings, ...],
        setting(
            "Resources offered to the kubelet: entries of kind vf, nic, gpu-mem, mig or gpu.",
            max_length=ENTRIES_MAX,
            example=EXAMPLE_GPU,
        ),
    ] = (VfResource(), GpuMemResource(), MigResource())
    offer: Annotated[
        OfferSettings, setting("Settings of all entries of resources that do not say it themselves.")
    ] = OfferSettings()
    expect: Annotated[
        ExpectSettings, setting("What this node must offer for its agent to be ready (/readyz).")
    ] = ExpectSettings()
    kubelet: Annotated[KubeletSettings, setting("How the agent reads what pods hold.", restart=True)] = (
        KubeletSettings()
    )
    cdi: Annotated[CdiSettings, setting("Container Device Interface specs.", restart=True)] = CdiSettings()
    attach: Annotated[AttachSettings, setting("Netdevs of VFs in the pods that hold them.", restart=True)] = (
        AttachSettings()
    )
    gpu: Annotated[GpuSettings, setting("How the agent finds and watches GPUs.", restart=True)] = (
        GpuSettings()
    )
    links: Annotated[LinksSettings, setting("Which netdevs are links.", restart=True)] = LinksSettings()
    lldp: Annotated[
        LldpSettings,
        setting("How the agent reads the switch port at the other end of each link.", restart=True),
    ] = LldpSettings()
    infiniband: Annotated[
        InfinibandSettings,
        setting("How the agent reads the switch port of each InfiniBand link.", restart=True),
    ] = InfinibandSettings()
    rails: Annotated[
        RailsSettings, setting("Probes over the rails: which link loses packets.", restart=True)
    ] = RailsSettings()
    peers: Annotated[
        PeersSettings, setting("Comparison of this node with others of its model.", restart=True)
    ] = PeersSettings()
    traffic: Annotated[TrafficSettings, setting("Whether the VFs of pods carry traffic.", restart=True)] = (
        TrafficSettings()
    )
    health: Annotated[
        HealthSettings, setting("Rules for the health of NICs, and a guard for NICs and GPUs.")
    ] = HealthSettings()
    cluster: Annotated[ClusterSettings, setting("Writes to the API server.", restart=True)] = (
        ClusterSettings()
    )
    nv_sentinel: Annotated[
        NvSentinelSettings,
        setting("Health events for NVSentinel's platform connector on this node.", restart=True),
    ] = NvSentinelSettings()
    nfd: Annotated[
        NfdSettings,
        setting("Labels that Node Feature Discovery (NFD) sets on this Node.", restart=True),
    ] = NfdSettings()
    history: Annotated[
        AgentHistorySettings, setting("What changed on this node, and when: nodeagent history.", restart=True)
    ] = AgentHistorySettings()
    samples: Annotated[SamplesSettings, setting("How often each collector reads the NICs.", restart=True)] = (
        SamplesSettings()
    )
    vfs: Annotated[
        tuple[VfsEntry, ...],
        setting(
            "VFs that `nodeagent vfs apply` creates and configures. Empty by default: nothing on the machine "
            "changes.",
            max_length=ENTRIES_MAX,
            example=EXAMPLE_VFS,
            restart=True,
        ),
    ] = ()
    listen: Annotated[
        Address | None,
        setting(
            "Address of the web server: :9808, 10.0.0.1:9808 or [::1]:9808; null: no web server.",
            restart=True,
        ),
    ] = ":9808"
    web: Annotated[WebSettings, setting("TLS and access control of the web server.", restart=True)] = (
        WebSettings()
    )
    scan_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)],
        setting(
            "Longest time in seconds between two full scans of the machine. Changes that the kernel announces "
            "trigger a scan at once.",
            restart=True,
        ),
    ] = 30.0
    log: Annotated[LogSettings, setting("Log lines on stderr.")] = LogSettings()


def by_volcano(config: Config) -> bool:
    """Whether Volcano's deviceshare places pods by GPU."""
    return any(entry.volcano for entry in memory_entries(config.resources))


def config_digest(config: Config) -> str:
    """Equal configurations, and only these, have equal digests."""
    return blake2b(msgspec.json.encode(config), digest_size=16).hexdigest()


def load(text: str | ConfigText, *, name: str) -> Config:
    """The configuration in a file's text, or in those of several files. Raises ``ConfigError`` with all errors."""
    return _read(text, name)[0]


def check(text: str | ConfigText, *, name: str, gpu_memories_mib: Sequence[int] | None = None) -> Config:
    """``load``, and check the size of the device lists on the given GPUs, or on assumed ones."""
    config, root = _read(text, name)
    faults = [
        FileError(dotted(path), at.line, at.column, message, at.file)
        for (path, *_), message, _ in size_conflicts(config.resources, gpu_memories_mib)
        for at in [locate(root, path)]
    ]
    if faults:
        raise ConfigError(name, faults)
    return config


def _read(text: str | ConfigText, name: str) -> tuple[Config, YamlNode]:
    return read_settings(text, Config, name=name, complete=_complete, conflicts=_conflicts)


def _complete(built: dict[str, Any]) -> None:
    """Add ``offer`` to the entries of ``resources``, or to those that stand there by default."""
    offer = section(built, ("offer",), OfferSettings)
    if offer == OfferSettings():
        return
    if "resources" not in built:
        built["resources"] = [{"kind": entry.__struct_config__.tag} for entry in Config().resources]
    offer.complete(built["resources"])


def _conflicts(built: Built) -> Iterator[Conflict]:
    resources = tuple(entries(built, ("resources",), ResourceSettings, Config().resources))
    yield from resource_conflicts(resources, tuple(entries(built, ("vfs",), VfsEntry)))
    for conflict in expect_conflicts(section(built, ("expect",), ExpectSettings), resources):
        yield conflict.below("expect")
    yield from enforcement_conflicts(
        resources,
        processes=section(built, ("gpu", "health"), GpuHealthSettings).processes,
        pod_resources=section(built, ("kubelet",), KubeletSettings).pod_resources,
        access=section(built, ("cluster",), ClusterSettings).access,
    )
    yield from volcano_conflicts(
        resources,
        pod_resources=section(built, ("kubelet",), KubeletSettings).pod_resources,
        access=section(built, ("cluster",), ClusterSettings).access,
    )
    yield from claim_conflicts(
        resources,
        access=section(built, ("cluster",), ClusterSettings).access,
        pod_resources=section(built, ("kubelet",), KubeletSettings).pod_resources,
    )
    for conflict in accounting_conflicts(section(built, ("gpu", "accounting"), GpuAccountingSettings)):
        yield conflict.below("gpu", "accounting")
    shares = attached_shares(entry for _, entry in resources)
    for conflict in attach_conflicts(section(built, ("attach",), AttachSettings), shares):
        yield conflict.below("attach")
    yield from rule_conflicts(tuple(entries(built, ("health", "rules"), RuleSettings)))
    for conflict in web_conflicts(section(built, ("web",), WebSettings)):
        yield conflict.below("web")
    yield from history_conflicts(
        section(built, ("history",), AgentHistorySettings),
        section(built, ("health",), HealthSettings).state_directory,
    )
    for conflict in cluster_conflicts(section(built, ("cluster",), ClusterSettings)):
        yield conflict.below("cluster")
    for conflict in nvsentinel_conflicts(section(built, ("nvSentinel",), NvSentinelSettings)):
        yield conflict.below("nvSentinel")
    for conflict in gpu_health_conflicts(section(built, ("gpu", "health"), GpuHealthSettings)):
        yield conflict.below("gpu", "health")
