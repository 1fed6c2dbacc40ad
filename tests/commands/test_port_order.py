"""The order of ports in a leaf group: what one report can change in it."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.commands.plan.port_order import NodePort, deviations


def group(nodes: int, rails: int) -> list[NodePort]:
    """A leaf for two rails: the second rail has the next port."""
    return [
        NodePort(f"n{n}", f"nic{rail}", f"leaf{rail // 2}", f"swp{2 * n + rail % 2}")
        for n in range(nodes)
        for rail in range(rails)
    ]


@example(seed=1, nodes=8, rails=4, others=40)
@given(
    seed=st.integers(0, 2**64), nodes=st.integers(8, 32), rails=st.integers(3, 8), others=st.integers(0, 40)
)
def test_one_report_of_any_ports_hides_no_deviation_of_others_and_makes_none(
    seed: int, nodes: int, rails: int, others: int
) -> None:
    """It has links of any names, as many as it likes, at ports of others and at new ones."""
    chance = random.Random(seed)
    links = group(nodes, rails)
    wrong = chance.randrange(len(links))
    links[wrong] = links[wrong]._replace(port="swp99")
    names = [f"nic{rail}" for rail in range(rails) if chance.random() < 0.8]
    names += [f"other{i}" for i in range(others)]
    lie = [
        NodePort("liar", name, f"leaf{chance.randrange(rails)}", f"swp{chance.randrange(100)}")
        for name in names
    ]
    before, after = deviations(links), deviations([*links, *lie])
    assert before is not None
    assert before.keys() == {links[wrong]}
    assert after is not None
    assert {link: at.port for link, at in after.items() if link.node != "liar"} == {
        link: at.port for link, at in before.items()
    }
