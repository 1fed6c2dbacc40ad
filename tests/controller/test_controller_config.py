"""Read the controller's file and the topology file: their content, and faults with their lines."""

from __future__ import annotations

import re

import pytest

from hack.docs.settings import settings_table
from nodeagent.config.faults import ConfigError
from nodeagent.controller_config import FabricConfig, load_fabric
from nodeagent.fabric.topology_file import FabricTopology, StaticGroup, load_topology
from tests.support import golden

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
TOPOLOGY = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\n"


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_fabric(HEAD + text, name="f")
    return str(caught.value).splitlines()


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_topology(TOPOLOGY + text, name="t")
    return str(caught.value).splitlines()


@pytest.mark.parametrize("text", ["", "# nothing\n", "~"])
def test_an_empty_file_is_refused_with_its_own_first_lines(text: str) -> None:
    """The file of the command that prints the agent's would be of the wrong kind."""
    for load, head in ((load_fabric, HEAD), (load_topology, TOPOLOGY)):
        with pytest.raises(ConfigError) as caught:
            load(text, name="f")
        assert str(caught.value).startswith("f:1:1: the file is empty; start it with the lines `apiVersion: ")
        named = re.findall("`([^`]+)`", str(caught.value))
        assert "".join(f"{line}\n" for line in named) == head


def test_a_file_without_settings_gives_the_default_rules() -> None:
    assert load_fabric(HEAD, name="f") == FabricConfig()


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ('"gpu-[5-1]"', 'f:3:17: slurm.nodes[0]: "gpu-[5-1]" has a range whose end is below its start'),
        ('"gpu-[0-999999999]"', "f:3:17: slurm.nodes[0]: these are more than 200000 names"),
        ('"a-[1-150000]", "b-[1-150000]"', "f:3:33: slurm.nodes[1]: these are more than 200000 names"),
    ],
)
def test_hostlists_that_would_fill_the_memory_or_are_empty_are_refused(nodes: str, said: str) -> None:
    assert faults(f"slurm: {{nodes: [{nodes}]}}") == [said]


