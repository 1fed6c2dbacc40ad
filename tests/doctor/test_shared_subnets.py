"""Rails of one subnet, read from a real kernel."""

from __future__ import annotations

import pytest

from nodeagent.doctor.nic_checks import _shared_subnets
from nodeagent.host.sysfs import Tree
from nodeagent_lab.sim.netns import Netns
from tests.support.rail_rig import set_kernel


@pytest.mark.needs("root", "ip")
def test_rails_of_one_subnet_are_named_unless_arp_is_strict() -> None:
    with Netns() as ns:
        for number, own in enumerate(["10.0.0.1/24", "10.0.0.2/24", "10.0.1.1/24"]):
            ns.ip(
                f"link add rail{number} type veth\nlink set rail{number} up\naddr add {own} dev rail{number}"
            )
        rails = {"rail0", "rail1", "rail2"}
        with ns.entered():
            assert _shared_subnets(Tree("/"), rails) == {"10.0.0.0/24": ("rail0", "rail1")}
            assert _shared_subnets(Tree("/"), {"rail0", "rail2"}) == {}
        set_kernel(ns, "net/ipv4/conf/all/arp_ignore", "1")
        with ns.entered():
            assert _shared_subnets(Tree("/"), rails) == {}
