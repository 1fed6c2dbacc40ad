"""The settings of netdevs in pods: what `nodeagent config check` refuses, with the remedy."""

from __future__ import annotations

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.config.file_errors import ConfigError

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


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
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_its_line(section: str, line: int, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(f"{HEAD}attach:\n  {section}\n", name="f")
    assert [(fault.line, why in f"{fault.path} {fault.message}") for fault in refused.value.errors] == [
        (line, True)
    ]
