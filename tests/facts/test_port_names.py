"""The name of a switch port, on frames that people have met."""

from __future__ import annotations

import pytest

from nodeagent.facts.model import Identifier
from nodeagent.facts.port_names import port_name
from nodeagent.health.cabling import same_port

SWITCH, MANAGEMENT = "24:8a:07:40:09:40", "24:8a:07:40:09:66"


@pytest.mark.parametrize(
    ("chassis", "port", "description", "name"),
    [
        pytest.param(SWITCH, ("ifname", "swp1"), "to gpu-1", "swp1", id="the ID"),
        pytest.param(
            SWITCH, ("local", "Ethernet30/1"), "ARISTA02T1:Ethernet1", "Ethernet30/1", id="an alias"
        ),
        pytest.param(SWITCH, ("mac", SWITCH), "Ethernet124", "Ethernet124", id="sonic-buildimage 11008"),
        pytest.param(SWITCH, ("mac", SWITCH), None, "", id="nothing names the port"),
        pytest.param(MANAGEMENT, ("mac", SWITCH), "Ethernet120", "Ethernet120", id="sonic-buildimage 1457"),
        pytest.param(MANAGEMENT, ("mac", SWITCH), None, SWITCH, id="an address of the port alone"),
        pytest.param(MANAGEMENT, ("mac", SWITCH), "rack 7, GPU nodes", SWITCH, id="a description in words"),
        pytest.param(MANAGEMENT, ("mac", SWITCH), "uplink", SWITCH, id="a description without a number"),
        pytest.param("leaf1", ("mac", SWITCH), "swp7s0", "swp7s0", id="a chassis ID that is no address"),
    ],
)
def test_the_name_of_a_port(chassis: str, port: tuple[str, str], description: str | None, name: str) -> None:
    """``chassis`` is a MAC address, or a local name."""
    id_of_chassis = Identifier("mac" if ":" in chassis else "local", chassis)
    found = port_name(id_of_chassis, Identifier(*port), description)
    assert found == name
    assert not found or same_port(found, port[1], description), "a plan may have the name that is shown"
