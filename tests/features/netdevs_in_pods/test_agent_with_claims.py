"""A running agent whose VFs are in claims and whose settings ask for netdevs in pods: what the other process reads, and
what the claim says once the netdev is in the pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.attach.attach_files import AttachFiles, AttachState
from nodeagent.attach.claimed_vfs import ClaimedVfs
from nodeagent.attach.plan_file import read_attach_plan
from nodeagent.cluster import claim_statuses
from nodeagent.dra import DRIVER
from nodeagent.facts.model import PodNetdev
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim
from tests.dra.test_agent import kubeconfig
from tests.support.dra_node import claim_of, result
from tests.support.running_agent import HEAD, PROMPT, node, shorten_holdings
from tests.support.waiting import until

SETTINGS = (
    'resources: [{kind: vf, name: "nic{rail}", mode: dra}]\ngpu: {driver: none}\n'
    'attach: {interface: "rail{rail}", addresses: "fd00:{rail}::/64"}\n'
)


@pytest.mark.timeout(120)
async def test_a_claim_has_the_name_and_the_addresses_of_its_vf_in_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_holdings(monkeypatch)
    monkeypatch.setattr(claim_statuses, "SPREAD_S", (0.0, 0.1))
    server = await ApiServer().start()
    access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
    cluster = f"cluster: {{{access}, report: false, events: false}}\n"

    def network() -> dict[str, Any]:
        stored = server.find("resourceclaims", "c", "default") or {}
        entries = stored["status"].get("devices") or [{}]
        found: dict[str, Any] = entries[0].get("networkData") or {}
        return found

    try:
        async with node() as n:
            await n.kubelet.start()
            await n.start_agent(n.configure(HEAD + PROMPT + cluster + SETTINGS), node_name="n1")
            agent = n.agent
            assert agent is not None
            await n.kubelet.until(lambda: n.kubelet.dra.registered(DRIVER), 20)
            state = n.root / "var/lib/nodeagent"
            await n.until(lambda: read_attach_plan(state) is not None)
            await n.until(lambda: any(agent.offering.dra.current.devices()))
            pf = next(iter(agent.offering.dra.current.devices()))
            claim = server.put(claim_of("c", result(pf, 1, "r"), pod="trainer"))
            uid = claim["metadata"]["uid"]
            await n.kubelet.dra.prepare("trainer", [PodClaim("default", "c", uid, (DRIVER,))])

            ((given,),) = n.kubelet.dra.states["default/c"].devices.values()
            (claimed,) = ClaimedVfs(state).read()
            assert given.cdi_ids[1] == f"nodeagent.io/attached={claimed.device}-{claimed.stamp}"
            pod_uid = claim["status"]["reservedFor"][0]["uid"]
            assert (claimed.namespace, claimed.pods) == ("default", {pod_uid: "trainer"})
            files = list(n.folder.glob("k/plugins/nodeagent.io/dra-device-metadata/*/r.json"))
            promised = json.loads(files[0].read_text().splitlines()[0])["requests"][0]["devices"][0][
                "networkData"
            ]
            plan = read_attach_plan(state)
            assert plan is not None
            address = plan.vfs[claimed.device].address
            assert address is not None
            assert (promised["interfaceName"], promised["ips"]) == ("rail0", [address])
            await server.until(lambda: "interfaceName" in network())
            assert "ips" not in network(), "it is not in the pod yet"

            there = PodNetdev(claimed.device, "default", "trainer", "rail0", (address,))
            AttachFiles(state).write_state(AttachState("containerd 2.1.9", netdevs=(there,)))
            await until(lambda: network() == promised)

            AttachFiles(state).write_state(AttachState(netdevs=(replace(there, netdev="net1"),)))
            await until(lambda: network()["interfaceName"] == "net1")
    finally:
        await server.stop()
