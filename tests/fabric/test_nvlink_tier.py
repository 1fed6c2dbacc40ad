"""NVLink domains as the tier below the leaf groups: the tree, its names, its anomalies and its labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, FabricRules, HyperNode, Planner
from nodeagent.fabric.fabric_settings import HysteresisSettings, LabelSettings, TierSettings
from nodeagent.fabric.nodelinks import NodeLinks, ReportedDomain
from nodeagent.fabric.topology_file import StaticGroup, Topology
from tests.support.examples import examples
from tests.support.fabrics import Cables, Cluster, Row, links, rails, stale

AUTO = TierSettings(nvlink="auto")
RULES = FabricRules(tiers=AUTO)
NOW = FabricRules(tiers=AUTO, hysteresis=IMMEDIATE)
TRAYS = 18

Domain = tuple[int, int] | None
"""The number of the fabric and the clique."""


def value(domain: Domain) -> str:
    assert domain is not None
    return f"00000000-0000-0000-0000-{domain[0]:012x}.{domain[1]}"


def tray(node: str, row: Row, *domains: Domain) -> NodeLinks:
    """The report of a node with four GPUs, in one domain or in several."""
    reported = [
        ReportedDomain(
            cluster_uuid=value(domain).partition(".")[0] if domain else None,
            clique_id=domain[1] if domain else None,
            gpus=tuple(range(i, 4, len(domains))),
        )
        for i, domain in enumerate(domains)
    ]
    return links(node, row, nvlink_domains=() if domains == (None,) else tuple(reported))


class Hall(Cluster):
    """Racks of trays; ``domain`` is that of each node."""

    def __init__(
        self, rules: FabricRules = RULES, racks: int = 4, trays: int = TRAYS, topology: Topology | None = None
    ) -> None:
        super().__init__(rules, topology or Topology())
        self.cables: Cables = rails(racks, trays, 4)
        self.domain: dict[str, Domain] = {node: (int(node[2:5]) + 1, 0) for node in self.cables}

    def rack(self, number: int) -> list[str]:
        return [node for node in self.cables if node.startswith(f"su{number:03}-")]

    def tell(self, *nodes: str) -> None:
        for node in nodes or self.cables:
            self.report(tray(node, self.cables[node], self.domain[node]))

    def start(self) -> Hall:
        self.exist(*self.cables)
        self.tell()
        self.rest()
        return self

    def of(self, tier: int) -> dict[str, frozenset[str]]:
        """The direct members of the objects of a tier of Volcano's."""
        return {
            name: frozenset([*self.tree.members(name, "Node"), *self.tree.members(name, "HyperNode")])
            for name, one in self.tree.objects.items()
            if one["spec"]["tier"] == tier
        }

    def kinds(self) -> Counter[str]:
        assert self.outcome is not None
        return Counter(str(anomaly.kind) for anomaly in self.outcome.anomalies)


def tier_names(hall: Cluster) -> dict[int, str]:
    return {one["spec"]["tier"]: one["spec"]["tierName"] for one in hall.tree.objects.values()}


def test_each_rack_is_a_domain_below_its_leaf_group() -> None:
    hall = Hall(FabricRules(tiers=TierSettings(nvlink="auto", assume_full_bisection=True))).start()
    assert tier_names(hall) == {1: "nvlink", 2: "leaf", 3: "spine"}
    domains, leaves, (root,) = hall.of(1), hall.of(2), hall.of(3).values()
    assert set(domains.values()) == {frozenset(hall.rack(number)) for number in range(4)}
    assert set(leaves.values()) == {frozenset([name]) for name in domains}
    assert root == leaves.keys()
    for name in domains:
        assert name.startswith("nodeagent-t1-nvl-")
        one = hall.tree.objects[name]
        assert one["metadata"]["annotations"]["nodeagent.io/nvlink-domain"].endswith(".0")
        assert one["metadata"]["labels"]["nodeagent.io/tier"] == "nvlink"
    assert hall.outcome is not None
    assert not hall.outcome.anomalies
    labels = hall.outcome.labels["su000-n000"]
    assert labels["topology.nodeagent.io/tier-1"] in domains
    assert labels["topology.nodeagent.io/tier-2"] in leaves
    assert labels["topology.nodeagent.io/tier-3"] in hall.of(3)


