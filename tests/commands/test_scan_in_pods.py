"""`nodeagent scan` shows which name and address each VF would have in a pod."""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent_lab.sim.machine import Machine

HEAD = (
    'apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresources: [{kind: vf, name: "nic{rail}"}]\n'
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    Machine.load("two-gpu-two-nic").write(root)
    return root


def scanned(machine: Path, attach: str, *options: str) -> int:
    file = machine.parent / "config.yaml"
    file.write_text(f"{HEAD}gpu: {{driver: none}}\n{attach}")
    return main(["scan", "--root", str(machine), "--config", str(file), *options])


def test_each_vf_has_a_line_with_its_name_and_its_address(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = 'attach: {interface: "rail{rail}", addresses: "fd00:{rail}::/64"}\n'
    assert scanned(machine, plan) == 0
    section = capsys.readouterr().out.partition("IN PODS\n")[2].partition("\n\n")[0].splitlines()
    assert section[0].split() == ["DEVICE", "RAIL", "NETDEV", "MTU", "ADDRESS"]
    rows = [line.split() for line in section[1:]]
    assert {(rail, name) for _, rail, name, _, _ in rows} == {("0", "rail0"), ("1", "rail1")}
    assert all(
        ip_interface(address).network == ip_network(f"fd00:{rail}::/64") for _, rail, _, _, address in rows
    )
    assert scanned(machine, plan, "--json") == 0
    found = json.loads(capsys.readouterr().out)["inPods"]
    assert {device: vf["address"] for device, vf in found.items()} == {row[0]: row[4] for row in rows}


def test_an_address_that_a_plugin_gives_at_the_start_of_a_pod_has_its_name(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ipam = '{type: host-local, ranges: [[{subnet: "10.{100+rail}.0.0/16"}]]}'
    assert scanned(machine, f'attach: {{interface: "rail{{rail}}", ipam: {ipam}}}\n') == 0
    output = capsys.readouterr().out
    section = output.partition("IN PODS\n")[2].partition("\n\n")[0].splitlines()
    assert section[1:]
    assert all(line.endswith(" by host-local") for line in section[1:])
    assert "NO ADDRESS" not in output


def test_of_a_machine_that_is_elsewhere_the_addresses_of_pfs_are_not_known(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scanned(machine, 'attach: {interface: "rail{rail}", addresses: "10.{100+rail}.0.0/16"}\n') == 0
    output = capsys.readouterr().out
    assert "rail1" in output.partition("IN PODS\n")[2]
    assert "the addresses of its PF are not known here" in output.partition("NO ADDRESS\n")[2]


def test_the_nics_of_one_rail_have_its_name_and_prefix(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planes of a NIC, and NICs in entries of their own."""
    assert main(["scan", "--root", str(machine), "--json"]) == 0
    pfs = sorted(json.loads(capsys.readouterr().out)["nics"])
    entries = "".join(
        f"- {{kind: vf, name: 'nic{{rail}}p{place}', select: {{pciAddresses: ['{pf}']}}}}\n"
        for place, pf in enumerate(pfs)
    )
    file = machine.parent / "config.yaml"
    file.write_text(
        f"{HEAD.partition('resources:')[0]}resources:\n{entries}gpu: {{driver: none}}\n"
        'attach: {interface: "rail{rail}", addresses: "fd00:{rail}::/64"}\n'
    )
    assert main(["scan", "--root", str(machine), "--config", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["nics"].values()) == ["nic0", "nic0.1"]
    assert {vf["rail"] for vf in found["inPods"].values()} == {0}


def test_without_the_setting_nothing_is_said_of_pods(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scanned(machine, "") == 0
    assert "IN PODS" not in capsys.readouterr().out
    assert scanned(machine, "", "--json") == 0
    assert "inPods" not in json.loads(capsys.readouterr().out)
