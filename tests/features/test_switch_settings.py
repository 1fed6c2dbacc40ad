"""Settings of switches and of marks on nodes in the controller's file, and their faults."""

from __future__ import annotations

import pytest

from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import FabricConfig, load_fabric

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"


def test_the_default_asks_no_switch_and_marks_no_node():
    config = load_fabric(HEAD, name="f")
    assert config == FabricConfig()
    assert config.switches.method == "none"
    assert not config.nodes.min_links_taint


def test_every_setting_of_the_sections_is_read():
    config = load_fabric(
        HEAD + "minLinks: 6\n"
        "nodes: {minLinksCondition: true, minLinksTaint: true, afterSeconds: 5, taintPercent: 10}\n"
        "switches:\n"
        "  method: snmp\n"
        "  networks: [10.20.0.0/16, 'fd00::/8']\n"
        "  addresses: [{switch: leaf1, address: 10.1.0.1}]\n"
        "  port: 1161\n"
        "  name: ^spine\n"
        "  snmp: {version: v2c}\n",
        name="f",
    )
    assert config.switches.addresses[0].address == "10.1.0.1"
    assert config.switches.snmp.version == "v2c"
    assert config.nodes.taint_percent == 10


@pytest.mark.parametrize(
    "where", ["networks: [10.20.0.0/16]", "addresses: [{switch: leaf1, address: 10.1.0.1}]"]
)
def test_switches_are_asked_in_networks_or_at_addresses(where: str):
    assert load_fabric(HEAD + f"switches: {{method: snmp, {where}}}\n", name="f").switches.method == "snmp"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("switches: {method: snmp}", "no switch may be asked"),
        ("switches: {networks: [10.0.0.1/8]}", "has host bits set"),
        ("switches: {addresses: [{switch: a, address: leaf1}]}", "names are not resolved"),
        (
            "switches: {addresses: [{switch: a, address: 1.2.3.4}, {switch: A, address: 1.2.3.5}]}",
            "is listed twice",
        ),
        ("switches: {name: '('}", "not a regular expression"),
        ("switches: {password: geheim}", "unknown key"),
        ("switches: {gnmi: {tls: false}}", "unknown key"),
        ("switches: {method: gnmi, networks: [10.0.0.0/8]}", "must be one of none, snmp"),
        ("switches: {credentials: relative}", "not an absolute path"),
        ("nodes: {minLinksTaint: true}", "minLinks is 0"),
    ],
)
def test_a_senseless_setting_is_refused(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        load_fabric(HEAD + text + "\n", name="f")
    assert said in str(caught.value)
