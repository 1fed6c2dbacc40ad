"""Objects for other programs as a feature of the controller: the leader keeps them, from its first plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nodeagent.fabric.fabric_settings import FabricName
from nodeagent.features.other_programs.kept_settings import NodeFeatureGroupsSettings, SlurmSettings
from nodeagent.topology.parts import ControllerCore, ControllerPart

if TYPE_CHECKING:
    from nodeagent.features.other_programs.kept_objects import KeptObjects


def start_kept(
    core: ControllerCore,
    fabric: FabricName,
    *,
    slurm: SlurmSettings | None,
    groups: NodeFeatureGroupsSettings | None,
    trouble: bool,
) -> ControllerPart:
    """``None`` and false are off."""
    if slurm is None and groups is None and not trouble:
        return ControllerPart()
    from nodeagent.features.other_programs import kept_objects as kinds  # noqa: PLC0415

    keep = partial(kinds.KeptObjects, core.writer, core.write_log)
    kept: dict[str, KeptObjects] = {}
    if slurm is not None:
        wanted = partial(kinds.slurm_topology, slurm, fabric)
        kept["slurm"] = keep(kinds.CONFIG_MAPS, slurm.namespace, wanted, kinds.SLURM_CONFIG_MAP)
    if groups is not None:
        wanted = partial(kinds.node_feature_groups, fabric)
        kept["nodefeaturegroups"] = keep(kinds.NODE_FEATURE_GROUPS, groups.namespace, wanted)
    if trouble:
        kept["trouble"] = keep(kinds.ANNOTATED, None, kinds.trouble_annotations)
    return ControllerPart(
        {name: partial(_keep, core, one) for name, one in kept.items()},
        stays={
            one.removal: "Objects for another program are no longer kept, and stay." for one in kept.values()
        },
    )


async def _keep(core: ControllerCore, kept: KeptObjects) -> None:
    await core.plans.first()
    await kept.run(lambda: core.plans.outcome)
