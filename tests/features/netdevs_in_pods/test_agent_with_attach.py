"""A running agent whose settings ask for netdevs in pods: its answers, and its files for the other process."""

from __future__ import annotations

import re

import pytest

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.attach.plan_file import read_attach_plan
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node
from tests.support.waiting import until

SETTINGS = 'resources: [{kind: vf, name: "nic{rail}"}]\ngpu: {driver: none}\n'
ATTACH = 'attach: {interface: "rail{rail}", addresses: "fd00:{rail}::/64"}\n'


@pytest.mark.timeout(120)
async def test_a_container_names_a_stamped_device_and_the_plan_has_its_vf() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(SETTINGS + ATTACH))
        await n.registered()
        state = n.root / "var/lib/nodeagent"
        await n.until(lambda: read_attach_plan(state) is not None)
        (nic0,) = (name for name in n.kubelet.allocatable() if name.endswith("/nic0"))
        plan = read_attach_plan(state)
        assert plan is not None
        admission = await n.kubelet.admit(PodSpec.single("worker", {nic0: 1}))
        assert admission.phase == "Running", admission
        (name,) = admission.given["main"].cdi_devices
        found = re.fullmatch(r"nodeagent\.io/attached=(.+)-([0-9a-f]{8})", name)
        assert found is not None, name
        vf, stamp = found.groups()
        assert AttachStamps(state).read([vf]) == {vf: (stamp,)}
        assert plan.vfs[vf].rail == 0
        assert plan.vfs[vf].address is not None
        assert plan.vfs[vf].address.startswith("fd00:")

        # Switched off: containers name nothing, and the plan keeps what pods have.
        await n.stop_agent()
        await n.start_agent(n.configure(SETTINGS))
        await n.registered()
        await until(lambda: (read_attach_plan(state) or plan).on is False)
        await n.until(lambda: n.kubelet.allocatable().get(nic0, 0) > 0)
        admission = await n.kubelet.admit(PodSpec.single("next", {nic0: 1}))
        assert admission.phase == "Running", admission
        assert admission.given["main"].cdi_devices == ()