def test_everything_can_be_set() -> None:
    text = """\
fabric: gpu
fabrics:
- {fabric: storage, netdevs: [ens9*]}
- {fabric: gpu, minSpeedMbps: 200000, pciAddresses: ["0000:1a:*"]}
genericNames: [Switch]
tiers: {namePatterns: ["^(?P<tier2>pod[0-9]+)-"], assumeFullBisection: true}
minLinks: 6
labels: {keys: ["topology.nodeagent.io/tier-{tier}", "network.topology.nvidia.com/{tierName}"]}
hysteresis: {moveSeconds: 5, settleSeconds: 1, graceSeconds: 2, holdSeconds: 3, holdPercent: 50, holdNodes: 4}
foreign: yield
"""
    rules = load_fabric(HEAD + text, name="f")
    assert rules.fabric == "gpu"
    assert [rule.fabric for rule in rules.fabrics] == ["storage", "gpu"]
    assert rules.hysteresis.hold_share == 0.5
    assert rules.foreign == "yield"
    assert rules.labels.keys[1] == "network.topology.nvidia.com/{tierName}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fabrik: x", "f:3:1: fabrik: unknown key; did you mean fabric?"),
        (
            "foreign: refuze",
            'f:3:10: foreign: is "refuze", must be one of own, refuse, yield; did you mean refuse?',
        ),
        ("labels: {keys: [a/b]}", "one label for all tiers"),
        ('labels: {keys: ["a/{teir}"]}', "did you mean tier?"),
        ('tiers: {namePatterns: ["("]}', "is not a regular expression"),
        ('tiers: {namePatterns: ["leaf"]}', "names no tier"),
        ("fabrics: [{fabric: x}]", "matches every link"),
        ("hysteresis: {holdPercent: 101}", "must be at most 100"),
        ("fabric: A B", "is not a fabric's name"),
        ("troubleAnnotation: true\noutputs: [labels]", "troubleAnnotation: needs hypernodes in outputs"),
        ("overlapCondition: true\noutputs: [labels]", "overlapCondition: needs hypernodes in outputs"),
    ],
)
def test_a_fault_has_its_line_and_the_remedy(text: str, said: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith("f:3:")
    assert said in fault


def test_a_topology_file() -> None:
    text = """\
switches:
- {name: Spine01}
- {name: leaf01, uplinks: [spine01]}
- {name: "chassis:mac:AA:bb", uplinks: [Spine01]}
groups:
- {name: su01, switches: [leaf01, "chassis:mac:aa:bb"], nodes: [gpu-0, 1]}
"""
    topology = load_topology(TOPOLOGY + text, name="t")
    assert topology.uplinks == {"spine01": (), "leaf01": ("spine01",), "chassis:mac:aa:bb": ("spine01",)}
    assert topology.groups == (StaticGroup("su01", ("leaf01", "chassis:mac:aa:bb"), ("gpu-0", "1")),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "switches:\n- {name: leaf01, uplinks: [spine1]}\n- {name: spine01}",
            't:4:28: switches[0].uplinks[0]: the switch "spine1" is not listed under switches; did you mean spine01?',
        ),
        (
            "switches: []\ngroups:\n- {name: a, switches: [leaf01]}",
            't:5:24: groups[0].switches[0]: the switch "leaf01" is not listed under switches',
        ),
        (
            "switches:\n- name: a\n  uplinks: [b]\n- name: b\n  uplinks: [c]\n- name: c\n  uplinks: [a]",
            "t:5:3: switches[0].uplinks: the uplinks lead in a circle: a > b > c > a",
        ),
        (
            "switches:\n- name: a\n  uplinks: [a]",
            "t:5:3: switches[0].uplinks: the uplinks lead in a circle: a > a",
        ),
        (
            "groups:\n- name: a\n  nodes: [n1, n2]\n- name: b\n  nodes: [n3, n1]",
            't:7:15: groups[1].nodes[1]: the node "n1" is in another group already (line 5)',
        ),
        (
            "groups:\n- name: a\n  nodes: [n1, n1]",
            't:5:15: groups[0].nodes[1]: "n1" is in the list already, in line 5',
        ),
        (
            "switches:\n- name: a\n- name: A",
            't:5:3: switches[1].name: the switch "A" is listed twice (line 4)',
        ),
        (
            "switches: [{name: a}]\ngroups:\n- {name: x, switches: [a]}\n- {name: y, switches: [a]}",
            't:6:24: groups[1].switches[0]: the switch "a" is in another group already (line 5)',
        ),
        ("groups:\n- {name: x}", 't:4:3: groups[0]: the group "x" has neither switches nor nodes'),
        (
            "groups:\n- {name: x, nodes: [N1]}",
            't:4:21: groups[0].nodes[0]: "N1" is not a node\'s name; did you mean n1?',
        ),
    ],
)
def test_an_inconsistent_topology_is_refused_with_its_line(text: str, said: str) -> None:
    assert refusal(text) == [said]


def test_a_long_chain_of_uplinks_is_not_a_circle() -> None:
    rows = "".join(f"- {{name: s{i}, uplinks: [s{i + 1}]}}\n" for i in range(5000))
    topology = load_topology(f"{TOPOLOGY}switches:\n{rows}- {{name: s5000}}\n", name="t")
    assert len(topology.uplinks) == 5001


@pytest.mark.golden("docs/reference/fabric-settings.md")
def test_the_page_on_topology_has_every_setting(request: pytest.FixtureRequest) -> None:
    def with_tables(page: str) -> str:
        tables = iter((settings_table(FabricConfig), settings_table(FabricTopology)))
        text = re.sub(r"\| setting \|.*?\n(?!\|)", lambda _: next(tables), page, flags=re.DOTALL)
        assert not list(tables)
        return text

    golden.update(request.config.rootpath / "docs/reference/fabric-settings.md", with_tables)
