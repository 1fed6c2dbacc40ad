"""The kind that an entry of ``resources`` makes of some NICs of a node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.config.formats import index_range
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.hca_shares import HcaShares
from nodeagent.kinds.resource_settings import (
    NetworkResource,
    NicResource,
    RdmaResource,
    VfResource,
    vf_entries,
)
from nodeagent.kinds.tell_script import SCRIPT_NAME
from nodeagent.kinds.vf import VfPool


def nic_kind(
    config: Config, entry: NetworkResource, resource: str, pfs: tuple[str, ...], snapshot: Snapshot
) -> DeviceKind:
    """Return the kind of one resource of the entry; ``pfs`` are its PFs by PCI address, sorted."""
    return _MAKERS[type(entry)](config, entry, resource, pfs, snapshot)


def _functions(
    config: Config, entry: VfResource | NicResource, resource: str, pfs: tuple[str, ...], snapshot: Snapshot
) -> VfPool:
    return VfPool(
        resource,
        pfs,
        vf_indexes=_indexes(entry),
        vf_driver=entry.vf_driver,
        preferred=entry.preferred,
        rdma_cm=snapshot.paths.rdma_cm,
        vhost_net=entry.vhost_net,
        cdi=entry.device_list_strategy == "cdi",
        tell=entry.told,
        tell_script=_tell_script(config) if entry.told and not entry.by_claim else None,
        over_bonds=entry.select.over_bonds,
        attach=config.attach.interface is not None,
        whole=entry.whole,
    )


def _shares(
    config: Config,
    entry: RdmaResource,
    resource: str,
    pfs: tuple[str, ...],
    snapshot: Snapshot,
) -> HcaShares:
    paths = snapshot.paths
    return HcaShares(
        resource,
        pfs,
        shares=entry.shares,
        umad=entry.umad,
        rdma_cm=paths.rdma_cm,
        exclusive=paths.rdma_exclusive,
        attach=config.attach.interface is not None and not entry.by_claim,
    )


def _indexes(entry: NetworkResource) -> tuple[range, ...] | None:
    """The indexes of the VFs that an entry selects, ``None``: all."""
    return tuple(index_range(text) for one in vf_entries((entry,)) for text in one.select.vf_indexes) or None


def _tell_script(config: Config) -> str:
    """Return the path of the script on the host, whatever root the agent has."""
    return f"{config.health.state_directory.rstrip('/')}/{SCRIPT_NAME}"


_Maker = Callable[[Config, Any, str, tuple[str, ...], Snapshot], DeviceKind]
_MAKERS: Mapping[type[NetworkResource], _Maker] = {
    VfResource: _functions,
    NicResource: _functions,
    RdmaResource: _shares,
}
