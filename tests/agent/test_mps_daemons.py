"""The list of GPUs that need an MPS daemon, as a whole agent writes it."""

from __future__ import annotations

from nodeagent.sharing.mps_files import MpsFiles
from tests.support.running_agent import node

BY_CLAIM = "resources: [{kind: gpu-mem, enforcement: mps, mode: dra}]\n"
SETTINGS = "resources: [{kind: gpu-mem, enforcement: mps}]\n"


async def test_a_resource_that_is_withheld_keeps_its_daemons() -> None:
    """Its pods run on: a CDI folder that takes no file must not end their programs."""
    async with node() as n:
        folder = n.root / "var/run/cdi"
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("a file")
        await n.kubelet.start()
        await n.start_agent(n.configure(SETTINGS))
        await n.until(lambda: "cdi" in str(n.agent.offering.withheld))
        assert n.agent.offering.offered == ()
        files = MpsFiles(n.root / "var/lib/nodeagent/mps")
        await n.until(lambda: files.has_wanted() and len(files.read_wanted().gpus) == 2)


async def test_gpus_that_claims_share_through_mps_need_daemons_too() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(BY_CLAIM))
        files = MpsFiles(n.root / "var/lib/nodeagent/mps")
        await n.until(lambda: files.has_wanted() and len(files.read_wanted().gpus) == 2)
