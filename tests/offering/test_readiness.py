"""The pools of mode dra in ``/readyz``."""

from __future__ import annotations

import pytest

from nodeagent.cluster.deliveries import Deliveries
from nodeagent.dra.offered import DraOffer, OfferedPools
from nodeagent.facts.model import Snapshot, StaleSource
from nodeagent.offering.readiness import blind_remarks, pool_statuses


@pytest.mark.parametrize(("pool", "cause"), [("gpu", "no driver"), ("nic", "no netlink")])
def test_a_pool_that_is_not_known_yet_names_the_trouble_of_its_own_source(pool: str, cause: str) -> None:
    offer = DraOffer()
    stale = (
        StaleSource("lldp", "no lldpd"),
        StaleSource("gpus", "no driver"),
        StaleSource("pci", "no netlink"),
    )
    for sources, reason in (
        (stale, cause),
        (stale[:1], "its devices, or what pods hold, are not known yet"),
        ((*stale[:1], StaleSource("pods", "no kubelet")), "no kubelet"),
    ):
        offer.update(OfferedPools({pool: None}), Snapshot(stale_sources=sources))
        (status,) = pool_statuses(offer, None, Deliveries().of("slices"))
        assert (status.devices, status.obstacle) == (0, reason)


def test_an_agent_that_may_not_ask_what_the_kubelet_counts_says_that_it_sees_no_other_plugin() -> None:
    (remark,) = blind_remarks(["example.com/nic0"], pod_resources=False)
    assert "another device plugin" in remark
    assert "kubelet.podResources: true" in remark
    assert not [*blind_remarks(["example.com/nic0"], pod_resources=True)]
    assert not [*blind_remarks([], pod_resources=False)], "nothing is offered"
