"""The settings of netdevs in pods: what `nodeagent config check` refuses, with the remedy."""

from __future__ import annotations

import doctest

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.attach import ipam_section
from nodeagent.attach.ipam_section import ipam_of_rail
from nodeagent.config.file_errors import ConfigError

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
NAMED = 'interface: "rail{rail}"\n  '


def test_netdevs_stay_on_the_host_by_default() -> None:
    assert Config().attach.interface is None


def test_a_plan_that_fits_is_accepted() -> None:
    read = load(
        f'{HEAD}attach: {{interface: "rail{{rail}}", addresses: "10.{{100+rail}}.0.0/16", nodes: 4094}}\n',
        name="f",
    )
    assert (read.attach.interface, read.attach.nodes) == ("rail{rail}", 4094)


def test_vfs_of_claims_are_moved_too() -> None:
    read = load(
        f'{HEAD}attach: {{interface: "rail{{rail}}"}}\nresources: [{{kind: vf, mode: dra}}]\n', name="f"
    )
    assert read.attach.interface == "rail{rail}"


@pytest.mark.parametrize(
    ("entry", "attach", "refused"),
    [
        ("kind: rdma, shares: 4", 'addresses: "10.{100+rail}.0.0/16", shares: 3', True),
        ("kind: rdma, shares: 4", 'addresses: "10.{100+rail}.0.0/16", shares: 4', False),
        ("kind: rdma, shares: 4", 'addresses: "fd00:{rail}::/64"', False),
        ("kind: rdma, shares: 4", "vfs: 8", False),
        ("kind: rdma, shares: 4, mode: dra", 'addresses: "10.{100+rail}.0.0/16"', False),
        ("kind: rdma, shares: 4, select: {linkTypes: [infiniband]}", 'addresses: "10.{100+rail}.0.0/16"', False),
    ],
)  # fmt: skip
def test_each_share_whose_pod_gets_a_netdev_has_an_address(entry: str, attach: str, refused: bool) -> None:
    text = f'{HEAD}resources: [{{{entry}}}]\nattach: {{interface: "rail{{rail}}", nodes: 500, {attach}}}\n'
    if not refused:
        load(text, name="f")
        return
    with pytest.raises(ConfigError) as faults:
        load(text, name="f")
    (fault,) = faults.value.errors
    assert fault.message.endswith("would not start: set attach.shares to 4"), fault


@pytest.mark.parametrize(
    ("section", "line", "why"),
    [
        ("interface: rail", 4, "it needs {rail}"),
        ('interface: "{rail*2}"', 4, "attach.interface"),
        ('interface: "rail{rail-1}"', 4, "braces hold the number of the rail"),
        ('interface: "rail{rail}"\n  addresses: "10.0.0.0/16"', 5, "so that each rail has its own"),
        ('interface: "rail{rail}"\n  addresses: "10.{rail}.0.0/24"', 5, "has numbers for 14 nodes with 8 VFs"),
        ('interface: "rail{rail}"\n  addresses: "10.{rail}.0.1/16"', 5, "has host bits set"),
        ('interface: "rail{rail}"\n  addresses: "fd00:{rail}::/80"', 5, "use a prefix of /64 or shorter"),
        ('addresses: "10.{rail}.0.0/16"', 4, "set attach.interface too"),
        ('interface: "rail{rail}"\n  numbers: true', 5, "set attach.addresses to an IPv4 prefix too"),
        ('interface: "rail{rail}"\n  numbers: true\n  addresses: "fd00:{rail}::/64"', 5, "numbers decide IPv4"),
        ("ipam: {type: nv-ipam, poolName: 'rail{rail}'}", 4, "set attach.interface too"),
        (f"{NAMED}ipam: host-local", 5, "must be a mapping, is the text"),
        (f"{NAMED}ipam: [host-local]", 5, "must be a mapping, is a list"),
        (f"{NAMED}ipam: {{}}", 5, "`type` must be the file name of an IPAM plugin, such as host-local"),
        (f"{NAMED}ipam: {{type: ../sh, range: '10.{{rail}}.0.0/16'}}", 5, "`type` must be the file name"),
        (f"{NAMED}ipam: {{type: 7, range: '10.{{rail}}.0.0/16'}}", 5, "`type` must be the file name"),
        (f"{NAMED}ipam: {{type: dhcp}}", 5, "use host-local or nv-ipam"),
        (f"{NAMED}ipam: {{type: whereabouts, range: '10.{{rail}}.0.0/16'}}", 5, "that Multus does not list"),
        (f"{NAMED}ipam: {{type: static}}", 5, "gives each pod the same addresses"),
        (f"{NAMED}ipam: {{type: host-local, subnet: 10.0.0.0/16}}", 5, "it needs {rail} in a text"),
        (f"{NAMED}ipam: {{type: x, ranges: [[{{subnet: '10.{{rail*2}}.0.0/16'}}]]}}", 5,
         "ranges[0][0].subnet: braces hold the number of the rail"),
        (f"{NAMED}ipam: {{type: x, a: '{{rail}}', b: '{{node}}'}}", 5, "b: braces hold the number of the rail"),
        (f"{NAMED}ipam: {{type: x, a: '{{rail}}{'y' * 17000}'}}", 5, "larger than 16384 bytes"),
        (f"{NAMED}ipam: {{type: x, a: '{{rail}}'}}\n  addresses: '10.{{rail}}.0.0/16'", 5, "both give addresses"),
        (f"{NAMED}ipam: {{type: x, a: '{{rail}}'}}\n  numbers: true", 6, "set attach.addresses to an IPv4 prefix"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_its_line(section: str, line: int, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(f"{HEAD}attach:\n  {section}\n", name="f")
    assert [(fault.line, why in f"{fault.path} {fault.message}") for fault in refused.value.errors] == [
        (line, True)
    ]


def test_a_section_of_an_ipam_plugin_is_read_as_its_json() -> None:
    """Copied from the configuration of a CNI plugin, with {rail} in the place of numbers."""
    text = """
  interface: rail{rail}
  ipam: {
    "type": "host-local",
    "ranges": [[{"subnet": "10.{100+rail}.0.0/16", "rangeStart": "10.{100+rail}.7.1"}]],
    "routes": [{"dst": "10.0.0.0/8", "mtu": 9000}],
    "flag": true, "nothing": null, "part": 0.5, "text": "true", "digits": "7", "id": 123456789012345678,
    "long": 1234567890123456789
  }
"""
    read = load(f"{HEAD}attach:{text}", name="f")
    assert read.attach.ipam == {
        "type": "host-local",
        "ranges": [[{"subnet": "10.{100+rail}.0.0/16", "rangeStart": "10.{100+rail}.7.1"}]],
        "routes": [{"dst": "10.0.0.0/8", "mtu": 9000}],
        "flag": True, "nothing": None, "part": 0.5, "text": "true", "digits": "7", "id": 123456789012345678,
        "long": "1234567890123456789",
    }  # fmt: skip
    assert ipam_of_rail(read.attach.ipam, 3)["ranges"] == [
        [{"subnet": "10.103.0.0/16", "rangeStart": "10.103.7.1"}]
    ]


def test_a_section_without_a_value_is_none() -> None:
    assert load(f"{HEAD}attach:\n  {NAMED}ipam: null\n", name="f").attach.ipam is None


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(ipam_section).failed == 0