def test_a_rack_of_two_partitions_is_two_domains() -> None:
    hall = Hall()
    for node in hall.cables:
        hall.domain[node] = (int(node[2:5]) + 1, int(node[-3:]) // 9)
    hall.start()
    assert Counter(map(len, hall.of(1).values())) == {9: 8}
    assert Counter(map(len, hall.of(2).values())) == {2: 4}


@pytest.mark.parametrize("domain", [None, (0, 0)])
def test_nodes_without_a_domain_have_no_tier_of_their_own(domain: Domain) -> None:
    """A zero UUID is what an HGX H100 reports. The number of the leaf tier depends on the settings alone."""
    hall = Hall()
    hall.domain = dict.fromkeys(hall.domain, domain)
    hall.start()
    assert tier_names(hall) == {2: "leaf"}
    assert all(len(nodes) == TRAYS for nodes in hall.of(2).values())


def test_without_the_setting_domains_change_nothing() -> None:
    hall, plain = Hall(FabricRules()).start(), Hall(FabricRules())
    plain.domain = dict.fromkeys(plain.domain, None)
    plain.start()
    assert hall.tree.objects == plain.tree.objects
    assert tier_names(hall) == {1: "leaf"}


def test_nodes_without_a_domain_are_members_of_the_leaf_group_itself() -> None:
    hall = Hall()
    plain = hall.rack(0)[:6]
    hall.domain |= dict.fromkeys(plain, None)
    hall.domain[single := hall.rack(1)[0]] = (99, 0)
    hall.start()
    inside = frozenset[str]().union(*hall.of(1).values())
    assert inside == hall.cables.keys() - {*plain, single}
    above = {member for members in hall.of(2).values() for member in members}
    assert {*plain, single} < above
    assert hall.outcome is not None
    assert "topology.nodeagent.io/tier-1" not in hall.outcome.labels[plain[0]]
    assert hall.outcome.labels[plain[0]]["topology.nodeagent.io/tier-2"] in hall.of(2)


@pytest.mark.parametrize("seed", range(5))
def test_a_domain_that_comes_back_under_a_new_id_keeps_its_object(seed: int) -> None:
    """The nodes report the new ID one after the other, in the time of two readings of their agents."""
    hall = Hall().start()
    before, leaves, chance = hall.of(1), hall.of(2), random.Random(seed)
    nodes = hall.rack(2)
    chance.shuffle(nodes)
    for node in nodes:
        hall.domain[node] = (500, 7)
        hall.tell(node)
        hall.step(chance.uniform(0, 13))
    hall.rest(1000)
    assert (hall.of(1), hall.of(2)) == (before, leaves)
    (name,) = (name for name, members in before.items() if members == frozenset(nodes))
    assert hall.tree.objects[name]["metadata"]["annotations"]["nodeagent.io/nvlink-domain"] == value((500, 7))


@pytest.mark.parametrize("seed", range(5))
def test_a_rack_is_divided_and_joined_again_at_run_time(seed: int) -> None:
    """``Cluster`` checks the tree after each write. A part keeps the object, and so does the whole."""
    hall, chance = Hall().start(), random.Random(seed)
    before = hall.of(1)
    nodes = hall.rack(1)
    (name,) = (name for name, members in before.items() if members == frozenset(nodes))
    for clique in (1, 2):
        for node in nodes[9 * (clique - 1) : 9 * clique]:
            hall.domain[node] = (2, clique)
    chance.shuffle(nodes)
    for node in nodes:
        hall.tell(node)
        hall.step(chance.uniform(0, 5), lambda _place: chance.random() < 0.2)
    hall.rest(400)
    hall.rest(400)
    assert Counter(map(len, hall.of(1).values())) == {18: 3, 9: 2}
    assert name in hall.of(1)
    hall.domain |= dict.fromkeys(nodes, (2, 0))
    hall.tell(*nodes)
    for _ in range(3):
        hall.rest(400)
    assert set(hall.of(1).values()) == set(before.values())
    assert len(hall.of(2)) == 4


def test_while_a_rack_is_divided_slowly_no_node_moves_before_the_last_report() -> None:
    """Nodes move ``move_seconds`` after the last change of their domain, so the larger part keeps the object."""
    hall = Hall().start()
    before, nodes = hall.of(1), hall.rack(1)
    (name,) = (name for name, members in before.items() if members == frozenset(nodes))
    parts = {1: nodes[:11], 2: nodes[11:]}
    for clique, part in parts.items():
        for node in part:
            hall.domain[node] = (2, clique)
    for node in parts[1][7:] + [node for pair in zip(parts[1], parts[2], strict=False) for node in pair]:
        assert hall.of(1) == before
        hall.tell(node)
        hall.step(20)
    hall.rest(400)
    assert hall.of(1)[name] == frozenset(parts[1])
    assert hall.of(1).keys() > before.keys()
    assert frozenset(parts[2]) in hall.of(1).values()


def test_a_domain_in_two_leaf_groups_belongs_to_the_one_with_three_quarters() -> None:
    hall = Hall(NOW)
    away = hall.rack(1)[:4]
    hall.domain |= dict.fromkeys(away, (1, 0))
    hall.start()
    assert sorted(map(len, hall.of(1).values())) == [14, 18, 18, 18]
    assert hall.kinds() == {"nvlink-domain-split": 1}
    assert hall.outcome is not None
    (anomaly,) = hall.outcome.anomalies
    assert anomaly.nodes == tuple(away)
    assert "correct the cables" in anomaly.message
    for node in away:
        assert hall.outcome.labels[node].keys() == {"topology.nodeagent.io/tier-2"}


def test_a_domain_in_two_halves_is_left_out_and_the_leaf_groups_stay() -> None:
    hall = Hall(NOW, racks=2)
    hall.domain = {node: (1, int(node[-3:]) // 9) for node in hall.cables}
    hall.start()
    assert tier_names(hall) == {2: "leaf"}
    assert hall.kinds() == {"nvlink-domain-split": 2}
    group = StaticGroup("hall", (), tuple(hall.cables))
    joined = Hall(NOW, racks=2, topology=Topology(groups=(group,)))
    joined.domain = hall.domain
    joined.start()
    assert Counter(map(len, joined.of(1).values())) == {18: 2}
    assert not joined.kinds()


def test_a_node_whose_gpus_disagree_is_in_no_domain() -> None:
    hall = Hall(NOW).start()
    node = hall.rack(0)[3]
    hall.report(tray(node, hall.cables[node], (1, 0), None))
    hall.rest(1)
    assert hall.kinds() == {"nvlink-domain-mixed": 1}
    assert hall.outcome is not None
    (anomaly,) = hall.outcome.anomalies
    assert anomaly.node == node
    assert f"GPU 0, 2 in {value((1, 0))}; 1, 3 in none" in anomaly.message
    assert node not in frozenset[str]().union(*hall.of(1).values())
    assert sum(node in members for members in hall.of(2).values()) == 1


def test_missing_and_expired_reports_change_nothing() -> None:
    hall = Hall().start()
    objects = dict(hall.tree.objects)
    for node in hall.rack(0):
        hall.planner.report(node, None)
    for node in hall.rack(1):
        hall.report(tray(node, stale(hall.cables[node]), hall.domain[node]))
    for node in hall.rack(2):
        hall.planner.refuse(node, "is not JSON")
    for _ in range(3):  # a grace begins with one plan and ends with another
        assert not hall.rest(10_000)
    hall.restart()
    for _ in range(3):
        assert not hall.rest(10_000)
    assert hall.tree.objects == objects


def test_a_domain_of_two_nodes_stays_while_one_report_is_missing() -> None:
    hall = Hall(trays=2).start()
    objects = dict(hall.tree.objects)
    hall.planner.report("su000-n000", None)
    for _ in range(3):
        assert not hall.rest(10_000)
    assert hall.tree.objects == objects


def test_no_object_has_one_node_alone_after_the_other_has_joined_another_domain() -> None:
    hall = Hall(racks=1, trays=6)
    for number, node in enumerate(hall.cables):
        hall.domain[node] = (number // 2 + 1, 0)
    hall.start()
    assert sorted(map(len, hall.of(1).values())) == [2, 2, 2]
    first, second, *_ = hall.cables
    hall.domain[first] = (2, 0)
    hall.tell()
    for _ in range(10):
        hall.rest(100)
        assert min(map(len, hall.of(1).values())) >= 2
    assert sorted(map(len, hall.of(1).values())) == [2, 3]
    (leaf,) = hall.of(2).values()
    assert second in leaf, "its leaf group keeps it"


def test_a_domain_that_an_object_of_another_owner_lists_has_no_second_parent() -> None:
    hall = Hall(FabricRules(tiers=AUTO, foreign="adopt")).start()
    (name, _), *_ = sorted(hall.of(1).items())
    theirs = HyperNode(name="theirs", tier=2, children=(name,), source="other")
    hall.planner.hypernode("theirs", theirs)
    assert hall.outcome is not None
    hall.outcome = hall.planner.plan(hall.now)
    ours = {one.name: one for one in hall.outcome.hypernodes}
    assert name in ours
    assert not any(name in one.children for one in ours.values())


def test_a_domain_needs_no_lldp_and_gets_its_leaf_group_with_the_first_neighbor() -> None:
    hall = Hall(racks=2)
    hall.exist(*hall.cables)
    for node, row in hall.cables.items():
        hall.report(tray(node, (None,) * len(row), hall.domain[node]))
    hall.rest()
    domains = hall.of(1)
    assert Counter(map(len, domains.values())) == {18: 2}
    assert tier_names(hall) == {1: "nvlink"}
    assert hall.outcome is not None
    assert len(hall.outcome.unplaced) == 36
    hall.tell(*hall.rack(0)[:2])
    hall.rest(60)
    assert hall.of(1) == domains
    assert [len(members) for members in hall.of(2).values()] == [1]
    assert {unplaced.node for unplaced in hall.outcome.unplaced} == set(hall.rack(1))
    hall.tell()
    hall.rest(60)
    assert hall.of(1) == domains
    assert len(hall.of(2)) == 2


def test_the_setting_is_changed_on_a_published_tree() -> None:
    """Each write leaves one number for each tier name. The names of the leaf groups stay."""
    hall = Hall(FabricRules()).start()
    leaves = hall.of(1)
    for rules in (RULES, FabricRules(), RULES):
        hall.rules = rules
        hall.restart()
        hall.rest()
        assert hall.of(1 + rules.tier_offset).keys() == leaves.keys()
    hall.rules = FabricRules()
    hall.restart()
    chance = random.Random(1)
    for _ in range(20):
        hall.step(1, lambda _place: chance.random() < 0.3)
    hall.rest()
    assert hall.of(1) == leaves


# --- labels -----------------------------------------------------------------------------------------------


def apply_labels(planner: Planner, labels: dict[str, dict[str, str]], now: float) -> None:
    for node, patch in planner.plan(now).relabel.items():
        merged = {**labels.get(node, {}), **patch}
        labels[node] = {key: text for key, text in merged.items() if text is not None}
        planner.node(node, labels[node])


def labelled(hall: Hall, rules: FabricRules, labels: dict[str, dict[str, str]]) -> None:
    """A new planner in a cluster without HyperNodes writes its labels."""
    planner = Planner(rules)
    for node, row in hall.cables.items():
        planner.node(node, labels.get(node, {}))
        planner.report(node, tray(node, row, hall.domain[node]))
    apply_labels(planner, labels, 0.0)
    assert not planner.plan(0.0).relabel


def test_without_hypernodes_the_labels_keep_the_names_of_domains_and_leaf_groups() -> None:
    hall, labels = Hall(racks=2), dict[str, dict[str, str]]()
    hall.domain[plain := hall.rack(1)[5]] = None
    labelled(hall, FabricRules(), labels)
    leaf = {node: found["topology.nodeagent.io/tier-1"] for node, found in labels.items()}
    labelled(hall, RULES, labels)
    assert {node: found["topology.nodeagent.io/tier-2"] for node, found in labels.items()} == leaf
    assert labels[plain].keys() == {"topology.nodeagent.io/tier-2"}
    domain = {node: found.get("topology.nodeagent.io/tier-1") for node, found in labels.items()}
    assert len(set(domain.values())) == 3
    for node in hall.rack(0):
        hall.domain[node] = (77, 1)
    labelled(hall, RULES, labels)
    assert {node: found.get("topology.nodeagent.io/tier-1") for node, found in labels.items()} == domain
    labelled(hall, FabricRules(), labels)
    assert {node: found["topology.nodeagent.io/tier-1"] for node, found in labels.items()} == leaf
    assert all(found.keys() == {"topology.nodeagent.io/tier-1"} for found in labels.values())


@pytest.mark.parametrize("nvlink", ["auto", "off"])
def test_presets_write_the_domain_itself_and_count_the_tiers_from_the_leaf(nvlink: str) -> None:
    presets = LabelSettings(keys=(), presets=("topograph", "gpu-clique"))
    rules = FabricRules(tiers=TierSettings(nvlink=nvlink), labels=presets)
    hall, labels = Hall(racks=2), dict[str, dict[str, str]]()
    hall.domain[single := hall.rack(0)[0]] = (99, 4026)
    hall.domain[plain := hall.rack(0)[1]] = None
    labelled(hall, rules, labels)
    leaf = labels[plain]["fabric.topograph.run/tier-0"]
    assert labels[plain] == {"fabric.topograph.run/tier-0": leaf}
    assert labels[single] == {
        "accelerator.topograph.run/domain": value((99, 4026)),
        "fabric.topograph.run/tier-0": leaf,
        "nvidia.com/gpu.clique": value((99, 4026)),
    }


def test_a_node_without_a_report_keeps_the_label_of_its_domain() -> None:
    rules = FabricRules(labels=LabelSettings(presets=("gpu-clique",)))
    hall, labels = Hall(racks=1), dict[str, dict[str, str]]()
    labelled(hall, rules, labels)
    planner = Planner(rules)
    for node, known in labels.items():
        planner.node(node, known)
    apply_labels(planner, labels, 0.0)
    assert {found["nvidia.com/gpu.clique"] for found in labels.values()} == {value((1, 0))}


def test_keys_with_the_name_of_the_tier_stay_with_either_setting() -> None:
    for tiers in (AUTO, TierSettings()):
        rules = FabricRules(tiers=tiers, labels=LabelSettings(keys=("example.com/{tierName}",)))
        assert rules.label_keys == {f"example.com/{name}" for name in ("nvlink", "leaf", "spine", "core")}
        assert rules.labels_of_tier(1) == ("example.com/leaf",)


@pytest.mark.parametrize(
    "domain",
    [
        ReportedDomain(cluster_uuid="x" * 36, clique_id=0),
        ReportedDomain(cluster_uuid="9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa", clique_id=1 << 32),
        ReportedDomain(cluster_uuid="9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa", clique_id=-1),
    ],
)
def test_a_domain_that_nvml_cannot_report_refuses_the_report(domain: ReportedDomain) -> None:
    planner = Planner(NOW)
    planner.report("n", links("n", (None,), nvlink_domains=(domain,)))
    (unplaced,) = planner.plan(0.0).unplaced
    assert "NVLink domain" in unplaced.reason


# --- any order --------------------------------------------------------------------------------------------


RACKS, SIZE = 3, 6
TIMES = HysteresisSettings(grace_seconds=30, hold_seconds=0, hold_percent=100, hold_nodes=100)


def expected(hall: Hall, mixed: Iterable[str]) -> tuple[set[frozenset[str]], dict[str, frozenset[str]]]:
    """The domains, and the nodes below the leaf group of each rack, that the rules of this tier lead to."""
    racks = {
        node: next(end.switch[:5] for end in row if end is not None) for node, row in hall.cables.items()
    }
    domains: dict[Domain, set[str]] = {}
    for node, domain in hall.domain.items():
        if domain is not None and node not in mixed:
            domains.setdefault(domain, set()).add(node)
    inside = set()
    for nodes in domains.values():
        ((rack, most),) = Counter(racks[node] for node in nodes).most_common(1)
        kept = frozenset(node for node in nodes if racks[node] == rack)
        if most >= 2 and most >= 3 * (len(nodes) - most):
            inside.add(kept)
    groups = {rack: frozenset(node for node in racks if racks[node] == rack) for rack in racks.values()}
    return inside, groups


def below(hall: Hall) -> set[frozenset[str]]:
    domains = hall.of(1)
    return {
        frozenset(node for member in members for node in domains.get(member, (member,)))
        for members in hall.of(2).values()
    }


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**64), steps=st.integers(1, 12))
def test_the_tree_is_valid_after_each_write_and_ends_as_the_domains_are(seed: int, steps: int) -> None:
    """Domains, cables, reports and Nodes change in any order, writes fail, and planners start again."""
    chance = random.Random(seed)
    hall = Hall(msgspec.structs.replace(RULES, hysteresis=TIMES), RACKS, SIZE)
    hall.exist(*hall.cables)
    whole = dict(hall.cables)
    mixed: set[str] = set()
    hall.tell(*chance.sample(sorted(whole), chance.randrange(len(whole) + 1)))
    for _ in range(steps):
        for node in chance.sample(sorted(whole), chance.randrange(8)):
            mixed.discard(node)
            match chance.randrange(8):
                case 0:
                    hall.planner.report(node, None)
                    hall.reports.pop(node, None)
                    continue
                case 1:
                    hall.planner.node(node, None)
                    hall.planner.node(node, {})
                case 2 if node[-1] == "0":  # one node of each rack, so that the leaf groups stay
                    hall.cables[node] = whole[chance.choice(sorted(whole))]
                case 3:
                    hall.report(tray(node, stale(hall.cables[node]), hall.domain[node]))
                    continue
                case 4:
                    mixed.add(node)
                    hall.report(tray(node, hall.cables[node], (1, 0), (2, 0)))
                    continue
                case _:
                    hall.domain[node] = chance.choice(
                        [None, *((n, c) for n in range(1, 4) for c in range(2))]
                    )
            hall.tell(node)
        trouble = chance.choice((0.0, 0.3))
        hall.step(chance.choice((0, 10, 61, 400)), lambda _place, trouble=trouble: chance.random() < trouble)
        if chance.random() < 0.2:
            hall.restart()
    hall.tell(*(hall.cables.keys() - mixed))
    for _ in range(5):
        hall.rest(400)
    domains, groups = expected(hall, mixed)
    assert set(hall.of(1).values()) == domains
    assert below(hall) == set(groups.values())
    assert all(name.startswith("nodeagent-t1-nvl-") for name in hall.of(1))
    hall.restart()
    assert not hall.rest(1)
