"""The published tree stays so: a plan from the tree of a plan is the same plan, after two rounds at most."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.fabric import IMMEDIATE, FabricRules, NodeLinks, compute
from nodeagent.fabric.fabric_settings import HysteresisSettings
from nodeagent.fabric.hypernode import HyperNode
from tests.support.examples import examples
from tests.support.fabrics import Cluster
from tests.support.halls import FAULTS, draw_hall
from tests.support.random_halls import Cabling, Links, draw_cabling, draw_lie, report, reports, switches

NOW = FabricRules(hysteresis=IMMEDIATE)
GROWING = HysteresisSettings(settle_seconds=0, hold_seconds=0, hold_percent=100)
SEED = st.integers(0, 2**64)
ROUNDS_MAX = 2
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def rounds(told: Sequence[NodeLinks], published: Sequence[HyperNode]) -> int:
    """How often a plan from the tree of the plan before is another one."""
    before: Sequence[HyperNode] | None = None
    for count in range(-1, 6):
        outcome = compute(told, published=published, rules=NOW)
        if outcome.hypernodes == before:
            return count
        before = published = outcome.hypernodes
    raise AssertionError("the plan goes on changing")


def some(chance: random.Random, cabling: Mapping[str, Links], share: float) -> Cabling:
    """The hall with this share of its cables."""
    return {
        node: tuple((rail, switch if chance.random() < share else "") for rail, switch in links)
        for node, links in cabling.items()
    }


@settings(max_examples=examples(100))
@example(seed=1098, units=4, small=True)
@given(seed=SEED, units=st.integers(1, 6), small=st.booleans())
def test_the_tree_of_a_random_hall_stands(seed: int, units: int, small: bool) -> None:
    """With wrong cables, false reports and missing cables; from no tree, and from that of a hall with other cables."""
    chance = random.Random(seed)
    holes = chance.choice((0.0, 0.0, 0.3, 0.5, 0.7, 0.85))
    cabling = draw_cabling(chance, units, sizes=range(1, 4) if small else range(1, 13), holes=holes)
    names = switches(cabling) or ["leaf"]
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        node = chance.choice(sorted(cabling))
        links = list(cabling[node])
        i = chance.randrange(len(links))
        links[i] = (links[i][0], chance.choice(names))
        cabling[node] = tuple(links)
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        cabling[chance.choice((*sorted(cabling), "liar"))] = draw_lie(chance, cabling)
    one, other = (reports(some(chance, cabling, chance.choice(SHARES))) for _ in range(2))
    assert rounds(one, ()) <= ROUNDS_MAX
    assert rounds(one, compute(other, rules=NOW).hypernodes) <= ROUNDS_MAX


@settings(max_examples=examples(100))
@example(seed=2886, units=4, size=3, rails=6)
@given(seed=SEED, units=st.integers(1, 4), size=st.integers(1, 8), rails=st.sampled_from((1, 2, 4, 6, 8)))
def test_the_tree_of_a_hall_that_is_built_stands(seed: int, units: int, size: int, rails: int) -> None:
    """With storage switches that no entry of ``fabrics`` takes out, and with faults."""
    chance = random.Random(seed)
    hall = draw_hall(chance, units=units, size=size, rails=rails)
    for _ in range(chance.choice((0, 0, 1, 3))):
        chance.choice(FAULTS)(hall, chance, chance.randrange(units))
    cables = dict(hall.cables)

    def told() -> list[NodeLinks]:
        share = chance.choice(SHARES)
        hall.cables = {place: end for place, end in cables.items() if chance.random() < share}
        hall.unused = cables.keys() - hall.cables.keys()
        return hall.reports()

    one, other = told(), told()
    assert rounds(one, ()) <= ROUNDS_MAX
    assert rounds(one, compute(other, rules=NOW).hypernodes) <= ROUNDS_MAX


@given(
    switch_count=st.integers(3, 8),
    nodes=st.integers(1, 3),
    closed=st.booleans(),
    seed=SEED,
)
def test_the_tree_of_a_ring_or_chain_stands(switch_count: int, nodes: int, closed: bool, seed: int) -> None:
    chance = random.Random(seed)
    cabling: Cabling = {
        f"r{i}-n{n}": ((0, f"sw{i}"), (1, f"sw{(i + 1) % switch_count}"))
        for i in range(switch_count if closed else switch_count - 1)
        for n in range(nodes)
    }
    one, other = (reports(some(chance, cabling, chance.choice(SHARES))) for _ in range(2))
    assert rounds(one, ()) <= ROUNDS_MAX
    assert rounds(one, compute(other, rules=NOW).hypernodes) <= ROUNDS_MAX


@pytest.mark.slow
@settings(max_examples=examples(20))
@example(seed=551)
@example(seed=10338)
@example(seed=10687)
@given(seed=SEED)
def test_writes_end_while_cables_come_go_and_are_wrong(seed: int) -> None:
    """Halls of nodes with 2, 8, 9, 10 and other numbers of rails, one cable after the other in random order."""
    chance = random.Random(seed)
    cabling = draw_cabling(
        chance, chance.randint(2, 4), rails=chance.choice((0, 0, 2, 8, 9, 10)), sizes=range(1, 6)
    )
    if chance.random() < 0.3:
        cabling["liar"] = draw_lie(chance, cabling)
    now = {node: [(rail, "") for rail, _ in links] for node, links in cabling.items()}
    places = [(node, i) for node, links in cabling.items() for i in range(len(links))]
    chance.shuffle(places)
    names = switches(cabling)
    cluster = Cluster(FabricRules(hysteresis=GROWING))
    for node, i in places:
        rail, switch = cabling[node][i]
        now[node][i] = (rail, chance.choice(names) if chance.random() < 0.05 else switch)
        if chance.random() < 0.1:
            other = chance.choice(sorted(now))
            j = chance.randrange(len(now[other])) if now[other] else 0
            if now[other]:
                now[other][j] = (now[other][j][0], "")
                cluster.report(report(other, tuple(now[other])))
        cluster.report(report(node, tuple(now[node])))
        if chance.random() < 0.5:
            cluster.rest(61)
            cluster.rest(61)
